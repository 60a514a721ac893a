//! `capos`: builds the guest, makes its boot image, boots it in QEMU, and judges what it prints.

fn main() {}
