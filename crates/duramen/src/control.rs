//! The newest control segment on one disk: the list of the segments that are the log.

use crate::Error;
use duramen_backup::{Backup, ReplicaInfo};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::control::{Listed, State, Table};
use duramen_engine::TableId;
use duramen_format::mend::{self, Mended};
use duramen_format::segment::Kind;
use std::collections::BTreeMap;

/// The newest control segment.
pub(crate) fn newest(replicas: &[ReplicaInfo]) -> Option<&ReplicaInfo> {
    let controls = replicas.iter().filter(|r| r.kind == Kind::Control);
    if has_bug(Bug::OldControlHead) {
        controls.min_by_key(|replica| replica.segment)
    } else {
        controls.max_by_key(|replica| replica.segment)
    }
}

/// restart::P2: reads the newest control segment. An older one never replaces it: frames that it
/// lists may be gone.
pub(crate) fn read(
    backup: &Backup,
    replicas: &[ReplicaInfo],
    version_floor: u64,
) -> Result<State, Error> {
    let damaged = |reason| damaged(backup, reason);
    let Some(newest) = newest(replicas) else {
        if replicas.is_empty() {
            let safe_version = version_floor;
            return Ok(State {
                safe_version,
                ..new_state()
            });
        }
        return Err(damaged(format!(
            "there are {} segments, but no control segment that says which of them count",
            replicas.len()
        )));
    };
    let mut bytes = vec![0; newest.length as usize];
    backup.read(newest.segment, &mut bytes).map_err(|error| {
        damaged(format!(
            "the newest control segment cannot be read: {}",
            error.damage()
        ))
    })?;
    let mended = mend::segment(&mut bytes, Kind::Control, mend::SURE_BYTES_MAX);
    let mended = mended.unwrap_or_default().into_iter();
    note_flipped(
        backup,
        mended.map(|mended| (newest.segment, mended)).collect(),
    );
    let replayed = State::replay(newest.segment, &bytes);
    let mut state = replayed.map_err(|error| damaged(error.to_string()))?;
    if has_bug(Bug::ReplayEverything) {
        let is_data = |of: &&ReplicaInfo| of.kind != Kind::Control && !of.damaged;
        for of in replicas.iter().filter(is_data) {
            let (kind, epoch, closed) = (of.kind, of.epoch, Some(of.certificate()));
            let new = Listed {
                kind,
                head: 0,
                epoch,
                closed,
                generation: 0,
            };
            state.segments.entry(of.segment).or_insert(new);
        }
    }
    if has_bug(Bug::DamageIsSkipped) {
        let is_damaged = |id| replicas.iter().any(|of| of.segment == id && of.damaged);
        state.segments.retain(|id, _| !is_damaged(*id));
    }
    Ok(state)
}

/// The state of a new store: the default table exists from the start.
pub(crate) fn new_state() -> State {
    let default = Table {
        name: "default".to_owned(),
        level: None,
        floor: 0,
    };
    State {
        tables: BTreeMap::from([(TableId::DEFAULT.0, default)]),
        ..State::default()
    }
}

/// Segments that had flipped bits before they were written: their frames are replaced, so that the
/// next start finds none of these bits (docs/protocols.md, "Damage at rest").
pub(crate) fn note_flipped(backup: &Backup, mended: Vec<(SegmentId, Mended)>) {
    let mut by_segment: BTreeMap<SegmentId, Vec<String>> = BTreeMap::new();
    for (segment, mended) in mended {
        let of_segment = by_segment.entry(segment).or_default();
        of_segment.push(mended.to_string());
    }
    for (segment, bits) in by_segment {
        backup
            .reader()
            .note_flipped(segment, bits.len() as u64, bits.join("; "));
    }
}

/// Damage of the store on this disk.
pub(crate) fn damaged(backup: &Backup, reason: String) -> Error {
    Error::Damaged {
        place: backup.disk().label(),
        reason,
    }
}
