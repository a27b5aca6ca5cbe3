//! Reads fixed fields from untrusted bytes.

use super::{BodyError, Kind};

/// The unread rest of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    kind: Kind,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    #[inline]
    pub fn new(kind: Kind, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { kind, rest: bytes }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn wrong(&self, field: &'static str) -> BodyError {
        BodyError::Field {
            kind: self.kind,
            field,
        }
    }

    #[inline]
    pub fn bytes(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], BodyError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(BodyError::Truncated {
                kind: self.kind,
                field,
            });
        };
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], BodyError> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(BodyError::Truncated {
                kind: self.kind,
                field,
            });
        };
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub fn u8(&mut self, field: &'static str) -> Result<u8, BodyError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    #[inline]
    pub fn u16(&mut self, field: &'static str) -> Result<u16, BodyError> {
        self.array(field).map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u32(&mut self, field: &'static str) -> Result<u32, BodyError> {
        self.array(field).map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self, field: &'static str) -> Result<u64, BodyError> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub fn text(&mut self, count: usize, field: &'static str) -> Result<&'a str, BodyError> {
        let wrong = self.wrong(field);
        std::str::from_utf8(self.bytes(count, field)?).map_err(|_| wrong)
    }

    /// Checks that the body ends here.
    #[inline]
    pub fn end(&self) -> Result<(), BodyError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(BodyError::Trailing {
            kind: self.kind,
            bytes: self.rest.len(),
        })
    }
}
