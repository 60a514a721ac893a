//! Evidence for J-09 and J-11: what structured concurrency and capabilities forbid does not compile.

#[test]
fn what_must_not_compile_does_not() {
    trybuild::TestCases::new().compile_fail("tests/compile-fail/*.rs");
}
