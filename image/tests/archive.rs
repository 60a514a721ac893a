//! The archive: what is written is read again, and nothing else is.

use image::{Archive, ArchiveError, Name, write_archive};
use proptest::prelude::*;

const PAGE: usize = 4096;

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = write_archive(files, |piece| bytes.extend_from_slice(piece)).unwrap();
    assert_eq!(length as usize, bytes.len());
    bytes
}

fn sample() -> Vec<u8> {
    archive(&[("init", &[7; 5000]), ("manifest", b"m"), ("shell", &[])])
}

#[test]
fn files_begin_at_pages_and_are_found() {
    let bytes = sample();
    assert_eq!(
        bytes.len(),
        4 * PAGE,
        "table, two pages of init, one of the manifest, none of the empty shell"
    );
    let archive = Archive::parse(&bytes).unwrap();
    assert_eq!(archive.len(), 3);
    let init = archive.find("init").unwrap();
    assert_eq!((init.offset as usize, init.data), (PAGE, &[7; 5000][..]));
    assert_eq!(archive.find("manifest").unwrap().data, b"m");
    assert_eq!(archive.find("shell").unwrap().data, b"");
    assert!(archive.find("shel").is_none() && archive.find("shells").is_none() && archive.find("").is_none());
    assert!(Archive::parse(&empty()).unwrap().is_empty());
}

fn empty() -> Vec<u8> {
    archive(&[])
}

#[test]
fn bytes_after_the_end_are_left_alone() {
    let mut bytes = sample();
    bytes.extend_from_slice(&[9; 100]);
    assert_eq!(Archive::parse(&bytes).unwrap().bytes().len(), 4 * PAGE);
}

#[test]
fn what_cannot_be_written_is_refused() {
    let refused = |files: &[(&str, &[u8])]| {
        write_archive(files, |_| panic!("a refused archive writes nothing")).unwrap_err()
    };
    assert_eq!(refused(&[("b", b""), ("a", b"")]), ArchiveError::NotAscending { name: Name::new("a") });
    assert_eq!(refused(&[("a", b""), ("a", b"")]), ArchiveError::NotAscending { name: Name::new("a") });
    assert_eq!(refused(&[("", b"")]), ArchiveError::BadName { index: 0 });
    assert_eq!(
        refused(&[("a", b""), ("abcdefghijklmnopqrstuvwxy", b"")]),
        ArchiveError::BadName { index: 1 }
    );
    let names: Vec<String> = (0..1025).map(|number| format!("{number:04}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    assert_eq!(refused(&files), ArchiveError::TooManyFiles { found: 1025 });
}

/// One change to a good archive, and what is said about it.
#[test]
fn each_damage_has_its_name() {
    let damaged = |at: usize, with: &[u8]| {
        let mut bytes = sample();
        bytes[at..at + with.len()].copy_from_slice(with);
        Archive::parse(&bytes).map(|_| ()).unwrap_err()
    };
    let row = |index: usize| 24 + index * 40;
    assert_eq!(damaged(0, b"X"), ArchiveError::NotAnArchive);
    assert_eq!(damaged(8, &[2]), ArchiveError::Version { found: 2 });
    assert_eq!(damaged(12, &5000_u32.to_le_bytes()), ArchiveError::TooManyFiles { found: 5000 });
    let found = 4 * PAGE as u64;
    assert_eq!(damaged(16, &(found + 1).to_le_bytes()), ArchiveError::Truncated { needed: found + 1, found });
    assert_eq!(damaged(12, &[2]), ArchiveError::BadPadding { before: PAGE as u64 });
    assert_eq!(damaged(row(1), b"a"), ArchiveError::NotAscending { name: Name::new("aanifest") });
    assert_eq!(damaged(row(0), &[0]), ArchiveError::BadName { index: 0 });
    assert_eq!(damaged(row(0) + 6, b"x"), ArchiveError::BadName { index: 0 });
    assert_eq!(damaged(row(0), &[0xff]), ArchiveError::BadName { index: 0 });
    assert_eq!(damaged(row(0) + 24, &[1]), ArchiveError::BadPlace { name: Name::new("init") });
    assert_eq!(damaged(row(1) + 25, &[0x10]), ArchiveError::BadPlace { name: Name::new("manifest") });
    assert_eq!(damaged(row(0) + 32, &[0xff; 8]), ArchiveError::BadPlace { name: Name::new("init") });
    assert_eq!(damaged(row(3), b"x"), ArchiveError::BadPadding { before: PAGE as u64 });
    assert_eq!(damaged(PAGE + 5000, &[1]), ArchiveError::BadPadding { before: 3 * PAGE as u64 });
    assert_eq!(damaged(4 * PAGE - 1, &[1]), ArchiveError::BadPadding { before: 4 * PAGE as u64 });
    let mut longer = sample();
    longer.extend_from_slice(&[0; PAGE]);
    longer[16..24].copy_from_slice(&(5 * PAGE as u64).to_le_bytes());
    assert_eq!(Archive::parse(&longer).map(|_| ()), Err(ArchiveError::BadLength));
    for cut in [0, 7, 11, 20, 100, PAGE, 4 * PAGE - 1] {
        assert!(Archive::parse(&sample()[..cut]).is_err(), "{cut}");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        files in prop::collection::btree_map("[a-z.-]{1,24}", prop::collection::vec(any::<u8>(), 0..9000), 0..8)
    ) {
        let list: Vec<(&str, &[u8])> = files.iter().map(|(name, data)| (name.as_str(), &data[..])).collect();
        let bytes = archive(&list);
        let archive = Archive::parse(&bytes).unwrap();
        let read: Vec<_> = archive.entries().map(|entry| (entry.name, entry.data)).collect();
        prop_assert_eq!(&read, &list);
        for entry in archive.entries() {
            prop_assert_eq!(archive.find(entry.name), Some(entry));
            prop_assert_eq!(entry.offset as usize % PAGE, 0);
        }
    }

    #[test]
    fn hostile_bytes_do_not_panic(
        flips in prop::collection::vec((0..200_usize, any::<u8>()), 0..12),
        noise in prop::collection::vec(any::<u8>(), 0..300),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample();
        for (at, value) in flips {
            bytes[at] = value;
        }
        let mut marked = bytes[..16].to_vec();
        marked.extend_from_slice(&noise);
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())], &noise, &marked] {
            if let Ok(archive) = Archive::parse(bytes) {
                let _ = archive.find("init");
                let total: usize = archive.entries().map(|entry| entry.data.len()).sum();
                prop_assert!(total <= bytes.len());
            }
        }
    }
}
