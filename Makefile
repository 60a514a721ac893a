# The entry points of capOS. `make help` lists them; each line there is a `## text` beside its target here.

# Sizes: small by default, so that the same command serves a quick look and a long soak.
SEEDS ?= 200
REPS ?= 5
SECONDS ?= 30
# What is empty here is left to the command: CPUs and policy are the scenario's own, groups and targets are all.
CPUS ?=
POLICY ?=
SCENARIO ?=
SEED ?=
GROUPS ?=
TARGET ?=
ARGS ?=
PREFIX ?= /usr/local
DESTDIR ?=

# A misspelt variable would silently mean its default.
KNOWN = SEEDS REPS SECONDS CPUS POLICY SCENARIO SEED GROUPS TARGET ARGS PREFIX DESTDIR
$(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(if $(filter $(name),$(KNOWN)),,\
  $(error no variable `$(name)' here; there are: $(KNOWN)))))

# Built first with cargo's own progress shown, then run without it.
SIM = cargo build --release --locked -p sim && cargo run --release --quiet --locked -p sim --
BENCH = cargo build --release --locked -p bench && cargo run --release --quiet --locked -p bench

.DEFAULT_GOAL := help
.PHONY: help run test setup setup-rust setup-test setup-bench setup-peers setup-fuzz clean janus install asan \
  sim sim-compare sim-smp sim-fuzz sim-replay golden golden-bless report plots \
  bench-sched bench-sim bench-runtime fuzz fmt lint tidy doc

##@ Start here

help: ## this list
	@awk -F ':.*## ' ' \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@printf '\nVariables (make TARGET NAME=value)\n'
	@printf '  %-15s %s\n' \
	  'SEEDS=$(SEEDS)' 'how many random workloads sim-fuzz and test try' \
	  'REPS=$(REPS)' 'how many repetitions a benchmark takes the median of' \
	  'SECONDS=$(SECONDS)' 'how long fuzz spends on each target' \
	  'CPUS=n' 'how many CPUs sim and sim-compare simulate (default: as the scenario says)' \
	  'POLICY=name' 'the ordering policy of sim: wfq or eevdf (default: as the scenario says)' \
	  'SCENARIO=path' 'what sim, sim-compare and report play (sim/scenarios/*.scn)' \
	  'SEED=n' 'the failing seed that sim-replay plays again' \
	  'GROUPS="a b"' 'the groups that test runs (default: all)' \
	  'TARGET=name' 'the fuzz target (default: all)' \
	  'PREFIX=dir' 'where install puts things (default: $(PREFIX))' \
	  'DESTDIR=dir' 'a root in front of PREFIX, for packagers' \
	  'ARGS=...' 'further arguments, as they are'

run: setup-rust ## play the tour of the simulator (pauses for Enter on a terminal, else plays and ends)
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
	@tools/setup.sh rust python c

setup-bench:
	@tools/setup.sh rust valgrind

setup-peers:
	@tools/setup.sh rust valgrind peers

setup-fuzz:
	@tools/setup.sh rust fuzz

##@ Tests

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

##@ Development

fmt: setup-rust ## format the sources
	cargo fmt --all
	rustfmt --edition 2024 tools/no-std/proof.rs

lint: setup-rust ## clippy with warnings as errors, and shellcheck where it is installed
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run $$(git ls-files '*.sh'); \
	  else echo 'lint: shellcheck is not installed, scripts not checked'; fi

tidy: setup-rust ## docs name things that exist, no dead files, no over-long functions, ...
	@cargo run --quiet --locked -p tidy

doc: setup-rust ## the API pages, under target/doc
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked

clean: ## remove everything that was built
	cargo clean
