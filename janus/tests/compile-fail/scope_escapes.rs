//! A scope leaves its nursery: a spawn after the close.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    rt.run(|cx| {
        let mut kept = None;
        cx.nursery(|n| { kept = Some(n); Ok(()) }).unwrap();
        drop(kept.unwrap().spawn(|_| 1));
    })
    .unwrap();
}
