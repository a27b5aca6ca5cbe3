//! The repair of a damaged store whose clients chose their values to mislead it, and a repair that
//! was interrupted.

use duramen::internals::Salvaged;
use duramen::{Level, Options, Store};
use duramen_backup::Mode;
use duramen_backup::disk::Disk;
use duramen_backup::os::OsDisk;
use duramen_base::ids::SegmentId;
use duramen_engine::TableId;
use duramen_format::entry::{self, NewObject, NewTombstone, VERSION_MAX};
use duramen_format::frame;
use duramen_format::segment::{self, HEADER_BYTES, Header, Kind};
use std::path::Path;
use std::sync::Arc;

const T: TableId = TableId::DEFAULT;
/// Begins the forger's value: the place to damage.
const MARK: &[u8; 16] = b"MARKMARKMARKMARK";
/// It has 8 bytes, so the value behind it begins at a multiple of 8, as entries do.
const FORGER: &[u8; 8] = b"mallory0";
/// Bytes of an entry's header.
const HEADER: usize = 16;

fn options(dir: &Path) -> Options {
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 1;
    options.engine.huge_pages = false;
    options.wal_bytes = 4 << 20;
    options
}

fn forged(key: &[u8], value: &[u8], version: u64) -> Vec<u8> {
    let object = NewObject {
        table: T.0,
        version,
        expires_at_ms: None,
        key,
        value,
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let mut bytes = vec![0; object.padded_bytes()];
    object.write_to(&mut bytes);
    bytes
}

fn forged_tombstone(key: &[u8], version: u64) -> Vec<u8> {
    let tombstone = NewTombstone {
        table: T.0,
        version,
        key,
        victim: SegmentId(1),
    };
    let mut bytes = vec![0; tombstone.padded_bytes()];
    tombstone.write_to(&mut bytes);
    bytes
}

/// A value with entries in it.
fn value_with(entries: &[Vec<u8>], version: u64) -> Vec<u8> {
    let mut value = MARK.to_vec();
    value.extend(entries.iter().flatten());
    for n in 0..6 {
        value.extend(forged(format!("dummy{n}").as_bytes(), b"x", version));
    }
    value
}

/// A stopped store with this value of the forger between the ones of other clients.
fn store_with(forged: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let mut session = store.session().unwrap();
    session.set(T, b"balance", b"100").unwrap();
    session.set(T, FORGER, forged).unwrap();
    for n in 0..100 {
        session.set(T, format!("other{n}"), b"value").unwrap();
    }
    session.set(T, b"last", b"value").unwrap();
    drop(session);
    store.close().unwrap();
    dir
}

/// Changes a byte at this distance from the mark.
fn damage(dir: &Path, distance: isize, flip: u8) {
    let path = dir.join("frames");
    let mut bytes = std::fs::read(&path).unwrap();
    let mark = bytes.windows(MARK.len()).position(|bytes| bytes == MARK);
    bytes[mark.unwrap().checked_add_signed(distance).unwrap()] ^= flip;
    std::fs::write(&path, bytes).unwrap();
    assert!(Store::open(options(dir)).is_err(), "a start refuses it");
}

struct Repaired {
    done: Salvaged,
    unproved: Vec<Vec<u8>>,
    store: Arc<Store>,
    _out: tempfile::TempDir,
}

impl Repaired {
    fn of(dir: &Path) -> Repaired {
        let out = tempfile::tempdir().unwrap();
        let mut unproved = Vec::new();
        let damaged: Arc<dyn Disk> = Arc::new(OsDisk::new(dir, Mode::Buffered));
        let done = duramen::internals::salvage(&damaged, out.path(), &mut |_, key| {
            unproved.push(key.to_vec())
        });
        Repaired {
            done: done.unwrap(),
            unproved,
            store: Store::open(options(out.path())).unwrap(),
            _out: out,
        }
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut session = self.store.session().unwrap();
        session.get(T, key).unwrap().map(|value| value.bytes)
    }

    fn is_proved(&self, key: &[u8]) -> bool {
        !self.unproved.iter().any(|unproved| unproved == key)
    }
}

/// A client put bytes into a value that were entries with correct checksums, for the key of
/// another one. Two bits of this value flipped; the repair then searched the rest of the value for
/// entries, and took these for newer ones than the true entry: the other client had 999999, and
/// the report called it proved. The entry's own length shows where it ends.
#[test]
fn a_value_s_bytes_are_no_entries_when_its_entry_is_damaged() {
    let version = 1 << 40;
    let entries = [
        forged(b"balance", b"999999", version),
        forged_tombstone(b"other7", version),
    ];
    let dir = store_with(&value_with(&entries, version));
    damage(dir.path(), 0, 0x60);
    let repaired = Repaired::of(dir.path());
    assert_eq!(repaired.get(b"balance").unwrap(), b"100");
    assert!(!repaired.is_proved(b"balance"));
    assert_eq!(repaired.done.lost.len(), 1, "{:?}", repaired.done.lost);
    assert_eq!((repaired.done.keys, repaired.get(b"dummy1")), (102, None));
    for n in 0..100 {
        let value = repaired.get(format!("other{n}").as_bytes());
        assert_eq!(value.as_deref(), Some(&b"value"[..]), "other{n}");
    }
}

/// As before, with damage in the header of the client's entry: then only a search finds the entries
/// behind it, and those in the value too. They lose against the entries in front of the damage, and
/// nothing that the search found is called proved.
#[test]
fn entries_that_only_a_search_found_replace_none_and_are_not_proved() {
    let version = 1 << 40;
    let entries = [
        forged(b"balance", b"999999", version),
        forged_tombstone(b"balance", version + 1),
    ];
    let dir = store_with(&value_with(&entries, version));
    let kind = -((HEADER + FORGER.len()) as isize);
    damage(dir.path(), kind, 0xc0);
    let repaired = Repaired::of(dir.path());
    assert_eq!(repaired.get(b"balance").unwrap(), b"100");
    for key in [&b"balance"[..], b"dummy1", b"other99", b"last"] {
        assert!(repaired.get(key).is_some());
        assert!(!repaired.is_proved(key), "{}", key.escape_ascii());
    }
}

/// As before, with the highest version of all in the value's entries. The new store began its
/// versions above it, where there are none: each write ended the server.
#[test]
fn a_found_version_near_the_end_of_the_range_is_damage() {
    for version in [VERSION_MAX, VERSION_MAX / 2 + 200] {
        let dir = store_with(&value_with(&[], version));
        let kind = -((HEADER + FORGER.len()) as isize);
        damage(dir.path(), kind, 0xc0);
        let repaired = Repaired::of(dir.path());
        assert_eq!(repaired.get(b"dummy1"), None);
        assert_eq!(repaired.get(b"other99").unwrap(), b"value");
        let floor = repaired.store.engine().version_floor();
        assert!(floor < VERSION_MAX / 2, "{floor}");
        let mut session = repaired.store.session().unwrap();
        session.set(T, b"balance", b"1").unwrap();
        session.remove(T, b"other5").unwrap();
    }
}

/// A repair was killed while it moved the files of the new store up. The same command then refused
/// the directory, because of the files that it had moved there itself.
#[test]
fn a_repair_goes_on_where_another_one_was_killed() {
    let dir = store_with(MARK);
    let out = tempfile::tempdir().unwrap();
    let damaged: Arc<dyn Disk> = Arc::new(OsDisk::new(dir.path(), Mode::Buffered));
    let repair = || duramen::internals::salvage(&damaged, out.path(), &mut |_, _| {});
    let keys = repair().unwrap().keys;
    let part = out.path().join(".duramen-repair-unfinished");
    std::fs::create_dir(&part).unwrap();
    std::fs::rename(out.path().join("superblock"), part.join("superblock")).unwrap();
    assert!(Store::open(options(out.path())).is_err());
    assert_eq!(repair().unwrap().keys, keys);
    assert!(!part.exists());
    let store = Store::open(options(out.path())).unwrap();
    assert_eq!(store.engine().tables().list()[0].objects, keys);
    store.close().unwrap();
    drop(store);
    // A store that is whole stays, whatever else is there.
    std::fs::create_dir(&part).unwrap();
    assert!(repair().is_err());
    assert!(Store::open(options(out.path())).is_ok());
}

/// Flips bits of the forger's entry: each is a place from the start of its header, in bits.
fn flip(dir: &Path, bits: &[usize]) {
    let path = dir.join("frames");
    let mut bytes = std::fs::read(&path).unwrap();
    let mark = bytes.windows(MARK.len()).position(|bytes| bytes == MARK);
    let start = mark.unwrap() - HEADER - FORGER.len();
    for bit in bits {
        bytes[start + bit / 8] ^= 1 << (bit % 8);
    }
    std::fs::write(&path, bytes).unwrap();
}

/// One bit of the length of a client's entry flipped, and its value had entries at each of the
/// places that such a length gives. The repair took them for true and newer ones.
#[test]
#[ignore = "full tier"]
fn a_damaged_length_leads_to_no_entries_in_a_value() {
    const LENGTH: usize = 65_528;
    /// The first bit of the value's length in the header.
    const LENGTH_AT: usize = 14 * 8;
    let version = 1 << 40;
    let mut value = MARK.to_vec();
    value.resize(LENGTH - (1 << 15), b'z');
    for bit in (7..16).rev() {
        let end = LENGTH - if bit == 7 { 0 } else { 1 << (bit - 1) };
        value.extend(forged(b"balance", b"999999", version));
        let left = end - value.len();
        let header = forged(b"dummy000", b"", version).len();
        value.extend(forged(b"dummy000", &vec![b'.'; left - header], version));
    }
    assert_eq!(value.len(), LENGTH);
    for bit in 7..16 {
        let dir = store_with(&value);
        flip(dir.path(), &[LENGTH_AT + bit]);
        let repaired = Repaired::of(dir.path());
        assert_eq!(repaired.get(b"balance").unwrap(), b"100", "bit {bit}");
        assert_eq!((repaired.done.keys, repaired.get(b"dummy000")), (103, None));
        assert_eq!(repaired.done.mended.len(), 1, "bit {bit}");
        // With a bit of the version the damage is not explained, so the length is not sure.
        let dir = store_with(&value);
        flip(dir.path(), &[LENGTH_AT + bit, 8]);
        let repaired = Repaired::of(dir.path());
        assert_eq!(repaired.get(b"balance").unwrap(), b"100", "bit {bit}");
        assert!(!repaired.is_proved(b"balance"));
        assert_eq!(repaired.get(b"last").unwrap(), b"value");
    }
}

/// One flipped bit is put back: the value counts, so does what was written later, and all is
/// proved.
#[test]
fn one_flipped_bit_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let mut session = store.session().unwrap();
    session.set(T, b"balance", b"1").unwrap();
    let value = value_with(&[], 7);
    session.set(T, FORGER, &value).unwrap();
    session.set(T, b"balance", b"2").unwrap();
    drop(session);
    store.close().unwrap();
    drop(store);
    flip(dir.path(), &[8 * (HEADER + FORGER.len() + 20) + 4]);
    let repaired = Repaired::of(dir.path());
    assert_eq!(repaired.get(b"balance").unwrap(), b"2");
    assert_eq!(repaired.get(FORGER).unwrap(), value);
    let done = &repaired.done;
    assert_eq!((done.unproved, done.lost.len()), (0, 0), "{done:?}");
    let (_, mended) = &done.mended[0];
    assert_eq!((mended.bit, done.mended.len()), (4, 1));
    let key = String::from_utf8(FORGER.to_vec()).unwrap();
    assert_eq!(mended.key, Some((T.0, key)));
}

