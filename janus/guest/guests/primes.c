/* Counts the primes below a number: children take ranges, and tell how far they are by a channel. */
#include "janus.h"
#include <stdio.h>
#include <stdlib.h>

enum { CHILDREN = 8, RANGE = 500 };

static int64_t range(int64_t first) {
    int64_t found = 0;
    for (int64_t n = first < 2 ? 2 : first; n < first + RANGE; n++) {
        int prime = 1;
        for (int64_t d = 2; d * d <= n; d++) {
            if (n % d == 0) {
                prime = 0;
                break;
            }
        }
        found += prime;
    }
    janus_send(0, &found, sizeof found);
    return found;
}

/* What a child may use, out of our own. */
static const struct janus_budget each = {.ops = 1000000, .memory = 256 << 10, .channel_ops = 2};

int main(void) {
    int64_t heard = 0, joined = 0, one;
    int children[CHILDREN];
    if (janus_channel(CHILDREN) != 0) {
        return 1;
    }
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = janus_spawn(range, (int64_t)i * RANGE, &each);
        if (children[i] < 0) {
            fprintf(stderr, "no child: %d\n", children[i]);
            return 1;
        }
    }
    for (int i = 0; i < CHILDREN; i++) {
        if (janus_receive(0, &one, sizeof one) != sizeof one) {
            return 1;
        }
        heard += one;
    }
    for (int i = 0; i < CHILDREN; i++) {
        if (janus_join(children[i], &one) != 0) {
            return 1;
        }
        joined += one;
    }
    printf("%lld primes below %d\n", (long long)joined, CHILDREN * RANGE);
    return heard == joined ? 0 : 1;
}
