//! What gdb must report about the scene (`programs/src/bin/gdb-scene.rs`), judged by the numbers that the scene itself
//! prints (K-27).

use crate::Problem;

/// The scene's last line.
pub(crate) const STANDS: &str = "scene: stands";
/// What precedes each command in gdb's output.
pub(crate) const MARK: &str = "== ";

/// Commands at the kernel's first function.
pub(crate) const START: [&str; 4] = ["capos threads", "capos contexts", "capos cpus", "capos cpu 0"];

/// Commands on a machine that hangs.
pub(crate) const HANG: [&str; 2] = ["capos cpus", "capos cpu 1"];

/// Commands that damage the machine's data, and then list it.
pub(crate) const DAMAGE: [&str; 8] = [
    "set language rust",
    "set var kernel::dispatch::heads::COUNT.v.value = 200",
    "capos threads",
    "set var kernel::arch::percpu::CPUS[1].p.value = 16 as *mut kernel::arch::percpu::MachineCpu",
    "capos cpus",
    "capos cpu 1",
    "capos bt 199",
    "capos nonsense",
];

/// What the output must not contain: gdb's messages for a failed script.
const FAILURES: [&str; 3] = ["Traceback", "Python Exception", "Error occurred in Python"];

/// The numbers of the scene.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scene {
    main: u32,
    parked: u32,
    asleep: u32,
    caller: u32,
    first: u32,
    second: u32,
    throttled: u32,
    lent: u32,
    spare: u32,
    small: u32,
    pinned: Vec<u32>,
    roaming: Vec<u32>,
}

fn wrong(what: impl Into<String>, answer: &str) -> Problem {
    Problem(format!("{}; gdb said:\n{answer}", what.into()))
}

/// The value of `name=value` or `name=[value, ...]`.
fn values(text: &str, name: &str) -> Result<Vec<u32>, Problem> {
    let missing = || Problem(format!("the scene does not say `{name}`"));
    let start = text.split_once(&format!(" {name}=")).ok_or_else(missing)?.1;
    let (list, is_list) = start.strip_prefix('[').map_or((start, false), |list| (list, true));
    let end = list.find(|c: char| if is_list { c == ']' } else { !c.is_ascii_digit() }).unwrap_or(list.len());
    list[..end].split(", ").map(|word| word.parse().map_err(|_| missing())).collect()
}

impl Scene {
    pub(crate) fn parse(said: &str) -> Result<Scene, Problem> {
        let one = |name: &str| values(said, name).map(|values| values[0]);
        Ok(Scene {
            main: one("main")?,
            parked: one("parked")?,
            asleep: one("asleep")?,
            caller: one("caller")?,
            first: one("first")?,
            second: one("second")?,
            throttled: one("throttled")?,
            lent: one("lent")?,
            spare: one("spare")?,
            small: one("small")?,
            pinned: values(said, "pinned")?,
            roaming: values(said, "roaming")?,
        })
    }

    /// The commands that gdb is given.
    pub(crate) fn commands(&self) -> Vec<String> {
        let plain = ["threads", "contexts", "cpus", "cpu 0", "cpu 1", "cpu 9", "log", "help"];
        let mut commands: Vec<String> = plain.iter().map(|name| format!("capos {name}")).collect();
        commands.push(format!("capos bt {}", self.second));
        commands
    }

    /// Checks gdb's answer.
    pub(crate) fn judge(&self, answer: &str) -> Result<(), Problem> {
        no_failure(answer)?;
        self.judge_threads(answer)?;
        self.judge_contexts(answer)?;
        self.judge_cpus(answer)?;
        let part = |command: &str, wanted: &[&str]| has(answer, command, wanted);
        part("capos cpu 9", &["capos cpu: no CPU 9"])?;
        part("capos log", &[STANDS, "boot: "])?;
        part(
            "capos help",
            &["capos threads", "capos contexts", "capos cpus", "capos cpu", "capos bt", "capos log"],
        )?;
        let backtrace = format!("capos bt {}", self.second);
        part(
            &backtrace,
            &[&format!("thread #{} scene: waiting", self.second), "kernel::dispatch::", "syscall_entry"],
        )
    }

