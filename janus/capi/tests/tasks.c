/* Checks janus_task.h: what a child can be given, and what is refused; capabilities; sleep; channels. Prints what fails; ends
   with `ok`. With an argument: a named child overflows with something borrowed, which ends the process by that name. */

#include <janus.h>
#include <janus_compiler.h>
#include <janus_task.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(janus_limits) == 40, "janus_limits");
_Static_assert(sizeof(janus_child_options) == 48, "janus_child_options");
_Static_assert(offsetof(janus_child_options, limits) == 8 && offsetof(janus_child_options, children) == 16, "options");
_Static_assert(offsetof(janus_child_options, stack_size) == 24 && offsetof(janus_child_options, priority) == 32, "options");
_Static_assert(offsetof(janus_child_options, grants) == 36 && offsetof(janus_child_options, owned) == 40, "options");

static atomic_int failures;
static atomic_int count;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "tasks.c:%d: not so: %s\n", __LINE__, #what); \
            failures++; \
        } \
    } while (0)

#define SECOND UINT64_C(1000000000)

/* Opens a nursery on the scheduler, or on the task's or the global runtime, runs one child in it and awaits it. */
static long run(void *scheduler, janus_child_options options, janus_task_fn fn, void *arg)
{
    CHECK((scheduler == NULL ? janus_nursery_create() : janus_nursery_create_on(scheduler)) != NULL);
    CHECK(janus_nursery_spawn_with(&options, fn, arg) == 0);
    return janus_nursery_await_all();
}

static int64_t counts(void *arg)
{
    (void)arg;
    count++;
    return 0;
}

/* Limits. */

static int64_t has_exactly(void *arg)
{
    janus_budget left = janus_budget_get_current();
    (void)arg;
    CHECK(left.ops == 5000 && left.memory == 4096 && left.spawn_count == 3);
    CHECK(left.channel_ops == 7 && left.syscalls == 9);
    /* Who was given limits does not lift them itself. */
    CHECK(janus_budget_recharge((janus_budget){.ops = 1}) == -1);
    CHECK(janus_cap_budget_create((janus_limits){.ops = 1}) == NULL);
    return 0;
}

static int64_t spends_4000(void *arg)
{
    (void)arg;
    return janus_budget_charge(4000) == 0 ? 0 : -77;
}

static int64_t shares_its_limits(void *arg)
{
    janus_limits more = {.ops = 6000}, some = {.ops = 1000, .memory = 1};
    (void)arg;
    CHECK(janus_nursery_create() != NULL);
    /* More than it has itself. */
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.limits = &more}, counts, NULL) == -1);
    /* A child with the right to three is four, and there are three. */
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.limits = &some, .children = 3}, counts, NULL) == -1);
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.limits = &some}, counts, NULL) == 0);
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.limits = &some, .children = 1}, counts, NULL) == 0);
    return janus_nursery_await_all();
}

static int64_t has_two_children(void *arg)
{
    (void)arg;
    CHECK(janus_budget_get_current().spawn_count == 2);
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn(counts, NULL) == 0);
    CHECK(janus_nursery_spawn_with(NULL, counts, NULL) == 0);
    CHECK(janus_nursery_spawn(counts, NULL) == -1);
    return janus_nursery_await_all();
}

static void limits(void)
{
    janus_limits exact = {5000, 4096, 3, 7, 9}, small = {.ops = 3000}, enough = {.ops = 4100};
    CHECK(run(NULL, (janus_child_options){.limits = &exact}, has_exactly, NULL) == 0);
    CHECK(run(NULL, (janus_child_options){.limits = &enough}, spends_4000, NULL) == 0);
    CHECK(run(NULL, (janus_child_options){.limits = &small}, spends_4000, NULL) == JANUS_BUDGET_EXCEEDED);
    count = 0;
    CHECK(run(NULL, (janus_child_options){.limits = &exact}, shares_its_limits, NULL) == 0);
    CHECK(count == 2);
    count = 0;
    CHECK(run(NULL, (janus_child_options){.children = 2}, has_two_children, NULL) == 0);
    CHECK(count == 2);
    CHECK(janus_nursery_spawn_with(NULL, counts, NULL) == -1); /* There is no nursery. */
}