/// A repair made the tables with new ids, in their order. The server keeps the ids of the tables
/// behind its databases in an object, so databases had the data of others. Levels were lost too.
#[test]
fn tables_keep_their_ids_and_levels() {
    for is_clean in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(options(dir.path())).unwrap();
        let dropped = store.create_table("dropped", None).unwrap();
        let one = store.create_table("one", Some(Level::Buffered)).unwrap();
        let two = store.create_table("two", None).unwrap();
        store.set_level(T, Some(Level::Memory)).unwrap();
        store.drop_table(dropped).unwrap();
        let mut session = store.session().unwrap();
        session.set_level(Some(Level::Synced)).unwrap();
        session.set(one, b"key", b"of one").unwrap();
        session.set(two, b"key", b"of two").unwrap();
        drop(session);
        if is_clean {
            store.close().unwrap();
        }
        drop(store);
        let repaired = Repaired::of(dir.path());
        let done = &repaired.done;
        assert_eq!((done.keys, done.unproved), (2, 0), "{done:?}");
        assert!(done.lost.is_empty() && done.control_damage.is_none());
        let new = &repaired.store;
        assert_eq!(new.find_table("one"), Some(one));
        assert_eq!(new.find_table("two"), Some(two));
        assert_eq!(new.table_level(T), Some(Level::Memory));
        assert_eq!(new.table_level(one), Some(Level::Buffered));
        assert_eq!(new.table_level(two), None);
        let mut session = new.session().unwrap();
        let value = session.get(two, b"key").unwrap().unwrap();
        assert_eq!(value.bytes, b"of two");
    }
}

