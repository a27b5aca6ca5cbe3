//! Salvage: copies the provable part of a damaged store into a new one: `duramen fsck --repair`.
//! The damaged store is only read.
//!
//! - The segments that the newest control segment lists count. If that list cannot be read
//!   completely, every segment on the disk counts: then deleted or replaced objects may be back.
//! - An entry counts if its own checksum matches, or does when one flipped bit is put back
//!   (format::mend). Per key the highest version wins, tombstones included.
//! - A damaged entry is one gap if its header is plausible and the next entry, or the end, lies
//!   where the header says. So its value, which a client chose, is not searched for entries.
//! - Behind another gap, entries are found by searching for several consecutive ones, each with its
//!   checksum. Entries behind a gap are *found again*: a client may have put them into a value. So
//!   they lose against any entry of their key that was not found again.
//! - A segment that does not match its certificate, or the list, is lost as a whole, even if each
//!   entry in it is sound: these may be entries of another segment. They count, and prove nothing.
//! - An entry behind a gap counts as damage if its version takes up half of the versions that are
//!   left above the entries in front of all gaps: no client can use up the versions.
//! - Missing bytes may have held a newer version of any key, or its deletion. A key is *proved* if
//!   no missing byte can have held one: nothing of its entry's segment is lost, and all that is
//!   lost lies in earlier segments of the same head.
//! - The new store is made in a separate folder within the new directory, and moved up when it is
//!   whole: no server opens a part of it.
//! - Versions in the new store are all above those of the old one, so that no condition on an old
//!   version holds by accident.

use crate::{Error, Level, Options, Store};
use duramen_backup::Error as DiskError;
use duramen_backup::ReplicaInfo;
use duramen_backup::disk::Disk;
use duramen_backup::inspect;
use duramen_backup::os::{SUPERBLOCK, is_store};
use duramen_backup::salvage::{Remains, Salvage};
use duramen_base::ids::SegmentId;
use duramen_base::lock::STORE_FILES;
use duramen_base::private::make_dir;
use duramen_cluster::control::{Listed, State, each_record};
use duramen_engine::{Error as EngineError, TableId};
use duramen_format::certificate::Certificate;
use duramen_format::entry::{self, Entry, Kind as EntryKind, VERSION_MAX};
use duramen_format::loss::find_again;
use duramen_format::mend::{self, Mended};
use duramen_format::segment::{HEADER_BYTES, Header, Kind};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Bytes of memory for each copied byte: the new store must not fill up, and takes this much only
/// while it is made.
const ROOM: u64 = 3;

/// Lost bytes of a listed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub segment: SegmentId,
    pub kind: Kind,
    /// The range of the lost bytes; `None`: the number of bytes behind the last entry is unknown.
    pub bytes: Option<Range<usize>>,
}

/// Result of a repair.
#[derive(Clone, Debug, Default)]
pub struct Salvaged {
    /// Keys in the new store.
    pub keys: u64,
    /// Flipped bits of entries that were put back.
    pub mended: Vec<(SegmentId, Mended)>,
    /// Keys whose newer version, or deletion, may be among the lost bytes.
    pub unproved: u64,
    pub lost: Vec<Lost>,
    /// The reason why the list of segments is incomplete.
    pub control_damage: Option<String>,
    /// The reason why commits are missing.
    pub wal_damage: Option<String>,
}

/// The folder within the new directory in which the store is made.
const PART: &str = ".duramen-repair-unfinished";

/// The newest entry of a key.
#[derive(Clone, Copy)]
struct Winner {
    version: u64,
    is_object: bool,
    place: Place,
}

impl Winner {
    /// The order of the entries of a key: the greatest one wins.
    fn rank(&self) -> (bool, u64, bool) {
        (!self.place.found_again, self.version, !self.is_object)
    }
}

/// The place of an entry.
#[derive(Clone, Copy)]
struct Place {
    segment: SegmentId,
    at: usize,
    /// The search found it: it may be part of a value.
    found_again: bool,
}

