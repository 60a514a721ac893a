//! What nearly every program needs: `use janus::prelude::*;`

pub use crate::{
    Budget, Cancelled, Config, Cx, Handle, NurseryOptions, OnExhausted, Receiver, Resource, Runtime, Scope,
    Selected, Sender, SpawnError, TaskError, channel,
};
