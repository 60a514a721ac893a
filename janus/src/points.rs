//! What [`budgeted`](crate::budgeted) inserts, beside the public calls of `Cx` and `Ticker`. Not for use by hand.

use crate::cx::Cx;
use crate::error::Cancelled;
use crate::panics;

/// A check point in a function that has no `Result` to return: if the task was cancelled, it unwinds to its end. In a
/// destructor that runs because of a panic it goes on, as a second panic would end the process.
#[inline(always)]
pub fn or_unwind(cx: &Cx, point: Result<(), Cancelled>) {
    if point.is_err() {
        unwind(cx);
    }
}

#[cold]
#[inline(never)]
fn unwind(cx: &Cx) {
    if !cx.panicking() {
        panics::unwind_cancelled(cx.task);
    }
}

/// A check point after `value` was made: an allocation that succeeded.
#[inline(always)]
pub fn after<T>(value: T, (): ()) -> T {
    value
}
