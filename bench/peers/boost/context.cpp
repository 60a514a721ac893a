// The peer Boost.Context: the raw switch, out of line.
#include <boost/context/fiber.hpp>

#include "peer.hpp"

int main(int argc, char** argv) {
    peer::Request request(argc, argv);
    if (request.workload != "switch") peer::leave(3, "Boost.Context has no scheduler");
    const long round_trips = request.size(20'000'000) / 2;
    boost::context::fiber other([](boost::context::fiber&& back) {
        for (;;) back = std::move(back).resume();
        return std::move(back);
    });
    const auto start = peer::Clock::now();
    for (long i = 0; i < round_trips; i++) other = std::move(other).resume();
    peer::figure("switch-out-of-line", peer::ns_each(start, 2 * round_trips), "ns");
}
