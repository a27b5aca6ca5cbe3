//! The place where the parts of a collection are kept.

/// The name of a part of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The value under the user's key.
    Root,
}

/// The parts of one collection. `'p`: bytes that `get` returned stay valid while other values are
/// put, as entries of a log do.
pub trait Parts<'p> {
    /// The bytes of a part; `None`: there is no such part.
    fn get(&self, part: Part) -> Option<&'p [u8]>;

    /// An empty buffer whose bytes replace the part when the operation has ended.
    fn put(&mut self, part: Part) -> &mut Vec<u8>;

    /// Removes a part.
    fn remove(&mut self, part: Part);
}
