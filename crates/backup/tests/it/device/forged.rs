//! A client's bytes with the form of the log's own. An outsider stored heads of commits as a value:
//! each had the server's id, a far lsn and a right checksum. Some of them were written at the start
//! of a block. After a crash the server took them for proof that acknowledged commits were missing,
//! and refused to start. A whole commit of that kind, left at the place where a later lap ends, was
//! read as the log's next one.

use super::*;
use duramen_format::wal::{COMMIT_BYTES, RECORD_BYTES, RING_AT, Record};

const BLOCK: usize = 4096;
/// Place of a commit's first payload.
const PAYLOAD_AT: usize = COMMIT_BYTES + RECORD_BYTES;

fn options() -> Options {
    Options {
        bypass_bytes: u32::MAX, // everything goes through the log
        ..Options::default()
    }
}

fn open(store: &Arc<OsDisk>) -> Backup {
    let opened = Backup::open(store.clone(), &options(), &Expected::default());
    opened.unwrap().0
}

fn wal(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("store/wal")).unwrap()
}

/// The head of the commit at a block of the ring.
fn head_at(wal: &[u8], block: usize) -> [u8; COMMIT_BYTES] {
    let at = RING_AT as usize + block * BLOCK;
    let head = wal[at..at + COMMIT_BYTES].try_into().unwrap();
    assert!(wal[at..].starts_with(b"DCMT"));
    head
}

fn put(head: &mut [u8], at: usize, field: &[u8]) {
    head[at..at + field.len()].copy_from_slice(field);
}

fn seal(head: &mut [u8; COMMIT_BYTES]) {
    let crc = crc32c::crc32c(&head[..60]);
    put(head, 60, &crc.to_le_bytes());
}

/// Stores values full of this head, and checks that it is at places where commits begin.
fn store_heads(folder: &Path, backup: &Backup, head: &[u8]) {
    let mut bytes = Vec::new();
    for value in 1..=4 {
        let from = bytes.len();
        while bytes.len() < value * 64_800 {
            bytes.extend_from_slice(head);
            bytes.extend_from_slice(&[0; 8]); // so that it is at each place of a block some time
        }
        let chunk = Chunk {
            segment: SegmentId(50),
            epoch: 1,
            kind: Kind::Head,
            offset: from as u32,
            bytes: &bytes[from..],
            certificate: Some(Certificate::of(&bytes)),
            open: from == 0,
            close: false,
        };
        backup.stage(chunk).unwrap();
        backup.commit(Level::Synced).unwrap();
    }
    let wal = wal(folder);
    let blocks = wal[RING_AT as usize..].chunks(BLOCK);
    assert!(blocks.filter(|block| block.starts_with(head)).count() > 2);
}

#[test]
fn heads_of_commits_in_values_are_no_commits() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path(), Mode::Buffered, true);
    let backup = Backup::create(store.clone(), &options(), &GEOMETRY, &identity()).unwrap();
    Writer { backup: &backup }.append(1, 0, 100, false).unwrap();
    backup.commit(Level::Synced).unwrap();
    drop(backup); // killed, as always here
    // A client that has seen the files of another day can make all of this.
    let mut head = head_at(&wal(folder.path()), 0);
    put(&mut head, 16, &(1u64 << 40).to_le_bytes());
    put(&mut head, 32, &(1u64 << 40).to_le_bytes());
    seal(&mut head);
    let backup = open(&store);
    store_heads(folder.path(), &backup, &head);
    drop(backup);
    let backup = open(&store);
    check(&backup, 1, 100);
    assert_eq!(backup.replicas().len(), 2);
}

