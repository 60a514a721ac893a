//! The table of commands, and the commands that need only a few lines.

use alloc::string::String;

use rt::{Power, UserSession, caps, print, println, time};

use super::{CommandResult, Shell, look, top};
use crate::ensure;
use crate::proof::Failure;
use crate::text::{Seconds, cut};

/// The pause between two runs of the command that `watch` repeats.
const WATCH_NS: u64 = 1_000_000_000;

/// A command.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// The arguments that it takes.
    usage: &'static str,
    /// What it does, in one line.
    summary: &'static str,
    /// Further explanation, for `help command`.
    more: &'static str,
    pub(super) run: fn(&mut Shell, &[String]) -> CommandResult,
}

/// How many commands, from the first, `help` explains in a line each, so that its output fits on a screen.
const COMMANDS_MAIN: usize = 10;

/// All commands, in the order of `help`.
pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: "help",
        usage: "[command]",
        summary: "list the commands, or explain one",
        more: "Left Right Home End Ctrl-A Ctrl-E  move\n\
               Backspace Delete                   rub out a character\n\
               Ctrl-W Ctrl-U Ctrl-K               rub out a word, all to the left, the right\n\
               Up Down                            recall lines\n\
               Ctrl-R                             searches in them; again: an older one\n\
               Tab                                completes commands, programs, options, jobs\n\
               Ctrl-L                             clears the screen\n\
               Ctrl-C                             gives a line up, or kills what runs\n\
               Ctrl-D                             on an empty line: logs out",
        run: help,
    },
    Command {
        name: "ps",
        usage: "[-t]",
        summary: "list processes; -t: threads",
        more: "KiB is memory that the process is charged for, SES the number of its session.\n\
               With -t: the CPU that a thread is on or was last, its weight, its budget if it\n\
               has one and its class if not, how long it ran, how long it could have run and\n\
               had to wait, how often it was switched away from, and how often it moved to\n\
               another CPU.",
        run: look::ps,
    },
    Command {
        name: "top",
        usage: "[-p] [times]",
        summary: "watch CPUs and threads; -p: processes",
        more: "Refreshes once a second until a key is pressed, or so many times.\n\
               %CPU is time on a CPU since the last picture, %WAIT time that the thread could\n\
               have run and waited for one. A CPU's busy, interrupt and idle time add up.\n\
               A thread with a budget shows that instead of its class.",
        run: top::top,
    },
    Command {
        name: "run",
        usage: "[options] program [arguments] [&]",
        summary: "run a program; with & in the background",
        more: "The word `run` can be left out: `spin 2` is `run spin 2`, unless a command has\n\
               the name; options need it.\n\
               The program gets every capability of this shell but `power`, and a session\n\
               of its own instead of the shell's.\n\
               The shell waits for its end, and Ctrl-C kills it; with & the shell goes on.\n\
               --weight W  its share: from 1 to 1024; without it 64\n\
               --class C   interactive (short turns, soon), normal, batch (long turns,\n\
               \x20           late) or ipcserver; without it normal\n\
               --budget B/P  each of its threads may run for B in every P, before all others:\n\
               \x20             2ms/10ms; units are s, ms, us and ns\n\
               --overrun O   what happens to a thread that has used that up: throttle (it\n\
               \x20             waits for more) or demote (it goes on like others); without it\n\
               \x20             throttle\n\
               --name N    calls the process N\n\
               --own       in the shell's own session: it may use the memory that is kept for\n\
               \x20           the shell; without it the program and what it starts are guests\n\
               --input     lets the program read the console, Ctrl-C included; without it\n\
               \x20           it can only write there",
        run: Shell::run,
    },
    Command {
        name: "ctx",
        usage: "",
        summary: "list scheduling contexts: who has which CPU time",
        more: "THREAD is the process and thread that a context is bound to, CPU the one that\n\
               promised the time, LEFT what is usable now. DEPLETED counts how often the budget\n\
               was used up, LENT TO the process and thread that have it during a call.",
        run: look::contexts,
    },
    Command {
        name: "jobs",
        usage: "",
        summary: "list programs in the background",
        more: "",
        run: Shell::list_jobs,
    },
    Command {
        name: "kill",
        usage: "pid | %job",
        summary: "end a program, or what one left behind",
        more: "A job is %1 or, by its name, %spin; Tab completes it.\n\
               A process belongs to the session in which it was started, also when its parent is\n\
               gone. Whoever holds the session can end it; this shell holds its own.",
        run: Shell::kill,
    },
    Command {
        name: "time",
        usage: "command",
        summary: "run a command or program, and say how long it took",
        more: "Of a program also its CPU time, all of its threads together.",
        run: time_of,
    },
    Command {
        name: "watch",
        usage: "command",
        summary: "run it once a second until a key is pressed",
        more: "`watch ctx` shows budgets being used and refilled.",
        run: watch,
    },
    Command {
        name: "programs",
        usage: "",
        summary: "list what can be run",
        more: "The first lines are for people; the others are tests, which end with their\n\
               verdict, and programs that these start.",
        run: programs,
    },
    Command {
        name: "mem",
        usage: "",
        summary: "memory: used, free, and what things cost",
        more: "",
        run: look::mem,
    },
    Command {
        name: "caps",
        usage: "",
        summary: "the capabilities of this shell",
        more: "What a process may do is what it was granted, by name. The number is the slot\n\
               in its table, and how often that was used.",
        run: look::caps,
    },
    Command { name: "cpus", usage: "", summary: "the CPUs since boot", more: "", run: look::cpus },
    Command { name: "counters", usage: "", summary: "what the kernel counts", more: "", run: look::counters },
    Command {
        name: "uptime",
        usage: "",
        summary: "time since boot, kernel, clock",
        more: "",
        run: look::uptime,
    },
    Command { name: "echo", usage: "[words]", summary: "print words", more: "", run: echo },
    Command {
        name: "history",
        usage: "",
        summary: "the lines that were entered",
        more: "The last 100 are kept.",
        run: history,
    },
    Command { name: "clear", usage: "", summary: "clear the screen", more: "", run: clear },
    Command {
        name: "sleep",
        usage: "seconds",
        summary: "wait; 0.2 is a fifth of a second",
        more: "Ctrl-C ends it.",
        run: sleep,
    },
    Command {
        name: "logout",
        usage: "",
        summary: "end the session and the shell",
        more: "Programs in the background are killed. Ctrl-D on an empty line does the same.",
        run: logout,
    },
    Command { name: "poweroff", usage: "", summary: "switch the machine off", more: "", run: poweroff },
];

