//! Descriptors, and the only directory. A guest names a file by the name under which it was given; there are no directories
//! to escape from.

use super::{errno, transfer};
use crate::imports::Call;
use crate::machine::{Machine, Stop};
use crate::world::World;
use std::time::UNIX_EPOCH;

/// The most open descriptors of a guest.
const DESCRIPTORS_MAX: usize = 64;
/// The most bytes of a path.
const PATH_MAX: u64 = 4 << 10;
/// The descriptor of a guest's directory, which cannot be closed or replaced.
const ROOT: u64 = 3;

const RIGHT_WRITE: u64 = 1 << 6;
const OPEN_CREATE: u64 = 1;
const OPEN_DIRECTORY: u64 = 1 << 1;
const OPEN_EXCLUSIVE: u64 = 1 << 2;
const OPEN_TRUNCATE: u64 = 1 << 3;
const FLAG_APPEND: u64 = 1;
const KIND_UNKNOWN: u8 = 0;
const KIND_DIRECTORY: u8 = 3;
const KIND_FILE: u8 = 4;

/// An open file: its index among the given ones, and the position in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) index: usize,
    pub(super) offset: u64,
    pub(super) writes: bool,
    pub(super) appends: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Descriptor {
    Input,
    Output,
    Errors,
    /// The only directory, with every file that was given.
    Root,
    File(Open),
}

/// The open files of an instance.
#[derive(Debug)]
pub(crate) struct Files {
    open: Vec<Option<Descriptor>>,
    pub(super) random: u64,
}

impl Files {
    pub(crate) fn new() -> Files {
        use Descriptor::{Errors, Input, Output, Root};
        Files { open: vec![Some(Input), Some(Output), Some(Errors), Some(Root)], random: 0 }
    }

    pub(super) fn get(&self, fd: u64) -> Option<Descriptor> {
        self.open.get(usize::try_from(fd).ok()?).copied().flatten()
    }

