//! Sizes in words, to know before a message is written whether it fits.

use capnp::traits::{HasStructSize, Owned};

/// A text of `bytes` bytes, with the NUL that ends it.
pub const fn text(bytes: usize) -> usize {
    (bytes + 1).div_ceil(8)
}

/// Data of `bytes` bytes, or a list of as many `UInt8`.
pub const fn data(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// A list of `count` pointers: of texts, for instance, without the texts.
pub const fn pointers(count: usize) -> usize {
    count
}

/// One structure `T`, without what it points to.
pub fn structure<T>() -> usize
where
    T: Owned,
    for<'b> T::Builder<'b>: HasStructSize,
{
    let size = <T::Builder<'static> as HasStructSize>::STRUCT_SIZE;
    usize::from(size.data) + usize::from(size.pointers)
}

/// A list of `count` structures `T`, without what they point to.
pub fn structures<T>(count: usize) -> usize
where
    T: Owned,
    for<'b> T::Builder<'b>: HasStructSize,
{
    1 + count * structure::<T>()
}

/// A message with `T` at its root, without what it points to.
pub fn message<T>() -> usize
where
    T: Owned,
    for<'b> T::Builder<'b>: HasStructSize,
{
    1 + structure::<T>()
}
