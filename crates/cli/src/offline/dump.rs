//! `duramen log dump`: the contents of a data directory, in the order on disk.

use super::{Meter, StoreDirectory, StorePart, text_or_base64};
use duramen_backup::Error;
use duramen_backup::ReplicaInfo;
use duramen_backup::inspect::{self, Inspector, ReplicaCheck};
use duramen_base::ids::{SegmentId, TableId};
use duramen_cluster::control::{self, State};
use duramen_format::entry::{self, Entry, Kind as EntryKind};
use duramen_format::part::{Names, Numbers};
use duramen_format::segment::{HEADER_BYTES, Kind};
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

/// Longest part of a value in the readable output, in bytes.
const VALUE_BYTES_SHOWN: usize = 40;
/// Most numbers of parts, and most homes, in the readable output.
const NAMES_SHOWN: usize = 8;

/// Prints lines, or objects, and records whether anything was damaged.
struct DumpOutput {
    out: BufWriter<io::StdoutLock<'static>>,
    json: bool,
    damaged: bool,
    /// The reader ended: no more output is needed.
    closed: bool,
}

impl DumpOutput {
    fn line(&mut self, text: &str, object: Value) {
        let line = if self.json {
            object.to_string()
        } else {
            text.to_owned()
        };
        let done = writeln!(self.out, "{line}");
        self.note(done);
    }

    fn flush(&mut self) {
        let done = self.out.flush();
        self.note(done);
    }

    fn note(&mut self, done: io::Result<()>) {
        if let Err(reason) = done {
            self.closed = true;
            crate::say::ended(&reason);
        }
    }

    fn damage(&mut self, text: &str) {
        self.damaged = true;
        self.line(&format!("damaged: {text}"), json!({ "damaged": text }));
    }
}

pub(super) fn run(
    place: &StoreDirectory,
    part: Option<StorePart>,
    segment: Option<u64>,
    json: bool,
) -> ExitCode {
    let inspector = match Inspector::new(&*place.disk) {
        Ok(inspector) => inspector,
        Err(error) => return super::cannot_look(&error.to_string()),
    };
    let mut out = DumpOutput {
        out: BufWriter::new(io::stdout().lock()),
        json,
        damaged: false,
        closed: false,
    };
    let wanted = |one: StorePart| part.is_none_or(|part| part == one);
    if wanted(StorePart::Superblock) && segment.is_none() {
        superblock(&inspector, &mut out);
    }
    if wanted(StorePart::Wal)
        && let Err(error) = commits(&inspector, segment, &mut out)
    {
        out.damage(&error.to_string());
    }
    if wanted(StorePart::Frames) {
        frames(&inspector, segment, &mut out);
    }
    if wanted(StorePart::Segments)
        && let Err(error) = segments(place, inspector.identity().server, segment, &mut out)
    {
        out.damage(&error.to_string());
    }
    out.flush();
    ExitCode::from(u8::from(out.damaged))
}

fn superblock(inspector: &Inspector, out: &mut DumpOutput) {
    for (n, copy) in inspector.superblock_copies().iter().enumerate() {
        let number = n + 1;
        match copy {
            Ok(copy) => out.line(
                &format!(
                    "superblock {number}: cluster {}, server {:016x}, made {} ms after 1970, generation {}, blocks of {} bytes, \
                     write-ahead log of {} bytes, {} frames of {} bytes",
                    copy.cluster,
                    copy.server,
                    copy.created_ms,
                    copy.generation,
                    copy.block_bytes,
                    copy.wal_bytes,
                    copy.frames,
                    copy.segment_bytes
                ),
                json!({
                    "superblock": number,
                    "cluster": copy.cluster,
                    "server": format!("{:016x}", copy.server),
                    "created_ms": copy.created_ms,
                    "generation": copy.generation,
                    "block_bytes": copy.block_bytes,
                    "wal_bytes": copy.wal_bytes,
                    "frames": copy.frames,
                    "segment_bytes": copy.segment_bytes,
                }),
            ),
            Err(damage) => out.damage(&format!("superblock {number}: {damage}")),
        }
    }
}

