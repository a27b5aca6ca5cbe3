//! The frames that copies of recovered data will take, over all recoveries in progress
//! (recovery::Y6).
//!
//! Backups report their free frames. While a recovery fills some of them, a report lacks a part of
//! what was promised. So the last numbers from before the recovery count, less all that was
//! promised since. When nothing is in progress, the last reports count. After a full stop, a backup
//! that has just come counts as full until its first report. A backup that does not report runs an
//! older program, and has no limit.

use super::State;
use super::rooms::{HOME_US, Planner};
use crate::recovery::Recovery;
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, has_bug};
use std::collections::BTreeMap;

/// Segments of a recovered partition that are partly full: those of several threads, and the
/// head's.
const SEGMENTS_MORE: u64 = 4;
/// After a full stop, frames are waited for as long as machines are: backups that are still on
/// their way bring frames, too. An attempt without enough of them takes longer to fail.
const FRAMES_US: u64 = HOME_US;

/// The free frames of all backups; see the module.
#[derive(Default)]
pub(super) struct Frames {
    /// Free frames of each backup, as it reported them last.
    free: BTreeMap<ServerId, u64>,
    /// Free frames left for partitions, counted since the first one that is in progress now began.
    left: BTreeMap<ServerId, u64>,
}

impl Frames {
    /// A backup reports its free frames.
    pub(super) fn report(&mut self, is_in_progress: bool, server: ServerId, free: u64) {
        self.free.insert(server, free);
        if is_in_progress {
            self.left.entry(server).or_insert(free);
        }
    }

    /// A server is crashed.
    pub(super) fn forget(&mut self, dead: ServerId) {
        self.free.remove(&dead);
    }

    /// Servers without a free frame.
    pub(super) fn full(&self) -> impl Iterator<Item = ServerId> {
        let full = self.free.iter().filter(|(_, free)| **free == 0);
        full.map(|(id, _)| *id)
    }

    /// recovery::Y6: whether there are frames for the copies of so many bytes of this master, each
    /// on as many backups as a segment has replicas.
    pub(super) fn has(&self, planner: Planner<'_>, master: ServerId, bytes: u64) -> bool {
        if has_bug(Bug::FramesIgnored) {
            return true;
        }
        let state = planner.state();
        let segments = segments_of(state, bytes);
        let free = match planner.is_in_progress() {
            true => &self.left,
            false => &self.free,
        };
        let unknown = |id: ServerId| {
            if planner.may_report_soon(id) {
                0
            } else {
                u64::MAX
            }
        };
        let left = |id: &ServerId| free.get(id).copied().unwrap_or_else(|| unknown(*id));
        let backups = state.servers.backups_of(master);
        // With fewer backups than replicas, the recovery waits for backups, and not for frames.
        let replicas = (state.meta.settings.replicas as usize).min(backups.len());
        let copies = segments * replicas as u64;
        let places = backups.iter().map(|id| left(id).min(segments));
        places.fold(0, u64::saturating_add) >= copies
    }

    /// A partition of so many bytes is given to this master.
    pub(super) fn promise(
        &mut self,
        state: &State,
        is_in_progress: bool,
        master: ServerId,
        bytes: u64,
    ) {
        if !is_in_progress {
            self.left = self.free.clone();
        }
        let copies = segments_of(state, bytes) * u64::from(state.meta.settings.replicas);
        let backups = state.servers.backups_of(master);
        let each = copies.div_ceil(backups.len().max(1) as u64);
        for backup in backups {
            if let Some(left) = self.left.get_mut(&backup) {
                *left = left.saturating_sub(each);
            }
        }
    }
}

/// Whether this recovery has waited for frames for long enough.
pub(super) fn are_late(state: &State, recovery: Option<&Recovery>) -> bool {
    let since_us = recovery.and_then(|of| of.lacks_frames);
    let waits = |since_us: u64| state.now_us < since_us + FRAMES_US && state.is_after_full_stop();
    !since_us.is_some_and(waits)
}

/// Segments of a partition of this length.
fn segments_of(state: &State, bytes: u64) -> u64 {
    let segment_bytes = u64::from(state.meta.settings.segment_bytes).max(1);
    bytes.div_ceil(segment_bytes) + SEGMENTS_MORE
}
