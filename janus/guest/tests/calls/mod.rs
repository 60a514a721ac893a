//! Random modules that are mostly calls: functions of all sizes, each of which calls only those after it, so that every
//! module ends.

use std::fmt::Write;

/// Functions of a module.
const FUNCTIONS: u32 = 9;
/// How deep constructs are nested.
const DEPTH: u32 = 4;

struct Source(u64);

impl Source {
    /// A number below `below`.
    fn draw(&mut self, below: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) % u64::from(below)) as u32
    }

    /// Later functions are smaller: for the last ones, callers pay the whole cost.
    fn block(&mut self, function: u32, depth: u32, out: &mut String) {
        for _ in 0..=self.draw(if depth == 0 { 5 } else { 2 }) {
            self.statement(function, depth, out);
        }
    }

    fn statement(&mut self, function: u32, depth: u32, out: &mut String) {
        let deep = depth >= DEPTH.min(FUNCTIONS - function);
        let bit = self.draw(8);
        let condition = format!("(i32.and (local.get $n) (i32.const {}))", 1 << bit);
        match self.draw(if deep { 3 } else { 9 }) {
            0 => out.push_str("(local.set $n (i32.mul (local.get $n) (i32.const 75)))\n"),
            1 | 2 => {
                let next = function + 1 + self.draw(FUNCTIONS);
                if next < FUNCTIONS {
                    let _ = writeln!(out, "(local.set $n (call $f{next} (local.get $n)))");
                } else {
                    out.push_str("(local.set $n (i32.add (local.get $n) (i32.const 3)))\n");
                }
            }
            3 | 4 => {
                let _ = writeln!(out, "(if {condition} (then");
                self.block(function, depth + 1, out);
                if self.draw(3) > 0 {
                    out.push_str(") (else\n");
                    self.block(function, depth + 1, out);
                }
                out.push_str("))\n");
            }
            5 => {
                out.push_str("(block\n");
                self.block(function, depth + 1, out);
                let _ = writeln!(out, "(br_if 0 {condition})");
                self.block(function, depth + 1, out);
                out.push_str(")\n");
            }
            6 => self.turn(function, depth, &condition, out),
            7 => {
                let _ = writeln!(out, "(if {condition} (then (return (local.get $n))))");
            }
            _ if function + 1 < FUNCTIONS => {
                let next = function + 1 + self.draw(FUNCTIONS - function - 1);
                let _ = writeln!(out, "(if {condition} (then (return_call $f{next} (local.get $n))))");
            }
            _ => out.push_str("nop\n"),
        }
    }

    /// A loop of a few turns, which counts in a local of its depth.
    fn turn(&mut self, function: u32, depth: u32, condition: &str, out: &mut String) {
        let turns = 1 + self.draw(3);
        let _ = writeln!(out, "(local.set $i{depth} (i32.const {turns}))\n(block (loop");
        self.block(function, depth + 1, out);
        if self.draw(2) == 0 {
            let _ = writeln!(out, "(br_if 1 {condition})");
        }
        let count = format!("(local.tee $i{depth} (i32.sub (local.get $i{depth}) (i32.const 1)))");
        if self.draw(2) == 0 {
            let _ = writeln!(out, "(br_if 0 {count})");
        } else {
            let _ = writeln!(out, "(br_if 1 (i32.eqz {count}))\n(br 0)");
        }
        out.push_str("))\n");
    }
}

/// The module of a seed, as text. One function is exported, one is in a table; functions that can be reached otherwise
/// than by calls charge themselves.
pub(crate) fn module(seed: u64) -> String {
    let mut source = Source(seed);
    let mut out = String::from("(module (table funcref (elem $f4))\n");
    for function in 0..FUNCTIONS {
        let _ = write!(out, "(func $f{function} (param $n i32) (result i32)");
        for depth in 0..DEPTH {
            let _ = write!(out, " (local $i{depth} i32)");
        }
        out.push('\n');
        source.block(function, 0, &mut out);
        out.push_str("local.get $n)\n");
    }
    let _ = writeln!(out, "(func (export \"run\") (result i32) (call $f0 (i32.const {seed}))))");
    out
}
