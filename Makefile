# The entry points of capOS. `make help` lists them; each line there is a `## text` beside its target here.

# Sizes: small by default, so that the same command serves a quick look and a long soak.
SEEDS ?= 200
REPS ?= 5
SECONDS ?= 30
# What is empty here is left to the command: the kernel has 4 CPUs, a simulation those of the scenario; groups and targets are all.
CPUS ?=
ICOUNT ?=
MEM ?=
TRACE ?=
POLICY ?=
SCENARIO ?=
SEED ?=
GROUPS ?=
TARGET ?=
ARGS ?=
MANIFEST ?=
PREFIX ?= /usr/local
DESTDIR ?=

# A misspelt variable would silently mean its default.
# Instructions that are counted are 1 ns each, and 2^n ns where a person waits.
run: SHIFT = 4
KNOWN = SEEDS REPS SECONDS CPUS ICOUNT MEM TRACE POLICY SCENARIO SEED GROUPS TARGET ARGS MANIFEST PREFIX DESTDIR
$(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(if $(filter $(name),$(KNOWN)),,\
  $(error no variable `$(name)' here; there are: $(KNOWN)))))

ifneq ($(filter-out wfq eevdf,$(POLICY)),)
  $(error POLICY is wfq or eevdf, not `$(POLICY)')
endif

ifneq ($(filter-out 0 1,$(ICOUNT)),)
  $(error ICOUNT is 1 or 0, not `$(ICOUNT)'; other speeds: ARGS='--icount 2')
endif

# Built first with cargo's own progress shown, then run without it.
SIM = cargo build --release --locked -p sim && cargo run --release --quiet --locked -p sim --
BENCH = cargo build --release --locked -p bench && cargo run --release --quiet --locked -p bench
CAPOS = cargo build --locked -p capos && cargo run --quiet --locked -p capos --
# The machine that the kernel boots on.
MACHINE = $(if $(CPUS),--cpus '$(CPUS)') $(if $(filter-out 0,$(ICOUNT)),--icount $(SHIFT)) $(if $(MEM),--mem $(MEM)) \
  $(if $(TRACE),--trace '$(TRACE)') $(if $(POLICY),--append 'policy=$(POLICY)')
# The recipe of each target `run-<proof>`.
PROOF = $(CAPOS) proof $(@:run-%=%) $(MACHINE) $(ARGS)
# Where lateness is measured on several CPUs that count instructions, these take short turns (docs/testing.md).
TURNS = $(if $(filter-out 0,$(ICOUNT)),--append turns=5)
# Where CPUs wait for each other's locks all the time, each wait takes a turn.
SHORT_TURNS = $(if $(filter-out 0,$(ICOUNT)),--append turns=1)

.DEFAULT_GOAL := help
.PHONY: help run tour test setup setup-rust setup-test setup-wasm setup-bench setup-peers setup-fuzz setup-qemu setup-iso setup-linux setup-gdb \
  clean check debug gdb-test janus guests run-tenants install asan replay iso iso-test terminal-test picture kernel-test path-test linux-test bench-kernel bench-linux \
  run-smoke run-spawn run-measure run-thread-lifecycle run-timer-smoke run-timer-flood run-timer-storm run-interrupt-storm run-deadline-misses run-budget-theft run-ipc run-park run-ring-flood run-stale-consumer \
  run-tlb-stress run-fuzz run-fuzz-long run-siege run-kill-storm run-oom run-alloc-fail run-session-quota run-spawn-cycles run-stale-completion \
  run-faults run-clock run-latency run-latency-crowd run-policy run-dispatch \
  run-thread-fairness run-thread-fairness-interactive run-thread-fairness-weight-change run-smp-fairness run-thread-scale run-smp-process-scale \
  run-scheduling-context run-session-context run-donation-stress run-context-races run-life-races run-context-accuracy run-context-order run-mcs \
  run-smp-workloads run-fair-hogs run-fair-ipc run-fair-wake-storm run-fair-fork-storm run-fair-crowd \
  sim sim-compare sim-smp sim-fuzz sim-replay golden golden-bless report plots \
  bench-sched bench-sim bench-runtime bench-io bench-guest fuzz wasmtime-test fmt lint tidy doc

##@ Start here

# A misspelt target.
.DEFAULT:
	@echo "make: no target \`$@' here; \`make help' lists them" >&2; exit 2

help: ## this list
	@awk -F ':.*## ' ' \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' Makefile
	@printf '\nVariables (make TARGET NAME=value)\n'
	@printf '  %-15s %s\n' \
	  'SEEDS=$(SEEDS)' 'how many random workloads sim-fuzz and test try' \
	  'REPS=$(REPS)' 'how many repetitions a benchmark takes the median of' \
	  'SECONDS=$(SECONDS)' 'how long fuzz spends on each target, and how long run-siege lasts' \
	  'CPUS=n' 'CPUs of the machine that boots the kernel (default: 4; a proof takes several: 1,2,4), or of sim' \
	  'ICOUNT=1' 'count instructions instead of time: the same run again is the same' \
	  'MEM=n' 'memory of the machine that boots the kernel, in MiB (default: 256)' \
	  'TRACE=file' 'save the scheduling trace of the machine that boots the kernel: .pftrace, .json or .dump; what replay checks' \
	  'POLICY=name' 'the ordering policy of the kernel (default: wfq) or of sim (as the scenario says): wfq or eevdf' \
	  'SCENARIO=path' 'what sim, sim-compare and report play (sim/scenarios/*.scn)' \
	  'SEED=n' 'the failing seed that sim-replay plays again, or the one that orders the attacks of run-siege' \
	  'GROUPS="a b"' 'the groups that test runs (default: all)' \
	  'TARGET=name' 'the fuzz target (default: all)' \
	  'MANIFEST=name' 'what debug boots: manifests/NAME.toml (default: tour)' \
	  'PREFIX=dir' 'where install puts things (default: $(PREFIX))' \
	  'DESTDIR=dir' 'a root in front of PREFIX, for packagers' \
	  'ARGS=...' 'further arguments, as they are'

run: setup-qemu ## boot the kernel in QEMU: a short tour, then a shell; without a terminal the tour alone (CPUS, ICOUNT, MEM, POLICY, TRACE)
	@if [ -t 0 ] && [ -t 1 ]; then $(CAPOS) run --manifest default --interactive $(MACHINE) $(ARGS); \
	  else $(CAPOS) run --manifest tour $(MACHINE) $(ARGS); fi

tour: setup-rust ## play the tour of the simulator (pauses for Enter on a terminal, else plays and ends)
	@$(SIM) tour $(ARGS)

janus: setup-rust ## play the examples of the runtime, one after the other
	@cargo build --release --locked -p janus --examples
	@for name in hello budget replay pipeline hog overflow trace supervisor "graceful -- once"; do \
	  printf '\n--- %s (janus/examples/%s.rs)\n' $$name $$name; \
	  cargo run --release --quiet --locked -p janus --example $$name || exit 1; done

guests: setup-wasm ## build the guests written in C and Rust into target/guests, for `janus run` (docs/janus-guests.md)
	@janus/guest/guests/build.sh target/guests && ls target/guests/*.wasm

run-tenants: setup-wasm ## an HTTP server with handlers that nobody trusts, under attack beside well-behaved ones (ARGS=--short)
	@janus/guest/guests/build.sh target/guests
	@cargo build --release --locked -p janus-tenants
	@cargo run --release --quiet --locked -p janus-tenants -- proof janus/tenants/tenants.conf --modules target/guests $(ARGS)

install: setup-rust ## install the C library of the runtime: headers, static and shared, pkg-config (PREFIX, DESTDIR)
	@janus/capi/install.sh '$(PREFIX)' '$(DESTDIR)'

check: setup-qemu ## the inner loop, under two minutes once built: format, lints, tidy, fast tests of the host, one boot
	@tools/check.sh

test: setup-test ## run every test group; ends with `N passed, M failed`
	@SEEDS='$(SEEDS)' tools/test.sh $(GROUPS)

setup: setup-test setup-bench ## install what the commands below need and is missing

setup-rust:
	@tools/setup.sh rust

setup-test:
	@tools/setup.sh rust python c wasm iso linux qemu10 gdb

setup-wasm:
	@tools/setup.sh rust wasm

setup-qemu:
	@tools/setup.sh rust qemu

setup-gdb:
	@tools/setup.sh rust qemu gdb

setup-iso:
	@tools/setup.sh rust iso

setup-linux:
	@tools/setup.sh rust qemu linux

setup-bench:
	@tools/setup.sh rust valgrind

setup-peers:
	@tools/setup.sh rust valgrind peers

setup-fuzz:
	@tools/setup.sh rust fuzz

##@ The kernel's proofs: each boots it and ends with `proof <name>: ok` or `FAILED` (CPUS, ICOUNT, MEM, POLICY, TRACE)

run-smoke: setup-qemu ## the ground: system calls, ring, clock, threads, preemption, calls
	@$(PROOF)

run-spawn: setup-qemu ## processes: start, arguments, grants, exit codes, waiting, killing
	@$(PROOF)

run-measure: setup-qemu ## what system calls, switches, calls and threads cost, and how much memory they take
	@$(PROOF)

run-thread-lifecycle: setup-qemu ## threads: start, join, detach, exit, in every order
	@$(PROOF)

run-dispatch: setup-qemu ## instructions of a switch: beside 2 to 500 threads (CPUS=1), on one CPU and on all at once (CPUS=16)
	@$(PROOF)

run-policy: setup-qemu ## weights and latency classes: bad ones, inherited ones, and who may choose
	@$(PROOF)

run-timer-smoke: setup-qemu ## sleeps and timeouts last as long as they should
	@$(PROOF)

run-timer-flood: setup-qemu ## very many timers at once
	@$(PROOF)

run-timer-storm: setup-qemu ## storms of sleeps beside a neighbour that was promised its time
	@$(PROOF)

run-interrupt-storm: ICOUNT = 1
run-interrupt-storm: SHIFT = 3
run-interrupt-storm: setup-qemu ## refills, observers, faults and requests of other CPUs beside a neighbour that was promised its time
	@$(PROOF) $(TURNS)

run-budget-theft: ICOUNT = 1
run-budget-theft: SHIFT = 3
run-budget-theft: setup-qemu ## contexts that go and come again beside a neighbour that was promised its time
	@$(PROOF)

run-deadline-misses: setup-qemu ## a kernel that promises too much says so when a deadline passes
	@$(PROOF) --append overload

run-ipc: setup-qemu ## endpoints: calls, replies, badges, passed capabilities, servers that die
	@$(PROOF)

run-park: setup-qemu ## park and unpark: no lost wake-up, no stale one
	@$(PROOF)

run-stale-consumer: setup-qemu ## rings whose lease ends in the middle: nothing more is taken
	@$(PROOF) --append endlease

run-ring-flood: setup-qemu ## full rings: nothing is lost, nothing overflows
	@$(PROOF)

run-tlb-stress: setup-qemu ## memory that is unmapped on one CPU is gone on all
	@$(PROOF)

run-latency: ICOUNT = 1
run-latency: setup-qemu ## long operations, mass deaths and listings keep nobody else from the CPU
	@$(PROOF) $(TURNS)

run-latency-crowd: ICOUNT = 1
run-latency-crowd: setup-qemu ## the same with 10,010 threads; needs 512 MiB
	@$(PROOF) $(TURNS) $(if $(findstring --mem,$(MACHINE)),,--mem 512) $(if $(findstring --cpus,$(MACHINE)),,--cpus 1)

run-fuzz: setup-qemu ## random entries, pointers and capabilities beside a victim that must not notice
	@$(PROOF)

run-fuzz-long: setup-qemu ## the same with ten million entries; takes minutes
	@$(PROOF) $(if $(findstring --timeout,$(ARGS)),,--timeout 3600)

run-siege: setup-qemu ## every known attack, mixed by a seed, beside those who were promised something (SECONDS, SEED, CPUS, ICOUNT=1 judges shares, too)
	@$(PROOF) $(SHORT_TURNS) --args '$(SECONDS) $(or $(SEED),1)' $(if $(findstring --timeout,$(ARGS)),,--timeout $(shell expr $(SECONDS) '*' 20 + 300))

run-kill-storm: setup-qemu ## processes killed in the middle of everything
	@$(PROOF)

run-oom: setup-qemu ## memory runs out, and comes back
	@$(PROOF)

run-alloc-fail: setup-qemu ## every allocation of the kernel is refused in turn
	@$(PROOF) --append allocfail

run-session-quota: setup-qemu ## sessions are bounded, and can always be ended
	@$(PROOF)

run-spawn-cycles: setup-qemu ## 1,000 processes come and go, and not one frame is missing
	@$(PROOF)

run-stale-completion: setup-qemu ## what an ended thread waited for does not reach the thread that has its number now
	@$(PROOF)

run-faults: setup-qemu ## a fault in a program ends that program and nobody else
	@$(PROOF)

run-clock: setup-qemu ## the clock: monotonic, the same on all CPUs, as fast as it should be
	@$(PROOF)

##@ The proofs of scheduling contexts (CPUS; by counted instructions, which is what makes budgets exact)

run-scheduling-context: ICOUNT = 1
run-scheduling-context: setup-qemu ## budgets, overruns, loans along calls, revocation, notifications: prints a marker for each
	@$(PROOF)

run-session-context: ICOUNT = 1
run-session-context: setup-qemu ## what a logout does to contexts, bound and lent
	@$(PROOF)

run-context-accuracy: setup-qemu ## 10 ms in 100 ms beside 40 hogs, 60 beside four: to the percent, over 10 s of guest time
	@$(PROOF)

run-context-order: ICOUNT = 1
run-context-order: setup-qemu ## scenarios of the simulator, played by threads: the same order of runs (CPUS=1: sixteen; 2: three)
	@$(PROOF)

run-donation-stress: setup-qemu ## 10,000 loans across CPUs beside revocations and kills (by time, or with ICOUNT=1)
	@$(PROOF)

run-context-races: setup-qemu ## every operation on contexts against every other, on all CPUs, by processes that are killed (ARGS="--args 10000 --timeout 7200" is a soak)
	@$(PROOF)

run-life-races: setup-qemu ## ends of threads against binds and kills (ARGS="--release": of the kernel without assertions)
	@$(PROOF)

run-mcs: ICOUNT = 1
run-mcs: setup-qemu ## the behaviours that seL4's tests of its MCS kernel ask for, one named test a line
	@$(PROOF)

##@ The proofs of fair scheduling: on the machines of tools/capos/suite.txt, beside the simulator's shares (POLICY)

run-thread-fairness: setup-qemu ## weights 2:1 share a CPU 2:1, over 10 s of guest time; what the kernel counts adds up (POLICY)
	@$(PROOF)

run-thread-fairness-interactive: setup-qemu ## a short sleeper beside hogs runs within a quantum, sooner as interactive than as batch
	@$(PROOF)

run-thread-fairness-weight-change: setup-qemu ## a change of weight takes effect when the thread is queued next
	@$(PROOF)

run-smp-fairness: setup-qemu ## three equal hogs on two CPUs, five on four, 2:1:1 on two
	@$(PROOF)

run-thread-scale: setup-qemu ## one piece of work on 1, 2 and 4 threads, beside a bare loop: by time a report, with ICOUNT=1 asserted
	@$(PROOF)

run-smp-process-scale: setup-qemu ## the same work by 1, 2 and 4 processes (ICOUNT)
	@$(PROOF)

run-smp-workloads: setup-qemu ## six shapes of parallel work on the CPUs that there are, as a table (CPUS, ICOUNT)
	@$(PROOF)

run-fair-hogs: setup-qemu ## hogs against short sleepers, and a sleeper of a minute
	@$(PROOF)

run-fair-ipc: setup-qemu ## callers and servers beside hogs
	@$(PROOF)

run-fair-wake-storm: setup-qemu ## dozens of threads woken at one instant
	@$(PROOF)

run-fair-fork-storm: setup-qemu ## a thousand new threads beside a hog
	@$(PROOF)

run-fair-crowd: setup-qemu ## 16 CPUs: fewer threads than CPUs, and many more
	@$(PROOF)

##@ Tests

path-test: setup-rust ## kernel and a program, built at another path too: the same to the byte
	@$(CAPOS) path-test

kernel-test: setup-iso ## the proofs, the boot options and the planted bugs, on several machines (ARGS='smoke ipc' for some)
	@$(CAPOS) suite $(ARGS)

replay: setup-rust ## check a trace that the kernel wrote: the scheduling core decides the same again (TRACE=file.dump)
	@test -n '$(TRACE)' || { echo 'replay: which trace? make replay TRACE=file.dump' >&2; exit 2; }
	@$(CAPOS) replay '$(basename $(TRACE)).dump'

terminal-test: setup-qemu ## drive the shell over the serial line, key by key
	@$(CAPOS) terminal-test $(ARGS)

gdb-test: setup-gdb ## stop a machine whose threads, contexts and queues are known, and compare what the commands of gdb say
	@$(CAPOS) gdb-test $(ARGS)

picture: setup-qemu ## draw the terminal pictures of the README anew, from a real run, into docs/plots
	@$(CAPOS) terminal-test --draw tools/capos/scripts/picture.txt

linux-test: setup-linux ## boot the Linux that bench-linux measures, and look whether it prints every row
	@$(CAPOS) linux-test

iso: setup-iso ## a disc that boots the kernel by BIOS and by UEFI, under target/
	@$(CAPOS) iso $(ARGS)

iso-test: setup-iso ## boot that disc by BIOS and by UEFI, until the smoke proof holds
	@$(CAPOS) iso-test $(ARGS)

golden: setup-rust ## compare every scenario with its golden timeline
	@$(SIM) golden --check $(ARGS)

golden-bless: setup-rust ## write the golden timelines anew (then read the difference)
	@$(SIM) golden --bless $(ARGS)

sim-fuzz: setup-rust ## random workloads with injected faults, invariants checked at every step (SEEDS)
	@$(SIM) fuzz --seeds $(SEEDS) $(ARGS)

sim-replay: setup-rust ## play one failing seed again, and write its scenario and report (SEED)
	@test -n '$(SEED)' || { echo 'sim-replay: which seed? make sim-replay SEED=n' >&2; exit 2; }
	@$(SIM) replay --seed $(SEED) $(ARGS)

fuzz: setup-fuzz ## coverage-guided fuzzing of the core (TARGET, SECONDS)
	@tools/fuzz.sh $(SECONDS) $(TARGET)

wasmtime-test: setup-wasm ## the guests' tests on wasmtime, the second engine, in a folder of its own; the first build takes minutes
	@CARGO_TARGET_DIR=target/wasmtime cargo test --locked -p janus-guest --features wasmtime $(ARGS)

asan: setup-rust ## the runtime's suites under AddressSanitizer (nightly)
	@tools/asan.sh

##@ Simulator

sim: setup-rust ## play a scenario: table and verdicts; ARGS=--help lists what else (SCENARIO, POLICY, CPUS, ARGS)
	@test -n '$(SCENARIO)' || { echo 'sim: which scenario? make sim SCENARIO=path, one of:' >&2; \
	  ls sim/scenarios/*.scn >&2; exit 2; }
	@$(SIM) run '$(SCENARIO)' $(if $(POLICY),--policy $(POLICY)) $(if $(CPUS),--cpus $(CPUS)) $(ARGS)

sim-compare: setup-rust ## play a scenario, or all, under both policies side by side (SCENARIO, CPUS)
	@$(SIM) compare $(if $(SCENARIO),'$(SCENARIO)') $(if $(CPUS),--cpus $(CPUS)) $(ARGS)

sim-smp: setup-rust ## the SMP matrix: six workloads on 1 to 64 CPUs, table and plot (CPUS, POLICY)
	@$(SIM) smp $(if $(POLICY),--policy $(POLICY)) $(if $(CPUS),--cpus $(CPUS)) $(ARGS)

plots: setup-rust ## draw the pictures of the docs anew, into docs/plots
	@for name in heavy-and-light classes short-sleeper; do $(SIM) compare $$name --out target/plots >/dev/null || exit 1; done
	@$(SIM) run three-on-two --svg target/plots/three-on-two.svg --until 120ms >/dev/null
	@$(SIM) run budget --svg target/plots/budget.svg >/dev/null
	@$(SIM) smp >/dev/null && cp target/sim/smp-wfq.svg target/plots/
	@for picture in $(filter-out %/tour.svg %/top.svg,$(wildcard docs/plots/*.svg)); do cp target/plots/$${picture##*/} docs/plots/ || exit 1; done
	@ls docs/plots

report: setup-rust ## one HTML page with a timeline to look at, under target/ (SCENARIO, POLICY, CPUS)
	@$(SIM) report $(if $(SCENARIO),'$(SCENARIO)') $(if $(POLICY),--policy $(POLICY)) $(if $(CPUS),--cpus $(CPUS)) $(ARGS)

##@ Benchmarks

bench-sched: setup-bench ## wake+pick+requeue beside BTreeSet and BinaryHeap: ns and instructions (REPS)
	@$(BENCH) --bin bench-sched -- --reps $(REPS) $(ARGS)

bench-sim: setup-rust ## events a second and peak memory of the simulator at 256 CPUs, 100,000 threads (REPS)
	@$(BENCH) --bin bench-sim -- --reps $(REPS) $(ARGS)

bench-runtime: setup-peers ## our runtime beside tokio, async-executor, may, Go, Boost.Fiber, rayon, ... (REPS, ARGS='--only yield')
	@$(BENCH) --bin bench-runtime -- --reps $(REPS) $(ARGS)

bench-io: setup-peers ## an echo and an HTTP server beside tokio/hyper and Go: requests a second, p50, p99, with and without a hog (REPS, ARGS)
	@$(BENCH) --bin bench-io -- --reps $(REPS) $(ARGS)

bench-guest: setup-bench ## what it costs to charge a guest, beside the engine's own metering: instructions (ARGS)
	@$(BENCH) --bin bench-guest -- --reps $(REPS) $(ARGS)

bench-kernel: setup-qemu ## what the kernel's operations cost, in instructions, beside Linux (ARGS)
	@$(CAPOS) bench $(ARGS)

bench-linux: setup-linux ## the same rows on capOS and on Linux in the same emulator, one table; takes minutes (REPS, ARGS)
	@$(CAPOS) linux --reps $(REPS) $(ARGS)

##@ Development

debug: setup-gdb ## boot a kernel with types and look into it with gdb: `capos help` there lists threads, contexts, queues (MANIFEST, CPUS, ICOUNT, MEM, ARGS)
	@$(CAPOS) debug $(if $(MANIFEST),--manifest '$(MANIFEST)') $(MACHINE) $(ARGS)

fmt: setup-rust ## format the sources
	cargo fmt --all
	rustfmt --edition 2024 tools/no-std/proof.rs

lint: setup-rust ## clippy with warnings as errors, and shellcheck where it is installed
	cargo clippy --all-targets --locked -- -D warnings
	@$(CAPOS) lint
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run $$(git ls-files '*.sh'); \
	  else echo 'lint: shellcheck is not installed, scripts not checked'; fi

tidy: setup-rust ## docs name things that exist, no dead files, no over-long functions, ...
	@cargo run --quiet --locked -p tidy

doc: setup-rust ## the API pages, under target/doc
	@tools/doc.sh

clean: ## remove everything that was built
	cargo clean
