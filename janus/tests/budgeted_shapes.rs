//! Evidence for J-04: `#[budgeted]` changes nothing but the charges. Functions of every shape, each compiled twice from the same
//! source, with the attribute and without: both compile, and answer the same.

mod common;

use common::runtime;
use janus::{Cancelled, Cx, budgeted};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Mutex;

type Failure = Box<dyn Error + Send + Sync>;

macro_rules! twice {
    ($($(#[$attribute:meta])* fn $name:ident $given:tt -> $returned:ty $body:block)*) => {
        #[allow(unused_variables, reason = "only the budgeted ones use their context")]
        mod plain {
            use super::*;
            $($(#[$attribute])* pub(super) fn $name $given -> $returned $body)*
        }
        mod checked {
            use super::*;
            $($(#[$attribute])* #[budgeted] pub(super) fn $name $given -> $returned $body)*
        }
        /// Everything that the functions answer.
        fn answers(cx: &Cx) -> Vec<(&'static str, String, String)> {
            vec![$((
                stringify!($name),
                format!("{:?}", plain::$name(cx)),
                format!("{:?}", checked::$name(cx)),
            )),*]
        }
    };
}

fn even(n: u64) -> bool {
    n.is_multiple_of(2)
}

struct Point<T> {
    x: T,
    y: T,
}

twice! {
    // Temporaries that must live through a match, a loop, a condition.
    fn temporaries(cx: &Cx) -> u64 {
        let map = Mutex::new(BTreeMap::from([(1, 10), (2, 20)]));
        let cell = RefCell::new(vec![3, 1, 2]);
        let mut sum = match map.lock().unwrap().get(&2) {
            Some(found) if even(*found) => *found,
            Some(found) => found + 1,
            None => 0,
        };
        for n in cell.borrow().iter().map(|n| n * 2) {
            sum += n;
        }
        if let Some(first) = cell.borrow().first() && *first == 3 {
            sum += 100;
        }
        let kept = &String::from("kept").to_uppercase();
        let more = &mut vec![1, 2, 3];
        more.push(kept.len() as u64);
        while let Some(last) = cell.borrow_mut().pop() {
            sum += last;
        }
        sum + more.iter().sum::<u64>() + map.lock().unwrap().len() as u64
    }

    fn control(cx: &Cx) -> Result<u64, Failure> {
        let mut seen = 0_u64;
        'rows: for row in 0..20_u64 {
            for column in 0..20_u64 {
                if column > row {
                    continue 'rows;
                }
                if seen > 150 {
                    break 'rows;
                }
                seen += column;
            }
        }
        let power = loop {
            seen *= 2;
            if seen > 1_000 {
                break seen;
            }
        };
        let block = 'block: {
            if even(power) {
                break 'block 1;
            }
            2
        };
        let Some(third) = [1_u64, 2, 3].get(2).copied() else { return Err("three are three".into()) };
        let parsed: u64 = "17".parse()?;
        Ok(if even(parsed) { 0 } else if parsed == 16 { 1 } else { power + block + third + parsed })
    }

    fn lazily(cx: &Cx) -> Vec<bool> {
        let mut calls = 0;
        let mut told = |value: bool| {
            calls += 1;
            value
        };
        let mut all = vec![told(false) && told(true), told(true) || told(false), told(true) && (told(false) || told(true))];
        let some = Some(4_u64);
        if let Some(n) = some && even(n) && let Ok(m) = u8::try_from(n) && m > 3 {
            all.push(true);
        }
        all.push(matches!(some, Some(n) if even(n)));
        all.push(calls == 6);
        all
    }

    fn closures(cx: &Cx) -> (u64, Vec<u64>, String) {
        let base = 5;
        let add = move |n: u64| n + base;
        let mut log = Vec::new();
        let mut note = |n: u64| log.push(n);
        (0..4).map(add).filter(|n| even(*n)).for_each(&mut note);
        let shape = |n: u64| -> Result<u64, Failure> {
            let mut left = n;
            while left > 3 {
                left -= 3;
            }
            Ok(left + "1".parse::<u64>()?)
        };
        let once = { let text = String::from("moved"); move || text };
        let boxed: Box<dyn Fn(u64) -> u64> = Box::new(|n| n * 2);
        (shape(11).unwrap_or(0) + boxed(2), log, once())
    }

    fn allocations(cx: &Cx) -> (usize, String, usize) {
        let zeros = vec![0_u8; 7];
        let mut text = String::with_capacity(8);
        write!(text, "{}-{:>3}-{n}", zeros.len(), 5, n = zeros.first().map_or(9, |n| *n + 1)).unwrap();
        let list: Vec<Box<dyn Fn() -> u64>> = vec![Box::new(|| 1), Box::new(|| 2)];
        (vec![1, 2, 3].iter().filter(|n| **n > 1).count(), format!("{text}{}", 7.to_string() + "x"), list.len())
    }

    #[allow(clippy::let_and_return)]
    fn places(cx: &Cx) -> [u64; 4] {
        let mut point = Point { x: [1_u64; 2], y: [0; 2] };
        let pick = |p: &mut Point<[u64; 2]>, left: bool| if left { p.x[0] } else { p.y[0] };
        *(&mut point.x)[..].last_mut().unwrap() += pick(&mut point, true);
        point.y[usize::from(even(2))] = point.x.iter().sum();
        let Point { x: [a, b], y } = Point { y: [7, 8], ..point };
        let cx = [a, b];
        // The source's own `cx` is another thing now.
        [cx[0], cx[1], y[0], y[1]]
    }
}

struct Walker<'a> {
    cx: &'a Cx,
    steps: u64,
}

trait Walk {
    fn walk(&mut self, to: u64) -> u64;
    fn by_default(&self, cx: &Cx) -> Result<u64, Cancelled>;
}

impl Walk for Walker<'_> {
    #[budgeted(cx = self.cx)]
    fn walk(&mut self, to: u64) -> u64 {
        while self.steps < to {
            self.steps += 1;
        }
        self.steps
    }

    #[budgeted]
    fn by_default(&self, cx: &Cx) -> Result<u64, Cancelled> {
        Ok(self.steps)
    }
}

#[budgeted]
fn largest<'a, T: PartialOrd, const N: usize>(cx: &Cx, all: &'a [T; N]) -> Option<&'a T> {
    let mut largest = all.first()?;
    for one in all {
        if *one > *largest {
            largest = one;
        }
    }
    Some(largest)
}

