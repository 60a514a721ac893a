//! Two children change the same thing.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    rt.run(|cx| {
        let mut number = 1;
        cx.nursery(|n| {
            drop(n.spawn(|_| number += 1));
            drop(n.spawn(|_| number += 1));
         Ok(()) })
        .unwrap();
    })
    .unwrap();
}
