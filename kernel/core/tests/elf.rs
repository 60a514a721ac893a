//! `kcore::elf`: a good image is read as it is, each fault has its name, and no bytes make it panic.

use kcore::elf::{ElfError, PROGRAM_END_VADDR, Segment, Tls, parse};
use proptest::prelude::*;

const R: u32 = 4;
const W: u32 = 2;
const X: u32 = 1;
const LOAD: u32 = 1;
const TLS: u32 = 7;

#[derive(Clone, Copy)]
struct Ph {
    kind: u32,
    flags: u32,
    offset: u64,
    vaddr: u64,
    file: u64,
    mem: u64,
    align: u64,
}

/// Code at 0x20_0000, data with a tail of zeroes at 0x20_3100, thread-local data within the data.
fn headers() -> Vec<Ph> {
    vec![
        Ph { kind: LOAD, flags: R | X, offset: 0, vaddr: 0x20_0000, file: 0x1800, mem: 0x1800, align: 4096 },
        Ph {
            kind: LOAD,
            flags: R | W,
            offset: 0x2100,
            vaddr: 0x20_3100,
            file: 0x200,
            mem: 0x2000,
            align: 4096,
        },
        Ph { kind: TLS, flags: R, offset: 0x2180, vaddr: 0x20_3180, file: 0x20, mem: 0x48, align: 16 },
    ]
}

fn image(headers: &[Ph]) -> Vec<u8> {
    let mut bytes = vec![0; 0x3000];
    bytes[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\x00");
    let mut put = |at: usize, raw: &[u8]| bytes[at..at + raw.len()].copy_from_slice(raw);
    put(16, &2u16.to_le_bytes());
    put(18, &62u16.to_le_bytes());
    put(20, &1u32.to_le_bytes());
    put(24, &0x20_1000u64.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &(headers.len() as u16).to_le_bytes());
    for (index, header) in headers.iter().enumerate() {
        let at = 64 + index * 56;
        put(at, &header.kind.to_le_bytes());
        put(at + 4, &header.flags.to_le_bytes());
        put(at + 8, &header.offset.to_le_bytes());
        put(at + 16, &header.vaddr.to_le_bytes());
        put(at + 32, &header.file.to_le_bytes());
        put(at + 40, &header.mem.to_le_bytes());
        put(at + 48, &header.align.to_le_bytes());
    }
    bytes
}

fn error(change: impl FnOnce(&mut Vec<Ph>)) -> ElfError {
    let mut headers = headers();
    change(&mut headers);
    parse(&image(&headers)).map(|_| ()).expect_err("a planted fault must be found")
}

#[test]
fn a_good_image_is_read() {
    let bytes = image(&headers());
    let program = parse(&bytes).unwrap();
    assert_eq!(program.entry, 0x20_1000);
    assert_eq!(program.tls, Some(Tls { vaddr: 0x20_3180, file_bytes: 0x20, mem_bytes: 0x48, align: 16 }));
    let segments: Vec<Segment<'_>> = program.segments().collect();
    assert_eq!(
        segments,
        [
            Segment {
                vaddr: 0x20_0000,
                mem_bytes: 0x1800,
                file: &bytes[..0x1800],
                writable: false,
                executable: true,
                file_offset: 0
            },
            Segment {
                vaddr: 0x20_3100,
                mem_bytes: 0x2000,
                file: &bytes[0x2100..0x2300],
                writable: true,
                executable: false,
                file_offset: 0x2100
            }
        ]
    );
}

#[test]
fn empty_segments_and_foreign_headers_are_passed_over() {
    let mut list = headers();
    list.push(Ph { kind: LOAD, flags: R | W | X, offset: 0, vaddr: 0, file: 0, mem: 0, align: 0 });
    list.push(Ph {
        kind: 0x6474_e551,
        flags: R | W | X,
        offset: 1,
        vaddr: 2,
        file: u64::MAX,
        mem: 0,
        align: 3,
    });
    let bytes = image(&list);
    assert_eq!(parse(&bytes).unwrap().segments().count(), 2);
}

#[test]
fn each_fault_of_the_file_header_has_its_name() {
    let good = image(&headers());
    let with = |at: usize, raw: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + raw.len()].copy_from_slice(raw);
        parse(&bytes).map(|_| ()).expect_err("a planted fault must be found")
    };
    assert_eq!(parse(&good[..63]).unwrap_err(), ElfError::TooShort);
    assert_eq!(with(1, b"e"), ElfError::BadMagic);
    assert_eq!(with(4, &[1]), ElfError::NotElf64);
    assert_eq!(with(5, &[2]), ElfError::NotLittleEndian);
    assert_eq!(with(6, &[0]), ElfError::BadVersion);
    assert_eq!(with(20, &[2]), ElfError::BadVersion);
    assert_eq!(with(16, &[3]), ElfError::NotExecutable { kind: 3 });
    assert_eq!(with(18, &[40]), ElfError::WrongMachine { machine: 40 });
    assert_eq!(with(54, &[64]), ElfError::BadHeaderSize { bytes: 64 });
    assert_eq!(with(56, &[65]), ElfError::TooManyHeaders { count: 65 });
    assert_eq!(with(32, &u64::MAX.to_le_bytes()), ElfError::HeadersOutOfFile);
    assert_eq!(with(32, &0x2fffu64.to_le_bytes()), ElfError::HeadersOutOfFile);
    assert_eq!(with(24, &0x20_1800u64.to_le_bytes()), ElfError::EntryNotExecutable { entry: 0x20_1800 });
    assert_eq!(with(24, &0x20_3100u64.to_le_bytes()), ElfError::EntryNotExecutable { entry: 0x20_3100 });
    assert!(with(18, &[40]).to_string().contains("40"));
}

