//! The old timer (PIT) and interrupt controller (PIC): the reference for calibration, and the fallback if no local timer works.

use super::cpu::{inb, outb};

/// The PIT's frequency.
pub const HZ: u64 = 1_193_182;
/// The longest time that one count can take.
pub const MAX_NS: u64 = 0xffff * 1_000_000_000 / HZ;

/// Masks all lines of the PIC, after moving its vectors away from the exceptions.
pub fn mask_pic() {
    for (port, value) in
        [(0x20, 0x11), (0xa0, 0x11), (0x21, 32), (0xa1, 40), (0x21, 4), (0xa1, 2), (0x21, 1), (0xa1, 1)]
    {
        outb(port, value);
    }
    outb(0x21, 0xff);
    outb(0xa1, 0xff);
}

/// Lets interrupt line `line` (0 to 7) of the PIC through.
pub fn unmask_pic(line: u8) {
    outb(0x21, inb(0x21) & !(1 << line));
}

/// Tells the PIC that its interrupt was taken.
pub fn end_of_interrupt() {
    outb(0x20, 0x20);
}

/// Lets channel 0 interrupt every `ns`.
pub fn periodic(ns: u64) {
    let count = (ns.clamp(1_000, MAX_NS) * HZ / 1_000_000_000).clamp(1, 0xffff) as u16;
    outb(0x43, 0x34);
    outb(0x40, count as u8);
    outb(0x40, (count >> 8) as u8);
}

/// Turns the speaker on, without a sound: an emulator that is configured for it runs a timer for that.
pub fn speaker_on() {
    outb(0x61, inb(0x61) | 3);
}

/// Lets channel 2 count down again and again, without interrupts: a round takes about 55 ms.
pub fn start_counter() {
    outb(0x61, inb(0x61) & !2 | 1);
    outb(0x43, 0xb4);
    outb(0x42, 0);
    outb(0x42, 0);
}

/// The current value of channel 2's count.
pub fn counter() -> u16 {
    outb(0x43, 0x80);
    let low = inb(0x42);
    u16::from_le_bytes([low, inb(0x42)])
}
