//! WASI preview 1, as much as a program needs to read its arguments, its input and the files that it was given, and to
//! write its output. A guest names a file by the name that it was given under; there are no directories to walk out of.

use crate::imports::Call;
use crate::machine::{Machine, Stop};
use crate::world::{Input, World};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

/// Error numbers of WASI.
mod errno {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const BADF: i32 = 8;
    pub(super) const FAULT: i32 = 21;
    pub(super) const INVAL: i32 = 28;
    pub(super) const IO: i32 = 29;
    pub(super) const MFILE: i32 = 33;
    pub(super) const NOENT: i32 = 44;
    pub(super) const NOSYS: i32 = 52;
    pub(super) const SPIPE: i32 = 70;
    pub(super) const NOTCAPABLE: i32 = 76;
}

/// Descriptors that a guest may have open.
const DESCRIPTORS_MAX: usize = 64;
/// Buffers of one read or write.
const BUFFERS_MAX: u64 = 1_024;
/// Bytes of one read or write: what is beyond is left for the next, as on any system.
const TRANSFER_MAX: u64 = 64 << 10;
/// Bytes of a path.
const PATH_MAX: u64 = 4 << 10;
/// Bytes of random numbers at a time.
const RANDOM_MAX: u64 = 4 << 10;

const RIGHT_WRITE: u64 = 1 << 6;
const OPEN_TRUNCATE: u64 = 1 << 3;
const OPEN_DIRECTORY: u64 = 1 << 1;
const OPEN_EXCLUSIVE: u64 = 1 << 2;
const FLAG_APPEND: u64 = 1;
const KIND_UNKNOWN: u8 = 0;
const KIND_DIRECTORY: u8 = 3;
const KIND_FILE: u8 = 4;

#[derive(Clone, Copy, Debug)]
enum Descriptor {
    Input,
    Output,
    Errors,
    /// The one directory, with every file that was given.
    Root,
    File {
        index: usize,
        offset: u64,
        writes: bool,
        appends: bool,
    },
}

/// The open files of an instance.
#[derive(Debug)]
pub(crate) struct Files {
    open: Vec<Option<Descriptor>>,
    /// What was received of the input and not read.
    rest: Vec<u8>,
    random: u64,
}

impl Files {
    pub(crate) fn new() -> Files {
        use Descriptor::{Errors, Input, Output, Root};
        Files { open: vec![Some(Input), Some(Output), Some(Errors), Some(Root)], rest: Vec::new(), random: 0 }
    }

    fn get(&self, fd: u64) -> Option<Descriptor> {
        self.open.get(usize::try_from(fd).ok()?).copied().flatten()
    }

    fn add(&mut self, descriptor: Descriptor) -> Option<u32> {
        let free = self.open.iter().position(Option::is_none);
        if let Some(at) = free {
            self.open[at] = Some(descriptor);
            return Some(at as u32);
        }
        if self.open.len() >= DESCRIPTORS_MAX {
            return None;
        }
        self.open.push(Some(descriptor));
        Some(self.open.len() as u32 - 1)
    }
}

