# Parameters and results of the methods in capos.capnp.
#
# They are structures with names, in a file of their own, because generated code for interfaces needs a standard library and the kernel
# has none. A message is one segment without a frame: the root pointer and what it points to. Fields may be added at the end.
@0xd1c6a5e6a3b0f001;

enum OperationResult {
  # The second error plane: the method ran, and this came of it.
  ok @0;
  staleGeneration @1;
  revoked @2;
  invalidSpec @3;
  resourceExhausted @4;
  notRenewable @5;
  unauthorized @6;
  alreadyRevoked @7;
  unknownGrant @8;
  alreadyBound @9;   # The thread has a context, or the context a thread.
  notBound @10;      # There is nothing to take away.
  lent @11;          # A server has it: wait until the call returns, or revoke.
  notReady @12;      # Nobody to give way to.
  deadThread @13;    # The thread has ended, or is about to.
  noCommonCpu @14;   # The CPUs of context and thread have none in common.
}

enum ExitReason {
  exited @0;   # It said so itself.
  killed @1;   # By ProcessHandle.kill.
  faulted @2;  # By an exception of the CPU.
}

enum ProcessState {
  starting @0;
  running @1;
  exiting @2;
  exited @3;
}

enum ThreadState {
  starting @0;
  ready @1;
  running @2;
  blocked @3;
  exited @4;
  throttled @5;  # Its budget is spent: it waits for the refill, and not for a CPU.
}

struct ListParams {
  # For methods that give a long list in pieces.
  start @0 :UInt32;
  # Where to go on: 0 at first. Processes and threads are listed by their numbers, and go on with the one after the last that was read, so a
  # listing neither skips nor repeats because others come and go; of other lists it is how many have been read.
}

# Timer

struct TimerNowResults {
  ns @0 :UInt64;  # Since the boot.
}

# ThreadSpawner

struct ThreadSpawnerCreateParams {
  entry @0 :UInt64;
  stackTop @1 :UInt64;  # Aligned to 16.
  arg @2 :UInt64;       # RDI of the new thread.
  fsBase @3 :UInt64;
  flags @4 :UInt32;     # 0.
}

# ThreadHandle

struct ThreadHandleExitCodeResults {
  exited @0 :Bool;
  exitCode @1 :Int64;  # If it exited.
}

# ThreadControl

struct ThreadControlGetFsBaseResults {
  fsBase @0 :UInt64;
}

struct ThreadControlSetFsBaseParams {
  fsBase @0 :UInt64;
}

struct ThreadControlExitThreadParams {
  code @0 :Int64;
}

struct ThreadControlSetAffinityParams {
  cpus @0 :Data;  # CPU n is bit n % 8 of byte n / 8; the last byte is not 0.
}

# ProcessSpawner

struct Grant {
  name @0 :Text;    # Under which the child finds it.
  cap @1 :UInt32;   # The caller's capability.
  rights @2 :UInt16;  # A part of its own.
  badge @3 :UInt32;   # 0 keeps it.
}

struct ProcessSpawnerSpawnParams {
  program @0 :Text;  # Of the boot image.
  name @1 :Text;     # Of the process; empty: that of the program.
  args @2 :Data;     # Strings, each ended by a NUL.
  grants @3 :List(Grant);
  weight @4 :UInt32;           # Of its first thread, 1 to 1024; 0: the caller's.
  class @5 :UInt16 = 0xffff;   # Latency class of its first thread; 0xffff: the caller's.
  policy @6 :UInt32;           # The caller's SchedulingPolicy: must be there if weight or class is.
  context @7 :UInt32;          # The caller's SchedulingContext: must be there if a template is.
  template @8 :SchedulingContextSpec;
  # Every thread of the child gets a context of its own with this specification, or is not made. Without budget: none.
}

struct ProcessSpawnerSpawnResults {
  pid @0 :UInt32;
}

struct ProcessSpawnerProgramsResults {
  names @0 :List(Text);
  more @1 :Bool;
}

# ProcessHandle

