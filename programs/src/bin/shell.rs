//! The shell on the console. What it does is in `programs/src/shell`; how to use it is in `docs/shell.md`.
#![no_std]
#![no_main]

rt::main!(programs::shell::run);
