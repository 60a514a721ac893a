/* Checks every export of libjanus, every result code, and what must be refused. Prints what fails; ends with `ok`. */

#define _GNU_SOURCE
#include <fenv.h>
#include <janus.h>
#include <janus_compiler.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(janus_runtime_config) == 40, "RuntimeConfig");
_Static_assert(offsetof(janus_runtime_config, worker_count) == 0, "worker_count");
_Static_assert(offsetof(janus_runtime_config, profile) == 4, "profile");
_Static_assert(offsetof(janus_runtime_config, deterministic_seed) == 8, "deterministic_seed");
_Static_assert(offsetof(janus_runtime_config, deterministic) == 16, "deterministic");
_Static_assert(offsetof(janus_runtime_config, stack_size) == 24, "stack_size");
_Static_assert(offsetof(janus_runtime_config, watchdog_ms) == 32, "watchdog_ms");
_Static_assert(sizeof(janus_scheduler_config) == sizeof(janus_runtime_config), "SchedulerConfig");
_Static_assert(sizeof(janus_budget) == 24, "Budget");
_Static_assert(offsetof(janus_budget, ops) == 0 && offsetof(janus_budget, memory) == 8, "Budget");
_Static_assert(offsetof(janus_budget, spawn_count) == 16 && offsetof(janus_budget, channel_ops) == 18, "Budget");
_Static_assert(offsetof(janus_budget, syscalls) == 20, "Budget");
_Static_assert(sizeof(janus_context) == 56 && sizeof(janus_saved_registers) == 48, "Context");
_Static_assert(offsetof(janus_context, sp) == 0 && offsetof(janus_context, regs.rbx) == 8, "Context");
_Static_assert(offsetof(janus_context, regs.r12) == 24 && offsetof(janus_context, regs.r15) == 48, "Context");

static atomic_int failures;
static atomic_int count;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "abi.c:%d: not so: %s\n", __LINE__, #what); \
            failures++; \
        } \
    } while (0)

static int64_t counts(void *arg)
{
    (void)arg;
    count++;
    return 5;
}

static int64_t returns(void *arg)
{
    return *(int64_t *)arg;
}

static int64_t yields(void *arg)
{
    for (int i = 0; i < 10; i++)
        if (janus_scheduler_yield() != 0)
            return -1;
    return counts(arg);
}

static int64_t until_told(void *arg)
{
    (void)arg;
    while (janus_scheduler_yield() == 0) {
    }
    count++;
    return 0;
}

static int64_t recurse(volatile int64_t depth)
{
    volatile char frame[256];
    frame[0] = (char)depth;
    return depth == 0 ? frame[0] : recurse(depth - 1) + frame[0];
}

static int64_t overflows(void *arg)
{
    (void)arg;
    return recurse(1 << 20);
}

/* Runs over its stack in a call of the library, which must not leave anything locked. */
static int64_t dives(volatile int64_t depth)
{
    volatile char frame[64];
    frame[0] = (char)depth;
    janus_nursery_create();
    janus_budget_recharge((janus_budget){.memory = 32 << 20, .spawn_count = 1});
    janus_nursery_spawn(counts, NULL);
    janus_nursery_await_all();
    return depth == 0 ? frame[0] : dives(depth - 1) + frame[0];
}

static int64_t dives_in_calls(void *arg)
{
    (void)arg;
    return dives(1 << 20);
}

static int64_t starts_on_a_small_stack(void *arg)
{
    (void)arg;
    return janus_scheduler_create((janus_scheduler_config){.worker_count = 1}) == NULL ? -5 : -6;
}

static int64_t spends(void *arg)
{
    (void)arg;
    return janus_budget_charge(3000000) == 0 ? 0 : -1;
}

static int64_t spends_slowly(void *arg)
{
    (void)arg;
    for (int i = 0; i < 2000000; i++)
        if (janus_budget_check() != 0)
            return -9;
    return 0;
}

static long run(janus_task_fn fn, void *arg)
{
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn(fn, arg) == 0);
    return janus_nursery_await_all();
}

static long run_on(void *scheduler, janus_task_fn fn, void *arg)
{
    CHECK(janus_nursery_create_on(scheduler) != NULL);
    CHECK(janus_nursery_spawn(fn, arg) == 0);
    return janus_nursery_await_all();
}

