//! The committed headers are what cbindgen makes of the sources. `JANUS_BLESS=1 cargo test -p janus-capi --test headers`
//! writes them anew; the interface is frozen, so read the difference.

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use std::path::Path;

const NOTE: &str = "Made by cbindgen from the sources in janus/capi/src; to change it, change those.";

/// A header: the C that says what `source` exports.
fn generate(source: &str, guard: &str, about: &str, includes: &[&str]) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = Config {
        language: Language::C,
        cpp_compat: true,
        include_guard: Some(guard.into()),
        header: Some(format!("/* {about}\n   {NOTE} */")),
        style: Style::Both,
        documentation_style: DocumentationStyle::C,
        line_length: 100,
        usize_is_size_t: true,
        no_includes: true,
        sys_includes: ["stdbool.h", "stddef.h", "stdint.h"].map(String::from).into(),
        includes: includes.iter().map(ToString::to_string).collect(),
        ..Config::default()
    };
    config.export.exclude = vec!["Body".into()];
    let made = Builder::new().with_config(config).with_src(here.join("src").join(source)).generate();
    let mut bytes = Vec::new();
    made.expect("cbindgen reads the source").write(&mut bytes);
    // Rust's heading means nothing in C; what it says does.
    String::from_utf8(bytes).expect("a header is text").replace(" # Safety\n", "")
}

fn check(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include").join(name);
    if std::env::var_os("JANUS_BLESS").is_some() {
        std::fs::write(&path, made).expect("the header can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "{name} is not what the sources say; write it anew with JANUS_BLESS=1 cargo test -p janus-capi --test headers"
    );
}

#[test]
fn janus_h_is_up_to_date() {
    let about =
        "janus.h: an M:N fiber runtime with budgets. The frozen interface, SPEC-021 sections 2.6 and 3.";
    check("janus.h", &generate("frozen.rs", "JANUS_H", about, &[]));
}

#[test]
fn janus_compiler_h_is_up_to_date() {
    let about = "janus_compiler.h: what compiled code calls beside janus.h. SPEC-021 section 12.1.";
    check("janus_compiler.h", &generate("compiler.rs", "JANUS_COMPILER_H", about, &["janus.h"]));
}
