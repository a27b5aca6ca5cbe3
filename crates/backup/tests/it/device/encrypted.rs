//! Encrypted stores on real files: nothing of the data is on the disk, and no store opens without
//! its key. Nothing of a refused store changes.

use super::*;
use duramen_backup::disk::OpenHow;
use duramen_backup::restore::Restore;
use duramen_backup::{inspect, key_of, rotate};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

const SECRET: &[u8] = b"the password of a client ";

fn key() -> KeySource {
    KeySource::Held(Arc::new(MasterKey::random().unwrap()))
}

fn keyed(dir: &Path, key: Option<&KeySource>) -> Arc<dyn Disk> {
    let disk = Arc::new(OsDisk::new(dir, Mode::Buffered));
    duramen_backup::disk::keyed(disk, key.cloned())
}

fn secrets(length: usize) -> Vec<u8> {
    SECRET.iter().copied().cycle().take(length).collect()
}

/// Stores secrets: in a frame, through the write-ahead log alone, and straight to a frame.
fn fill(disk: Arc<dyn Disk>) -> Backup {
    let backup = Backup::create(disk, &Options::default(), &GEOMETRY, &identity()).unwrap();
    for (segment, length) in [(1, 5_000), (2, 300_001), (3, 70_000)] {
        stage(&backup, segment, &secrets(length), segment != 1);
    }
    flush_all(&backup);
    backup
}

/// Stores a whole segment durably.
fn stage(backup: &Backup, segment: u64, all: &[u8], close: bool) {
    let chunk = Chunk {
        segment: SegmentId(segment),
        epoch: 1,
        kind: Kind::Head,
        offset: 0,
        bytes: all,
        certificate: Some(Certificate::of(all)),
        open: true,
        close,
    };
    backup.stage(chunk).unwrap();
    backup.commit(Level::Synced).unwrap();
}

fn read_all(backup: &Backup) {
    for (segment, length) in [(1, 5_000), (2, 300_001), (3, 70_000)] {
        let mut into = vec![0; 1 << 20];
        let info = backup.read(SegmentId(segment), &mut into).unwrap();
        assert_eq!(info.length as usize, length);
        assert!(into[..length] == secrets(length), "segment {segment}");
    }
}

fn opened(disk: Arc<dyn Disk>) -> Result<Backup, Error> {
    let opened = Backup::open(disk, &Options::default(), &Expected::default());
    opened.map(|(backup, _)| backup)
}

/// Bytes of all files.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

fn shows(dir: &Path, text: &[u8]) -> Option<PathBuf> {
    let files = files(dir);
    let found = files
        .iter()
        .find(|(_, bytes)| bytes.windows(text.len()).any(|some| some == text));
    found.map(|(path, _)| path.clone())
}

#[test]
fn nothing_of_the_data_is_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, secret) = (folder.path().join("plain"), folder.path().join("secret"));
    let key = key();
    drop(fill(keyed(&plain, None)));
    let backup = fill(keyed(&secret, Some(&key)));
    read_all(&backup);
    assert!(backup.encryption_key().is_some());
    drop(backup);
    for text in [&SECRET[..12], b"home"] {
        assert!(shows(&plain, text).is_some(), "the test would find it");
        assert_eq!(shows(&secret, text), None);
    }
    read_all(&opened(keyed(&secret, Some(&key))).unwrap());
}

/// encryption::E1: the files of a refused store stay as they are.
#[test]
fn no_store_opens_without_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, secret) = (folder.path().join("plain"), folder.path().join("secret"));
    let (right, wrong) = (key(), key());
    drop(fill(keyed(&plain, None)));
    drop(fill(keyed(&secret, Some(&right))));
    let lost = KeySource::File(folder.path().join("lost"));
    let before = files(&secret);
    let cases: [(&Path, Option<&KeySource>, &str); 4] = [
        (&secret, None, "no key is given"),
        (&secret, Some(&wrong), "Name the right one"),
        (&secret, Some(&lost), "cannot read the encryption key in"),
        (&plain, Some(&right), "is not encrypted"),
    ];
    for (dir, key, text) in cases {
        let refused = opened(keyed(dir, key)).err().unwrap().to_string();
        assert!(refused.contains(text), "{refused}");
        let inspected = inspect::Inspector::new(&*keyed(dir, key)).err().unwrap();
        assert_eq!(inspected.to_string(), refused);
    }
    assert!(files(&secret) == before);
    assert!(Backup::exists(&*keyed(&secret, None)).unwrap());
    read_all(&opened(keyed(&secret, Some(&right))).unwrap());
    // A box of another store does not open, although its key is right.
    let other = folder.path().join("other");
    drop(fill(keyed(&other, Some(&right))));
    let mut block = fs::read(secret.join("superblock")).unwrap();
    let theirs = fs::read(other.join("superblock")).unwrap();
    for at in [0, 65536] {
        block[at + 132..at + 280].copy_from_slice(&theirs[at + 132..at + 280]);
        let crc = crc32c::crc32c(&block[at..at + 4092]);
        block[at + 4092..at + 4096].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(secret.join("superblock"), block).unwrap();
    let refused = opened(keyed(&secret, Some(&right)));
    assert!(matches!(refused.err(), Some(Error::DamagedKey { .. })));
}

