//! Something that is made once.

use super::semaphore::Semaphore;
use crate::cx::Cx;
use crate::error::Cancelled;
use std::fmt;
use std::sync::OnceLock;

/// A value that is made by whoever needs it first; the others wait for it. Whoever cannot make it (it panics, is cancelled,
/// returns an error) leaves it to the next one.
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
    /// Not made yet.
    #[must_use]
    pub fn new() -> OnceCell<T> {
        OnceCell { value: OnceLock::new(), turn: Semaphore::new(1) }
    }

    /// The value, if it is made.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// The value, made by `make` if it is not there. To find it there costs nothing.
    #[track_caller]
    pub fn get_or_init(&self, cx: &Cx, make: impl FnOnce(&Cx) -> T) -> Result<&T, Cancelled> {
        self.get_or_try_init(cx, |cx| Ok(make(cx)))
    }

    /// The same with a `make` that can fail.
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

/// Something that is done once: [`std::sync::Once`] with a [`Cx`].
#[derive(Debug, Default)]
pub struct Once(OnceCell<()>);

impl Once {
    /// Not done yet.
    #[must_use]
    pub fn new() -> Once {
        Once::default()
    }

    /// Does it, or waits until it is done.
    #[track_caller]
    pub fn call_once(&self, cx: &Cx, call: impl FnOnce(&Cx)) -> Result<(), Cancelled> {
        self.0.get_or_init(cx, call).copied()
    }

    /// Is it done?
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.0.get().is_some()
    }
}
