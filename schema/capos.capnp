# What every kernel object can be asked. An ordinal is the method's number in a CALL (`abi/src/ops.rs`); interfaces have the numbers of
# `abi/src/caps.rs`. Nothing is generated from this file: a test compiles it, and compares the names with `abi`.
#
# A capability that a method gives comes in the completion (`Cqe::cap`), not in the message. Methods without parameters take no message
# (length 0), and those without results give none.
@0xd1c6a5e6a3b0f002;

using M = import "messages.capnp";

interface Console {
  # 1. Bytes to and from the serial line: the ring operations WRITE and READ. No methods.
}

interface Timer {
  # 2. The clock. Sleeping is the ring operation SLEEP.
  now @0 () -> M.TimerNowResults;
}

interface ThreadSpawner {
  # 3. Makes threads in the caller's process.
  create @0 M.ThreadSpawnerCreateParams -> ();
  # With the completion comes a ThreadHandle. An entry, stack or FS base that is not canonical, a stack that is not aligned, a flag that
  # does not exist: Failed. No room: Overloaded.
}

interface ThreadHandle {
  # 4. One thread of the caller's process. Releasing it detaches the thread.
  join @0 () -> ();
  # The exit code is the first word of the completion: whoever ends does not write to the waiter's memory.
  # Completes when the thread has ended; once. A second join, or one's own, is Failed.
  exitCode @1 () -> M.ThreadHandleExitCodeResults;
  # At once, and as often as you like.
}

interface ThreadControl {
  # 5. The calling thread.
  getFsBase @0 () -> M.ThreadControlGetFsBaseResults;
  setFsBase @1 M.ThreadControlSetFsBaseParams -> ();
  exitThread @2 M.ThreadControlExitThreadParams -> ();
  # Does not complete.
  setAffinity @3 M.ThreadControlSetAffinityParams -> ();
}

interface ProcessSpawner {
  # 6. Makes processes from the programs of the boot image.
  spawn @0 M.ProcessSpawnerSpawnParams -> M.ProcessSpawnerSpawnResults;
  # With the completion comes a ProcessHandle.
  programs @1 M.ListParams -> M.ProcessSpawnerProgramsResults;
}

interface ProcessHandle {
  # 7. One process.
  wait @0 () -> ();
  # Exit code and ExitReason are the words of the completion.
  # Completes when the process has ended.
  kill @1 () -> ();
  info @2 () -> M.ProcessHandleInfoResults;
  exitCode @3 () -> M.ProcessHandleExitCodeResults;
  # At once, and as often as you like.
  exit @4 M.ThreadControlExitThreadParams -> ();
  # Ends the caller's own process, all threads, with this code; for another process InvalidArgument. Does not complete.
}

interface Endpoint {
  # 8. A place to call, or to receive calls: the ring operations CALL, RECV and RETURN. Methods are the server's business.
}

interface ParkSpace {
  # 9. Parking and waking threads by address: the ring operations PARK and UNPARK. No methods.
}

interface VirtualMemory {
  # 10. The caller's address space. Addresses and sizes are multiples of the page.
  map @0 M.VirtualMemoryMapParams -> M.VirtualMemoryMapResults;
  unmap @1 M.VirtualMemoryUnmapParams -> ();
  # Memory objects, too, with or without a capability to them.
  protect @2 M.VirtualMemoryProtectParams -> ();
}

interface MemoryObject {
  # 11. Memory that can be shared; mapped in the caller's address space.
  map @0 M.MemoryObjectMapParams -> M.MemoryObjectMapResults;
  unmap @1 M.MemoryObjectUnmapParams -> ();
  protect @2 M.MemoryObjectProtectParams -> ();
  info @3 () -> M.MemoryObjectInfoResults;
}

