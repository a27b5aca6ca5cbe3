//! The slots that the headers of the write-ahead log name (wal::W6).
//!
//! A slot that was lost, with the commits that it replaced already gone, leaves an older slot that
//! is as valid. The control log lists the certificates of closed data segments, so those would be
//! missed. Nothing lists the length of an open segment, nor the control log itself.
//!
//! A replica that a restart has found damaged stays so until it is freed or opened again: the
//! header is written again and the commits are trimmed, and its older slot is as valid as ever.

use crate::backup::State;
use crate::replica::Replica;
use duramen_format::segment::Kind;
use duramen_format::wal::{Header, Held, MARKS_MAX, Mark};

impl State {
    /// The header block with the present tail.
    pub(crate) fn header(&self) -> Header {
        Header {
            marks: self.marks(),
            ..self.ring.header()
        }
    }

    /// wal::W6. Damaged replicas and control segments first: there may be too many open replicas
    /// for one header.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        let rank = |replica: &Replica| match (replica.damaged.is_some(), replica.kind) {
            (true, _) => Some(0),
            (false, Kind::Control) => Some(1),
            (false, _) => (!replica.closed).then_some(2),
        };
        let marks = (0..=2).flat_map(|turn| {
            let replicas = self.replicas.iter();
            replicas.filter_map(move |(id, replica)| {
                let held = match rank(replica).filter(|rank| *rank == turn)? {
                    0 => Held::Lost(replica.epoch),
                    _ => Held::Slot(
                        self.frames
                            .stamp(replica.frame.filter(|_| replica.in_slot)?),
                    ),
                };
                Some(Mark {
                    frame: replica.frame.unwrap_or(u32::MAX),
                    kind: replica.kind,
                    segment: id.segment,
                    log: id.log,
                    held,
                })
            })
        });
        marks.take(MARKS_MAX).collect()
    }
}