/* Stacks and names. */

static int64_t recurse(volatile int64_t depth)
{
    volatile char frame[1024];
    frame[0] = 1;
    return depth == 0 ? 0 : recurse(depth - 1) + frame[0];
}

static int64_t takes_100_kib(void *arg)
{
    (void)arg;
    return recurse(100) == 100 ? 0 : -7;
}

static void stacks_and_names(void)
{
    CHECK(run(NULL, (janus_child_options){.stack_size = 200000}, takes_100_kib, NULL) == 0);
    CHECK(run(NULL, (janus_child_options){.stack_size = 1 << 20}, takes_100_kib, NULL) == 0);
    CHECK(run(NULL, (janus_child_options){.stack_size = 8192}, takes_100_kib, NULL) == JANUS_PANIC);

    char name[65];
    memset(name, 'n', sizeof name);
    name[63] = '\0';
    count = 0;
    CHECK(run(NULL, (janus_child_options){.name = name}, counts, NULL) == 0);
    name[0] = 'o'; /* It was copied: this is another name. */
    CHECK(run(NULL, (janus_child_options){.name = name, .priority = JANUS_PRIORITY_HIGH}, counts, NULL) == 0);
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "name %d", i);
        CHECK(run(NULL, (janus_child_options){.name = name, .priority = JANUS_PRIORITY_LOW}, counts, NULL) == 0);
    }
    CHECK(count == 5002);

    memset(name, 'n', sizeof name);
    name[64] = '\0';
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.name = name}, counts, NULL) == -1);
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.name = "\xff"}, counts, NULL) == -1);
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.stack_size = (1 << 20) + 1}, counts, NULL) == -1);
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.priority = 3}, counts, NULL) == -1);
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.grants = 4}, counts, NULL) == -1);
    CHECK(janus_nursery_spawn_with(&(janus_child_options){0}, NULL, NULL) == -1);
    CHECK(janus_nursery_await_all() == 0);
    CHECK(count == 5002);
}

static int64_t overflows(void *arg)
{
    return recurse(1 << 20) + *(int *)arg;
}

/* Capabilities. */

static int64_t has_nothing(void *arg)
{
    (void)arg;
    CHECK(janus_budget_recharge((janus_budget){.ops = 1}) == -1);
    CHECK(janus_cap_budget_create((janus_limits){.ops = 1}) == NULL);
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn(counts, NULL) == -1);
    CHECK(janus_nursery_await_all() == 0);
    count++;
    return 0;
}

static int64_t may_spawn(void *arg)
{
    (void)arg;
    CHECK(janus_budget_recharge((janus_budget){.ops = 1}) == -1);
    CHECK(janus_nursery_create() != NULL);
    /* It cannot pass on what it does not have. */
    CHECK(janus_nursery_spawn_with(&(janus_child_options){.grants = JANUS_GRANT_BUDGET}, counts, NULL) == -1);
    CHECK(janus_nursery_spawn(has_nothing, NULL) == 0);
    CHECK(janus_nursery_await_all() == 0);
    return 0;
}

static int64_t may_both(void *arg)
{
    int *depth = arg;
    janus_budget before = janus_budget_get_current();
    CHECK(before.spawn_count == 0);
    CHECK(janus_budget_recharge((janus_budget){.ops = 1000, .memory = 1 << 20, .spawn_count = 1}) == 0);
    CHECK(janus_budget_get_current().spawn_count == 1);
    if (*depth == 0)
        return 0;
    int deeper = *depth - 1;
    count++;
    return run(NULL, (janus_child_options){.grants = JANUS_GRANT_SPAWN | JANUS_GRANT_BUDGET}, may_both, &deeper);
}

