//! Deadlines: a leftist heap whose nodes live with whatever they belong to. No allocation; nothing takes more than O(log n) steps.
//!
//! A leftist heap has its nearest deadline at the root and keeps its right spine short, so with few timers an insertion touches
//! one or two nodes. Ties go by insertion order. Each node keeps the ranks of its children, so that balancing looks at one node.

/// "No node" in a link.
const NONE: u32 = u32::MAX;

/// What a queue keeps with each timer. `Node::default()` is in no queue.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    deadline: u64,
    /// Orders equal deadlines.
    sequence: u64,
    left: u32,
    right: u32,
    parent: u32,
    /// Nodes on the right spine of each child; a heap of n nodes has at most log2(n + 1).
    left_rank: u8,
    right_rank: u8,
    queued: bool,
}

impl Default for Node {
    fn default() -> Node {
        Node::IDLE
    }
}

impl Node {
    /// In no queue.
    pub const IDLE: Node = Node {
        deadline: 0,
        sequence: 0,
        left: NONE,
        right: NONE,
        parent: NONE,
        left_rank: 0,
        right_rank: 0,
        queued: false,
    };

    /// Whether it is in a queue.
    pub const fn is_queued(&self) -> bool {
        self.queued
    }

    /// Its deadline; while it is in a queue.
    pub const fn deadline(&self) -> u64 {
        self.deadline
    }

    fn key(&self) -> (u64, u64) {
        (self.deadline, self.sequence)
    }

    /// Puts the child with the longer spine on the left; returns the length of its own.
    fn balance(&mut self) -> u8 {
        if self.left_rank < self.right_rank {
            core::mem::swap(&mut self.left, &mut self.right);
            core::mem::swap(&mut self.left_rank, &mut self.right_rank);
        }
        self.right_rank + 1
    }
}

/// Where the nodes are. Several queues may share a store; a node is in one of them at most.
pub trait Store {
    /// The node of timer `id`.
    fn node(&mut self, id: u32) -> &mut Node;
}

impl Store for [Node] {
    fn node(&mut self, id: u32) -> &mut Node {
        &mut self[id as usize]
    }
}

/// A queue of deadlines.
#[derive(Debug)]
pub struct TimerQueue {
    root: u32,
    /// The root's deadline, so that asking for it touches no node.
    first: u64,
    sequence: u64,
    len: u32,
}

impl Default for TimerQueue {
    fn default() -> TimerQueue {
        TimerQueue::new()
    }
}

impl TimerQueue {
    /// An empty queue.
    pub const fn new() -> TimerQueue {
        TimerQueue { root: NONE, first: u64::MAX, sequence: 0, len: 0 }
    }

    /// The nearest deadline and its timer.
    pub const fn first(&self) -> Option<(u64, u32)> {
        if self.root == NONE { None } else { Some((self.first, self.root)) }
    }

    /// The nearest deadline, `u64::MAX` if there is none.
    pub const fn first_deadline(&self) -> u64 {
        self.first
    }

    /// How many timers are in it.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// Adds timer `id`, which must be in no queue.
    pub fn insert<S: Store + ?Sized>(&mut self, store: &mut S, id: u32, deadline: u64) {
        debug_assert!(id != NONE, "timerq: {NONE} names no timer");
        // A new timer comes after all with the same deadline, so down the right spine its place is before the first that is later; that
        // one becomes its left child, and its own spine has one node.
        let (mut parent, mut later) = (NONE, self.root);
        let mut left_rank = 0;
        while later != NONE {
            let node = store.node(later);
            if node.deadline > deadline {
                node.parent = id;
                left_rank = node.right_rank + 1;
                break;
            }
            parent = later;
            later = node.right;
        }
        let sequence = self.sequence;
        self.sequence += 1;
        self.len += 1;
        let node = store.node(id);
        debug_assert!(!node.queued, "timerq: timer {id} is queued already");
        *node = Node {
            deadline,
            sequence,
            left: later,
            right: NONE,
            parent,
            left_rank,
            right_rank: 0,
            queued: true,
        };
        if parent == NONE {
            self.root = id;
            self.first = deadline;
        } else {
            let node = store.node(parent);
            node.right = id;
            if node.right_rank != 1 {
                rebalance(store, parent, id, 1);
            }
        }
    }

