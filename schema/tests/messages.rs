//! Messages survive the way, sizes are what they are said to be, and no bytes make a reader panic.

use proptest::prelude::*;
use schema::messages_capnp::*;
use schema::{TooSmall, decode, encode, words};

#[test]
fn plain_numbers_survive_the_way() {
    let mut buffer = [0xff; 64];
    let length = encode::<thread_spawner_create_params::Owned>(&mut buffer, 0, |mut params| {
        params.set_entry(0x20_1000);
        params.set_stack_top(0x7eff_ffff_0000);
        params.set_arg(u64::MAX);
        params.set_fs_base(5);
        params.set_flags(1);
    });
    assert_eq!(length, Ok(48));
    for shift in 0..8 {
        let mut moved = [0; 80];
        moved[shift..shift + 48].copy_from_slice(&buffer[..48]);
        let message = decode(&moved[shift..shift + 48]).unwrap();
        let params: thread_spawner_create_params::Reader<'_> = message.root().unwrap();
        assert_eq!((params.get_entry(), params.get_stack_top()), (0x20_1000, 0x7eff_ffff_0000));
        assert_eq!((params.get_arg(), params.get_fs_base(), params.get_flags()), (u64::MAX, 5, 1));
    }
}

#[test]
fn a_buffer_that_is_too_small_is_refused() {
    let mut buffer = [0; 47];
    let result = encode::<thread_spawner_create_params::Owned>(&mut buffer, 0, |_| unreachable!());
    assert_eq!(result, Err(TooSmall { needed: 48 }));
    for length in 0..8 {
        assert!(decode(&buffer[..length]).is_err());
    }
}

/// The sizes of `words` are exact: with one word less there is no room.
#[test]
fn a_spawn_survives_the_way_and_takes_what_was_said() {
    let grants = [("console", 0x1_0002u32, 3u16, 9u32), ("log", 0x1_0003, 31, 0)];
    let more = words::text(4)
        + words::text(0)
        + words::data(9)
        + words::structures::<grant::Owned>(2)
        + grants.iter().map(|grant| words::text(grant.0.len())).sum::<usize>();
    let mut buffer = [0; 512];
    let length = encode::<process_spawner_spawn_params::Owned>(&mut buffer, more, |mut params| {
        params.set_program("init");
        params.set_name("");
        params.set_args(b"one\0two\0\0");
        let mut list = params.init_grants(2);
        for (index, (name, cap, rights, badge)) in grants.into_iter().enumerate() {
            let mut grant = list.reborrow().get(index as u32);
            grant.set_name(name);
            grant.set_cap(cap);
            grant.set_rights(rights);
            grant.set_badge(badge);
        }
    })
    .unwrap();
    assert_eq!(length, (words::message::<process_spawner_spawn_params::Owned>() + more) * 8);
    let message = decode(&buffer[..length]).unwrap();
    let params: process_spawner_spawn_params::Reader<'_> = message.root().unwrap();
    assert_eq!(params.get_program().unwrap().to_str(), Ok("init"));
    assert_eq!(params.get_name().unwrap().to_str(), Ok(""));
    assert_eq!(params.get_args().unwrap(), b"one\0two\0\0");
    let read: Vec<_> = params
        .get_grants()
        .unwrap()
        .iter()
        .map(|one| {
            (one.get_name().unwrap().to_str().unwrap(), one.get_cap(), one.get_rights(), one.get_badge())
        })
        .collect();
    assert_eq!(read, grants);
}

#[test]
fn a_list_of_texts_has_the_size_that_was_said() {
    let names = ["init", "shell", "12345678"];
    let more = words::pointers(3) + names.iter().map(|name| words::text(name.len())).sum::<usize>();
    let mut buffer = [0; 256];
    let length = encode::<process_spawner_programs_results::Owned>(&mut buffer, more, |mut results| {
        results.set_more(true);
        let mut list = results.init_names(3);
        for (index, name) in names.into_iter().enumerate() {
            list.set(index as u32, name);
        }
    });
    assert_eq!(length, Ok((words::message::<process_spawner_programs_results::Owned>() + more) * 8));
}

#[test]
#[should_panic(expected = "two segments")]
fn writing_more_than_was_said_panics() {
    let mut buffer = [0; 256];
    let _ = encode::<factory_create_session_params::Owned>(&mut buffer, 0, |mut params| params.set_name("x"));
}

/// A list that points to itself is read a bounded number of times.
#[test]
fn circles_end() {
    // The root's grants are a list of structures whose names point to the list again.
    let mut buffer = [0u64; 8];
    buffer[0] = 0x0004_0000_0000_0000;
    buffer[4] = 1 | (3 << 32) | (0xffff_fff8 << 3) << 32;
    buffer[5] = u64::MAX;
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_le_bytes()).collect();
    read_all(&bytes);
}

macro_rules! read {
    ($message:expr, $module:ident, |$root:ident| $read:expr) => {
        if let Ok($root) = $message.root::<$module::Reader<'_>>() {
            let _ = $read;
        }
    };
}