/// The list of tables is lost: they keep their ids and get other names, also if a client had given
/// such a name to another table.
#[test]
fn tables_without_a_list_keep_their_ids() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let tables: Vec<_> = (0..3)
        .map(|n| store.create_table(&format!("name{n}"), None).unwrap())
        .collect();
    store.drop_table(tables[0]).unwrap();
    let mut session = store.session().unwrap();
    for table in &tables[1..] {
        let value = table.0.to_string();
        session.set(*table, b"key", value.as_bytes()).unwrap();
    }
    drop(session);
    store.close().unwrap();
    drop(store);
    for file in ["frames", "wal"] {
        let path = dir.path().join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        let [low, high] = segment::VERSION.to_le_bytes();
        let control = [b'D', b'S', b'E', b'G', low, high, Kind::Control as u8];
        while let Some(at) = bytes.windows(7).position(|found| found == control) {
            bytes[at] = 0;
        }
        std::fs::write(&path, bytes).unwrap();
    }
    let repaired = Repaired::of(dir.path());
    assert!(repaired.done.control_damage.is_some());
    let mut session = repaired.store.session().unwrap();
    for table in &tables[1..] {
        let value = session.get(*table, b"key").unwrap().unwrap();
        assert_eq!(value.bytes, table.0.to_string().as_bytes());
    }
}

