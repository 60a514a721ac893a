#[budgeted]
fn closures(cx: &Cx, numbers: &[u64]) -> Result<u64, Cancelled> {
    let doubled = numbers.iter().map(|n| n * 2).filter(|n| good(n)).sum();
    let checked = |n: u64| -> Result<u64, Cancelled> {
        let mut left = n;
        while left > 1 {
            left /= 2;
        }
        Ok(left)
    };
    let total = cx.nursery(|nursery| {
        let quiet = nursery.spawn(|_| 7)?;
        let busy = nursery.task().name("busy").spawn(move |cx| spin(cx))?;
        let other = nursery.spawn(|child| loop { step(child) })?;
        quiet.join(cx)
    })?;
    checked(doubled)
}
