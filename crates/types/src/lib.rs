//! Redis's data types as bytes of values: hashes, lists, sets, sorted sets, streams; and, inside
//! plain strings, bitmaps, HyperLogLogs and geohashes.
//!
//! A collection is *packed*: the whole of it is one value, the part [`Part::Root`]. An operation
//! decodes it, changes it, and stores it as a new value. The caller keeps the parts ([`Parts`]): a
//! server in entries of its log, a test in a map. The trait is there so that collections of many
//! parts can come without another interface.
//!
//! - Y1: a value is changed only as a whole, by [`Parts::put`] or [`Parts::remove`], once in an
//!   operation. If an operation fails, the caller drops the bytes that it has put.
//! - Y2: no bytes, however damaged, reach a panic or an allocation that is more than a constant
//!   times their length: the decoders check every length and count.
//! - Y3: a collection without elements is no value: storing it removes the part. But a stream
//!   without entries stays, because it has its last id and its groups.
//! - Y4: a collection has at most `COLLECTION_ELEMENTS_MAX` elements and `VALUE_BYTES_MAX` bytes,
//!   so one operation stays below 2 ms.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

pub mod bits;
pub mod dump;
pub mod geo;
pub mod hll;
mod index;
pub mod lcs;
pub mod list;
mod members;
mod packed;
mod parts;
pub mod sorted;
pub mod stream;
pub mod table;
pub mod text;

pub use list::List;
pub use members::Members;
pub use packed::{count, each, find_at_most_once, members_from};
pub use parts::{Part, Parts};
pub use sorted::Sorted;
pub use stream::Stream;
pub use table::Table;
pub use text::Text;

use duramen_base::limits::{COLLECTION_ELEMENTS_MAX, VALUE_BYTES_MAX};

/// The type of a collection, its value's first byte. None of them begins a number, so no command on
/// numbers takes a collection for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Type {
    Hash = 1,
    List = 2,
    Set = 3,
    SortedSet = 4,
    Stream = 5,
}

impl Type {
    /// The type of a typed value; `None` if its first byte is no type.
    pub fn of(value: &[u8]) -> Option<Type> {
        let types = [
            Type::Hash,
            Type::List,
            Type::Set,
            Type::SortedSet,
            Type::Stream,
        ];
        let first = value.first()?;
        types.into_iter().find(|kind| *kind as u8 == *first)
    }

    /// The name that `TYPE` replies.
    pub fn name(self) -> &'static str {
        match self {
            Type::Hash => "hash",
            Type::List => "list",
            Type::Set => "set",
            Type::SortedSet => "zset",
            Type::Stream => "stream",
        }
    }
}

/// The reason why an operation on a collection did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("Operation against a key holding the wrong kind of value")]
    WrongType,
    #[error(
        "the collection would exceed the limit of {VALUE_BYTES_MAX} bytes or \
         {COLLECTION_ELEMENTS_MAX} elements: split it over several keys"
    )]
    Full,
    #[error("the value is damaged: its bytes are no collection")]
    Damaged,
}
