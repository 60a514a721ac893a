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
#[test]
fn pingpong() {
    for w in [1, 2] {
        let rt = rt(w);
        let s = rt.run(|cx| {
            let (a, b) = channel::<u64>(0);
            let (c, d) = channel::<u64>(0);
            cx.nursery(|n| {
                drop(n.spawn(move |cx| { while let Ok(x) = b.recv(cx) { c.send(cx, x + 1).unwrap(); } }).unwrap());
                let mut x = 0;
                for _ in 0..50_000 { a.send(cx, x).unwrap(); x = d.recv(cx).unwrap(); }
                drop(a);
                x
            }).unwrap()
        }).unwrap();
        assert_eq!(s, 50_000);
    }
}
fn rec(n: u64) -> u64 { let a = std::hint::black_box([n; 20]); if n == u64::MAX { 0 } else { rec(n + 1) + a[3] } }
#[test]
fn overflow() {
    let rt = rt(2);
    for _ in 0..100 {
        let e = rt.run(|cx| cx.nursery(|n| { drop(n.spawn(|_| rec(0)).unwrap()); })).unwrap();
        assert!(matches!(e, Err(NurseryError::Child(TaskError::StackOverflow))), "{e:?}");
    }
}
#[test]
fn det() {
    let run = |seed, w| {
        let rt = Runtime::new(Config::new().workers(w).seed(seed)).unwrap();
        let log = std::sync::Mutex::new(Vec::new());
        rt.run(|cx| cx.nursery(|n| for i in 0..10 { let log = &log; drop(n.spawn(move |cx| for _ in 0..5 { log.lock().unwrap().push(i); cx.check().unwrap(); cx.sleep(std::time::Duration::from_millis(i)).unwrap(); }).unwrap()); }).unwrap()).unwrap();
        log.into_inner().unwrap()
    };
    for w in [1, 2, 4, 16] { assert_eq!(run(1, w), run(1, w)); assert_ne!(run(1, w), run(2, w)); }
}
#[test]
fn hog() {
    let rt = Runtime::new(unsafe { Config::new().workers(1).trusting().watchdog(Some(std::time::Duration::from_millis(20))) }).unwrap();
    let stop = AtomicBool::new(false);
    let c = AtomicU64::new(0);
    rt.run(|cx| cx.nursery(|n| {
        drop(n.spawn(|cx| while !stop.load(Ordering::Relaxed) { c.fetch_add(1, Ordering::Relaxed); cx.yield_now().unwrap(); }).unwrap());
        cx.yield_now().unwrap();
        drop(n.spawn(|_| while !stop.load(Ordering::Relaxed) {}).unwrap());
        cx.sleep(std::time::Duration::from_millis(200)).unwrap();
        let a = c.load(Ordering::Relaxed);
        cx.sleep(std::time::Duration::from_millis(100)).unwrap();
        assert!(c.load(Ordering::Relaxed) > a);
        stop.store(true, Ordering::Relaxed);
    }).unwrap()).unwrap();
}
