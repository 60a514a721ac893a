//! Calls of kernel objects: parameters and results are messages of the schema.

use abi::{CapId, Cqe, Op, Sqe, TransportError};
use capnp::traits::{FromPointerBuilder, HasStructSize, Owned};

use crate::caps::{Cap, entry};
use crate::error::{Error, Result};
use crate::ring::Client;
use crate::tls;

/// Longest result of a call that waits, in bytes. Texts of exceptions fit, too.
pub(crate) const RESULTS_BYTES: usize = 256;

/// What a call brought back.
pub(crate) struct Results<'a> {
    /// The message.
    pub(crate) bytes: &'a [u8],
    /// The words of the completion.
    pub(crate) words: [u64; 2],
    cap: CapId,
}

impl<'a> Results<'a> {
    /// The results of a successful completion, whose message is in `room`.
    pub(crate) fn of(cqe: &Cqe, room: &'a [u8]) -> Results<'a> {
        let len = (cqe.value as usize).min(room.len());
        Results { bytes: &room[..len], words: cqe.w, cap: CapId(cqe.cap) }
    }

    /// The capability that came along.
    pub(crate) fn cap(&self) -> Result<Cap> {
        if self.cap == CapId::NONE { Err(Error::BadReply) } else { Ok(Cap::owned(self.cap)) }
    }
}

/// Calls `method` of the kernel object `cap` through `client`, with `params`; results go to `room`.
pub(crate) fn call<'a>(
    client: &Client,
    cap: CapId,
    method: u32,
    params: &[u8],
    room: &'a mut [u8],
) -> Result<Results<'a>> {
    let sqe = Sqe {
        method,
        addr: params.as_ptr() as u64,
        len: params.len() as u32,
        result_addr: room.as_mut_ptr() as u64,
        result_len: room.len() as u32,
        ..entry(Op::Call, cap)
    };
    // SAFETY: reads `params` and writes `room`, both lent to us until this returns. What a method does to memory is the
    // promise of the client that calls it.
    let cqe = unsafe { client.run(sqe) };
    if cqe.status != 0 {
        return Err(Error::of(&cqe, room));
    }
    Ok(Results::of(&cqe, room))
}

/// Room for the parameters of a method without texts and lists.
const PARAMS_BYTES: usize = 64;

/// Calls `method` of `cap` on the calling thread's ring, without parameters.
pub(crate) fn invoke<'a>(cap: CapId, method: u32, room: &'a mut [u8]) -> Result<Results<'a>> {
    call(&tls::current().client, cap, method, &[], room)
}

/// Calls `method` of `cap` on the calling thread's ring, with parameters of fixed size that `fill` writes.
pub(crate) fn invoke_with<'a, P>(
    cap: CapId,
    method: u32,
    room: &'a mut [u8],
    fill: impl FnOnce(P::Builder<'_>),
) -> Result<Results<'a>>
where
    P: Owned,
    for<'b> P::Builder<'b>: HasStructSize + FromPointerBuilder<'b>,
{
    invoke_through::<P>(&tls::current().client, cap, method, room, fill)
}

/// As [`invoke_with`], through `client`: for a thread whose control block cannot be found yet.
pub(crate) fn invoke_through<'a, P>(
    client: &Client,
    cap: CapId,
    method: u32,
    room: &'a mut [u8],
    fill: impl FnOnce(P::Builder<'_>),
) -> Result<Results<'a>>
where
    P: Owned,
    for<'b> P::Builder<'b>: HasStructSize + FromPointerBuilder<'b>,
{
    let mut params = [0; PARAMS_BYTES];
    let len = schema::encode::<P>(&mut params, 0, fill).map_err(|_| TransportError::TooLong)?;
    call(client, cap, method, &params[..len], room)
}

/// Reads a reply whose root is a `T`.
pub(crate) fn read<R, T: Owned>(bytes: &[u8], read: impl FnOnce(T::Reader<'_>) -> Option<R>) -> Result<R> {
    let message = schema::decode(bytes).map_err(|_| Error::BadReply)?;
    read(message.root().map_err(|_| Error::BadReply)?).ok_or(Error::BadReply)
}
