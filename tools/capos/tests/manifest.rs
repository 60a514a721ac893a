//! Manifests: the contents of a good one, each refusal with its line, and bytes that no compiler made.

use abi::{Interface, Overrun, rights};
use capos::manifest::{compile, compile_with};
use image::format::{RawContext, RawCpus, RawGrant, RawProcess, Record, TABLES_AT, table};
use image::{Class, ErrorKind, Manifest};
use proptest::prelude::*;

const GOOD: &str = include_str!("good.toml");
/// A manifest with nothing but init: the beginning of most bad ones. Ten lines.
const START: &str = r#"name = "bad"
[[process]]
name = "init"
program = "init"
grants = [
  "console", "boot_manifest",
  "process_spawner",
  "factory",
  "power",
]
"#;

fn good() -> Vec<u8> {
    compile("good.toml", GOOD).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_good_manifest_says_what_its_source_says() {
    let bytes = good();
    let manifest = Manifest::parse(&bytes).unwrap();
    assert_eq!((manifest.name(), manifest.source()), ("good", "good.toml"));
    let names: Vec<_> = manifest.processes().map(|process| (process.line, process.name)).collect();
    assert_eq!(names, [(4, "init"), (18, "store"), (31, "tour"), (40, "shell")]);

    let store = manifest.process("store").unwrap();
    assert_eq!((store.program, store.session, store.profile), ("kv-store", Some("operator"), Some("server")));
    assert_eq!(store.args().collect::<Vec<_>>(), ["--size", "64 KiB", ""]);
    assert!(!store.critical && store.after().next().is_none());
    let grants: Vec<_> = store.grants().collect();
    assert_eq!((grants[0].name, grants[0].interface, grants[0].line), ("out", Interface::Console, 24));
    assert_eq!((grants[1].object, grants[1].rights, grants[1].name), ("store", rights::RECV, "store"));
    assert_eq!((grants[2].interface, grants[2].object), (Interface::MemoryObject, "cache"));
    assert_eq!(grants[2].rights, rights::CALL | rights::WRITE);
    assert!(grants[3].is_own() && !grants[0].is_own());

    let shell = manifest.process("shell").unwrap();
    assert_eq!((shell.weight, shell.class, shell.critical), (128, Class::Interactive, true));
    assert_eq!(shell.after().collect::<Vec<_>>(), ["tour"]);
    let client = shell.grants().find(|grant| grant.name == "kv").unwrap();
    assert_eq!((client.badge, client.rights, client.line), (7, rights::CALL | rights::GRANT, 46));
    assert_eq!(manifest.process("tour").unwrap().weight, 64);

    assert_eq!(
        manifest.memories().map(|memory| (memory.name, memory.bytes)).collect::<Vec<_>>(),
        [("cache", 65536)]
    );
    let pools: Vec<_> = manifest.pools().collect();
    assert_eq!(pools[0].cpus.iter().collect::<Vec<_>>(), [2, 3, 255]);
    assert_eq!((pools[0].reservation, pools[0].max_leases), (Some((8_000_000, 10_000_000)), Some(2)));
    assert_eq!((pools[0].max_leases_per_account, pools[1].reservation), (Some(1), None));
    let grants: Vec<_> =
        manifest.pool_grants().map(|grant| (grant.name, grant.pool, grant.account)).collect();
    assert_eq!(grants, [("first", "fast", 5)]);
    let allow: Vec<_> =
        manifest.minter_allow().map(|allow| (allow.line, allow.pool, allow.account)).collect();
    assert_eq!(allow, [(74, "fast", 6), (75, "slow", 6)]);
    let profiles: Vec<_> = manifest.profiles().map(|p| (p.name, p.weight, p.class, p.reservation)).collect();
    assert_eq!(profiles, [("server", 256, Class::IpcServer, Some((1_000_000, 10_000_000)))]);
}

/// S-01: contexts, the words that grant them, and templates.
#[test]
fn s_01_a_good_manifest_has_contexts() {
    let bytes = good();
    let manifest = Manifest::parse(&bytes).unwrap();
    let [audio, plain] = manifest.contexts().collect::<Vec<_>>()[..] else { panic!("two contexts") };
    assert_eq!(
        (audio.line, audio.name, audio.budget_ns, audio.period_ns),
        (85, "audio", 2_000_000, 10_000_000)
    );
    assert_eq!((audio.deadline_ns, audio.overrun), (Some(5_000_000), Overrun::Fault));
    assert_eq!(audio.cpus.iter().collect::<Vec<_>>(), [0, 65]);
    assert_eq!((audio.criticality, audio.refills, audio.timeout), (7, Some(2), Some(("store", 9))));
    assert_eq!((plain.name, plain.budget_ns, plain.period_ns), ("plain", 20_000, 60_000_000_000));
    assert_eq!((plain.deadline_ns, plain.overrun, plain.criticality), (None, Overrun::Throttle, 0));
    assert_eq!((plain.refills, plain.timeout, plain.cpus.iter().count()), (None, None, 256));

    let of = |process: &str, name: &str| {
        let process = manifest.process(process).unwrap();
        process.grants().find(|grant| grant.name == name).unwrap()
    };
    let usual = rights::CALL | rights::GRANT | rights::WRITE;
    let any = of("tour", "scheduling_context");
    assert_eq!(
        (any.interface, any.object, any.rights),
        (Interface::SchedulingContext, "", usual | rights::up_to_band(2))
    );
    let named = of("store", "audio");
    assert_eq!((named.interface, named.object, named.rights), (Interface::SchedulingContext, "audio", usual));
    let sound = of("tour", "sound");
    assert_eq!((sound.object, sound.rights, sound.line), ("audio", rights::CALL | rights::REVOKE, 36));

    let template = |name: &str| manifest.process(name).unwrap().template();
    assert_eq!((template("store"), template("tour")), (Some((1_000_000, 10_000_000)), None));
}

/// The error for [`START`] followed by `more`.
fn refused(more: &str) -> String {
    let source = format!("{START}{more}");
    match compile("bad.toml", &source) {
        Ok(_) => panic!("taken:\n{source}"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn refuses(more: &str, line: u32, expected: &str) {
    let said = refused(more);
    let place = format!("manifest: bad.toml:{line}: ");
    assert!(said.starts_with(&place) && said.contains(expected), "wanted {place}…{expected}…\n   got {said}");
}

/// A process `x` (lines 11 to 13) with one more line, the 14th.
#[track_caller]
fn refuses_in_process(key: &str, expected: &str) {
    refuses(&format!("[[process]]\nname = \"x\"\nprogram = \"x\"\n{key}\n"), 14, expected);
}

#[test]
fn the_whole_message_reads_well() {
    let more = "[[process]]\nname = \"x\"\nprogram = \"x\"\ngrants = [\n  \"console\",\n  \"foo\",\n]\n";
    assert_eq!(
        refused(more),
        "manifest: bad.toml:16: process \"x\": unknown capability \"foo\"; known are console, timer, thread_spawner, \
         thread_control, process_spawner, park, virtual_memory, system_info, factory, power, session, boot_manifest, \
         scheduling_policy, endpoint, memory, scheduling_context"
    );
}

#[test]
fn form_is_checked() {
    refuses("[[process]\n", 11, "");
    refuses("name = \"twice\"\n", 11, "duplicate");
    refuses("[[proces]]\nname = \"x\"\n", 11, "unknown key \"proces\"; known are name, process");
    refuses("[[process]]\nname = \"x\"\n", 11, "process \"x\": `program` is missing");
    refuses("[[process]]\nprogram = \"x\"\n", 11, "process: `name` is missing");
    refuses("[process.x]\nname = \"x\"\n", 11, "");
    refuses("[memory]\nname = \"x\"\n", 11, "memory: a table where a list of tables");
    refuses_in_process("wieght = 3", "process \"x\": unknown key \"wieght\"; known are name, program, args");
    refuses_in_process("weight = \"3\"", "weight: a text where a whole number should be");
    refuses_in_process("weight = 3.5", "weight: a number with a point where a whole number");
    refuses_in_process("args = \"a b\"", "args: a text where a list should be");
    refuses_in_process("args = [1]", "args: a whole number where a text should be");
    refuses_in_process("critical = 1", "critical: a whole number where true or false should be");
    refuses_in_process("session = 1", "session: a whole number where a text should be");
    refuses_in_process("session = \"\"", "session \"\": a name is 1 to 24");
    refuses_in_process(
        "class = \"fast\"",
        "unknown class \"fast\"; known are interactive, normal, batch, ipcserver",
    );
    refuses_in_process("grants = [1]", "grants: a whole number where a text or a table should be");
    refuses_in_process("grants = [{ name = \"x\" }]", "grants: `cap` is missing");
    refuses_in_process(
        "grants = [{ cap = \"console\", right = [] }]",
        "unknown key \"right\"; known are cap, name",
    );
    refuses_in_process(
        "grants = [{ cap = \"console\", rights = [1] }]",
        "rights: a whole number where a text",
    );
    refuses("[minter]\nallowed = []\n", 12, "minter: unknown key \"allowed\"; known are allow");
    refuses("[minter]\nallow = [{ pool = \"p\" }]\n", 12, "minter: allow: `account` is missing");
    let nothing = compile("bad.toml", "").unwrap_err();
    assert!(nothing.to_string().contains("`name` is missing"), "{nothing}");
}

#[test]
fn processes_are_checked() {
    let no_init = "name = \"x\"\n[[process]]\nname = \"shell\"\nprogram = \"shell\"\n";
    assert!(
        compile("bad.toml", no_init)
            .unwrap_err()
            .to_string()
            .contains("bad.toml:2: process \"shell\": the first")
    );
    let nobody = compile("bad.toml", "name = \"x\"\n").unwrap_err();
    assert!(nobody.to_string().contains("the first process must be \"init\""), "{nobody}");
    let bad_name = compile("bad.toml", "name = \"a b\"\n").unwrap_err();
    assert!(bad_name.to_string().contains("bad.toml:1: name \"a b\": a name is"), "{bad_name}");
    let bad_init = "name = \"x\"\n[[process]]\nname = \"init\"\nprogram = \"init\"\n";
    for (more, expected) in [
        ("after = [\"init\"]\n", "5: process \"init\": `after` is not for init"),
        ("grants = [\"endpoint:x\"]\n", "5: process \"init\": an endpoint is not for init"),
        ("grants = [\"memory:x\"]\n", "5: process \"init\": a memory object is not for init"),
    ] {
        let said = compile("bad.toml", &format!("{bad_init}{more}")).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
    let process = |name: &str| format!("[[process]]\nname = \"{name}\"\nprogram = \"x\"\n");
    refuses(&process("init"), 11, "process \"init\" is in line 2 already");
    refuses(&(process("x") + &process("x")), 14, "process \"x\" is in line 11 already");
    refuses(&process("a b"), 11, "name \"a b\": a name is 1 to 24");
    refuses(
        &process("abcdefghijklmnopqrstuvwxy"),
        11,
        "name \"abcdefghijklmnopqrstuvwxy\": a name is 1 to 24",
    );
    refuses(&process(&"long".repeat(20)), 11, "longlon…\": a name is");
    refuses_in_process("weight = 0", "process \"x\": weight = 0 is outside 1 to 1024");
    refuses_in_process("weight = 1025", "weight = 1025 is outside");
    refuses_in_process("weight = -1", "weight = -1 is outside");
    refuses_in_process("weight = 99999999999999999999", "weight = 9223372036854775807 is outside");
    refuses(&(process("x") + "profile = \"p\"\n"), 11, "no [[profile]] has the name \"p\"");
    refuses_in_process("weight = 3\nprofile = \"p\"", "`profile` and `weight` at once");
    refuses_in_process("after = [\"y\"]", "`after` names \"y\", which is no process before this one");
    refuses_in_process("after = [\"x\"]", "`after` names \"x\"");
    refuses_in_process("after = [\"init\"]", "`after` names \"init\"");
    refuses(
        &(process("x") + &process("y") + "after = [\"x\", \"x\"]\n"),
        17,
        "`after` \"x\" is in line 17 already",
    );
    refuses_in_process("args = [\"a\\u0000b\"]", "an argument has a NUL");
    refuses_in_process(
        &format!("args = [\"{}\"]", "a".repeat(2048)),
        "take 2049 bytes with their NULs; 2048 fit",
    );
    refuses(&process("x").replace("\"x\"", "\"y z\"").replacen("y z", "x", 1), 11, "program \"y z\": a name");
    let many: String = (0..128).map(|number| process(&format!("p{number}"))).collect();
    assert!(refused(&many).contains("bad.toml: too many processes; at most 128 fit"));
    let args = vec!["\"\""; 65].join(",");
    assert!(
        refused(&(process("x") + &format!("args = [{args}]"))).contains("too many arguments; at most 64")
    );
    let grants: Vec<_> = (0..128).map(|n| format!("{{cap = \"park\", name = \"p{n}\"}}")).collect();
    let said = refused(&(process("x") + &format!("grants = [{}]", grants.join(","))));
    assert!(said.contains("too many grants; at most 127"), "{said}");
}

#[test]
fn grants_are_checked() {
    refuses_in_process("grants = [\"thread_handle\"]", "unknown capability \"thread_handle\"");
    refuses_in_process("grants = [\"\"]", "unknown capability \"\"");
    refuses_in_process("grants = [{ cap = \"foo:bar\" }]", "unknown capability \"foo\"");
    refuses_in_process(
        "grants = [\"endpoint\"]",
        "\"endpoint\" needs the name of what is granted: write \"endpoint:",
    );
    refuses_in_process("grants = [\"endpoint:\"]", "\"endpoint\" needs the name");
    refuses_in_process("grants = [\"endpoint:a b\"]", "endpoint \"a b\": a name is");
    refuses_in_process("grants = [\"console:x\"]", "\"console\" is one of a kind");
    refuses_in_process("grants = [\"memory:m\"]", "no [[memory]] has the name \"m\"");
    refuses_in_process("grants = [\"endpoint:e\"]", "nobody receives from \"endpoint:e\"");
    refuses_in_process("grants = [\"park\", \"park\"]", "grant \"park\" is in line 14 already");
    refuses_in_process(
        "grants = [{ cap = \"park\", name = \"a b\" }]",
        "the grant's name \"a b\": a name is",
    );
    refuses_in_process("grants = [{ cap = \"park\", rights = [] }]", "grant \"park\" has no rights");
    refuses_in_process(
        "grants = [{ cap = \"park\", rights = [\"own\"] }]",
        "unknown right \"own\"; known are call, recv",
    );
    refuses_in_process(
        "grants = [{ cap = \"park\", rights = [\"recv\"] }]",
        "right \"recv\" means nothing for \"park\"",
    );
    refuses_in_process(
        "grants = [{ cap = \"park\", rights = [\"write\"] }]",
        "right \"write\" means nothing",
    );
    refuses_in_process(
        "grants = [{ cap = \"park\", badge = 1 }]",
        "only an endpoint that is called has a badge",
    );
    let served = "grants = [{ cap = \"endpoint:e\", rights = [\"recv\"], badge = 1 }]";
    refuses_in_process(served, "only an endpoint that is called has a badge");
    refuses_in_process(
        "grants = [{ cap = \"endpoint:e\", badge = 0 }]",
        "badge = 0 is outside 1 to 4294967295",
    );
    refuses_in_process("grants = [\"timer\"]", "init must be granted \"timer\" to pass it on");
    refuses_in_process(
        "grants = [{ cap = \"console\", rights = [\"revoke\"] }]",
        "init must be granted \"console\" to pass it on, with these rights",
    );
}

/// S-17: a process gets its band from the manifest, and no higher one than init's.
#[test]
fn bands_are_granted() {
    let good = good();
    let image = Manifest::parse(&good).unwrap();
    let band = |process: &str| {
        let process = image.processes().find(|known| known.name == process).unwrap();
        let grant = process.grants().find(|grant| grant.name == "scheduling_context").unwrap();
        grant.rights & rights::BANDS
    };
    assert_eq!((band("init"), band("tour")), (rights::up_to_band(7), rights::up_to_band(2)));
    assert_eq!((0..=7).filter(|band| rights::allow_band(rights::up_to_band(2), *band)).max(), Some(2));
    assert!(!rights::allow_band(rights::KNOWN, 8) && rights::allow_band(0, 0));

    refuses_in_process(
        "grants = [{ cap = \"park\", band = 1 }]",
        "right \"band\" means nothing for \"park\"",
    );
    refuses_in_process("grants = [{ cap = \"scheduling_context\", band = 8 }]", "band = 8 is outside 0 to 7");
    let with = |init: u8, context: u8, more: &str| {
        let start = START.replace(
            "\"console\",",
            &format!("\"console\", {{ cap = \"scheduling_context\", band = {init} }},"),
        );
        let context = format!(
            "[[context]]\nname = \"c\"\nbudget_ns = 20000\nperiod_ns = 1000000\ncriticality = {context}\n"
        );
        let process = format!("[[process]]\nname = \"x\"\nprogram = \"x\"\ngrants = [{more}]\n");
        compile("bad.toml", &format!("{start}{process}{context}"))
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(
        with(
            3,
            3,
            "{ cap = \"scheduling_context\", band = 3 }, { cap = \"scheduling_context:c\", band = 3 }"
        ),
        Ok(())
    );
    let refused = |init, context, more, why: &str| {
        let said = with(init, context, more).unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    refused(3, 3, "{ cap = \"scheduling_context\", band = 4 }", "needs a higher `band` to pass it on");
    refused(3, 4, "\"scheduling_context:c\"", "needs a higher `band` to make what is granted here");
    refused(
        3,
        2,
        "{ cap = \"scheduling_context:c\", band = 3 }",
        "has criticality 2 and creates up to that band",
    );
}

#[test]
fn init_holds_what_it_needs() {
    let without = |cap: &str, more: &str| {
        let start = START.replace(&format!("\"{cap}\","), "");
        let source = format!("{start}[[process]]\nname = \"x\"\nprogram = \"x\"\n{more}\n");
        compile("bad.toml", &source).unwrap_err().to_string()
    };
    for (cap, more, line) in [
        ("boot_manifest", "", 11),
        ("process_spawner", "", 11),
        ("power", "critical = true", 11),
        ("factory", "grants = [{ cap = \"endpoint:e\", rights = [\"recv\"] }]", 14),
    ] {
        let said = without(cap, more);
        assert!(
            said.contains(&format!("bad.toml:{line}: process \"x\": init must be granted \"{cap}\"")),
            "{said}"
        );
    }
    // Only init can give another share than its own, directly or by a profile.
    let profile = "profile = \"p\"\n[[profile]]\nname = \"p\"\n";
    for share in [
        "weight = 65",
        "class = \"batch\"",
        &format!("{profile}weight = 128"),
        &format!("{profile}class = \"batch\""),
    ] {
        let said = without("nothing", share);
        let lacks =
            "process \"x\": init must be granted \"scheduling_policy\" to give this process another weight";
        assert!(said.contains(lacks), "{said}");
    }
    // The same holds for a budget.
    let profile = "profile = \"p\"\n[[profile]]\nname = \"p\"\nbudget_ns = 20000\nperiod_ns = 40000";
    let said = without("nothing", profile);
    let lacks =
        "11: process \"x\": init must be granted \"scheduling_context\" to give this process the budget";
    assert!(said.contains(lacks), "{said}");
    let same =
        format!("{START}[[process]]\nname = \"x\"\nprogram = \"x\"\nweight = 64\nclass = \"normal\"\n");
    assert!(compile("good.toml", &same).is_ok());
}

#[test]
fn pools_memory_and_profiles_are_checked() {
    let pool = "[[pool]]\nname = \"p\"\ncpus = [1]\n";
    refuses("[[pool]]\nname = \"p\"\ncpus = []\n", 11, "pool \"p\": no CPU in `cpus`");
    refuses("[[pool]]\nname = \"p\"\n", 11, "pool \"p\": no CPU in `cpus`");
    refuses("[[pool]]\nname = \"p\"\ncpus = [256]\n", 13, "pool \"p\": cpus = 256 is outside 0 to 255");
    refuses("[[pool]]\nname = \"p\"\ncpus = [1, 1]\n", 13, "CPU \"1\" is in line 11 already");
    refuses(&pool.repeat(2), 14, "pool \"p\" is in line 11 already");
    refuses(&format!("{pool}budget_ns = 20000\n"), 11, "period_ns is missing");
    refuses(&format!("{pool}period_ns = 20000\n"), 11, "budget_ns is missing");
    let half = "budget_ns = 30000\nperiod_ns = 20000\n";
    refuses(&format!("{pool}{half}"), 11, "budget_ns = 30000 is more time than period_ns = 20000");
    refuses(&format!("{pool}budget_ns = 0\n"), 14, "budget_ns = 0 is outside 20000 to");
    refuses(
        &format!("{pool}budget_ns = 20000\nperiod_ns = 60000000001\n"),
        15,
        "period_ns = 60000000001 is outside",
    );
    refuses(&format!("{pool}max_leases = 0\n"), 14, "max_leases = 0 is outside 1 to");
    refuses(
        &format!("{pool}max_leases_per_account = 65536\n"),
        14,
        "max_leases_per_account = 65536 is outside",
    );

    let grant = "[[pool_grant]]\nname = \"g\"\npool = \"p\"\naccount = 5\n";
    refuses(grant, 11, "pool_grant \"g\": no [[pool]] has the name \"p\"");
    refuses(&format!("{pool}{}", grant.repeat(2)), 18, "pool_grant \"g\" is in line 14 already");
    let other = grant.replace("\"g\"", "\"h\"");
    refuses(&format!("{pool}{grant}{other}"), 18, "account/pool \"5/p\" is in line 14 already");
    refuses(&format!("{pool}{}", grant.replace('5', "0")), 17, "account = 0 is outside 1 to");
    let allow = "{ pool = \"p\", account = 5 }";
    refuses(&format!("[minter]\nallow = [{allow}]\n"), 12, "minter: no [[pool]] has the name \"p\"");
    refuses(
        &format!("{pool}[minter]\nallow = [{allow}, {allow}]\n"),
        15,
        "account/pool \"5/p\" is in line 15 already",
    );

    let profile = "[[profile]]\nname = \"p\"\n";
    refuses(&profile.repeat(2), 13, "profile \"p\" is in line 11 already");
    refuses(&format!("{profile}weight = 2000\n"), 13, "profile \"p\": weight = 2000 is outside");
    refuses(&format!("{profile}class = \"x\"\n"), 13, "profile \"p\": unknown class");
    refuses(&format!("{profile}{half}"), 11, "profile \"p\": budget_ns = 30000 is more");

    let memory = "[[memory]]\nname = \"m\"\nbytes = 4096\n";
    refuses(&memory.repeat(2), 14, "memory \"m\" is in line 11 already");
    refuses(&memory.replace("4096", "0"), 13, "memory \"m\": bytes = 0 is outside 4096 to");
    refuses(&memory.replace("4096", "4097"), 11, "bytes = 4097 is not a multiple of the page size");
}

/// A context `c` (lines 11 to 14: 20 µs in 1 ms) with one more line, the 15th; `line` is where it is refused.
#[track_caller]
fn refuses_in_context(key: &str, line: u32, expected: &str) {
    let context = "[[context]]\nname = \"c\"\nbudget_ns = 20000\nperiod_ns = 1000000\n";
    refuses(&format!("{context}{key}\n"), line, expected);
}

#[test]
fn s_01_contexts_are_checked() {
    let context = "[[context]]\nname = \"c\"\nbudget_ns = 20000\nperiod_ns = 1000000\n";
    assert!(
        compile("good.toml", &format!("{START}{context}")).is_ok(),
        "what is wrong below is the line that is added"
    );
    refuses(&context.repeat(2), 15, "context \"c\" is in line 11 already");
    refuses(&context.replace("\"c\"", "\"a b\""), 11, "name \"a b\": a name is");
    refuses(&context.replace("budget_ns = 20000\n", ""), 11, "context \"c\": `budget_ns` is missing");
    refuses(&context.replace("period_ns = 1000000\n", ""), 11, "context \"c\": `period_ns` is missing");
    refuses(&context.replace("20000", "19999"), 13, "budget_ns = 19999 is outside 20000 to");
    refuses(
        &context.replace("1000000", "60000000001"),
        14,
        "period_ns = 60000000001 is outside 20000 to 60000000000",
    );
    refuses(&context.replace("1000000", "-1"), 14, "period_ns = -1 is outside");
    refuses(
        &context.replace("20000", "1000001"),
        11,
        "budget_ns = 1000001 is more time than period_ns = 1000000",
    );
    refuses(
        &context.replace("20000", "950001"),
        11,
        "950001 ns within 1000000 ns is more than the 95 % of a CPU that can be promised",
    );
    refuses_in_context(
        "deadline_ns = 30000000",
        11,
        "deadline_ns = 30000000 is outside budget_ns = 20000 to period_ns",
    );
    refuses_in_context("deadline_ns = 21000", 11, "20000 ns within 21000 ns is more than the 95 %");
    refuses_in_context("deadline_ns = 0", 15, "deadline_ns = 0 is outside");
    refuses_in_context("cpus = []", 11, "context \"c\": no CPU in `cpus`");
    refuses_in_context("cpus = [256]", 15, "cpus = 256 is outside 0 to 255");
    refuses_in_context("cpus = [1, 1]", 15, "CPU \"1\" is in line 11 already");
    refuses_in_context("cpus = 3", 15, "cpus: a whole number where a list should be");
    refuses_in_context(
        "overrun = \"wait\"",
        15,
        "unknown overrun \"wait\"; known are throttle, fault, demote",
    );
    refuses_in_context("overrun = 1", 15, "overrun: a whole number where a text should be");
    refuses_in_context("criticality = 8", 15, "criticality = 8 is outside 0 to 7");
    refuses_in_context("refills = 1", 15, "refills = 1 is outside 2 to 8");
    refuses_in_context("refills = 9", 15, "refills = 9 is outside 2 to 8");
    refuses_in_context("budget = 5", 15, "context \"c\": unknown key \"budget\"; known are name, budget_ns");
    refuses_in_context("overrun = \"fault\"", 11, "overrun \"fault\" needs `timeout`");
    refuses_in_context("timeout = \"e\"", 11, "`timeout` and `badge` are for overrun \"fault\"");
    refuses_in_context("badge = 1", 11, "`timeout` and `badge` are for overrun \"fault\"");
    refuses_in_context("overrun = \"demote\"\ntimeout = \"e\"", 11, "`timeout` and `badge` are for overrun");
    refuses_in_context("timeout = \"\"", 15, "timeout \"\": a name is");
    refuses_in_context("overrun = \"fault\"\ntimeout = \"a b\"", 11, "timeout \"a b\": a name is");
    refuses_in_context("overrun = \"fault\"\ntimeout = \"e\"", 11, "nobody receives from \"endpoint:e\"");
    let many: String = (0..129).map(|number| context.replace("\"c\"", &format!("\"c{number}\""))).collect();
    assert!(refused(&many).contains("bad.toml: too many contexts; at most 128 fit"));

    refuses_in_process("grants = [\"scheduling_context:c\"]", "no [[context]] has the name \"c\"; add it");
    refuses_in_process(
        "grants = [\"scheduling_context\"]",
        "init must be granted \"scheduling_context\" to pass it on",
    );
    let granted = "[[process]]\nname = \"x\"\nprogram = \"x\"\ngrants = [\"scheduling_context:c\"]\n";
    refuses(
        &format!("{granted}{context}"),
        14,
        "process \"x\": init must be granted \"scheduling_context\" to make what is granted here",
    );
    let start = START.replace("\"power\",", "\"scheduling_context\",");
    assert!(compile("good.toml", &format!("{start}{granted}{context}")).is_ok());
    let looks_only =
        START.replace("\"power\",", "{ cap = \"scheduling_context\", rights = [\"call\", \"grant\"] },");
    let said = compile("bad.toml", &format!("{looks_only}{granted}{context}")).unwrap_err().to_string();
    assert!(
        said.contains("bad.toml:14: process \"x\": init must be granted \"scheduling_context\" to make"),
        "{said}"
    );

    let init = |more: &str| {
        format!("name = \"x\"\n[[process]]\nname = \"init\"\nprogram = \"init\"\n{more}\n{context}")
    };
    let budget = "profile = \"p\"\n[[profile]]\nname = \"p\"\nbudget_ns = 20000\nperiod_ns = 40000";
    for (more, expected) in [
        (
            "grants = [\"scheduling_context:c\"]",
            "bad.toml:5: process \"init\": a context with time is not for init",
        ),
        (budget, "bad.toml:2: process \"init\": a profile with a budget is not for init"),
    ] {
        let said = compile("bad.toml", &init(more)).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
    let profile = "[[profile]]\nname = \"p\"\nbudget_ns = 990000\nperiod_ns = 1000000\n";
    refuses(profile, 11, "profile \"p\": 990000 ns within 1000000 ns is more than the 95 %");
}

/// The core accepts exactly what a manifest may ask for: the boundary is the same, to the last digit.
#[test]
fn s_11_the_promise_is_the_cores() {
    let bound = sched::Utilisation::BOUND;
    let mut refusals = 0;
    for period in [30_001_u64, 1_000_000, 1_000_007, 333_333_331, 59_999_999_999] {
        let edge = period / 100 * 95 + period % 100 * 95 / 100;
        for budget in edge - 2..=(edge + 2).min(period) {
            let context = format!("[[context]]\nname = \"c\"\nbudget_ns = {budget}\nperiod_ns = {period}\n");
            let is_taken = compile("edge.toml", &format!("{START}{context}")).is_ok();
            assert_eq!(is_taken, sched::Utilisation::of(budget, period) <= bound, "{budget} in {period}");
            refusals += usize::from(!is_taken);
        }
    }
    assert!((1..25).contains(&refusals), "the edge is among them");
}

#[test]
fn missing_programs_are_named() {
    let bytes = good();
    let manifest = Manifest::parse(&bytes).unwrap();
    assert_eq!(manifest.check_programs(|_| true), Ok(()));
    let said = manifest.check_programs(|name| name != "tour").unwrap_err().to_string();
    assert!(
        said.starts_with("manifest: good.toml:31: process \"tour\": program \"tour\" is not in the image"),
        "{said}"
    );
}

/// Where record `index` of a table is.
fn place(bytes: &[u8], number: usize, index: usize, record_bytes: usize) -> usize {
    let at = TABLES_AT + number * 8;
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize + index * record_bytes
}

/// Changes one record of a good manifest, and returns what the kernel says about it.
fn at_boot<R: Record>(number: usize, index: usize, change: impl Fn(&mut R)) -> (u32, ErrorKind, String) {
    let mut bytes = good();
    let at = place(&bytes, number, index, R::BYTES);
    let mut record = R::read(&bytes[at..]).unwrap();
    change(&mut record);
    let mut changed = Vec::new();
    record.write(&mut |piece| changed.extend_from_slice(piece));
    bytes[at..at + changed.len()].copy_from_slice(&changed);
    let error = Manifest::parse(&bytes).unwrap_err();
    (error.line, error.kind, error.to_string())
}

#[test]
fn the_kernel_checks_again_and_names_the_line() {
    let (_, _, said) = at_boot(table::PROCESS, 3, |process: &mut RawProcess| process.weight = 5000);
    assert_eq!(said, "manifest: good.toml:40: process \"shell\": weight = 5000 is outside 1 to 1024");
    let (line, _, said) = at_boot(table::PROCESS, 1, |process: &mut RawProcess| process.class = 4);
    assert!(line == 18 && said.contains("unknown class \"number 4\""), "{said}");
    let (line, _, said) = at_boot(table::GRANTS, 0, |grant: &mut RawGrant| grant.interface = 99);
    assert!(line == 8 && said.contains("unknown capability \"interface 99\""), "{said}");
    let (_, _, said) = at_boot(table::GRANTS, 0, |grant: &mut RawGrant| grant.interface = 4);
    assert!(
        said.contains("unknown capability \"interface 4\""),
        "a thread's handle cannot be granted: {said}"
    );
    let (_, _, said) = at_boot(table::GRANTS, 0, |grant: &mut RawGrant| grant.rights = 0x8000);
    assert!(said.contains("unknown right \"bits 0x8000\""), "{said}");
    let context = |change: fn(&mut RawContext)| at_boot(table::CONTEXT, 0, change);
    let (line, _, said) = context(|context| context.overrun = 3);
    assert!(line == 85 && said.contains("context \"audio\": unknown overrun \"number 3\""), "{said}");
    for (change, expected) in [
        ((|context| context.budget_ns = 0) as fn(&mut RawContext), "budget_ns = 0 is outside"),
        (|context| context.period_ns = 0, "period_ns is missing"),
        (|context| context.period_ns = u64::MAX, "period_ns = 9223372036854775807 is outside"),
        (|context| context.deadline_ns = 1, "deadline_ns = 1 is outside"),
        (|context| context.cpus = RawCpus::default(), "no CPU in `cpus`"),
        (|context| context.criticality = 256, "criticality = 256 is outside"),
        (|context| context.refills = 9, "refills = 9 is outside"),
        (|context| context.badge = 1 << 32, "badge = 4294967296 is outside"),
        (|context| context.overrun = 2, "`timeout` and `badge` are for overrun"),
        (|context| context.timeout.len = 0, "overrun \"fault\" needs `timeout`"),
        (|context| context.timeout = context.name, "nobody receives from \"endpoint:audio\""),
    ] {
        let (line, _, said) = context(change);
        assert!(line == 85 && said.contains(expected), "{said}");
    }
    let damaged =
        |(line, kind, _): (u32, ErrorKind, String)| line == 0 && matches!(kind, ErrorKind::Damaged { .. });
    assert!(damaged(context(|context| context.timeout.at = u32::MAX)));
    assert!(damaged(at_boot(table::PROCESS, 1, |process: &mut RawProcess| process.args.count = 1000)));
    assert!(damaged(at_boot(table::PROCESS, 1, |process: &mut RawProcess| process.name.at = u32::MAX)));
    let (line, kind, _) = at_boot(table::PROCESS, 1, |process: &mut RawProcess| process.flags = 2);
    assert!(line == 18 && matches!(kind, ErrorKind::Damaged { .. }));

    let kind_of = |bytes: &[u8]| Manifest::parse(bytes).unwrap_err().kind;
    assert_eq!(kind_of(b"capOSarc"), ErrorKind::NotAManifest);
    let mut bytes = good();
    assert!(matches!(kind_of(&bytes[..bytes.len() - 1]), ErrorKind::Damaged { .. }));
    bytes[8] = 9;
    assert_eq!(kind_of(&bytes), ErrorKind::Version { found: 9 });
}

/// Reads everything that a manifest holds.
fn read_all(manifest: &Manifest<'_>) -> usize {
    let processes: usize = manifest
        .processes()
        .map(|process| process.args().count() + process.grants().count() + process.after().count())
        .sum();
    processes
        + manifest.memories().count()
        + manifest.pools().map(|pool| pool.cpus.iter().count()).sum::<usize>()
        + manifest.pool_grants().count()
        + manifest.minter_allow().count()
        + manifest.profiles().count()
        + manifest.contexts().map(|context| context.cpus.iter().count()).sum::<usize>()
}

#[test]
fn a_proof_is_told_other_words() {
    let source = "name = 'x'\n[[process]]\nname = 'init'\nprogram = 'init'\nargs = ['a']\n\
                  grants = ['boot_manifest', 'process_spawner', 'console', 'power']\n\
                  [[process]]\nname = 'x'\nprogram = 'x'\nargs = ['1', '2']\n";
    let args_of = |words: &[&str]| -> Vec<Vec<String>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let bytes = compile_with("x.toml", source, &words).unwrap();
        let manifest = Manifest::parse(&bytes).unwrap();
        manifest.processes().map(|process| process.args().map(str::to_owned).collect()).collect()
    };
    assert_eq!(args_of(&[]), [vec!["a"], vec!["1", "2"]]);
    assert_eq!(args_of(&["10000"]), [vec!["a"], vec!["10000"]]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn hostile_bytes_do_not_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        words in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 0..3),
        noise in prop::collection::vec(any::<u8>(), 0..400),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = good();
        for (at, value) in &flips {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        for (at, value) in &words {
            let at = at.index(bytes.len() / 4) * 4;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let mut marked = bytes[..12].to_vec();
        marked.extend_from_slice(&noise);
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())], &noise, &marked] {
            match Manifest::parse(bytes) {
                Ok(manifest) => { read_all(&manifest); }
                Err(error) => { prop_assert!(error.to_string().starts_with("manifest: ")); }
            }
        }
    }

    #[test]
    fn hostile_text_does_not_panic(text in ".{0,200}", at in any::<prop::sample::Index>()) {
        let _ = compile("noise.toml", &text);
        let mut cut = at.index(GOOD.len());
        while !GOOD.is_char_boundary(cut) { cut -= 1; }
        let _ = compile("noise.toml", &format!("{}{text}{}", &GOOD[..cut], &GOOD[cut..]));
    }
}