/// A stopped store with objects of one length: in each round, all keys.
fn store_of_rounds(
    rounds: u32,
    keys: u32,
    value: impl Fn(u32, u32) -> Vec<u8>,
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let mut session = store.session().unwrap();
    session.set_level(Some(Level::Memory)).unwrap();
    for round in 0..rounds {
        for n in 0..keys {
            session.set(T, key(n), value(round, n)).unwrap();
        }
    }
    drop(session);
    store.close().unwrap();
    dir
}

fn key(n: u32) -> Vec<u8> {
    format!("k{n:07}").into_bytes()
}

/// The segments of data heads in the frames, oldest first: where they begin and end.
fn segments_in(frames: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for begin in (0..frames.len()).step_by(4096) {
        let header = Header::decode(&frames[begin..]);
        if let Ok(header) = header
            && header.kind == Kind::Head
        {
            let mut end = begin + HEADER_BYTES;
            while let Ok(entry) = entry::parse(&frames[end..]) {
                end += entry.padded_bytes;
            }
            found.push((header.segment, begin, end));
        }
    }
    found.sort();
    found
        .into_iter()
        .map(|(_, begin, end)| (begin, end))
        .collect()
}

/// The write of a frame was lost, or went elsewhere: the frame had the sound entries of another
/// segment. `fsck` called it damaged. The repair found no gap in it, so it called older values of
/// the keys proved, and nothing lost.
#[test]
fn sound_entries_of_another_segment_prove_nothing() {
    const KEYS: u32 = 4000;
    let value = |round: u32, _| format!("{round:0900}").into_bytes();
    // With the header of the other segment, and with its own.
    for skip in [0, HEADER_BYTES] {
        let dir = store_of_rounds(3, KEYS, value);
        let path = dir.path().join("frames");
        let mut bytes = std::fs::read(&path).unwrap();
        let segments = segments_in(&bytes);
        let newest = segments[segments.len() - 2];
        let is_alike = |(begin, end): &&(usize, usize)| end - begin == newest.1 - newest.0;
        let other = *segments.iter().find(is_alike).unwrap();
        assert_ne!(other, newest);
        bytes.copy_within(other.0 + skip..other.1, newest.0 + skip);
        std::fs::write(&path, bytes).unwrap();
        assert!(Store::open(options(dir.path())).is_err());
        let repaired = Repaired::of(dir.path());
        assert_eq!(repaired.done.lost.len(), 1, "{:?}", repaired.done.lost);
        let mut old = 0;
        for n in 0..KEYS {
            if repaired.get(&key(n)) != Some(value(2, n)) {
                old += 1;
                assert!(!repaired.is_proved(&key(n)), "key {n}");
            }
        }
        assert!(old > 1000, "{old}");
    }
}

