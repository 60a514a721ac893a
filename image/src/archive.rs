//! The archive: named files, each beginning at a page, so that the kernel maps a program's pages straight from it.
//!
//! ```text
//! 0   magic "capOSarc", version u32, count u32, bytes of the whole archive u64
//! 24  table: count × (name[24] padded with NULs, offset u64, length u64), names ascending
//!     zeros to the end of the page
//!     file, zeros to the end of the page; the next file; …
//! ```
//! There is one way to write a given set of files: names ascend, files follow each other in that order, gaps are zero.

use core::fmt;

use abi::{MAX_NAME_BYTES, PAGE_BYTES};

use crate::Name;
use crate::bytes::{u32_at, u64_at};

const MAGIC: [u8; 8] = *b"capOSarc";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 24;
const ENTRY_BYTES: u64 = MAX_NAME_BYTES as u64 + 16;
/// The most files of one archive.
const MAX_ENTRIES: u32 = 1024;

/// One file of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it begins in the archive: a multiple of the page size.
    pub offset: u64,
    /// Its bytes.
    pub data: &'a [u8],
}

/// An archive whose table was checked.
#[derive(Clone, Copy, Debug)]
pub struct Archive<'a> {
    bytes: &'a [u8],
    count: u32,
}

/// Why some bytes are no archive, or some files do not become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveError {
    /// They do not begin with the magic.
    NotAnArchive,
    /// Another version of the format.
    Version {
        /// What the bytes say.
        found: u32,
    },
    /// There are fewer bytes than the archive says, or than its table needs.
    Truncated {
        /// How many are needed.
        needed: u64,
        /// How many there are.
        found: u64,
    },
    /// More files than an archive takes.
    TooManyFiles {
        /// How many there are.
        found: u64,
    },
    /// The length of the whole is not what the files add up to.
    BadLength,
    /// A name is empty, longer than 24 bytes, or not text padded with NULs.
    BadName {
        /// Which file, counted from 0.
        index: u32,
    },
    /// A name is not greater than the one before it.
    NotAscending {
        /// The name.
        name: Name,
    },
    /// A file does not begin at the page after the one before it, or does not end within the archive.
    BadPlace {
        /// The file.
        name: Name,
    },
    /// The bytes after the table or a file, up to the end of the page, are not zero.
    BadPadding {
        /// Before this offset.
        before: u64,
    },
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("boot image: ")?;
        match self {
            ArchiveError::NotAnArchive => {
                f.write_str("this is no boot image; give the kernel the file that `capos image` wrote")
            }
            ArchiveError::Version { found } => write!(
                f,
                "format version {found}, but this kernel reads {VERSION}; build image and kernel from the same sources"
            ),
            ArchiveError::Truncated { needed, found } => write!(f, "cut short: {found} of {needed} bytes"),
            ArchiveError::TooManyFiles { found } => write!(f, "{found} files; at most {MAX_ENTRIES} fit"),
            ArchiveError::BadLength => f.write_str("its length is not what its files add up to"),
            ArchiveError::BadName { index } => {
                write!(f, "file {index}: a name is 1 to {MAX_NAME_BYTES} bytes of text")
            }
            ArchiveError::NotAscending { name } => {
                write!(f, "file \"{name}\": twice, or out of order; names must ascend")
            }
            ArchiveError::BadPlace { name } => write!(f, "file \"{name}\": not where it should be"),
            ArchiveError::BadPadding { before } => write!(f, "padding before byte {before} is not zero"),
        }
    }
}

impl core::error::Error for ArchiveError {}

/// Up to the end of the page; `None` past the end of numbers.
fn page_up(offset: u64) -> Option<u64> {
    offset.checked_next_multiple_of(PAGE_BYTES)
}

fn is_zero(bytes: &[u8], from: u64, to: u64) -> bool {
    bytes.get(from as usize..to as usize).is_some_and(|gap| gap.iter().all(|&byte| byte == 0))
}

fn name_of(field: &[u8]) -> Option<&str> {
    let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    let (name, padding) = field.split_at(len);
    let is_good = !name.is_empty() && padding.iter().all(|&byte| byte == 0);
    core::str::from_utf8(name).ok().filter(|_| is_good)
}