/// Damage of cipher text is damage of the data.
#[test]
fn changed_bytes_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let key = key();
    drop(fill(keyed(folder.path(), Some(&key))));
    let path = folder.path().join("frames");
    let mut frames = fs::read(&path).unwrap();
    let middle = |n: usize| (1 << 20) + n * (1 << 20) + 30_000;
    for n in 0..GEOMETRY.frames as usize {
        if let Some(byte) = frames.get_mut(middle(n)) {
            *byte ^= 1;
        }
    }
    fs::write(&path, &frames).unwrap();
    let backup = opened(keyed(folder.path(), Some(&key))).unwrap();
    let mut into = vec![0; 1 << 20];
    for segment in [2, 3] {
        let read = backup.read(SegmentId(segment), &mut into);
        assert!(
            matches!(read, Err(Error::DamagedSegment { .. })),
            "{segment}"
        );
    }
}

/// Exchanges two sectors of a file.
fn exchange(path: &Path, one: usize, other: usize) {
    let mut bytes = fs::read(path).unwrap();
    let sector = |at: usize| bytes[at..at + 512].to_vec();
    let (first, second) = (sector(one), sector(other));
    let is_written = |sector: &[u8]| sector.iter().any(|byte| *byte != 0);
    assert!(is_written(&first) && is_written(&second) && first != second);
    bytes[one..one + 512].copy_from_slice(&second);
    bytes[other..other + 512].copy_from_slice(&first);
    fs::write(path, bytes).unwrap();
}

/// sectors::X1: a sector at another place is noise. In a plain store the checksums alone find it.
#[test]
fn exchanged_sectors_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let key = key();
    drop(fill(keyed(folder.path(), Some(&key))));
    let frames = folder.path().join("frames");
    let first = (1 << 20) + 32_768;
    exchange(&frames, first, first + 512);
    let backup = opened(keyed(folder.path(), Some(&key))).unwrap();
    let mut into = vec![0; 1 << 20];
    let damaged = [2, 3].map(|segment| {
        let read = backup.read(SegmentId(segment), &mut into);
        matches!(read, Err(Error::DamagedSegment { .. }))
    });
    assert_eq!(damaged.iter().filter(|is| **is).count(), 1, "{damaged:?}");
    drop(backup);
    exchange(&frames, first, first + 512);
    read_all(&opened(keyed(folder.path(), Some(&key))).unwrap());
}

/// The same in a commit that others follow: the store does not open as if the log ended there.
#[test]
fn exchanged_sectors_of_the_write_ahead_log_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let key = key();
    let disk = keyed(folder.path(), Some(&key));
    let backup = Backup::create(disk, &Options::default(), &GEOMETRY, &identity()).unwrap();
    let all = secrets(60_000);
    for end in [20_000, 40_000, 60_000] {
        let chunk = Chunk {
            segment: SegmentId(1),
            epoch: 1,
            kind: Kind::Head,
            offset: end as u32 - 20_000,
            bytes: &all[end - 20_000..end],
            certificate: Some(Certificate::of(&all[..end])),
            open: end == 20_000,
            close: false,
        };
        backup.stage(chunk).unwrap();
        backup.commit(Level::Synced).unwrap();
    }
    drop(backup);
    let wal = folder.path().join("wal");
    let second_commit = duramen_format::wal::RING_AT as usize + 24_576;
    let at = second_commit + 8192;
    exchange(&wal, at, at + 512);
    let refused = opened(keyed(folder.path(), Some(&key))).err();
    assert!(
        matches!(refused, Some(Error::DamagedWal { .. })),
        "{refused:?}"
    );
    exchange(&wal, at, at + 512);
    assert!(opened(keyed(folder.path(), Some(&key))).is_ok());
}

