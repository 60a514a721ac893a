//! Endpoints: calls between threads and processes.
//!
//! A message is two words, or up to [`abi::MAX_MESSAGE_BYTES`] bytes, and may bring a capability along. The meaning of methods
//! is up to client and server.

use alloc_crate::boxed::Box;
use alloc_crate::vec::Vec;
use core::ops::ControlFlow;

use abi::{CapId, Cqe, Exception, Op, Sqe, cqe_flags, flags};

use crate::caps::{Cap, entry};
use crate::error::{Error, Result};
use crate::pending::Pending;
use crate::ring;

super::client!(Endpoint, "A place to call, or to receive calls.");

/// Room for the text of an exception.
const TEXT_BYTES: usize = crate::error::TEXT_MAX;

/// A capability that goes along with a message.
#[derive(Debug)]
pub enum Give<'a> {
    /// None.
    Nothing,
    /// The receiver gets a copy.
    Copy(&'a Cap),
    /// The receiver gets it, and the sender has it no more; if the message is refused, it is dropped.
    Move(Cap),
}

impl Give<'_> {
    fn put(&self, sqe: &mut Sqe) {
        match self {
            Give::Nothing => {}
            Give::Copy(cap) => sqe.xfer = cap.id().0,
            Give::Move(cap) => {
                sqe.xfer = cap.id().0;
                sqe.flags |= flags::MOVE;
            }
        }
    }

    /// After the entry has completed: a capability that was moved is not ours to release any more. If the message was refused,
    /// it is dropped, which releases it.
    fn done(self, is_sent: bool) {
        if let Give::Move(cap) = self
            && is_sent
        {
            let _: CapId = cap.into_id();
        }
    }
}

/// What came with an answer.
#[derive(Debug)]
pub struct Reply {
    /// The two words, or the number of bytes in the buffer.
    pub message: Message,
    /// A capability that came along.
    pub cap: Option<Cap>,
}

impl Reply {
    /// The two words; zeros if the answer is in the buffer.
    pub fn words(&self) -> [u64; 2] {
        self.message.words()
    }

    /// Bytes of the answer in the buffer.
    pub fn len(&self) -> usize {
        self.message.len()
    }

    /// Whether nothing is in the buffer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn of(cqe: &Cqe) -> Reply {
        let message = if cqe.flags & cqe_flags::INLINE != 0 {
            Message::Inline(cqe.w)
        } else {
            Message::Bytes(cqe.value as usize)
        };
        Reply { message, cap: cap_of(cqe) }
    }
}

fn cap_of(cqe: &Cqe) -> Option<Cap> {
    (cqe.cap != 0).then(|| Cap::owned(CapId(cqe.cap)))
}

/// The form of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Two words.
    Inline([u64; 2]),
    /// This many bytes, in the receiver's buffer.
    Bytes(usize),
}

impl Message {
    /// The two words; zeros if there are none.
    pub fn words(&self) -> [u64; 2] {
        match self {
            Message::Inline(words) => *words,
            Message::Bytes(_) => [0; 2],
        }
    }

    /// How many bytes are in the buffer.
    pub fn len(&self) -> usize {
        match self {
            Message::Inline(_) => 0,
            Message::Bytes(len) => *len,
        }
    }

