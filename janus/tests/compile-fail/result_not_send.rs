//! A child returns what may not leave its thread.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    rt.run(|cx| cx.nursery(|n| { drop(n.spawn(|_| std::rc::Rc::new(1))); Ok(()) }).unwrap()).unwrap();
}
