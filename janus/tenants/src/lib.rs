//! An HTTP/1.1 server whose handlers are untrusted WebAssembly guests. Each tenant has a module, a budget for each request
//! and a purse for each period; what a tenant does with its own budget does not affect the others.
//!
//! | part | is |
//! |---|---|
//! | [`http`] | requests in, answers out; every size and every wait has a limit |
//! | [`tenant`] | a module, its budgets, and what becomes of a request |
//! | [`server`] | connections: how many, which are evicted, and the shutdown |
//! | [`settings`] | the file that says which tenants there are |
//! | [`proof`] | `make run-tenants`: the server under attack |
//!
//! `janus/tenants/README.md` is the tour.
#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod http;
pub mod proof;
pub mod server;
pub mod settings;
pub mod tenant;

/// Counts the memory that the process has allocated, which `GET /-/` reports.
#[global_allocator]
pub static HEAP: janus::Counted = janus::Counted::new();
