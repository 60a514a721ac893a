/* A first program: children add up a table, fail with a code, and look at their budgets.
   cc hello.c $(pkg-config --cflags --libs janus) && ./a.out */

#include <inttypes.h>
#include <janus.h>
#include <janus_compiler.h>
#include <stdio.h>

#define NUMBERS 100000
#define PARTS 8

struct part {
    const uint32_t *from;
    size_t count;
    uint64_t sum;
};

static int64_t add_up(void *arg)
{
    struct part *part = arg;
    for (size_t i = 0; i < part->count; i++) {
        part->sum += part->from[i];
        /* A loop that runs long lets others run, and ends when it is told to. */
        if (i % 1024 == 1023 && janus_budget_charge(1024) != 0)
            return JANUS_CANCELLED;
    }
    return 0;
}

static int64_t fail(void *arg)
{
    (void)arg;
    return -42;
}

static int64_t look(void *arg)
{
    janus_budget *budget = arg;
    *budget = janus_budget_get_current();
    return 0;
}

int main(void)
{
    static uint32_t numbers[NUMBERS];
    struct part parts[PARTS];
    uint64_t sum = 0;
    janus_budget budget;

    for (uint32_t i = 0; i < NUMBERS; i++)
        numbers[i] = i;
    if (janus_nursery_create() == NULL) {
        fprintf(stderr, "no runtime: does the system allow threads?\n");
        return 1;
    }
    for (size_t i = 0; i < PARTS; i++) {
        parts[i] = (struct part){numbers + i * (NUMBERS / PARTS), NUMBERS / PARTS, 0};
        if (janus_nursery_spawn(add_up, &parts[i]) != 0)
            fprintf(stderr, "child %zu was not started\n", i);
    }
    long code = janus_nursery_await_all();
    for (size_t i = 0; i < PARTS; i++)
        sum += parts[i].sum;
    printf("sum %" PRIu64 ", code %ld\n", sum, code);

    janus_nursery_create();
    janus_nursery_spawn(fail, NULL);
    printf("a child failed: code %ld\n", janus_nursery_await_all());

    janus_nursery_create();
    janus_nursery_spawn(look, &budget);
    janus_nursery_await_all();
    printf("a child may use %" PRIu32 " operations and %zu bytes\n", budget.ops, budget.memory);

    janus_rt_shutdown();
    return 0;
}
