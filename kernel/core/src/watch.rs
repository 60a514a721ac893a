//! What the watchdog concludes from what it sees of a CPU (K-27).

use core::fmt;

/// What a look at a CPU shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signs {
    /// Whether it is the CPU that looks.
    pub is_own: bool,
    /// Whether it has no thread to run, and said so.
    pub is_idle: bool,
    /// Whether it has recorded an event since the last look.
    pub has_moved: bool,
    /// Whether it has switched from one thread to another since then.
    pub has_switched: bool,
    /// Threads that wait for it; `None` if its queue is locked.
    pub waiting: Option<usize>,
    /// Whether a timer's deadline has long passed there.
    pub is_overdue: bool,
    /// Whether it was interrupted for something that it has not done.
    pub is_asked: bool,
    /// Whether it is in an interrupts-off span, which is measured.
    pub is_in_kernel: bool,
}

/// What a CPU that shows no sign of life has left undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undone {
    /// Threads wait, and it is idle or runs the same thread all the time.
    Queue(usize),
    /// A timer's deadline has passed.
    Deadline,
    /// Something that it was interrupted for.
    Request,
    /// Its queue is locked.
    Lock,
    /// It has entered the kernel, and has not left it.
    Kernel,
}

impl Signs {
    /// What the CPU has left undone, if it has shown no sign of life. A CPU with nothing to do may be as quiet as it likes.
    #[must_use]
    pub const fn undone(&self) -> Option<Undone> {
        if self.has_switched {
            return None;
        }
        // The CPU that looks takes interrupts.
        let is_silent = !self.has_moved && !self.is_own;
        if is_silent && self.is_asked {
            Some(Undone::Request)
        } else if is_silent && self.is_overdue {
            Some(Undone::Deadline)
        } else if let Some(count @ 1..) = self.waiting
            && (self.is_idle || is_silent)
        {
            // An idle CPU that takes interrupts and runs no thread does not dispatch either.
            Some(Undone::Queue(count))
        } else if !is_silent {
            None
        } else if self.waiting.is_none() {
            Some(Undone::Lock)
        } else if self.is_in_kernel {
            Some(Undone::Kernel)
        } else {
            None
        }
    }
}

/// What the watchdog does about a CPU that has left something undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing.
    Wait,
    /// Interrupt it: if it takes that, all is well.
    Interrupt,
    /// Raise the alarm.
    Alarm,
}

impl Undone {
    /// The step after `misses` looks in a row that found something undone, of `limit` that are granted.
    #[must_use]
    pub const fn step(self, misses: u32, limit: u32) -> Step {
        // For the others an interrupt would make the CPU dispatch, and so hide that it did not.
        let is_irq_off = matches!(self, Undone::Request | Undone::Lock | Undone::Kernel);
        if misses >= limit {
            Step::Alarm
        } else if misses + 1 == limit && is_irq_off {
            Step::Interrupt
        } else {
            Step::Wait
        }
    }
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undone::Queue(count) => write!(f, "does not dispatch, and {count} wait for it"),
            Undone::Deadline => f.write_str("takes no interrupts: a deadline has passed"),
            Undone::Request => f.write_str("takes no interrupts: a request waits"),
            Undone::Lock => f.write_str("takes no interrupts: its queue stays locked"),
            Undone::Kernel => f.write_str("takes no interrupts: it stays in the kernel"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Signs = Signs {
        is_own: false,
        is_idle: false,
        has_moved: false,
        has_switched: false,
        waiting: Some(0),
        is_overdue: false,
        is_asked: false,
        is_in_kernel: false,
    };

    #[test]
    fn k_27_a_quiet_cpu_is_left_alone() {
        assert_eq!(QUIET.undone(), None, "one thread in user mode, and nobody else");
        assert_eq!(Signs { is_idle: true, ..QUIET }.undone(), None);
        assert_eq!(Signs { is_own: true, is_asked: true, waiting: None, ..QUIET }.undone(), None);
    }

    #[test]
    fn k_27_what_is_undone_counts_without_a_sign_of_life() {
        let cases = [
            (Signs { waiting: Some(2), ..QUIET }, Undone::Queue(2)),
            (Signs { is_overdue: true, ..QUIET }, Undone::Deadline),
            (Signs { is_asked: true, ..QUIET }, Undone::Request),
            (Signs { waiting: None, ..QUIET }, Undone::Lock),
            (Signs { is_in_kernel: true, ..QUIET }, Undone::Kernel),
        ];
        for (signs, undone) in cases {
            assert_eq!(signs.undone(), Some(undone));
            assert_eq!(Signs { has_moved: true, ..signs }.undone(), None, "{undone:?}: it takes interrupts");
            assert_eq!(Signs { has_switched: true, ..signs }.undone(), None, "{undone:?}: it switches");
        }
        let asked = Signs { is_asked: true, is_overdue: true, waiting: Some(2), is_in_kernel: true, ..QUIET };
        assert_eq!(asked.undone(), Some(Undone::Request), "what says most comes first");
    }

    #[test]
    fn k_27_an_idle_cpu_with_threads_that_wait_does_not_dispatch() {
        let idle = Signs { is_idle: true, waiting: Some(1), has_moved: true, ..QUIET };
        assert_eq!(idle.undone(), Some(Undone::Queue(1)), "interrupts alone help nobody");
        assert_eq!(Signs { is_own: true, ..idle }.undone(), Some(Undone::Queue(1)), "nor the one that looks");
        assert_eq!(
            Signs { is_idle: false, ..idle }.undone(),
            None,
            "a busy one that takes interrupts is fair"
        );
    }

    #[test]
    fn k_27_the_last_look_but_one_asks_who_may_only_be_quiet() {
        let steps = |undone: Undone| [1, 8, 9, 10, 11].map(|misses| undone.step(misses, 10));
        use Step::{Alarm, Interrupt, Wait};
        for undone in [Undone::Request, Undone::Lock, Undone::Kernel] {
            assert_eq!(steps(undone), [Wait, Wait, Interrupt, Alarm, Alarm]);
        }
        for undone in [Undone::Queue(1), Undone::Deadline] {
            assert_eq!(steps(undone), [Wait, Wait, Wait, Alarm, Alarm]);
        }
    }
}
