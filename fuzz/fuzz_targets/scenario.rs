//! Any bytes as a scenario file: read or refused by file and line, never a panic; what was read prints as text that reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::scenario::Scenario;

fuzz_target!(|bytes: &[u8]| {
    match Scenario::parse_bytes("fuzz.scn", bytes) {
        Ok(scenario) => {
            let printed = scenario.to_string();
            assert_eq!(Scenario::parse("printed.scn", &printed).as_ref(), Ok(&scenario), "{printed}");
        }
        Err(error) => assert!(error.to_string().starts_with("fuzz.scn:"), "{error}"),
    }
});