/// Refuses the arguments of a command that takes none.
pub(super) fn none(arguments: &[String]) -> CommandResult {
    match arguments.first() {
        None => Ok(()),
        Some(word) => Err(Failure::new(format_args!("takes no `{word}`; type it alone"))),
    }
}

fn help(_: &mut Shell, arguments: &[String]) -> CommandResult {
    let name = match arguments {
        [] => {
            println!("Try these first:");
            print_demos();
            println!("Commands:");
            let (main, more) = COMMANDS.split_at(COMMANDS_MAIN);
            for command in main {
                println!("  {:9} {}", command.name, command.summary);
            }
            print!("  and ");
            more.iter().for_each(|command| print!(" {}", command.name));
            println!("\n`help command` says more; `help help` lists the keys.");
            return Ok(());
        }
        [name] => name,
        [first, ..] => return Err(Failure::new(format_args!("explains one at a time; try `help {first}`"))),
    };
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        return Err(Failure::new(format_args!("there is no command `{name}`; `help` lists them")));
    };
    let blank = if command.usage.is_empty() { "" } else { " " };
    println!("{}{blank}{}\n{}", command.name, command.usage, command.summary);
    if !command.more.is_empty() {
        println!("{}", command.more);
    }
    Ok(())
}

/// What to try first: a line to type, and what it shows.
const DEMOS: [(&str, &str); 5] = [
    ("run budget", "2 ms of CPU time in every 10 ms, and no more"),
    ("run calls", "a server that works on its client's budget"),
    ("run --budget 2ms/10ms spin &", "then `top`: it is throttled at 20 %"),
    ("run spin 8 &", "eight hogs beside it, and it keeps its 20 %"),
    ("run tour", "the tour again"),
];

/// Prints what to try first.
pub(super) fn print_demos() {
    for (line, text) in DEMOS {
        println!("  {line:29} {text}");
    }
}

