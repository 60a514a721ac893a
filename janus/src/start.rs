//! What `#[janus::main]` expands to. Not for use by hand: the attribute spells out the promise.

use crate::config::Config;
use crate::cx::Cx;
use crate::runtime::Runtime;

/// The exit code of a program whose first task failed, as after a panic of `main`.
const FAILED: i32 = 101;

/// Runs `main` on a runtime of this configuration, and ends the program if that fails.
///
/// # Safety
/// The promise of [`Runtime::new`].
pub unsafe fn main<T: Send + 'static>(config: Config, main: fn(&Cx) -> T) -> T {
    // SAFETY: the caller's.
    let ended = unsafe { Runtime::new(config) }.and_then(|runtime| runtime.run_owned(main));
    ended.unwrap_or_else(|error| {
        let text = format!("janus: {error}\n");
        // Not by `eprintln!`: a task that was given up may have left standard error locked, and the message would wait
        // for ever.
        // SAFETY: the text is ours; 2 is standard error, and a write to a closed descriptor only fails.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        std::process::exit(FAILED)
    })
}