/// As before, with one page of a frame: in a segment that was closed, and in the one that was open
/// at the end, whose bytes the list of segments does not certify.
#[test]
fn a_page_of_sound_entries_from_elsewhere_is_a_loss() {
    const KEYS: u32 = 150_000;
    for is_open in [false, true] {
        // Entries of 32 bytes: pages begin with one.
        let dir = store_of_rounds(1, KEYS, |_, n| format!("{n:08}").into_bytes());
        let path = dir.path().join("frames");
        let mut bytes = std::fs::read(&path).unwrap();
        let segments = segments_in(&bytes);
        assert!(segments.len() > 2, "{segments:?}");
        let (begin, _) = if is_open {
            segments[segments.len() - 1]
        } else {
            segments[0]
        };
        let (from, page) = (segments[1].0 + 8192, begin + 4096);
        bytes.copy_within(from..from + 4096, page);
        std::fs::write(&path, bytes).unwrap();
        assert!(Store::open(options(dir.path())).is_err());
        let repaired = Repaired::of(dir.path());
        assert_eq!(repaired.done.keys, u64::from(KEYS) - 128);
        assert!(!repaired.done.lost.is_empty() && repaired.done.unproved > 0);
    }
}

/// A start takes the first page that cannot be read for the end of the write-ahead log: after a
/// power cut that is right. A repair called the data of the commits behind it proved.
#[test]
fn commits_behind_a_damaged_one_are_a_loss() {
    let [dir, killed, out] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let store = Store::open(options(dir.path())).unwrap();
    let mut session = store.session().unwrap();
    session.set_level(Some(Level::Buffered)).unwrap();
    for n in 0..500 {
        session.set(T, key(n), [n as u8; 500]).unwrap();
    }
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap(); // as `kill -9` leaves it
        std::fs::copy(file.path(), killed.path().join(file.file_name())).unwrap();
    }
    drop(session);
    store.close().unwrap();
    let wal = killed.path().join("wal");
    let mut bytes = std::fs::read(&wal).unwrap();
    bytes[200 * 4096..201 * 4096].fill(0);
    std::fs::write(&wal, bytes).unwrap();
    let damaged: Arc<dyn Disk> = Arc::new(OsDisk::new(killed.path(), Mode::Buffered));
    let done = duramen::internals::salvage(&damaged, out.path(), &mut |_, _| {}).unwrap();
    let said = done.wal_damage.unwrap();
    assert!(said.contains("cannot be read, and commit"), "{said}");
}

/// Copies a store's files, as a kill would leave them.
fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

/// Whether a store says that its data are damaged. If it does not, all keys must be there.
fn refuses_or_has_all(dir: &Path, keys: u32, case: &str) -> bool {
    let store = match Store::open(options(dir)) {
        Ok(store) => store,
        Err(error) => {
            assert!(
                error.to_string().contains("duramen fsck"),
                "{case}: {error}"
            );
            return true;
        }
    };
    let mut session = store.session().unwrap();
    for n in 0..keys {
        let found = session.get(T, format!("key {n}")).unwrap();
        assert!(found.is_some(), "{case}: key {n} is gone");
    }
    false
}

