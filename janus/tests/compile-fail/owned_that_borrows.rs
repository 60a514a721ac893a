//! A child that was said to own everything must not borrow: it may be given up, and its parent goes on.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    let mut names = vec![String::new()];
    let list = &mut names;
    let _ = rt.run(|cx| {
        let _ = cx.nursery(|n| { drop(n.task().owned().spawn(move |_| list.sort())); Ok(()) });
    });
}
