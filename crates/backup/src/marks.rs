//! The slots that the headers of the write-ahead log name (wal::W6).
//!
//! If a slot is lost and the commits that it replaced are already gone, an older slot is left that
//! is as valid. The control log lists the certificates of closed data segments, so their loss would
//! be noticed. Nothing lists the length of an open segment, nor the control log itself.
//!
//! A replica that a restart has found damaged stays so until it is freed or opened again: the
//! header is written again and the commits are trimmed, and its older slot is as valid as ever.

use crate::replica::Replica;
use crate::state::State;
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

    /// The marks for a header (wal::W6). Damaged replicas and control segments come first, because
    /// there may be too many open replicas for one header.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        let mut ranked: Vec<(u8, Mark)> = self
            .replicas
            .iter()
            .filter_map(|(id, replica)| {
                let (rank, held) = self.rank(replica)?;
                let mark = Mark {
                    frame: replica.frame.unwrap_or(u32::MAX),
                    kind: replica.kind,
                    segment: id.segment,
                    log: id.log,
                    held,
                };
                Some((rank, mark))
            })
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank); // stable
        let marks = ranked.into_iter().map(|(_, mark)| mark);
        marks.take(MARKS_MAX).collect()
    }

    /// The rank of a replica's mark, and the part of the replica that is there. `None`: it needs no
    /// mark.
    fn rank(&self, replica: &Replica) -> Option<(u8, Held)> {
        if replica.damaged.is_some() {
            return Some((0, Held::Lost(replica.epoch)));
        }
        let rank = match replica.kind {
            Kind::Control => 1,
            _ if !replica.closed => 2,
            _ => return None,
        };
        let frame = replica.frame.filter(|_| replica.in_slot)?;
        Some((rank, Held::Slot(self.frames.stamp(frame))))
    }
}
