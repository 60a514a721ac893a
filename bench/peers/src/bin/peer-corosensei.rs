//! The peer corosensei: the raw switch, inlined into its user as corosensei means it to be.

use std::time::Instant;

use corosensei::Coroutine;
use peers::{Request, SWITCHES, fail, figure, ns_each, unsupported};

fn main() {
    let request = Request::from_arguments();
    if request.workload != "switch" {
        unsupported("corosensei has no scheduler");
    }
    let round_trips = request.size(SWITCHES) / 2;
    let mut other = Coroutine::new(move |yielder, ()| {
        for _ in 0..round_trips {
            yielder.suspend(());
        }
    });
    let start = Instant::now();
    for _ in 0..round_trips {
        other.resume(());
    }
    let ns = ns_each(start, 2 * round_trips);
    // It has come back as often as it was entered exactly if it ends now.
    if other.resume(()).as_return().is_none() {
        fail("switch: it was entered less often than it was resumed");
    }
    figure("switch", ns, "ns");
}
