//! The entries that no replica of a log has, as the recovery masters of one attempt report them.

use duramen_base::ids::{RecoveryId, SegmentId, ServerId};
use duramen_format::checksum::crc32c;
use duramen_wire::native::message::SegmentLoss;
use std::collections::BTreeMap;

/// The losses of the newest attempts; see the module.
#[derive(Default)]
pub(crate) struct Losses {
    attempt: Option<RecoveryId>,
    segments: BTreeMap<SegmentId, SegmentLoss>,
}

impl Losses {
    /// Notes losses that a master reports. Masters look at the same segments, so they report the
    /// same losses.
    pub(crate) fn note(&mut self, attempt: RecoveryId, losses: Vec<SegmentLoss>) {
        if self.attempt.replace(attempt) != Some(attempt) {
            self.segments.clear();
        }
        let found = losses.into_iter().map(|loss| (loss.segment, loss));
        self.segments.extend(found);
    }

    pub(crate) fn are_of(&self, attempt: RecoveryId) -> bool {
        self.attempt == Some(attempt) && !self.is_empty()
    }

    /// This attempt has ended. If it has reported no loss, an earlier one counts no more: what was
    /// lost may be there again.
    pub(crate) fn end(&mut self, attempt: RecoveryId) {
        if !self.are_of(attempt) {
            *self = Losses::default();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &SegmentLoss> {
        self.segments.values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The token that names all of these losses.
    pub(crate) fn token(&self) -> u32 {
        let bytes: Vec<u8> = self
            .iter()
            .flat_map(|loss| loss.token.to_le_bytes())
            .collect();
        crc32c(&bytes)
    }

    /// The losses as a text, for people.
    pub(crate) fn text(&self, dead: ServerId) -> String {
        let segments = self.segments.len();
        format!(
            "{segments} segments are damaged on all servers that sent them: start members that are \
             down; if that does not help, `duramen accept-loss --server {dead}`"
        )
    }
}
