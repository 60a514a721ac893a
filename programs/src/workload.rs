//! The work that is measured: blocks of memory that are mixed repeatedly, and a loop that touches no memory.
//!
//! This file uses nothing of capOS, so that it can be compiled into a benchmark for another system.

/// Words of a block; a block is 64 bytes, one cache line.
pub const BLOCK_WORDS: usize = 8;
/// Blocks of the whole work: 16 MiB.
pub const BLOCKS: usize = 262_144;
/// How often each block is mixed.
pub const ROUNDS: u64 = 64;

/// One block.
pub type Block = [u64; BLOCK_WORDS];

/// The content of block `at` before the work.
pub fn fresh(at: usize) -> Block {
    let mut seed = at as u64 ^ 0x9e37_79b9_7f4a_7c15;
    core::array::from_fn(|_| {
        seed = step(seed);
        seed
    })
}

/// Mixes every block `rounds` times, in memory order; returns a sum that depends on all of them.
#[inline(never)]
pub fn work(blocks: &mut [Block], rounds: u64) -> u64 {
    for round in 0..rounds {
        for block in blocks.iter_mut() {
            let mut carry = round;
            for word in block.iter_mut() {
                carry = (*word ^ carry).rotate_left(13).wrapping_mul(0x2545_f491_4f6c_dd1d);
                *word = carry;
            }
        }
    }
    sum(blocks)
}

/// A sum of all blocks; sums of parts add up to the sum of the whole.
pub fn sum(blocks: &[Block]) -> u64 {
    blocks.iter().flatten().fold(0, |sum, word| sum.wrapping_add(*word))
}

/// The range of blocks (from, to) that worker `at` of `workers` has.
pub fn part(blocks: usize, at: usize, workers: usize) -> (usize, usize) {
    (blocks * at / workers, blocks * (at + 1) / workers)
}

/// A bare compute loop of `turns`: no memory, no calls.
#[inline(never)]
pub fn spin(turns: u64, seed: u64) -> u64 {
    let mut value = seed | 1;
    for _ in 0..turns {
        value = step(value);
    }
    value
}

fn step(mut value: u64) -> u64 {
    value ^= value << 13;
    value ^= value >> 7;
    value ^ (value << 17)
}
