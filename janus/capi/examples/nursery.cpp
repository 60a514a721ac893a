// A nursery for C++: a scope that children cannot outlive, with lambdas that borrow from it.
// c++ nursery.cpp $(pkg-config --cflags --libs janus) && ./a.out

#include <janus.h>
#include <janus_compiler.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <forward_list>
#include <functional>
#include <stdexcept>
#include <vector>

namespace janus {

// Opened where it is made, awaited where it ends: a local variable, in the task or thread that made it.
class Nursery {
public:
    Nursery()
    {
        if (janus_nursery_create() == nullptr)
            throw std::runtime_error("no runtime");
    }

    Nursery(const Nursery &) = delete;
    Nursery &operator=(const Nursery &) = delete;

    // Whoever leaves by an exception does not want the rest.
    ~Nursery()
    {
        if (open_) {
            janus_nursery_cancel();
            janus_nursery_await_all();
        }
    }

    // `body` may return void, or a code that is an error if negative. An exception that leaves it is error -100.
    template <typename F> void spawn(F body)
    {
        bodies_.emplace_front([body = std::move(body)]() mutable -> int64_t {
            if constexpr (std::is_void_v<decltype(body())>) {
                body();
                return 0;
            } else {
                return body();
            }
        });
        if (janus_nursery_spawn(&Nursery::run, &bodies_.front()) != 0) {
            bodies_.pop_front();
            throw std::runtime_error("no child: neither the right nor the budget");
        }
    }

    long await_all()
    {
        open_ = false;
        return janus_nursery_await_all();
    }

private:
    static int64_t run(void *arg) noexcept
    {
        try {
            return (*static_cast<std::function<int64_t()> *>(arg))();
        } catch (...) {
            return -100;
        }
    }

    // A list: children hold addresses of its elements.
    std::forward_list<std::function<int64_t()>> bodies_;
    bool open_ = true;
};

} // namespace janus

int main()
{
    std::vector<long> squares(10);
    {
        janus::Nursery nursery;
        for (size_t i = 0; i < squares.size(); i++)
            nursery.spawn([i, &squares] {
                janus_scheduler_yield();
                squares[i] = static_cast<long>(i * i);
            });
        std::printf("code %ld\n", nursery.await_all());
    }
    long sum = 0;
    for (long square : squares)
        sum += square;
    std::printf("sum of squares %ld\n", sum);

    janus::Nursery failing;
    failing.spawn([] { throw std::runtime_error("stays in its task"); });
    std::printf("an exception: code %ld\n", failing.await_all());

    std::atomic<int> told{0};
    try {
        janus::Nursery left;
        for (int i = 0; i < 3; i++)
            left.spawn([&told] {
                while (janus_scheduler_yield() == 0) {
                }
                told++;
            });
        throw std::runtime_error("leaving");
    } catch (const std::exception &error) {
        std::printf("%s: every child has ended\n", error.what());
    }
    janus_rt_shutdown();
    return told <= 3 ? 0 : 1;
}
