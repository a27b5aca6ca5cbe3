//! `duramen fsck`: reads everything, and reports the damage.
//!
//! A *problem* would make a restart refuse the data, or serve only a part of it. A *note* is about
//! remains of a power cut, about something that a restart discards, or about a flipped bit, which a
//! restart corrects.

use super::{Meter, StoreDirectory};
use duramen_backup::ReplicaInfo;
use duramen_backup::disk::Disk;
use duramen_backup::inspect::{self, Inspector, ReplicaCheck};
use duramen_base::ids::SegmentId;
use duramen_cluster::control::State;
use duramen_format::entry::{self, Kind as EntryKind};
use duramen_format::mend;
use duramen_format::segment::{HEADER_BYTES, Header, Kind};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;

/// Lines of a kind that are printed; the rest is counted.
const SHOWN_MAX: usize = 100;
/// The reason not to restore the directory of a member.
const REPLICAS_ALONE: &str =
    "it has replicas of other servers' data: the directory of a member is not a snapshot";

/// The findings of one run, and the state that its checks share.
#[derive(Default)]
struct Report {
    problems: Vec<String>,
    notes: Vec<String>,
    facts: Map<String, Value>,
    /// Counts of verified segments.
    counts: Counts,
    /// The newest control segment, if it can be read.
    control: Option<(SegmentId, State)>,
    /// Segments of the data that are damaged or missing, and their bytes.
    lost: (u64, u64),
    /// The segments of the server's own log that were found.
    segments: BTreeMap<SegmentId, FoundSegment>,
    /// The server, which is the id of its own log.
    own_log: u64,
    /// The other logs whose replicas it keeps, as a member of a cluster does.
    other_logs: BTreeSet<u64>,
    /// The number of replicas of these logs, and the number of those that cannot be read.
    replicas: (u64, u64),
}

#[derive(Clone, Copy, Default)]
struct Counts {
    bytes: u64,
    objects: u64,
    tombstones: u64,
}

/// A segment that was found.
struct FoundSegment {
    kind: Kind,
    length: u32,
    crc: u32,
    /// Its damage.
    problems: Vec<String>,
    /// Flipped bits that a start corrects.
    notes: Vec<String>,
    counts: Counts,
}

impl FoundSegment {
    fn of(info: &ReplicaInfo) -> FoundSegment {
        FoundSegment {
            kind: info.kind,
            length: info.length,
            crc: info.crc,
            problems: Vec::new(),
            notes: Vec::new(),
            counts: Counts::default(),
        }
    }
}

pub(super) fn run(place: &StoreDirectory, json: bool) -> ExitCode {
    let inspector = match Inspector::new(&*place.disk) {
        Ok(inspector) => inspector,
        Err(error) => return refuse(place, &error, json),
    };
    let mut report = Report::default();
    report.store(&inspector);
    report.wal(&inspector);
    report.slots(&inspector);
    let mut meter = Meter::new("reading");
    let checked = inspect::check_replicas(
        place.disk.clone(),
        &mut |done, total| meter.show(done, total),
        &mut |check, bytes| report.segment(check, bytes),
    );
    meter.clear();
    report.end(checked);
    report.print(&place.path.display().to_string(), json)
}

/// Contents of a sound store.
pub(super) struct Summary {
    pub segments: u64,
    pub segment_bytes: u64,
    /// Bytes of all segments, their dead entries included.
    pub bytes: u64,
    pub objects: u64,
    pub tombstones: u64,
}

/// Verifies all of an unfinished copy.
///
/// # Errors
/// Its damage, a line each.
pub(super) fn check_copy(disk: &Arc<dyn Disk>, meter: &mut Meter) -> Result<Summary, Vec<String>> {
    let inspector = Inspector::of_copy(&**disk).map_err(|error| vec![error.damage()])?;
    let mut report = Report::default();
    report.store(&inspector);
    report.wal(&inspector);
    report.slots(&inspector);
    let checked = inspect::check_copy(
        disk.clone(),
        &mut |done, total| meter.show(done, total),
        &mut |check, bytes| report.segment(check, bytes),
    );
    report.end(checked);
    if !report.other_logs.is_empty() {
        report.problems.push(REPLICAS_ALONE.to_owned());
    }
    if !report.problems.is_empty() {
        return Err(report.problems);
    }
    let segments = report.facts.get("segments").and_then(Value::as_u64);
    Ok(Summary {
        segments: segments.unwrap_or(0),
        segment_bytes: u64::from(inspector.geometry().segment_bytes),
        bytes: report.counts.bytes,
        objects: report.counts.objects,
        tombstones: report.counts.tombstones,
    })
}