    /// Whether no bytes are in the buffer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A call that a server received and has to answer.
#[derive(Debug)]
pub struct Incoming {
    /// Names the call; see [`Endpoint::reply`].
    pub token: u64,
    /// The badge of the capability that was called: who the caller is.
    pub badge: u32,
    /// Which method.
    pub method: u16,
    /// What was sent.
    pub message: Message,
    /// A capability that came along.
    pub cap: Option<Cap>,
}

impl Incoming {
    fn of(cqe: &Cqe) -> Incoming {
        let is_inline = cqe.flags & cqe_flags::INLINE != 0;
        Incoming {
            token: cqe.value,
            badge: cqe.badge,
            method: (cqe.flags >> cqe_flags::METHOD_SHIFT) as u16,
            message: if is_inline { Message::Inline(cqe.w) } else { Message::Bytes(cqe.w[0] as usize) },
            cap: cap_of(cqe),
        }
    }
}

/// What a server answers.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// Two words.
    Words([u64; 2]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// An exception, with a text.
    Raise(Exception, &'a str),
}

impl Endpoint {
    /// Calls with two words; the answer must be two words too.
    #[inline]
    pub fn call(&self, method: u16, words: [u64; 2]) -> Result<[u64; 2]> {
        let mut text = [core::mem::MaybeUninit::<u8>::uninit(); TEXT_BYTES];
        let sqe = Sqe {
            flags: flags::INLINE,
            method: method.into(),
            arg0: words[0],
            arg1: words[1],
            result_addr: text.as_mut_ptr() as u64,
            result_len: TEXT_BYTES as u32,
            ..entry(Op::Call, self.0.id())
        };
        // SAFETY: the kernel writes into `text`, which is ours until this returns.
        let cqe = unsafe { ring::run(sqe) };
        if cqe.status != 0 {
            let len = (cqe.value as usize).min(TEXT_BYTES);
            // SAFETY: the kernel wrote `value` bytes.
            return Err(Error::of(&cqe, unsafe { core::slice::from_raw_parts(text.as_ptr().cast(), len) }));
        }
        drop(cap_of(&cqe));
        Ok(cqe.w)
    }

    /// Calls with `message`; the answer goes to `reply`.
    pub fn call_bytes(&self, method: u16, message: &[u8], reply: &mut [u8]) -> Result<Reply> {
        self.call_giving(method, message, reply, Give::Nothing)
    }

    /// As [`Endpoint::call_bytes`], with a capability.
    pub fn call_giving(
        &self,
        method: u16,
        message: &[u8],
        reply: &mut [u8],
        give: Give<'_>,
    ) -> Result<Reply> {
        let mut sqe = Sqe {
            method: method.into(),
            addr: message.as_ptr() as u64,
            len: message.len() as u32,
            result_addr: reply.as_mut_ptr() as u64,
            result_len: reply.len() as u32,
            ..entry(Op::Call, self.0.id())
        };
        give.put(&mut sqe);
        // SAFETY: reads `message` and writes `reply`, both lent to us until this returns.
        let cqe = unsafe { ring::run(sqe) };
        // An exception comes from the server, which had the message; after a transport error no server had it.
        give.done(cqe.status >= 0);
        if cqe.status == 0 { Ok(Reply::of(&cqe)) } else { Err(Error::of(&cqe, reply)) }
    }

    /// Starts a call with two words.
    pub fn call_start(&self, method: u16, words: [u64; 2]) -> Result<Pending<Reply>> {
        let sqe = Sqe {
            flags: flags::INLINE,
            method: method.into(),
            arg0: words[0],
            arg1: words[1],
            ..entry(Op::Call, self.0.id())
        };
        Pending::start(sqe, Vec::new(), alloc_crate::vec![0; TEXT_BYTES], |cqe, _| Ok(Reply::of(cqe)))
    }

    /// Starts a call with `message`; [`Pending::results`] has the answer's bytes, `reply_bytes` at most.
    pub fn call_bytes_start(
        &self,
        method: u16,
        message: &[u8],
        reply_bytes: usize,
    ) -> Result<Pending<Reply>> {
        let sqe = Sqe { method: method.into(), ..entry(Op::Call, self.0.id()) };
        Pending::start(sqe, message.to_vec(), alloc_crate::vec![0; reply_bytes], |cqe, _| Ok(Reply::of(cqe)))
    }

    /// Waits for a call; bytes of its message go to `buffer`.
    #[inline]
    pub fn recv(&self, buffer: &mut [u8]) -> Result<Incoming> {
        // SAFETY: writes `buffer`, lent to us until this returns.
        let cqe = unsafe { ring::run(self.recv_entry(buffer)) };
        if cqe.status == 0 { Ok(Incoming::of(&cqe)) } else { Err(Error::of(&cqe, &[])) }
    }

    /// Starts to wait for a call, whose bytes [`Pending::results`] has.
    pub fn recv_start(&self, buffer_bytes: usize) -> Result<Pending<Incoming>> {
        let sqe = entry(Op::Recv, self.0.id());
        Pending::start(sqe, Vec::new(), alloc_crate::vec![0; buffer_bytes], |cqe, _| Ok(Incoming::of(cqe)))
    }

    /// Answers the call with `token`; an error if there is no such call any more.
    pub fn reply(&self, token: u64, answer: Answer<'_>) -> Result<()> {
        self.reply_giving(token, answer, Give::Nothing)
    }

    /// As [`Endpoint::reply`], with a capability.
    pub fn reply_giving(&self, token: u64, answer: Answer<'_>, give: Give<'_>) -> Result<()> {
        let mut sqe = self.return_entry(token, answer);
        give.put(&mut sqe);
        // SAFETY: reads what `answer` lends until this returns.
        let cqe = unsafe { ring::run(sqe) };
        give.done(cqe.status == 0);
        if cqe.status == 0 { Ok(()) } else { Err(Error::of(&cqe, &[])) }
    }

    /// Answers `token` and waits for the next call, with one system call for both. A caller that has gone is not an error.
    #[inline]
    pub fn reply_recv(&self, token: u64, answer: Answer<'_>, buffer: &mut [u8]) -> Result<Incoming> {
        // SAFETY: both entries are taken by the wait below, so what they read and write is lent long enough.
        let cqe = unsafe {
            ring::queue_quiet(self.return_entry(token, answer));
            ring::run(self.recv_entry(buffer))
        };
        if cqe.status == 0 { Ok(Incoming::of(&cqe)) } else { Err(Error::of(&cqe, &[])) }
    }

    /// Serves calls of two words: answers with what `f` returns, and ends after `Break`.
    pub fn serve(&self, mut f: impl FnMut(&Incoming) -> ControlFlow<[u64; 2], [u64; 2]>) -> Result<()> {
        let mut call = self.recv(&mut [])?;
        loop {
            match f(&call) {
                ControlFlow::Continue(words) => {
                    call = self.reply_recv(call.token, Answer::Words(words), &mut [])?;
                }
                ControlFlow::Break(words) => return self.reply(call.token, Answer::Words(words)),
            }
        }
    }

    /// Another capability to this endpoint, for callers only, that the server knows by `badge`.
    pub fn caller(&self, badge: u32) -> Result<Endpoint> {
        self.0.copy(abi::rights::CALL | abi::rights::GRANT, badge).map(Endpoint)
    }

    #[inline(always)]
    fn recv_entry(&self, buffer: &mut [u8]) -> Sqe {
        Sqe {
            result_addr: buffer.as_mut_ptr() as u64,
            result_len: buffer.len() as u32,
            ..entry(Op::Recv, self.0.id())
        }
    }

    #[inline(always)]
    fn return_entry(&self, token: u64, answer: Answer<'_>) -> Sqe {
        let mut sqe = Sqe { result_addr: token, ..entry(Op::Return, self.0.id()) };
        match answer {
            Answer::Words(words) => {
                sqe.flags = flags::INLINE;
                (sqe.arg0, sqe.arg1) = (words[0], words[1]);
            }
            Answer::Bytes(bytes) => (sqe.addr, sqe.len) = (bytes.as_ptr() as u64, bytes.len() as u32),
            Answer::Raise(kind, text) => {
                sqe.method = kind as u32;
                (sqe.addr, sqe.len) = (text.as_ptr() as u64, text.len() as u32);
            }
        }
        sqe
    }
}

/// A buffer for whole messages.
pub fn message_buffer() -> Box<[u8; abi::MAX_MESSAGE_BYTES]> {
    Box::new([0; abi::MAX_MESSAGE_BYTES])
}