/// Reads every field of every parameter structure, as the kernel does with what a program sent.
fn read_all(bytes: &[u8]) {
    let Ok(message) = decode(bytes) else { return };
    read!(message, list_params, |p| p.get_start());
    read!(message, thread_spawner_create_params, |p| {
        (p.get_entry(), p.get_stack_top(), p.get_arg(), p.get_fs_base(), p.get_flags())
    });
    read!(message, thread_control_set_fs_base_params, |p| p.get_fs_base());
    read!(message, thread_control_exit_thread_params, |p| p.get_code());
    read!(message, process_spawner_spawn_params, |p| {
        let _ = p.get_program().map(|text| text.to_str().map(str::len));
        let _ = p.get_name().map(|text| text.to_str().map(str::len));
        let _ = p.get_args().map(|data| data.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        if let Ok(grants) = p.get_grants() {
            for grant in grants.iter().take(200) {
                let _ = grant.get_name().map(|text| text.to_str().map(str::len));
                let _ = (grant.get_cap(), grant.get_rights(), grant.get_badge());
            }
        }
    });
    read!(message, virtual_memory_map_params, |p| {
        (p.get_addr(), p.get_bytes(), p.get_writable(), p.get_executable())
    });
    read!(message, virtual_memory_unmap_params, |p| (p.get_addr(), p.get_bytes()));
    read!(message, virtual_memory_protect_params, |p| {
        (p.get_addr(), p.get_bytes(), p.get_writable(), p.get_executable())
    });
    read!(message, memory_object_map_params, |p| {
        (p.get_addr(), p.get_offset(), p.get_bytes(), p.get_writable())
    });
    read!(message, memory_object_unmap_params, |p| (p.get_addr(), p.get_bytes()));
    read!(message, memory_object_protect_params, |p| (p.get_addr(), p.get_bytes(), p.get_writable()));
    read!(message, system_info_info_params, |p| p.get_ring_abi_version());
    read!(message, factory_create_memory_object_params, |p| p.get_bytes());
    read!(message, factory_create_session_params, |p| p.get_name().map(|text| text.to_str().map(str::len)));
    read!(message, power_off_params, |p| p.get_status());
    read!(message, boot_manifest_read_params, |p| p.get_offset());
    // Results go to programs, which read what a kernel wrote; they must not fall over either.
    read!(message, process_handle_exit_code_results, |p| (p.get_exit_code(), p.get_reason().is_ok()));
    read!(message, thread_control_set_affinity_params, |p| p.get_cpus().map(<[u8]>::len));
    read!(message, system_info_counters_results, |p| {
        p.get_counters().map(|list| list.iter().take(200).filter(|one| one.get_name().is_ok()).count())
    });
    read!(message, process_spawner_programs_results, |p| {
        p.get_names().map(|list| list.iter().take(200).filter(|one| one.is_ok()).count())
    });
}

/// A good message of the richest kind, to be spoilt.
fn spawn_message() -> Vec<u8> {
    let mut buffer = vec![0; 512];
    let length = encode::<process_spawner_spawn_params::Owned>(&mut buffer, 32, |mut params| {
        params.set_program("program");
        params.set_name("name");
        params.set_args(b"a\0b\0");
        let mut list = params.init_grants(3);
        for index in 0..3 {
            list.reborrow().get(index).set_name("grant");
        }
    })
    .unwrap();
    buffer.truncate(length);
    buffer
}

/// Pointers are what goes wrong: kind, offset and sizes taken from their edges.
fn pointer() -> impl Strategy<Value = u64> {
    (
        0u64..4,
        -20i64..60,
        prop::sample::select(vec![0u64, 1, 2, 7, 8, 0x1fff_ffff, 0x8000_0000, 0xffff_ffff]),
        0u64..16,
    )
        .prop_map(|(kind, offset, size, small)| {
            kind | ((offset as u64) << 2 & 0xffff_fffc) | (size ^ small) << 32
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    #[test]
    fn random_pointers_never_panic(
        pointers in prop::collection::vec(pointer(), 1..40),
        skip in 0usize..8,
    ) {
        let bytes: Vec<u8> = std::iter::repeat_n(0, skip)
            .chain(pointers.iter().flat_map(|word| word.to_le_bytes())).collect();
        read_all(&bytes[skip..]);
    }

    #[test]
    fn spoilt_messages_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        pointers in prop::collection::vec((any::<prop::sample::Index>(), pointer()), 0..3),
        length in any::<prop::sample::Index>(),
    ) {
        let mut bytes = spawn_message();
        for (at, pointer) in pointers {
            let at = at.index(bytes.len() / 8) * 8;
            bytes[at..at + 8].copy_from_slice(&pointer.to_le_bytes());
        }
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read_all(&bytes);
        bytes.truncate(length.index(bytes.len() + 1));
        read_all(&bytes);
    }
}