    /// Changes an open descriptor.
    pub(super) fn set(&mut self, fd: u64, descriptor: Option<Descriptor>) {
        if let Some(place) = usize::try_from(fd).ok().and_then(|fd| self.open.get_mut(fd)) {
            *place = descriptor;
        }
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

impl Machine<'_, '_, '_> {
    /// Calls that move no data.
    pub(super) fn look(&mut self, call: Call, args: &[u64]) -> i32 {
        let Some(descriptor) = self.files.get(args[0]) else { return errno::BADF };
        match (call, descriptor) {
            (Call::FdClose | Call::FdRenumber, _) if args[0] == ROOT => errno::NOTCAPABLE,
            (Call::FdClose, _) => {
                self.files.set(args[0], None);
                errno::SUCCESS
            }
            (Call::FdRenumber, _) => match self.files.get(args[1]) {
                None => errno::BADF,
                Some(_) if args[1] == ROOT => errno::NOTCAPABLE,
                Some(_) => {
                    self.files.set(args[0], None);
                    self.files.set(args[1], Some(descriptor));
                    errno::SUCCESS
                }
            },
            (Call::FdStat, descriptor) => self.stat(descriptor, args[1]),
            (Call::FdSetFlags, Descriptor::File(file)) => {
                let appends = args[1] & FLAG_APPEND != 0;
                self.files.set(args[0], Some(Descriptor::File(Open { appends, ..file })));
                errno::SUCCESS
            }
            (Call::FdSetFlags, _) => errno::INVAL,
            // A directory, whose name is one byte long.
            (Call::FdPrestat, Descriptor::Root) if args[0] == ROOT => {
                self.put(args[1], &[0, 0, 0, 0, 1, 0, 0, 0])
            }
            (Call::FdPrestatName, Descriptor::Root) if args[0] == ROOT && args[2] >= 1 => {
                self.put(args[1], b"/")
            }
            (Call::FdSeek, Descriptor::File(file)) => self.seek(args, file),
            (Call::FdTell, Descriptor::File(file)) => self.put(args[1], &file.offset.to_le_bytes()),
            // Ignored advice is no error.
            (Call::FdAdvise, Descriptor::File(_)) => errno::SUCCESS,
            (Call::FdSetSize, Descriptor::File(file)) => self.set_size(file, args[1]),
            (Call::FdFileStat, descriptor) => self.file_stat(descriptor, args[1]),
            (Call::PathFileStat, Descriptor::Root) => match self.named(args[2], args[3]) {
                Ok(found) => self.file_stat(found, args[4]),
                Err(error) => error,
            },
            // Existing files are no links.
            (Call::PathReadLink, Descriptor::Root) => match self.named(args[1], args[2]) {
                Ok(_) => errno::INVAL,
                Err(error) => error,
            },
            (Call::PathFileStat | Call::PathReadLink, _) => errno::NOTCAPABLE,
            (Call::FdSeek | Call::FdTell | Call::FdAdvise, Descriptor::Root) => errno::BADF,
            (Call::FdSeek | Call::FdTell | Call::FdAdvise, _) => errno::SPIPE,
            (Call::FdSetSize, _) => errno::INVAL,
            (Call::FdPrestat | Call::FdPrestatName, _) => errno::BADF,
            _ => errno::NOSYS,
        }
    }

    /// What a path names, as if it were opened for reading.
    fn named(&mut self, at: u64, len: u64) -> Result<Descriptor, i32> {
        if len > PATH_MAX {
            return Err(errno::INVAL);
        }
        let path = self.vm.bytes(at, len).ok_or(errno::FAULT)?;
        let path = std::str::from_utf8(&path).map_err(|_| errno::INVAL)?;
        let name = path.trim_start_matches("./").trim_start_matches('/');
        if name.is_empty() || name == "." {
            return Ok(Descriptor::Root);
        }
        let World { files, .. } = &*self.family.world;
        let index = files.iter().position(|given| given.name == name).ok_or(errno::NOENT)?;
        Ok(Descriptor::File(Open { index, offset: 0, writes: false, appends: false }))
    }

    pub(super) fn open(&mut self, args: &[u64]) -> Result<i32, Stop> {
        self.io()?;
        if !matches!(self.files.get(args[0]), Some(Descriptor::Root)) {
            return Ok(errno::NOTCAPABLE);
        }
        let (flags, rights) = (args[4], args[5]);
        let descriptor = match self.named(args[2], args[3]) {
            // The guest may not create a file.
            Err(errno::NOENT) if flags & OPEN_CREATE != 0 => return Ok(errno::NOTCAPABLE),
            Err(error) => return Ok(error),
            Ok(Descriptor::File(_)) if flags & OPEN_EXCLUSIVE != 0 => return Ok(errno::EXIST),
            Ok(Descriptor::File(_)) if flags & OPEN_DIRECTORY != 0 => return Ok(errno::NOTDIR),
            Ok(Descriptor::File(file)) => {
                let given = &self.family.world.files[file.index];
                // A library asks for every right that it might use; a plain read must not fail because of that.
                let writes = rights & RIGHT_WRITE != 0;
                if (writes || flags & OPEN_TRUNCATE != 0) && !given.writable {
                    return Ok(errno::NOTCAPABLE);
                }
                if flags & OPEN_TRUNCATE != 0 && given.file.set_len(0).is_err() {
                    return Ok(errno::IO);
                }
                Descriptor::File(Open { writes, appends: args[7] & FLAG_APPEND != 0, ..file })
            }
            Ok(root) => root,
        };
        let Some(fd) = self.files.add(descriptor) else { return Ok(errno::MFILE) };
        Ok(self.put(args[8], &fd.to_le_bytes()))
    }

    /// Lists the given files from a position on; the last entry is cut where the buffer ends, as the interface demands.
    pub(super) fn list(&mut self, args: &[u64]) -> Result<i32, Stop> {
        self.io()?;
        if !matches!(self.files.get(args[0]), Some(Descriptor::Root)) {
            return Ok(if self.files.get(args[0]).is_some() { errno::NOTDIR } else { errno::BADF });
        }
        let (room, first) = (args[2].min(transfer::TRANSFER_MAX) as usize, args[3]);
        let mut bytes = Vec::new();
        for (index, given) in self.family.world.files.iter().enumerate() {
            if (index as u64) < first {
                continue;
            }
            let next = index as u64 + 1;
            // The position of the next entry, an inode number, the length of the name, the kind.
            bytes.extend(next.to_le_bytes());
            bytes.extend(next.to_le_bytes());
            bytes.extend((given.name.len() as u32).to_le_bytes());
            bytes.extend([KIND_FILE, 0, 0, 0]);
            bytes.extend(given.name.as_bytes());
            if bytes.len() >= room {
                break;
            }
        }
        bytes.truncate(room);
        self.work(bytes.len() as u64)?;
        Ok(match self.put(args[1], &bytes) {
            errno::SUCCESS => self.put(args[4], &(bytes.len() as u32).to_le_bytes()),
            error => error,
        })
    }

    fn set_size(&mut self, file: Open, bytes: u64) -> i32 {
        if !file.writes {
            return errno::NOTCAPABLE;
        }
        match self.family.world.files[file.index].file.set_len(bytes) {
            Ok(()) => errno::SUCCESS,
            Err(_) => errno::INVAL,
        }
    }

    fn seek(&mut self, args: &[u64], file: Open) -> i32 {
        let from = match args[2] {
            0 => 0,
            1 => file.offset,
            2 => match self.family.world.files[file.index].file.metadata() {
                Ok(data) => data.len(),
                Err(_) => return errno::IO,
            },
            _ => return errno::INVAL,
        };
        let Some(offset) = from.checked_add_signed(args[1] as i64).filter(|&at| at <= i64::MAX as u64) else {
            return errno::INVAL;
        };
        self.files.set(args[0], Some(Descriptor::File(Open { offset, ..file })));
        self.put(args[3], &offset.to_le_bytes())
    }

    fn stat(&mut self, descriptor: Descriptor, at: u64) -> i32 {
        let (kind, rights) = match descriptor {
            Descriptor::Root => (KIND_DIRECTORY, u64::MAX),
            Descriptor::File(Open { writes: false, .. }) => (KIND_FILE, !RIGHT_WRITE),
            Descriptor::File(_) => (KIND_FILE, u64::MAX),
            // Not reported as a terminal: a library then writes whole buffers, and not line by line.
            _ => (KIND_UNKNOWN, u64::MAX),
        };
        let mut stat = [0; 24];
        stat[0] = kind;
        stat[8..16].copy_from_slice(&rights.to_le_bytes());
        stat[16..].copy_from_slice(&u64::MAX.to_le_bytes());
        self.put(at, &stat)
    }

    fn file_stat(&mut self, descriptor: Descriptor, at: u64) -> i32 {
        let mut stat = [0; 64];
        stat[16] = match descriptor {
            Descriptor::Root => KIND_DIRECTORY,
            Descriptor::File(_) => KIND_FILE,
            _ => KIND_UNKNOWN,
        };
        if let Descriptor::File(Open { index, .. }) = descriptor {
            let Ok(data) = self.family.world.files[index].file.metadata() else { return errno::IO };
            let modified = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let nanos = modified.map_or(0, |time| time.as_nanos() as u64).to_le_bytes();
            stat[8..16].copy_from_slice(&(index as u64 + 1).to_le_bytes());
            stat[32..40].copy_from_slice(&data.len().to_le_bytes());
            for field in [40, 48, 56] {
                stat[field..field + 8].copy_from_slice(&nanos);
            }
        }
        self.put(at, &stat)
    }
}
