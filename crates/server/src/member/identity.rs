//! The file with a member's identity: its cluster, its disk, and the id of its last life.
//!
//! **Layout**: two slots of 4 KiB, each one line filled with blanks:
//!
//! ```text
//! version cluster disk last id turn checksum
//! ```
//!
//! `last` is slot.generation, or `-`; `id` is the cluster's id, 32 hexadecimal digits. The valid
//! slot with the higher turn counts. A line of version 2 has no `id`; such a line is written until
//! the id is known. Before 0.1.0 the file was one line of version 1 without turn and checksum, and
//! each change wrote a new file. That form can still be read, and is replaced.
//!
//! **Invariants**
//! - I1: a change overwrites one slot in place, which works on a full disk too (unless the file
//!   system writes overwritten data elsewhere, as btrfs does).
//! - I2: the slot that counts is durable before the other slot is overwritten: a torn write leaves
//!   one of the two identities.

use duramen_base::ids::{ClusterId, ServerId};
use duramen_base::open::{open_data, open_to_read};
use duramen_base::private::make_file;
use duramen_format::checksum::crc32c;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) const FILE: &str = "member";
const FRESH: &str = "member.new";
const VERSION: &str = "3";
const VERSION_WITHOUT_ID: &str = "2";
const VERSION_OLD: &str = "1";
/// A torn write affects no more than one slot.
const SLOT_BYTES: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub cluster: String,
    /// Random id of the disk.
    pub disk: u64,
    /// The id of its last life.
    pub last: Option<ServerId>,
    /// The cluster's id; `NONE`: not received yet.
    pub id: ClusterId,
}

#[derive(Debug)]
pub(super) enum Content {
    Absent,
    /// The file has neither form.
    Damaged,
    /// The form before 0.1.0.
    Old(Identity),
    Slots(Identity),
}

/// Reads the file in this directory.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(dir: &Path) -> Result<Content> {
    let mut bytes = Vec::new();
    match open_to_read(&dir.join(FILE)) {
        Ok(mut file) => file.read_to_end(&mut bytes)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Content::Absent),
        Err(error) => return Err(error),
    };
    let content = match newest(&bytes) {
        Some((identity, _)) => Content::Slots(identity),
        None => parse_old(&bytes).map_or(Content::Damaged, Content::Old),
    };
    Ok(content)
}

/// Creates the file, or replaces it by one of the current form: all or nothing. This needs disk
/// space.
///
/// # Errors
/// The file is unchanged.
pub(super) fn make(dir: &Path, identity: &Identity) -> Result<()> {
    let fresh = dir.join(FRESH);
    let made = write_whole(&fresh, identity).and_then(|()| std::fs::rename(&fresh, dir.join(FILE)));
    if made.is_err() {
        // The next call writes it again.
        let _ = std::fs::remove_file(&fresh);
    }
    made?;
    File::open(dir)?.sync_all()
}

fn write_whole(path: &Path, identity: &Identity) -> Result<()> {
    let file = make_file(path)?;
    for turn in 0..2 {
        write(&file, identity, turn)?;
    }
    file.sync_all()
}

