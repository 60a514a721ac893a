//! The parts of `bench-io`: the load ([`load`]) and the servers under it ([`server`]).
//!
//! Every contestant is a program with one protocol: `<program> echo|http <workers>` listens on a free port of 127.0.0.1, prints
//! it as one line, and serves until it is killed. An echo server returns what it reads. An HTTP server answers every request
//! with "Hello, World!" and a date. A connection whose first byte is `L` (echo), or that asks for `/loop` (HTTP), gets a
//! handler that loops without end: the hog.

pub mod load;
pub mod server;
