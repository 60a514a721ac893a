//! The end of a child, and of all children, in a select.

use super::Handle;
use crate::chan::Arm;
use crate::chan::sealed::{Either, Poll};
use crate::cx::Cx;
use crate::nursery::Nursery;

/// See [`Scope::arm`](crate::Scope::arm).
pub struct DrainArm<'a>(pub(super) &'a Nursery);

impl Poll for DrainArm<'_> {
    fn is_ready(&self, _cx: &Cx) -> bool {
        self.0.live() == 0
    }

    fn begin(&self, cx: &Cx) {
        if !self.needs_looks(cx) {
            self.0.expect();
        }
    }

    fn end(&self, cx: &Cx) {
        self.0.expect_none(cx.waiter());
    }

    fn is_outside(&self) -> bool {
        false
    }

    fn nursery(&self) -> *const () {
        std::ptr::from_ref(self.0).cast()
    }

    fn needs_looks(&self, cx: &Cx) -> bool {
        // The last child wakes only the task that opened the nursery.
        self.0.opener() != Some(cx.task)
    }
}

impl Either for DrainArm<'_> {
    fn polled(&self) -> Option<&dyn Poll> {
        Some(self)
    }
}

impl Arm for DrainArm<'_> {}

/// See [`Handle::arm`].
pub struct JoinArm<'a, T>(pub(super) &'a Handle<'a, T>);

impl<T> Poll for JoinArm<'_, T> {
    fn is_ready(&self, _cx: &Cx) -> bool {
        self.0.is_finished()
    }

    fn begin(&self, cx: &Cx) {
        if let (Ok(task), false) = (self.0.task, self.needs_looks(cx)) {
            task.join.wait(cx.waiter().bits());
            // If the child cannot go on, the waiting task learns of it, as in a join.
            if !self.0.nursery.never_starves() {
                self.0.nursery.expect_one(cx.waiter(), Some(cx.worker()));
            }
        }
    }

    fn end(&self, cx: &Cx) {
        if !self.0.nursery.never_starves() {
            self.0.nursery.expect_none(cx.waiter());
        }
    }

    fn is_outside(&self) -> bool {
        false
    }

    fn nursery(&self) -> *const () {
        std::ptr::from_ref(self.0.nursery).cast()
    }

    fn needs_looks(&self, cx: &Cx) -> bool {
        // A task of another runtime has to poll: see `Handle::wait`.
        !std::ptr::eq(cx.task.shared, self.0.nursery.shared)
    }
}

impl<T> Either for JoinArm<'_, T> {
    fn polled(&self) -> Option<&dyn Poll> {
        Some(self)
    }
}

impl<T> Arm for JoinArm<'_, T> {}