type Winners = HashMap<(u32, Box<[u8]>), Winner>;

/// Copies the provable part of `from` into a new directory `to`, which must not exist or be empty.
/// `unproved` gets the table's name and the key of each object that may be old.
///
/// # Errors
/// [`Error::Disk`]: there is no store, or its superblock can't be read; `to` is not empty; or as
/// [`Store::open`] and its writes, of the new one.
pub fn salvage(
    from: &Arc<dyn Disk>,
    to: &Path,
    unproved: &mut dyn FnMut(&str, &[u8]),
) -> Result<Salvaged, Error> {
    // First, so that nothing is made if there is nothing to read.
    let salvage = Salvage::new(&**from).map_err(Error::Disk)?;
    make_empty(to)?;
    let checked = check(from, salvage.identity().server);
    if checked.as_ref().is_ok_and(|checked| checked.has_others) {
        return Err(Error::Misfit {
            place: from.label(),
            reason: "it has replicas of other servers' data: start the member, and its cluster makes those anew that are damaged".to_owned(),
        });
    }
    let mut repair = Repair::new(&salvage, checked);
    let listed: Vec<(SegmentId, Option<Listed>)> = repair.listed();
    let mut gaps = Vec::new();
    for (segment, listed) in &listed {
        if let Some(first) = repair.take(*segment, listed.as_ref()) {
            gaps.push((*segment, listed.as_ref(), first));
        }
    }
    let limit = version_limit(repair.version_max.max(repair.state.safe_version));
    for (segment, listed, first) in gaps {
        repair.take_behind(segment, listed, first, limit);
    }
    repair.write(to, unproved)
}

/// The replicas that a restart would find.
#[derive(Default)]
struct Checked {
    /// The replicas that `fsck` finds sound.
    sound: BTreeMap<SegmentId, ReplicaInfo>,
    /// The control segment that a restart reads, and its damage, if there is any.
    newest_control: Option<(SegmentId, Option<String>)>,
    /// There are replicas of other servers' logs.
    has_others: bool,
}

/// Verifies every replica as `fsck` does.
///
/// # Errors
/// The reason why a restart would read none of them.
fn check(disk: &Arc<dyn Disk>, server: u64) -> Result<Checked, String> {
    let mut all = Checked::default();
    let checked = inspect::check_replicas(disk.clone(), &mut |_, _| {}, &mut |check, _| {
        let info = check.info;
        if info.log != server {
            all.has_others = true;
            return;
        }
        if check.is_newest_control {
            let damage = check.problem.as_ref().map(DiskError::damage);
            all.newest_control = Some((info.segment, damage));
        }
        if check.problem.is_none() {
            all.sound.insert(info.segment, info);
        }
    });
    checked.map(|()| all).map_err(|error| error.damage())
}

struct Repair<'a> {
    salvage: &'a Salvage,
    checked: Checked,
    state: State,
    winners: Winners,
    version_max: u64,
    bytes: u64,
    done: Salvaged,
}

