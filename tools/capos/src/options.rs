//! Boot options: words for the kernel, which are checked before a machine is started in vain.

use trace::dump::EVENTS_MAX;

use crate::Problem;

/// The options that the kernel lists as known, in `kernel/src/bootinfo.rs`.
pub const KNOWN: &str = "pit nocalib panic panic=late triplefault allocfail endlease overload latecpu maxcpus=n policy=wfq|eevdf turns=n \
    watchdog=n hang=irqs-off|lock|no-dispatch trace=n trace=first:n";

/// Checks that the kernel reads the options to the end. QEMU writes longer ones over the data that it passes
/// to the kernel.
///
/// # Errors
/// When they are too long.
pub fn fit(options: &str) -> Result<(), Problem> {
    let (bytes, most) = (options.len(), abi::BOOT_LINE_BYTES_MAX);
    if bytes <= most {
        return Ok(());
    }
    Err(Problem(format!("boot options of {bytes} bytes: the kernel reads {most} at most; leave some out")))
}

/// Checks every word.
///
/// # Errors
/// With the first word that the kernel would ignore, or when the options are too long.
pub fn check(options: &str) -> Result<(), Problem> {
    fit(options)?;
    match options.split_ascii_whitespace().find(|word| !is_known(word)) {
        None => Ok(()),
        Some(word) => Err(Problem(format!(
            "the kernel has no boot option `{word}`; there are: {KNOWN} (n of `trace` is 1 to {EVENTS_MAX})"
        ))),
    }
}

/// The length of turns, in us, that the kernel is told (`turns=n`).
pub fn turns_us(options: &str) -> Option<u64> {
    options.split_ascii_whitespace().find_map(|word| word.strip_prefix("turns=")?.parse().ok())
}

/// How many events the value of `trace=` asks for.
pub fn events(value: &str) -> Option<usize> {
    let number = value.strip_prefix("first:").unwrap_or(value);
    number.parse().ok().filter(|events| (1..=EVENTS_MAX).contains(events))
}

fn is_known(word: &str) -> bool {
    match word.split_once('=') {
        None => matches!(
            word,
            "pit" | "nocalib" | "panic" | "triplefault" | "allocfail" | "endlease" | "overload" | "latecpu"
        ),
        Some(("maxcpus", number)) => number.parse::<usize>().is_ok(),
        Some(("policy", name)) => matches!(name, "wfq" | "eevdf"),
        Some(("turns", us)) => us.parse().is_ok_and(|us| (1..=1000).contains(&us)),
        Some(("watchdog", looks)) => looks.parse::<u32>().is_ok_and(|looks| looks <= 1000),
        Some(("panic", when)) => when == "late",
        Some(("hang", how)) => matches!(how, "irqs-off" | "lock" | "no-dispatch"),
        Some(("trace", value)) => events(value).is_some(),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_the_kernel_leaves_out_are_refused() {
        for good in [
            "",
            "pit maxcpus=2",
            "policy=eevdf trace=1048576",
            "turns=5",
            "trace=first:7",
            "watchdog=0 panic=late triplefault",
            "hang=irqs-off hang=lock hang=no-dispatch",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "policy=foo",
            "policy",
            "turns",
            "turns=0",
            "turns=1001",
            "trace=0",
            "trace=1048577",
            "trace=last:5",
            "watchdog=1001",
            "hang=x",
            "panic=now",
            "maxcpus=x",
            "pits",
            "pit polcy=wfq",
        ] {
            let problem = check(bad).unwrap_err().to_string();
            assert!(problem.contains("no boot option `"), "{bad}: {problem}");
        }
    }

    #[test]
    fn k_26_turns_are_known_to_the_machine() {
        assert_eq!(["", "turn=5", "pit turns=5"].map(turns_us), [None, None, Some(5)]);
    }

    #[test]
    fn the_kernel_knows_the_same() {
        let kernel = include_str!("../../../kernel/src/bootinfo.rs");
        assert!(kernel.contains(&format!("boot: {KNOWN} ")), "the kernel lists other options than `{KNOWN}`");
    }
}
