//! Reading and writing. An operation that may wait for something outside makes the task wait, and not its worker: input comes
//! from a channel, and output that may block goes through the runtime's I/O. Regular files are read and written at once.

use super::files::{Descriptor, Open};
use super::{errno, locked, word};
use crate::error::GuestError;
use crate::machine::{Machine, Stop};
use crate::world::{Input, Output, Way};
use janus::RecvError;
use janus::io::{IoError, PipeWriter, unblock};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// The most buffers of one read or write.
const BUFFERS_MAX: u64 = 1_024;
/// The most bytes of one read or write: the rest is left for the next one, as on any system.
pub(super) const TRANSFER_MAX: u64 = 64 << 10;

impl Machine<'_, '_, '_> {
    /// Charges one operation for each of the buffers, whatever is in them.
    fn look_at_buffers(&mut self, args: &[u64]) -> Result<(), Stop> {
        self.work(args[2].min(BUFFERS_MAX) << 6)
    }

    /// The buffers of a read or a write, cut to the most that is moved at a time.
    fn buffers(&mut self, args: &[u64]) -> Result<Vec<(u64, u64)>, i32> {
        if args[2] > BUFFERS_MAX {
            return Err(errno::INVAL);
        }
        let list = self.vm.bytes(args[1], args[2] * 8).ok_or(errno::FAULT)?;
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

    /// Reads; from a file also at a given position. The last argument says where the count goes.
    pub(super) fn read(&mut self, args: &[u64], place: Option<u64>) -> Result<i32, Stop> {
        self.io()?;
        self.look_at_buffers(args)?;
        let buffers = match self.buffers(args) {
            Ok(buffers) => buffers,
            Err(error) => return Ok(error),
        };
        let wanted = buffers.iter().map(|(_, len)| *len as usize).sum();
        let bytes = match self.files.get(args[0]) {
            Some(Descriptor::Input) if place.is_some() => return Ok(errno::SPIPE),
            Some(Descriptor::Input) => self.input(wanted)?,
            Some(Descriptor::File(file)) => {
                let mut bytes = vec![0; wanted];
                let given = &self.family.world.files[file.index].file;
                let Ok(count) = given.read_at(&mut bytes, place.unwrap_or(file.offset)) else {
                    return Ok(errno::IO);
                };
                bytes.truncate(count);
                if place.is_none() {
                    let offset = file.offset + count as u64;
                    self.files.set(args[0], Some(Descriptor::File(Open { offset, ..file })));
                }
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
        Ok(self.put(args[if place.is_some() { 4 } else { 3 }], &(bytes.len() as u32).to_le_bytes()))
    }

    fn input(&mut self, wanted: usize) -> Result<Vec<u8>, Stop> {
        if wanted == 0 {
            return Ok(Vec::new());
        }
        loop {
            let there = self.await_input(None)?;
            let take = |bytes: &mut Vec<u8>| bytes.drain(..wanted.min(bytes.len())).collect::<Vec<u8>>();
            let taken = locked(&self.family.world.input, |input| match input {
                Input::Bytes(bytes) => take(bytes),
                Input::Empty | Input::Pieces(_) => locked(&self.family.rest, take),
            });
            // Another instance of the family may have been faster.
            if !taken.is_empty() || there == Some(0) {
                return Ok(taken);
            }
        }
    }

    /// Waits for input, without a lock; returns how many bytes there are, 0 at its end, `None` if none came in time.
    pub(super) fn await_input(&mut self, timeout: Option<Duration>) -> Result<Option<usize>, Stop> {
        let rest = locked(&self.family.rest, |rest| rest.len());
        if rest > 0 {
            return Ok(Some(rest));
        }
        let pieces = locked(&self.family.world.input, |input| match input {
            Input::Empty => Err(0),
            Input::Bytes(bytes) => Err(bytes.len()),
            Input::Pieces(pieces) => Ok(pieces.clone()),
        });
        match pieces {
            Err(count) => Ok(Some(count)),
            // The read was charged already: a piece of input is not a message.
            Ok(pieces) => match pieces.recv_paid(self.cx, timeout) {
                Ok(piece) => Ok(Some(locked(&self.family.rest, |rest| {
                    rest.extend(piece);
                    rest.len()
                }))),
                Err(_) if self.cx.is_cancelled() => Err(GuestError::Cancelled.into()),
                Err(RecvError::Empty) => Ok(None),
                Err(_) => Ok(Some(0)),
            },
        }
    }

    /// Writes; to a file also at a given position.
    pub(super) fn write_out(&mut self, args: &[u64], place: Option<u64>) -> Result<i32, Stop> {
        let world = self.family.world.clone();
        let done = match self.files.get(args[0]) {
            Some(Descriptor::Output) => self.stream(args, place, &world.output)?,
            Some(Descriptor::Errors) => self.stream(args, place, &world.errors)?,
            Some(Descriptor::File(file)) if file.writes => self.write_file(args, place, file)?,
            other => {
                self.io()?;
                return Ok(if matches!(other, Some(Descriptor::File(_))) {
                    errno::NOTCAPABLE
                } else {
                    errno::BADF
                });
            }
        };
        Ok(match done {
            Ok(count) => self.put(args[if place.is_some() { 4 } else { 3 }], &(count as u32).to_le_bytes()),
            Err(error) => error,
        })
    }

    fn write_file(
        &mut self,
        args: &[u64],
        place: Option<u64>,
        file: Open,
    ) -> Result<Result<usize, i32>, Stop> {
        self.io()?;
        let bytes = match self.gather(args)? {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Err(error)),
        };
        let given = &self.family.world.files[file.index].file;
        let end = || given.metadata().map_or(file.offset, |data| data.len());
        let at = place.unwrap_or_else(|| if file.appends { end() } else { file.offset });
        let done = given.write_all_at(&bytes, at);
        if place.is_none() && done.is_ok() {
            let offset = at.saturating_add(bytes.len() as u64);
            self.files.set(args[0], Some(Descriptor::File(Open { offset, ..file })));
        }
        Ok(done.map(|()| bytes.len()).map_err(|error| number(&error)))
    }

    /// Writes to a stream; the runtime's own calls charge themselves.
    fn stream(&mut self, args: &[u64], place: Option<u64>, to: &Output) -> Result<Result<usize, i32>, Stop> {
        if place.is_some() {
            self.io()?;
            return Ok(Err(errno::SPIPE));
        }
        let direct = matches!(to.way(), Way::Direct);
        if direct {
            self.io()?;
        }
        let bytes = match self.gather(args)? {
            Ok(bytes) => bytes,
            Err(error) => {
                // The runtime's own I/O charges itself; here it was not used.
                if !direct {
                    self.io()?;
                }
                return Ok(Err(error));
            }
        };
        let done = match to.way() {
            Way::Direct => to.write(&bytes),
            Way::Pipe(pipe) => self.write_pipe(pipe, to, &bytes)?,
            Way::Thread => {
                let (to, bytes) = (to.clone(), Arc::<[u8]>::from(bytes));
                self.blocking(move || to.write(&bytes))?
            }
        };
        Ok(done.map_err(|error| number(&error)))
    }

    /// Writes all, as programs expect of an output that blocks; each time that the reader made room costs an operation.
    fn write_pipe(
        &mut self,
        pipe: &PipeWriter,
        to: &Output,
        bytes: &[u8],
    ) -> Result<io::Result<usize>, Stop> {
        let mut written = 0;
        loop {
            let rest = &bytes[written..];
            let done = pipe.write(self.cx, rest);
            match self.settled(done, || to.write(rest))? {
                // Nothing was left to write.
                Ok(0) => return Ok(Ok(written)),
                Ok(count) => written += count,
                Err(_) if written > 0 => return Ok(Ok(written)),
                Err(error) => return Ok(Err(error)),
            }
            if written >= bytes.len() {
                return Ok(Ok(written));
            }
        }
    }

    /// Collects and charges the bytes to be written; the inner error is for the guest.
    fn gather(&mut self, args: &[u64]) -> Result<Result<Vec<u8>, i32>, Stop> {
        self.look_at_buffers(args)?;
        let buffers = match self.buffers(args) {
            Ok(buffers) => buffers,
            Err(error) => return Ok(Err(error)),
        };
        self.work(buffers.iter().map(|(_, len)| len).sum())?;
        let mut bytes = Vec::new();
        for (at, len) in buffers {
            bytes.extend(self.vm.bytes(at, len).unwrap_or_default());
        }
        Ok(Ok(bytes))
    }

    pub(super) fn sync(&mut self, fd: u64) -> Result<i32, Stop> {
        let Some(Descriptor::File(file)) = self.files.get(fd) else {
            self.io()?;
            return Ok(if self.files.get(fd).is_some() { errno::INVAL } else { errno::BADF });
        };
        let world = self.family.world.clone();
        let done = self.blocking(move || world.files[file.index].file.sync_all())?;
        Ok(done.map_or_else(|error| number(&error), |()| errno::SUCCESS))
    }

    /// Performs a call that may block on a thread of the runtime; only this task waits. If the task is cancelled, the call goes
    /// on without it.
    fn blocking<T: Send + 'static>(
        &mut self,
        call: impl Fn() -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<io::Result<T>, Stop> {
        let done = unblock(self.cx, call.clone());
        self.settled(done.and_then(|done| done), call)
    }

    /// Counts a call of the runtime's I/O, which has charged itself as an operation on a file. A deterministic runtime has no
    /// such I/O: there the task performs the operation itself.
    fn settled<T>(
        &mut self,
        done: io::Result<T>,
        directly: impl FnOnce() -> io::Result<T>,
    ) -> Result<io::Result<T>, Stop> {
        let why = done.as_ref().err().and_then(IoError::of);
        if why == Some(IoError::Cancelled) {
            return Err(GuestError::Cancelled.into());
        }
        self.family.tally.io();
        self.family.tally.ops(1);
        Ok(if why == Some(IoError::Deterministic) { directly() } else { done })
    }
}

fn number(error: &io::Error) -> i32 {
    match error.kind() {
        ErrorKind::BrokenPipe => errno::PIPE,
        ErrorKind::InvalidInput => errno::INVAL,
        _ => errno::IO,
    }
}
