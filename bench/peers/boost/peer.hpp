// What the C++ peers of `make bench-runtime` share: the protocol of bench/peers/src/lib.rs.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace peer {

using Clock = std::chrono::steady_clock;

// 3 says that this peer cannot do it, 1 that the figure would be wrong.
[[noreturn]] inline void leave(int code, const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::fflush(nullptr);
    std::_Exit(code);
}

struct Request {
    std::string workload;
    int workers = 0;
    long asked = 0;

    Request(int argc, char** argv) {
        if (argc < 3) leave(2, "which workload, how many workers? <program> <workload> <workers> [size]");
        workload = argv[1];
        workers = std::atoi(argv[2]);
        if (argc > 3) asked = std::atol(argv[3]);
    }

    long size(long usual) const { return asked > 0 ? asked : usual; }
};

inline void figure(const std::string& name, double value, const char* unit) {
    std::printf("%s %.3f %s\n", name.c_str(), value, unit);
    std::fflush(stdout);
}

inline double ns(Clock::duration time) { return std::chrono::duration<double, std::nano>(time).count(); }
inline double ns_each(Clock::time_point start, long count) { return ns(Clock::now() - start) / count; }
inline double ms(Clock::time_point start) { return ns(Clock::now() - start) / 1e6; }
inline double millions(Clock::time_point start, long count) { return count / (ns(Clock::now() - start) / 1e3); }

inline void expect_sum(const char* what, uint64_t sum, uint64_t expected) {
    if (sum == expected) return;
    leave(1, std::string(what) + ": counted " + std::to_string(sum) + " instead of " + std::to_string(expected));
}

inline double resident() {
    long pages = 0;
    if (FILE* file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
        std::fclose(file);
    }
    return pages * 4096.0;
}

__attribute__((noinline)) inline void touch_stack() {
    volatile char bytes[256];
    for (char volatile& byte : bytes) byte = 1;
}

// About 8.5 µs: a chain of dependent steps, as in the other peers.
__attribute__((noinline)) inline uint64_t compute(uint64_t seed) {
    for (int i = 0; i < 6000; i++) {
        seed = seed * 6364136223846793005u + 1;
        asm volatile("" : "+r"(seed));
    }
    return seed;
}

}  // namespace peer
