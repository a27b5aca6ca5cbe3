//! The slots that the headers of the write-ahead log name (wal::W6).
//!
//! A slot that was lost, with the commits that it replaced already gone, leaves an older slot that
//! is as valid. The control log lists the certificates of closed data segments, so those would be
//! missed. Nothing lists the length of an open segment, nor the control log itself.

use crate::backup::State;
use duramen_format::segment::Kind;
use duramen_format::wal::{Header, MARKS_MAX, Mark};

impl State {
    /// The header block with the present tail.
    pub(crate) fn header(&self) -> Header {
        Header {
            marks: self.marks(),
            ..self.ring.header()
        }
    }

    /// wal::W6. Control segments first: there may be too many open replicas for one header.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        let control_first = [true, false];
        let marks = control_first.into_iter().flat_map(|is_control| {
            self.replicas.iter().filter_map(move |(id, replica)| {
                let concerns = match is_control {
                    true => replica.kind == Kind::Control,
                    false => replica.kind != Kind::Control && !replica.closed,
                };
                let frame = replica.frame.filter(|_| concerns && replica.in_slot)?;
                Some(Mark {
                    frame,
                    kind: replica.kind,
                    segment: id.segment,
                    log: id.log,
                    stamp: self.frames.stamp(frame),
                })
            })
        });
        marks.take(MARKS_MAX).collect()
    }
}
