//! `make bench-guest`: what it costs to charge a guest. The same module runs bare, with the engine's own fuel metering, and
//! with the charges of our pass; the figures are instructions above bare, a step. Our count is exact, the engine's is not:
//! it charges a loop's whole body when the loop turns, whichever way it then goes.

use bench::instructions;
use bench::report::{Better, Report, Row, Sample};
use janus_guest::pass;
use std::process::ExitCode;
use wasmi::{Config, Engine, Extern, Func, Global, Instance, Module, Mutability, Store, Val};

const USAGE: &str = "bench-guest [--reps N] [--steps N]
bench-guest --count HOW GUEST STEPS
  --steps  steps of each count (2000)
  --reps   is taken for uniformity: a count needs no repetition
  --count  run STEPS steps, for valgrind to look at: HOW is bare, fuel or ours";

const GUESTS: [(&str, &str); 7] = [
    ("sum", include_str!("../../guests/sum.wat")),
    ("while", include_str!("../../guests/while.wat")),
    ("collatz", include_str!("../../guests/collatz.wat")),
    ("sieve", include_str!("../../guests/sieve.wat")),
    ("fib", include_str!("../../guests/fib.wat")),
    ("leaf", include_str!("../../guests/leaf.wat")),
    ("table", include_str!("../../guests/table.wat")),
];

const PLENTY: u64 = 1 << 60;

/// Runs so many steps of a guest, one way of the three.
fn run(how: &str, wat: &str, steps: u32) -> Result<i32, Box<dyn std::error::Error>> {
    let mut wasm = wat::parse_str(wat)?;
    let mut config = Config::default();
    config.consume_fuel(how == "fuel");
    let engine = Engine::new(&config);
    let mut store = Store::new(&engine, ());
    match how {
        "ours" => wasm = pass::instrument(&wasm, false)?.wasm,
        "fuel" => store.set_fuel(PLENTY)?,
        _ => {}
    }
    let module = Module::new(&engine, &wasm)?;
    let fuel = Global::new(&mut store, Val::I64(PLENTY as i64), Mutability::Var);
    let refuel = Func::wrap(&mut store, |fuel: i64| fuel + PLENTY as i64);
    let imports: Vec<Extern> = module
        .imports()
        .map(|import| if import.name() == "fuel" { Extern::Global(fuel) } else { Extern::Func(refuel) })
        .collect();
    let instance = Instance::new(&mut store, &module, &imports)?;
    let run = instance.get_typed_func::<u32, i32>(&store, "run")?;
    // The engine compiles a function when it is first called: that is set-up, as is everything before.
    run.call(&mut store, 1)?;
    Ok(if steps == 0 { 0 } else { run.call(&mut store, steps)? })
}

fn count(how: &str, guest: &str, steps: usize) -> Result<f64, instructions::CountError> {
    instructions::per_step(steps, |steps| {
        ["--count", how, guest].iter().map(ToString::to_string).chain([steps.to_string()]).collect()
    })
}

fn measure(steps: usize) -> Result<Report, Box<dyn std::error::Error>> {
    let mut report = Report::new("bench-guest");
    for (guest, wat) in GUESTS {
        let results: Vec<i32> =
            ["bare", "fuel", "ours"].iter().map(|how| run(how, wat, 100)).collect::<Result<_, _>>()?;
        assert!(results.iter().all(|result| *result == results[0]), "{guest} computes {results:?}");
        let bare = count("bare", guest, steps)?;
        let (fuel, ours) = (count("fuel", guest, steps)?, count("ours", guest, steps)?);
        println!(
            "{guest}: {bare:.1} instructions a step bare, {fuel:.1} with the engine's fuel, {ours:.1} with ours"
        );
        report.push(Row {
            name: format!("{guest}-charging"),
            ours: Sample::exact(ours - bare),
            peer: "wasmi-fuel".to_string(),
            theirs: Sample::exact(fuel - bare),
            unit: "instructions",
            better: Better::Lower,
        });
    }
    Ok(report)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, how, guest, steps] = &arguments[..]
        && mode == "--count"
    {
        let wat = GUESTS.iter().find(|(name, _)| name == guest).map(|(_, wat)| *wat);
        let (Some(wat), Ok(steps)) = (wat, steps.parse()) else {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        };
        return match run(how, wat, steps) {
            Ok(result) => {
                println!("{result}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("bench-guest: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut steps = 2_000;
    for pair in arguments.chunks(2) {
        match pair {
            [name, value] if name == "--steps" || name == "--reps" => match value.parse::<usize>() {
                Ok(value) if value > 0 && name == "--steps" => steps = value,
                Ok(value) if value > 0 => {}
                _ => return usage(),
            },
            _ => return usage(),
        }
    }
    match measure(steps) {
        Ok(report) => match report.write() {
            Ok(path) => {
                println!("{} rows in {}", GUESTS.len(), path.display());
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("bench-guest: cannot write the rows: {error}");
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            println!("bench-guest: not measured: {error}");
            ExitCode::SUCCESS
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
