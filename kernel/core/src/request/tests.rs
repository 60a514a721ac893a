use super::*;
use proptest::prelude::*;

/// A field of an entry, and a way to set it.
type Field = (&'static str, fn(&mut Sqe));

/// Every field that an operation may or may not name.
const FIELDS: [Field; 9] = [
    ("cap", |sqe| sqe.cap = 7),
    ("method", |sqe| sqe.method = 1),
    ("len", |sqe| sqe.len = 8),
    ("addr", |sqe| sqe.addr = 0x1000),
    ("result_addr", |sqe| sqe.result_addr = 0x2000),
    ("result_len", |sqe| sqe.result_len = 16),
    ("xfer", |sqe| sqe.xfer = 9),
    ("arg0", |sqe| sqe.arg0 = 3),
    ("arg1", |sqe| sqe.arg1 = 4),
];

/// What the documentation of `Op` names, written down a second time.
fn documented(op: Op, inline: bool) -> &'static [&'static str] {
    match (op, inline) {
        (Op::Nop | Op::Yield, _) => &[],
        (Op::Call, false) => &["cap", "method", "len", "addr", "result_addr", "result_len", "xfer"],
        (Op::Call, true) => &["cap", "method", "arg0", "arg1", "result_addr", "result_len", "xfer"],
        (Op::Recv | Op::Read, _) => &["cap", "result_addr", "result_len"],
        (Op::Return, false) => &["cap", "method", "len", "addr", "result_addr", "xfer"],
        (Op::Return, true) => &["cap", "method", "arg0", "arg1", "result_addr", "xfer"],
        (Op::Park, _) => &["cap", "addr", "arg0", "arg1"],
        (Op::Unpark, _) => &["cap", "addr", "arg0"],
        (Op::Sleep, _) => &["cap", "arg0"],
        (Op::Write, _) => &["cap", "len", "addr"],
        (Op::Cancel, _) => &["arg0"],
        (Op::Release | Op::Revoke, _) => &["cap"],
        (Op::Copy, _) => &["cap", "arg0", "arg1"],
    }
}

fn entry(op: Op, flags: u16) -> Sqe {
    Sqe { op: op as u8, version: SQE_VERSION, flags, ..Sqe::default() }
}

/// K-28: of every operation, with every set of its flags, each field that it does not name is refused by one name, and each that it names is taken.
#[test]
fn k_28_fields_that_are_not_named_must_be_zero() {
    for op in Op::ALL {
        for flags in (0..=flags::ALL).filter(|flags| flags & !allowed_flags(op) == 0) {
            let is_moved = flags & flags::MOVE != 0;
            let plain = Sqe { xfer: if is_moved { 9 } else { 0 }, ..entry(op, flags) };
            assert!(decode(&plain).is_ok(), "{op:?} with flags {flags}");
            let named = documented(op, flags & flags::INLINE != 0);
            for (name, set) in FIELDS {
                let mut sqe = plain;
                set(&mut sqe);
                let expected = if named.contains(&name) { Ok(()) } else { Err(TransportError::BadFlags) };
                assert_eq!(decode(&sqe).map(|_| ()), expected, "{op:?} with flags {flags} and {name}");
            }
        }
    }
}

/// K-28: flags that an operation does not have are refused, and so are other versions and operations.
#[test]
fn k_28_what_an_entry_cannot_say_is_refused_by_name() {
    for op in Op::ALL {
        for bit in 0..16 {
            let flag = 1 << bit;
            let sqe = Sqe { xfer: 9 * u32::from(flag == flags::MOVE), ..entry(op, flag) };
            assert_eq!(decode(&sqe).is_ok(), allowed_flags(op) & flag != 0, "{op:?} with flag {flag}");
        }
        let other = Sqe { version: SQE_VERSION + 1, ..entry(op, 0) };
        assert_eq!(decode(&other), Err(TransportError::UnsupportedSqeVersion));
    }
    let unknown = Sqe { op: Op::COUNT as u8, ..entry(Op::Nop, 0) };
    assert_eq!(decode(&unknown), Err(TransportError::UnknownOp));
    assert_eq!(decode(&entry(Op::Call, flags::MOVE)), Err(TransportError::BadFlags), "nothing to move");
    let wide = Sqe { arg0: 1 << 32, ..entry(Op::Park, 0) };
    assert_eq!(decode(&wide), Err(TransportError::BadFlags));
    let rights = Sqe { arg0: 1 << 16, ..entry(Op::Copy, 0) };
    assert_eq!(decode(&rights), Err(TransportError::BadFlags));
    let badge = Sqe { arg1: 1 << 32, ..entry(Op::Copy, 0) };
    assert_eq!(decode(&badge), Err(TransportError::BadFlags));
}

