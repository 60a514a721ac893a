//! A supervisor leaves its nursery.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    rt.run(|cx| {
        let supervisor = cx.nursery(|n| Ok(n.supervisor())).unwrap();
        supervisor.exhausted();
    })
    .unwrap();
}