struct ProcessInfo {
  pid @0 :UInt32;
  generation @1 :UInt32;
  parent @2 :UInt32;
  name @3 :Text;
  state @4 :ProcessState;
  threads @5 :UInt32;
  runtimeNs @6 :UInt64;
  frames @7 :UInt64;   # Frames of memory that it is charged for.
  caps @8 :UInt32;
  session @9 :UInt64;  # Whom it works for; 0: nobody.
}

struct ProcessHandleInfoResults {
  info @0 :ProcessInfo;
}

struct ProcessHandleExitCodeResults {
  exited @0 :Bool;
  exitCode @1 :Int64;  # If it exited, as the next.
  reason @2 :ExitReason;
}

# VirtualMemory

struct VirtualMemoryMapParams {
  addr @0 :UInt64;  # 0: anywhere.
  bytes @1 :UInt64;
  writable @2 :Bool;
  executable @3 :Bool;  # Not together with writable.
}

struct VirtualMemoryMapResults {
  addr @0 :UInt64;
}

struct VirtualMemoryUnmapParams {
  addr @0 :UInt64;
  bytes @1 :UInt64;
}

struct VirtualMemoryProtectParams {
  addr @0 :UInt64;
  bytes @1 :UInt64;
  writable @2 :Bool;
  executable @3 :Bool;
}

# MemoryObject

struct MemoryObjectMapParams {
  addr @0 :UInt64;  # 0: anywhere.
  offset @1 :UInt64;
  bytes @2 :UInt64;
  writable @3 :Bool;
}

struct MemoryObjectMapResults {
  addr @0 :UInt64;
}

struct MemoryObjectUnmapParams {
  addr @0 :UInt64;
  bytes @1 :UInt64;
}

struct MemoryObjectProtectParams {
  addr @0 :UInt64;
  bytes @1 :UInt64;
  writable @2 :Bool;
}

struct MemoryObjectInfoResults {
  bytes @0 :UInt64;
}

# UserSession

struct UserSessionInfoResults {
  id @0 :UInt64;
  name @1 :Text;
  live @2 :Bool;
}

struct UserSessionLogoutResults {
  result @0 :OperationResult;
  staleMarked @1 :UInt32;              # Contexts that are stale from now on.
  donationInflightSkipped @2 :UInt32;  # Contexts that its threads have on loan: they go back with the answer.
}

struct UserSessionKillParams {
  pid @0 :UInt32;
}

struct Quota {
  name @0 :Text;
  used @1 :UInt64;
  limit @2 :UInt64;
}

struct UserSessionQuotasResults {
  quotas @0 :List(Quota);
}

# SystemInfo

struct SystemInfoInfoParams {
  ringAbiVersion @0 :UInt32;  # What the caller speaks; 0: whatever there is.
}

struct SystemInfoInfoResults {
  ringAbiVersion @0 :UInt32;
  sqeSize @1 :UInt32;
  cqeSize @2 :UInt32;
  sqeVersions @3 :List(UInt8);
  cpus @4 :UInt32;
  frames @5 :UInt64;
  freeFrames @6 :UInt64;
  kernelVersion @7 :Text;
  uptimeNs @8 :UInt64;
  bytesPerThread @9 :UInt32;
  bytesPerProcess @10 :UInt32;
  bytesPerRing @11 :UInt32;
  timer @12 :Text;  # The hardware that interrupts.
  clock @13 :Text;  # The hardware that counts.
  policy @14 :Text; # Who runs next: wfq or eevdf.
}

struct SystemInfoProcessesResults {
  processes @0 :List(ProcessInfo);
  more @1 :Bool;
}

struct ThreadInfo {
  pid @0 :UInt32;
  tid @1 :UInt32;
  generation @2 :UInt32;
  state @3 :ThreadState;
  cpu @4 :UInt32;
  weight @5 :UInt32;
  class @6 :UInt16;  # Scheduling class: its number in the scheduling core.
  runtimeNs @7 :UInt64;
  virtualRuntimeNs @8 :UInt64;
  waitsFor @9 :Text;
  switches @10 :UInt64;
  preemptions @11 :UInt64;
  migrations @12 :UInt64;
  runnableNs @13 :UInt64;  # Waited for a CPU.
  throttledNs @14 :UInt64;  # Waited for a refill.
}

struct SystemInfoThreadsResults {
  threads @0 :List(ThreadInfo);
  more @1 :Bool;
}