impl<'a> Repair<'a> {
    fn new(salvage: &'a Salvage, checked: Result<Checked, String>) -> Repair<'a> {
        let wal_damage = salvage.wal_damage.clone();
        let refusal = checked.as_ref().err().filter(|_| wal_damage.is_none());
        let mut repair = Repair {
            salvage,
            state: State::default(),
            winners: HashMap::new(),
            version_max: 0,
            bytes: 0,
            done: Salvaged {
                control_damage: refusal.cloned(),
                wal_damage,
                ..Salvaged::default()
            },
            checked: checked.unwrap_or_default(),
        };
        repair.read_control();
        repair
    }

    /// Reads the readable part of the newest control segment.
    fn read_control(&mut self) {
        let controls = self.salvage.segments();
        let newest = controls.filter(|(_, kind)| *kind == Kind::Control).last();
        let Some((control, _)) = newest else {
            self.done.control_damage = Some("there is no control segment".to_owned());
            return;
        };
        let sound = self
            .checked
            .sound
            .get(&control)
            .map(ReplicaInfo::certificate);
        let length = sound.map(|certificate| certificate.length);
        let remains = self.salvage.read(control, length);
        let mut state = State::default();
        let mut misfit = None;
        let read = each_record(control, &remains.bytes, |at, record| {
            if let Err(why) = state.apply(record) {
                // A restart would refuse; here the record is skipped.
                misfit.get_or_insert_with(|| format!("byte {at}: `{}` {why}", record.name()));
            }
            Ok(())
        });
        let damage = read.err().map(|error| error.to_string()).or(misfit);
        if damage.is_some() {
            self.done.control_damage = damage;
        } else if self.done.wal_damage.is_some() {
            self.done.control_damage = Some("its last records may be missing".to_owned());
        } else if !sound.is_some_and(|certificate| certificate.matches(&remains.bytes)) {
            let differs = || "it does not match its certificate".to_owned();
            self.done.control_damage.get_or_insert_with(differs);
        } else if let Some((newest, damage)) = &self.checked.newest_control
            && *newest > control
        {
            // A restart refuses to read an older one in its place.
            let damage = damage.as_deref().unwrap_or("it cannot be read");
            self.done.control_damage = Some(format!("the newest, {newest}: {damage}"));
        }
        self.state = state;
    }

    /// The segments that count.
    fn listed(&self) -> Vec<(SegmentId, Option<Listed>)> {
        let known = self.state.segments.iter();
        let mut all: BTreeMap<SegmentId, Option<Listed>> =
            known.map(|(id, listed)| (*id, Some(*listed))).collect();
        if self.done.control_damage.is_some() {
            for (id, kind) in self.salvage.segments() {
                if kind != Kind::Control {
                    all.entry(id).or_insert(None);
                }
            }
        }
        all.into_iter().collect()
    }

    /// The certificate of a listed segment. `None`: it is open, and a restart would not find it, or
    /// not as it is listed.
    fn certificate(&self, segment: SegmentId, listed: &Listed) -> Option<Certificate> {
        listed.closed.or_else(|| {
            let found = self.checked.sound.get(&segment)?;
            let is_newest = found.closed || found.epoch >= listed.epoch;
            (is_newest && found.kind == listed.kind).then(|| found.certificate())
        })
    }

    /// The readable bytes of a segment.
    fn read(&self, segment: SegmentId, listed: Option<&Listed>) -> Remains {
        let certificate = listed.and_then(|listed| self.certificate(segment, listed));
        self.salvage
            .read(segment, certificate.map(|certificate| certificate.length))
    }

    /// Whether these are all bytes of a listed segment. Sound entries alone do not show that: a
    /// lost or misdirected write leaves those of another segment, or older ones.
    fn is_whole(&self, segment: SegmentId, listed: &Listed, bytes: &[u8]) -> bool {
        let header = Header::decode(bytes);
        header.is_ok_and(|header| header.segment == segment && header.kind == listed.kind)
            && self
                .certificate(segment, listed)
                .is_some_and(|certificate| certificate.matches(bytes))
    }

    /// Passes a segment's entries in front of its first gap to the winners; returns where the gap
    /// begins.
    fn take(&mut self, segment: SegmentId, listed: Option<&Listed>) -> Option<usize> {
        let Remains { mut bytes, missing } = self.read(segment, listed);
        self.bytes += bytes.len() as u64;
        let was_whole = listed.is_none_or(|listed| self.is_whole(segment, listed, &bytes));
        let mended = mend_all(&mut bytes);
        let end = bytes.len().max(HEADER_BYTES);
        let server = self.salvage.identity().server;
        if Header::decode(&bytes).is_ok_and(|header| header.log != server) {
            self.lose(segment, listed, Some(HEADER_BYTES..end));
            return None; // the bytes of another store, with versions of their own
        }
        let mut place = Place {
            segment,
            at: HEADER_BYTES,
            found_again: false,
        };
        while let Some(Ok(entry)) = rest(&bytes, place.at).map(entry::parse) {
            self.meet(place, &entry);
            place.at += entry.padded_bytes;
        }
        let gap = (place.at < bytes.len()).then_some(place.at);
        let is_open = listed.is_none_or(|listed| listed.closed.is_none());
        let is_whole =
            was_whole || listed.is_some_and(|listed| self.is_whole(segment, listed, &bytes));
        let mended = mended.into_iter().map(|mended| (segment, mended));
        self.done.mended.extend(mended);
        let is_known = !is_open || self.done.control_damage.is_none();
        if !is_whole && gap.is_none() && is_known {
            self.lose(segment, listed, Some(HEADER_BYTES..end));
        }
        // An open segment may have continued in lost commits.
        if is_open && (self.done.wal_damage.is_some() || !missing.is_empty() || !is_whole) {
            self.lose(segment, listed, None);
        }
        gap
    }

    /// Passes a segment's entries from its first gap on, which begins at `first`, to the winners.
    /// Versions from `limit` on are damage.
    fn take_behind(
        &mut self,
        segment: SegmentId,
        listed: Option<&Listed>,
        first: usize,
        limit: u64,
    ) {
        let Remains { mut bytes, .. } = self.read(segment, listed);
        let mut place = Place {
            segment,
            at: first,
            found_again: false,
        };
        while let Some(here) = rest(&bytes, place.at) {
            let next = match entry::parse(here) {
                Ok(entry) if entry.version < limit => {
                    self.meet(place, &entry);
                    place.at += entry.padded_bytes;
                    continue;
                }
                Ok(entry) => place.at + entry.padded_bytes,
                Err(_) => {
                    if let Some(bit) = mend::entry_at(&mut bytes, place.at, usize::MAX) {
                        self.done.mended.push((segment, bit));
                        continue; // it is sound now
                    }
                    place.found_again = true;
                    let searched = || find_again(&bytes, place.at).unwrap_or(bytes.len());
                    end_by_header(&bytes, place.at).unwrap_or_else(searched)
                }
            };
            self.lose(segment, listed, Some(place.at..next));
            place.at = next;
        }
    }

    fn lose(&mut self, segment: SegmentId, listed: Option<&Listed>, bytes: Option<Range<usize>>) {
        let kind = listed.map_or(Kind::Head, |listed| listed.kind);
        self.done.lost.push(Lost {
            segment,
            kind,
            bytes,
        });
    }

    fn meet(&mut self, place: Place, entry: &Entry<'_>) {
        self.version_max = self.version_max.max(entry.version);
        if entry.kind == EntryKind::Completion {
            return; // no client of a single server can request one again
        }
        let floor = match self.state.tables.get(&entry.table) {
            Some(table) => table.floor,
            None if self.done.control_damage.is_some() => 0,
            None => return, // its table was dropped
        };
        if entry.version < floor {
            return;
        }
        let winner = Winner {
            version: entry.version,
            is_object: entry.kind == EntryKind::Object,
            place,
        };
        let known = self
            .winners
            .entry((entry.table, entry.key.into()))
            .or_insert(winner);
        if winner.rank() > known.rank() {
            *known = winner;
        }
    }

    /// Whether no lost byte can have held a newer version.
    fn is_proved(&self, winner: &Winner) -> bool {
        if self.done.control_damage.is_some() {
            return false;
        }
        let head_of = |segment| {
            let listed = self.state.segments.get(&segment)?;
            (listed.kind == Kind::Head).then_some(listed.head)
        };
        let segment = winner.place.segment;
        let head = head_of(segment);
        self.done
            .lost
            .iter()
            .all(|lost| head.is_some() && head_of(lost.segment) == head && lost.segment < segment)
    }

    fn table_name(&self, table: u32) -> String {
        match self.state.tables.get(&table) {
            Some(known) => known.name.clone(),
            None if table == TableId::DEFAULT.0 => "default".to_owned(),
            None => format!("table-{table}"),
        }
    }

    /// Makes the tables of the new store, and returns their ids by the old ones. They are the same,
    /// because values may hold them: those of the server's own table do. Only a table that nothing
    /// but entries found again name gets an id that is free: a client may have made it up.
    fn make_tables(&self, store: &Store) -> Result<BTreeMap<u32, TableId>, Error> {
        let mut made: BTreeMap<u32, TableId> = BTreeMap::new();
        for (id, table) in &self.state.tables {
            let id = TableId(*id);
            if id != TableId::DEFAULT {
                store
                    .engine()
                    .tables()
                    .adopt(id, &table.name, table.level)?;
            } else if table.level.is_some() {
                store.set_level(id, table.level)?;
            }
            made.insert(id.0, id);
        }
        made.insert(TableId::DEFAULT.0, TableId::DEFAULT);
        // Ids that are known come before the others, which must not take them.
        let objects = self.winners.iter().filter(|(_, winner)| winner.is_object);
        let unknown: BTreeSet<(bool, u32)> = objects
            .map(|((table, _), winner)| (winner.place.found_again, *table))
            .collect();
        for (is_found_again, id) in unknown {
            if made.contains_key(&id) {
                continue;
            }
            let mut name = self.table_name(id);
            while store.find_table(&name).is_some() {
                name.push('+'); // a client gave this name to another table
            }
            let adopt = || store.engine().tables().adopt(TableId(id), &name, None);
            let table = match (!is_found_again).then(adopt) {
                Some(Ok(())) => TableId(id),
                // `TooManyTables`: another table has the place of a dropped one.
                None | Some(Err(EngineError::TooManyTables { .. })) => {
                    store.create_table(&name, None)?
                }
                Some(Err(error)) => return Err(error.into()),
            };
            made.insert(id, table);
        }
        Ok(made)
    }

    /// Creates the new store.
    fn write(
        mut self,
        to: &Path,
        unproved: &mut dyn FnMut(&str, &[u8]),
    ) -> Result<Salvaged, Error> {
        let part = to.join(PART);
        let store = Store::open(self.options(&part))?;
        let tables = self.make_tables(&store)?;
        let mut places: BTreeMap<SegmentId, Vec<usize>> = BTreeMap::new();
        for ((table, key), winner) in &self.winners {
            if !winner.is_object {
                continue;
            }
            let Place { segment, at, .. } = winner.place;
            places.entry(segment).or_default().push(at);
            if !self.is_proved(winner) {
                self.done.unproved += 1;
                unproved(&self.table_name(*table), key);
            }
        }
        let mut session = store.session()?;
        session.set_level(Some(Level::Memory))?;
        for (segment, mut places) in places {
            places.sort_unstable();
            let mut remains = self.salvage.read(segment, None);
            for at in places {
                mend::entry_at(&mut remains.bytes, at, usize::MAX);
                let Ok(entry) = entry::parse(remains.bytes.get(at..).unwrap_or_default()) else {
                    continue; // it was readable a moment ago: the device is getting worse
                };
                let Some(table) = tables.get(&entry.table).copied() else {
                    continue; // as above
                };
                let expires = (entry.expires_at_ms != 0).then_some(entry.expires_at_ms);
                session.batch(|guard| {
                    let hash = guard.hash(entry.key);
                    guard.write_as(
                        table,
                        hash,
                        entry.key,
                        (entry.value, entry.is_typed),
                        expires,
                    )
                })?;
                self.done.keys += 1;
            }
        }
        drop(session);
        store.close()?;
        drop(store);
        move_up(&part, to)?;
        Ok(self.done)
    }

    /// Options of the new store: segments of the same size, and room for everything.
    fn options(&self, to: &Path) -> Options {
        let geometry = self.salvage.geometry();
        let mut memory = (self.bytes * ROOM).max(64 << 20).next_power_of_two();
        while duramen_engine::segment_bytes(memory) < u64::from(geometry.segment_bytes)
            && memory < 1 << 40
        {
            memory *= 2;
        }
        let mut options = Options::new(to, memory);
        options.cluster.clone_from(&self.salvage.identity().cluster);
        if self.salvage.has_whole_wal() {
            options.wal_bytes = geometry.wal_bytes;
        }
        options.version_floor = self.version_max.max(self.state.safe_version);
        options.engine.heads = 1;
        options.encryption_key = self.salvage.key().cloned();
        options
    }
}

/// Creates the directory if there is none, and removes the remains of an interrupted repair.
///
/// # Errors
/// [`Error::Disk`]: it has other contents.
fn make_empty(to: &Path) -> Result<(), Error> {
    let place = to.display().to_string();
    let failed = |doing: &'static str| {
        move |source| Error::Disk(DiskError::io(&to.display().to_string(), doing, source))
    };
    make_dir(to).map_err(failed("make the directory"))?;
    let part = to.join(PART);
    if part.exists() {
        remove_unfinished(&part, to).map_err(failed("remove an unfinished repair"))?;
    }
    for entry in std::fs::read_dir(to).map_err(failed("list the directory"))? {
        let name = entry.map_err(failed("list the directory"))?.file_name();
        if name == "lost+found" {
            continue; // part of a new file system
        }
        return Err(Error::Disk(match is_store(to) {
            Ok(true) => DiskError::Exists { place },
            _ => DiskError::NotDuramen {
                place,
                found: format!("`{}`", name.display()),
            },
        }));
    }
    Ok(())
}