static void outside(void)
{
    janus_budget budget = janus_budget_get_current();
    janus_budget zero = {0};
    CHECK(janus_rt_get() == NULL);
    CHECK(janus_nursery_spawn(counts, NULL) == -1);
    CHECK(janus_scheduler_spawn((void *)(uintptr_t)counts, NULL) == -1);
    CHECK(janus_nursery_await_all() == JANUS_PENDING);
    CHECK(janus_scheduler_yield() == -1);
    CHECK(janus_budget_check() == -1);
    CHECK(janus_budget_charge(1) == -1);
    CHECK(janus_budget_recharge(zero) == -1);
    CHECK(memcmp(&budget.ops, &zero.ops, sizeof budget.ops) == 0 && budget.memory == 0);
    CHECK(budget.spawn_count == 0 && budget.channel_ops == 0 && budget.syscalls == 0);
    janus_nursery_cancel();
    janus_rt_shutdown();
    CHECK(janus_rt_get() == NULL);
}

static void refused(void)
{
    janus_runtime_config absurd[] = {
        {.worker_count = 961},          {.worker_count = UINT32_MAX},         {.stack_size = SIZE_MAX},
        {.stack_size = (1 << 20) + 1},  {.profile = 99},                      {.profile = JANUS_PROFILE_CORE},
        {.watchdog_ms = 1ULL << 60},
    };
    int local;
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        janus_rt_init(absurd[i]);
        CHECK(janus_rt_get() == NULL);
        CHECK(janus_nursery_create() == NULL);
        CHECK(janus_scheduler_create(absurd[i]) == NULL);
    }
    /* Another try may succeed; zero workers are the default. */
    janus_rt_init((janus_runtime_config){0});
    janus_runtime *runtime = janus_rt_get();
    CHECK(runtime != NULL);
    janus_rt_init((janus_runtime_config){.worker_count = 3});
    CHECK(janus_rt_get() == runtime);
    CHECK(run(counts, NULL) == 0);
    janus_rt_shutdown();
    CHECK(janus_rt_get() == NULL);
    janus_scheduler_shutdown(NULL);
    janus_scheduler_shutdown(&local);
    CHECK(janus_nursery_create_on(NULL) == NULL);
    CHECK(janus_nursery_create_on(&local) == NULL);
}

static void codes(void)
{
    int64_t minus_seven = -7, minus_eight = -8, fine = 77;
    /* Nobody said init: made by itself. */
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_rt_get() != NULL);
    count = 0;
    for (int i = 0; i < 100; i++)
        CHECK(janus_nursery_spawn(yields, NULL) == 0);
    CHECK(janus_scheduler_spawn((void *)(uintptr_t)counts, NULL) == 0);
    CHECK(janus_nursery_spawn(NULL, NULL) == -1);
    CHECK(janus_scheduler_spawn(NULL, NULL) == -1);
    CHECK(janus_nursery_await_all() == 0);
    CHECK(count == 101);
    CHECK(janus_nursery_await_all() == JANUS_PENDING);
    CHECK(janus_nursery_spawn(counts, NULL) == -1);

    CHECK(run(returns, &fine) == 0);
    CHECK(run(returns, &minus_seven) == -7);
    CHECK(run(overflows, NULL) == JANUS_PANIC);
    for (int i = 0; i < 10; i++)
        CHECK(run(dives_in_calls, NULL) == JANUS_PANIC);
    CHECK(run(spends, NULL) == 0);
    janus_nursery_create();
    CHECK(janus_nursery_await_all() == 0);

    /* The first to fail; the others go on. */
    count = 0;
    janus_nursery_create();
    CHECK(janus_nursery_spawn(returns, &minus_eight) == 0);
    CHECK(janus_nursery_spawn(yields, NULL) == 0);
    CHECK(janus_nursery_await_all() == -8);
    CHECK(count == 1);

    janus_nursery_create();
    for (int i = 0; i < 10; i++)
        CHECK(janus_nursery_spawn(until_told, NULL) == 0);
    janus_nursery_cancel();
    CHECK(janus_nursery_spawn(counts, NULL) == -1);
    CHECK(janus_nursery_await_all() == JANUS_CANCELLED);
    janus_rt_shutdown();
}