#[test]
fn commits_of_a_copy_that_went_its_own_way_are_no_commits() {
    let (folder, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = disk(folder.path(), Mode::Buffered, true);
    let backup = Backup::create(store.clone(), &options(), &GEOMETRY, &identity()).unwrap();
    Writer { backup: &backup }.append(1, 0, 100, false).unwrap();
    backup.commit(Level::Synced).unwrap();
    drop(backup);
    fs::create_dir(copied.path().join("store")).unwrap();
    for file in ["superblock", "wal", "frames"] {
        let from = folder.path().join("store").join(file);
        fs::copy(from, copied.path().join("store").join(file)).unwrap();
    }
    let copy = disk(copied.path(), Mode::Buffered, true);
    let backup = open(&copy);
    for length in 101..131 {
        let writer = Writer { backup: &backup };
        writer.append(1, length - 1, length, false).unwrap();
        backup.commit(Level::Synced).unwrap();
    }
    drop(backup);
    let last = head_at(&wal(copied.path()), 30);
    let backup = open(&store);
    store_heads(folder.path(), &backup, &last);
    drop(backup);
    check(&open(&store), 1, 100);
}

/// A commit that a client made; every field that it can know is right.
fn whole_commit(template: &[u8; COMMIT_BYTES], lsn: u64) -> Vec<u8> {
    let mut body = Vec::new();
    let record = Record {
        segment: SegmentId(99),
        log: identity().server,
        epoch: 1,
        offset: 0,
        payload: b"forged",
        certificate: Some(Certificate::of(b"forged")),
        open: true,
        close: false,
        kind: Kind::Head,
        frame: None,
    };
    record.append_to(&mut body);
    let mut head = *template;
    put(&mut head, 16, &lsn.to_le_bytes());
    put(&mut head, 24, &1000u64.to_le_bytes());
    put(&mut head, 32, &(lsn - 1).to_le_bytes());
    put(&mut head, 40, &(body.len() as u32).to_le_bytes());
    put(&mut head, 44, &1u32.to_le_bytes());
    put(&mut head, 48, &crc32c::crc32c(&body).to_le_bytes());
    seal(&mut head);
    [&head[..], &body].concat()
}

#[test]
fn a_commit_in_a_value_where_a_later_lap_ends_is_not_its_next() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path(), Mode::Buffered, true);
    let backup = Backup::create(store.clone(), &options(), &GEOMETRY, &identity()).unwrap();
    Writer { backup: &backup }.append(1, 0, 100, false).unwrap();
    backup.commit(Level::Synced).unwrap();
    drop(backup);
    let template = head_at(&wal(folder.path()), 0);
    let backup = open(&store);
    let writer = Writer { backup: &backup };
    let ring = (GEOMETRY.wal_bytes - RING_AT) as usize / BLOCK;
    // Most of the first lap: values that have such a commit at the start of each block.
    let (values, blocks) = (4, 59);
    // The lsn that a commit at block 0 of the second lap has, if all others take one block.
    let second_lap = (1 + values + (ring - 1 - values * blocks)) as u64 + 1;
    let mut bytes = Vec::new();
    for value in 0..values {
        let from = bytes.len();
        let first = 1 + value * blocks; // its block in the ring
        bytes.resize(from + blocks * BLOCK - PAYLOAD_AT, 0);
        for block in 1..blocks {
            let forged = whole_commit(&template, second_lap + (first + block) as u64);
            put(&mut bytes, from + block * BLOCK - PAYLOAD_AT, &forged);
        }
        let chunk = Chunk {
            segment: SegmentId(50),
            epoch: 1,
            kind: Kind::Head,
            offset: from as u32,
            bytes: &bytes[from..],
            certificate: Some(Certificate::of(&bytes)),
            open: from == 0,
            close: value + 1 == values,
        };
        backup.stage(chunk).unwrap();
        backup.commit(Level::Synced).unwrap();
    }
    flush_all(&backup);
    // Up to the end of the ring, and two commits further.
    let mut length = 100;
    loop {
        writer.append(1, length, length + 1, false).unwrap();
        length += 1;
        if backup.commit(Level::Synced).unwrap().lsn == second_lap + 1 {
            break;
        }
    }
    let next = &wal(folder.path())[RING_AT as usize + 2 * BLOCK..];
    assert!(next.starts_with(&whole_commit(&template, second_lap + 2)));
    drop(backup);
    let backup = open(&store);
    let found: Vec<u64> = backup.replicas().iter().map(|r| r.segment.0).collect();
    assert_eq!(found, [1, 50]);
    check(&backup, 1, length);
}

/// A start that failed for lack of memory had written a header, and the mark of the clean end was
/// gone: the next start searched the whole log for its end, and found clients' data there.
#[test]
fn opening_alone_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path(), Mode::Buffered, true);
    let backup = Backup::create(store.clone(), &options(), &GEOMETRY, &identity()).unwrap();
    let append = |backup: &Backup, from, to| {
        Writer { backup }.append(1, from, to, false).unwrap();
        backup.commit(Level::Synced).unwrap();
    };
    append(&backup, 0, 100);
    backup.close().unwrap();
    drop(backup);
    let files =
        || ["superblock", "wal", "frames"].map(|f| fs::read(folder.path().join("store").join(f)));
    let before = files().map(Result::unwrap);
    for _ in 0..3 {
        drop(open(&store));
        assert!(files().map(Result::unwrap) == before);
    }
    // The first commit removes the mark.
    let backup = open(&store);
    append(&backup, 100, 200);
    append(&backup, 200, 300);
    drop(backup);
    check(&open(&store), 1, 300);
    let path = folder.path().join("store/wal");
    let mut bytes = fs::read(&path).unwrap();
    let first = bytes[RING_AT as usize..].chunks(BLOCK);
    let new = first.map(|block| u64::from_le_bytes(block[16..24].try_into().unwrap()));
    let block = new.enumerate().find(|(_, lsn)| *lsn == 2).unwrap().0;
    bytes[RING_AT as usize + block * BLOCK + 70] ^= 3; // one bit would be put back
    fs::write(&path, bytes).unwrap();
    let opened = Backup::open(store, &options(), &Expected::default());
    assert!(matches!(
        opened.map(|_| ()),
        Err(Error::DamagedWal { lsn: 2, .. })
    ));
}

/// Either header alone identifies the commits of this opening: none of them is lost with the newer
/// header.
#[test]
fn one_header_that_goes_bad_takes_no_commit_with_it() {
    for header in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let store = disk(folder.path(), Mode::Buffered, true);
        let backup = Backup::create(store.clone(), &options(), &GEOMETRY, &identity()).unwrap();
        Writer { backup: &backup }.append(1, 0, 100, false).unwrap();
        backup.commit(Level::Synced).unwrap();
        drop(backup);
        let backup = open(&store);
        Writer { backup: &backup }
            .append(1, 100, 200, false)
            .unwrap();
        backup.commit(Level::Synced).unwrap();
        drop(backup);
        let path = folder.path().join("store/wal");
        let mut bytes = fs::read(&path).unwrap();
        bytes[header * BLOCK + 33] ^= 1;
        fs::write(&path, bytes).unwrap();
        check(&open(&store), 1, 200);
    }
}