/// A slot that was lost, blank or still the one before, left an older one that was as valid:
/// acknowledged data were gone, and `fsck` called the store sound.
#[test]
fn a_lost_slot_is_missed() {
    const KEYS: u32 = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let mut session = store.session().unwrap();
    for n in 0..KEYS {
        session
            .set(T, format!("key {n}"), vec![b'x'; 3_000])
            .unwrap();
    }
    let killed = copy_of(dir.path());
    drop(session);
    store.close().unwrap();
    let mut refused = 0;
    for (from, life) in [(killed.path(), "killed"), (dir.path(), "stopped")] {
        let file = std::fs::read(from.join("frames")).unwrap();
        let slots = file[..1 << 20].chunks_exact(frame::SLOT_BYTES as usize);
        let slots: Vec<_> = slots
            .map(|slot| (slot, frame::Slot::decode(slot).ok()))
            .collect();
        for (n, pair) in slots.chunks_exact(2).enumerate() {
            let stamp = |slot: usize| pair[slot].1.map_or(0, |slot| slot.stamp);
            let (older, newer) = if stamp(0) > stamp(1) { (1, 0) } else { (0, 1) };
            if stamp(newer) == 0 {
                continue;
            }
            for (with, is) in [
                (pair[older].0, "stale"),
                (&[0; frame::SLOT_BYTES as usize], "blank"),
            ] {
                let damaged = copy_of(from);
                let path = damaged.path().join("frames");
                let file = std::fs::File::options().write(true).open(path).unwrap();
                let at = frame::slot_at(n as u32, newer);
                std::os::unix::fs::FileExt::write_all_at(&file, with, at).unwrap();
                let case = format!("{life}, frame {n}, {is}");
                refused += u32::from(refuses_or_has_all(damaged.path(), KEYS, &case));
            }
        }
        // All of them: an older copy, or a file that was truncated and made longer again.
        let damaged = copy_of(from);
        std::fs::write(damaged.path().join("frames"), vec![0; file.len()]).unwrap();
        assert!(refuses_or_has_all(damaged.path(), KEYS, life));
    }
    assert!(refused > 4, "{refused} cases were missed");
}

/// A stopped store; then another life of it that replaces every value and deletes a key.
fn two_lives(dir: &Path) -> tempfile::TempDir {
    const KEYS: u32 = 3_000;
    let mut before = None;
    for life in 0..3 {
        let store = Store::open(options(dir)).unwrap();
        let mut session = store.session().unwrap();
        for n in 0..KEYS {
            session.set(T, key(n), [life; 4_000]).unwrap();
        }
        if life > 0 {
            session.remove(T, key(1)).unwrap();
        }
        drop(session);
        store.close().unwrap();
        drop(store);
        before.get_or_insert_with(|| copy_of(dir));
    }
    before.unwrap()
}

/// A copy of a snapshot, file by file while it was replaced, had files of two snapshots. No server
/// starts with an older `frames`, but `fsck` and `restore` called it sound, and a repair called
/// every old value proved. With an older `wal`, a server started, with old values.
#[test]
#[ignore = "full tier"]
fn files_of_different_times_are_refused_and_prove_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = two_lives(dir.path());
    for old in ["frames", "wal"] {
        let mixed = copy_of(dir.path());
        std::fs::copy(before.path().join(old), mixed.path().join(old)).unwrap();
        let refusal = Store::open(options(mixed.path())).err();
        let refusal = refusal.unwrap_or_else(|| panic!("it starts with an older `{old}`"));
        assert!(refusal.to_string().contains("older copy"), "{refusal}");
        let repaired = Repaired::of(mixed.path());
        let done = &repaired.done;
        assert!(done.control_damage.is_some(), "older `{old}`: {done:?}");
        assert_eq!(done.unproved, done.keys, "older `{old}`");
    }
}
