use janus::*;
use std::sync::atomic::*;

fn rt(n: usize) -> Runtime { Runtime::new(unsafe { Config::new().workers(n).trusting() }).unwrap() }

#[test]
fn runs() {
    let rt = rt(1);
    assert_eq!(rt.run(|_| 42).unwrap(), 42);
    let v = vec![1, 2, 3];
    let s = rt.run(|cx| cx.nursery(|n| {
        let h = n.spawn(|_| v.iter().sum::<i32>()).unwrap();
        h.join(cx).unwrap()
    }).unwrap()).unwrap();
    assert_eq!(s, 6);
}
#[test]
fn many() {
    for w in [1, 2, 4] {
        let rt = rt(w);
        let c = AtomicU64::new(0);
        rt.run(|cx| cx.nursery(|n| { for _ in 0..100_000 { drop(n.spawn(|_| { c.fetch_add(1, Ordering::Relaxed); }).unwrap()); } }).unwrap()).unwrap();
        assert_eq!(c.load(Ordering::Relaxed), 100_000);
    }
}
#[test]
fn yields() {
    let rt = rt(2);
    let c = AtomicU64::new(0);
    rt.run(|cx| cx.nursery(|n| { for _ in 0..100 { drop(n.spawn(|cx| { for _ in 0..1000 { cx.yield_now().unwrap(); c.fetch_add(1, Ordering::Relaxed);} }).unwrap()); } }).unwrap()).unwrap();
    assert_eq!(c.load(Ordering::Relaxed), 100_000);
}
