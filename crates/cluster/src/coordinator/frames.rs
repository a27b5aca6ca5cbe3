//! The frames that copies of recovered data will take, over all recoveries in progress
//! (recovery::Y6).
//!
//! Backups report their free frames. While a recovery fills some of them, a report contains a part
//! of what was promised, so the last numbers from before count, less all that was promised since.
//! When nothing is in progress, the last reports count. After a full stop a backup that has just
//! come has none until its first report; one that does not report is an older program, and has no
//! limit.

use super::Coordinator;
use super::rooms::HOME_US;
use crate::recovery::Recovery;
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::CoordinatorAnswer;
use std::collections::BTreeMap;

/// Segments of a recovered partition beside the full ones: of several threads, and the head's.
const SEGMENTS_MORE: u64 = 4;
/// After a full stop, frames are waited for as long as for machines: those of backups that are
/// still on their way count as well. An attempt without enough of them takes longer to fail.
const FRAMES_US: u64 = HOME_US;

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
        if self.is_in_progress() {
            self.frames.left.entry(server).or_insert(free);
        }
        self.room_changed();
        CoordinatorAnswer::Noted
    }

    /// A server is crashed.
    pub(super) fn forget_disk(&mut self, dead: ServerId) {
        self.frames.free.remove(&dead);
    }

    /// Segments of a partition of this length.
    fn segments_of(&self, bytes: u64) -> u64 {
        let segment_bytes = u64::from(self.state.meta.settings.segment_bytes).max(1);
        bytes.div_ceil(segment_bytes) + SEGMENTS_MORE
    }

    /// Servers without a free frame.
    pub(super) fn full_disks(&self) -> Vec<ServerId> {
        let full = self.frames.free.iter().filter(|(_, free)| **free == 0);
        full.map(|(id, _)| *id)
            .filter(|id| self.state.servers.is_up(*id))
            .collect()
    }

    /// Whether a partition is being recovered: reports contain a part of what it takes.
    fn is_in_progress(&self) -> bool {
        self.recoveries.values().any(Recovery::has_given)
    }

    /// recovery::Y6: whether there are frames for the copies of so many bytes of this master, each
    /// on as many backups as a segment has replicas.
    pub(super) fn has_frames(&self, master: ServerId, bytes: u64) -> bool {
        if has_bug(Bug::FramesIgnored) {
            return true;
        }
        let segments = self.segments_of(bytes);
        let free = match self.is_in_progress() {
            true => &self.frames.left,
            false => &self.frames.free,
        };
        let unknown = |id: ServerId| {
            if self.may_report_soon(id) {
                0
            } else {
                u64::MAX
            }
        };
        let left = |id: &ServerId| free.get(id).copied().unwrap_or_else(|| unknown(*id));
        let backups = self.state.servers.backups_of(master);
        // With fewer backups it waits for more of them, and not for frames.
        let replicas = (self.state.meta.settings.replicas as usize).min(backups.len());
        let copies = segments * replicas as u64;
        let places = backups.iter().map(|id| left(id).min(segments));
        places.fold(0, u64::saturating_add) >= copies
    }

    /// Gives partitions for whose copies there are frames; if there are none for any, and nothing
    /// else is in progress, the first one: an estimate must not stop everything.
    pub(super) fn give_with_frames(&mut self, all: &[(ServerId, u32, ServerId)]) {
        let mut lacking = Vec::new();
        for (dead, partition, to) in all.iter().copied() {
            let has_frames = self.has_frames(to, self.place_bytes(dead, partition));
            let now_us = self.state.now_us;
            if let Some(recovery) = self.recoveries.get_mut(&dead) {
                recovery.lacks_frames = match (has_frames, recovery.lacks_frames) {
                    (true, _) => None,
                    (false, since_us) => since_us.or(Some(now_us)),
                };
            }
            match has_frames {
                true => self.give(dead, partition, to),
                false => lacking.push((dead, partition, to)),
            }
        }
        let first = lacking
            .into_iter()
            .find(|(dead, ..)| self.frames_are_late(*dead));
        if let Some((dead, partition, to)) = first.filter(|_| !self.is_in_progress()) {
            if let Some(recovery) = self.recoveries.get_mut(&dead) {
                recovery.lacks_frames = None;
            }
            self.give(dead, partition, to);
        }
    }

    /// Whether no more frames are waited for.
    fn frames_are_late(&self, dead: ServerId) -> bool {
        let since_us = self.recoveries.get(&dead).and_then(|of| of.lacks_frames);
        let waits = |since_us: u64| {
            self.state.now_us < since_us + FRAMES_US && self.state.is_after_full_stop()
        };
        !since_us.is_some_and(waits)
    }

    /// A partition of so many bytes is given to this master.
    pub(super) fn promise_frames(&mut self, master: ServerId, bytes: u64) {
        if !self.is_in_progress() {
            self.frames.left = self.frames.free.clone();
        }
        let copies = self.segments_of(bytes) * u64::from(self.state.meta.settings.replicas);
        let backups = self.state.servers.backups_of(master);
        let each = copies.div_ceil(backups.len().max(1) as u64);
        for backup in backups {
            if let Some(left) = self.frames.left.get_mut(&backup) {
                *left = left.saturating_sub(each);
            }
        }
    }
}