/// Changes the file, durably.
///
/// # Errors
/// The old identity or the new one is in the file, also after a crash; the call can be repeated.
pub(super) fn store(dir: &Path, identity: &Identity) -> Result<()> {
    let mut options = File::options();
    options.read(true).write(true);
    let file = match open_data(&mut options, OFlags::empty(), &dir.join(FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return make(dir, identity),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; 2 * SLOT_BYTES];
    let read = file.read_exact_at(&mut bytes, 0);
    let Some((counts, turn)) = read.ok().and_then(|()| newest(&bytes)) else {
        return make(dir, identity);
    };
    // I2: this identity may have been read from the page cache, where a failed write left it.
    write(&file, &counts, turn)?;
    file.sync_data()?;
    if counts != *identity {
        write(&file, identity, turn + 1)?;
        file.sync_data()?;
    }
    Ok(())
}

fn write(file: &File, identity: &Identity, turn: u64) -> Result<()> {
    let Identity {
        cluster,
        disk,
        last,
        id,
    } = identity;
    let last = last.map_or_else(|| "-".to_owned(), |id| id.to_string());
    let line = match *id {
        ClusterId::NONE => format!("{VERSION_WITHOUT_ID} {cluster} {disk:016x} {last} {turn}"),
        id => format!("{VERSION} {cluster} {disk:016x} {last} {id} {turn}"),
    };
    let line = format!("{line} {:08x}", crc32c(line.as_bytes()));
    if line.len() >= SLOT_BYTES {
        return Err(Error::new(ErrorKind::InvalidInput, "the name is too long"));
    }
    let slot = format!("{line:width$}\n", width = SLOT_BYTES - 1);
    file.write_all_at(slot.as_bytes(), turn % 2 * SLOT_BYTES as u64)
}

/// The slot that counts, and its turn.
fn newest(bytes: &[u8]) -> Option<(Identity, u64)> {
    let slots = bytes.chunks_exact(SLOT_BYTES).take(2).enumerate();
    let valid = slots.filter_map(|(at, slot)| {
        let (identity, turn) = parse(slot)?;
        (turn % 2 == at as u64).then_some((identity, turn))
    });
    valid.max_by_key(|(_, turn)| *turn)
}

fn parse(slot: &[u8]) -> Option<(Identity, u64)> {
    let text = std::str::from_utf8(slot).ok()?.trim_ascii_end();
    let (line, sum) = text.rsplit_once(' ')?;
    if u32::from_str_radix(sum, 16).ok()? != crc32c(line.as_bytes()) {
        return None;
    }
    let (line, turn) = line.rsplit_once(' ')?;
    let identity = parse_line(line, VERSION).or_else(|| parse_line(line, VERSION_WITHOUT_ID));
    Some((identity?, turn.parse().ok()?))
}

fn parse_old(bytes: &[u8]) -> Option<Identity> {
    let text = std::str::from_utf8(bytes).ok()?;
    parse_line(text.strip_suffix('\n')?, VERSION_OLD)
}

fn parse_line(line: &str, version: &str) -> Option<Identity> {
    let mut words = line.split(' ');
    if words.next()? != version {
        return None;
    }
    let cluster = words.next()?.to_owned();
    let disk = u64::from_str_radix(words.next()?, 16).ok()?;
    let last = match words.next()? {
        "-" => None,
        id => {
            let (slot, generation) = id.split_once('.')?;
            Some(ServerId::new(slot.parse().ok()?, generation.parse().ok()?))
        }
    };
    let id = match version {
        VERSION => ClusterId::parse(words.next()?).filter(|id| *id != ClusterId::NONE)?,
        _ => ClusterId::NONE,
    };
    words.next().is_none().then_some(Identity {
        cluster,
        disk,
        last,
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(generation: u32) -> Identity {
        Identity {
            cluster: "here".to_owned(),
            disk: 0x01ab,
            last: Some(ServerId::new(3, generation)),
            id: ClusterId::NONE,
        }
    }

    fn known(generation: u32) -> Identity {
        Identity {
            id: ClusterId(0xc1 << 120 | 7),
            ..life(generation)
        }
    }

    fn held(dir: &Path) -> Option<Identity> {
        match read(dir).expect("readable") {
            Content::Slots(identity) => Some(identity),
            _ => None,
        }
    }

    #[test]
    fn what_is_stored_is_read_and_takes_the_same_blocks() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(FILE);
        assert!(matches!(read(dir.path()), Ok(Content::Absent)));
        make(dir.path(), &life(1)).expect("made");
        let inode = std::os::unix::fs::MetadataExt::ino;
        let was = inode(&path.metadata().expect("there"));
        for generation in [1, 2, 3, 3, 4, 5] {
            store(dir.path(), &life(generation)).expect("stored");
            assert_eq!(held(dir.path()), Some(life(generation)));
            let file = path.metadata().expect("there");
            assert_eq!((inode(&file), file.len()), (was, 2 * SLOT_BYTES as u64));
        }
        assert!(!dir.path().join(FRESH).exists());
    }

    /// Each byte of a slot's line may be the first that a power cut kept from the disk, or the
    /// first that reached it.
    #[test]
    fn a_torn_write_leaves_the_identity_before_or_the_new_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(FILE);
        make(dir.path(), &life(1)).expect("made");
        for generation in 2..5 {
            let before = std::fs::read(&path).expect("read");
            store(dir.path(), &life(generation)).expect("stored");
            let after = std::fs::read(&path).expect("read");
            for cut in (0..100).chain(SLOT_BYTES - 1..SLOT_BYTES + 100) {
                for (head, tail) in [(&after, &before), (&before, &after)] {
                    let torn = [&head[..cut], &tail[cut..]].concat();
                    let (found, _) = newest(&torn).expect("one of both");
                    assert!([life(generation - 1), life(generation)].contains(&found));
                }
            }
        }
        // The slot that does not count; a failed write may have left anything there.
        let mut bytes = std::fs::read(&path).expect("read");
        let (_, turn) = newest(&bytes).expect("valid");
        let other = (turn as usize + 1) % 2 * SLOT_BYTES;
        bytes[other..other + SLOT_BYTES].fill(0);
        std::fs::write(&path, &bytes).expect("writes");
        assert_eq!(held(dir.path()), Some(life(4)));
        store(dir.path(), &life(5)).expect("stored");
        assert_eq!(held(dir.path()), Some(life(5)));
    }

    /// The bytes of both versions, which later programs must be able to read.
    #[test]
    fn a_line_with_an_id_and_one_without_are_these_bytes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(FILE);
        for (identity, lines) in [
            (
                life(7),
                [
                    "2 here 00000000000001ab 3.7 0 22e02027",
                    "2 here 00000000000001ab 3.7 1 d08ba324",
                ],
            ),
            (
                known(7),
                [
                    "3 here 00000000000001ab 3.7 c1000000000000000000000000000007 0 d67d7d52",
                    "3 here 00000000000001ab 3.7 c1000000000000000000000000000007 1 2416fe51",
                ],
            ),
        ] {
            make(dir.path(), &identity).expect("made");
            let expected = lines.map(|line| format!("{line:4095}\n")).concat();
            assert_eq!(std::fs::read_to_string(&path).expect("read"), expected);
            assert_eq!(held(dir.path()), Some(identity));
        }
    }

    /// A directory of an older program: its member gets the id when it joins again.
    #[test]
    fn a_file_without_an_id_takes_one_in_place() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(FILE);
        make(dir.path(), &life(1)).expect("made");
        let before = std::fs::read(&path).expect("read");
        store(dir.path(), &known(2)).expect("stored");
        let after = std::fs::read(&path).expect("read");
        assert_eq!(held(dir.path()), Some(known(2)));
        for cut in 0..2 * SLOT_BYTES {
            let torn = [&after[..cut], &before[cut..]].concat();
            let (found, _) = newest(&torn).expect("one of both");
            assert!([life(1), known(2)].contains(&found), "cut at {cut}");
        }
        store(dir.path(), &known(3)).expect("stored");
        assert_eq!(held(dir.path()), Some(known(3)));
    }

    #[test]
    fn the_old_form_is_read_and_replaced() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join(FILE), "1 here 00000000000001ab 3.7\n").expect("writes");
        match read(dir.path()).expect("readable") {
            Content::Old(identity) => assert_eq!(identity, life(7)),
            other => panic!("{other:?}"),
        }
        store(dir.path(), &life(8)).expect("stored");
        assert_eq!(held(dir.path()), Some(life(8)));
    }

    #[test]
    fn what_was_not_written_here_is_damaged() {
        let dir = tempfile::tempdir().expect("a folder");
        let slot = |line: &str| {
            let line = format!("{line} {:08x}", crc32c(line.as_bytes()));
            format!("{line:4095}\n").repeat(2)
        };
        assert!(newest(slot("2 here 01 3.7 4").as_bytes()).is_some());
        for text in [
            String::new(),
            "1 here".to_owned(),
            "2 here 01 3.7\n".to_owned(),
            "1 here zz 3.7\n".to_owned(),
            "1 here 01 3.7".to_owned(),
            "1 here 01 3\n".to_owned(),
            "1 here 01 3.7 x\n".to_owned(),
            slot("4 here 01 3.7 4"),
            slot("3 here 01 3.7 4"),
            slot("3 here 01 3.7 - 4"),
            slot("3 here 01 3.7 c1 4"),
            slot("3 here 01 3.7 00000000000000000000000000000000 4"),
            slot("3 here 01 3.7 +1000000000000000000000000000007 4"),
            slot("2 here 01 3.7 c1000000000000000000000000000007 4"),
            slot("2 here 01 3.7 x"),
            slot("2 here 01 3.7"),
            slot("2 here 01 3.7 4").replacen('h', "x", 2),
            "\0".repeat(2 * SLOT_BYTES),
        ] {
            std::fs::write(dir.path().join(FILE), &text).expect("writes");
            assert!(matches!(read(dir.path()), Ok(Content::Damaged)), "{text:?}");
        }
    }
}
