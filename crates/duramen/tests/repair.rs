//! The repair of a damaged store whose clients chose their values to mislead it, and a repair that
//! was interrupted.

use duramen::internals::Salvaged;
use duramen::{Options, Store};
use duramen_backup::Mode;
use duramen_backup::os::OsDisk;
use duramen_base::ids::SegmentId;
use duramen_engine::TableId;
use duramen_format::entry::{NewObject, NewTombstone, VERSION_MAX};
use std::path::Path;
use std::sync::Arc;

const T: TableId = TableId::DEFAULT;
/// Begins the forger's value: the place to damage.
const MARK: &[u8; 16] = b"MARKMARKMARKMARK";
/// Of 8 bytes: the value behind it begins at a multiple of 8, as entries do.
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
        let damaged = OsDisk::new(dir, Mode::Buffered);
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
/// another one. One bit of this value flipped; the repair then searched the rest of the value for
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
    damage(dir.path(), 0, 0x20);
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
    damage(dir.path(), kind, 0x40);
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
        damage(dir.path(), kind, 0x40);
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
    let damaged = OsDisk::new(dir.path(), Mode::Buffered);
    let repair = || duramen::internals::salvage(&damaged, out.path(), &mut |_, _| {});
    let keys = repair().unwrap().keys;
    let part = out.path().join(".duramen-repair-unfinished");
    std::fs::create_dir(&part).unwrap();
    std::fs::rename(out.path().join("superblock"), part.join("superblock")).unwrap();
    assert!(Store::open(options(out.path())).is_err());
    assert_eq!(repair().unwrap().keys, keys);
    assert!(!part.exists());
    let store = Store::open(options(out.path())).unwrap();
    assert_eq!(store.engine().tables()[0].objects, keys);
    store.close().unwrap();
    drop(store);
    // A store that is whole stays, whatever else is there.
    std::fs::create_dir(&part).unwrap();
    assert!(repair().is_err());
    assert!(Store::open(options(out.path())).is_ok());
}