static int64_t recharges(void *arg)
{
    CHECK(janus_budget_recharge((janus_budget){.ops = 1}) == -1);
    uint32_t before = janus_budget_get_current().ops;
    if (janus_cap_budget_recharge(arg, (janus_limits){.ops = 600}) != 0)
        return 0;
    CHECK(janus_budget_get_current().ops == before + 600);
    count++;
    return 0;
}

static void capabilities(uint32_t profile)
{
    void *scheduler = janus_scheduler_create((janus_scheduler_config){.profile = profile, .worker_count = 2});
    int depth = 5;
    CHECK(scheduler != NULL);
    count = 0;
    CHECK(run(scheduler, (janus_child_options){0}, has_nothing, NULL) == 0);
    CHECK(run(scheduler, (janus_child_options){.children = 1, .grants = JANUS_GRANT_SPAWN}, may_spawn, NULL) == 0);
    CHECK(count == 2);
    CHECK(run(scheduler, (janus_child_options){.grants = JANUS_GRANT_SPAWN | JANUS_GRANT_BUDGET}, may_both, &depth) == 0);
    CHECK(count == 2 + depth);

    janus_cap_budget *capability = janus_cap_budget_create((janus_limits){.ops = 1000});
    CHECK(capability != NULL);
    CHECK(janus_cap_budget_recharge(capability, (janus_limits){.ops = 1}) == -1); /* Not a task. */
    count = 0;
    CHECK(janus_nursery_create_on(scheduler) != NULL);
    for (int i = 0; i < 3; i++)
        CHECK(janus_nursery_spawn(recharges, capability) == 0);
    CHECK(janus_nursery_await_all() == 0);
    CHECK(count == 1 && janus_cap_budget_left(capability).ops == 400);
    janus_cap_budget_free(capability);
    janus_cap_budget_free(NULL);
    CHECK(janus_cap_budget_recharge(NULL, (janus_limits){0}) == -1);
    janus_scheduler_shutdown(scheduler);
}

/* Sleep. */

static atomic_int order;

static int64_t sleeps(void *arg)
{
    uint64_t hours = (uint64_t)(uintptr_t)arg;
    CHECK(janus_task_sleep(hours * 3600 * SECOND) == 0);
    order = order * 10 + (int)hours;
    return 0;
}

/* A thread outside would be too slow: time passes as soon as nobody can run. */
static int64_t has_sleepers(void *arg)
{
    (void)arg;
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn(sleeps, (void *)3) == 0);
    CHECK(janus_nursery_spawn(sleeps, (void *)1) == 0);
    CHECK(janus_nursery_spawn(sleeps, (void *)2) == 0);
    return janus_nursery_await_all();
}

static int64_t sleeps_for_ever(void *arg)
{
    (void)arg;
    count++;
    CHECK(janus_task_sleep(UINT64_MAX - 1) == -1);
    return 0;
}

static void sleeping(void)
{
    janus_scheduler_config config = {.worker_count = 2, .deterministic = true, .deterministic_seed = 3};
    void *scheduler = janus_scheduler_create(config);
    CHECK(janus_task_sleep(1) == -1); /* Not a task. */
    CHECK(run(scheduler, (janus_child_options){.children = 3}, has_sleepers, NULL) == 0);
    CHECK(order == 123);
    janus_scheduler_shutdown(scheduler);

    count = 0;
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn(sleeps_for_ever, NULL) == 0);
    while (count == 0) {
    }
    janus_nursery_cancel();
    CHECK(janus_nursery_await_all() == JANUS_CANCELLED);
}

/* Channels. */

#define MESSAGES 2000

static janus_channel *numbers;
static atomic_long sum;