static int64_t explicit_only(void *arg)
{
    (void)arg;
    CHECK(janus_budget_recharge((janus_budget){.ops = 10, .spawn_count = 10}) == -1);
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn(counts, NULL) == -1);
    CHECK(janus_nursery_await_all() == 0);
    CHECK(janus_nursery_await_all() == JANUS_PENDING);
    return 0;
}

static void sovereign(void)
{
    void *scheduler = janus_scheduler_create((janus_scheduler_config){.profile = JANUS_PROFILE_SOVEREIGN, .worker_count = 2});
    CHECK(scheduler != NULL);
    CHECK(run_on(scheduler, spends, NULL) == JANUS_BUDGET_EXCEEDED);
    CHECK(run_on(scheduler, spends_slowly, NULL) == JANUS_BUDGET_EXCEEDED);
    CHECK(run_on(scheduler, explicit_only, NULL) == 0);
    /* Exhausted long before anybody waits. */
    CHECK(janus_nursery_create_on(scheduler) != NULL);
    CHECK(janus_nursery_spawn(spends, NULL) == 0);
    struct timespec nap = {0, 20000000};
    nanosleep(&nap, NULL);
    CHECK(janus_nursery_await_all() == JANUS_BUDGET_EXCEEDED);
    janus_scheduler_shutdown(scheduler);
}

static int64_t recharges(void *arg)
{
    (void)arg;
    janus_budget before = janus_budget_get_current();
    CHECK(before.ops == 1000000 && before.memory == 16 << 20 && before.spawn_count == 0);
    CHECK(before.channel_ops == 10000 && before.syscalls == 1000);
    CHECK(janus_budget_recharge((janus_budget){1, 2, 3, 4, 5}) == 0);
    janus_budget after = janus_budget_get_current();
    CHECK(after.ops == 1000001 && after.memory == (16 << 20) + 2 && after.spawn_count == 3);
    CHECK(after.channel_ops == 10004 && after.syscalls == 1005);
    CHECK(janus_budget_check() == 0 && janus_budget_charge(10) == 0);
    CHECK(janus_budget_get_current().ops == 1000001 - 11);
    /* More than the fields hold. */
    CHECK(janus_budget_recharge((janus_budget){UINT32_MAX, SIZE_MAX, UINT16_MAX, UINT16_MAX, UINT16_MAX}) == 0);
    after = janus_budget_get_current();
    CHECK(after.ops == UINT32_MAX && after.memory == SIZE_MAX && after.spawn_count == UINT16_MAX);
    CHECK(after.channel_ops == UINT16_MAX && after.syscalls == UINT16_MAX);
    return 0;
}

static int64_t tree(void *arg)
{
    intptr_t depth = (intptr_t)arg;
    if (depth == 0)
        return yields(NULL);
    CHECK(janus_nursery_create() != NULL);
    /* Children cannot spawn by default. */
    CHECK(janus_nursery_spawn(tree, (void *)(depth - 1)) == -1);
    CHECK(janus_budget_recharge((janus_budget){.ops = 10000000, .memory = 1 << 30, .spawn_count = 3}) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(janus_nursery_spawn(tree, (void *)(depth - 1)) == 0);
        CHECK(janus_scheduler_yield() == 0);
    }
    /* Another one inside of it is awaited first. */
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_await_all() == 0);
    long code = janus_nursery_await_all();
    CHECK(janus_nursery_await_all() == JANUS_PENDING);
    return code;
}

static int64_t forgets(void *arg)
{
    (void)arg;
    CHECK(janus_budget_recharge((janus_budget){.memory = 1 << 30, .spawn_count = 4}) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(janus_nursery_create() != NULL);
        CHECK(janus_nursery_spawn(until_told, NULL) == 0);
        CHECK(janus_scheduler_yield() == 0);
    }
    return -11;
}

static int64_t overflows_as_parent(void *arg)
{
    CHECK(janus_budget_recharge((janus_budget){.memory = 1 << 30, .spawn_count = 4}) == 0);
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn(until_told, NULL) == 0);
    return overflows(arg);
}

