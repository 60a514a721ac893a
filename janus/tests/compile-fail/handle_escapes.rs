//! A handle leaves its nursery.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    rt.run(|cx| {
        let handle = cx.nursery(|n| Ok(n.spawn(|_| 1))).unwrap();
        handle.join(cx).unwrap();
    })
    .unwrap();
}
