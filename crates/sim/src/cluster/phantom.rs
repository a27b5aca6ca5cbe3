//! The state that a recovery would find if a server and R - 1 others were gone now. It is checked
//! all the time, without harm to any server. So a broken rule shows long before it does harm.
//!
//! **Invariants**
//! - P1: a server that crashed since the log had all its replicas does not count as having any: it
//!   is among the R - 1.
//! - P2: entries in segments below a tablet's creation are from an earlier time of it here
//!   (scenario 35): no recovery counts them.

use super::client::key_of;
use super::history::{Action, Found};
use super::world::{Event, World};
use duramen_backup::{Backup, ReplicaId, ReplicaInfo};
use duramen_base::ids::{KeyRange, SegmentId, ServerId, TableId};
use duramen_cluster::control::State;
use duramen_format::entry::{self, Kind as EntryKind};
use duramen_format::hash::KeyHasher;
use duramen_format::mend;
use duramen_format::segment::{HEADER_BYTES, Kind};
use duramen_wire::native::message::{ServerStatus, TabletState};
use std::collections::{BTreeMap, BTreeSet};

const LOOK_US: u64 = 60_000;
/// After this time a crash is known to all servers.
const SUSPECT_US: u64 = 1_500_000;

/// The state of a key that a client was told: it had this version, or, if it is gone, that version
/// is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Known {
    version: u64,
    is_gone: bool,
}

/// Newest entry of each key: its version, and whether it is an object.
type Image = BTreeMap<u64, (u64, bool)>;

impl World {
    /// A recovery must find from now on the outcome that a client was told. `before`: the version
    /// that was known when the request was sent.
    pub(super) fn know(&mut self, key: u64, action: Action, found: Found, before: u64) {
        if action == Action::Remove && found != Found::Nothing {
            self.doubt_no_more(key);
        }
        let known = match (action, found) {
            (_, Found::Written { version } | Found::Value { version, .. }) => Known {
                version,
                is_gone: false,
            },
            (_, Found::Removed { version }) => Known {
                version,
                is_gone: true,
            },
            (_, Found::Absent) if before > 0 => Known {
                version: before,
                is_gone: true,
            },
            _ => return,
        };
        let before = self.known.entry(key).or_default();
        *before = (*before).max(known);
    }

    /// The greatest version of a key in any answer.
    pub(super) fn known_version(&self, key: u64) -> u64 {
        self.known.get(&key).map_or(0, |known| known.version)
    }

    /// A removal is requested: until its outcome is known, the key may be gone.
    pub(super) fn doubt(&mut self, key: u64, action: Action) {
        if action == Action::Remove {
            *self.doubts.entry(key).or_default() += 1;
        }
    }

    /// A removal was not done, or its outcome is known.
    pub(super) fn doubt_no_more(&mut self, key: u64) {
        *self.doubts.entry(key).or_default() -= 1;
    }

    /// A process has ended: P1.
    pub(super) fn suspect(&mut self, n: usize) {
        let now_us = self.now_us;
        for machine in &mut self.machines {
            machine.suspects.insert(n, now_us);
        }
    }

    pub(super) fn imagine(&mut self) {
        if !self.is_healed {
            self.after(LOOK_US, Event::Imagine);
        }
        let Some(status) = self.status() else {
            return;
        };
        for n in 0..self.machines.len() {
            // A replica from an earlier life does not count, and is removed when its segment is
            // opened there anew.
            let is_quiet = self.waits_for(n).starts_with("0 calls");
            if is_quiet && self.too_few_replicas(n).is_none() {
                let long_ago_us = self.now_us.saturating_sub(SUSPECT_US);
                let suspects = &mut self.machines[n].suspects;
                suspects.retain(|_, since_us| *since_us > long_ago_us);
            }
            let Some(id) = self.id_of(n) else { continue };
            let mut servers = status.servers.iter();
            let is_up = servers.any(|s| s.server == id && s.status == ServerStatus::Up);
            if is_up
                && self.noted.contains_key(&id)
                && let Some(gone) = self.some_to_lose(n)
                && let Err(why) = self.recovered(n, id, &gone)
            {
                self.violated(format!("without servers {gone:?}, log {id}: {why}"));
            }
        }
    }

    /// A set of servers that may be lost together with server `n`.
    fn some_to_lose(&mut self, n: usize) -> Option<BTreeSet<usize>> {
        let count = self.machines.len();
        let most = self.plan.replicas as usize - 1;
        let mut gone: BTreeSet<usize> = (0..count)
            .filter(|other| *other != n)
            .filter(|other| {
                let machine = &self.machines[*other];
                machine.is_ruined
                    || machine.process.is_none()
                    || self.machines[n].suspects.contains_key(other)
            })
            .collect();
        if gone.len() > most {
            return None;
        }
        while gone.len() < most {
            let other = self.random.below(count as u64) as usize;
            if other != n {
                gone.insert(other);
            }
        }
        Some(gone)
    }

    /// The tables' ranges that this log owns, each with its first segment.
    fn owned_by(&self, log: ServerId) -> Vec<(TableId, KeyRange, SegmentId)> {
        let leader = self
            .leader()
            .and_then(|n| self.coordinators[n].leads.as_ref());
        let tablets = leader.map(|(_, coordinator)| coordinator.tablets_of(log).tablets);
        let tablets = tablets.into_iter().flatten();
        let served = tablets.filter_map(|tablet| match tablet.state {
            TabletState::Normal { creation } | TabletState::Outgoing { creation, .. } => {
                Some((tablet.table, tablet.range, creation))
            }
            TabletState::Incoming { .. } | TabletState::Recovering => None,
        });
        served.collect()
    }

