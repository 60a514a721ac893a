//! Operations in progress that own their buffers, so that these stay as long as the kernel uses them.

use alloc_crate::vec::Vec;

use abi::{Cqe, Sqe, TransportError};

use crate::error::{Error, Result};
use crate::ring::{self, Token};

/// An operation in progress. It owns the memory that the kernel reads and writes, so even forgetting it is sound; if it is dropped, it
/// is cancelled.
///
/// It belongs to the thread that started it.
#[must_use = "dropped, the operation is cancelled"]
pub struct Pending<R> {
    token: Option<Token>,
    /// Read by the kernel.
    _params: Vec<u8>,
    /// Written by the kernel.
    results: Vec<u8>,
    decode: fn(&Cqe, &[u8]) -> Result<R>,
}

impl<R> Pending<R> {
    /// Starts `sqe` with `params` as its parameters and room for results; `decode` makes the result of a successful completion.
    pub(crate) fn start(
        mut sqe: Sqe,
        params: Vec<u8>,
        mut results: Vec<u8>,
        decode: fn(&Cqe, &[u8]) -> Result<R>,
    ) -> Result<Pending<R>> {
        if !params.is_empty() {
            (sqe.addr, sqe.len) = (params.as_ptr() as u64, params.len() as u32);
        }
        if !results.is_empty() {
            (sqe.result_addr, sqe.result_len) = (results.as_mut_ptr() as u64, results.len() as u32);
        }
        // SAFETY: both buffers are on the heap and freed only by `drop`, which waits for the end of the operation.
        let token = unsafe { ring::start(sqe)? };
        Ok(Pending { token: Some(token), _params: params, results, decode })
    }

    /// The result if it is there. Makes no system call. Once the result was returned, `None` for ever.
    pub fn poll(&mut self) -> Option<Result<R>> {
        match ring::poll(self.token.take()?) {
            Ok(cqe) => Some(self.finish(&cqe)),
            Err(token) => {
                self.token = Some(token);
                None
            }
        }
    }

    /// Waits for the result as long as it takes.
    pub fn wait(mut self) -> Result<R> {
        self.wait_mut()
    }

    /// As [`Pending::wait`], and then [`Pending::results`] has the bytes. Once only: a second wait is [`TransportError::BadToken`].
    pub fn wait_mut(&mut self) -> Result<R> {
        let token = self.token.take().ok_or(TransportError::BadToken)?;
        let cqe = ring::wait(token);
        self.finish(&cqe)
    }

    /// Waits for `timeout_ns` at most; `None` if the time is over, and the operation goes on.
    pub fn wait_timeout(&mut self, timeout_ns: u64) -> Option<Result<R>> {
        match ring::wait_timeout(self.token.take()?, timeout_ns) {
            Ok(cqe) => Some(self.finish(&cqe)),
            Err(token) => {
                self.token = Some(token);
                None
            }
        }
    }

    /// Withdraws it: [`TransportError::Cancelled`], or its result if that was faster.
    pub fn cancel(mut self) -> Result<R> {
        self.cancel_mut()
    }

    /// As [`Pending::cancel`], and [`Pending::results`] has the bytes if the result was faster.
    pub fn cancel_mut(&mut self) -> Result<R> {
        let token = self.token.take().ok_or(TransportError::BadToken)?;
        let cqe = ring::cancel(token);
        self.finish(&cqe)
    }

    /// The number that its completion carries as `user_data`.
    pub fn user_data(&self) -> Option<u64> {
        self.token.as_ref().map(Token::user_data)
    }

    /// The buffer for results, once the operation has completed; empty before that.
    pub fn results(&self) -> &[u8] {
        if self.token.is_some() { &[] } else { &self.results }
    }

    fn finish(&self, cqe: &Cqe) -> Result<R> {
        if cqe.status == 0 { (self.decode)(cqe, &self.results) } else { Err(Error::of(cqe, &self.results)) }
    }
}

impl<R> Drop for Pending<R> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            let cqe = ring::cancel(token);
            if cqe.status == 0 {
                // Capabilities that came with it are released by their wrappers.
                drop((self.decode)(&cqe, &self.results));
            }
        }
    }
}
