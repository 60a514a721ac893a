//! One function at a time.

use janus::budgeted;

trait Step {
    #[budgeted]
    fn step(&self, cx: &janus::Cx);
}

struct Walker;

#[budgeted]
impl Walker {
    fn walk(&self, cx: &janus::Cx) {}
}

fn main() {}
