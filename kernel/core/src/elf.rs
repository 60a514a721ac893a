//! Reads a program: a static x86-64 ELF executable. Checks everything before anything is mapped, and copies nothing.
//!
//! A [`Program`] exists only if all of it is sound: the code that maps its segments has no case left to refuse.

use core::fmt;

/// Lowest address of a program: null pointers with an offset hit nothing.
pub const PROGRAM_BASE_VADDR: u64 = 0x1_0000;
/// First address above what a program's segments may use; from here on addresses are mapped at run time.
pub const PROGRAM_END_VADDR: u64 = abi::MMAP_BASE_VADDR;
/// Most loadable segments of a program.
pub const SEGMENTS_MAX: usize = 16;
/// Most program headers that are looked at, so that every loop has a bound.
pub const HEADERS_MAX: usize = 64;
/// Largest alignment of thread-local data.
pub const TLS_ALIGN_MAX: u64 = abi::PAGE_BYTES;

const FILE_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const TYPE_EXEC: u16 = 2;
const MACHINE_X86_64: u16 = 62;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_TLS: u32 = 7;

const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// What is wrong with an image. `header` is the number of the program header, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ElfError {
    /// Shorter than an ELF header.
    TooShort,
    /// Does not start as an ELF file does.
    BadMagic,
    /// Not 64 bit.
    NotElf64,
    /// Not little endian.
    NotLittleEndian,
    /// Not version 1.
    BadVersion,
    /// Not a fixed-address executable (type EXEC); position-independent ones are type DYN.
    NotExecutable {
        /// The type it has.
        kind: u16,
    },
    /// Not for x86-64.
    WrongMachine {
        /// The machine it is for.
        machine: u16,
    },
    /// Program headers have another size than 56 bytes.
    BadHeaderSize {
        /// The size it says.
        bytes: u16,
    },
    /// More than [`HEADERS_MAX`] program headers.
    TooManyHeaders {
        /// How many.
        count: u16,
    },
    /// The program headers are not all in the file.
    HeadersOutOfFile,
    /// It asks for a dynamic linker.
    NotStatic {
        /// The header that asks.
        header: usize,
    },
    /// More bytes in the file than in memory.
    FileLargerThanMemory {
        /// Which segment.
        header: usize,
    },
    /// The segment's bytes are not all in the file.
    SegmentOutOfFile {
        /// Which segment.
        header: usize,
    },
    /// Address and file offset differ within a page.
    NotCongruent {
        /// Which segment.
        header: usize,
    },
    /// Outside of [`PROGRAM_BASE_VADDR`]..[`PROGRAM_END_VADDR`].
    OutOfUserSpace {
        /// Which segment.
        header: usize,
    },
    /// Shares a page with the segment before, or lies below it.
    NotAscending {
        /// Which segment.
        header: usize,
    },
    /// Writable and executable.
    WritableAndExecutable {
        /// Which segment.
        header: usize,
    },
    /// Not readable: x86-64 page tables cannot do that.
    NotReadable {
        /// Which segment.
        header: usize,
    },
    /// More than [`SEGMENTS_MAX`] segments.
    TooManySegments,
    /// A second PT_TLS.
    SecondTls {
        /// Which header.
        header: usize,
    },
    /// The alignment of thread-local data is no power of two, or above [`TLS_ALIGN_MAX`].
    BadTlsAlign {
        /// What it says.
        align: u64,
    },
    /// The image of thread-local data is not within the file's part of one segment.
    TlsNotLoaded,
    /// The entry point is in no executable segment.
    EntryNotExecutable {
        /// The entry point.
        entry: u64,
    },
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ElfError::TooShort => f.write_str("shorter than an ELF header"),
            ElfError::BadMagic => f.write_str("not an ELF file"),
            ElfError::NotElf64 => f.write_str("not a 64-bit ELF file"),
            ElfError::NotLittleEndian => f.write_str("not little endian"),
            ElfError::BadVersion => f.write_str("not ELF version 1"),
            ElfError::NotExecutable { kind } => {
                write!(f, "type {kind} instead of EXEC (2): link it static and not position-independent")
            }
            ElfError::WrongMachine { machine } => write!(f, "for machine {machine} instead of x86-64 (62)"),
            ElfError::BadHeaderSize { bytes } => write!(f, "program headers of {bytes} bytes instead of 56"),
            ElfError::TooManyHeaders { count } => write!(f, "{count} program headers, at most {HEADERS_MAX}"),
            ElfError::HeadersOutOfFile => f.write_str("the program headers are not all in the file"),
            ElfError::NotStatic { header } => write!(f, "header {header} asks for a dynamic linker"),
            ElfError::FileLargerThanMemory { header } => {
                write!(f, "header {header}: more bytes in the file than in memory")
            }
            ElfError::SegmentOutOfFile { header } => {
                write!(f, "header {header}: its bytes are not in the file")
            }
            ElfError::NotCongruent { header } => {
                write!(f, "header {header}: address and file offset differ within a page")
            }
            ElfError::OutOfUserSpace { header } => {
                write!(f, "header {header}: not in {PROGRAM_BASE_VADDR:#x}..{PROGRAM_END_VADDR:#x}")
            }
            ElfError::NotAscending { header } => {
                write!(f, "header {header}: below the segment before, or in its last page")
            }
            ElfError::WritableAndExecutable { header } => {
                write!(f, "header {header}: writable and executable")
            }
            ElfError::NotReadable { header } => write!(f, "header {header}: not readable"),
            ElfError::TooManySegments => write!(f, "more than {SEGMENTS_MAX} segments"),
            ElfError::SecondTls { header } => write!(f, "header {header}: a second PT_TLS"),
            ElfError::BadTlsAlign { align } => {
                write!(f, "thread-local data aligned to {align}: no power of two up to {TLS_ALIGN_MAX}")
            }
            ElfError::TlsNotLoaded => f.write_str("the image of thread-local data is in no segment"),
            ElfError::EntryNotExecutable { entry } => {
                write!(f, "the entry point {entry:#x} is in no executable segment")
            }
        }
    }
}