/// Programs for people to run, and what each does.
const FOR_PEOPLE: [(&str, &str); 8] = [
    ("budget", "gives itself 2 ms of CPU time in every 10 ms"),
    ("calls", "calls a server that it starts: `counter`"),
    ("hello [words]", "says what it was told"),
    ("spin [threads] [seconds]", "keeps CPUs busy: `run spin 2 &`, then `top`"),
    ("tour", "the tour again"),
    ("fault [kind]", "does something forbidden, and is ended"),
    ("measure", "what system calls, switches and calls cost here"),
    ("shell", "a shell in the shell: `run --input shell`"),
];

/// The command `time`.
fn time_of(shell: &mut Shell, arguments: &[String]) -> CommandResult {
    ensure!(!arguments.is_empty(), "of what? `time run hello`, `time ps`");
    shell.used_ns = None;
    let start = time::now_ns()?;
    shell.perform(arguments);
    let took = Seconds(time::now_ns()? - start);
    match shell.used_ns.take() {
        Some(used_ns) => println!("took {took} s; the program had {} s of CPU time", Seconds(used_ns)),
        None => println!("took {took} s"),
    }
    Ok(())
}

/// The command `watch`.
fn watch(shell: &mut Shell, arguments: &[String]) -> CommandResult {
    let line = arguments.join(" ");
    match arguments.first().map(String::as_str) {
        None => return Err(Failure::new("what? `watch ctx`, `watch ps -t`")),
        Some(name @ ("watch" | "top")) => {
            return Err(Failure::new(format_args!("`{name}` refreshes by itself; type `{line}`")));
        }
        Some(_) => {}
    }
    loop {
        println!("\x1b[2J\x1b[H{}  (every second; any key leaves)", cut(&line, 40));
        shell.perform(arguments);
        // A key may also have been pressed while the command ran.
        if shell.end.is_some() || shell.input.is_typed() || shell.input.listen_for(WATCH_NS)? {
            break;
        }
    }
    // The key that ends the command is no part of the next line.
    shell.input.clear();
    Ok(())
}

fn programs(shell: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    for (name, text) in FOR_PEOPLE {
        println!("  {name:25} {text}");
    }
    println!("Tests, and programs that these start:");
    let is_for_people = |name: &str| FOR_PEOPLE.iter().any(|(line, _)| line.split(' ').next() == Some(name));
    let mut column = 0;
    for name in shell.programs.iter().filter(|name| !is_for_people(name)) {
        let wide = name.chars().count() + 2;
        if column + wide > 80 {
            println!();
            column = 0;
        }
        print!("{}{name}", if column == 0 { "" } else { "  " });
        column += wide;
    }
    println!();
    Ok(())
}

fn echo(_: &mut Shell, arguments: &[String]) -> CommandResult {
    println!("{}", arguments.join(" "));
    Ok(())
}

fn history(shell: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    for (index, line) in shell.history.lines().enumerate() {
        println!("{:4}  {line}", index + 1);
    }
    Ok(())
}

fn clear(_: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    print!("\x1b[2J\x1b[H");
    Ok(())
}

fn sleep(shell: &mut Shell, arguments: &[String]) -> CommandResult {
    let [text] = arguments else { return Err(Failure::new("how long? `sleep 2` waits two seconds")) };
    let ns = edit::time::seconds(text);
    let ns =
        ns.ok_or_else(|| Failure::new(format_args!("`{text}` is no number of seconds; try `sleep 0.5`")))?;
    let start = time::now_ns()?;
    let mut end = time::timer()?.sleep_start(ns)?;
    loop {
        if let Some(result) = end.poll() {
            return Ok(result?);
        }
        if shell.input.is_interrupted() {
            println!("^C after {} s", Seconds(time::now_ns()? - start));
            return Ok(());
        }
        shell.wait()?;
    }
}

fn logout(shell: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    shell.jobs.kill_all();
    // The shell ends even if it has no session, or if its session was already ended from elsewhere.
    shell.end = Some(0);
    let Ok(session) = caps::any::<UserSession>() else {
        println!("there is no session to end; the shell ends");
        return Ok(());
    };
    let name = session.info()?.name;
    let taken = session.logout()?.stale_marked;
    println!("{name} has logged out");
    if taken > 0 {
        println!("scheduling contexts taken back: {taken}");
    }
    Ok(())
}

fn poweroff(_: &mut Shell, arguments: &[String]) -> CommandResult {
    none(arguments)?;
    let power: Power = caps::any()?;
    println!("powering off");
    match power.off(0) {
        Ok(never) => match never {},
        Err(error) => Err(Failure::new(format_args!("the kernel refuses: {error}"))),
    }
}
