/* janus.h: an M:N fiber runtime with budgets. The frozen interface, SPEC-021 sections 2.6 and 3.
   Made by cbindgen from the sources in janus/capi/src; to change it, change those. */

#ifndef JANUS_H
#define JANUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 `janus_runtime_config.profile`: `:service`.
 */
#define JANUS_PROFILE_DEFAULT 0

/*
 `janus_runtime_config.profile`: `:core` has no scheduler, so it is refused.
 */
#define JANUS_PROFILE_CORE 1

/*
 `janus_runtime_config.profile`: capabilities are implicit, budgets recharge from the nursery's pool.
 */
#define JANUS_PROFILE_SERVICE 2

/*
 `janus_runtime_config.profile`: supervisors recharge.
 */
#define JANUS_PROFILE_CLUSTER 3

/*
 `janus_runtime_config.profile`: nothing is implicit; a task can neither spawn nor recharge itself, unless it was
 granted the capability (janus_task.h).
 */
#define JANUS_PROFILE_SOVEREIGN 4

/*
 `janus_runtime_config.watchdog_ms`: there is no watchdog.
 */
#define JANUS_WATCHDOG_OFF UINT64_MAX

/*
 `janus_nursery_await_all`: every child returned 0 or more.
 */
#define JANUS_OK 0

/*
 `janus_nursery_await_all`: the nursery was cancelled. (A child that returns -1 looks the same.)
 */
#define JANUS_CANCELLED -1

/*
 `janus_nursery_await_all`: a child overflowed its stack, or the runtime panicked in it.
 */
#define JANUS_PANIC -2

/*
 `janus_nursery_await_all`: a child's budget was spent and nobody was left to recharge it.
 */
#define JANUS_BUDGET_EXCEEDED -3

/*
 `janus_nursery_await_all`: there was no open nursery to await.
 */
#define JANUS_PENDING -4

/*
 A runtime. Opaque.
 */
typedef struct janus_runtime janus_runtime;

/*
 How a runtime is made. All zeros is the default of everything.
 */
typedef struct janus_runtime_config {
  /*
   Worker threads, 1 to 960; 0: one for each CPU that the process may use.
   */
  uint32_t worker_count;
  /*
   One of JANUS_PROFILE_*.
   */
  uint32_t profile;
  /*
   If `deterministic`: decides who runs when.
   */
  uint64_t deterministic_seed;
  /*
   Workers and time are virtual: the same seed, worker count and input give the same order.
   */
  bool deterministic;
  /*
   Bytes of stack of a task, at most 1 MiB; rounded up to 8, 16, 64, 256 or 1024 KiB. 0: 64 KiB.
   The last 3 KiB are the library's: a task that calls it with less left has overflowed. To start or stop a runtime
   takes 14 KiB.
   */
  size_t stack_size;
  /*
   A task that runs so long without a check is reported and served around; 0: 100; JANUS_WATCHDOG_OFF: never;
   at most a day.
   */
  uint64_t watchdog_ms;
} janus_runtime_config;

/*
 What a task runs. A negative result is its error code.

 A task may go on with another thread after any call that can suspend it (`janus_nursery_spawn`,
 `janus_nursery_await_all`, `janus_scheduler_yield`, `janus_budget_check`, `janus_budget_charge`, a sleep, a send, a
 receive). Across such a call it may not keep what belongs to its thread: a pthread mutex that it locked, the address
 of `errno` or of a thread-local, a C++ exception that is being handled. C++ exceptions may not leave it: that ends the process.
 */
typedef int64_t (*janus_task_fn)(void *arg);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Makes the global runtime. Does nothing if there is one.

 If the configuration is refused (a size that cannot be, the profile `:core`) or the system has no threads to give,
 `janus_rt_get` and `janus_nursery_create` answer NULL until another `janus_rt_init` succeeds or `janus_rt_shutdown` is
 called.
 */
void janus_rt_init(struct janus_runtime_config config);

/*
 Stops the global runtime and frees it; with nurseries open on it, when the last of them has been awaited.
 The next `janus_nursery_create` makes a new one.
 */
void janus_rt_shutdown(void);

/*
 The global runtime; NULL: there is none.
 */
struct janus_runtime *janus_rt_get(void);

/*
 Opens a nursery and makes it the current one of the calling task, or, outside of tasks, of the calling thread.

 In a task it belongs to the task's runtime, and its children live on the task's budget. A task has no right to spawn
 (`spawn_count` is 0) unless it is given some (`janus_nursery_spawn_with` in janus_task.h, `janus_budget_recharge` in
 janus_compiler.h), and needs memory in its budget for each child. Outside it belongs to the global runtime, which is
 made if there is none, and the pool is without end. A child gets at most 1000000 ops, 16 MiB of memory, 10000 channel operations and 1000 system calls at a time.

 NULL: there is no runtime.

 A task that returns, or a thread that ends, with nurseries open cancels them and waits for them.
 */
void *janus_nursery_create(void);

/*
 Starts a child of the current nursery. `arg` stays valid until it has been awaited.

 A child that overflows its stack cannot be unwound: what it was changing stays half changed. If `arg` is NULL the child
 has borrowed nothing, and fails alone: -2. Otherwise whoever lent it something is given up with it, up to the nearest
 task that was spawned with NULL, or with `janus_nursery_spawn_owned` of janus_compiler.h; if there is none, the process
 ends with a message.

 0: started. -1: not, as there is no current nursery, it or the task is cancelled, `fn` is NULL, or the task has
 neither the capability nor the budget.

 `fn` may be called with `arg`, on another thread.
 */
int janus_nursery_spawn(janus_task_fn fn,
                        void *arg);

/*
 Waits until every child of the current nursery has ended, and closes it; the one outside of it is current again.

 0: all returned 0 or more. -1: cancelled. -2: a child overflowed its stack or panicked. -3: a child's budget was spent
 and nobody was left to recharge it. -4: there is no current nursery. Any other negative number: the error code of the
 first child that failed; LONG_MIN: there was no memory for a child's stack.

 A child's own code may be one of -1 to -4 too; choose others to tell them apart.
 */
long janus_nursery_await_all(void);

/*
 Asks every child of the current nursery to end: their calls that can suspend answer -1, children that have not begun
 never do, and `janus_nursery_await_all` answers -1.
 */
void janus_nursery_cancel(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#ifdef JANUS_SPEC_NAMES
/* The specification's names of the types above. */
typedef janus_runtime Runtime;
typedef janus_runtime_config RuntimeConfig;
typedef janus_task_fn TaskFn;
#endif

#endif  /* JANUS_H */