static void nested(void)
{
    janus_rt_init((janus_runtime_config){.worker_count = 2, .stack_size = 1});
    CHECK(run(starts_on_a_small_stack, NULL) == JANUS_PANIC);
    CHECK(run(recharges, NULL) == 0);
    CHECK(run(tree, (void *)2) == 0);
    janus_rt_shutdown();
    janus_rt_init((janus_runtime_config){.worker_count = 4});
    CHECK(run(recharges, NULL) == 0);
    count = 0;
    CHECK(run(tree, (void *)4) == 0);
    CHECK(count == 81);
    CHECK(run(forgets, NULL) == -11);
    CHECK(run(overflows_as_parent, NULL) == JANUS_PANIC);
    /* Stopped only when the last nursery was awaited. */
    count = 0;
    janus_nursery_create();
    CHECK(janus_nursery_spawn(yields, NULL) == 0);
    janus_rt_shutdown();
    CHECK(janus_rt_get() == NULL);
    CHECK(janus_nursery_spawn(yields, NULL) == 0);
    CHECK(janus_nursery_await_all() == 0);
    CHECK(count == 2);
}

static void *thread_forgets(void *scheduler)
{
    CHECK(janus_nursery_create_on(scheduler) != NULL);
    for (int i = 0; i < 5; i++)
        CHECK(janus_nursery_spawn(until_told, NULL) == 0);
    return NULL;
}

/* Many threads at once, of which one makes the runtime. */
static void *thread_works(void *arg)
{
    for (int round = 0; round < 50; round++) {
        CHECK(janus_nursery_create() != NULL);
        CHECK(janus_nursery_create() != NULL);
        for (int i = 0; i < 5; i++)
            CHECK(janus_nursery_spawn(yields, NULL) == 0);
        CHECK(janus_nursery_await_all() == 0);
        CHECK(janus_nursery_spawn(yields, NULL) == 0);
        CHECK(janus_nursery_await_all() == 0);
    }
    return arg;
}

static void many_threads(void)
{
    pthread_t threads[4];
    count = 0;
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, thread_works, NULL) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(count == 4 * 50 * 6);
    janus_rt_shutdown();
}

static int64_t across(void *scheduler)
{
    CHECK(janus_budget_recharge((janus_budget){.memory = 1 << 30, .spawn_count = 2}) == 0);
    CHECK(janus_nursery_create_on(scheduler) != NULL);
    CHECK(janus_nursery_spawn(yields, NULL) == 0);
    CHECK(janus_nursery_spawn(yields, NULL) == 0);
    return janus_nursery_await_all();
}

static void two_schedulers(void)
{
    void *one = janus_scheduler_create((janus_scheduler_config){.worker_count = 1, .watchdog_ms = JANUS_WATCHDOG_OFF});
    void *two = janus_scheduler_create((janus_scheduler_config){.worker_count = 2, .stack_size = 20000, .watchdog_ms = 50});
    CHECK(one != NULL && two != NULL && one != two);
    count = 0;
    CHECK(janus_nursery_create_on(one) != NULL);
    CHECK(janus_nursery_spawn(yields, NULL) == 0);
    CHECK(janus_nursery_create_on(two) != NULL);
    CHECK(janus_nursery_spawn(yields, NULL) == 0);
    CHECK(janus_nursery_await_all() == 0);
    CHECK(janus_nursery_spawn(across, two) == 0);
    /* Shut down while in use: it stays until it was awaited, but takes nothing new. */
    janus_scheduler_shutdown(one);
    CHECK(janus_nursery_create_on(one) == NULL);
    CHECK(janus_nursery_await_all() == 0);
    CHECK(count == 4);
    CHECK(janus_nursery_await_all() == JANUS_PENDING);
    janus_scheduler_shutdown(one);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, thread_forgets, two) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    janus_scheduler_shutdown(two);
    janus_scheduler_shutdown(two);
    CHECK(janus_rt_get() == NULL);
}

static int order[64];
static atomic_int written;

static int64_t writes(void *arg)
{
    for (int i = 0; i < 8; i++) {
        order[written++ % 64] = (int)(intptr_t)arg;
        janus_scheduler_yield();
    }
    return 0;
}

/* Spawned by a task: when another thread spawns is no part of the seed. */
static int64_t writers(void *arg)
{
    (void)arg;
    CHECK(janus_budget_recharge((janus_budget){.memory = 1 << 30, .spawn_count = 8}) == 0);
    CHECK(janus_nursery_create() != NULL);
    for (intptr_t i = 0; i < 8; i++)
        CHECK(janus_nursery_spawn(writes, (void *)i) == 0);
    return janus_nursery_await_all();
}

