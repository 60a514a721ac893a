//! Printing that ends quietly when the reader does: `sim ... | head` is no error.

use std::fmt::Arguments;
use std::io::Write;

/// Prints to standard output; a reader that has gone ends the program as it would end any other.
pub(super) fn print(text: Arguments<'_>) {
    if let Err(error) = std::io::stdout().lock().write_fmt(text) {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("cannot write to standard output: {error}");
        std::process::exit(1);
    }
}

/// As the standard macros, through [`print`].
macro_rules! print {
    ($($text:tt)*) => { $crate::cli::out::print(format_args!($($text)*)) };
}
macro_rules! println {
    () => { $crate::cli::out::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::cli::out::print(format_args!("{}\n", format_args!($($text)*))) };
}
