//! Scripts against machines that are shell scripts.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use capos::qemu::{Guest, Machine, Medium};
use capos::script::{Played, Script};

/// Plays `script` with a machine that runs `program`.
fn play(test: &str, program: &str, script: &str) -> Result<(), String> {
    played(test, program, script).map(|_| ())
}

/// The same, with its result.
fn played(test: &str, program: &str, script: &str) -> Result<Played, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("script-{test}"));
    std::fs::create_dir_all(&folder).unwrap();
    let qemu = folder.join("machine.sh");
    std::fs::write(&qemu, format!("#!/bin/bash\n{program}\n")).unwrap();
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
    let machine = Machine { qemu, ..Machine::default() };
    let medium = Medium::Kernel { kernel: "kernel".into(), image: "image".into() };
    let mut guest = Guest::start(&machine, &medium, &folder.join("serial.log")).unwrap();
    let script = Script::parse("x.txt", &format!("boot x 1\n{script}\n")).unwrap();
    script.play(&mut guest).map_err(|problem| problem.to_string())
}

/// Prompts, echoes and answers, until `bye`.
const ECHO: &str = r#"
while printf '> ' && IFS= read -r -d $'\r' line; do
  printf '%s\r\n' "$line"
  [ "$line" = bye ] && exit 33
  printf '<%s>\r\n' "$line"
done"#;

#[test]
fn a_conversation_that_goes_as_written() {
    let script =
        "see >\nenter hello\nnever panic\nsee \\n>\nenter more\nsee <more>\nrow > |\nenter bye\noff 0";
    play("good", ECHO, script).unwrap();
}

#[test]
fn the_echo_is_not_the_answer() {
    let problem =
        play("echo", ECHO, "within 1\nsee >\nenter see me\nsee see me\nsee see me\noff 0").unwrap_err();
    assert!(problem.starts_with("x.txt:6: never saw `see me` within 1 s\n"), "{problem}");
    assert!(problem.contains("    | > see me\n    | <see me>\n"), "{problem}");
}

#[test]
fn colours_are_waited_for_and_screens_are_drawn() {
    let program = r"printf 'start\r\ntop \033[33mthrottled\033[0m\r\nend\r\n'; exit 33";
    let script = "colour yellow throttled\ncolour plain top\noff 0\npicture one top .. end";
    let played = played("colours", program, script).unwrap();
    let [(name, svg)] = played.pictures.as_slice() else { panic!("{played:?}") };
    assert!(name == "one" && svg.contains("top <tspan class=\"yellow\">throttled</tspan>"), "{svg}");
    assert!(!svg.contains("start") && !svg.contains(">end<"), "{svg}");
    assert_eq!(capos::picture::stale_word(svg, &played.text), None);
    let why = play("colour-missing", program, "colour red throttled\noff 0").unwrap_err();
    assert!(why.starts_with("x.txt:2: `throttled` was never Red"), "{why}");
    let why = play("picture-missing", program, "off 0\npicture one nowhere .. end").unwrap_err();
    assert!(why.starts_with("x.txt:3: no row begins with `nowhere`"), "{why}");
}

#[test]
fn long_lines_fail_the_step() {
    let script = |columns: usize| format!("columns {columns}\nsee >\nenter abc\nrow > |\nenter bye\noff 0");
    assert_eq!(play("columns-fit", ECHO, &script(5)), Ok(()));
    let why = play("columns-long", ECHO, &script(4)).unwrap_err();
    assert!(why.starts_with("x.txt:5: a line of 5 columns: `<abc>`"), "{why}");
}

#[test]
fn what_must_not_come_fails_the_step() {
    let problem = play("never", ECHO, "see >\nenter panic\nnever <panic\nsee \\n> ").unwrap_err();
    assert!(problem.starts_with("x.txt:5: saw `<panic`, which must not come"), "{problem}");
}

#[test]
fn a_row_is_what_a_terminal_shows() {
    let program = r"printf 'prompt> hepl\033[2D\033[Klp\033[1D'; sleep 100";
    play("row", program, "row prompt> hel|p\nrow prompt> help").unwrap();
    let problem = play("row-bad", program, "within 1\nrow prompt> help|").unwrap_err();
    assert!(problem.contains("the row is `prompt> hel|p`, not `prompt> help|`"), "{problem}");
}

#[test]
fn a_machine_that_ends_early_is_said_so() {
    let problem = play("early", "echo one; exit 35", "see two").unwrap_err();
    assert!(problem.contains("never saw `two`, and the machine powered off with status 1"), "{problem}");
    let problem = play("off", "exit 35", "off 0").unwrap_err();
    assert!(problem.contains("the machine powered off with status 1, not with 0"), "{problem}");
}
