//! Stakes of contexts that have gone (K-29, S-13): a promise that leaves a CPU is charged to its session's quotas until it has left.
//!
//! There is no event when a promise has left its CPU: it would come in an interrupt, where nothing may be freed. So the stakes wait in a list, and
//! each caller that uses the list looks at a few of them, each stake in its turn. Every new stake makes its caller do so: if the CPU still holds
//! the promises of `n` stakes, the list has less than twice as many, and it never allocates.

use alloc::vec::Vec;

/// Stakes that are looked at in one piece of work.
pub const PIECE: usize = 4;

/// What is charged for a promise that leaves.
#[derive(Debug, PartialEq, Eq)]
pub struct Stake<S> {
    /// The number of the promise on its CPU.
    pub number: u64,
    /// The template of the promise's context; 0 if there is none.
    pub template: u64,
    /// Who is charged, and how much.
    pub payment: S,
}

/// The stakes of the promises that leave one CPU.
#[derive(Debug)]
pub struct Stakes<S> {
    all: Vec<Stake<S>>,
    /// How many stakes have not had their turn yet: those in front.
    turn: usize,
}

/// How far a caller has come that looks at all stakes, the last one first. Others may do so, too, and stakes may come and go meanwhile: the place
/// of a stake that goes is taken by the last of all, which was looked at already, is new, or stands in front as the other did.
#[derive(Debug)]
pub struct Round(usize);

impl Round {
    /// Whether all stakes were looked at.
    pub fn is_over(&self) -> bool {
        self.0 == 0
    }
}

