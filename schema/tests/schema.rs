//! The schema, the generated code and `abi` say the same.

use std::path::Path;
use std::process::Command;

const INTERFACES: &str = include_str!("../capos.capnp");
const GENERATED: &str = include_str!("../src/messages_capnp.rs");

/// An interface, its number in the comment, its methods with their ordinals.
type Interface = (&'static str, u16, Vec<(&'static str, u32)>);

/// Those of the file, in its order.
fn interfaces() -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    for line in INTERFACES.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("interface ") {
            found.push((name.trim_end_matches(" {"), 0, Vec::new()));
        } else if let Some(interface) = found.last_mut() {
            if let Some(comment) = line.strip_prefix("# ") {
                let number = comment.split('.').next().unwrap();
                if interface.1 == 0 {
                    interface.1 = number.parse().expect("the first line of an interface has its number");
                }
            } else if let Some((name, rest)) = line.split_once(" @") {
                let ordinal = rest.split(' ').next().unwrap();
                interface.2.push((name, ordinal.parse().unwrap()));
            }
        }
    }
    found
}

#[test]
fn interfaces_are_those_of_the_abi() {
    let found: Vec<(&str, u16)> = interfaces().into_iter().map(|(name, number, _)| (name, number)).collect();
    let expected: Vec<(&str, u16)> =
        abi::Interface::ALL.into_iter().map(|interface| (interface.name(), interface as u16)).collect();
    assert_eq!(found, expected);
}

#[test]
fn methods_have_the_numbers_of_the_schema() {
    let found: Vec<(&str, &str, u32)> = interfaces()
        .into_iter()
        .flat_map(|(interface, _, methods)| {
            methods.into_iter().map(move |(method, number)| (interface, method, number))
        })
        .collect();
    assert_eq!(found, schema::methods::ALL);
}

/// The committed code is what the generator makes; only where the tools are installed, in the version that made it.
#[test]
fn generated_code_is_up_to_date() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    std::fs::create_dir_all(&folder).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("generate.sh");
    let output = Command::new(script).arg(&folder).output().unwrap();
    if output.status.code() == Some(3) {
        eprintln!("not compared: {}", String::from_utf8_lossy(&output.stderr).trim());
        return;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let fresh = std::fs::read_to_string(folder.join("messages_capnp.rs")).unwrap();
    let version =
        |text: &str| text.lines().find(|line| line.starts_with("// capnpc crate version")).map(str::to_owned);
    if version(&fresh) != version(GENERATED) {
        eprintln!("not compared: made by another version of capnpc, {:?}", version(&fresh));
        return;
    }
    // Comments hold versions of the tools.
    let code =
        |text: &str| text.lines().filter(|line| !line.starts_with("//")).collect::<Vec<_>>().join("\n");
    assert!(code(&fresh) == code(GENERATED), "run schema/generate.sh and commit what it writes");
}
