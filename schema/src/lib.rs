//! The messages of kernel objects: `capos.capnp` says which method takes what, `messages.capnp` what is in it.
//!
//! [`messages_capnp`] is generated (`generate.sh`) and has a module for each structure. This file is what one needs around it without a
//! heap: a message is one segment without a frame, read where it lies and written into a buffer of the caller.
//!
//! ```
//! use schema::messages_capnp::timer_now_results;
//! let mut buffer = [0; 64];
//! let length = schema::encode::<timer_now_results::Owned>(&mut buffer, 0, |mut results| results.set_ns(17)).unwrap();
//! let message = schema::decode(&buffer[..length]).unwrap();
//! let results: timer_now_results::Reader<'_> = message.root().unwrap();
//! assert_eq!(results.get_ns(), 17);
//! ```
#![no_std]
#![forbid(unsafe_code)]

pub mod methods;
pub mod words;

// Formatted, documented and spelled by the generator.
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod messages_capnp;

use core::mem::ManuallyDrop;

use capnp::message::{Builder, Reader, ReaderOptions, ReaderSegments, SingleSegmentAllocator};
use capnp::traits::{FromPointerBuilder, FromPointerReader, HasStructSize, Owned};

pub use capnp::{Error, ErrorKind};

/// Words that may be visited while a message is read, each as often as it is: twice the longest message. A message whose parts point to
/// each other in circles ends here.
pub const TRAVERSAL_WORDS_MAX: usize = 1024;
/// How deep structures and lists may lie in each other. Our deepest is a text in a structure in a list in a structure.
pub const NESTING_MAX: i32 = 8;

const WORD_BYTES: usize = 8;

/// The bytes of a message as its only segment.
#[derive(Debug)]
pub struct Segment<'a>(&'a [u8]);

impl ReaderSegments for Segment<'_> {
    fn get_segment(&self, index: u32) -> Option<&[u8]> {
        if index == 0 { Some(self.0) } else { None }
    }

    fn len(&self) -> usize {
        1
    }
}

/// A message to be read.
pub struct Message<'a> {
    reader: Reader<Segment<'a>>,
}

impl Message<'_> {
    /// Its root. Everything that is read is checked as it is read; a message from anybody can be given to this.
    pub fn root<'b, T: FromPointerReader<'b>>(&'b self) -> Result<T, Error> {
        self.reader.get_root()
    }
}

/// The message in `bytes`, at any address. Bytes after the last whole word are not looked at.
pub fn decode(bytes: &[u8]) -> Result<Message<'_>, Error> {
    if bytes.len() < WORD_BYTES {
        return Err(Error::from_kind(ErrorKind::MessageEndsPrematurely(1, 0)));
    }
    let options =
        ReaderOptions { traversal_limit_in_words: Some(TRAVERSAL_WORDS_MAX), nesting_limit: NESTING_MAX };
    let whole = bytes.len() / WORD_BYTES * WORD_BYTES;
    Ok(Message { reader: Reader::new(Segment(&bytes[..whole]), options) })
}

/// The buffer is too small for the message: it must have this many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooSmall {
    /// Bytes that it must have.
    pub needed: usize,
}

/// Writes a message into `buffer` and returns its length in bytes, a multiple of 8.
///
/// The structure has a known size; `more_words` is room for what hangs on it: texts, data, lists (see [`words`]). All of it is zeroed
/// first, so ask for no more than needed.
///
/// # Panics
/// If `fill` writes more than it said: without a heap there is nowhere to put it.
pub fn encode<T>(
    buffer: &mut [u8],
    more_words: usize,
    fill: impl FnOnce(T::Builder<'_>),
) -> Result<usize, TooSmall>
where
    T: Owned,
    for<'b> T::Builder<'b>: HasStructSize + FromPointerBuilder<'b>,
{
    let needed = (words::message::<T>() + more_words) * WORD_BYTES;
    let Some(room) = buffer.get_mut(..needed) else { return Err(TooSmall { needed }) };
    // Not dropped: the builder would wipe what it has written. It owns nothing else.
    let mut message = ManuallyDrop::new(Builder::new(SingleSegmentAllocator::new(room)));
    fill(message.init_root());
    Ok(message.get_segments_for_output()[0].len())
}
