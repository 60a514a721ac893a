//! Any bytes as a CPU mask (S-01): canonical ones survive a round trip bit for bit, all others are refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sched::{CpuId, CpuMask, MAX_CPUS};

fuzz_target!(|bytes: &[u8]| {
    let canonical = bytes.len() <= MAX_CPUS / 8 && bytes.last() != Some(&0);
    let Ok(mask) = CpuMask::from_bytes(bytes) else {
        assert!(!canonical, "a canonical mask was refused");
        return;
    };
    assert!(canonical, "a mask that is not canonical was accepted");
    let mut out = [0xff; MAX_CPUS / 8];
    let len = mask.to_bytes(&mut out);
    assert_eq!(&out[..len], bytes);
    let expected =
        (0..MAX_CPUS).filter(|cpu| bytes.get(cpu / 8).is_some_and(|byte| byte >> (cpu % 8) & 1 == 1));
    assert!(mask.iter().map(CpuId::index).eq(expected));
    assert_eq!(mask.count(), bytes.iter().map(|byte| byte.count_ones() as usize).sum());
});
