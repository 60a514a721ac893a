//! A child returns a reference to a local of its own.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    rt.run(|cx| {
        cx.nursery(|n| {
            let child = n.spawn(|_| {
                let local = 1;
                &local
            });
            child.unwrap().join(cx).unwrap();
         Ok(()) })
        .unwrap();
    })
    .unwrap();
}