impl<'a> Archive<'a> {
    /// Checks the table of the archive that `bytes` begin with; bytes after its end are left alone.
    ///
    /// # Errors
    /// When they are not what [`write_archive`] writes.
    pub fn parse(bytes: &'a [u8]) -> Result<Archive<'a>, ArchiveError> {
        let truncated = |needed: u64| ArchiveError::Truncated { needed, found: bytes.len() as u64 };
        if bytes.get(..MAGIC.len()) != Some(&MAGIC) {
            return Err(ArchiveError::NotAnArchive);
        }
        let field = |at| u32_at(bytes, at).ok_or(truncated(HEADER_BYTES));
        let (version, count) = (field(8)?, field(12)?);
        let length = u64_at(bytes, 16).ok_or(truncated(HEADER_BYTES))?;
        if version != VERSION {
            return Err(ArchiveError::Version { found: version });
        }
        if count > MAX_ENTRIES {
            return Err(ArchiveError::TooManyFiles { found: count.into() });
        }
        let table_end = HEADER_BYTES + u64::from(count) * ENTRY_BYTES;
        if length > bytes.len() as u64 || table_end > length {
            return Err(truncated(length.max(table_end)));
        }
        let archive = Archive { bytes: &bytes[..length as usize], count };
        archive.check(table_end)?;
        Ok(archive)
    }

    /// Names ascend, files follow each other page by page, and nothing else is in there.
    fn check(&self, table_end: u64) -> Result<(), ArchiveError> {
        let mut end = table_end;
        let mut last = "";
        for index in 0..self.count {
            let Some((name, offset, length)) = self.row(index) else {
                return Err(ArchiveError::BadName { index });
            };
            if name <= last {
                return Err(ArchiveError::NotAscending { name: Name::new(name) });
            }
            let misplaced = ArchiveError::BadPlace { name: Name::new(name) };
            let file_end = offset.checked_add(length).ok_or(misplaced)?;
            if page_up(end) != Some(offset) || file_end > self.bytes.len() as u64 {
                return Err(misplaced);
            }
            if !is_zero(self.bytes, end, offset) {
                return Err(ArchiveError::BadPadding { before: offset });
            }
            (end, last) = (file_end, name);
        }
        if page_up(end) != Some(self.bytes.len() as u64) {
            return Err(ArchiveError::BadLength);
        }
        let whole = self.bytes.len() as u64;
        if is_zero(self.bytes, end, whole) { Ok(()) } else { Err(ArchiveError::BadPadding { before: whole }) }
    }

    /// Name, offset and length as the table says.
    fn row(&self, index: u32) -> Option<(&'a str, u64, u64)> {
        let at = (HEADER_BYTES + u64::from(index) * ENTRY_BYTES) as usize;
        let name = name_of(self.bytes.get(at..at + MAX_NAME_BYTES)?)?;
        let offset = u64_at(self.bytes, at + MAX_NAME_BYTES)?;
        Some((name, offset, u64_at(self.bytes, at + MAX_NAME_BYTES + 8)?))
    }

    fn entry(&self, index: u32) -> Option<Entry<'a>> {
        let (name, offset, length) = self.row(index)?;
        let data = self.bytes.get(offset as usize..)?.get(..length as usize)?;
        Some(Entry { name, offset, data })
    }

    /// The file with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Entry<'a>> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry(middle)?;
            match entry.name.cmp(name) {
                core::cmp::Ordering::Equal => return Some(entry),
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Every file, by ascending name.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'a>> + Clone + use<'a> {
        let archive = *self;
        (0..archive.count).filter_map(move |index| archive.entry(index))
    }

    /// How many files there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes of the whole archive, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Writes an archive of `files` (names ascending) piece by piece to `sink`, and returns its length.
///
/// # Errors
/// When a name is bad, names do not ascend, or there are too many; nothing is written then.
pub fn write_archive(files: &[(&str, &[u8])], mut sink: impl FnMut(&[u8])) -> Result<u64, ArchiveError> {
    const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
    if files.len() > MAX_ENTRIES as usize {
        return Err(ArchiveError::TooManyFiles { found: files.len() as u64 });
    }
    let mut last = "";
    for (index, (name, _)) in files.iter().enumerate() {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
            return Err(ArchiveError::BadName { index: index as u32 });
        }
        if *name <= last {
            return Err(ArchiveError::NotAscending { name: Name::new(name) });
        }
        last = name;
    }
    let up = |offset: u64| offset.next_multiple_of(PAGE_BYTES);
    let table_end = HEADER_BYTES + files.len() as u64 * ENTRY_BYTES;
    let length = files.iter().fold(up(table_end), |end, (_, data)| up(end + data.len() as u64));
    sink(&MAGIC);
    sink(&VERSION.to_le_bytes());
    sink(&(files.len() as u32).to_le_bytes());
    sink(&length.to_le_bytes());
    let mut offset = up(table_end);
    for (name, data) in files {
        sink(name.as_bytes());
        sink(&ZEROS[..MAX_NAME_BYTES - name.len()]);
        sink(&offset.to_le_bytes());
        sink(&(data.len() as u64).to_le_bytes());
        offset = up(offset + data.len() as u64);
    }
    sink(&ZEROS[..(up(table_end) - table_end) as usize]);
    for (_, data) in files {
        sink(data);
        sink(&ZEROS[..data.len().next_multiple_of(ZEROS.len()) - data.len()]);
    }
    Ok(length)
}
