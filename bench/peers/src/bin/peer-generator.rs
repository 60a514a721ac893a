//! The peer generator, on which may is built: the raw switch.

use std::hint::black_box;
use std::time::Instant;

use generator::{Gn, done};
use peers::{Request, SWITCHES, figure, ns_each, unsupported};

fn main() {
    let request = Request::from_arguments();
    if request.workload != "switch" {
        unsupported("generator has no scheduler");
    }
    let round_trips = request.size(SWITCHES) / 2;
    let mut other = Gn::<()>::new_scoped(|mut scope| {
        for ball in 0.. {
            scope.yield_with(ball);
        }
        done!()
    });
    let start = Instant::now();
    for ball in 0..round_trips {
        assert_eq!(black_box(other.resume()), Some(ball));
    }
    figure("switch-out-of-line", ns_each(start, 2 * round_trips), "ns");
}
