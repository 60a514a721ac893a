/* janus_task.h: what a task has beside janus.h: children with limits, names, stacks and grants; sleep; channels.
   Made by cbindgen from the sources in janus/capi/src; to change it, change those. */

#ifndef JANUS_TASK_H
#define JANUS_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "janus.h"

/*
 A part of `janus_limits` that has no end.
 */
#define JANUS_UNLIMITED UINT64_MAX

/*
 `janus_child_options.grants`: the child may spawn. In `:service` every task may.
 */
#define JANUS_GRANT_SPAWN 1

/*
 `janus_child_options.grants`: the child may recharge itself, and make capabilities to recharge. In `:service` every task
 may, unless it or one above it has limits.
 */
#define JANUS_GRANT_BUDGET 2

/*
 `janus_child_options.priority`: as others.
 */
#define JANUS_PRIORITY_NORMAL 0

/*
 `janus_child_options.priority`: before others of its worker. A hint.
 */
#define JANUS_PRIORITY_HIGH 1

/*
 `janus_child_options.priority`: after others of its worker. A hint.
 */
#define JANUS_PRIORITY_LOW 2

/*
 A time-out: there is none.
 */
#define JANUS_FOREVER UINT64_MAX

/*
 `janus_channel_send` and `janus_channel_receive`: the channel was closed.
 */
#define JANUS_CLOSED -5

/*
 `janus_channel_send` and `janus_channel_receive`: the time was over.
 */
#define JANUS_TIMED_OUT -6

/*
 What one or more tasks may recharge themselves with, in all. To have the pointer is the right to use it: a task that has
 one needs no other capability.
 */
typedef struct janus_cap_budget janus_cap_budget;

/*
 Carries pointers from task to task, first come first served; any number of senders and receivers. Opaque.
 */
typedef struct janus_channel janus_channel;

/*
 What a child may use, 64 bits wide; JANUS_UNLIMITED is without end. See `janus_budget` in janus_compiler.h.
 */
typedef struct janus_limits {
  /*
   Abstract instructions.
   */
  uint64_t ops;
  /*
   Bytes.
   */
  uint64_t memory;
  /*
   Children.
   */
  uint64_t spawn_count;
  /*
   Sends and receives.
   */
  uint64_t channel_ops;
  /*
   System calls.
   */
  uint64_t syscalls;
} janus_limits;

/*
 How a child is made. All zeros is what `janus_nursery_spawn` does.
 */
typedef struct janus_child_options {
  /*
   For messages and dumps; NULL: none. UTF-8, 63 bytes at most. It is copied, and kept for the life of the process: the
   first 4096 names are, children with others have none.
   */
  const char *name;
  /*
   Exactly this, out of the nursery's pool, and no more: no pool adds to it. A child that has spent a part of it stops,
   until nobody is left who could go on: then it ends, and `janus_nursery_await_all` answers -3. NULL: a share of the
   pool, as long as that has something.
   */
  const struct janus_limits *limits;
  /*
   The right to have so many children; the larger of this and of what the limits say.
   */
  uint64_t children;
  /*
   Bytes of stack, as in `janus_runtime_config`; 0: what that says.
   */
  size_t stack_size;
  /*
   One of JANUS_PRIORITY_*.
   */
  uint32_t priority;
  /*
   JANUS_GRANT_* together. A task passes on what it has; a thread that runs no task has everything.
   */
  uint32_t grants;
  /*
   Everything that `arg` leads to belongs to the child from now on: see `janus_nursery_spawn_owned`.
   */
  bool owned;
} janus_child_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 `janus_nursery_spawn` with options; NULL: none. They are read, and not kept.

 0: started. -1: not, for the reasons of `janus_nursery_spawn`, or as the options ask for what cannot be: a name that is too
 long or not UTF-8, a stack above 1 MiB, an unknown priority or grant, a grant that the calling task does not have itself,
 limits that the pool does not have.

 `options` and the pointers in it are NULL or valid. `fn` may be called with `arg`, on another thread.
 */
int janus_nursery_spawn_with(const struct janus_child_options *options,
                             janus_task_fn fn,
                             void *arg);

/*
 Makes one with so much in it. NULL: the calling task may not recharge itself, so it cannot let others either. A thread that
 runs no task may.
 */
struct janus_cap_budget *janus_cap_budget_create(struct janus_limits limits);

/*
 Adds `amount` to the calling task's budget, out of the capability: all of it, or nothing. 0; -1: there is not so much left,
 or the caller is no task.

 `capability` is one.
 */
int janus_cap_budget_recharge(const struct janus_cap_budget *capability,
                              struct janus_limits amount);

/*
 What is left in it.

 `capability` is one.
 */
struct janus_limits janus_cap_budget_left(const struct janus_cap_budget *capability);

/*
 Frees it. What was left in it is gone.

 `capability` is NULL, or one that nobody uses any more.
 */
void janus_cap_budget_free(struct janus_cap_budget *capability);

/*
 Waits so long, at least, and lets others run. It costs an operation. In deterministic mode the time is virtual.

 0; -1: the task was cancelled and should return, or the caller is none.
 */
int janus_task_sleep(uint64_t nanoseconds);

/*
 Makes a channel for so many messages in transit; 0 is a rendezvous: a send returns when the message was received.
 `SIZE_MAX`: any number.
 */
struct janus_channel *janus_channel_create(size_t capacity);

/*
 Sends, and waits so many nanoseconds at most, or JANUS_FOREVER, until there is room, or a receiver. 0: not at all.

 0: sent, and the message is the receiver's. JANUS_CLOSED. JANUS_TIMED_OUT. -1: the task was cancelled and should return.
 Outside of tasks it waits for ever or not at all: another time-out is -1.

 `channel` is one, and whoever receives may have `message`, on another thread.
 */
int janus_channel_send(const struct janus_channel *channel,
                       void *message,
                       uint64_t timeout_ns);

/*
 Receives into `*message`, and waits so many nanoseconds at most, or JANUS_FOREVER, until there is one. 0: not at all.

 0: received. JANUS_CLOSED: there is none, and none will come. JANUS_TIMED_OUT. -1: the task was cancelled and should
 return. Outside of tasks it waits for ever or not at all: another time-out is -1.

 `channel` is one, and `message` can be written.
 */
int janus_channel_receive(const struct janus_channel *channel,
                          void **message,
                          uint64_t timeout_ns);

/*
 Nobody sends any more: whoever waits to, and whoever tries, gets JANUS_CLOSED and keeps the message. What is in transit is
 still received; then receivers get JANUS_CLOSED too.

 `channel` is one.
 */
void janus_channel_close(const struct janus_channel *channel);

/*
 Frees it. Messages that nobody received are lost with it: receive them first, if something belongs to them.

 `channel` is NULL, or one that nobody uses any more.
 */
void janus_channel_free(struct janus_channel *channel);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* JANUS_TASK_H */
