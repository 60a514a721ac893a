/* janus_compiler.h: what compiled code calls beside janus.h. SPEC-021 section 12.1.
   Made by cbindgen from the sources in janus/capi/src; to change it, change those. */

#ifndef JANUS_COMPILER_H
#define JANUS_COMPILER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "janus.h"

/*
 The callee-saved registers of the System V ABI but `rsp`.
 */
typedef struct janus_saved_registers {
  /*
   Offset 8 of the context.
   */
  uint64_t rbx;
  /*
   Offset 16.
   */
  uint64_t rbp;
  /*
   Offset 24; in a new context the function to call.
   */
  uint64_t r12;
  /*
   Offset 32; in a new context that function's argument.
   */
  uint64_t r13;
  /*
   Offset 40.
   */
  uint64_t r14;
  /*
   Offset 48.
   */
  uint64_t r15;
} janus_saved_registers;

/*
 Where a suspended flow of control goes on, 56 bytes. MXCSR and the x87 control word are on its stack.
 */
typedef struct janus_context {
  /*
   Stack pointer; the word that it points to is the address at which to go on.
   */
  size_t sp;
  /*
   Callee-saved registers.
   */
  struct janus_saved_registers regs;
} janus_context;

/*
 The same as for the global runtime.
 */
typedef janus_runtime_config janus_scheduler_config;

/*
 What a task may use. Counters are 64 bits wide inside: one that is larger than its field, or without end, is the
 field's maximum here.
 */
typedef struct janus_budget {
  /*
   Abstract instructions.
   */
  uint32_t ops;
  /*
   Bytes.
   */
  size_t memory;
  /*
   Children.
   */
  uint16_t spawn_count;
  /*
   Sends and receives.
   */
  uint16_t channel_ops;
  /*
   System calls.
   */
  uint16_t syscalls;
} janus_budget;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Saves the caller in `from` and goes on with `to`; returns when somebody switches to `from`.

 `to` was saved by this function, or is new: `sp` points to the address of `janus_fiber_entry`, above which lies the
 address to go on at when the function returns, and is 16-byte aligned; r12 is the function and r13 its argument.
 For stacks of your own: a task of the runtime is never switched by hand.
 */
extern void janus_context_switch(struct janus_context *from,
                                 const struct janus_context *to);

/*
 Where a new context begins; never called. See `janus_context_switch`.
 */
extern void janus_fiber_entry(void);

/*
 An isolated runtime, beside the global one and others; NULL: refused (see `janus_rt_init`).
 */
void *janus_scheduler_create(janus_scheduler_config config);

/*
 Stops it and frees it; with nurseries open on it, when the last of them has been awaited. Does nothing for a pointer
 that is not a scheduler, or no longer.
 */
void janus_scheduler_shutdown(void *scheduler);

/*
 `janus_nursery_create` on this scheduler. NULL: it is none. In a task of another runtime the children still live on
 the task's budget.
 */
void *janus_nursery_create_on(void *scheduler);

/*
 `janus_nursery_spawn` for a child to which everything that `arg` leads to belongs from now on: nobody else reads or
 writes it until the child has returned it, by its result or otherwise. Should it overflow its stack, it fails alone, and
 all of that is lost.

 `fn` may be called with `arg`, on another thread.
 */
int janus_nursery_spawn_owned(janus_task_fn fn,
                              void *arg);

/*
 `janus_nursery_spawn` with the function, an `int64_t (*)(void *)`, as a plain pointer.

 `func` is NULL or such a function, and may be called with `arg`, on another thread.
 */
int janus_scheduler_spawn(void *func, void *arg);

/*
 Lets other tasks run, if there are any. It costs nothing. 0; -1: the task was cancelled, or the caller is none.
 */
int janus_scheduler_yield(void);

/*
 Charges one operation, and lets others run when the task's turn is over. Call it in loops that run long.

 0; -1: the task was cancelled and should return, or the caller is none.
 */
int janus_budget_check(void);

/*
 Charges `ops` operations at once, as `janus_budget_check` does one.
 */
int janus_budget_charge(uint64_t ops);

/*
 What is left of the calling task's budget; all zeros outside of tasks.
 */
struct janus_budget janus_budget_get_current(void);

/*
 Adds to the calling task's budget. 0; -1: it has no capability to (in `:service` every task has that was given no limits; see
 janus_task.h), or is none.
 */
int janus_budget_recharge(struct janus_budget amount);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#ifdef JANUS_SPEC_NAMES
/* The specification's names of the types above. */
typedef janus_budget Budget;
typedef janus_saved_registers SavedRegisters;
typedef janus_context Context;
typedef janus_scheduler_config SchedulerConfig;
#endif

#endif  /* JANUS_COMPILER_H */
