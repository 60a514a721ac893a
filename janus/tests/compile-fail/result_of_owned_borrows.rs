//! Nor may the result of one that owns everything borrow.

fn main() {
    let rt = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    let text = String::from("lent");
    let lent = text.as_str();
    let _ = rt.run_owned(move |_| lent.len());
}