    fn judge_threads(&self, answer: &str) -> Result<(), Problem> {
        let rows = rows(part(answer, "capos threads")?);
        let expect = |tid: u32, state: &str, context: &str, operations: &str| {
            let row = row(&rows, tid).ok_or_else(|| wrong(format!("no thread {tid}"), answer))?;
            let found = [3, 4, 6, 7].map(|at| row[at].as_str());
            let is_somewhere = row[8].starts_with("kernel");
            if found == ["scene", state, context, operations] && row[1] == "1" && is_somewhere {
                Ok(())
            } else {
                Err(wrong(
                    format!("thread {tid} should be `{state}` on context {context}, not {row:?}"),
                    answer,
                ))
            }
        };
        let (lent, small) = (self.lent.to_string(), self.small.to_string());
        let borrowed = format!("{lent} (borrowed)");
        expect(self.main, "waiting", "-", "watch, sleep")?;
        expect(self.asleep, "waiting", "-", "sleep")?;
        expect(self.parked, "waiting", "-", "park")?;
        expect(self.caller, "waiting, lent", &lent, "call")?;
        expect(self.first, "waiting, lent", &borrowed, "call")?;
        expect(self.second, "waiting", &borrowed, "park")?;
        expect(self.throttled, "throttled on CPU 1", &small, "-")?;
        let state = |tid: u32| row(&rows, tid).map_or("absent", |row| row[4].as_str());
        let waits = |tid: &&u32| state(**tid) == "queued on CPU 1 (restricted)";
        let runs = |tid: &&u32| state(**tid) == "running on CPU 1";
        let is_roaming = |tid: &u32| state(*tid) == "running on CPU 0" || state(*tid).ends_with("(open)");
        let (waiting, running) =
            (self.pinned.iter().filter(waits).count(), self.pinned.iter().filter(runs).count());
        if waiting + running != self.pinned.len() || running > 1 || !self.roaming.iter().all(is_roaming) {
            return Err(wrong("who wants a CPU should run or be queued", answer));
        }
        let init = row(&rows, 0).map(|row| [2, 3, 4, 7].map(|at| row[at].as_str()));
        if init != Some(["1", "init", "waiting", "exit"]) {
            return Err(wrong("init should wait for its child's end", answer));
        }
        // The named threads, init, and the thread that prints that the scene stands.
        let all = 9 + self.pinned.len() + self.roaming.len();
        has(answer, "capos threads", &[&format!("{all} threads, 0 free records")])
    }

    fn judge_contexts(&self, answer: &str) -> Result<(), Problem> {
        let rows = rows(part(answer, "capos contexts")?);
        let expect = |id: u32, wanted: [&str; 8]| {
            let row = row(&rows, id).ok_or_else(|| wrong(format!("no context {id}"), answer))?;
            let found = [3, 4, 5, 7, 8, 9, 10, 11].map(|at| row[at].as_str());
            let is_live = row[1] == "1" && row[2] == "live" && row[6] == "0";
            if found == wanted && is_live {
                Ok(())
            } else {
                Err(wrong(format!("context {id} should be {wanted:?}, not {row:?}"), answer))
            }
        };
        let name = |tid: u32| format!("#{tid} scene");
        let (caller, second, throttled) = (name(self.caller), name(self.second), name(self.throttled));
        let chain = format!("#{} > #{} > #{}", self.caller, self.first, self.second);
        let lent = row(&rows, self.lent).map_or("", |row| row[7].as_str());
        let left = row(&rows, self.lent).map_or("", |row| row[4].as_str());
        expect(self.lent, ["5 ms in 50 ms", left, "throttle", lent, &caller, &second, "holder", &chain])?;
        expect(self.spare, ["7 ms in 70 ms", "7 ms", "throttle", "0", "-", "-", "record", "-"])?;
        expect(self.small, ["1 ms in 60 s", "0 ns", "throttle", "1", &throttled, &throttled, "holder", "-"])
    }

