// C++ in tasks: exceptions are thrown and caught inside a task, before and after it yields, on whatever thread it then
// runs. With the argument `escape` one leaves its task, which ends the process.

#include <janus.h>
#include <janus_compiler.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

static std::atomic<int> caught{0};

[[gnu::noinline]] static void thrower(int depth)
{
    std::string local(40, 'x');
    if (depth == 0)
        throw std::runtime_error(local);
    thrower(depth - 1);
}

static int64_t throws(void *)
{
    for (int round = 0; round < 10; round++) {
        try {
            thrower(round);
        } catch (const std::runtime_error &error) {
            if (std::strlen(error.what()) == 40)
                caught++;
        }
        if (janus_scheduler_yield() != 0)
            return -1;
    }
    return 0;
}

static int64_t escapes(void *)
{
    throw std::runtime_error("leaves its task");
}

int main(int argc, char **argv)
{
    janus_runtime_config config{};
    config.worker_count = 4;
    janus_rt_init(config);
    janus_nursery_create();
    if (argc > 1 && std::strcmp(argv[1], "escape") == 0) {
        janus_nursery_spawn(escapes, nullptr);
        janus_nursery_await_all();
        return 0;
    }
    for (int i = 0; i < 100; i++)
        if (janus_nursery_spawn(throws, nullptr) != 0)
            return 1;
    long code = janus_nursery_await_all();
    janus_rt_shutdown();
    std::printf("%d caught, code %ld\n", caught.load(), code);
    return code == 0 && caught == 1000 ? 0 : 1;
}
