//! `print!` and `println!`: one console write for each kilobyte, so that lines of several threads do not mix.

use core::fmt::{self, Write};

use abi::{CapId, Interface, MAX_IO_BYTES, Op, Sqe};

use crate::caps::{Known, entry};
use crate::ring::Client;
use crate::tls;

static CONSOLE: Known = Known::new(Interface::Console);

/// The text of one `print!`, gathered on the stack.
struct Line {
    len: usize,
    bytes: [u8; MAX_IO_BYTES],
}

impl Line {
    fn flush(&mut self) {
        write_with(&tls::current().client, &self.bytes[..self.len]);
        self.len = 0;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            if self.len == self.bytes.len() {
                self.flush();
            }
            let count = left.len().min(self.bytes.len() - self.len);
            self.bytes[self.len..self.len + count].copy_from_slice(&left[..count]);
            self.len += count;
            left = &left[count..];
        }
        Ok(())
    }
}

/// Writes `bytes` to the console, through `client`; nothing if the process has none.
pub(crate) fn write_with(client: &Client, mut bytes: &[u8]) {
    let cap = CONSOLE.id();
    if cap == CapId::NONE {
        return;
    }
    while !bytes.is_empty() {
        let len = bytes.len().min(MAX_IO_BYTES);
        let sqe = Sqe { addr: bytes.as_ptr() as u64, len: len as u32, ..entry(Op::Write, cap) };
        // SAFETY: reads `bytes`, which the caller lends until this returns.
        let cqe = unsafe { client.run(sqe) };
        let taken = (cqe.value as usize).min(len);
        if cqe.status != 0 || taken == 0 {
            return;
        }
        bytes = &bytes[taken..];
    }
}

/// For [`crate::print!`].
#[doc(hidden)]
pub fn print(text: fmt::Arguments<'_>) {
    let mut line = Line { len: 0, bytes: [0; MAX_IO_BYTES] };
    // Writing to a buffer does not fail; if a `Display` fails, the text before that is printed.
    let _ = line.write_fmt(text);
    line.flush();
}

/// Prints on the console, as in std. Text up to a kilobyte comes out in one piece. Without a console it goes nowhere.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::print::print(::core::format_args!($($text)*)) };
}

/// [`print!`] with a line end.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($($text:tt)*) => { $crate::print::print(::core::format_args!("{}\n", ::core::format_args!($($text)*))) };
}

/// As [`println!`]: there is one console.
#[macro_export]
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::println!($($text)*) };
}
