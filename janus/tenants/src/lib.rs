//! An HTTP/1.1 server whose handlers are WebAssembly guests that nobody trusts. Each tenant has a module, a budget for each
//! request and a purse for each period; what one of them does with its own is nobody else's affair.
//!
//! | part | is |
//! |---|---|
//! | [`http`] | requests in, answers out; every size and every wait has a limit |
//! | [`tenant`] | a module, its budgets, and what becomes of a request |
//! | [`server`] | connections: how many, who is sent away, and the end |
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

/// What the process has allocated, which `GET /-/` tells.
#[global_allocator]
pub static HEAP: janus::Counted = janus::Counted::new();