fn commits(inspector: &Inspector, segment: Option<u64>, out: &mut DumpOutput) -> Result<(), Error> {
    let end = inspector.commits(&mut |view| {
        let commit = &view.commit;
        if segment.is_none() {
            out.line(
                &format!(
                    "commit {} at {}: {} records, {} bytes, everything up to {} was durable",
                    commit.lsn, view.offset, commit.records, commit.body_bytes, commit.durable_lsn
                ),
                json!({
                    "commit": commit.lsn,
                    "offset": view.offset,
                    "generation": commit.generation,
                    "records": commit.records,
                    "bytes": commit.body_bytes,
                    "durable": commit.durable_lsn,
                }),
            );
        }
        for record in view.records {
            if segment.is_some_and(|segment| segment != record.segment.0) {
                continue;
            }
            out.line(
                &format!("  {}", inspect::describe(record)),
                json!({
                    "commit": commit.lsn,
                    "record": record.kind.name(),
                    "segment": record.segment.0,
                    "epoch": record.epoch,
                    "offset": record.offset,
                    "bytes": record.payload.len(),
                    "open": record.open,
                    "close": record.close,
                    "frame": record.frame,
                    "certificate": record.certificate.map(|c| json!({ "length": c.length, "crc": c.crc })),
                }),
            );
        }
        if out.closed {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    if segment.is_none() && !out.closed {
        out.line(
            &format!(
                "end of the write-ahead log: commits {} to {}, {} bytes, {}",
                end.from_lsn,
                end.to_lsn.saturating_sub(1),
                end.bytes,
                if end.clean {
                    "stopped in order"
                } else {
                    "not stopped in order"
                }
            ),
            json!({ "wal_end": end.to_lsn, "from": end.from_lsn, "bytes": end.bytes, "clean": end.clean }),
        );
    }
    Ok(())
}

fn frames(inspector: &Inspector, segment: Option<u64>, out: &mut DumpOutput) {
    inspector.slots(&mut |view| {
        if let Some(slot) = &view.slot
            && segment.is_none_or(|segment| segment == slot.segment.0)
            && !out.closed
        {
            let certificate = slot.certificate;
            out.line(
                &format!(
                    "frame {}: {:?}, {} segment {} epoch {} certified {} crc {:08x}",
                    view.frame,
                    slot.state,
                    slot.kind.name(),
                    slot.segment,
                    slot.epoch,
                    certificate.length,
                    certificate.crc
                ),
                json!({
                    "frame": view.frame,
                    "state": format!("{:?}", slot.state).to_lowercase(),
                    "kind": slot.kind.name(),
                    "segment": slot.segment.0,
                    "epoch": slot.epoch,
                    "length": certificate.length,
                    "crc": certificate.crc,
                }),
            );
        }
    });
}

fn segments(
    place: &StoreDirectory,
    own_log: u64,
    segment: Option<u64>,
    out: &mut DumpOutput,
) -> Result<(), Error> {
    let mut meter = Meter::new("reading");
    let mut unreadable = Vec::new();
    let mut listed: Option<(SegmentId, State)> = None;
    inspect::check_replicas(
        place.disk.clone(),
        &mut |done, total| meter.show(done, total),
        &mut |check, bytes| {
            let ReplicaInfo {
                log, segment: id, ..
            } = check.info;
            if check.is_newest_control && log == own_log {
                listed = State::replay(id, bytes).ok().map(|state| (id, state));
            }
            if segment.is_some_and(|segment| segment != id.0) || out.closed {
                return;
            }
            if let Some(problem) = &check.problem {
                unreadable.push((id, problem.to_string()));
            }
            one_segment(check, bytes, out);
        },
    )?;
    meter.clear();
    for (id, problem) in unreadable {
        let counts = listed
            .as_ref()
            .is_none_or(|(control, state)| id == *control || state.segments.contains_key(&id));
        if counts {
            out.damage(&problem)
        } else {
            out.line(
                &format!("segment {id} is not part of the data any more: {problem}"),
                json!({ "segment": id.0, "unlisted": problem }),
            )
        }
    }
    Ok(())
}

fn one_segment(check: &ReplicaCheck, bytes: &[u8], out: &mut DumpOutput) {
    let info = &check.info;
    out.line(
        &format!(
            "segment {}: {}, {} bytes, crc {:08x}, {}, in {:?}",
            info.segment,
            info.kind.name(),
            info.length,
            info.crc,
            if info.closed { "closed" } else { "open" },
            info.place
        ),
        json!({
            "segment": info.segment.0,
            "kind": info.kind.name(),
            "length": info.length,
            "crc": info.crc,
            "closed": info.closed,
            "place": format!("{:?}", info.place).to_lowercase(),
        }),
    );
    if check.problem.is_some() {
        return; // it is shown when it is known whether the segment counts
    }
    if info.kind == Kind::Control {
        let shown = control::each_record(info.segment, bytes, |offset, record| {
            out.line(
                &format!("  {offset}: {record:?}"),
                json!({ "segment": info.segment.0, "offset": offset, "control": record.name(), "fields": format!("{record:?}") }),
            );
            Ok(())
        });
        if let Err(error) = shown {
            out.damage(&error.to_string());
        }
        return;
    }
    let mut at = HEADER_BYTES;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        match entry::parse(rest) {
            Ok(entry) => {
                one_entry(info.segment.0, at, &entry, out);
                at += entry.padded_bytes;
            }
            Err(damage) => {
                return out.damage(&format!("segment {}, byte {at}: {damage}", info.segment));
            }
        }
    }
}

fn one_entry(segment: u64, at: usize, entry: &Entry<'_>, out: &mut DumpOutput) {
    let names = entry.names().unwrap_or_else(|damage| {
        out.damage(&format!("segment {segment}, byte {at}: {damage}"));
        None
    });
    let names = names.as_ref();
    let object = entry_json(segment, at, entry, names);
    out.line(&entry_text(at, entry, names), object);
}

fn kind_of(entry: &Entry<'_>) -> &'static str {
    match entry.kind {
        EntryKind::Object => "object",
        EntryKind::Tombstone => "tombstone",
        EntryKind::Completion => "completion",
    }
}

fn entry_text(at: usize, entry: &Entry<'_>, names: Option<&Names<'_>>) -> String {
    let (kind, table) = (kind_of(entry), TableId(entry.table).whole());
    let key = match entry.part_key() {
        Some(part) => format!("part {part}"),
        None => format!("key {}", entry.key.escape_ascii()),
    };
    let version = entry.version;
    let mut words = vec![format!(
        "  {at}: {kind} table {table} {key} version {version}"
    )];
    if entry.kind == EntryKind::Object {
        words.push(format!("{} bytes", entry.value.len()));
        words.extend(names.map(names_text));
        let shown = names.map_or(entry.value, Names::body);
        let start = shown.get(..VALUE_BYTES_SHOWN).unwrap_or(shown);
        let more = if start.len() < shown.len() { "…" } else { "" };
        words.push(format!("{}{more}", start.escape_ascii()));
    }
    if entry.expires_at_ms > 0 {
        words.push(format!("expires {}", entry.expires_at_ms));
    }
    if entry.victim.0 > 0 {
        words.push(format!("kills in segment {}", entry.victim));
    }
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

/// The kind of a root or a part, and the parts that it names.
fn names_text(names: &Names<'_>) -> String {
    let mut text = names.form().name().to_owned();
    if names.children().len() > 0 {
        text.push_str(&format!(" of {}", numbers_text(names.children())));
    }
    for (home, tops) in names.homes().take(NAMES_SHOWN) {
        text.push_str(&format!(" home {home}"));
        if tops.len() > 0 {
            text.push_str(&format!(" with {}", numbers_text(tops)));
        }
    }
    let more = names.homes().len().saturating_sub(NAMES_SHOWN);
    if more > 0 {
        text.push_str(&format!(" and {more} homes more"));
    }
    text
}

fn numbers_text(numbers: Numbers<'_>) -> String {
    let more = numbers.len().saturating_sub(NAMES_SHOWN);
    let shown = numbers.take(NAMES_SHOWN).map(|number| number.to_string());
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn entry_json(segment: u64, at: usize, entry: &Entry<'_>, names: Option<&Names<'_>>) -> Value {
    let mut object = json!({
        "segment": segment,
        "offset": at,
        "entry": kind_of(entry),
        "table": TableId(entry.table).whole().0,
        "key": text_or_base64(entry.key),
        "version": entry.version,
        "value_bytes": entry.value.len(),
        "expires_at_ms": entry.expires_at_ms,
        "victim": entry.victim.0,
    });
    if let Some(part) = entry.part_key() {
        object["part"] = json!({ "home": part.home().to_string(), "number": part.number() });
    }
    if let Some(names) = names {
        let homes = names.homes().map(
            |(home, tops)| json!({ "home": home.to_string(), "tops": tops.collect::<Vec<_>>() }),
        );
        object["form"] = json!(names.form().name());
        object["children"] = json!(names.children().collect::<Vec<_>>());
        object["homes"] = json!(homes.collect::<Vec<_>>());
    }
    if let Some((last, root)) = names.and_then(Names::building) {
        object["last"] = json!(last);
        object["root"] = text_or_base64(root);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::Home;
    use duramen_format::entry::{NewObject, NewTombstone};
    use duramen_format::part;

    const HOME: Home = Home::from_bytes([0x8d, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    const TABLE: TableId = TableId(3);

    fn dumped(table: TableId, key: &[u8], value: &[u8], is_typed: bool) -> (String, Value) {
        let object = NewObject {
            table: table.0,
            version: 5,
            expires_at_ms: None,
            key,
            value,
            victim: SegmentId(2),
            is_typed,
        };
        let mut bytes = vec![0; object.padded_bytes()];
        object.write_to(&mut bytes);
        shown(&bytes)
    }

    fn shown(bytes: &[u8]) -> (String, Value) {
        let entry = entry::parse(bytes).expect("a sound entry");
        let names = entry.names().expect("sound names");
        let text = entry_text(64, &entry, names.as_ref());
        (text, entry_json(7, 64, &entry, names.as_ref()))
    }

    #[test]
    fn objects_show_key_and_value() {
        let (text, object) = dumped(TABLE, b"k\n", &[b'v'; 41], false);
        let value = "v".repeat(40);
        let wanted = format!("  64: object table 3 key k\\n version 5 41 bytes {value}…");
        assert_eq!(text, wanted + " kills in segment 2");
        assert_eq!(
            (&object["table"], &object["key"]),
            (&json!(3), &json!("k\n"))
        );
        assert!(object.get("part").is_none() && object.get("form").is_none());
    }

    #[test]
    fn roots_and_parts_show_the_parts_that_they_name() {
        let mut root = Vec::new();
        part::begin_root(&mut root, 1, std::iter::once((HOME, [9u64, 4].into_iter())));
        root.push(b'b');
        let (text, object) = dumped(TABLE, b"k", &root, true);
        assert_eq!(
            text,
            "  64: object table 3 key k version 5 18 bytes root \
             home 8d02030405060708090a0b with 9, 4 b kills in segment 2"
        );
        let homes = json!([{ "home": "8d02030405060708090a0b", "tops": [9, 4] }]);
        assert_eq!(object["homes"], homes);

        let mut inner = Vec::new();
        part::begin_inner(&mut inner, (1..11u32).map(u64::from));
        let (text, object) = dumped(TABLE.parts(), HOME.key(77).as_bytes(), &inner, false);
        assert_eq!(
            text,
            "  64: object table 3 part 8d02030405060708090a0b/77 version 5 13 bytes \
             inner node of 1, 2, 3, 4, 5, 6, 7, 8 and 2 more kills in segment 2"
        );
        assert_eq!(object["part"]["number"], 77);
        assert_eq!(
            (&object["table"], object["children"][9].as_u64()),
            (&json!(3), Some(10))
        );

        let mut record = Vec::new();
        part::append_building(&mut record, 6, b"user:7");
        let (text, object) = dumped(TABLE.parts(), HOME.key(0).as_bytes(), &record, false);
        assert!(
            text.contains("/0 version 5 14 bytes building record "),
            "{text}"
        );
        assert_eq!(
            (&object["last"], &object["root"]),
            (&json!(6), &json!("user:7"))
        );
    }

    #[test]
    fn the_removal_of_a_part_shows_its_name() {
        let key = HOME.key(1);
        let tombstone = NewTombstone {
            table: TABLE.parts().0,
            version: 6,
            key: key.as_bytes(),
            victim: SegmentId(2),
        };
        let mut bytes = vec![0; tombstone.padded_bytes()];
        tombstone.write_to(&mut bytes);
        let (text, _) = shown(&bytes);
        let wanted = "  64: tombstone table 3 part 8d02030405060708090a0b/1 version 6";
        assert_eq!(text, format!("{wanted} kills in segment 2"));
    }
}