impl core::error::Error for ElfError {}

/// The image of thread-local data, PT_TLS. The initialised bytes are in memory at `vaddr` once the segments are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tls {
    /// Where the image is.
    pub vaddr: u64,
    /// Initialised bytes.
    pub file_bytes: u64,
    /// All bytes of one thread's copy; those after the image are 0.
    pub mem_bytes: u64,
    /// Alignment of a copy: a power of two.
    pub align: u64,
}

/// One part of the program in memory: `file`, then zeroes up to `mem_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// Where it starts; not always at a page, but congruent to `file_offset` within one.
    pub vaddr: u64,
    /// Bytes in memory; never 0.
    pub mem_bytes: u64,
    /// Its first bytes.
    pub file: &'a [u8],
    /// May be written; then it may not be executed.
    pub writable: bool,
    /// May be executed.
    pub executable: bool,
    /// Where `file` starts in the image.
    pub file_offset: u64,
}

impl Segment<'_> {
    /// First address after it.
    pub const fn end(&self) -> u64 {
        self.vaddr + self.mem_bytes
    }
}

/// A checked program.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Where its first thread starts.
    pub entry: u64,
    /// Its thread-local data.
    pub tls: Option<Tls>,
    bytes: &'a [u8],
    headers: &'a [u8],
}

impl<'a> Program<'a> {
    /// Its segments by ascending address; no two share a page.
    pub fn segments(&self) -> Segments<'a> {
        Segments { bytes: self.bytes, headers: self.headers }
    }
}

/// The segments of a [`Program`]. They are read from the image again, so that a `Program` stays small.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    bytes: &'a [u8],
    headers: &'a [u8],
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        loop {
            let (header, rest) = self.headers.split_at_checked(PROGRAM_HEADER_BYTES)?;
            self.headers = rest;
            let header = Header::read(header)?;
            if header.is_segment() {
                return header.segment(self.bytes);
            }
        }
    }
}

/// A program header, as it is in the file.
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    vaddr: u64,
    file_bytes: u64,
    mem_bytes: u64,
    align: u64,
}

impl Header {
    fn read(bytes: &[u8]) -> Option<Header> {
        Some(Header {
            kind: u32_at(bytes, 0)?,
            flags: u32_at(bytes, 4)?,
            offset: u64_at(bytes, 8)?,
            vaddr: u64_at(bytes, 16)?,
            file_bytes: u64_at(bytes, 32)?,
            mem_bytes: u64_at(bytes, 40)?,
            align: u64_at(bytes, 48)?,
        })
    }

    /// Linkers leave empty segments behind; they occupy nothing and are not looked at.
    fn is_segment(&self) -> bool {
        self.kind == PT_LOAD && (self.mem_bytes != 0 || self.file_bytes != 0)
    }

    fn segment<'a>(&self, bytes: &'a [u8]) -> Option<Segment<'a>> {
        let start = usize::try_from(self.offset).ok()?;
        let end = usize::try_from(self.offset.checked_add(self.file_bytes)?).ok()?;
        Some(Segment {
            vaddr: self.vaddr,
            mem_bytes: self.mem_bytes,
            file: bytes.get(start..end)?,
            writable: self.flags & PF_W != 0,
            executable: self.flags & PF_X != 0,
            file_offset: self.offset,
        })
    }

    /// The segment, if nothing is wrong with it by itself.
    fn checked_segment<'a>(&self, bytes: &'a [u8], header: usize) -> Result<Segment<'a>, ElfError> {
        if self.file_bytes > self.mem_bytes {
            return Err(ElfError::FileLargerThanMemory { header });
        }
        let segment = self.segment(bytes).ok_or(ElfError::SegmentOutOfFile { header })?;
        if self.vaddr % abi::PAGE_BYTES != self.offset % abi::PAGE_BYTES {
            return Err(ElfError::NotCongruent { header });
        }
        let end = self.vaddr.checked_add(self.mem_bytes).ok_or(ElfError::OutOfUserSpace { header })?;
        if self.vaddr < PROGRAM_BASE_VADDR || end > PROGRAM_END_VADDR {
            return Err(ElfError::OutOfUserSpace { header });
        }
        if segment.writable && segment.executable {
            return Err(ElfError::WritableAndExecutable { header });
        }
        if self.flags & PF_R == 0 {
            return Err(ElfError::NotReadable { header });
        }
        Ok(segment)
    }

    fn checked_tls(&self) -> Result<Tls, ElfError> {
        let align = self.align.max(1);
        if !align.is_power_of_two() || align > TLS_ALIGN_MAX {
            return Err(ElfError::BadTlsAlign { align });
        }
        // What follows the image has no address of its own, but a size that cannot be mapped is nonsense.
        if self.file_bytes > self.mem_bytes || self.mem_bytes > PROGRAM_END_VADDR {
            return Err(ElfError::TlsNotLoaded);
        }
        Ok(Tls { vaddr: self.vaddr, file_bytes: self.file_bytes, mem_bytes: self.mem_bytes, align })
    }
}

