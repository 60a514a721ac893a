//! After a task was given up: does it hold the lock of standard output, or of standard error? Then every later
//! `println!` of any task would wait for ever, silently. It is better to end the process and name the task.
//!
//! `std` does not tell who holds these locks. But they are re-entrant, and their owner is an OS thread: the one that
//! the task was given up on, which has nothing else to do any more.
//!
//! ```text
//!   the left thread                      the tester, a thread that never ran a task
//!     asks                       ------>   locks each, and unlocks it
//!     is answered?               <------   answers
//!     no: locks each itself, which it can if nobody has it, or if its own task has; and asks again
//!     twenty times it could, and the tester, which waits all the time, never: it is its own task
//! ```
//! Another thread that holds the output for long (`main`, while it waits for the runtime) delays both threads, and
//! nothing else follows from that.
//!
//! In pinned mode there is no thread to spare. Then another thread asks, and reports what it suspects.

use crate::family::{self, Cause};
use crate::thread_cpu::ThreadCpu;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// How many looks it takes at which the left thread could lock, and the tester could not.
const LOOKS: usize = 20;

#[derive(Default)]
struct Questions {
    asked: u64,
    answered: u64,
    /// There is a thread that answers.
    attended: bool,
}

static QUESTIONS: Mutex<Questions> = Mutex::new(Questions { asked: 0, answered: 0, attended: false });
static ANSWERED: Condvar = Condvar::new();
static TESTER: ThreadCpu = ThreadCpu::new();
/// The tester is about to take the locks, or waits for one. If it does anything else, or only waits for a CPU, it had
/// no chance to lock.
static TESTS: AtomicBool = AtomicBool::new(false);

fn questions() -> MutexGuard<'static, Questions> {
    QUESTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks and unlocks each output.
fn lock_each() {
    drop(io::stdout().lock());
    drop(io::stderr().lock());
}

/// Answers all questions, and ends.
fn test() {
    TESTER.bind();
    loop {
        let asked = questions().asked;
        TESTS.store(true, Ordering::Release);
        lock_each();
        TESTS.store(false, Ordering::Release);
        let mut questions = questions();
        questions.answered = asked;
        ANSWERED.notify_all();
        if questions.asked == asked {
            questions.attended = false;
            return;
        }
    }
}

/// Asks a question; `None`: no thread can be started to answer it.
fn ask() -> Option<u64> {
    let mut questions = questions();
    questions.asked += 1;
    if !questions.attended {
        let tester = std::thread::Builder::new().name("janus-output".into());
        questions.attended = tester.spawn(test).is_ok();
    }
    questions.attended.then_some(questions.asked)
}

/// Whether the question is answered within this time.
fn is_answered(number: u64, within: Duration) -> bool {
    let waiting = ANSWERED.wait_timeout_while(questions(), within, |all| all.answered < number);
    waiting.unwrap_or_else(PoisonError::into_inner).0.answered >= number
}

/// Runs on the thread that `culprit` was given up on, which does nothing else any more: ends the process if that thread
/// holds an output.
pub(crate) fn examine(culprit: &str) {
    let Some(number) = ask() else { return };
    let mut looks = 0;
    while !is_answered(number, PAUSE) {
        // If another thread holds an output, this waits for it.
        lock_each();
        looks += usize::from(TESTS.load(Ordering::Acquire) && TESTER.waits_for_lock());
        if looks == LOOKS {
            family::abort_described(culprit, Cause::Output);
        }
    }
}

/// As `examine`, where that thread goes on with other tasks: prints a message if an output stays locked.
pub(crate) fn suspect(culprit: Arc<str>) {
    let suspects = move || {
        if ask().is_some_and(|number| !is_answered(number, PAUSE * LOOKS as u32)) {
            family::say(format_args!(
                "janus: standard output or standard error has been locked since {culprit} was given up, perhaps by it: whoever \
                 prints may wait for ever.\n"
            ));
        }
    };
    let _ = std::thread::Builder::new().name("janus-suspects".into()).spawn(suspects);
}
