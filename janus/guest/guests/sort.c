/* Allocates, fills, sorts and frees: an ordinary program that needs memory. Its argument is how many numbers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int order(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 10000;
    uint32_t *numbers = malloc(count * sizeof *numbers), state = 1;
    if (!numbers) {
        fprintf(stderr, "no memory for %zu numbers\n", count);
        return 2;
    }
    for (size_t i = 0; i < count; i++) {
        numbers[i] = state = state * 1664525 + 1013904223;
    }
    qsort(numbers, count, sizeof *numbers, order);
    for (size_t i = 1; i < count; i++) {
        if (numbers[i - 1] > numbers[i]) {
            return 1;
        }
    }
    printf("%zu sorted, the least is %u\n", count, count ? numbers[0] : 0);
    free(numbers);
    return 0;
}