/// Reports a file that is damaged as a whole, or a place without a store.
fn refuse(place: &StoreDirectory, error: &duramen_backup::Error, json: bool) -> ExitCode {
    use duramen_backup::Error::{DamagedFile, DamagedSuperblock, TooSmall};
    if !matches!(
        error,
        DamagedFile { .. } | DamagedSuperblock { .. } | TooSmall { .. }
    ) {
        return super::cannot_look(&error.to_string());
    }
    let problem = error.damage();
    if json {
        println!("{}", json!({ "sound": false, "problems": [problem] }));
    } else {
        println!("problem: {problem}");
        // Without the sizes in it no other part can be read.
        let is_readable = !matches!(error, DamagedSuperblock { .. });
        println!("{}", advice(&place.path.display().to_string(), is_readable));
        println!("damaged: 1 problem");
    }
    ExitCode::from(1)
}

/// The remedy for a damaged store.
fn advice(place: &str, is_readable: bool) -> String {
    let repair = if is_readable {
        format!(
            ", or copy what can be proved into a new directory (`duramen fsck --repair {place} --out NEW`), or let the server start without what is lost (`duramen accept-loss {place}` lists it)"
        )
    } else {
        String::new()
    };
    format!(
        "to recover: restore the last snapshot (`duramen restore SNAPSHOT DIR`){repair}; keep this directory as it is until then"
    )
}

impl Report {
    /// Called when all segments have been verified, or none could be.
    fn end(&mut self, checked: Result<(), duramen_backup::Error>) {
        match checked {
            Ok(()) => self.judge(),
            Err(error) => {
                let problem = error.damage();
                // The write-ahead log is read twice, so its damage is reported twice.
                if !self.problems.contains(&problem) {
                    self.problems.push(problem);
                }
            }
        }
    }

    fn store(&mut self, inspector: &Inspector) {
        let (identity, geometry) = (inspector.identity(), inspector.geometry());
        self.own_log = identity.server;
        let store = json!({
            "cluster": identity.cluster,
            "server": format!("{:016x}", identity.server),
            "created_ms": inspector.superblock().created_ms,
            "segment_bytes": geometry.segment_bytes,
            "wal_bytes": geometry.wal_bytes,
            "frames": geometry.frames,
        });
        self.facts.insert("store".to_owned(), store);
        for (n, copy) in inspector.superblock_copies().iter().enumerate() {
            if let Err(damage) = copy {
                self.notes.push(format!(
                    "superblock, copy {}: {damage}; the other copy is good",
                    n + 1
                ));
            }
        }
    }

    fn wal(&mut self, inspector: &Inspector) {
        for (n, header) in inspector.wal_headers().iter().enumerate() {
            if let Err(damage) = header {
                // A power cut may tear one of them, and one is empty before the first change.
                self.notes
                    .push(format!("write-ahead log, header {}: {damage}", n + 1));
            }
        }
        let mut commits = 0u64;
        let end = inspector.commits(&mut |_| {
            commits += 1;
            ControlFlow::Continue(())
        });
        match end {
            Ok(end) => {
                let wal = json!({ "commits": commits, "bytes": end.bytes, "clean": end.clean });
                self.facts.insert("wal".to_owned(), wal);
                if end.mended > 0 {
                    self.notes.push(format!(
                        "write-ahead log: a bit flipped in {} commits; a start puts it back",
                        end.mended
                    ));
                }
                if end.behind > 0 {
                    self.notes.push(format!(
                        "write-ahead log: commit {} cannot be read, and {} behind it can; after a power cut that is normal, otherwise the log is damaged there, and a start loses what follows",
                        end.to_lsn, end.behind
                    ));
                }
            }
            Err(error) => self.problems.push(error.damage()),
        }
    }

    fn slots(&mut self, inspector: &Inspector) {
        let (mut used, mut damaged) = (0u64, Vec::new());
        inspector.slots(&mut |view| {
            used += u64::from(view.slot.is_some());
            if view.damaged > 0 {
                damaged.push((view.frame, view.is_mendable));
            }
        });
        self.facts.insert("frames_written".to_owned(), json!(used));
        for (frame, is_mendable) in damaged {
            // The segments will show whether anything is missing.
            let what = if is_mendable {
                "has a flipped bit"
            } else {
                "is damaged or torn"
            };
            self.notes
                .push(format!("frame {frame}: a certificate {what}"));
        }
    }

