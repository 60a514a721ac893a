//! Pipes within this process, and to its children.

use super::op::{Call, Manner, Request, perform};
use super::{Read, Write, begin, sys};
use crate::budget::Operation;
use crate::cx::Cx;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::Location;

/// The reading end of a pipe; when the last one is gone, writers get [`BrokenPipe`](io::ErrorKind::BrokenPipe).
#[derive(Debug)]
pub struct PipeReader(OwnedFd);

/// The writing end of a pipe; when the last one is gone, readers get to the end.
#[derive(Debug)]
pub struct PipeWriter(OwnedFd);

/// Makes a pipe.
#[track_caller]
pub fn pipe(cx: &Cx) -> io::Result<(PipeReader, PipeWriter)> {
    begin(cx, Operation::FileIo, Location::caller())?;
    let (reader, writer) = sys::pipe()?;
    Ok((PipeReader(reader), PipeWriter(writer)))
}

fn manner(at: &'static Location<'static>) -> Manner {
    Manner { cost: Operation::FileIo, until: None, eager: true, at }
}

impl PipeReader {
    /// Wraps an existing descriptor, which becomes non-blocking.
    pub fn new(end: OwnedFd) -> io::Result<PipeReader> {
        sys::set_nonblocking(&end)?;
        Ok(PipeReader(end))
    }

    /// Reads what is there, and waits until there is at least a byte; 0 is the end.
    #[track_caller]
    pub fn read(&self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
        perform(cx, Request::into(Call::Read, self.0.as_raw_fd(), buffer), &manner(Location::caller()))
    }

    /// Appends everything up to the end, and returns how many bytes that were.
    pub fn read_to_end(&self, cx: &Cx, buffer: &mut Vec<u8>) -> io::Result<usize> {
        Read::read_to_end(&mut &*self, cx, buffer)
    }
}

impl PipeWriter {
    /// Wraps an existing descriptor, which becomes non-blocking.
    pub fn new(end: OwnedFd) -> io::Result<PipeWriter> {
        sys::set_nonblocking(&end)?;
        Ok(PipeWriter(end))
    }

    /// Writes at least a byte of `buffer`, and waits for room.
    #[track_caller]
    pub fn write(&self, cx: &Cx, buffer: &[u8]) -> io::Result<usize> {
        perform(cx, Request::out_of(Call::Write, self.0.as_raw_fd(), buffer), &manner(Location::caller()))
    }

    /// Writes all of `buffer`.
    pub fn write_all(&self, cx: &Cx, buffer: &[u8]) -> io::Result<()> {
        Write::write_all(&mut &*self, cx, buffer)
    }
}

impl Read for PipeReader {
    #[track_caller]
    fn read(&mut self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
        PipeReader::read(self, cx, buffer)
    }
}

impl Read for &PipeReader {
    #[track_caller]
    fn read(&mut self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
        PipeReader::read(self, cx, buffer)
    }
}

impl Write for PipeWriter {
    #[track_caller]
    fn write(&mut self, cx: &Cx, buffer: &[u8]) -> io::Result<usize> {
        PipeWriter::write(self, cx, buffer)
    }
}

impl Write for &PipeWriter {
    #[track_caller]
    fn write(&mut self, cx: &Cx, buffer: &[u8]) -> io::Result<usize> {
        PipeWriter::write(self, cx, buffer)
    }
}

impl AsFd for PipeReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for PipeWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
