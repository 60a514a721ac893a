/* A program may have types of its own that are called as the specification calls janus'. */

#include <janus.h>
#include <janus_compiler.h>
#include <janus_task.h>
#include <stdio.h>

typedef struct Budget { double euros; } Budget;
typedef enum Runtime { SHORT, LONG } Runtime;
typedef int Context, SavedRegisters, RuntimeConfig, SchedulerConfig, TaskFn, Limits, ChildOptions, Channel;

static int64_t spends(void *arg)
{
    ((Budget *)arg)->euros -= 1;
    return 0;
}

int main(void)
{
    Budget mine = {42};
    Runtime runtime = LONG;
    Context all[] = {(SavedRegisters)1, (RuntimeConfig)2, (SchedulerConfig)3, (TaskFn)4, (Limits)5, (ChildOptions)6, (Channel)7};
    janus_rt_init((janus_runtime_config){.worker_count = 1});
    janus_nursery_create();
    janus_nursery_spawn(spends, &mine);
    long code = janus_nursery_await_all();
    printf("%g euros left, code %ld, %d\n", mine.euros, code, all[6] + (runtime == LONG));
    return 0;
}