static int64_t sends(void *arg)
{
    uintptr_t from = (uintptr_t)arg;
    for (uintptr_t i = from; i < from + MESSAGES; i++)
        CHECK(janus_channel_send(numbers, (void *)i, i % 2 == 0 ? JANUS_FOREVER : 3600 * SECOND) == 0);
    /* The last of both. */
    if (++count == 2)
        janus_channel_close(numbers);
    return 0;
}

static int64_t receives(void *arg)
{
    void *message = NULL;
    int code = 0;
    (void)arg;
    for (int i = 0; code == 0; i++) {
        code = janus_channel_receive(numbers, &message, i % 2 == 0 ? JANUS_FOREVER : 3600 * SECOND);
        if (code == 0)
            sum += (long)(uintptr_t)message;
    }
    CHECK(code == JANUS_CLOSED);
    return 0;
}

static void through(void *scheduler, size_t capacity)
{
    count = 0;
    sum = 0;
    numbers = janus_channel_create(capacity);
    CHECK(numbers != NULL && janus_nursery_create_on(scheduler) != NULL);
    CHECK(janus_nursery_spawn(sends, (void *)1) == 0);
    CHECK(janus_nursery_spawn(receives, NULL) == 0);
    CHECK(janus_nursery_spawn(receives, NULL) == 0);
    CHECK(janus_nursery_spawn(sends, (void *)(MESSAGES + 1)) == 0);
    CHECK(janus_nursery_await_all() == 0);
    CHECK(sum == 2L * MESSAGES * (2 * MESSAGES + 1) / 2);
    janus_channel_free(numbers);
}

static int64_t tries(void *arg)
{
    janus_channel *one = janus_channel_create(1);
    void *message = &count;
    (void)arg;
    CHECK(janus_channel_receive(one, &message, 0) == JANUS_TIMED_OUT);
    CHECK(janus_channel_receive(one, &message, SECOND / 1000) == JANUS_TIMED_OUT && message == &count);
    CHECK(janus_channel_send(one, &sum, 0) == 0);
    CHECK(janus_channel_send(one, &sum, 0) == JANUS_TIMED_OUT);
    CHECK(janus_channel_send(one, &sum, SECOND / 1000) == JANUS_TIMED_OUT);
    janus_channel_close(one);
    CHECK(janus_channel_send(one, &sum, 0) == JANUS_CLOSED);
    CHECK(janus_channel_send(one, &sum, JANUS_FOREVER) == JANUS_CLOSED);
    CHECK(janus_channel_receive(one, &message, JANUS_FOREVER) == 0 && message == &sum);
    CHECK(janus_channel_receive(one, &message, JANUS_FOREVER) == JANUS_CLOSED);
    CHECK(janus_channel_receive(one, &message, SECOND) == JANUS_CLOSED);
    janus_channel_free(one);
    CHECK(janus_channel_send(NULL, NULL, 0) == -1 && janus_channel_receive(NULL, &message, 0) == -1);
    return 0;
}

static int64_t waits_to_receive(void *arg)
{
    void *message;
    count++;
    return janus_channel_receive(arg, &message, JANUS_FOREVER);
}

static int64_t waits_to_send(void *arg)
{
    count++;
    return janus_channel_send(arg, NULL, JANUS_FOREVER);
}

static int64_t waits_for_an_hour(void *arg)
{
    void *message;
    count++;
    return janus_channel_receive(arg, &message, 3600 * SECOND);
}

/* Runs over its stack somewhere in the calls of channels, which must not leave them locked. */
static int64_t dives(janus_channel *channel, volatile int64_t depth)
{
    volatile char frame[64];
    void *message;
    frame[0] = (char)depth;
    janus_channel_send(channel, NULL, 0);
    janus_channel_send(channel, NULL, 1);
    janus_channel_receive(channel, &message, 1);
    janus_task_sleep(0);
    return depth == 0 ? frame[0] : dives(channel, depth - 1) + frame[0];
}

