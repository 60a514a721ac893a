//! The committed headers are what cbindgen makes of the sources. `JANUS_BLESS=1 cargo test -p janus-capi --test headers`
//! writes them anew; the interface is frozen, so read the difference.

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use std::path::Path;

const NOTE: &str = "Made by cbindgen from the sources in janus/capi/src; to change it, change those.";

/// Rust types and their names in C; and whether the specification uses the Rust name.
const NAMES: [(&str, &str, bool); 10] = [
    ("Runtime", "janus_runtime", true),
    ("RuntimeConfig", "janus_runtime_config", true),
    ("TaskFn", "janus_task_fn", true),
    ("Budget", "janus_budget", true),
    ("SavedRegisters", "janus_saved_registers", true),
    ("Context", "janus_context", true),
    ("SchedulerConfig", "janus_scheduler_config", true),
    ("Limits", "janus_limits", false),
    ("ChildOptions", "janus_child_options", false),
    ("Channel", "janus_channel", false),
];

/// The end of a header: on request, the specification's names of the types that are defined in it.
fn spec_names(header: &str) -> String {
    let defined =
        |name: &str| header.contains(&format!(" {name};\n")) || header.contains(&format!("(*{name})("));
    let lines: String = NAMES
        .iter()
        .filter(|(_, name, specified)| *specified && defined(name))
        .map(|(rust, name, _)| format!("typedef {name} {rust};\n"))
        .collect();
    let about = "/* The specification's names of the types above. */";
    if lines.is_empty() { lines } else { format!("#ifdef JANUS_SPEC_NAMES\n{about}\n{lines}#endif\n\n") }
}

/// Generates the header for the exports of `source`.
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
    config.export.exclude = vec!["Body".into(), "Message".into()];
    config.export.rename = NAMES.iter().map(|(rust, c, _)| (rust.to_string(), c.to_string())).collect();
    config.export.rename.insert("CapabilityToRecharge".into(), "janus_cap_budget".into());
    let made = Builder::new().with_config(config).with_src(here.join("src").join(source)).generate();
    let mut bytes = Vec::new();
    made.expect("cbindgen reads the source").write(&mut bytes);
    // Rust's heading means nothing in C, but the text below it does.
    let header = String::from_utf8(bytes).expect("a header is text").replace(" # Safety\n", "");
    // At the end of the header, within its include guard.
    let end = format!("#endif  /* {guard} */\n");
    header.replace(&end, &format!("{}{end}", spec_names(&header)))
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

#[test]
fn janus_task_h_is_up_to_date() {
    let about = "janus_task.h: what a task has beside janus.h: children with limits, names, stacks and grants; sleep; channels.";
    check("janus_task.h", &generate("tasks.rs", "JANUS_TASK_H", about, &["janus.h"]));
}
