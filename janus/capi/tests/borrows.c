/* J-19 in C: a child that overflows its stack while it sorts an array.
   With an argument it borrows the array from its parents, as many as the argument says, and the process ends; without one
   the array is its own, or its owned parent's, and only they are lost. */
#include <janus.h>
#include <janus_compiler.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

struct lent {
    int depth;
    int numbers[64];
};

static int calls;

static int recurse(volatile int depth)
{
    volatile char frame[256];
    frame[0] = (char)depth;
    return depth == 0 ? frame[0] : recurse(depth - 1) + frame[0];
}

static int order(const void *one, const void *other)
{
    if (++calls == 40)
        return recurse(1 << 20);
    return *(const int *)one - *(const int *)other;
}

static void fill(struct lent *lent, int depth)
{
    lent->depth = depth;
    for (int i = 0; i < 64; i++)
        lent->numbers[i] = i * 37 % 64;
}

/* Lends it on to a child of its own, or sorts it. */
static int64_t sorts(void *arg)
{
    struct lent *lent = arg;
    if (--lent->depth > 0) {
        CHECK(janus_budget_recharge((janus_budget){.memory = 64 << 20, .spawn_count = 2}) == 0);
        CHECK(janus_nursery_create() != NULL);
        CHECK(janus_nursery_spawn(sorts, lent) == 0);
        int64_t code = janus_nursery_await_all();
        printf("a lender went on with %ld\n", (long)code);
        return code;
    }
    calls = 0;
    qsort(lent->numbers, 64, sizeof lent->numbers[0], order);
    return 0;
}

/* Owns what it lends. */
static int64_t owns(void *arg)
{
    struct lent lent;
    fill(&lent, *(int *)arg);
    free(arg);
    CHECK(janus_budget_recharge((janus_budget){.memory = 64 << 20, .spawn_count = 2}) == 0);
    CHECK(janus_nursery_create() != NULL);
    CHECK(janus_nursery_spawn(sorts, &lent) == 0);
    int64_t code = janus_nursery_await_all();
    printf("the owner went on with %ld\n", (long)code);
    return code;
}

int main(int argc, char **argv)
{
    struct lent lent;
    if (argc > 1) {
        fill(&lent, atoi(argv[1]));
        CHECK(janus_nursery_create() != NULL);
        CHECK(janus_nursery_spawn(sorts, &lent) == 0);
        printf("it went on with %ld\n", janus_nursery_await_all());
        return 0;
    }
    for (int depth = 1; depth <= 3; depth++) {
        int *own = malloc(sizeof *own);
        CHECK(own != NULL);
        *own = depth;
        CHECK(janus_nursery_create() != NULL);
        CHECK(janus_nursery_spawn_owned(owns, own) == 0);
        CHECK(janus_nursery_await_all() == JANUS_PANIC);
        /* The heap and the output are whole. */
        char *text = malloc(100000);
        CHECK(text != NULL);
        memset(text, depth, 100000);
        free(text);
    }
    printf("ok\n");
    return 0;
}