fn locked<T, R>(lock: &Mutex<T>, act: impl FnOnce(&mut T) -> R) -> R {
    act(&mut lock.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A list of strings as `args_get` and `environ_get` want it.
fn sizes(strings: &[String]) -> (u32, u32) {
    (strings.len() as u32, strings.iter().map(|s| s.len() as u32 + 1).sum())
}

impl Machine<'_, '_, '_> {
    /// Serves a call of WASI. An error number is the guest's business; only a cancelled task stops.
    pub(crate) fn wasi(&mut self, call: Call, args: &[u64]) -> Result<i32, Stop> {
        match call {
            Call::ArgsGet => self.strings(|world| &world.args, args),
            Call::EnvironGet => self.strings(|world| &world.env, args),
            Call::ArgsSizes | Call::EnvironSizes => {
                let World { args: arguments, env, .. } = &*self.family.world;
                let (count, bytes) = sizes(if call == Call::ArgsSizes { arguments } else { env });
                Ok(self.two(args, count, bytes))
            }
            Call::ClockRes => Ok(self.put(args[1], &1u64.to_le_bytes())),
            Call::ClockTime => Ok(self.time(args)),
            Call::Random => self.random(args),
            Call::FdRead => self.read(args),
            Call::FdWrite => self.write_out(args),
            Call::PathOpen => self.open(args),
            _ => {
                self.io()?;
                Ok(self.look(call, args))
            }
        }
    }

    /// Calls that move no data.
    fn look(&mut self, call: Call, args: &[u64]) -> i32 {
        let Some(descriptor) = self.files.get(args[0]) else { return errno::BADF };
        let given =
            |machine: &Machine<'_, '_, '_>, index: usize| machine.family.world.files[index].file.metadata();
        match (call, descriptor) {
            (Call::FdClose, Descriptor::Root) => errno::NOTCAPABLE,
            (Call::FdClose, _) => {
                self.files.open[args[0] as usize] = None;
                errno::SUCCESS
            }
            (Call::FdStat, descriptor) => self.stat(descriptor, args[1]),
            (Call::FdSetFlags, Descriptor::File { index, offset, writes, .. }) => {
                let appends = args[1] & FLAG_APPEND != 0;
                self.files.open[args[0] as usize] = Some(Descriptor::File { index, offset, writes, appends });
                errno::SUCCESS
            }
            (Call::FdSetFlags, _) => errno::INVAL,
            (Call::FdPrestat, Descriptor::Root) => {
                // A directory, whose name is one byte long.
                self.put(args[1], &[0, 0, 0, 0, 1, 0, 0, 0])
            }
            (Call::FdPrestatName, Descriptor::Root) if args[2] >= 1 => self.put(args[1], b"/"),
            (Call::FdPrestat | Call::FdPrestatName, _) => errno::BADF,
            (Call::FdSeek, Descriptor::File { index, .. }) => match given(self, index) {
                Ok(data) => self.seek(args, data.len()),
                Err(_) => errno::IO,
            },
            (Call::FdSeek | Call::FdTell, Descriptor::Root) => errno::BADF,
            (Call::FdTell, Descriptor::File { offset, .. }) => self.put(args[1], &offset.to_le_bytes()),
            (Call::FdSeek | Call::FdTell, _) => errno::SPIPE,
            (Call::FdFileStat, Descriptor::File { index, .. }) => self.file_stat(Some(index), args[1]),
            (Call::FdFileStat, _) => self.file_stat(None, args[1]),
            (Call::PathFileStat, Descriptor::Root) => match self.named(args[2], args[3]) {
                Ok(Some(index)) => self.file_stat(Some(index), args[4]),
                Ok(None) => self.file_stat(None, args[4]),
                Err(error) => error,
            },
            (Call::PathFileStat, _) => errno::NOTCAPABLE,
            _ => errno::NOSYS,
        }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> i32 {
        if self.vm.write(at, bytes) { errno::SUCCESS } else { errno::FAULT }
    }

    fn two(&mut self, args: &[u64], first: u32, second: u32) -> i32 {
        match self.put(args[0], &first.to_le_bytes()) {
            errno::SUCCESS => self.put(args[1], &second.to_le_bytes()),
            error => error,
        }
    }

    fn strings(&mut self, which: fn(&World) -> &Vec<String>, args: &[u64]) -> Result<i32, Stop> {
        let (mut pointer, mut at) = (args[0], args[1]);
        let family = self.family.clone();
        let strings = which(&family.world);
        self.work(u64::from(sizes(strings).1))?;
        for string in strings {
            let text = [string.as_bytes(), b"\0"].concat();
            let here = (at as u32).to_le_bytes();
            if !self.vm.write(pointer, &here) || !self.vm.write(at, &text) {
                return Ok(errno::FAULT);
            }
            pointer += 4;
            at += text.len() as u64;
        }
        Ok(errno::SUCCESS)
    }

    fn time(&mut self, args: &[u64]) -> i32 {
        let time = match args[0] {
            0 => self.family.world.epoch + self.cx.now(),
            1 => self.cx.now(),
            _ => return errno::INVAL,
        };
        self.put(args[2], &(time.as_nanos() as u64).to_le_bytes())
    }

    fn random(&mut self, args: &[u64]) -> Result<i32, Stop> {
        let len = args[1];
        if len > RANDOM_MAX {
            return Ok(errno::INVAL);
        }
        self.work(len)?;
        let mut bytes = vec![0; len as usize];
        match self.family.world.seed {
            Some(seed) => {
                for chunk in bytes.chunks_mut(8) {
                    self.files.random = self.files.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
                    let word = scramble(seed ^ self.files.random).to_le_bytes();
                    chunk.copy_from_slice(&word[..chunk.len()]);
                }
            }
            None => {
                self.io()?;
                if File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).is_err() {
                    return Ok(errno::IO);
                }
            }
        }
        Ok(self.put(args[0], &bytes))
    }

    /// The buffers of a read or a write, cut to what is moved at a time.
    fn buffers(&mut self, args: &[u64]) -> Result<Vec<(u64, u64)>, i32> {
        if args[2] > BUFFERS_MAX {
            return Err(errno::INVAL);
        }
        let list = self.vm.bytes(args[1], args[2] * 8).ok_or(errno::FAULT)?;
        let word = |bytes: &[u8]| u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let mut left = TRANSFER_MAX;
        let mut buffers = Vec::new();
        for pair in list.chunks_exact(8) {
            let (at, len) = (word(pair), word(&pair[4..]).min(left));
            if !self.vm.reaches(at, len) {
                return Err(errno::FAULT);
            }
            left -= len;
            buffers.push((at, len));
        }
        Ok(buffers)
    }

    fn read(&mut self, args: &[u64]) -> Result<i32, Stop> {
        self.io()?;
        let buffers = match self.buffers(args) {
            Ok(buffers) => buffers,
            Err(error) => return Ok(error),
        };
        let wanted = buffers.iter().map(|(_, len)| *len as usize).sum();
        let bytes = match self.files.get(args[0]) {
            Some(Descriptor::Input) => self.input(wanted)?,
            Some(Descriptor::File { index, offset, writes, appends }) => {
                let mut bytes = vec![0; wanted];
                let Ok(count) = self.family.world.files[index].file.read_at(&mut bytes, offset) else {
                    return Ok(errno::IO);
                };
                bytes.truncate(count);
                let offset = offset + count as u64;
                self.files.open[args[0] as usize] = Some(Descriptor::File { index, offset, writes, appends });
                bytes
            }
            _ => return Ok(errno::BADF),
        };
        self.work(bytes.len() as u64)?;
        let mut left = &bytes[..];
        for (at, len) in buffers {
            let (now, later) = left.split_at(left.len().min(len as usize));
            self.vm.write(at, now);
            left = later;
        }
        Ok(self.put(args[3], &(bytes.len() as u32).to_le_bytes()))
    }

    /// Waits for input, without a lock.
    fn input(&mut self, wanted: usize) -> Result<Vec<u8>, Stop> {
        if self.files.rest.is_empty() && wanted > 0 {
            let pieces = locked(&self.family.world.input, |input| match input {
                Input::Empty => Err(Vec::new()),
                Input::Bytes(bytes) => Err(bytes.drain(..wanted.min(bytes.len())).collect()),
                Input::Pieces(pieces) => Ok(pieces.clone()),
            });
            match pieces {
                Err(bytes) => return Ok(bytes),
                Ok(pieces) => match pieces.recv(self.cx) {
                    Ok(piece) => self.files.rest = piece,
                    Err(_) if self.cx.is_cancelled() => return Err(crate::GuestError::Cancelled.into()),
                    Err(_) => return Ok(Vec::new()),
                },
            }
        }
        let count = wanted.min(self.files.rest.len());
        Ok(self.files.rest.drain(..count).collect())
    }

    fn write_out(&mut self, args: &[u64]) -> Result<i32, Stop> {
        self.io()?;
        let buffers = match self.buffers(args) {
            Ok(buffers) => buffers,
            Err(error) => return Ok(error),
        };
        let mut bytes = Vec::new();
        for (at, len) in buffers {
            bytes.extend(self.vm.bytes(at, len).unwrap_or_default());
        }
        self.work(bytes.len() as u64)?;
        let world = &self.family.world;
        let done = match self.files.get(args[0]) {
            Some(Descriptor::Output) => {
                locked(&world.output, |to| to.write_all(&bytes).and_then(|()| to.flush()))
            }
            Some(Descriptor::Errors) => {
                locked(&world.errors, |to| to.write_all(&bytes).and_then(|()| to.flush()))
            }
            Some(Descriptor::File { writes: true, index, offset, appends }) => {
                let file = &world.files[index].file;
                let at = if appends { file.metadata().map_or(offset, |data| data.len()) } else { offset };
                let offset = at + bytes.len() as u64;
                let next = Descriptor::File { writes: true, index, offset, appends };
                let done = file.write_all_at(&bytes, at);
                self.files.open[args[0] as usize] = Some(next);
                done
            }
            Some(Descriptor::File { .. }) => return Ok(errno::NOTCAPABLE),
            _ => return Ok(errno::BADF),
        };
        match done {
            Ok(()) => Ok(self.put(args[3], &(bytes.len() as u32).to_le_bytes())),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(64),
            Err(_) => Ok(errno::IO),
        }
    }

    /// Which of the given files a path names; `None` is the directory itself.
    fn named(&mut self, at: u64, len: u64) -> Result<Option<usize>, i32> {
        if len > PATH_MAX {
            return Err(errno::INVAL);
        }
        let path = self.vm.bytes(at, len).ok_or(errno::FAULT)?;
        let path = std::str::from_utf8(&path).map_err(|_| errno::INVAL)?;
        let name = path.trim_start_matches("./").trim_start_matches('/');
        if name.is_empty() || name == "." {
            return Ok(None);
        }
        let World { files, .. } = &*self.family.world;
        files.iter().position(|given| given.name == name).map(Some).ok_or(errno::NOENT)
    }

    fn open(&mut self, args: &[u64]) -> Result<i32, Stop> {
        self.io()?;
        if !matches!(self.files.get(args[0]), Some(Descriptor::Root)) {
            return Ok(errno::NOTCAPABLE);
        }
        let (flags, rights) = (args[4], args[5]);
        let descriptor = match self.named(args[2], args[3]) {
            Err(error) => return Ok(error),
            Ok(None) => Descriptor::Root,
            Ok(Some(_)) if flags & (OPEN_DIRECTORY | OPEN_EXCLUSIVE) != 0 => return Ok(errno::NOTCAPABLE),
            Ok(Some(index)) => {
                let given = &self.family.world.files[index];
                // A library asks for every right that it might use; a plain read must not fail for that.
                let writes = rights & RIGHT_WRITE != 0;
                if (writes || flags & OPEN_TRUNCATE != 0) && !given.writable {
                    return Ok(errno::NOTCAPABLE);
                }
                if flags & OPEN_TRUNCATE != 0 && given.file.set_len(0).is_err() {
                    return Ok(errno::IO);
                }
                Descriptor::File { index, offset: 0, writes, appends: args[7] & FLAG_APPEND != 0 }
            }
        };
        let Some(fd) = self.files.add(descriptor) else { return Ok(errno::MFILE) };
        Ok(self.put(args[8], &fd.to_le_bytes()))
    }

    fn seek(&mut self, args: &[u64], size: u64) -> i32 {
        let Some(Descriptor::File { index, offset, writes, appends }) = self.files.get(args[0]) else {
            return errno::BADF;
        };
        let from = match args[2] {
            0 => 0,
            1 => offset,
            2 => size,
            _ => return errno::INVAL,
        };
        let Some(offset) = from.checked_add_signed(args[1] as i64).filter(|&at| at <= i64::MAX as u64) else {
            return errno::INVAL;
        };
        self.files.open[args[0] as usize] = Some(Descriptor::File { index, offset, writes, appends });
        self.put(args[3], &offset.to_le_bytes())
    }

    fn stat(&mut self, descriptor: Descriptor, at: u64) -> i32 {
        let (kind, rights) = match descriptor {
            Descriptor::Root => (KIND_DIRECTORY, u64::MAX),
            Descriptor::File { writes: false, .. } => (KIND_FILE, !RIGHT_WRITE),
            Descriptor::File { .. } => (KIND_FILE, u64::MAX),
            // Not a terminal: a library then writes whole buffers, and not line by line.
            _ => (KIND_UNKNOWN, u64::MAX),
        };
        let mut stat = [0; 24];
        stat[0] = kind;
        stat[8..16].copy_from_slice(&rights.to_le_bytes());
        stat[16..].copy_from_slice(&u64::MAX.to_le_bytes());
        self.put(at, &stat)
    }

    fn file_stat(&mut self, index: Option<usize>, at: u64) -> i32 {
        let mut stat = [0; 64];
        stat[16] = KIND_DIRECTORY;
        if let Some(index) = index {
            let Ok(data) = self.family.world.files[index].file.metadata() else { return errno::IO };
            let modified = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let nanos = modified.map_or(0, |time| time.as_nanos() as u64).to_le_bytes();
            stat[8..16].copy_from_slice(&(index as u64 + 1).to_le_bytes());
            stat[16] = KIND_FILE;
            stat[32..40].copy_from_slice(&data.len().to_le_bytes());
            for field in [40, 48, 56] {
                stat[field..field + 8].copy_from_slice(&nanos);
            }
        }
        self.put(at, &stat)
    }
}

/// The output function of splitmix64.
fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