struct CpuInfo {
  id @0 :UInt32;
  apicId @1 :UInt32;
  idleNs @2 :UInt64;
  busyNs @3 :UInt64;
  interruptNs @4 :UInt64;
  switches @5 :UInt64;
  steals @6 :UInt64;
  queued @7 :UInt32;
  online @8 :Bool;
  interruptOwnedNs @9 :UInt64;  # Of interruptNs, what threads pay for, because it served them.
}

struct SystemInfoCpusResults {
  cpus @0 :List(CpuInfo);
  more @1 :Bool;
}

struct Counter {
  name @0 :Text;
  value @1 :UInt64;
}

struct SystemInfoCountersResults {
  counters @0 :List(Counter);
  more @1 :Bool;
}

struct ContextListing {
  info @0 :SchedulingContextInfo;
  pid @1 :UInt32;        # Of the thread that it is bound to; 0: none.
  tid @2 :UInt32;
  lentToPid @3 :UInt32;  # Of the thread that has it on loan; 0: none.
  lentToTid @4 :UInt32;
}

struct SystemInfoContextsResults {
  contexts @0 :List(ContextListing);
  more @1 :Bool;
}

struct SystemInfoFailAllocationParams {
  after @0 :UInt64;  # The how many'th allocation for the calling process, from now on, fails, once; 0: none.
}

struct SystemInfoFailAllocationResults {
  seen @0 :UInt64;   # Allocations since the last time this was asked.
  failed @1 :Bool;   # One of them did.
}

# Factory

struct FactoryCreateMemoryObjectParams {
  bytes @0 :UInt64;
}

struct FactoryCreateSessionParams {
  name @0 :Text;
  guest @1 :Bool;  # It may not use the memory that is kept for the operator.
  limits @2 :List(UInt64);  # Of its quotas, in their order; what is left out, or 0, is as much as a session gets by itself. Never more than that.
}

# Power

struct PowerOffParams {
  status @0 :UInt8;
}

# BootManifest

struct BootManifestReadParams {
  offset @0 :UInt64;
}

struct BootManifestReadResults {
  bytes @0 :Data;
  total @1 :UInt64;
}

# SchedulingPolicy

struct SchedulingPolicySetWeightParams {
  weight @0 :UInt32;
}

struct SchedulingPolicySetLatencyClassParams {
  class @0 :UInt16;  # 0 interactive, 1 normal, 2 batch, 3 IPC server.
}

struct SchedulingPolicySnapshotResults {
  weight @0 :UInt32;
  class @1 :UInt16;
  runtimeNs @2 :UInt64;              # On CPUs.
  virtualRuntimeNs @3 :UInt64;       # The same, divided by weight.
  voluntaryBlocks @4 :UInt64;        # It waited for something.
  preemptions @5 :UInt64;            # It could have gone on.
  runnableAccumulatedNs @6 :UInt64;  # It waited for a CPU.
  migrations @7 :UInt64;             # It changed CPU.
  throttles @8 :UInt64;              # It ran out of budget.
}

# SchedulingContext

enum OverrunPolicy {
  throttle @0;  # Wait for the next refill.
  fault @1;     # Stop, and tell the timeout endpoint.
  demote @2;    # Go on at the thread's weight until the next refill.
}

struct SchedulingContextSpec {
  budgetNs @0 :UInt64;            # So much CPU time
  periodNs @1 :UInt64;            # in every period,
  relativeDeadlineNs @2 :UInt64;  # within this time of becoming usable; 0: the period.
  cpuMask @3 :Data;
  # CPU n is bit n % 8 of byte n / 8. Empty: no CPU, which is refused for a context that is to run. The last byte is not zero.
  overrunPolicy @4 :OverrunPolicy;
  criticality @5 :UInt8;          # 0 to 7: higher ones run first.
  timeoutEndpoint @6 :UInt32;     # The caller's capability; 0: none. Must be there with `fault`, and only then.
  maxRefills @7 :UInt8;           # Pieces that the budget may be split into, 2 to 8; 0: as many as there can be.
}

enum DispatchEffect {
  infoOnlyNoDispatchChange @0;  # Nobody's running depends on it.
  budgetEnforced @1;            # A thread runs on it, and no longer than it says.
}