/// # Safety
/// `from` points to `count` numbers.
#[budgeted]
unsafe extern "C-unwind" fn sum_of(cx: &Cx, from: *const u64, count: usize) -> u64 {
    let mut sum = 0;
    for n in 0..count {
        // SAFETY: the caller's.
        sum += unsafe { from.add(n).read() };
    }
    sum
}

#[budgeted]
fn squares(cx: &Cx) -> impl Iterator<Item = u64> + use<'_> {
    (1..4_u64).map(|n| n * n)
}

#[budgeted]
fn through_children(cx: &Cx) -> Result<u64, Failure> {
    let numbers = [1_u64, 2, 3];
    let sum = cx.nursery(|nursery| {
        let children: Vec<_> = numbers
            .iter()
            .map(|n| nursery.spawn(move |child| if child.is_cancelled() { 0 } else { n * 2 }))
            .collect();
        let quiet = nursery.task().name("quiet").spawn(|_| 1);
        let sum: u64 = children.into_iter().map(|child| child.join(cx).unwrap()).sum();
        Ok(sum + quiet.join(cx).unwrap())
    })?;
    Ok(sum)
}

#[test]
fn j_04_the_attribute_changes_no_answer() {
    let all = runtime(1).run(answers).unwrap();
    assert_eq!(all.len(), 6);
    for (name, plain, checked) in all {
        assert_eq!(plain, checked, "{name}");
    }
}

#[test]
fn j_04_methods_generics_and_foreign_functions() {
    runtime(1)
        .run(|cx| {
            let mut walker = Walker { cx, steps: 0 };
            assert_eq!((walker.walk(5_000), walker.by_default(cx)), (5_000, Ok(5_000)));
            assert_eq!(largest(cx, &[3, 9, 4]), Some(&9));
            // SAFETY: three numbers.
            assert_eq!(unsafe { sum_of(cx, [1, 2, 3].as_ptr(), 3) }, 6);
            assert_eq!(squares(cx).collect::<Vec<_>>(), [1, 4, 9]);
            assert_eq!(through_children(cx).unwrap(), 13);
        })
        .unwrap();
}
