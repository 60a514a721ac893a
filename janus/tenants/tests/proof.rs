//! J-12, J-13: the server under attack, a little of everything: `make run-tenants` is the same and longer.

use std::path::Path;
use std::process::Command;

/// Well-behaved tenants answer to the byte beside every bomb and every rude client; memory and descriptors come back; a
/// request that is open when the server ends is answered.
#[test]
fn j_12_j_13_tenants_under_attack() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/guests/build.sh");
    let built = Command::new(script).arg(&folder).output().expect("the build script starts");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "no guests; `tools/setup.sh wasm` installs a compiler for them: {said}");
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/tenants.conf");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenants"));
    let output =
        command.args(["proof", settings, "--short", "--modules"]).arg(&folder).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.lines().last(), Some("proof tenants: ok"), "{said}");
    assert!(output.status.success());
}
