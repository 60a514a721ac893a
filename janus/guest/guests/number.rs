//! Copies a file with its lines numbered: `number FROM TO`. `REST` in its environment is how many milliseconds it rests after
//! each line. Ordinary Rust: arguments, environment, files, clocks, sleep, a panic.

use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

fn fail(code: i32, why: &str) -> ! {
    eprintln!("number: {why}");
    process::exit(code)
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (from, to) = match &arguments[..] {
        [from, to] => (from, to),
        _ => fail(2, "number FROM TO"),
    };
    let rest = env::var("REST").map_or(0, |rest| rest.parse().expect("REST is a number of milliseconds"));
    let rest = Duration::from_millis(rest);
    let text = fs::read_to_string(from).unwrap_or_else(|error| fail(1, &format!("{from}: {error}")));
    let (start, mut numbered) = (Instant::now(), String::new());
    for (index, line) in text.lines().enumerate() {
        numbered += &format!("{:>4}  {line}\n", index + 1);
        thread::sleep(rest);
    }
    let lines = numbered.lines().count();
    if start.elapsed() < rest * lines as u32 {
        fail(3, "it woke too early");
    }
    fs::write(to, numbered).unwrap_or_else(|error| fail(1, &format!("{to}: {error}")));
    println!("{lines} lines");
}
