// The specification's names of types are the prefixed ones, for who asks for them; and the headers are C++.

#define JANUS_SPEC_NAMES
#include <janus.h>
#include <janus_compiler.h>
#include <janus_task.h>
#include <cstdio>
#include <type_traits>

// Twice, as in a large program.
#include <janus.h>
#include <janus_compiler.h>
#include <janus_task.h>

static_assert(std::is_same<Runtime, janus_runtime>::value, "Runtime");
static_assert(std::is_same<RuntimeConfig, janus_runtime_config>::value, "RuntimeConfig");
static_assert(std::is_same<TaskFn, janus_task_fn>::value, "TaskFn");
static_assert(std::is_same<Budget, janus_budget>::value, "Budget");
static_assert(std::is_same<SavedRegisters, janus_saved_registers>::value, "SavedRegisters");
static_assert(std::is_same<Context, janus_context>::value, "Context");
static_assert(std::is_same<SchedulerConfig, janus_scheduler_config>::value, "SchedulerConfig");

static int64_t sends(void *arg)
{
    static int number = 42;
    return janus_channel_send(static_cast<janus_channel *>(arg), &number, JANUS_FOREVER);
}

int main()
{
    RuntimeConfig config = {};
    config.worker_count = 2;
    janus_rt_init(config);
    janus_channel *channel = janus_channel_create(0);
    janus_limits limits = {1000, 1 << 20, 0, 1, 0};
    janus_child_options options = {};
    options.name = "sender";
    options.limits = &limits;
    janus_nursery_create();
    TaskFn body = sends;
    int started = janus_nursery_spawn_with(&options, body, channel);
    void *message = nullptr;
    int received = janus_channel_receive(channel, &message, JANUS_FOREVER);
    std::printf("%d, %d, %d, code %ld\n", started, received, *static_cast<int *>(message), janus_nursery_await_all());
    janus_channel_free(channel);
    janus_rt_shutdown();
}
