#[budgeted]
fn allocations(cx: &Cx, size: usize) -> Result<Vec<Box<u8>>, Cancelled> {
    let mut all = Vec::with_capacity(size);
    all.push(Box::new(1));
    let zeros = vec![zero(); size];
    let list = vec![1, 2, three()];
    let text = format!("{}", name());
    let copy = text.to_string();
    Ok(all)
}

#[budgeted]
fn boxed(cx: &Cx) -> Box<u8> {
    Box::new(1)
}
