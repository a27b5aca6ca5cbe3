//! Raw bytes beside a message: a part of bytes that others may share.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A part of shared bytes: passed from thread to thread and never copied. The shared bytes live as
/// long as the part.
#[derive(Clone, Default)]
pub struct Slice {
    owner: Option<Arc<dyn AsRef<[u8]> + Send + Sync>>,
    range: Range<usize>,
}

impl Slice {
    /// A part of `owner`'s bytes, which must not change their length.
    ///
    /// # Panics
    /// If it has no such part.
    pub fn of(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Slice {
        let bytes = (*owner).as_ref().len();
        assert!(
            range.start <= range.end && range.end <= bytes,
            "{range:?} of {bytes} bytes"
        );
        Slice {
            owner: Some(owner),
            range,
        }
    }

    /// A part of this slice.
    ///
    /// # Panics
    /// If the slice has no such part.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Slice {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} of {} bytes",
            self.len()
        );
        Slice {
            owner: self.owner.clone(),
            range: self.range.start + range.start..self.range.start + range.end,
        }
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.owner {
            Some(owner) => &(**owner).as_ref()[self.range.clone()],
            None => &[],
        }
    }
}

impl From<&[u8]> for Slice {
    fn from(bytes: &[u8]) -> Slice {
        bytes.to_vec().into()
    }
}

impl From<Vec<u8>> for Slice {
    fn from(bytes: Vec<u8>) -> Slice {
        let range = 0..bytes.len();
        if range.is_empty() {
            Slice::default()
        } else {
            Slice::of(Arc::new(bytes), range)
        }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_what_they_are_of() {
        let all: Arc<Vec<u8>> = Arc::new((0..100).collect());
        let part = Slice::of(all.clone(), 10..20);
        assert_eq!(*part, all[10..20]);
        assert_eq!(Arc::strong_count(&all), 2);
        assert_eq!(part.clone().as_ptr(), part.as_ptr());
        assert_eq!(*part.part(2..4), all[12..14]);
        assert!(Slice::default().is_empty() && Slice::from(Vec::new()).is_empty());
        assert_eq!(*Slice::from(vec![1, 2]), [1, 2]);
    }

    #[test]
    #[should_panic(expected = "90..101 of 100 bytes")]
    fn there_is_nothing_beyond_the_end() {
        let _ = Slice::of(Arc::new(vec![0; 100]), 90..101);
    }
}
