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
}

struct ListParams {
  # For methods that give a long list in pieces.
  start @0 :UInt32;  # How many entries to leave out: 0 at first, then as many as have been read.
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

# Factory

struct FactoryCreateMemoryObjectParams {
  bytes @0 :UInt64;
}

struct FactoryCreateSessionParams {
  name @0 :Text;
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