    fn segment(&mut self, check: &ReplicaCheck, bytes: &[u8]) {
        let info = &check.info;
        if let Some(mended) = &check.mended {
            self.notes.push(format!(
                "segment {} of log {:016x}, on disk: {mended}",
                info.segment, info.log
            ));
        }
        if info.log != self.own_log {
            return self.replica(check, bytes);
        }
        let mut found = FoundSegment::of(info);
        if let Some(problem) = &check.problem {
            // The error's own text refers to `fsck`.
            let (segment, kind) = (info.segment, info.kind.name());
            let text = format!("segment {segment} ({kind}): {}", problem.damage());
            found.problems.push(text);
        } else if info.kind == Kind::Control {
            match State::replay(info.segment, bytes) {
                Ok(state) if check.is_newest_control => {
                    self.control = Some((info.segment, state));
                }
                Ok(_) => {}
                Err(error) => found.problems.push(error.to_string()),
            }
        } else {
            entries(info.segment, bytes, &mut found);
        }
        self.notes.append(&mut found.notes);
        found.counts.bytes = u64::from(info.length);
        self.segments.insert(info.segment, found);
    }

    /// A replica of another server's log. That server alone knows whether it still counts.
    fn replica(&mut self, check: &ReplicaCheck, bytes: &[u8]) {
        let ReplicaInfo { log, segment, .. } = check.info;
        self.other_logs.insert(log);
        self.replicas.0 += 1;
        let mut found = FoundSegment::of(&check.info);
        match &check.problem {
            Some(problem) => found.problems.push(problem.damage()),
            None if check.info.kind == Kind::Control || bytes.is_empty() => {}
            None => entries(segment, bytes, &mut found),
        }
        self.replicas.1 += u64::from(!found.problems.is_empty());
        let told = found.problems.into_iter().chain(found.notes);
        let told = told.map(|what| format!("segment {segment} of log {log:016x}: {what}"));
        self.notes.extend(told);
    }

    /// Judges the segments: listed ones count, others do not.
    fn judge(&mut self) {
        if !self.other_logs.is_empty() {
            let (replicas, unreadable) = self.replicas;
            let logs = self.other_logs.len();
            self.facts.insert("replicas".to_owned(), json!(replicas));
            self.notes.push(format!(
                "{replicas} replicas of {logs} logs of other servers, {unreadable} of them unreadable: these servers know which of them count, and have others made"
            ));
            if self.segments.is_empty() {
                return;
            }
        }
        let Some((control, state)) = self.control.take() else {
            if self.segments.is_empty() {
                return self.notes.push("the store is empty".to_owned());
            }
            self.problems.push(
                "the newest control segment cannot be read: the segments of the data are not known"
                    .to_owned(),
            );
            for found in self.segments.values() {
                self.problems.extend(found.problems.iter().cloned());
            }
            return;
        };
        self.compare(control, &state);
        let tables: Vec<Value> = state
            .tables
            .iter()
            .map(|(id, table)| {
                json!({
                    "id": id,
                    "name": table.name,
                    "level": table.level.map(duramen_base::ids::Level::name),
                })
            })
            .collect();
        self.facts.insert("tables".to_owned(), json!(tables));
        self.facts
            .insert("segments".to_owned(), json!(state.segments.len()));
        self.facts.insert("clean".to_owned(), json!(state.clean));
    }

    /// Compares the segments that were found with those that the control log lists.
    fn compare(&mut self, control: SegmentId, state: &State) {
        let mut left: BTreeSet<SegmentId> = self.segments.keys().copied().collect();
        left.remove(&control);
        for (id, listed) in &state.segments {
            left.remove(id);
            let listed_bytes = listed.closed.map_or(0, |all| u64::from(all.length));
            let Some(found) = self.segments.get(id) else {
                self.lost = (self.lost.0 + 1, self.lost.1 + listed_bytes);
                self.problems
                    .push(format!("segment {id} is part of the data and is missing"));
                continue;
            };
            self.problems.extend(found.problems.iter().cloned());
            let whole = listed.closed.is_none_or(|certificate| {
                (certificate.length, certificate.crc) == (found.length, found.crc)
            });
            if found.kind != listed.kind || !whole {
                self.problems.push(format!(
                    "segment {id} is not what the control log lists: {} of {} bytes",
                    found.kind.name(),
                    found.length
                ));
            }
            if found.kind != listed.kind || !whole || !found.problems.is_empty() {
                let bytes = listed_bytes.max(u64::from(found.length));
                self.lost = (self.lost.0 + 1, self.lost.1 + bytes);
            }
            self.counts.bytes += found.counts.bytes;
            self.counts.objects += found.counts.objects;
            self.counts.tombstones += found.counts.tombstones;
        }
        if !left.is_empty() {
            self.notes.push(format!(
                "{} segments are not listed any more; a restart frees them",
                left.len()
            ));
        }
    }