/// Not found: an older state of the whole store. docs/security.md says so.
#[test]
fn an_older_copy_of_all_files_opens() {
    let folder = tempfile::tempdir().unwrap();
    let key = key();
    drop(fill(keyed(folder.path(), Some(&key))));
    let before = files(folder.path());
    let backup = opened(keyed(folder.path(), Some(&key))).unwrap();
    stage(&backup, 4, &secrets(9_000), true);
    drop(backup);
    assert!(files(folder.path()) != before);
    for (path, bytes) in before {
        fs::write(path, bytes).unwrap();
    }
    let backup = opened(keyed(folder.path(), Some(&key))).unwrap();
    read_all(&backup);
    let newer = backup.read(SegmentId(4), &mut [0; 1 << 20]);
    assert!(matches!(newer, Err(Error::UnknownSegment { .. })));
}

/// A disk whose writes of the superblock fail from the n-th on, as if the process had ended.
fn failing(dir: &Path, key: &KeySource, after: u64) -> Arc<dyn Disk> {
    struct Failing(Arc<dyn File>, Arc<AtomicU64>);
    impl Front for Failing {
        fn below(&self) -> &dyn File {
            &*self.0
        }
        fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
            match self
                .1
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            {
                Ok(_) => self.0.write_durably(at, bytes),
                Err(_) => Err(io::Error::other("the process has ended")),
            }
        }
    }
    let left = Arc::new(AtomicU64::new(after));
    let wrap = move |file| Arc::new(Failing(file, left.clone())) as Arc<dyn File>;
    Arc::new(Fronted::new(keyed(dir, Some(key)), wrap))
}

/// rotation::R1: while a server has it open; interrupted after each write; and repeated.
#[test]
fn a_rotation_is_whole_or_can_be_repeated() {
    for after in 0..=2 {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let (old, new) = (key(), key());
        let backup = fill(keyed(dir, Some(&old)));
        let id = |key: &KeySource| key.read().unwrap().id();
        let rotated = rotate(&*failing(dir, &old, after), &new);
        assert_eq!(rotated.is_ok(), after == 2);
        let now = key_of(&*keyed(dir, None)).unwrap().unwrap();
        assert_eq!(now, if after == 0 { id(&old) } else { id(&new) });
        read_all(&backup);
        drop(backup);
        let (right, wrong) = if after == 0 {
            (&old, &new)
        } else {
            (&new, &old)
        };
        read_all(&opened(keyed(dir, Some(right))).unwrap());
        assert!(opened(keyed(dir, Some(wrong))).is_err());
        let again = rotate(&*keyed(dir, Some(&old)), &new).unwrap();
        assert_eq!(again.to, id(&new));
        // Neither copy of the superblock opens with the old key.
        for at in [0, 65536] {
            let file = keyed(dir, None)
                .open("superblock", OpenHow::ReadWrite)
                .unwrap();
            let mut kept = vec![0; 4096];
            file.read_at(at, &mut kept).unwrap();
            file.write_at(at, &[0; 4096]).unwrap();
            assert!(opened(keyed(dir, Some(&old))).is_err());
            read_all(&opened(keyed(dir, Some(&new))).unwrap());
            file.write_at(at, &kept).unwrap();
        }
        let third = key();
        assert!(rotate(&*keyed(dir, Some(&old)), &third).is_err());
        rotate(&*keyed(dir, Some(&new)), &third).unwrap();
        read_all(&opened(keyed(dir, Some(&third))).unwrap());
    }
}

/// encryption::E2: a copy is encrypted as its target wants it, with a store key of its own.
#[test]
fn a_store_is_restored_with_another_key_with_the_same_or_with_none() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (key(), key());
    let path = |name: &str| folder.path().join(name);
    drop(fill(keyed(&path("plain"), None)));
    let copy = |from: &str, key: Option<&KeySource>, to: &str, to_key: Option<&KeySource>| {
        let target = keyed(&path(to), to_key);
        let restore = Restore::begin(&*keyed(&path(from), key), target).unwrap();
        restore.copy(&mut |_| {}).unwrap();
        restore.finish().unwrap();
        read_all(&opened(keyed(&path(to), to_key)).unwrap());
        let is_shown = shows(&path(to), &SECRET[..12]).is_some();
        assert_eq!(is_shown, to_key.is_none(), "{from} to {to}");
    };
    copy("plain", None, "encrypted", Some(&first));
    copy("encrypted", Some(&first), "same", Some(&first));
    copy("encrypted", Some(&first), "other", Some(&second));
    copy("other", Some(&second), "decrypted", None);
    let frames = |name: &str| fs::read(path(name).join("frames")).unwrap();
    assert!(frames("encrypted") != frames("same"));
}