    /// CPU 1 runs one of the threads that want it, and the others wait, in ascending order of their tags.
    fn judge_cpus(&self, answer: &str) -> Result<(), Problem> {
        let cpu = part(answer, "capos cpu 1")?;
        let first = cpu.lines().find(|line| line.starts_with("CPU 1: runs #")).unwrap_or_default();
        let number = |text: &str| text.split(' ').next().and_then(|word| word.parse::<u32>().ok());
        let running = first.split_once('#').and_then(|(_, rest)| number(rest));
        let throttled =
            cpu.find("  throttled: 1\n").ok_or_else(|| wrong("one is throttled on CPU 1", answer))?;
        let restricted = cpu.find("  restricted: ").ok_or_else(|| wrong("nobody waits on CPU 1", answer))?;
        let queue = |text: &str| -> Vec<(u32, i64)> {
            let numbered = rows(text).into_iter().filter(|row| row[0].parse::<u32>().is_ok());
            let entry = |row: Vec<String>| Some((number(row[1].strip_prefix('#')?)?, row[3].parse().ok()?));
            numbered.filter_map(entry).collect()
        };
        let waiting = queue(&cpu[restricted..throttled]);
        let mut everyone: Vec<u32> = waiting.iter().map(|(tid, _)| *tid).chain(running).collect();
        everyone.sort_unstable();
        if everyone != self.pinned {
            return Err(wrong(format!("CPU 1 should have {:?}, not {everyone:?}", self.pinned), answer));
        }
        if !waiting.is_sorted_by_key(|(_, tag)| *tag) {
            return Err(wrong("who waits should be in the order of the tags", answer));
        }
        if queue(&cpu[throttled..]).iter().map(|(tid, _)| *tid).ne([self.throttled]) {
            return Err(wrong(format!("thread {} should be throttled on CPU 1", self.throttled), answer));
        }
        let rows = rows(part(answer, "capos cpus")?);
        let lengths = ["0", "0", "0", &waiting.len().to_string(), "1"].map(str::to_owned);
        let is_right = |row: &Vec<String>| {
            row[1] == format!("#{} scene", running.unwrap_or(0))
                && row[2..7] == lengths
                && row[7].ends_with(" s")
        };
        if row(&rows, 0).is_none() || !row(&rows, 1).is_some_and(is_right) {
            return Err(wrong("`capos cpus` should say of CPU 1 what `capos cpu 1` says", answer));
        }
        Ok(())
    }
}

/// At the kernel's first function there is nothing to list.
pub(crate) fn judge_start(answer: &str) -> Result<(), Problem> {
    no_failure(answer)?;
    has(answer, "", &["hit Breakpoint 1", "kernel/src/main.rs"])?;
    has(answer, "capos threads", &["0 threads, 0 free records"])?;
    has(answer, "capos contexts", &["0 contexts, 0 free records"])?;
    has(answer, "capos cpus", &["there is no CPU yet"])?;
    has(answer, "capos cpu 0", &["no CPU 0"])
}

/// The last CPU holds the lock of its queue for ever.
pub(crate) fn judge_hang(answer: &str) -> Result<(), Problem> {
    no_failure(answer)?;
    let locked = "CPU 1 has its queue locked";
    has(answer, "capos cpus", &[locked])?;
    has(answer, "capos cpu 1", &[locked, "locks: Cpu\n"])
}

/// Data that cannot be read must lead to a line that says so, and not to a traceback.
pub(crate) fn judge_damage(answer: &str) -> Result<(), Problem> {
    no_failure(answer)?;
    has(answer, "capos threads", &["unreadable: Cannot access memory at address"])?;
    has(answer, "capos cpus", &["capos cpus: cannot be read: Cannot access memory at address"])?;
    has(answer, "capos cpu 1", &["capos cpu: cannot be read: Cannot access memory at address"])?;
    has(answer, "capos bt 199", &["capos bt: cannot be read: Cannot access memory at address"])?;
    has(answer, "capos nonsense", &["no command `nonsense`"])
}

fn no_failure(answer: &str) -> Result<(), Problem> {
    match FAILURES.iter().find(|words| answer.contains(**words)) {
        Some(words) => Err(wrong(format!("`{words}`"), answer)),
        None => Ok(()),
    }
}

/// The output of one command; for an empty command, the output before the first.
fn part<'a>(answer: &'a str, command: &str) -> Result<&'a str, Problem> {
    let start = if command.is_empty() {
        Some(0)
    } else {
        let mark = format!("{MARK}{command}\n");
        answer.find(&mark).map(|at| at + mark.len())
    };
    let start = start.ok_or_else(|| wrong(format!("`{command}` was not asked"), answer))?;
    let rest = &answer[start..];
    Ok(&rest[..rest.find(MARK).unwrap_or(rest.len())])
}

fn has(answer: &str, command: &str, wanted: &[&str]) -> Result<(), Problem> {
    let part = part(answer, command)?;
    match wanted.iter().find(|text| !part.contains(**text)) {
        Some(text) => Err(wrong(format!("`{command}` does not say `{text}`"), answer)),
        None => Ok(()),
    }
}

/// The rows of a table, whose cells are separated by two or more spaces. All rows are made as long as the longest.
fn rows(text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    };
    let mut rows: Vec<Vec<String>> = text.lines().map(cells).filter(|row| !row.is_empty()).collect();
    let width = rows.iter().map(Vec::len).max().unwrap_or(0).max(12);
    rows.iter_mut().for_each(|row| row.resize(width, String::new()));
    rows
}

/// The row that begins with a number.
fn row(rows: &[Vec<String>], number: u32) -> Option<&Vec<String>> {
    let number = number.to_string();
    rows.iter().find(|row| row[0] == number)
}