/// Removes what an interrupted repair made in `part`, and what it had moved up to `to` by then. A
/// store in `to` that has its superblock is whole, and stays.
fn remove_unfinished(part: &Path, to: &Path) -> std::io::Result<()> {
    if !to.join(SUPERBLOCK).exists() {
        for name in STORE_FILES {
            match std::fs::remove_file(to.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    std::fs::remove_dir_all(part)
}

/// Moves the files of a store to the directory above, the superblock last: with it the directory
/// becomes a store.
fn move_up(part: &Path, to: &Path) -> Result<(), Error> {
    let place = to.display().to_string();
    let failed = |source| Error::Disk(DiskError::io(&place, "move the new store", source));
    let sync = || File::open(to)?.sync_all();
    let entries = std::fs::read_dir(part).map_err(failed)?;
    let names: Vec<_> = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    let (last, first): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name == SUPERBLOCK);
    for names in [first, last] {
        for name in names {
            std::fs::rename(part.join(&name), to.join(&name)).map_err(failed)?;
        }
        sync().map_err(failed)?;
    }
    std::fs::remove_dir(part)
        .and_then(|()| sync())
        .map_err(failed)
}

/// Versions from this one on are damage behind a gap, if `known` is the highest one in front of all
/// gaps.
fn version_limit(known: u64) -> u64 {
    known + VERSION_MAX.saturating_sub(known).div_ceil(2)
}

/// The bytes from `at` on; `None` at the end.
fn rest(bytes: &[u8], at: usize) -> Option<&[u8]> {
    bytes.get(at..).filter(|rest| !rest.is_empty())
}

/// Puts back one flipped bit of each entry in front of the first gap.
fn mend_all(bytes: &mut [u8]) -> Vec<Mended> {
    let (mut at, mut mended) = (HEADER_BYTES, Vec::new());
    while let Some(rest) = rest(bytes, at) {
        match entry::parse(rest) {
            Ok(entry) => at += entry.padded_bytes,
            Err(_) => match mend::entry_at(bytes, at, usize::MAX) {
                Some(bit) => mended.push(bit),
                None => break,
            },
        }
    }
    mended
}

/// The end of a damaged entry according to its own header, if an entry or the end of the segment is
/// there. It is not sure: the length may be what was damaged, and then a client's bytes may be
/// there.
fn end_by_header(bytes: &[u8], at: usize) -> Option<usize> {
    let end = at + entry::parse_again(rest(bytes, at)?).ok()?.padded_bytes;
    let is_end = rest(bytes, end).is_none_or(|rest| entry::parse(rest).is_ok());
    is_end.then_some(end)
}