    fn recovered(&self, n: usize, log: ServerId, gone: &BTreeSet<usize>) -> Result<(), String> {
        let machines = self.machines.iter().enumerate();
        let present = machines.filter(|(at, _)| *at != n && !gone.contains(at));
        let backups: Vec<&Backup> = present
            .filter_map(|(_, machine)| Some(&*machine.process.as_ref()?.backup))
            .collect();
        let owned = self.owned_by(log);
        let creation = |key: u64| {
            let route = KeyHasher::new(1).route(&key_of(key));
            let of = self.tables.table_of(key);
            let mut owned = owned.iter().filter(|(table, ..)| *table == of);
            owned.find_map(|(_, range, creation)| range.contains(route).then_some(*creation))
        };
        let image = image(
            &backups,
            log,
            self.noted[&log],
            self.plan.segment_bytes,
            &|table, number| self.tables.key_in(table, number),
            &creation,
        )?;
        for (key, known) in &self.known {
            // An expired object may be gone or still be there.
            if creation(*key).is_none() || self.expiring.contains(key) {
                continue;
            }
            let found = image.get(key).copied().unwrap_or_default();
            let may_be_gone = self.doubts.get(key).is_some_and(|count| *count > 0);
            let is_lost = match known.is_gone {
                true => found.1 && found.0 <= known.version,
                // A log that has taken over a tablet need not contain the tombstones of removed
                // keys.
                false => found.0 < known.version && !may_be_gone,
            };
            if is_lost {
                return Err(format!("key {key}: {known:?} was told, {found:?} is found"));
            }
        }
        Ok(())
    }
}

/// Replays the segments that the newest control segment lists. `key_in`: the key of a number in a
/// table. `creation`: that of the tablet of a key, if the log owns it (P2).
fn image(
    backups: &[&Backup],
    log: ServerId,
    noted: SegmentId,
    segment_bytes: u32,
    key_in: &dyn Fn(TableId, u64) -> Option<u64>,
    creation: &dyn Fn(u64) -> Option<SegmentId>,
) -> Result<Image, String> {
    let of = |backup: &&Backup| backup.replicas_of(log.number());
    let control = backups
        .iter()
        .flat_map(of)
        .filter(|i| i.kind == Kind::Control && i.segment >= noted && i.length > 0)
        .max_by_key(|info| (info.segment, info.length));
    let Some(control) = control else {
        return Err(format!("no control segment from {noted} on"));
    };
    if control.closed {
        return Err(format!(
            "the newest control segment, {}, is closed",
            control.segment
        ));
    }
    let read = |segment: SegmentId, fits: &dyn Fn(&ReplicaInfo) -> bool| {
        longest_copy(backups, log, segment, segment_bytes, fits)
    };
    let Some(bytes) = read(control.segment, &|_| true) else {
        return Err("the control segment cannot be read".to_owned());
    };
    let state = State::replay(control.segment, &bytes).map_err(|error| format!("{error:?}"))?;
    let mut image = Image::new();
    for (segment, listed) in &state.segments {
        let bytes = read(*segment, &|info| match listed.closed {
            Some(certificate) => info.closed && info.certificate() == certificate,
            None => info.closed || info.epoch >= listed.epoch,
        });
        let Some(bytes) = bytes else {
            return Err(format!(
                "segment {segment} is listed and missing: {listed:?}"
            ));
        };
        let creation = |key| creation(key).is_some_and(|creation| *segment >= creation);
        let key_of = |table, number| key_in(table, number).filter(|key| creation(*key));
        add_entries(&mut image, *segment, &bytes, &key_of)?;
    }
    Ok(image)
}

/// The longest copy of a segment, of those that fit.
fn longest_copy(
    backups: &[&Backup],
    log: ServerId,
    segment: SegmentId,
    segment_bytes: u32,
    fits: &dyn Fn(&ReplicaInfo) -> bool,
) -> Option<Vec<u8>> {
    let mut best: Option<Vec<u8>> = None;
    for backup in backups {
        let infos = backup.replicas_of(log.number()).into_iter();
        let mut infos = infos.filter(|info| info.segment == segment && fits(info));
        let Some(info) = infos.next() else { continue };
        let id = ReplicaId {
            log: log.number(),
            segment,
        };
        let mut bytes = vec![0; segment_bytes as usize];
        if best
            .as_ref()
            .is_none_or(|best| best.len() < info.length as usize)
            && let Ok(info) = backup.read_of(id, &mut bytes)
        {
            bytes.truncate(info.length as usize);
            best = Some(bytes);
        }
    }
    best
}

/// Adds the entries of a segment. `key_of`: the key of a number in a table, if it counts.
fn add_entries(
    image: &mut Image,
    segment: SegmentId,
    bytes: &[u8],
    key_of: &dyn Fn(TableId, u64) -> Option<u64>,
) -> Result<(), String> {
    let mut bytes = bytes.to_vec();
    let mut at = HEADER_BYTES;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Ok(entry) = entry::parse(rest) else {
            // As a recovery does.
            if mend::entry_at(&mut bytes, at, usize::MAX).is_some() {
                continue;
            }
            return Err(format!("segment {segment} holds no entry at byte {at}"));
        };
        let text = std::str::from_utf8(entry.key).unwrap_or_default();
        let number = text.strip_prefix("key ").and_then(|key| key.parse().ok());
        let key = number.and_then(|number| key_of(TableId(entry.table), number));
        if let (Some(key), false) = (key, entry.kind == EntryKind::Completion) {
            let newest = image.entry(key).or_default();
            let is_object = entry.kind == EntryKind::Object;
            // A tombstone has the version of the object that it deletes.
            if entry.version > newest.0 || entry.version == newest.0 && !is_object {
                *newest = (entry.version, is_object);
            }
        }
        at += entry.padded_bytes;
    }
    Ok(())
}