#[cfg(test)]
mod tests {
    use kcore::life::{Event, Life, Stage, StopReason};

    use super::*;

    const SAID: &str = "scene: ready main=1 parked=2 asleep=3 caller=6 first=5 second=4 throttled=7\r\n\
        scene: lent=5 spare=6 small=7 pinned=[11, 12] roaming=[8, 9, 10]\r\nscene: stands\r\n";

    #[test]
    fn k_27_the_scene_says_its_numbers() {
        let scene = Scene::parse(SAID).unwrap();
        assert_eq!((scene.caller, scene.throttled, scene.small), (6, 7, 7));
        assert_eq!((scene.pinned, scene.roaming), (vec![11, 12], vec![8, 9, 10]));
        let missing = Scene::parse("scene: ready main=1").unwrap_err().to_string();
        assert!(missing.contains("does not say `parked`"), "{missing}");
    }

    #[test]
    fn k_27_an_answer_is_cut_into_parts_and_rows() {
        let answer = "before\n== capos a\nid  what is it  x\n7   two words   -\n== capos b\nTraceback\n";
        let found = rows(part(answer, "capos a").unwrap());
        assert_eq!(row(&found, 7).unwrap()[..3], ["7", "two words", "-"].map(str::to_owned));
        assert_eq!(part(answer, "").unwrap(), "before\n");
        assert!(part(answer, "capos c").is_err() && no_failure(answer).is_err());
    }

    /// gdb's script has to define bits that are not in the debug information; they must equal the kernel's.
    #[test]
    fn k_27_gdb_knows_the_word_of_a_life() {
        let script = include_str!("../../gdb/capos.py");
        let bit = |name: &str| -> u64 {
            let line =
                script.lines().find(|line| line.trim_start().starts_with(&format!("\"{name}\": 1 << ")));
            let shift =
                line.and_then(|line| line.split("<< ").nth(1)?.trim_end_matches(',').parse::<u32>().ok());
            1 << shift.unwrap_or_else(|| panic!("no bit `{name}` in tools/gdb/capos.py"))
        };
        let after = |life: Life, event: Event| life.after(event).unwrap().0;
        let made = after(Life::UNUSED, Event::Reuse);
        let runs = after(made, Event::Start);
        let changed = |event: Event| runs.word() ^ after(runs, event).word();
        assert_eq!(changed(Event::Kill), bit("ends"));
        assert_eq!(changed(Event::Wake { runnable: true }), bit("woken"));
        assert_eq!(changed(Event::Lend), bit("lent"));
        assert_eq!(changed(Event::RequestBind(None)), bit("bind requested"));
        let stopped = after(runs, Event::Evict(StopReason::FaultReply));
        assert_eq!(stopped.word() & 0xf, Stage::Stopped as u64);
        assert_eq!((stopped.word() ^ runs.word()) & !0xf, bit("awaits fault reply"));
        assert!(script.contains("STAGE_MASK = 0xF\n") && script.contains("GENERATION_SHIFT = 32\n"));
        assert_eq!(
            (runs.word() >> 32, runs.word() & 0xf),
            (u64::from(runs.generation()), Stage::Running as u64)
        );
    }

    /// The same for how much of a thread's record may be unused, by which the script recognises symbols of another
    /// kernel.
    #[test]
    fn k_27_gdb_knows_the_gap_between_records_of_threads() {
        let (script, source) =
            (include_str!("../../gdb/capos.py"), include_str!("../../../kernel/src/process/records.rs"));
        assert!(source.contains("RECORD_BYTES - size_of::<Record>() < 128,"));
        assert!(script.contains("RECORD_GAP_MAX = 128\n"));
    }

    /// The same for the reasons of inter-processor interrupts.
    #[test]
    fn k_27_gdb_knows_why_cpus_interrupt_each_other() {
        let (script, source) =
            (include_str!("../../gdb/capos.py"), include_str!("../../../kernel/src/arch/smp.rs"));
        let names = [
            ("reschedule", "RESCHED"),
            ("tlb", "TLB"),
            ("halt", "HALT"),
            ("tick", "TICK"),
            ("kick", "KICK"),
            ("watch", "WATCH"),
        ];
        assert_eq!(source.matches("pub const IPI_").count(), names.len());
        for (index, (word, name)) in names.into_iter().enumerate() {
            let bit = 1 << index;
            assert!(source.contains(&format!("pub const IPI_{name}: u32 = {bit};")), "{name}");
            assert!(script.contains(&format!("\"{word}\": {bit}")), "{word}");
        }
    }
}
