//! The states of a task and the complete table of its transitions: SPEC-021 [SCHED:5.2.1] and [SCHED:5.2.2] "Task
//! States", with what `docs/decisions.md` adds: a yield, cancellation from every waiting state, a panic.
//!
//! [`Task`](crate::task::Task) keeps its state in its wake word and changes it only by the functions of `wake.rs`; each
//! of them is one [`Event`] here, and debug builds check the table on every change. The model test walks the table.

/// The stage of its life that a task is in.
///
/// ```
/// use janus::{Event, TaskState};
/// assert_eq!(TaskState::Running.after(Event::Exhaust), Some(TaskState::BudgetExhausted));
/// assert_eq!(TaskState::BudgetExhausted.after(Event::Recharge), Some(TaskState::Ready));
/// // What waits is woken before it ends: nobody ends a task from outside.
/// assert_eq!(TaskState::Blocked.after(Event::Cancel), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskState {
    /// In a queue, to be run.
    Ready = 0,
    /// On a worker.
    Running = 1,
    /// Waiting for a channel, a timer, a child.
    Blocked = 2,
    /// Stopped because a part of its budget is spent; goes on when recharged.
    BudgetExhausted = 3,
    /// Returned.
    Completed = 4,
    /// Ended because it was cancelled.
    Cancelled = 5,
    /// Ended by a panic, a stack overflow, or an exhausted budget that nobody could recharge.
    Failed = 6,
}

/// What moves a task from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A worker picks the task.
    Schedule,
    /// The task gives its worker to others and stays ready.
    Yield,
    /// The task waits.
    Block,
    /// What the task waited for has come, or the task is to see that it was cancelled.
    Wake,
    /// A part of the task's budget is spent.
    Exhaust,
    /// The task's budget was recharged, or the task is to see that it was cancelled.
    Recharge,
    /// The task returns.
    Return,
    /// The task ends as cancelled: while it runs, or before it ever ran.
    Cancel,
    /// The task ends by a panic, an overflow or an exhausted budget.
    Fail,
}

impl TaskState {
    /// Every state.
    pub const ALL: [TaskState; 7] = [
        TaskState::Ready,
        TaskState::Running,
        TaskState::Blocked,
        TaskState::BudgetExhausted,
        TaskState::Completed,
        TaskState::Cancelled,
        TaskState::Failed,
    ];

    /// The state after `event`, or `None` if the event cannot happen in this state.
    #[must_use]
    pub const fn after(self, event: Event) -> Option<TaskState> {
        use {Event as E, TaskState as S};
        Some(match (self, event) {
            (S::Ready, E::Schedule) => S::Running,
            (S::Running, E::Yield) => S::Ready,
            (S::Running, E::Block) => S::Blocked,
            (S::Running, E::Exhaust) => S::BudgetExhausted,
            (S::Running, E::Return) => S::Completed,
            (S::Running | S::Ready, E::Cancel) => S::Cancelled,
            (S::Running, E::Fail) => S::Failed,
            // A cancelled task that waits is woken, sees the cancellation and ends itself.
            (S::Blocked, E::Wake) | (S::BudgetExhausted, E::Recharge) => S::Ready,
            _ => return None,
        })
    }

    /// Whether the task has ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, TaskState::Completed | TaskState::Cancelled | TaskState::Failed)
    }

    pub(crate) const fn from_bits(bits: u32) -> TaskState {
        TaskState::ALL[(bits & 7) as usize]
    }
}

impl Event {
    /// Every event.
    pub const ALL: [Event; 9] = [
        Event::Schedule,
        Event::Yield,
        Event::Block,
        Event::Wake,
        Event::Exhaust,
        Event::Recharge,
        Event::Return,
        Event::Cancel,
        Event::Fail,
    ];
}
