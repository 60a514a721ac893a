//! The fuzzer of the kernel's ring: what its processes share with their supervisor, and how that is shown.
//!
//! [`child`] is a process that fuzzes, [`generate`] makes random entries, [`contexts`] the messages to contexts among them. The supervisor is
//! `src/bin/fuzz.rs`.

pub mod child;
pub mod contexts;
pub mod generate;

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::string::String;
use rt::abi::{Exception, Op, TransportError};
use rt::println;

/// Rows of the table: the operations, numbers that are no operation, and completions whose `user_data` was never submitted.
pub const ROWS: usize = Op::COUNT + 2;
/// The row of numbers that are no operation.
pub const UNKNOWN_OP: usize = Op::COUNT;
/// The row of completions whose `user_data` was never submitted: entries are overwritten on purpose.
pub const STRANGER: usize = Op::COUNT + 1;
/// Columns: success, exceptions, transport errors, anything else.
pub const COLUMNS: usize = 2 + EXCEPTIONS.len() + TransportError::ALL.len();
const OTHER: usize = COLUMNS - 1;

const EXCEPTIONS: [Exception; 5] = [
    Exception::Failed,
    Exception::Overloaded,
    Exception::Disconnected,
    Exception::InvalidArgument,
    Exception::Unimplemented,
];

/// Errors that nothing returns yet, because they belong to rings with two consumers or to isolation; and those of loans, which need chains of calls
/// that random entries do not produce.
const NOT_REACHED: [TransportError; 11] = [
    TransportError::DeadlineExpired,
    TransportError::BudgetExhausted,
    TransportError::RealtimeUnsafePath,
    TransportError::RealtimeAdmissionDenied,
    TransportError::Overrun,
    TransportError::StaleInput,
    TransportError::StaleSqConsumer,
    TransportError::SqBusy,
    TransportError::LoanTooDeep,
    TransportError::LoanCycle,
    TransportError::NoCommonCpu,
];

/// The most processes that fuzz at a time.
pub const CHILDREN_MAX: usize = 8;

/// What the processes count, in shared memory.
#[repr(C)]
pub struct Stats {
    /// Entries that the kernel took, by child.
    pub entries: [AtomicU64; CHILDREN_MAX],
    /// How many system calls with invalid numbers were made.
    pub syscalls: AtomicU64,
    /// How many of `syscalls` were refused as unknown.
    pub refused: AtomicU64,
    /// How often queues had nonsense in their indices.
    pub nonsense: AtomicU64,
    /// How many of `nonsense` were refused.
    pub nonsense_refused: AtomicU64,
    /// Completions by operation and outcome.
    pub outcomes: [[AtomicU64; COLUMNS]; ROWS],
}

/// Bytes of [`Stats`] in whole pages.
pub const STATS_BYTES: usize = size_of::<Stats>().next_multiple_of(4096);

/// The column for a status.
pub fn column(status: i32) -> usize {
    match status {
        0 => 0,
        1..=5 => status as usize,
        ..0 => COLUMN_OF.get(status.unsigned_abs() as usize).map_or(OTHER, |&column| column.into()),
        _ => OTHER,
    }
}

/// One more than the largest absolute value of an error's number.
const ERRORS_END: usize = {
    let mut end = 0;
    let mut at = 0;
    while at < TransportError::ALL.len() {
        let number = -(TransportError::ALL[at] as i32) as usize;
        end = if number < end { end } else { number + 1 };
        at += 1;
    }
    end
};

/// Maps an error's absolute value to its column; a table, because there are gaps between the numbers.
static COLUMN_OF: [u8; ERRORS_END] = {
    let mut table = [OTHER as u8; ERRORS_END];
    let mut at = 0;
    while at < TransportError::ALL.len() {
        table[-(TransportError::ALL[at] as i32) as usize] = (1 + EXCEPTIONS.len() + at) as u8;
        at += 1;
    }
    table
};

impl Stats {
    /// Entries that the kernel took.
    pub fn total(&self) -> u64 {
        self.entries.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn at(&self, row: usize, column: usize) -> u64 {
        self.outcomes[row][column].load(Ordering::Relaxed)
    }

    fn reached(&self, column: usize) -> u64 {
        (0..ROWS).map(|row| self.at(row, column)).sum()
    }

    /// Prints the table, and how often each error was returned for which operation.
    pub fn show(&self) {
        println!(
            "    completions of    total        ok   failed overload  disconn  invalid  unimpl transport"
        );
        for row in 0..ROWS {
            let name = match row {
                UNKNOWN_OP => String::from("no operation"),
                STRANGER => String::from("overwritten"),
                _ => alloc::format!("{:?}", Op::ALL[row]),
            };
            let sum = |from: usize, to: usize| (from..to).map(|column| self.at(row, column)).sum::<u64>();
            println!(
                "    {name:12} {:10} {:9} {:8} {:8} {:8} {:8} {:7} {:9}",
                sum(0, COLUMNS),
                self.at(row, 0),
                self.at(row, 1),
                self.at(row, 2),
                self.at(row, 3),
                self.at(row, 4),
                self.at(row, 5),
                sum(6, COLUMNS)
            );
        }
        for (at, error) in TransportError::ALL.iter().enumerate() {
            let count = self.reached(1 + EXCEPTIONS.len() + at);
            if count > 0 {
                println!("    {:>10} times {error:?}", count);
            }
        }
        let (calls, refused) = (self.syscalls.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed));
        println!("    {calls:>10} system calls that do not exist, {refused} refused");
        let (bad, refused) =
            (self.nonsense.load(Ordering::Relaxed), self.nonsense_refused.load(Ordering::Relaxed));
        println!("    {bad:>10} queues with nonsense for indices, {refused} refused");
    }

    /// The outcomes that should have been reached and never were; empty if all is well.
    pub fn missing(&self) -> String {
        let mut missing = String::new();
        let mut add = |what: String| {
            missing.push(' ');
            missing.push_str(&what);
        };
        for (row, op) in Op::ALL.iter().enumerate() {
            if (0..COLUMNS).all(|column| self.at(row, column) == 0) {
                add(alloc::format!("{op:?}"));
            }
            // READ succeeds only when a person types.
            if self.at(row, 0) == 0 && *op != Op::Read {
                add(alloc::format!("success of {op:?}"));
            }
        }
        for (at, exception) in EXCEPTIONS.iter().enumerate() {
            if self.reached(1 + at) == 0 {
                add(alloc::format!("{exception:?}"));
            }
        }
        for (at, error) in TransportError::ALL.iter().enumerate() {
            let is_expected = !NOT_REACHED.contains(error);
            // This error belongs to a system call, not to an entry.
            let is_syscall = *error == TransportError::UnknownSyscall;
            if is_expected && !is_syscall && self.reached(1 + EXCEPTIONS.len() + at) == 0 {
                add(alloc::format!("{error:?}"));
            }
        }
        // Completions are overwritten on purpose, too, but rarely.
        let all: u64 = (0..COLUMNS).map(|column| self.reached(column)).sum();
        if self.reached(OTHER) * 1000 > all {
            add(String::from("(a status that does not exist came)"));
        }
        if self.syscalls.load(Ordering::Relaxed) != self.refused.load(Ordering::Relaxed) {
            add(String::from("(a system call that does not exist was not refused)"));
        }
        missing
    }
}
