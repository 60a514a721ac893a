//! `janus`: runs WebAssembly guests under budgets and grants, and looks into a runtime that does.
#![deny(unsafe_code)]

mod code;
mod module;
mod run;
mod top;

use clap::{Args, Parser, Subcommand};
use janus::{Budget, Profile};
use janus_guest::Grant;
use janus_guest::amount;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(name = "janus", version, about, long_about = None, after_help = "`janus help run` tells what an exit code means.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a guest, and print what it used
    #[command(after_help = code::HELP)]
    Run(Box<Run>),
    /// Say what a module imports and which grants that takes, without running it
    Check {
        /// The module: WebAssembly, binary or text
        guest: PathBuf,
    },
    /// Show the tasks of a runtime that was started with `janus run --watch SOCKET`
    Top {
        /// The socket
        socket: PathBuf,
        /// How often to look
        #[arg(long, default_value = "1s", value_parser = amount::duration)]
        every: Duration,
        /// Look once
        #[arg(long)]
        once: bool,
    },
}

fn whole_budget(text: &str) -> Result<Budget, String> {
    amount::budget(text, Budget::CHILD)
}

fn part_budget(text: &str) -> Result<Budget, String> {
    amount::budget(text, Budget::ZERO)
}

fn variable(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some(("", _)) | None => Err(format!("`{text}` is no NAME=VALUE")),
        Some(_) => Ok(text.to_string()),
    }
}

fn workers(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("`{text}` is no number of threads: 1 or more"))
}

fn profile(name: &str) -> Result<Profile, String> {
    match name.trim_start_matches(':') {
        "service" => Ok(Profile::Service),
        "cluster" => Ok(Profile::Cluster),
        "sovereign" => Ok(Profile::Sovereign),
        "core" => Err("the profile :core has no tasks; there are service, cluster and sovereign".into()),
        _ => Err(format!("there is no profile `{name}`; there are service, cluster and sovereign")),
    }
}

#[derive(Args)]
struct Run {
    /// The module: WebAssembly, binary or text
    guest: PathBuf,
    /// What the guest may use: ops, memory, spawn, messages, io; k, M and G are thousands, of memory 1,024; `unlimited` is an
    /// amount too. What is not named is ops=1M, memory=16M, spawn=0, messages=10k, io=1k
    #[arg(long, value_name = "PART=AMOUNT,...", default_value = "", hide_default_value = true, value_parser = whole_budget)]
    budget: Budget,
    /// service grants everything but `budget`; cluster and sovereign grant nothing by themselves
    #[arg(long, default_value = "sovereign", value_parser = profile)]
    profile: Profile,
    /// A right: memory, spawn, budget, messages, io, clock or random; several with commas or by repeating it
    #[arg(long, value_name = "RIGHT", value_delimiter = ',')]
    grant: Vec<Grant>,
    /// What the guest may recharge itself with in all; it takes --grant budget
    #[arg(long, value_name = "PART=AMOUNT,...", value_parser = part_budget)]
    recharge: Option<Budget>,
    /// A file that the guest may read, under this name; a path alone is known by its last part
    #[arg(long, value_name = "NAME=PATH", value_parser = amount::named)]
    file: Vec<(String, PathBuf)>,
    /// A file that it may read and write; it is made if it is not there
    #[arg(long, value_name = "NAME=PATH", value_parser = amount::named)]
    file_rw: Vec<(String, PathBuf)>,
    /// A variable of the guest's environment, which is empty otherwise
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<String>,
    /// A module that the guest imports from, under this name
    #[arg(long, value_name = "NAME=PATH", value_parser = amount::named)]
    link: Vec<(String, PathBuf)>,
    /// The exported function to call [default: _start, or main]; an integer that it returns is printed, and is no exit code
    #[arg(long)]
    entry: Option<String>,
    /// Stop it after so long; with --seed after so much virtual time or so much real time
    #[arg(long, value_parser = amount::duration)]
    timeout: Option<Duration>,
    /// Worker threads [default: one a CPU]
    #[arg(long, value_parser = workers)]
    workers: Option<usize>,
    /// Deterministic mode: the same seed, the same run
    #[arg(long)]
    seed: Option<u64>,
    /// Answer `janus top` on this socket while it runs
    #[arg(long, value_name = "SOCKET")]
    watch: Option<PathBuf>,
    /// No table at the end
    #[arg(long)]
    quiet: bool,
    /// The guest's arguments
    #[arg(last = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let wrong = error.use_stderr();
            // To a closed pipe there is nothing to say.
            let _ = error.print();
            return if wrong { ExitCode::from(code::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Run(run) => run::run(&run),
        Command::Check { guest } => module::check(&guest),
        Command::Top { socket, every, once } => top::top(&socket, every, once),
    }
}