static int64_t dives_in_calls(void *arg)
{
    return dives(arg, 1 << 20);
}

static void *in_a_thread(void *arg)
{
    for (uintptr_t i = 1; i <= MESSAGES; i++)
        CHECK(janus_channel_send(arg, (void *)i, JANUS_FOREVER) == 0);
    return NULL;
}

static void channels(void)
{
    for (uint32_t workers = 1; workers <= 4; workers *= 2) {
        void *scheduler = janus_scheduler_create((janus_scheduler_config){.worker_count = workers});
        through(scheduler, 0);
        through(scheduler, 7);
        through(scheduler, SIZE_MAX);
        janus_scheduler_shutdown(scheduler);
    }
    CHECK(run(NULL, (janus_child_options){0}, tries, NULL) == 0);

    /* Cancelled, and closed, while they wait. */
    janus_task_fn waiters[] = {waits_to_receive, waits_to_send, waits_for_an_hour};
    for (int i = 0; i < 6; i++) {
        janus_channel *nobody = janus_channel_create(0);
        count = 0;
        CHECK(janus_nursery_create() != NULL);
        CHECK(janus_nursery_spawn(waiters[i % 3], nobody) == 0);
        while (count == 0) {
        }
        if (i < 3) {
            janus_nursery_cancel();
            CHECK(janus_nursery_await_all() == JANUS_CANCELLED);
        } else {
            janus_channel_close(nobody);
            CHECK(janus_nursery_await_all() == JANUS_CLOSED);
        }
        janus_channel_free(nobody);
    }

    /* A thread sends to tasks; and by itself. */
    pthread_t thread;
    void *message = NULL;
    count = 0;
    sum = 0;
    numbers = janus_channel_create(3);
    CHECK(pthread_create(&thread, NULL, in_a_thread, numbers) == 0);
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn(receives, NULL) == 0);
    pthread_join(thread, NULL);
    janus_channel_close(numbers);
    CHECK(janus_nursery_await_all() == 0);
    CHECK(sum == (long)MESSAGES * (MESSAGES + 1) / 2);
    CHECK(janus_channel_receive(numbers, &message, JANUS_FOREVER) == JANUS_CLOSED);
    janus_channel_free(numbers);
    janus_channel_free(NULL);

    janus_channel *own = janus_channel_create(1);
    CHECK(janus_channel_receive(own, &message, 0) == JANUS_TIMED_OUT);
    CHECK(janus_channel_send(own, &sum, 5) == -1 && janus_channel_receive(own, &message, 5) == -1);
    CHECK(janus_channel_send(own, &sum, 0) == 0 && janus_channel_send(own, &sum, 0) == JANUS_TIMED_OUT);
    CHECK(janus_channel_receive(own, NULL, 0) == -1);
    CHECK(janus_channel_receive(own, &message, JANUS_FOREVER) == 0 && message == &sum);

    /* It owns the channel while it runs, so it fails alone; and the channel is as good as before. */
    for (size_t stack = 8192; stack <= 65536; stack *= 2) {
        janus_child_options options = {.stack_size = stack, .owned = true};
        CHECK(run(NULL, options, dives_in_calls, own) == JANUS_PANIC);
        while (janus_channel_receive(own, &message, 0) == 0) {
        }
        CHECK(janus_channel_send(own, &sum, 0) == 0 && janus_channel_receive(own, &message, 0) == 0 && message == &sum);
    }
    janus_channel_free(own);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        int borrowed = 0;
        return (int)run(NULL, (janus_child_options){.name = "miller"}, overflows, &borrowed);
    }
    limits();
    stacks_and_names();
    capabilities(JANUS_PROFILE_SOVEREIGN);
    capabilities(JANUS_PROFILE_CLUSTER);
    sleeping();
    channels();
    if (failures != 0) {
        fprintf(stderr, "%d failures\n", failures);
        return 1;
    }
    puts("ok");
    return 0;
}