    /// Takes timer `id` out; whether it was in a queue, which must be this one.
    pub fn cancel<S: Store + ?Sized>(&mut self, store: &mut S, id: u32) -> bool {
        let node = store.node(id);
        if !node.queued {
            return false;
        }
        let (left, right, parent) = (node.left, node.right, node.parent);
        node.queued = false;
        self.len -= 1;
        let heir = merge(store, left, right);
        if parent == NONE {
            debug_assert!(self.root == id, "timerq: timer {id} is in another queue");
            self.set_root(store, heir);
        } else {
            replace(store, parent, id, heir);
        }
        true
    }

    /// Takes the timer with the nearest deadline out, if that is not after `now`.
    pub fn pop_due<S: Store + ?Sized>(&mut self, store: &mut S, now: u64) -> Option<u32> {
        if self.root == NONE || self.first > now {
            return None;
        }
        let id = self.root;
        let node = store.node(id);
        let (left, right) = (node.left, node.right);
        node.queued = false;
        self.len -= 1;
        let root = merge(store, left, right);
        self.set_root(store, root);
        Some(id)
    }

    fn set_root<S: Store + ?Sized>(&mut self, store: &mut S, root: u32) {
        self.root = root;
        self.first = if root == NONE {
            u64::MAX
        } else {
            let node = store.node(root);
            node.parent = NONE;
            node.deadline
        };
    }
}

/// Merges two heaps; the parent of the root is left to the caller.
fn merge<S: Store + ?Sized>(store: &mut S, a: u32, b: u32) -> u32 {
    if a == NONE {
        return b;
    }
    if b == NONE {
        return a;
    }
    let (a_key, mut b_key) = (store.node(a).key(), store.node(b).key());
    let (mut upper, mut lower) = (a, b);
    if b_key < a_key {
        (upper, lower) = (b, a);
        b_key = a_key;
    }
    let root = upper;
    // Down the right spines: `upper` comes before `lower`, whose place is somewhere on the right of it.
    loop {
        let right = store.node(upper).right;
        if right == NONE {
            let node = store.node(lower);
            node.parent = upper;
            let rank = node.right_rank + 1;
            let node = store.node(upper);
            node.right = lower;
            node.right_rank = rank;
            break;
        }
        let right_key = store.node(right).key();
        if right_key < b_key {
            upper = right;
        } else {
            store.node(upper).right = lower;
            store.node(lower).parent = upper;
            upper = lower;
            lower = right;
            b_key = right_key;
        }
    }
    // And up again: each node was the right child of the one above.
    let mut at = upper;
    loop {
        let node = store.node(at);
        let rank = node.balance();
        if at == root {
            return root;
        }
        at = node.parent;
        store.node(at).right_rank = rank;
    }
}

/// Puts `heir` in the place of `child`, and restores the balance.
fn replace<S: Store + ?Sized>(store: &mut S, parent: u32, child: u32, heir: u32) {
    let mut rank = 0;
    if heir != NONE {
        let node = store.node(heir);
        node.parent = parent;
        rank = node.right_rank + 1;
    }
    let node = store.node(parent);
    if node.left == child {
        node.left = heir;
    } else {
        node.right = heir;
    }
    rebalance(store, parent, heir, rank);
}

/// The child of `at` has this rank now: restores the balance, up to where nothing changes.
fn rebalance<S: Store + ?Sized>(store: &mut S, mut at: u32, mut child: u32, mut rank: u8) {
    loop {
        let node = store.node(at);
        let before = node.right_rank + 1;
        if node.left == child {
            node.left_rank = rank;
        } else {
            node.right_rank = rank;
        }
        rank = node.balance();
        if rank == before || node.parent == NONE {
            return;
        }
        child = at;
        at = node.parent;
    }
}
