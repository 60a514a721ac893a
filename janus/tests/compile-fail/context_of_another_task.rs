//! A child acts for its parent.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    rt.run(|cx| cx.nursery(|n| { drop(n.spawn(|_| cx.check())); Ok(()) }).unwrap()).unwrap();
}
