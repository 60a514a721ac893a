//! Bytes to and from the serial line.

use alloc_crate::vec::Vec;

use abi::{MAX_IO_BYTES, Op, Sqe};

use crate::caps::entry;
use crate::error::{Error, Result};
use crate::pending::Pending;
use crate::ring;

super::client!(Console, "Bytes to and from the serial line.");

impl Console {
    /// Writes all of `bytes`.
    pub fn write(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let taken = self.write_some(bytes)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Writes at most [`MAX_IO_BYTES`] of `bytes`; returns how many.
    pub fn write_some(&self, bytes: &[u8]) -> Result<usize> {
        let len = bytes.len().min(MAX_IO_BYTES);
        let sqe = Sqe { addr: bytes.as_ptr() as u64, len: len as u32, ..entry(Op::Write, self.0.id()) };
        // SAFETY: reads `bytes`, lent to us until this returns.
        let cqe = unsafe { ring::run(sqe) };
        match cqe.status {
            0 if cqe.value == 0 && len > 0 => Err(Error::BadReply),
            0 => Ok((cqe.value as usize).min(len)),
            _ => Err(Error::of(&cqe, &[])),
        }
    }

    /// Waits for input and reads what is there, as much as fits; returns how many bytes.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        let len = buffer.len().min(MAX_IO_BYTES);
        let sqe = Sqe {
            result_addr: buffer.as_mut_ptr() as u64,
            result_len: len as u32,
            ..entry(Op::Read, self.0.id())
        };
        // SAFETY: writes `buffer`, lent to us until this returns.
        let cqe = unsafe { ring::run(sqe) };
        if cqe.status == 0 { Ok((cqe.value as usize).min(len)) } else { Err(Error::of(&cqe, &[])) }
    }

    /// Starts to wait for input; [`Pending::results`] has the bytes, as many as the result says.
    pub fn read_start(&self, bytes: usize) -> Result<Pending<usize>> {
        let len = bytes.min(MAX_IO_BYTES);
        let sqe = entry(Op::Read, self.0.id());
        Pending::start(sqe, Vec::new(), alloc_crate::vec![0; len], |cqe, results| {
            Ok((cqe.value as usize).min(results.len()))
        })
    }
}
