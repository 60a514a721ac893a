//! Memory: frames, the kernel's heap and stacks, page tables and address spaces.

pub mod asker;
pub mod frames;
pub mod heap;
pub mod paging;
pub mod payer;
pub mod percpu;
pub mod plant;
pub mod space;
pub mod stacks;