impl<S> Stakes<S> {
    /// An empty list with room for the stakes of so many promises and for as many that have left.
    pub fn with_room(promises: usize) -> Stakes<S> {
        // K-30: at boot.
        Stakes { all: Vec::with_capacity(2 * promises), turn: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a stake; it is given back if there is no room until some have been looked at.
    pub fn push(&mut self, stake: Stake<S>) -> Result<(), Stake<S>> {
        if self.all.len() == self.all.capacity() {
            return Err(stake);
        }
        // K-30: there is room.
        self.all.push(stake);
        Ok(())
    }

    /// Looks at the next few stakes in their turn. Those for which `is_held` returns `false` are taken out, for the caller to drop without a lock.
    pub fn sweep(&mut self, is_held: impl FnMut(u64, &mut S) -> bool) -> [Option<S>; PIECE] {
        let end = if self.turn == 0 { self.all.len() } else { self.turn };
        let (gone, turn) = self.look(end, is_held);
        self.turn = turn;
        gone
    }

    /// Begins to look at all stakes that are there now.
    pub fn round(&self) -> Round {
        Round(self.all.len())
    }

    /// As [`Stakes::sweep`], for the next few stakes of a round.
    pub fn go_on(
        &mut self,
        round: &mut Round,
        is_held: impl FnMut(u64, &mut S) -> bool,
    ) -> [Option<S>; PIECE] {
        let (gone, left) = self.look(round.0, is_held);
        round.0 = left;
        gone
    }

    /// Looks at a few stakes in front of place `end`, the last of these first. Returns those that have gone, and how many are left in front.
    fn look(
        &mut self,
        end: usize,
        mut is_held: impl FnMut(u64, &mut S) -> bool,
    ) -> ([Option<S>; PIECE], usize) {
        let mut gone = [const { None }; PIECE];
        let end = end.min(self.all.len());
        let begin = end.saturating_sub(PIECE);
        for (at, place) in (begin..end).rev().zip(&mut gone) {
            let stake = &mut self.all[at];
            if !is_held(stake.number, &mut stake.payment) {
                *place = Some(self.all.swap_remove(at).payment);
            }
        }
        (gone, begin)
    }

    /// Takes out a stake of this template whose payment is `right`.
    pub fn take(&mut self, template: u64, right: impl Fn(&S) -> bool) -> Option<Stake<S>> {
        let is_it = |stake: &Stake<S>| stake.template == template && right(&stake.payment);
        let at = self.all.iter().position(is_it)?;
        Some(self.all.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stake(number: u64, template: u64) -> Stake<u64> {
        Stake { number, template, payment: number }
    }

    /// Numbers below the argument.
    fn random(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    fn sweep_all(stakes: &mut Stakes<u64>, held: &[u64]) -> Vec<u64> {
        let (mut gone, mut round) = (Vec::new(), stakes.round());
        while !round.is_over() {
            let some = stakes.go_on(&mut round, |number, _| held.contains(&number));
            gone.extend(some.into_iter().flatten());
        }
        gone
    }

    /// K-29: a stake goes when its promise has left, not before and once.
    #[test]
    fn k_29_a_stake_goes_with_its_promise() {
        let mut stakes = Stakes::with_room(8);
        (0..8).for_each(|number| assert_eq!(stakes.push(stake(number, 0)), Ok(())));
        let mut gone = sweep_all(&mut stakes, &[1, 4, 5]);
        gone.sort_unstable();
        assert_eq!((gone.as_slice(), stakes.len()), ([0, 2, 3, 6, 7].as_slice(), 3));
        assert!(sweep_all(&mut stakes, &[1, 4, 5]).is_empty());
        assert_eq!(sweep_all(&mut stakes, &[]).len(), 3);
        assert!(stakes.is_empty());
        assert_eq!(stakes.sweep(|_, _| true), [None; PIECE], "of none");
    }

    /// K-29: a round finds every stake whose promise had gone before, whatever other rounds do and whichever stakes come and go meanwhile.
    #[test]
    fn k_29_a_round_leaves_out_nobody() {
        for seed in 0..2_000u64 {
            let mut random = random(seed);
            let mut stakes = Stakes::with_room(40);
            let count = random(30);
            (0..count).for_each(|number| assert_eq!(stakes.push(stake(number, number)), Ok(())));
            let mut is_gone: Vec<bool> = (0..count).map(|_| random(2) == 0).collect();
            for _ in 0..random(12) {
                let _ = stakes.sweep(|_, _| true);
            }
            let mut round = stakes.round();
            let (before, mut number) = (is_gone.clone(), count);
            while !round.is_over() {
                stakes.go_on(&mut round, |number, _| !is_gone[number as usize]);
                match random(4) {
                    0 => {
                        let _ = stakes.sweep(|number, _| !is_gone[number as usize]);
                    }
                    1 => drop(stakes.take(random(number + 1), |_| true)),
                    2 if !is_gone.is_empty() => is_gone[random(number) as usize] = true,
                    _ => {
                        assert_eq!(stakes.push(stake(number, number)), Ok(()));
                        is_gone.push(false);
                        number += 1;
                    }
                }
            }
            let left_out = stakes.all.iter().find(|stake| before.get(stake.number as usize) == Some(&true));
            assert_eq!(left_out, None, "seed {seed}");
        }
    }

    /// K-30: with a sweep before each push the list never needs more room than it has, whichever promises go when.
    #[test]
    fn k_30_there_is_room_for_every_promise_that_leaves() {
        for seed in 0..200u64 {
            let mut random = random(seed);
            let promises = 1 + random(40) as usize;
            let mut stakes = Stakes::with_room(promises);
            let (mut held, mut dropped) = (Vec::new(), 0);
            for number in 0..2_000 {
                while held.len() >= promises || random(3) == 0 && !held.is_empty() {
                    held.swap_remove(random(held.len() as u64) as usize);
                }
                held.push(number);
                let gone = stakes.sweep(|number, _| held.contains(&number));
                dropped += gone.iter().flatten().count() as u64;
                assert!(gone.iter().flatten().all(|gone| !held.contains(gone)), "too early");
                assert_eq!(stakes.push(stake(number, 0)), Ok(()), "seed {seed}: {promises} promises");
            }
            assert!(held.iter().all(|held| stakes.all.iter().any(|stake| stake.number == *held)));
            dropped += sweep_all(&mut stakes, &[]).len() as u64;
            assert_eq!(dropped, 2_000, "every one, once");
        }
    }

    /// S-13: a successor gets the stake of a predecessor of its template that it may have, and no other.
    #[test]
    fn s_13_an_heir_finds_its_stake() {
        let mut stakes = Stakes::with_room(4);
        for (number, template) in [(1, 7), (2, 8), (3, 7)] {
            assert_eq!(stakes.push(stake(number, template)), Ok(()));
        }
        assert_eq!(stakes.take(9, |_| true), None);
        assert_eq!(stakes.take(7, |payment| *payment == 3), Some(stake(3, 7)));
        assert_eq!(stakes.take(7, |payment| *payment == 3), None);
        assert_eq!(stakes.len(), 2);
    }
}
