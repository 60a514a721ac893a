//! Something that is made once.

use super::semaphore::Semaphore;
use crate::cx::Cx;
use crate::error::Cancelled;
use std::fmt;
use std::sync::OnceLock;

/// A value that is made by the task that needs it first; the others wait for it. If that task cannot make it (it
/// panics, is cancelled, returns an error), the next one does.
///
/// ```
/// # use janus::{Config, Runtime, sync::OnceCell};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let cell = OnceCell::new();
/// let both = runtime.run(|cx| (*cell.get_or_init(cx, |_cx| 1).unwrap(), *cell.get_or_init(cx, |_cx| 2).unwrap()));
/// assert_eq!(both.unwrap(), (1, 1));
/// ```
pub struct OnceCell<T> {
    value: OnceLock<T>,
    turn: Semaphore,
}

impl<T> OnceCell<T> {
    /// A cell without a value.
    #[must_use]
    pub fn new() -> OnceCell<T> {
        OnceCell { value: OnceLock::new(), turn: Semaphore::new(1) }
    }

    /// The value, if it is made.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// The value, made by `make` if it is not there. If it is there, the call costs nothing.
    #[track_caller]
    pub fn get_or_init(&self, cx: &Cx, make: impl FnOnce(&Cx) -> T) -> Result<&T, Cancelled> {
        self.get_or_try_init(cx, |cx| Ok(make(cx)))
    }

    /// As [`get_or_init`](OnceCell::get_or_init), with a `make` that can fail.
    #[track_caller]
    pub fn get_or_try_init<E: From<Cancelled>>(
        &self,
        cx: &Cx,
        make: impl FnOnce(&Cx) -> Result<T, E>,
    ) -> Result<&T, E> {
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        let _turn = self.turn.acquire(cx, 1)?;
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        let value = make(cx)?;
        Ok(self.value.get_or_init(|| value))
    }
}

impl<T> Default for OnceCell<T> {
    fn default() -> OnceCell<T> {
        OnceCell::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceCell").field(&self.value.get()).finish()
    }
}

/// A call that is made once: [`std::sync::Once`] with a [`Cx`].
#[derive(Debug, Default)]
pub struct Once(OnceCell<()>);

impl Once {
    /// Not done yet.
    #[must_use]
    pub fn new() -> Once {
        Once::default()
    }

    /// Makes the call, or waits until another task has made it.
    #[track_caller]
    pub fn call_once(&self, cx: &Cx, call: impl FnOnce(&Cx)) -> Result<(), Cancelled> {
        self.0.get_or_init(cx, call).copied()
    }

    /// Whether the call was made.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.0.get().is_some()
    }
}