    fn print(&self, place: &str, json: bool) -> ExitCode {
        let sound = self.problems.is_empty();
        if json {
            let mut all = self.facts.clone();
            all.insert("place".to_owned(), json!(place));
            all.insert("sound".to_owned(), json!(sound));
            all.insert("problems".to_owned(), json!(self.problems));
            all.insert("lost_segments".to_owned(), json!(self.lost.0));
            all.insert("lost_bytes".to_owned(), json!(self.lost.1));
            all.insert("notes".to_owned(), json!(self.notes));
            all.insert("bytes".to_owned(), json!(self.counts.bytes));
            all.insert("objects".to_owned(), json!(self.counts.objects));
            all.insert("tombstones".to_owned(), json!(self.counts.tombstones));
            println!("{}", Value::Object(all));
        } else {
            self.print_lines(place);
        }
        ExitCode::from(u8::from(!sound))
    }

    fn print_lines(&self, place: &str) {
        let fact = |name: &str, field: &str| {
            let value = self.facts.get(name).and_then(|value| value.get(field));
            value.map_or("?".to_owned(), |value| {
                value.as_str().map_or(value.to_string(), str::to_owned)
            })
        };
        println!(
            "{place}: cluster {}, server {}",
            fact("store", "cluster"),
            fact("store", "server")
        );
        println!(
            "write-ahead log: {} commits, {} bytes",
            fact("wal", "commits"),
            fact("wal", "bytes")
        );
        println!(
            "segments: {} listed, {} bytes, {} objects and {} tombstones in them, live or not",
            self.facts.get("segments").unwrap_or(&json!(0)),
            self.counts.bytes,
            self.counts.objects,
            self.counts.tombstones
        );
        for (title, lines) in [("note", &self.notes), ("problem", &self.problems)] {
            for line in lines.iter().take(SHOWN_MAX) {
                println!("{title}: {line}");
            }
            if lines.len() > SHOWN_MAX {
                println!(
                    "… and {} more; --json has them all",
                    lines.len() - SHOWN_MAX
                );
            }
        }
        if !self.problems.is_empty() {
            let listed = self.facts.get("segments").unwrap_or(&json!(0)).clone();
            let (segments, bytes) = self.lost;
            if segments > 0 {
                println!(
                    "lost here: {segments} of {listed} segments with {bytes} bytes, and which keys were in them is not known: a server refuses the data as a whole"
                );
            }
            println!("{}", advice(place, true));
        }
        match self.problems.len() {
            0 => println!("sound"),
            1 => println!("damaged: 1 problem"),
            n => println!("damaged: {n} problems"),
        }
    }
}

/// Verifies every entry of a segment. One flipped bit of an entry is a note: it flipped before the
/// segment was certified, and a start puts it back.
fn entries(segment: SegmentId, bytes: &[u8], found: &mut FoundSegment) {
    let mut bytes = Cow::Borrowed(bytes);
    let mut mended = Vec::new();
    let mut header = Header::decode(&bytes);
    if header.is_err() {
        header = mend::header(bytes.to_mut(), &mut mended);
    }
    match header {
        Ok(header) if header.segment == segment => {}
        Ok(header) => found.problems.push(format!(
            "segment {segment} holds the header of segment {}",
            header.segment
        )),
        Err(damage) => found.problems.push(format!("segment {segment}: {damage}")),
    }
    let mut at = HEADER_BYTES;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let damage = match entry::parse(rest) {
            Ok(entry) => {
                match entry.kind {
                    EntryKind::Object => found.counts.objects += 1,
                    EntryKind::Tombstone => found.counts.tombstones += 1,
                    EntryKind::Completion => {}
                }
                at += entry.padded_bytes;
                continue;
            }
            Err(damage) => damage,
        };
        match mend::entry_at(bytes.to_mut(), at, usize::MAX) {
            Some(bit) => mended.push(bit),
            None => {
                // The start of the next entry is unknown.
                found
                    .problems
                    .push(format!("segment {segment}, byte {at}: {damage}"));
                break;
            }
        }
    }
    let notes = mended.iter().map(|bit| format!("segment {segment}, {bit}"));
    found.notes.extend(notes);
}
