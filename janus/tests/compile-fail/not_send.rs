//! A child gets what may not leave its thread.

use std::rc::Rc;

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    rt.run(|cx| {
        let counted = Rc::new(1);
        cx.nursery(|n| { drop(n.spawn(move |_| *counted)); Ok(()) }).unwrap();
    })
    .unwrap();
}
