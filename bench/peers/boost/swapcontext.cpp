// The peer swapcontext of the C library: the raw switch with a system call for the signal mask.
#include <ucontext.h>

#include "peer.hpp"

static ucontext_t one, other;

static void answer() {
    for (;;) swapcontext(&other, &one);
}

int main(int argc, char** argv) {
    peer::Request request(argc, argv);
    if (request.workload != "switch") peer::leave(3, "swapcontext has no scheduler");
    static char stack[64 * 1024];
    getcontext(&other);
    other.uc_stack.ss_sp = stack;
    other.uc_stack.ss_size = sizeof stack;
    makecontext(&other, answer, 0);
    const long round_trips = request.size(1'000'000) / 2;
    const auto start = peer::Clock::now();
    for (long i = 0; i < round_trips; i++) swapcontext(&one, &other);
    peer::figure("switch-out-of-line", peer::ns_each(start, 2 * round_trips), "ns");
}
