//! The serial port: the kernel's console.

use super::cpu::{inb, outb};

const PORT: u16 = 0x3f8;
/// How often the line status is polled before a byte is sent regardless: a port that does not exist must not hang the kernel.
const PATIENCE: u32 = 100_000;

/// Sets the port up: 115,200 baud, 8N1, FIFOs on.
pub fn init() {
    for (offset, value) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 0xc7), (4, 0x0b)] {
        outb(PORT + offset, value);
    }
}

/// From here on the port interrupts when bytes arrive.
pub fn enable_receive_interrupt() {
    outb(PORT + 1, 1);
}

/// Sends one byte.
pub fn send(byte: u8) {
    for _ in 0..PATIENCE {
        if inb(PORT + 5) & 0x20 != 0 {
            break;
        }
        super::cpu::pause();
    }
    outb(PORT, byte);
}

/// Takes a byte that has arrived.
pub fn receive() -> Option<u8> {
    if inb(PORT + 5) & 1 != 0 { Some(inb(PORT)) } else { None }
}
