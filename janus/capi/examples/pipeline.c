/* Children with names and limits that talk by channels: one makes numbers, one keeps the primes, one adds them up.
   cc pipeline.c $(pkg-config --cflags --libs janus) && ./a.out */

#include <janus.h>
#include <janus_task.h>
#include <stdio.h>

static janus_channel *numbers, *primes;

static int64_t make(void *arg)
{
    (void)arg;
    for (uintptr_t number = 2; number < 1000; number++)
        if (janus_channel_send(numbers, (void *)number, JANUS_FOREVER) != 0)
            return JANUS_CANCELLED;
    janus_channel_close(numbers);
    return 0;
}

static int64_t keep_primes(void *arg)
{
    void *message;
    (void)arg;
    while (janus_channel_receive(numbers, &message, JANUS_FOREVER) == 0) {
        uintptr_t number = (uintptr_t)message, divisor = 2;
        while (divisor * divisor <= number && number % divisor != 0)
            divisor++;
        if (divisor * divisor > number)
            janus_channel_send(primes, message, JANUS_FOREVER);
    }
    janus_channel_close(primes);
    return 0;
}

static int64_t add_up(void *arg)
{
    uintptr_t *sum = arg;
    void *message;
    while (janus_channel_receive(primes, &message, JANUS_FOREVER) == 0)
        *sum += (uintptr_t)message;
    return 0;
}

int main(void)
{
    uintptr_t sum = 0;
    janus_limits limits = {.ops = 10000, .memory = 1 << 20, .channel_ops = 2000};
    janus_child_options maker = {.name = "maker", .limits = &limits};
    janus_child_options sieve = {.name = "sieve", .stack_size = 8192};

    numbers = janus_channel_create(16);
    primes = janus_channel_create(0);
    if (janus_nursery_create() == NULL) {
        fprintf(stderr, "no runtime: does the system allow threads?\n");
        return 1;
    }
    janus_nursery_spawn_with(&maker, make, NULL);
    janus_nursery_spawn_with(&sieve, keep_primes, NULL);
    janus_nursery_spawn(add_up, &sum);
    long code = janus_nursery_await_all();
    printf("the primes below 1000 add up to %lu, code %ld\n", (unsigned long)sum, code);
    janus_channel_free(numbers);
    janus_channel_free(primes);
    janus_rt_shutdown();
    return 0;
}
