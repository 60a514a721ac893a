/* What a guest written in C can ask of the runtime. Each import exists only if its right was granted. */
#ifndef JANUS_GUEST_H
#define JANUS_GUEST_H

#include <stdint.h>

#define JANUS_IMPORT(name) __attribute__((import_module("janus"), import_name(name)))

/* The five parts of a budget, in the order of the specification. */
struct janus_budget {
    uint64_t ops, memory, spawn_count, channel_ops, syscalls;
};

enum {
    JANUS_OK = 0,
    JANUS_NO_SUCH = -1,
    JANUS_FAILED = -2,
    JANUS_BUDGET = -3,
    JANUS_CANCELLED = -4,
    JANUS_FAULT = -5,
    JANUS_CLOSED = -6,
    JANUS_TOO_LONG = -7,
};

/* A child is another instance of the same module, with a memory of its own: it begins with this function and argument. */
typedef int64_t (*janus_entry)(int64_t);

JANUS_IMPORT("yield") void janus_yield(void);
/* The right `spawn`. The answer is the child's number, or an error. A null budget is an eighth of what is left here, or 1M operations
   and 16 MiB where that is less; JANUS_BUDGET says that no child fits into that: join some first, or name a budget. */
JANUS_IMPORT("spawn") int janus_spawn(janus_entry entry, int64_t argument, const struct janus_budget *budget);
JANUS_IMPORT("join") int janus_join(int child, int64_t *result);
JANUS_IMPORT("cancel") int janus_cancel(int child);
/* What is left of a part, by its place in struct janus_budget. */
JANUS_IMPORT("budget_left") uint64_t janus_budget_left(int part);
/* The right `budget`. */
JANUS_IMPORT("budget_recharge") int janus_budget_recharge(int part, uint64_t amount);
/* The right `messages`. Channels are numbers that a guest and its children share. */
JANUS_IMPORT("channel") int janus_channel(unsigned capacity);
JANUS_IMPORT("send") int janus_send(int channel, const void *message, unsigned length);
JANUS_IMPORT("receive") int janus_receive(int channel, void *buffer, unsigned length);
JANUS_IMPORT("close") int janus_close(int channel);
/* The right `clock`. */
JANUS_IMPORT("sleep") void janus_sleep(uint64_t nanoseconds);

#endif
