//! A child borrows a local of the scope's closure, which ends before the child may.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    rt.run(|cx| {
        cx.nursery(|n| {
            let local = 1;
            drop(n.spawn(|_| local + 1));
         Ok(()) })
        .unwrap();
    })
    .unwrap();
}