struct SchedulingContextInfo {
  contextId @0 :UInt64;
  generation @1 :UInt64;
  spec @2 :SchedulingContextSpec;   # Without its endpoint.
  home @3 :UInt32;                  # The CPU that promised the time.
  remainingNs @4 :UInt64;           # Usable now.
  nextRefillNs @5 :UInt64;          # When more is, or was, usable; on Timer's clock.
  consumedNs @6 :UInt64;            # Since it was made.
  depletions @7 :UInt64;            # How often it ran dry.
  overrunMaxNs @8 :UInt64;          # By how much it was overdrawn at the most.
  lentDepth @9 :UInt32;             # Calls that it is lent along.
  dispatchEffect @10 :DispatchEffect;
}

struct SchedulingContextInfoResults {
  result @0 :OperationResult;
  info @1 :SchedulingContextInfo;  # Stale or revoked: the identity, and no budget.
}

struct SchedulingContextCreateParams {
  spec @0 :SchedulingContextSpec;
}

struct SchedulingContextCreateResults {
  # With the completion comes the new context, if the result is ok.
  result @0 :OperationResult;
  contextId @1 :UInt64;
  generation @2 :UInt64;
  freePpm @3 :UInt64;    # Of the CPU that has most left; with resourceExhausted.
  witness @4 :AdmissionWitness;  # With resourceExhausted.
}

enum AdmissionReason {
  none @0;
  utilisation @1;    # All promises together would be more than a CPU can give.
  demand @2;         # Somebody in the band of the newcomer would be late.
  lowerBandLate @3;  # Somebody in a lower band would be.
  noHome @4;         # No CPU of several takes it; the rest says why the roomiest does not.
  analysisLimit @5;  # The test would take too long.
  busyLeaving @6;    # There is room when what others used before they left has come back.
}

struct AdmissionWitness {
  # Why a CPU cannot keep a promise: within a stretch of `stretchNs`, `demandNs` are due in `band`, and `supplyNs` can be had.
  reason @0 :AdmissionReason;
  cpu @1 :UInt32;
  band @2 :UInt8;
  stretchNs @3 :UInt64;
  demandNs @4 :UInt64;
  supplyNs @5 :UInt64;
  largestContextId @6 :UInt64;  # The context that contributes most; 0: the one that was asked for.
  freePpm @7 :UInt64;           # What is left of the CPU.
  untilNs @8 :UInt64;           # busyLeaving: when there is room, on Timer's clock.
}

struct SchedulingContextBindParams {
  contextOnly @0 :Bool;  # The thread stops, rather than runs at its weight, whenever it has no context.
  thread @1 :UInt32;     # bindThread: the caller's ThreadHandle.
}

struct SchedulingContextResult {
  result @0 :OperationResult;
  dispatchEffect @1 :DispatchEffect;
}

struct SchedulingContextReconfigureParams {
  spec @0 :SchedulingContextSpec;
}

struct SchedulingContextReconfigureResults {
  result @0 :OperationResult;
  dispatchEffect @1 :DispatchEffect;
  witness @2 :AdmissionWitness;  # With resourceExhausted.
}

enum NotificationKind {
  none @0;
  budgetDepleted @1;
  deadlineOrTimeout @2;
  explicitRevoke @3;
}

struct Notification {
  kind @0 :NotificationKind;
  contextId @1 :UInt64;
  generation @2 :UInt64;
  sequence @3 :UInt64;     # Of all events of this kind; stays at its end.
  coalesced @4 :UInt64;    # Events since the last drain; stays at its end.
  holderPid @5 :UInt32;    # Who ran on it.
  holderTid @6 :UInt32;
  remainingNs @7 :UInt64;
  nextNs @8 :UInt64;       # The next refill, or the deadline that passed.
  donated @9 :Bool;        # The holder had it on loan.
}

struct SchedulingContextNotificationsResults {
  result @0 :OperationResult;
  cells @1 :List(Notification);  # Those with something in them.
}

struct SchedulingContextConsumedResults {
  result @0 :OperationResult;
  totalNs @1 :UInt64;
  sinceLastNs @2 :UInt64;  # Since somebody asked last.
}
