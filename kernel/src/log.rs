//! The kernel's log: lines that the kernel prints on the serial line, where programs write, too (`console`).

use crate::arch::{percpu, serial};
use crate::hook::Hook;
use crate::lock::{self, Rank, SpinLock};
use core::fmt::{self, Write};

/// The serial port.
struct Port(());
static PORT: SpinLock<Port> = SpinLock::new(Rank::Console, Port(()));

/// Keeps a copy of every byte: the flight recorder is above this layer.
static KEEP: Hook<fn(u8)> = Hook::empty();

/// From here on every byte is passed to `keep`, too; at boot.
pub fn hand_down(keep: fn(u8)) {
    KEEP.set(keep);
}

impl Write for Port {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(put);
        Ok(())
    }
}

/// Sends one byte, and keeps it in the flight recorder. Terminals need `\r\n` where programs write `\n`.
fn put(byte: u8) {
    if byte == b'\n' {
        serial::send(b'\r');
    }
    serial::send(byte);
    if let Some(keep) = KEEP.get() {
        keep(byte);
    }
}

/// Prints a line of the kernel.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::log::print(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Prints. Not under scheduler locks, not in interrupt handlers (K-18).
pub fn print(text: fmt::Arguments<'_>) {
    if lock::checked() {
        assert!(!percpu::this().held.forbids_allocation(), "K-18: printing under a scheduler lock");
    }
    let _ = PORT.lock().write_fmt(text);
}

/// Prints without taking the lock, for panics.
pub fn print_forced(text: fmt::Arguments<'_>) {
    let _ = Port(()).write_fmt(text);
}

/// Sends bytes of a program, in one piece.
pub fn write(bytes: &[u8]) {
    let port = PORT.lock();
    bytes.iter().copied().for_each(put);
    drop(port);
}
