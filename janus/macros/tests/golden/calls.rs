#[budgeted]
fn calls(cx: &Cx, text: &str) -> Result<String, Box<dyn Error>> {
    let plain = 1 + 2;
    let one = measure(text);
    let three = first(second(text), text.len());
    let parsed: u64 = text.parse()?;
    let some = Some(parsed);
    helper(cx, parsed)?;
    cx.yield_now()?;
    sender.send(cx, parsed)?;
    let value = if one > 3 { left(one) } else if right(one) { other() } else { 0 };
    let kind = match classify(value) {
        Kind::Big(size) if is_large(size) => big(size),
        Kind::Big(_) => 1,
        Kind::Small => {
            small();
            2
        }
    };
    let lazy = plain > 2 && check(kind) || three > 1;
    let Some(inner) = find(kind) else { return Err(missing().into()) };
    println!("{}, {}", describe(inner), lazy);
    custom!(inner, lazy);
    unsafe { raw(value).cast::<u8>().write(1) };
    fn nested() {
        loop {}
    }
    Ok(render(inner))
}
