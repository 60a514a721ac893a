//! The number below 1,024 with the longest Collatz chain: children take ranges from one channel, as they come, and send
//! their answers to another. If a child fails, the program fails.

mod janus;

use janus::{Budget, Channel, Child, Error};

const CHILDREN: usize = 4;
const RANGES: u32 = 16;
const RANGE: u32 = 64;
/// What a child may use, out of its parent's budget: it receives and sends once for each range, and learns once that there
/// are no more.
const EACH: Budget = Budget {
    ops: 2_000_000,
    memory: 3 << 19,
    spawn_count: 0,
    channel_ops: 2 * RANGES as u64 + 1,
    syscalls: 0,
};

fn chain(start: u32) -> u32 {
    let (mut n, mut steps) = (u64::from(start), 0);
    while n > 1 {
        n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

/// A chain: its length first, so that the greatest value is the longest chain.
type Found = (u32, u32);

fn encode((steps, start): Found) -> [u8; 8] {
    (u64::from(steps) << 32 | u64::from(start)).to_le_bytes()
}

fn decode(message: [u8; 8]) -> Found {
    let both = u64::from_le_bytes(message);
    ((both >> 32) as u32, both as u32)
}

/// A child: the argument has the numbers of both channels. Returns how many ranges it has done.
extern "C" fn work(channels: i64) -> i64 {
    let (ranges, answers) = (Channel(channels as i32), Channel((channels >> 32) as i32));
    let (mut done, mut first) = (0, [0; 4]);
    while ranges.receive(&mut first) == Ok(4) {
        let first = u32::from_le_bytes(first);
        let best = (first.max(1)..first + RANGE).map(|start| (chain(start), start)).max();
        if answers.send(&encode(best.unwrap_or_default())).is_err() {
            return -1;
        }
        done += 1;
    }
    done
}

fn search() -> Result<Found, Error> {
    let (ranges, answers) = (Channel::new(RANGES)?, Channel::new(RANGES)?);
    let channels = i64::from(answers.0) << 32 | i64::from(ranges.0);
    let children: Vec<Child> =
        (0..CHILDREN).map(|_| Child::spawn(work, channels, Some(&EACH))).collect::<Result<_, _>>()?;
    for range in 0..RANGES {
        ranges.send(&(range * RANGE).to_le_bytes())?;
    }
    ranges.close()?;
    let (mut best, mut answer) = ((0, 0), [0; 8]);
    for _ in 0..RANGES {
        answers.receive(&mut answer)?;
        best = best.max(decode(answer));
    }
    let mut done = 0;
    for child in children {
        done += child.join()?;
    }
    assert_eq!(done, i64::from(RANGES), "a range was done twice, or not at all");
    Ok(best)
}

fn main() {
    let (steps, start) = search().expect("children, channels, and enough of both");
    println!("{start} takes {steps} steps");
}
