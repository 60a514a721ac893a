// The peer Go: the protocol of bench/peers/src/lib.rs with goroutines; GOMAXPROCS is the number of workers.
package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func figure(name string, value float64, unit string) {
	fmt.Printf("%s %.3f %s\n", name, value, unit)
}

// leave ends the program: 3 says that Go cannot do it, 1 that the figure would be wrong.
func leave(code int, why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(code)
}

func nsEach(start time.Time, count int) float64 {
	return float64(time.Since(start).Nanoseconds()) / float64(count)
}

func millions(start time.Time, count int) float64 {
	return float64(count) / time.Since(start).Seconds() / 1e6
}

func ms(start time.Time) float64 {
	return time.Since(start).Seconds() * 1e3
}

func expectSum(what string, sum, expected uint64) {
	if sum != expected {
		leave(1, fmt.Sprintf("%s: counted %d instead of %d", what, sum, expected))
	}
}

func resident() float64 {
	text, _ := os.ReadFile("/proc/self/statm")
	pages, _ := strconv.Atoi(strings.Split(string(text), " ")[1])
	return float64(pages) * 4096
}

//go:noinline
func touchStack() byte {
	var bytes [256]byte
	for i := range bytes {
		bytes[i] = 1
	}
	return bytes[runtime.NumGoroutine()&255]
}

// compute is about 8.5 µs: a chain of dependent steps, as in the other peers.
//
//go:noinline
func compute(seed uint64) uint64 {
	for i := 0; i < 6000; i++ {
		seed = seed*6364136223846793005 + 1
	}
	return seed
}

func yields(count int) {
	// Two turns in a row are allowed, three must be rare: bench/peers/src/lib.rs says why.
	var last, again, failures int
	var group sync.WaitGroup
	start := time.Now()
	for me := 1; me <= 2; me++ {
		group.Add(1)
		go func() {
			for i := 0; i < count/2; i++ {
				if last != me {
					last, again = me, 0
				} else if again++; again > 1 {
					failures++
				}
				runtime.Gosched()
			}
			group.Done()
		}()
	}
	group.Wait()
	ns := nsEach(start, count)
	if failures > count/20 {
		leave(1, fmt.Sprintf("the two tasks do not alternate: %d of %d yields came straight back", failures, count))
	}
	figure("yield", ns, "ns")
}

func spawnJoin(count int) {
	best := 0.0
	for round := 0; round < 3; round++ {
		var sum atomic.Uint64
		var group sync.WaitGroup
		start := time.Now()
		group.Add(count)
		for i := 0; i < count; i++ {
			go func() {
				sum.Add(1)
				group.Done()
			}()
		}
		group.Wait()
		best = max(best, millions(start, count))
		expectSum("spawn-join", sum.Load(), uint64(count))
	}
	figure("spawn-join", best, "M/s")
}

func spawnJoinOne(count int) {
	var sum uint64
	start := time.Now()
	for i := 0; i < count; i++ {
		result := make(chan uint64, 1)
		go func() { result <- 1 }()
		sum += <-result
	}
	figure("spawn-join-one", nsEach(start, count), "ns")
	expectSum("spawn-join-one", sum, uint64(count))
}

func skynet(results chan uint64, first, leaves uint64) {
	if leaves == 1 {
		results <- first
		return
	}
	children := make(chan uint64, 10)
	part := leaves / 10
	for child := uint64(0); child < 10; child++ {
		go skynet(children, first+child*part, part)
	}
	var sum uint64
	for child := 0; child < 10; child++ {
		sum += <-children
	}
	results <- sum
}

func parked(count int) {
	wake := make(chan struct{})
	var reached atomic.Int64
	var group sync.WaitGroup
	group.Add(count)
	before := resident()
	start := time.Now()
	for i := 0; i < count; i++ {
		go func() {
			touchStack()
			reached.Add(1)
			<-wake
			group.Done()
		}()
	}
	for reached.Load() < int64(count) {
		runtime.Gosched()
	}
	spawnMs, after := ms(start), resident()
	start = time.Now()
	close(wake)
	group.Wait()
	wakeMs := ms(start)
	figure("parked-bytes", (after-before)/float64(count), "bytes")
	figure("parked-spawn", spawnMs, "ms")
	figure("parked-wake", wakeMs, "ms")
}

func pingPong(count int) {
	ping, pong := make(chan int), make(chan int)
	done := make(chan bool)
	start := time.Now()
	go func() {
		for ball := range ping {
			pong <- ball + 1
		}
	}()
	go func() {
		for ball := 0; ball < count; ball++ {
			ping <- ball
			if <-pong != ball+1 {
				leave(1, "pingpong: lost the ball")
			}
		}
		close(ping)
		done <- true
	}()
	<-done
	figure("pingpong", nsEach(start, count), "ns")
}