interface UserSession {
  # 12. Who the process works for.
  info @0 () -> M.UserSessionInfoResults;
  logout @1 () -> M.UserSessionLogoutResults;
  processes @2 M.ListParams -> M.SystemInfoProcessesResults;
  # Those of the session and of sessions that were made in it, whoever started them.
  kill @3 M.UserSessionKillParams -> ();
  # Ends one of them.
  quotas @4 () -> M.UserSessionQuotasResults;
}

interface SystemInfo {
  # 13. What machine and kernel this is.
  info @0 M.SystemInfoInfoParams -> M.SystemInfoInfoResults;
  # A ring ABI that this kernel does not speak is CAP_ERR_UNSUPPORTED_RING_ABI.
  processes @1 M.ListParams -> M.SystemInfoProcessesResults;
  threads @2 M.ListParams -> M.SystemInfoThreadsResults;
  cpus @3 M.ListParams -> M.SystemInfoCpusResults;
  counters @4 M.ListParams -> M.SystemInfoCountersResults;
  contexts @5 M.ListParams -> M.SystemInfoContextsResults;
  failAllocation @6 M.SystemInfoFailAllocationParams -> M.SystemInfoFailAllocationResults;
  # For tests of the kernel, which must be booted with `allocfail`.
}

interface Factory {
  # 14. Makes objects; with the completion comes the capability.
  createEndpoint @0 () -> ();
  createMemoryObject @1 M.FactoryCreateMemoryObjectParams -> ();
  createSession @2 M.FactoryCreateSessionParams -> ();
}

interface Power {
  # 15. Powers the machine off. Status 0 is good; what is above 14 is 14, and 15 is the kernel's own, for a panic.
  off @0 M.PowerOffParams -> ();
  # Does not complete.
}

interface BootManifest {
  # 16. The boot manifest, for init: as many bytes from the offset on as fit.
  read @0 M.BootManifestReadParams -> M.BootManifestReadResults;
}

interface SchedulingPolicy {
  # 17. How the calling thread shares CPUs with others. A change takes effect when the thread is queued next.
  setWeight @0 M.SchedulingPolicySetWeightParams -> ();
  # Outside 1 to 1024: InvalidArgument, and nothing changes.
  setLatencyClass @1 M.SchedulingPolicySetLatencyClassParams -> ();
  # A number that no class has: InvalidArgument, and nothing changes.
  snapshot @2 () -> M.SchedulingPolicySnapshotResults;
}

interface SchedulingContext {
  # 18. CPU time: a budget in every period, which a thread can have and lend along a call. What is not a message's fault is an
  # OperationResult, not an exception; a capability that is stale or was revoked is told so, and changes nothing.
  info @0 () -> M.SchedulingContextInfoResults;
  create @1 M.SchedulingContextCreateParams -> M.SchedulingContextCreateResults;
  # Another context. A specification that no CPU could ever serve: InvalidArgument, with what is wrong. No CPU has so much left:
  # resourceExhausted.
  bindCallerThread @2 M.SchedulingContextBindParams -> M.SchedulingContextResult;
  unbind @3 () -> M.SchedulingContextResult;
  reconfigure @4 M.SchedulingContextReconfigureParams -> M.SchedulingContextReconfigureResults;
  # What was used stays used.
  revoke @5 () -> M.SchedulingContextResult;
  # Takes the time back, wherever it is. This capability sees `revoked` from now on, all others `staleGeneration`.
  drainNotifications @6 () -> M.SchedulingContextNotificationsResults;
  waitNotification @7 () -> ();
  # Completes when there is something to drain; at once if there is. One waits at a time, a second one gets Overloaded.
  consumed @8 () -> M.SchedulingContextConsumedResults;
  yieldTo @9 () -> M.SchedulingContextResult;
  # The caller queues behind the thread that runs on this context.
  bindThread @10 M.SchedulingContextBindParams -> M.SchedulingContextResult;
  # A thread of the caller's process. Takes effect at once if it waits, otherwise when it next leaves the kernel.
}