#[test]
fn each_fault_of_a_segment_has_its_name() {
    assert_eq!(error(|h| h[1].kind = 3), ElfError::NotStatic { header: 1 });
    assert_eq!(error(|h| h[1].kind = 2), ElfError::NotStatic { header: 1 });
    assert_eq!(error(|h| h[1].file = 0x2001), ElfError::FileLargerThanMemory { header: 1 });
    assert_eq!(error(|h| h[1].file = 0xf01), ElfError::SegmentOutOfFile { header: 1 });
    assert_eq!(error(|h| h[1].offset = u64::MAX - 0xef), ElfError::SegmentOutOfFile { header: 1 });
    assert_eq!(error(|h| h[1].vaddr += 1), ElfError::NotCongruent { header: 1 });
    assert_eq!(error(|h| h[1].vaddr = 0xf100), ElfError::OutOfUserSpace { header: 1 });
    assert_eq!(error(|h| h[1].mem = u64::MAX), ElfError::OutOfUserSpace { header: 1 });
    assert_eq!(error(|h| h[1].vaddr = PROGRAM_END_VADDR - 0xf00), ElfError::OutOfUserSpace { header: 1 });
    assert_eq!(error(|h| h[1].vaddr = 0x20_1100), ElfError::NotAscending { header: 1 });
    assert_eq!(error(|h| h.swap(0, 1)), ElfError::NotAscending { header: 1 });
    assert_eq!(error(|h| h[1].flags = R | W | X), ElfError::WritableAndExecutable { header: 1 });
    assert_eq!(error(|h| h[1].flags = W), ElfError::NotReadable { header: 1 });
    let many = error(|h| {
        for index in 0..15 {
            let vaddr = 0x30_0000 + index * 0x1000;
            h.push(Ph { kind: LOAD, flags: R, offset: 0, vaddr, file: 8, mem: 8, align: 4096 });
        }
    });
    assert_eq!(many, ElfError::TooManySegments);
}

#[test]
fn each_fault_of_thread_local_data_has_its_name() {
    assert_eq!(error(|h| h.push(h[2])), ElfError::SecondTls { header: 3 });
    assert_eq!(error(|h| h[2].align = 24), ElfError::BadTlsAlign { align: 24 });
    assert_eq!(error(|h| h[2].align = 8192), ElfError::BadTlsAlign { align: 8192 });
    assert_eq!(error(|h| h[2].file = 0x49), ElfError::TlsNotLoaded);
    assert_eq!(error(|h| h[2].vaddr = 0x20_32f0), ElfError::TlsNotLoaded);
    assert_eq!(error(|h| h[2].vaddr = u64::MAX), ElfError::TlsNotLoaded);
    assert_eq!(error(|h| h[2].mem = u64::MAX), ElfError::TlsNotLoaded);
}

/// What every accepted image has, whatever the bytes.
fn check_accepted(bytes: &[u8]) {
    let Ok(program) = parse(bytes) else { return };
    let mut free_from = 0x1_0000;
    for segment in program.segments() {
        assert!(segment.vaddr / 4096 * 4096 >= free_from);
        assert!(segment.file.len() as u64 <= segment.mem_bytes && segment.mem_bytes > 0);
        assert!(!(segment.writable && segment.executable));
        free_from = segment.end().next_multiple_of(4096);
        assert!(free_from <= PROGRAM_END_VADDR);
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_accepted(&bytes);
    }

    #[test]
    fn mutated_images_never_panic(
        changes in prop::collection::vec((0usize..64 + 3 * 56, any::<u8>()), 1..6),
        words in prop::collection::vec(
            (0usize..27, prop::sample::select(vec![0, 1, 4096, u64::MAX, u64::MAX - 4095, 1 << 63, PROGRAM_END_VADDR])),
            0..3),
        length in 0usize..0x3001,
    ) {
        let mut bytes = image(&headers());
        for (at, word) in words {
            bytes[at * 8 + 8..at * 8 + 16].copy_from_slice(&word.to_le_bytes());
        }
        check_accepted(&bytes);
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        check_accepted(&bytes);
        bytes.truncate(length);
        check_accepted(&bytes);
    }
}