static void replay(void)
{
    int first[64];
    for (int round = 0; round < 3; round++) {
        janus_scheduler_config config = {.worker_count = 3, .deterministic = true, .deterministic_seed = 42 + round / 2};
        void *scheduler = janus_scheduler_create(config);
        CHECK(scheduler != NULL);
        written = 0;
        CHECK(run_on(scheduler, writers, NULL) == 0);
        CHECK(written == 64);
        janus_scheduler_shutdown(scheduler);
        if (round == 0)
            memcpy(first, order, sizeof order);
        CHECK((memcmp(first, order, sizeof order) == 0) == (round < 2));
    }
}

static volatile double one = 1.0, three = 3.0;
static volatile long double long_one = 1.0L, long_three = 3.0L;
static double third[2];
static long double long_third[2];

static int rounds_down(void)
{
    return one / three == third[1] && long_one / long_three == long_third[1] && fegetround() == FE_DOWNWARD;
}

static int rounds_to_nearest(void)
{
    return one / three == third[0] && long_one / long_three == long_third[0] && fegetround() == FE_TONEAREST;
}

static int64_t down(void *arg)
{
    (void)arg;
    CHECK(rounds_to_nearest());
    fesetround(FE_DOWNWARD);
    CHECK(janus_budget_recharge((janus_budget){.spawn_count = 1}) == 0);
    for (int i = 0; i < 50; i++) {
        CHECK(janus_scheduler_yield() == 0 && rounds_down());
        CHECK(janus_budget_charge(1000) == 0 && rounds_down());
    }
    CHECK(janus_nursery_create() != NULL && rounds_down());
    CHECK(janus_nursery_spawn(yields, NULL) == 0 && rounds_down());
    CHECK(janus_nursery_await_all() == 0 && rounds_down());
    return 0;
}

static int64_t nearest(void *arg)
{
    (void)arg;
    for (int i = 0; i < 100; i++) {
        CHECK(rounds_to_nearest());
        CHECK(janus_budget_charge(1000) == 0);
    }
    return 0;
}

static void rounding(void)
{
    /* A third is rounded down anyway in one of the formats; minus a third is then rounded up. */
    one = -1.0, long_one = -1.0L;
    third[0] = one / three, long_third[0] = long_one / long_three;
    fesetround(FE_DOWNWARD);
    third[1] = one / three, long_third[1] = long_one / long_three;
    CHECK(third[0] != third[1]);
    /* Workers that are started now do not round down. */
    void *scheduler = janus_scheduler_create((janus_scheduler_config){.worker_count = 3});
    CHECK(janus_nursery_create_on(scheduler) != NULL);
    for (int i = 0; i < 20; i++)
        CHECK(janus_nursery_spawn(i % 2 ? down : nearest, NULL) == 0);
    CHECK(rounds_down());
    CHECK(janus_nursery_await_all() == 0);
    CHECK(rounds_down());
    janus_scheduler_shutdown(scheduler);
    CHECK(rounds_down());
    fesetround(FE_TONEAREST);
}

static janus_context here, there;
static int switched;

static void fiber(void *arg)
{
    CHECK(rounds_to_nearest());
    fesetround(FE_DOWNWARD);
    switched += *(int *)arg;
    janus_context_switch(&there, &here);
    CHECK(rounds_down());
    switched++;
    janus_context_switch(&there, &here);
    abort();
}

static void by_hand(void)
{
    static _Alignas(16) char stack[65536];
    int amount = 40;
    void **top = (void **)(stack + sizeof stack) - 4;
    top[0] = (void *)(uintptr_t)janus_fiber_entry;
    top[1] = (void *)(uintptr_t)abort;
    there = (janus_context){.sp = (size_t)top, .regs = {.r12 = (uint64_t)(uintptr_t)fiber, .r13 = (uint64_t)(uintptr_t)&amount}};
    janus_context_switch(&here, &there);
    CHECK(switched == 40 && rounds_to_nearest());
    janus_context_switch(&here, &there);
    CHECK(switched == 41 && rounds_to_nearest());
}

int main(void)
{
    outside();
    refused();
    codes();
    sovereign();
    nested();
    two_schedulers();
    many_threads();
    replay();
    rounding();
    by_hand();
    if (failures != 0) {
        fprintf(stderr, "%d failures\n", failures);
        return 1;
    }
    puts("ok");
    return 0;
}
