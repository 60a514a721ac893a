//! A task that checks is no hog, also when it is alone and there is no other task to yield to.

use janus::{Config, Runtime};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_lone_task_that_checks_is_no_hog() {
    let hogs = Arc::new(AtomicUsize::new(0));
    let counted = hogs.clone();
    let count = move |_: &janus::Hog| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let config = Config::new().workers(1).watchdog(Some(Duration::from_millis(200))).on_hog(count);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(config) }.unwrap();
    let main = runtime.run(|cx| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(600) {
            cx.check().unwrap();
        }
    });
    main.unwrap();
    assert_eq!(hogs.load(Ordering::Relaxed), 0);
}
