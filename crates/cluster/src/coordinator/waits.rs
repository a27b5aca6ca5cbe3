//! All that waits for an operator now, and all that may have to wait later: a line each, with the
//! reason and the remedy.
//!
//! Each reason is known to some rule that refuses or postpones something. Here they are in one
//! place; nothing is decided here.

use super::admin::View;
use super::rooms::mebibytes;
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{RecoveryPhase, ServerRoom, WAITS_MAX, Wait};

/// A server that is fuller than this, in percent of its limit, is named. A server that is full may
/// not take all of its data back after a stop: recovered segments are not filled to their ends.
const FULL_PERCENT: u64 = 85;
/// Recovered data takes so many percent more than it had, at most: in a small memory a part of each
/// partition's last segments is empty.
const RECOVERED_PERCENT: u64 = 110;
fn now(server: Option<ServerId>, reason: String) -> Wait {
    Wait {
        server,
        is_now: true,
        reason,
    }
}

fn ahead(server: ServerId, reason: String) -> Wait {
    Wait {
        server: Some(server),
        is_now: false,
        reason,
    }
}

impl View<'_> {
    /// The waits of the module, at most [`WAITS_MAX`] of them.
    pub(super) fn waits(&self) -> Vec<Wait> {
        let mut all = Vec::from_iter(self.waits_of_leader());
        all.extend(self.waits_for_newest_store());
        all.extend(self.waits_for_servers());
        all.extend(self.waits_of_unheard());
        all.extend(self.waits_of_recoveries());
        all.extend(self.waits_of_drains());
        all.extend(self.waits_of_callers());
        all.extend(self.waits_for_memory());
        all.extend(self.waits_for_disks());
        all.extend(self.lacks_of_copies());
        if self.recoveries.first().is_none() {
            all.extend(self.no_room_for_a_crash());
            all.extend(self.no_frames_for_a_crash());
        }
        let more = all.len().saturating_sub(WAITS_MAX - 1);
        if more > 1 {
            all.truncate(WAITS_MAX - 1);
            all.push(now(None, format!("and {more} more")));
        }
        all
    }

    fn waits_of_leader(&self) -> Option<Wait> {
        let unanswered = self.suspects.unanswered();
        (unanswered > 0).then(|| {
            now(
                None,
                format!(
                    "{unanswered} of {} servers do not answer this coordinator, so it calls none of \
                     them crashed: start them, or `duramen crash` each that stays away",
                    self.state.servers.up().len()
                ),
            )
        })
    }

    /// Members have logs that this store does not know (older::A1).
    fn waits_for_newest_store(&self) -> Vec<Wait> {
        let waits = self.state.lives.newer_lives().map(|life| {
            let text = "its log is kept, and its data is not served";
            now(
                Some(life),
                format!("{text}: {}", self.state.lives.why_older(life)),
            )
        });
        waits.collect()
    }

    fn waits_for_servers(&self) -> Option<Wait> {
        let is_backup = |id: &&ServerId| self.state.servers[*id].record.entry.roles.backup;
        let up = self.state.servers.up().iter().filter(is_backup).count();
        let replicas = self.state.meta.settings.replicas as usize;
        let has_data = self.state.tables.tablets().len() > 0;
        (has_data && up <= replicas).then(|| {
            now(
                None,
                format!(
                    "{up} of the {} servers are up that {replicas} replicas need: writes and \
                     recoveries wait until another one starts",
                    replicas + 1
                ),
            )
        })
    }

    /// Members that only answer (unheard::W1).
    fn waits_of_unheard(&self) -> Vec<Wait> {
        let unheard = self.state.unheard().into_iter();
        let waits = unheard.map(|(id, seconds)| {
            let text = format!(
                "this coordinator reaches it, but it has not asked this coordinator anything for \
                 {seconds} s: its tablets may wait, and it recovers nothing. See its route and \
                 firewall to the coordinator; if that lasts, `duramen crash` it"
            );
            now(Some(id), text)
        });
        waits.collect()
    }

    fn waits_of_recoveries(&self) -> Vec<Wait> {
        let statuses = self.recoveries.statuses(self.state);
        let open = statuses.into_iter();
        let open = open.filter(|status| status.phase != RecoveryPhase::Done);
        let waiting = open.filter_map(|status| {
            let why = status.waits_for?;
            let left = match status.partitions - status.partitions_done {
                0 => String::new(),
                left => format!(" ({left} of {} parts)", status.partitions),
            };
            let text = format!("its data is not served{left}: {why}");
            Some(now(Some(status.server), text))
        });
        waiting.collect()
    }

    fn waits_of_drains(&self) -> Vec<Wait> {
        let drained = self.state.servers.keys();
        let waiting = drained.filter_map(|id| {
            let why = self.migrations.drain_waits_for(self.state, *id)?;
            Some(now(Some(*id), format!("is not drained further: {why}")))
        });
        waiting.collect()
    }

    fn waits_of_callers(&self) -> Vec<Wait> {
        let recent = self.callers.turned_away(self.state.now_us);
        let waits = recent
            .map(|(address, why)| now(None, format!("a server at {address} cannot join: {why}")));
        waits.collect()
    }

    /// The members that have reported room.
    fn reported(&self) -> impl Iterator<Item = (ServerId, ServerRoom)> {
        let up = self.state.servers.masters();
        up.filter_map(move |id| Some((id, self.state.servers.get(&id)?.room.report()?)))
    }

    fn waits_for_memory(&self) -> Vec<Wait> {
        let waits = self.reported().filter_map(|(id, room)| {
            let (used, limit) = (room.used_bytes, room.limit_bytes);
            let text = |how: &str, then: &str| {
                format!(
                    "{how}: {} of {}{then}. Delete data, or add a server and move tablets there",
                    mebibytes(used),
                    mebibytes(limit)
                )
            };
            if used >= limit {
                return Some(now(
                    Some(id),
                    text("its memory is full", "; writes may be refused"),
                ));
            }
            let percent = used * 100 / limit.max(1);
            let how = format!("its memory is {percent} % full");
            let then = "; fuller, it may not take all of its data back after a stop";
            (percent >= FULL_PERCENT).then(|| ahead(id, text(&how, then)))
        });
        waits.collect()
    }

    fn waits_for_disks(&self) -> Vec<Wait> {
        let full = self.recoveries.frames.full();
        let full = full.filter(|id| self.state.servers.is_up(*id));
        let waits = full.map(|id| {
            let text = "its disk has no room for copies of other servers' data: add a server";
            now(Some(id), text.to_owned())
        });
        waits.collect()
    }

    /// Copies are refused long before a disk is full: frames are kept for recoveries
    /// (replication::O11).
    fn lacks_of_copies(&self) -> Vec<Wait> {
        let short = |id: ServerId| Some((id, self.state.servers[&id].means?.segments_short));
        let short = self.state.servers.masters().filter_map(short);
        let waits = short.filter(|(_, short)| *short > 0).map(|(id, short)| {
            let text = format!(
                "{short} segments of its log have fewer copies than {}, as the disks of the others keep \
                 their room for recoveries: more failures may lose them. Start the servers that are \
                 away, or add one",
                self.state.meta.settings.replicas
            );
            ahead(id, text)
        });
        waits.collect()
    }

    /// The fullest server, if the others have no room for its data.
    fn no_room_for_a_crash(&self) -> Option<Wait> {
        let rooms: Vec<(ServerId, ServerRoom)> = self.reported().collect();
        if rooms.len() < self.state.servers.masters_count() || rooms.len() < 2 {
            return None; // not all have reported
        }
        let (id, fullest) = rooms.iter().max_by_key(|(_, room)| room.used_bytes)?;
        let others = rooms.iter().filter(|(other, _)| other != id);
        let left = others.fold(0u64, |sum, (_, room)| {
            sum.saturating_add(room.limit_bytes.saturating_sub(room.used_bytes))
        });
        let wanted = fullest.used_bytes.saturating_mul(RECOVERED_PERCENT) / 100;
        (wanted > left).then(|| {
            ahead(
                *id,
                format!(
                    "if it crashes, its {} wait for its return: the other servers have room for {}. \
                     Add a server, or delete data",
                    mebibytes(fullest.used_bytes),
                    mebibytes(left)
                ),
            )
        })
    }

    /// The fullest server, if the others' disks have no room for copies of its data beside those
    /// that are there.
    fn no_frames_for_a_crash(&self) -> Option<Wait> {
        let (id, fullest) = self.reported().max_by_key(|(_, room)| room.used_bytes)?;
        let lacks = !self
            .recoveries
            .has_frames(self.state, id, fullest.used_bytes);
        lacks.then(|| {
            ahead(
                id,
                "after a stop of all servers its data may not be recovered: the disks of the \
                 others have too little room for new copies. Add a server, or delete data"
                    .to_owned(),
            )
        })
    }
}
