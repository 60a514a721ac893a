// The peer Boost.Fiber: round robin on one thread, shared_work on several. A spawn does not wake a thread that sleeps in
// shared_work, so the threads spin (suspend = false). A fiber lives on its own stack as long as a handle to it does: a
// million at once would be 8 GB, so `spawn-join` and `scaling` run in waves of 1,000, and children of `skynet` are
// started at once (launch::dispatch). All of this favours it.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <boost/fiber/all.hpp>

#include "peer.hpp"

namespace fibers = boost::fibers;
using peer::Clock;

static const long WAVE = 1000;
static const size_t STACK = 16 * 1024;
// Of `parked`: malloc writes at both ends of what it gives, so that a larger one would be resident with more pages.
static const size_t LEAN_STACK = 8 * 1024;
// Boost's pool of stacks is the fastest, but has no lock; several threads take theirs from malloc.
static bool pooled = true;
static size_t stack_size = STACK;

template <typename Function>
static fibers::fiber spawn(Function&& function, fibers::launch launch = fibers::launch::post) {
    static fibers::pooled_fixedsize_stack pool(STACK, WAVE);
    if (pooled) return fibers::fiber(launch, std::allocator_arg, pool, std::forward<Function>(function));
    fibers::fixedsize_stack stacks(stack_size);
    return fibers::fiber(launch, std::allocator_arg, stacks, std::forward<Function>(function));
}

static void yields(long count) {
    // Two turns in a row are allowed, three must be rare: bench/peers/src/lib.rs says why.
    int last = 0, again = 0;
    long failures = 0;
    std::vector<fibers::fiber> tasks;
    const auto start = Clock::now();
    for (int me = 1; me <= 2; me++) {
        tasks.push_back(spawn([&, me] {
            for (long i = 0; i < count / 2; i++) {
                if (last != me) {
                    last = me;
                    again = 0;
                } else if (++again > 1) {
                    failures++;
                }
                boost::this_fiber::yield();
            }
        }));
    }
    for (auto& task : tasks) task.join();
    const double ns = peer::ns_each(start, count);
    if (failures > count / 20) peer::leave(1, "the two tasks do not alternate");
    peer::figure("yield", ns, "ns");
}

static void spawn_join(long count) {
    double best = 0;
    for (int round = 0; round < 3; round++) {
        std::atomic<uint64_t> sum{0};
        std::vector<fibers::fiber> tasks;
        tasks.reserve(WAVE);
        const auto start = Clock::now();
        for (long wave = 0; wave < count / WAVE; wave++) {
            for (long i = 0; i < WAVE; i++) {
                tasks.push_back(spawn([&sum] { sum.fetch_add(1, std::memory_order_relaxed); }));
            }
            for (auto& task : tasks) task.join();
            tasks.clear();
        }
        best = std::max(best, peer::millions(start, count));
        peer::expect_sum("spawn-join", sum, count / WAVE * WAVE);
    }
    peer::figure("spawn-join", best, "M/s");
}

static void spawn_join_one(long count) {
    uint64_t sum = 0;
    const auto start = Clock::now();
    for (long i = 0; i < count; i++) {
        spawn([&sum] { sum += 1; }).join();
    }
    peer::figure("spawn-join-one", peer::ns_each(start, count), "ns");
    peer::expect_sum("spawn-join-one", sum, count);
}

static uint64_t skynet(uint64_t first, uint64_t leaves) {
    if (leaves == 1) return first;
    const uint64_t part = leaves / 10;
    uint64_t sums[10];
    fibers::fiber children[10];
    for (int child = 0; child < 10; child++) {
        auto body = [=, &sums] { sums[child] = skynet(first + child * part, part); };
        children[child] = spawn(body, fibers::launch::dispatch);
    }
    uint64_t sum = 0;
    for (int child = 0; child < 10; child++) {
        children[child].join();
        sum += sums[child];
    }
    return sum;
}

static void parked(long count) {
    fibers::mutex mutex;
    fibers::condition_variable event;
    bool woken = false;
    long reached = 0;
    std::vector<fibers::fiber> tasks;
    tasks.reserve(count);
    const double before = peer::resident();
    auto start = Clock::now();
    for (long i = 0; i < count; i++) {
        tasks.push_back(spawn([&] {
            peer::touch_stack();
            std::unique_lock<fibers::mutex> lock(mutex);
            reached++;
            event.wait(lock, [&] { return woken; });
        }));
    }
    while (reached < count) boost::this_fiber::yield();
    const double spawn_ms = peer::ms(start), after = peer::resident();
    start = Clock::now();
    {
        std::unique_lock<fibers::mutex> lock(mutex);
        woken = true;
    }
    event.notify_all();
    for (auto& task : tasks) task.join();
    const double wake_ms = peer::ms(start);
    peer::figure("parked-bytes", (after - before) / count, "bytes");
    peer::figure("parked-spawn", spawn_ms, "ms");
    peer::figure("parked-wake", wake_ms, "ms");
}

static void ping_pong(long count) {
    fibers::unbuffered_channel<long> ping, pong;
    const auto start = Clock::now();
    auto other = spawn([&] {
        for (long ball : ping) pong.push(ball + 1);
    });
    auto one = spawn([&] {
        for (long ball = 0; ball < count; ball++) {
            ping.push(ball);
            if (pong.value_pop() != ball + 1) peer::leave(1, "pingpong: lost the ball");
        }
        ping.close();
    });
    one.join();
    other.join();
    peer::figure("pingpong", peer::ns_each(start, count), "ns");
}