/// Entries that are often nearly right.
fn any_entry() -> impl Strategy<Value = Sqe> {
    let word = || prop_oneof![4 => Just(0u64), 2 => 1..5u64, 1 => any::<u64>(), 1 => Just(1 << 32)];
    let half = || prop_oneof![4 => Just(0u32), 2 => 1..5u32, 1 => any::<u32>(), 1 => Just(1 << 16)];
    let head = (0..16u8, prop_oneof![9 => Just(SQE_VERSION), 1 => any::<u8>()], 0..=9u16, half());
    (head, any::<u64>(), half(), half(), word(), word(), half(), half(), word(), word()).prop_map(
        |(
            (op, version, flags, cap),
            user_data,
            method,
            len,
            addr,
            result_addr,
            result_len,
            xfer,
            arg0,
            arg1,
        )| Sqe {
            op,
            version,
            flags,
            cap,
            user_data,
            method,
            len,
            addr,
            result_addr,
            result_len,
            xfer,
            arg0,
            arg1,
        },
    )
}

/// The request that the fields of a usual entry stand for, as the kernel's fast paths read them.
fn meant(sqe: &Sqe) -> Request {
    let Sqe { cap, method, addr: address, arg0, arg1, .. } = *sqe;
    let result = Buffer { address: sqe.result_addr, length: sqe.result_len };
    let (said, passed) = (Said::Words([arg0, arg1]), Passed { cap: 0, is_moved: false });
    match shape::of_entry(sqe) {
        shape::CALL => Request::Call(Call { cap, method, said, result, passed }),
        shape::RECV => Request::Recv { cap, result },
        shape::RETURN => Request::Return(Return { cap, token: sqe.result_addr, method: 0, said, passed }),
        shape::PARK => Request::Park { cap, address, expected: arg0 as u32, timeout_ns: arg1 },
        shape::UNPARK => Request::Unpark { cap, address, count: arg0 },
        shape::SLEEP => Request::Sleep { cap, ns: arg0 },
        shape::YIELD => Request::Yield,
        shape => panic!("{shape:#x} is not usual"),
    }
}

fn usual(sqe: &Sqe) -> bool {
    is_usual(sqe, shape::of_entry(sqe))
}

/// K-28: the checks that decoding makes are those of the names.
#[test]
fn k_28_each_operation_is_checked_for_what_it_names() {
    for op in Op::ALL {
        for flags in [0, flags::INLINE] {
            for (name, set) in FIELDS {
                let mut sqe = entry(op, flags);
                set(&mut sqe);
                assert_eq!(
                    is_rest_zero_of(&sqe, op),
                    is_rest_zero(&sqe, named(op, flags)),
                    "{op:?} and {name}"
                );
            }
        }
    }
}

proptest! {
    /// K-28: whatever is taken for usual is exactly what decoding says.
    #[test]
    fn k_28_the_short_way_says_what_the_long_one_does(sqe in any_entry()) {
        if usual(&sqe) {
            prop_assert_eq!(decode(&sqe), Ok(meant(&sqe)));
        }
    }
}

/// K-28: the usual forms are recognised, or the test above would say nothing.
#[test]
fn k_28_usual_entries_are_recognised() {
    let usual_entries = [
        Sqe { cap: 1, method: 2, arg0: 3, arg1: 4, ..entry(Op::Call, flags::INLINE) },
        Sqe { cap: 1, result_addr: 5, result_len: 6, ..entry(Op::Recv, 0) },
        Sqe { cap: 1, result_addr: 5, arg0: 3, ..entry(Op::Return, flags::INLINE | flags::QUIET) },
        Sqe { cap: 1, addr: 8, arg0: 3, arg1: 4, ..entry(Op::Park, 0) },
        Sqe { cap: 1, addr: 8, arg0: 3, ..entry(Op::Unpark, flags::QUIET) },
        Sqe { cap: 1, arg0: 3, ..entry(Op::Sleep, 0) },
        entry(Op::Yield, 0),
    ];
    for sqe in usual_entries {
        assert!(usual(&sqe), "{sqe:?} is usual");
        assert_eq!(decode(&sqe), Ok(meant(&sqe)));
        for (name, set) in FIELDS {
            let mut other = sqe;
            set(&mut other);
            assert!(decode(&other).is_ok() || !usual(&other), "{name} of {sqe:?} is refused");
        }
    }
}