/// Reads `bytes` as a program.
pub fn parse(bytes: &[u8]) -> Result<Program<'_>, ElfError> {
    let (entry, headers) = file_header(bytes)?;
    let mut tls = None;
    let mut segments = 0;
    // First address that the next segment may use.
    let mut free_from = 0;
    for (index, raw) in headers.chunks_exact(PROGRAM_HEADER_BYTES).enumerate() {
        let header = Header::read(raw).ok_or(ElfError::HeadersOutOfFile)?;
        match header.kind {
            PT_DYNAMIC | PT_INTERP => return Err(ElfError::NotStatic { header: index }),
            PT_TLS => {
                let before = tls.replace(header.checked_tls()?);
                if before.is_some() {
                    return Err(ElfError::SecondTls { header: index });
                }
            }
            _ if header.is_segment() => {
                let segment = header.checked_segment(bytes, index)?;
                if segment.vaddr / abi::PAGE_BYTES * abi::PAGE_BYTES < free_from {
                    return Err(ElfError::NotAscending { header: index });
                }
                free_from = segment.end().next_multiple_of(abi::PAGE_BYTES);
                segments += 1;
                if segments > SEGMENTS_MAX {
                    return Err(ElfError::TooManySegments);
                }
            }
            _ => {}
        }
    }

    let program = Program { entry, tls, bytes, headers };
    if let Some(tls) = tls.filter(|tls| tls.file_bytes != 0) {
        // Written without sums: the header's numbers are whatever the file says.
        let loaded = |segment: Segment<'_>| {
            let file_bytes = segment.file.len() as u64;
            tls.vaddr >= segment.vaddr
                && tls.vaddr - segment.vaddr <= file_bytes
                && tls.file_bytes <= file_bytes - (tls.vaddr - segment.vaddr)
        };
        if !program.segments().any(loaded) {
            return Err(ElfError::TlsNotLoaded);
        }
    }
    let runs = |segment: Segment<'_>| segment.executable && (segment.vaddr..segment.end()).contains(&entry);
    if !program.segments().any(runs) {
        return Err(ElfError::EntryNotExecutable { entry });
    }
    Ok(program)
}

/// The entry point, and the bytes of all program headers.
fn file_header(bytes: &[u8]) -> Result<(u64, &[u8]), ElfError> {
    let header = bytes.get(..FILE_HEADER_BYTES).ok_or(ElfError::TooShort)?;
    if !header.starts_with(b"\x7fELF") {
        return Err(ElfError::BadMagic);
    }
    if header[4] != 2 {
        return Err(ElfError::NotElf64);
    }
    if header[5] != 1 {
        return Err(ElfError::NotLittleEndian);
    }
    if header[6] != 1 || u32_at(header, 20) != Some(1) {
        return Err(ElfError::BadVersion);
    }
    let half = |at| u16_at(header, at).ok_or(ElfError::TooShort);
    let word = |at| u64_at(header, at).ok_or(ElfError::TooShort);
    let kind = half(16)?;
    if kind != TYPE_EXEC {
        return Err(ElfError::NotExecutable { kind });
    }
    let machine = half(18)?;
    if machine != MACHINE_X86_64 {
        return Err(ElfError::WrongMachine { machine });
    }
    let header_bytes = half(54)?;
    if usize::from(header_bytes) != PROGRAM_HEADER_BYTES {
        return Err(ElfError::BadHeaderSize { bytes: header_bytes });
    }
    let count = half(56)?;
    if usize::from(count) > HEADERS_MAX {
        return Err(ElfError::TooManyHeaders { count });
    }
    let headers = usize::try_from(word(32)?)
        .ok()
        .and_then(|start| bytes.get(start..start.checked_add(usize::from(count) * PROGRAM_HEADER_BYTES)?))
        .ok_or(ElfError::HeadersOutOfFile)?;
    Ok((word(24)?, headers))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|raw| u16::from_le_bytes(*raw))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|raw| u32::from_le_bytes(*raw))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|raw| u64::from_le_bytes(*raw))
}
