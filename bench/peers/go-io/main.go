// The servers of `make bench-io` in Go: an echo server, and one with net/http. The protocol is described in bench::io.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
)

func main() {
	workers, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	runtime.GOMAXPROCS(workers)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	if os.Args[1] == "http" {
		panic(http.Serve(listener, http.HandlerFunc(hello)))
	}
	for {
		stream, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go echo(stream)
	}
}

// Go interrupts it by a signal.
func hog() {
	for {
	}
}

func echo(stream net.Conn) {
	defer stream.Close()
	buffer := make([]byte, 1024)
	for {
		got, err := stream.Read(buffer)
		if err != nil {
			return
		}
		if buffer[0] == 'L' {
			hog()
		}
		if _, err := stream.Write(buffer[:got]); err != nil {
			return
		}
	}
}

func hello(answer http.ResponseWriter, request *http.Request) {
	if request.URL.Path == "/loop" {
		hog()
	}
	answer.Header().Set("Content-Type", "text/plain")
	answer.Write([]byte("Hello, World!"))
}