func mpmc(count int) {
	channel := make(chan uint64, 128)
	sums := make(chan uint64, 4)
	var producers sync.WaitGroup
	start := time.Now()
	producers.Add(4)
	for i := 0; i < 4; i++ {
		go func() {
			for message := 0; message < count/4; message++ {
				channel <- uint64(message)
			}
			producers.Done()
		}()
	}
	for i := 0; i < 4; i++ {
		go func() {
			var sum uint64
			for message := range channel {
				sum += message
			}
			sums <- sum
		}()
	}
	producers.Wait()
	close(channel)
	var sum uint64
	for i := 0; i < 4; i++ {
		sum += <-sums
	}
	figure("mpmc", millions(start, count), "M/s")
	each := uint64(count / 4)
	expectSum("mpmc", sum, 4*(each*(each-1)/2))
}

// steal: the parent spins, the child says when it began; the other P is searching after 2 µs, and sleeps after 5 ms.
func steal(workload string, count int) {
	pause := 2 * time.Microsecond
	if workload == "steal-parked" {
		pause = 5 * time.Millisecond
	}
	var latencies []float64
	origin := time.Now()
	for trial := 0; trial < count+10; trial++ {
		for start := time.Now(); time.Since(start) < pause; {
		}
		var began atomic.Int64
		spawned := time.Since(origin)
		go func() { began.Store(int64(time.Since(origin))) }()
		for start := time.Now(); began.Load() == 0; {
			if time.Since(start) > 500*time.Millisecond {
				leave(3, "no other worker takes the child while its parent spins")
			}
		}
		// The first ones only warm up.
		if trial >= 10 {
			latencies = append(latencies, float64(began.Load()-int64(spawned))/1e3)
		}
	}
	slices.Sort(latencies)
	figure(workload+"-p50", latencies[(count-1)*50/100], "us")
	figure(workload+"-p99", latencies[(count-1)*99/100], "us")
}

func scaling(count int) {
	var group sync.WaitGroup
	start := time.Now()
	group.Add(count)
	for i := 0; i < count; i++ {
		go func() {
			compute(uint64(i))
			group.Done()
		}()
	}
	group.Wait()
	figure("scaling", ms(start), "ms")
}

func hog() {
	var progress atomic.Int64
	var done atomic.Bool
	var group sync.WaitGroup
	group.Add(2)
	go func() {
		for !done.Load() {
			progress.Add(1)
			runtime.Gosched()
		}
		group.Done()
	}()
	go func() {
		for progress.Load() < 10 {
			runtime.Gosched()
		}
		before := progress.Load()
		for start := time.Now(); time.Since(start) < time.Second; {
			compute(1)
		}
		figure("hog", float64(progress.Load()-before), "yields")
		done.Store(true)
		group.Done()
	}()
	group.Wait()
}

// timeouts sets time-outs and takes them back beside goroutines that sleep: SideBySide of bench/peers/src/lib.rs.
func timeouts(workers, count int) {
	const sleepers = 100_000
	var asleep, arrived atomic.Int64
	for i := 0; i < sleepers; i++ {
		go func() {
			asleep.Add(1)
			time.Sleep(time.Hour + time.Duration(i)*time.Microsecond)
		}()
	}
	for asleep.Load() < sleepers {
		runtime.Gosched()
	}
	results := make(chan float64, workers)
	for i := 0; i < workers; i++ {
		go func() {
			arrived.Add(1)
			for waiting := time.Now(); arrived.Load() < int64(workers); {
				if time.Since(waiting) > 500*time.Millisecond {
					leave(3, "no other worker takes the second task while the first one spins")
				}
			}
			start := time.Now()
			for i := 0; i < count; i++ {
				time.NewTimer(time.Second).Stop()
			}
			results <- nsEach(start, count)
		}()
	}
	sum := 0.0
	for i := 0; i < workers; i++ {
		sum += <-results
	}
	figure("timeouts", sum/float64(workers), "ns")
}

func main() {
	if len(os.Args) < 3 {
		leave(2, "which workload, how many workers? <program> <workload> <workers> [size]")
	}
	workload := os.Args[1]
	workers, _ := strconv.Atoi(os.Args[2])
	size := func(count int) int {
		if len(os.Args) > 3 {
			count, _ = strconv.Atoi(os.Args[3])
		}
		return count
	}
	runtime.GOMAXPROCS(workers)
	switch workload {
	case "yield":
		yields(size(1_000_000))
	case "spawn-join":
		spawnJoin(size(1_000_000))
	case "spawn-join-one":
		spawnJoinOne(size(200_000))
	case "skynet":
		leaves := uint64(size(1_000_000))
		results := make(chan uint64, 1)
		start := time.Now()
		go skynet(results, 0, leaves)
		sum := <-results
		figure("skynet", ms(start), "ms")
		expectSum("skynet", sum, leaves*(leaves-1)/2)
	case "parked":
		parked(size(1_000_000))
	case "pingpong":
		pingPong(size(500_000))
	case "mpmc":
		mpmc(size(2_000_000))
	case "steal-searching":
		steal(workload, size(2_000))
	case "steal-parked":
		steal(workload, size(500))
	case "scaling":
		scaling(size(20_000))
	case "hog":
		hog()
	case "timeouts":
		timeouts(workers, size(500_000))
	default:
		leave(3, "not a workload of Go")
	}
}