static void mpmc(long count) {
    fibers::buffered_channel<uint64_t> channel(128);
    std::atomic<uint64_t> sum{0};
    std::vector<fibers::fiber> producers, consumers;
    const auto start = Clock::now();
    for (int i = 0; i < 4; i++) {
        producers.push_back(spawn([&] {
            for (long message = 0; message < count / 4; message++) channel.push(message);
        }));
    }
    for (int i = 0; i < 4; i++) {
        consumers.push_back(spawn([&] {
            uint64_t own = 0;
            for (uint64_t message : channel) own += message;
            sum += own;
        }));
    }
    for (auto& producer : producers) producer.join();
    channel.close();
    for (auto& consumer : consumers) consumer.join();
    peer::figure("mpmc", peer::millions(start, count), "M/s");
    const uint64_t each = count / 4;
    peer::expect_sum("mpmc", sum, 4 * (each * (each - 1) / 2));
}

static void steal(long count) {
    std::vector<double> latencies;
    for (long trial = 0; trial < count + 10; trial++) {
        const auto pause = Clock::now();
        while (Clock::now() - pause < std::chrono::microseconds(2)) {
        }
        Clock::time_point began;
        std::atomic<bool> ran{false};
        const auto spawned = Clock::now();
        auto child = spawn([&] {
            began = Clock::now();
            ran.store(true, std::memory_order_release);
        });
        while (!ran.load(std::memory_order_acquire)) {
            if (Clock::now() - spawned > std::chrono::milliseconds(500)) {
                peer::leave(3, "no other worker takes the child while its parent spins");
            }
        }
        // The first ones only warm up.
        if (trial >= 10) latencies.push_back(peer::ns(began - spawned) / 1e3);
        child.join();
    }
    std::sort(latencies.begin(), latencies.end());
    peer::figure("steal-searching-p50", latencies[(count - 1) * 50 / 100], "us");
    peer::figure("steal-searching-p99", latencies[(count - 1) * 99 / 100], "us");
}

static void scaling(long count) {
    std::vector<fibers::fiber> tasks;
    const auto start = Clock::now();
    for (long wave = 0; wave < count / WAVE; wave++) {
        for (long i = 0; i < WAVE; i++) tasks.push_back(spawn([i] { peer::compute(i); }));
        for (auto& task : tasks) task.join();
        tasks.clear();
    }
    peer::figure("scaling", peer::ms(start), "ms");
}

static void hog() {
    std::atomic<long> progress{0};
    std::atomic<bool> done{false};
    auto counter = spawn([&] {
        while (!done) {
            progress++;
            boost::this_fiber::yield();
        }
    });
    auto hog = spawn([&] {
        while (progress < 10) boost::this_fiber::yield();
        const long before = progress;
        const auto start = Clock::now();
        while (Clock::now() - start < std::chrono::seconds(1)) peer::compute(1);
        peer::figure("hog", progress - before, "yields");
        done = true;
    });
    hog.join();
    counter.join();
}

static void run(const peer::Request& request) {
    const std::string& workload = request.workload;
    // The pool touches a page of each stack when it grows, which would count twice where all are alive at once.
    pooled = request.workers == 1 && workload != "parked" && workload != "skynet";
    if (workload == "parked") stack_size = LEAN_STACK;
    if (workload == "yield") {
        yields(request.size(1'000'000));
    } else if (workload == "spawn-join") {
        // All waves are alike: where they are slow, fewer say the same in less time.
        spawn_join(request.size(request.workers == 1 ? 1'000'000 : 100'000));
    } else if (workload == "spawn-join-one") {
        spawn_join_one(request.size(200'000));
    } else if (workload == "skynet") {
        const uint64_t leaves = request.size(1'000'000);
        const auto start = Clock::now();
        const uint64_t sum = skynet(0, leaves);
        peer::figure("skynet", peer::ms(start), "ms");
        peer::expect_sum("skynet", sum, leaves * (leaves - 1) / 2);
    } else if (workload == "parked") {
        parked(request.size(1'000'000));
    } else if (workload == "pingpong") {
        ping_pong(request.size(500'000));
    } else if (workload == "mpmc") {
        mpmc(request.size(2'000'000));
    } else if (workload == "steal-searching") {
        steal(request.size(2'000));
    } else if (workload == "steal-parked") {
        peer::leave(3, "a thread that sleeps in shared_work is not woken by a spawn");
    } else if (workload == "scaling") {
        scaling(request.size(20'000));
    } else if (workload == "hog") {
        hog();
    } else {
        peer::leave(3, "not a workload of Boost.Fiber");
    }
}

int main(int argc, char** argv) {
    const peer::Request request(argc, argv);
    for (int worker = 1; worker < request.workers; worker++) {
        std::thread([] {
            fibers::use_scheduling_algorithm<fibers::algo::shared_work>(false);
            // Its main fiber has nothing to do and waits for ever; the thread runs what it finds.
            fibers::mutex mutex;
            fibers::condition_variable never;
            std::unique_lock<fibers::mutex> lock(mutex);
            never.wait(lock, [] { return false; });
        }).detach();
    }
    // The main fiber stays on its thread, so that the root, which must be free to move, is a fiber of its own.
    if (request.workers > 1) fibers::use_scheduling_algorithm<fibers::algo::shared_work>(false);
    fibers::fiber([&request] { run(request); }).join();
    std::fflush(nullptr);
    // The other threads never end.
    std::_Exit(0);
}
