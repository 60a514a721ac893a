#[budgeted]
pub fn forever<T: Step>(step: &mut T, _: &janus::Cx) -> ! {
    loop {
        step.next();
    }
}

#[budgeted(unwind)]
fn named(cx: &Cx) -> Result<u32, String> {
    Ok(count()?)
}

#[budgeted(propagate)]
fn aliased(cx: &Cx) -> MyResult<u32> {
    Ok(count())
}

struct Worker<'a> {
    cx: &'a Cx,
}

impl<'a> Worker<'a> {
    #[inline]
    #[budgeted(cx = self.cx)]
    fn run(&mut self, n: u32) -> u32 {
        let mut left = n;
        #[allow(unused)]
        while left > 0 {
            left -= self.step(self.cx);
        }
        left
    }
}
