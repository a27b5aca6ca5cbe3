//! The frames that copies of recovered data will take, over all recoveries in progress
//! (recovery::Y6).
//!
//! Backups report their free frames. While a recovery fills some of them, a report contains a part
//! of what was promised, so the last numbers from before count, less all that was promised since.
//! When nothing is in progress, the last reports count.

use super::Coordinator;
use crate::recovery::Recovery;
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::CoordinatorAnswer;
use std::collections::BTreeMap;

/// Segments of a recovered partition beside the full ones: of several threads, and the head's.
const SEGMENTS_MORE: u64 = 4;

/// See the module.
#[derive(Default)]
pub(super) struct Frames {
    /// As reported last.
    free: BTreeMap<ServerId, u64>,
    /// The rest of that for partitions, since the first one that is in progress now.
    left: BTreeMap<ServerId, u64>,
}

impl Coordinator {
    pub(super) fn disk_room(&mut self, server: ServerId, free: u64) -> CoordinatorAnswer {
        self.frames.free.insert(server, free);
        let up: Vec<ServerId> = self.up.clone();
        self.frames.free.retain(|id, _| up.contains(id));
        self.room_changed();
        CoordinatorAnswer::Noted
    }

    /// Segments of a partition of this length.
    fn segments_of(&self, bytes: u64) -> u64 {
        let segment_bytes = u64::from(self.meta.settings.segment_bytes).max(1);
        bytes.div_ceil(segment_bytes) + SEGMENTS_MORE
    }

    fn backups_of(&self, master: ServerId) -> Vec<ServerId> {
        let is_backup = |id: &ServerId| self.servers[id].record.entry.roles.backup;
        let others = self.up.iter().copied().filter(|id| *id != master);
        others.filter(is_backup).collect()
    }

    /// recovery::Y6: whether there are frames for the copies of so many bytes of this master, each
    /// on as many backups as a segment has replicas.
    pub(super) fn has_frames(&self, master: ServerId, bytes: u64) -> bool {
        if !self.recoveries.values().any(Recovery::has_given) || has_bug(Bug::FramesIgnored) {
            return true;
        }
        let segments = self.segments_of(bytes);
        let left = |id: &ServerId| self.frames.left.get(id).copied().unwrap_or(u64::MAX);
        let backups = self.backups_of(master);
        // With fewer backups it waits for more of them, and not for frames.
        let replicas = (self.meta.settings.replicas as usize).min(backups.len());
        let copies = segments * replicas as u64;
        let places = backups.iter().map(|id| left(id).min(segments));
        places.fold(0, u64::saturating_add) >= copies
    }

    /// A partition of so many bytes is given to this master.
    pub(super) fn promise_frames(&mut self, master: ServerId, bytes: u64) {
        if !self.recoveries.values().any(Recovery::has_given) {
            self.frames.left = self.frames.free.clone();
        }
        let copies = self.segments_of(bytes) * u64::from(self.meta.settings.replicas);
        let backups = self.backups_of(master);
        let each = copies.div_ceil(backups.len().max(1) as u64);
        for backup in backups {
            if let Some(left) = self.frames.left.get_mut(&backup) {
                *left = left.saturating_sub(each);
            }
        }
    }
}
