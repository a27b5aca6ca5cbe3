//! Staged chunks that are not yet committed.
//!
//! **Invariants**
//! - T1: a batch is written as one commit, with its chunks in the order of staging; while it is
//!   written, the next batch grows beside it.
//! - T2: `body_crc` is the CRC32C of everything after the commit's head: no byte of a payload is
//!   read again for it.
//! - T3: between commits a batch keeps at most [`KEPT_BYTES`] of memory.

use std::sync::Arc;

use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use duramen_format::wal::{COMMIT_BYTES, Record};

use crate::buffer::{Buffer, BufferBytes};
use crate::replica::Staged;
use crate::types::ReplicaId;

/// From this many bytes on, deriving a CRC from others costs less than reading the bytes once more.
const DERIVE_BYTES: usize = 16 << 10;

/// Memory that a batch leaves to the next one: most commits are smaller, so they need no fresh
/// memory.
const KEPT_BYTES: usize = 1 << 20;

/// The contents of the next commit.
pub(crate) struct Batch {
    /// The commit as it will be written; its first bytes are reserved for the head.
    pub(crate) bytes: Buffer,
    pub(crate) body_crc: u32,
    pub(crate) records: u32,
    pub(crate) payload_bytes: u64,
    pub(crate) staged: Vec<Staged>,
    /// Some bytes were written directly to a frame, and are to be synced before the commit that
    /// certifies them is written.
    pub(crate) straight: bool,
}

impl Batch {
    pub(crate) fn new(held: &Arc<BufferBytes>) -> Batch {
        Batch {
            bytes: Buffer::counted(COMMIT_BYTES, held),
            body_crc: 0,
            records: 0,
            payload_bytes: 0,
            staged: Vec::new(),
            straight: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    /// Adds a record. `rolling`: the segment's certificate before and after the payload, if known.
    pub(crate) fn append(
        &mut self,
        record: &Record<'_>,
        rolling: Option<(Certificate, Certificate)>,
    ) {
        self.begin();
        let head = record.head();
        self.bytes.extend(&head);
        self.bytes.extend(record.payload);
        let end = self.bytes.len();
        self.bytes.pad(8);
        let padding = &self.bytes.bytes()[end..];
        let crc = crc32c::crc32c_append(self.body_crc, &head);
        let crc = match rolling {
            Some((before, after)) if record.payload.len() >= DERIVE_BYTES => {
                before.append_to(crc, after)
            }
            _ => crc32c::crc32c_append(crc, record.payload),
        };
        self.body_crc = crc32c::crc32c_append(crc, padding); // T2: the sum has the padding too
        self.records += 1;
    }

    /// Stages the record of a chunk that ends at `end`.
    pub(crate) fn stage(
        &mut self,
        record: &Record<'_>,
        rolling: Option<(Certificate, Certificate)>,
        end: u32,
    ) {
        match record.close && has_bug(Bug::CloseFromMemory) {
            false => self.append(record, rolling),
            true => self.begin(),
        }
        self.staged.push(Staged {
            id: ReplicaId {
                log: record.log,
                segment: record.segment,
            },
            epoch: record.epoch,
            end,
            certificate: record.certificate,
            close: record.close,
            base: record.frame.map(|_| record.offset),
        });
    }

    /// Leaves room for the commit's head.
    pub(crate) fn begin(&mut self) {
        if self.bytes.len() < COMMIT_BYTES {
            self.bytes.clear();
            self.bytes.extend(&[0; COMMIT_BYTES]);
        }
    }

    pub(crate) fn reset(&mut self) {
        self.bytes.clear();
        self.bytes.shrink(KEPT_BYTES); // T3: little memory between commits
        self.body_crc = 0;
        self.records = 0;
        self.payload_bytes = 0;
        self.staged.clear();
        self.straight = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::SegmentId;
    use duramen_format::segment::Kind;

    #[test]
    fn the_body_crc_is_that_of_the_body() {
        let payload: Vec<u8> = (0..40_001u32).map(|n| (n * 3) as u8).collect();
        let mut batch = Batch::new(&Arc::default());
        let mut known = Certificate::of(b"before");
        for part in [&payload[..5], &payload[..], &[]] {
            let before = known;
            known = known.extended(part);
            let record = Record {
                segment: SegmentId(7),
                log: 1,
                epoch: 0,
                offset: 64,
                payload: part,
                certificate: None,
                open: false,
                close: false,
                kind: Kind::Head,
                frame: None,
            };
            batch.append(&record, Some((before, known)));
        }
        let body = &batch.bytes.bytes()[COMMIT_BYTES..];
        assert_eq!(batch.body_crc, crc32c::crc32c(body));
        batch.reset();
        assert_eq!((batch.body_crc, batch.is_empty()), (0, true));
    }
}
