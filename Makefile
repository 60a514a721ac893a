# The entry points of capOS. `make help` lists them; each line there is a `## text` beside its target here.

# Sizes: small by default, so that the same command serves a quick look and a long soak.
SEEDS ?= 200
REPS ?= 5
SECONDS ?= 30
# What is empty here is left to the command: the kernel has 4 CPUs, a simulation those of the scenario; groups and targets are all.
CPUS ?=
ICOUNT ?=
MEM ?=
POLICY ?=
SCENARIO ?=
SEED ?=
GROUPS ?=
TARGET ?=
ARGS ?=
PREFIX ?= /usr/local
DESTDIR ?=

# A misspelt variable would silently mean its default.
KNOWN = SEEDS REPS SECONDS CPUS ICOUNT MEM POLICY SCENARIO SEED GROUPS TARGET ARGS PREFIX DESTDIR
$(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(if $(filter $(name),$(KNOWN)),,\
  $(error no variable `$(name)' here; there are: $(KNOWN)))))

# Built first with cargo's own progress shown, then run without it.
SIM = cargo build --release --locked -p sim && cargo run --release --quiet --locked -p sim --
BENCH = cargo build --release --locked -p bench && cargo run --release --quiet --locked -p bench
CAPOS = cargo build --locked -p capos && cargo run --quiet --locked -p capos --
# The machine that the kernel boots on.
MACHINE = $(if $(CPUS),--cpus $(CPUS)) $(if $(filter-out 0,$(ICOUNT)),--icount) $(if $(MEM),--mem $(MEM))
# The recipe of each target `run-<proof>`.
PROOF = $(CAPOS) proof $(@:run-%=%) $(MACHINE) $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help run tour test setup setup-rust setup-test setup-bench setup-peers setup-fuzz setup-qemu setup-iso \
  clean janus install asan iso iso-test terminal-test kernel-test bench-kernel \
  run-smoke run-spawn run-measure run-thread-lifecycle run-timer-smoke run-timer-flood run-ipc run-park run-ring-flood \
  run-tlb-stress run-fuzz run-fuzz-long run-kill-storm run-oom run-spawn-cycles run-stale-completion run-faults run-clock \
  sim sim-compare sim-smp sim-fuzz sim-replay golden golden-bless report plots \
  bench-sched bench-sim bench-runtime fuzz fmt lint tidy doc

##@ Start here

help: ## this list
	@awk -F ':.*## ' ' \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' Makefile
	@printf '\nVariables (make TARGET NAME=value)\n'
	@printf '  %-15s %s\n' \
	  'SEEDS=$(SEEDS)' 'how many random workloads sim-fuzz and test try' \
	  'REPS=$(REPS)' 'how many repetitions a benchmark takes the median of' \
	  'SECONDS=$(SECONDS)' 'how long fuzz spends on each target' \
	  'CPUS=n' 'CPUs of the machine that boots the kernel (default: 4; a proof takes several: 1,2,4), or of sim' \
	  'ICOUNT=1' 'count instructions instead of time: the same run again is the same' \
	  'MEM=n' 'memory of the machine that boots the kernel, in MiB (default: 256)' \
	  'POLICY=name' 'the ordering policy of sim: wfq or eevdf (default: as the scenario says)' \
	  'SCENARIO=path' 'what sim, sim-compare and report play (sim/scenarios/*.scn)' \
	  'SEED=n' 'the failing seed that sim-replay plays again' \
	  'GROUPS="a b"' 'the groups that test runs (default: all)' \
	  'TARGET=name' 'the fuzz target (default: all)' \
	  'PREFIX=dir' 'where install puts things (default: $(PREFIX))' \
	  'DESTDIR=dir' 'a root in front of PREFIX, for packagers' \
	  'ARGS=...' 'further arguments, as they are'

run: setup-qemu ## boot the kernel in QEMU: a short tour, then a shell; without a terminal the tour alone (CPUS, ICOUNT, MEM)
	@if [ -t 0 ] && [ -t 1 ]; then $(CAPOS) run --manifest default --interactive $(MACHINE) $(ARGS); \
	  else $(CAPOS) run --manifest tour $(MACHINE) $(ARGS); fi

tour: setup-rust ## play the tour of the simulator (pauses for Enter on a terminal, else plays and ends)
	@$(SIM) tour $(ARGS)

janus: setup-rust ## play the examples of the runtime, one after the other
	@cargo build --release --locked -p janus --examples
	@for name in hello budget replay pipeline hog overflow trace; do \
	  printf '\n--- %s (janus/examples/%s.rs)\n' $$name $$name; \
	  cargo run --release --quiet --locked -p janus --example $$name || exit 1; done

install: setup-test ## install the C library of the runtime: headers, static and shared, pkg-config (PREFIX, DESTDIR)
	@janus/capi/install.sh '$(PREFIX)' '$(DESTDIR)'

test: setup-test ## run every test group; ends with `N passed, M failed`
	@SEEDS='$(SEEDS)' tools/test.sh $(GROUPS)

setup: setup-test setup-bench ## install what the commands below need and is missing

setup-rust:
	@tools/setup.sh rust

setup-test:
	@tools/setup.sh rust python c iso

setup-qemu:
	@tools/setup.sh rust qemu

setup-iso:
	@tools/setup.sh rust iso

setup-bench:
	@tools/setup.sh rust valgrind

setup-peers:
	@tools/setup.sh rust valgrind peers

setup-fuzz:
	@tools/setup.sh rust fuzz

##@ The kernel's proofs: each boots it and ends with `proof <name>: ok` or `FAILED` (CPUS, ICOUNT, MEM)

run-smoke: setup-qemu ## the ground: system calls, ring, clock, threads, preemption, calls
	@$(PROOF)

run-spawn: setup-qemu ## processes: start, arguments, grants, exit codes, waiting, killing
	@$(PROOF)

run-measure: setup-qemu ## what system calls, switches, calls and threads cost, and how much memory they take
	@$(PROOF)

run-thread-lifecycle: setup-qemu ## threads: start, join, detach, exit, in every order
	@$(PROOF)

run-timer-smoke: setup-qemu ## sleeps and timeouts last as long as they should
	@$(PROOF)

run-timer-flood: setup-qemu ## very many timers at once
	@$(PROOF)

run-ipc: setup-qemu ## endpoints: calls, replies, badges, passed capabilities, servers that die
	@$(PROOF)

run-park: setup-qemu ## park and unpark: no lost wake-up, no stale one
	@$(PROOF)

run-ring-flood: setup-qemu ## full rings: nothing is lost, nothing overflows
	@$(PROOF)

run-tlb-stress: setup-qemu ## memory that is unmapped on one CPU is gone on all
	@$(PROOF)

run-fuzz: setup-qemu ## random entries, pointers and capabilities beside a victim that must not notice
	@$(PROOF)

run-fuzz-long: setup-qemu ## the same with ten million entries; takes minutes
	@$(PROOF) $(if $(findstring --timeout,$(ARGS)),,--timeout 3600)

run-kill-storm: setup-qemu ## processes killed in the middle of everything
	@$(PROOF)

run-oom: setup-qemu ## memory runs out, and comes back
	@$(PROOF)

run-spawn-cycles: setup-qemu ## 1,000 processes come and go, and not one frame is missing
	@$(PROOF)

run-stale-completion: setup-qemu ## what an ended thread waited for does not reach the thread that has its number now
	@$(PROOF)

run-faults: setup-qemu ## a fault in a program ends that program and nobody else
	@$(PROOF)

run-clock: setup-qemu ## the clock: monotonic, the same on all CPUs, as fast as it should be
	@$(PROOF)

##@ Tests

kernel-test: setup-iso ## the proofs, the boot options and the planted bugs, on several machines (ARGS='smoke ipc' for some)
	@$(CAPOS) suite $(ARGS)

terminal-test: setup-qemu ## drive the shell over the serial line, key by key
	@$(CAPOS) terminal-test $(ARGS)

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
	@$(SIM) run three-on-two --svg target/plots/three-on-two.svg --until 400ms >/dev/null
	@$(SIM) run budget --svg target/plots/budget.svg >/dev/null
	@$(SIM) smp >/dev/null && cp target/sim/smp-wfq.svg target/plots/
	@mkdir -p docs/plots && for picture in docs/plots/*.svg; do cp target/plots/$${picture##*/} docs/plots/ || exit 1; done
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

bench-kernel: setup-qemu ## what the kernel's operations cost, in instructions and time, beside Linux (ARGS)
	@$(CAPOS) bench $(ARGS)

##@ Development

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
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked

clean: ## remove everything that was built
	cargo clean
