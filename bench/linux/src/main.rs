//! What Linux's operations cost, in the same emulator and by the same rows as capOS's `bench` program.
//!
//! This is `/init` of an initramfs that `capos linux` packs and boots. It prints `bench <row>/<way> <number>`, where a row of capOS has several
//! ways to do it on Linux, ends with `proof linux-bench: ok` and powers the machine off. Its one argument names the group of rows.

mod fair;
mod ipc;
mod machine;
mod measure;
mod rows;
mod scale;
// The same source as capOS's programs have, where it is public.
#[allow(unreachable_pub)]
#[path = "../../../programs/src/workload.rs"]
mod workload;

/// What a group of rows is.
type Group = fn() -> Result<(), String>;

/// By the name of the argument.
const GROUPS: [(&str, Group); 4] =
    [("one", rows::one_cpu), ("across", ipc::across), ("fair", fair::one_cpu), ("scale", scale::scale)];

fn main() {
    // Outside of the guest there is nothing to measure, and powering off is not ours to do.
    if std::process::id() != 1 {
        eprintln!("linux-init is the first program of a guest; `make bench-linux` boots it");
        std::process::exit(2);
    }
    let done = machine::prepare().and_then(|()| {
        let names: Vec<String> = std::env::args().skip(1).collect();
        let chosen: Vec<&(&str, Group)> =
            GROUPS.iter().filter(|(name, _)| names.iter().any(|word| word == name)).collect();
        if chosen.is_empty() {
            return Err(format!("no group of rows among the arguments {names:?}"));
        }
        chosen.iter().try_for_each(|(_, group)| group())
    });
    match done {
        Ok(()) => println!("proof linux-bench: ok"),
        Err(why) => println!("proof linux-bench: FAILED {why}"),
    }
    machine::power_off()
}
