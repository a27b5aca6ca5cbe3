//! The embedded store: a redb file. The process that has it open leads. The file's lock ends with
//! the process, so there is no lease to renew.
//!
//! **Invariants**
//! - E1: only the process that holds the file's lock reads and writes the state (store::M1).
//! - E2: a batch is one redb transaction, synced before `commit` returns (store::M1, store::M3).
//! - E3: a file at the store's path is complete from its first moment: it is made under another
//!   name, synced and renamed, by one process at a time (a lock file of its own). So a creation
//!   that was interrupted leaves no file that a later start must refuse.
//! - E4: a leader whose file was removed or replaced notices: redb would go on in a file that no
//!   later start finds ([`check_place`](MetaStore::check_place)).
//! - E5: redb reads the medium, not what a failed sync left in the page cache: a later sync would
//!   not write that, and a power cut would show older pages below newer ones.

use super::{unavailable, unusable};
use duramen_base::open::forget_cached;
use duramen_base::private::make_file;
use duramen_cluster::coordinator::store::{
    Batch, Contents, Error, MetaStore, Renewal, Term, is_advice,
};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const STATE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("state");
/// The table of advice (store::M4).
const ADVICE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("advice");
const TERMS: TableDefinition<&str, u64> = TableDefinition::new("terms");

/// Length of the magic number at the begin of a redb file.
const MAGIC_BYTES: usize = 9;
/// A new redb file has nothing beyond its first page.
const HEADER_BYTES: u64 = 4096;

/// The embedded store; see the module.
pub struct Embedded {
    path: PathBuf,
    name: String,
    database: Option<Database>,
    /// Device and inode of its file.
    file: (u64, u64),
}

impl Embedded {
    /// The store in the file at `path`, which is created if it does not exist. `name`: of this
    /// coordinator.
    pub fn new(path: &Path, name: &str) -> Embedded {
        Embedded {
            path: path.to_owned(),
            name: name.to_owned(),
            database: None,
            file: (0, 0),
        }
    }

    /// Path of the file with the name of the coordinator that has the store open. Coordinators that
    /// cannot open the store read it.
    fn sign(&self) -> PathBuf {
        self.path.with_extension("leader")
    }

    /// Makes the file if it was never completely made (E3); returns false if another process makes
    /// it now.
    fn create_if_missing(&self) -> Result<bool, redb::Error> {
        if !never_made(&self.path)? {
            return Ok(true);
        }
        let lock = make_file(&self.path.with_extension("redb.lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // Another process may have made it before this one had the lock.
        if never_made(&self.path)? {
            self.create()?;
        }
        Ok(true)
    }

    /// Makes redb read the medium (E5); returns false if another process has the store open.
    fn settle_medium(&self) -> std::io::Result<bool> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // If this fails, an acquisition later finds the pages clean, and forgets them.
        file.sync_all()?;
        forget_cached(&file)?;
        Ok(true)
    }

    fn create(&self) -> Result<(), redb::Error> {
        let unfinished = self.path.with_extension("redb.new");
        match std::fs::remove_file(&unfinished) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        make_file(&unfinished)?;
        Database::create(&unfinished)?.close()?;
        File::open(&unfinished)?.sync_all()?;
        std::fs::rename(&unfinished, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    fn database(&self) -> Result<&Database, Error> {
        self.database.as_ref().ok_or(Error::Deposed) // E1
    }

    fn next_term(&self) -> Result<Term, redb::Error> {
        let Ok(database) = self.database() else {
            return Ok(Term(0));
        };
        let transaction = database.begin_write()?;
        let term = {
            transaction.open_table(STATE)?;
            transaction.open_table(ADVICE)?;
            let mut terms = transaction.open_table(TERMS)?;
            let term = terms.get("term")?.map_or(0, |term| term.value()) + 1;
            terms.insert("term", term)?;
            term
        };
        transaction.commit()?;
        Ok(Term(term))
    }

    fn read(&self) -> Result<Contents, redb::Error> {
        let Ok(database) = self.database() else {
            return Ok(Contents::new());
        };
        let transaction = database.begin_read()?;
        let mut contents = Contents::new();
        for table in [STATE, ADVICE] {
            let rows = transaction.open_table(table)?;
            for row in rows.iter()? {
                let (key, value) = row?;
                contents.insert(key.value().to_vec(), value.value().to_vec());
            }
        }
        Ok(contents)
    }

    fn write(&self, batch: &Batch) -> Result<(), redb::Error> {
        let Ok(database) = self.database() else {
            return Ok(());
        };
        let transaction = database.begin_write()?; // E2: synced by default
        {
            let mut state = transaction.open_table(STATE)?;
            let mut advice = transaction.open_table(ADVICE)?;
            for (key, value) in batch.changes() {
                let table = if is_advice(key) {
                    &mut advice
                } else {
                    &mut state
                };
                match value {
                    Some(value) => table.insert(key, value)?,
                    None => table.remove(key)?,
                };
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Device and inode of the file at this path.
fn file_at(path: &Path) -> std::io::Result<(u64, u64)> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Whether the file is absent, or is what an interrupted creation by redb leaves: redb writes the
/// magic number last, and nothing but the first page before it. A store whose first page was
/// damaged later has data beyond that page, and is no such file.
fn never_made(path: &Path) -> std::io::Result<bool> {
    let mut file = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        // Opening a pipe waits for its other end.
        Ok(found) if !found.is_file() => {
            return Err(std::io::Error::other("it is not a regular file"));
        }
        found => found.and_then(|_| File::open(path))?,
    };
    let mut bytes = Vec::new();
    (&mut file)
        .take(MAGIC_BYTES as u64)
        .read_to_end(&mut bytes)?;
    if bytes.iter().any(|byte| *byte != 0) {
        return Ok(false);
    }
    file.seek(SeekFrom::Start(HEADER_BYTES))?;
    loop {
        bytes.clear();
        (&mut file).take(1 << 16).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(true);
        }
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
}

/// An I/O error (a full or failing disk) may be temporary; a damaged file is not.
fn trouble(error: redb::Error) -> Error {
    match error {
        redb::Error::Io(error) if error.kind() != ErrorKind::InvalidData => unavailable(error),
        redb::Error::PreviousIo => unavailable(error),
        error => unusable(error),
    }
}

impl MetaStore for Embedded {
    fn acquire(&mut self) -> Result<Option<Term>, Error> {
        self.database = None; // the lock of this process would block it
        let named = |error| match trouble(error) {
            Error::Unavailable { reason } => {
                unavailable(format!("{}: {reason}", self.path.display()))
            }
            Error::Unusable { reason } => unusable(format!("{}: {reason}", self.path.display())),
            other => other,
        };
        if !self.create_if_missing().map_err(named)? {
            return Ok(None);
        }
        let place = || file_at(&self.path).map_err(|error| named(error.into()));
        let before = place()?;
        match self.settle_medium() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(named(error.into())),
        }
        match Database::open(&self.path) {
            Ok(database) => {
                if place()? != before {
                    let path = self.path.display();
                    return Err(unavailable(format!("{path} was replaced meanwhile")));
                }
                (self.file, self.database) = (before, Some(database));
            }
            Err(DatabaseError::DatabaseAlreadyOpen) => return Ok(None),
            Err(error) => return Err(named(error.into())),
        }
        let term = match self.next_term() {
            Ok(term) => term,
            Err(error) => {
                self.database = None;
                return Err(trouble(error));
            }
        };
        // Only a hint: nothing depends on it.
        let _ = make_file(&self.sign()).and_then(|mut file| file.write_all(self.name.as_bytes()));
        Ok(Some(term))
    }

    fn renewal(&self) -> Option<Box<dyn Renewal>> {
        None
    }

    fn lease_ms(&self) -> u64 {
        0
    }

    fn load(&mut self) -> Result<Contents, Error> {
        self.database()?;
        self.read().map_err(trouble)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        self.database()?;
        self.write(batch).map_err(unavailable)
    }

    fn check_place(&self) -> Result<(), Error> {
        let gone = [ErrorKind::NotFound, ErrorKind::NotADirectory];
        let is_there = match file_at(&self.path) {
            Ok(file) => file == self.file,
            Err(error) => !gone.contains(&error.kind()), // the disk may recover
        };
        if self.database.is_none() || is_there {
            return Ok(());
        }
        Err(unusable(format!(
            "{} was removed or replaced while it was in use",
            self.path.display()
        ))) // E4
    }

    fn leader(&mut self) -> Result<Option<String>, Error> {
        if self.database.is_some() {
            return Ok(Some(self.name.clone()));
        }
        Ok(std::fs::read_to_string(self.sign()).ok())
    }

    fn resign(&mut self) {
        if self.database.take().is_some() {
            let _ = std::fs::remove_file(self.sign());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a full disk the process ended, and did not start before there was room.
    #[test]
    fn a_full_disk_is_waited_for_and_a_damaged_file_is_not() {
        let full = redb::Error::Io(ErrorKind::StorageFull.into());
        assert!(matches!(trouble(full), Error::Unavailable { .. }));
        assert!(matches!(
            trouble(redb::Error::PreviousIo),
            Error::Unavailable { .. }
        ));
        let damaged = redb::Error::Corrupted("a page".to_owned());
        assert!(matches!(trouble(damaged), Error::Unusable { .. }));
    }

    /// store::M4: an older program, which has the tables of state and terms alone, makes a store,
    /// and leads with it again after a newer one; it neither sees the advice nor loses it.
    #[test]
    fn advice_is_kept_where_older_programs_do_not_look() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("coordinator.redb");
        let older = |key: &[u8]| -> Result<Vec<Vec<u8>>, redb::Error> {
            let database = Database::create(&path)?;
            let transaction = database.begin_write()?;
            transaction.open_table(STATE)?.insert(key, &b"1"[..])?;
            transaction.open_table(TERMS)?.insert("term", 7)?;
            transaction.commit()?;
            let state = database.begin_read()?.open_table(STATE)?;
            let keys = state.iter()?.map(|row| Ok(row?.0.value().to_vec()));
            keys.collect()
        };
        assert_eq!(older(b"m").expect("it writes"), [b"m".to_vec()]);
        let mut newer = Embedded::new(&path, "newer:1");
        assert_eq!(newer.acquire(), Ok(Some(Term(8))));
        let mut batch = Batch::default();
        batch.put(b"s".to_vec(), b"2".to_vec());
        batch.put(b"~l".to_vec(), b"3".to_vec());
        newer.commit(&batch).expect("it leads");
        drop(newer);
        let state = [b"m", b"s", b"t"].map(|key| key.to_vec());
        assert_eq!(older(b"t").expect("it writes"), state);
        let mut newer = Embedded::new(&path, "newer:1");
        assert_eq!(newer.acquire(), Ok(Some(Term(8))));
        let all = newer.load().expect("it leads");
        let keys: Vec<&[u8]> = all.keys().map(Vec::as_slice).collect();
        assert_eq!(keys, [&b"m"[..], b"s", b"t", b"~l"]);
    }

    /// A coordinator whose first start was interrupted could not start again: redb gives the file
    /// its length first, then writes the first page without the magic number, then with it.
    #[test]
    fn a_file_that_was_never_completely_made_is_made_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("coordinator.redb");
        let mut first_page = vec![0; 320];
        first_page[MAGIC_BYTES..].fill(7);
        for (length, begin) in [
            (0, vec![]),
            (5, vec![]),
            (1_056_768, vec![]),
            (1_056_768, first_page),
        ] {
            std::fs::write(&path, &begin).expect("written");
            let file = File::options().write(true).open(&path).expect("a file");
            file.set_len(length).expect("a length");
            std::fs::write(folder.path().join("coordinator.redb.new"), "half").expect("written");
            let mut store = Embedded::new(&path, "one:1");
            assert_eq!(store.acquire(), Ok(Some(Term(1))), "{length} bytes");
            assert_eq!(Embedded::new(&path, "two:1").acquire(), Ok(None));
            drop(store);
            let again = Embedded::new(&path, "one:1").acquire();
            assert_eq!(again, Ok(Some(Term(2))), "{length} bytes");
        }
    }

    /// A coordinator went on for days after its directory was deleted. Its next start made an empty
    /// store.
    #[test]
    fn a_file_that_was_removed_or_replaced_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("coordinator.redb");
        let mut store = Embedded::new(&path, "one:1");
        assert_eq!(store.check_place(), Ok(()), "it does not lead");
        assert_eq!(store.acquire(), Ok(Some(Term(1))));
        assert_eq!(store.check_place(), Ok(()));
        std::fs::copy(&path, folder.path().join("copy")).expect("copied");
        std::fs::rename(folder.path().join("copy"), &path).expect("renamed");
        assert!(matches!(store.check_place(), Err(Error::Unusable { .. })));
        std::fs::remove_file(&path).expect("removed");
        assert!(matches!(store.check_place(), Err(Error::Unusable { .. })));
    }

    #[test]
    fn a_store_with_a_damaged_first_page_is_kept_and_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("coordinator.redb");
        let mut store = Embedded::new(&path, "one:1");
        assert_eq!(store.acquire(), Ok(Some(Term(1))));
        drop(store);
        let mut bytes = std::fs::read(&path).expect("a file");
        bytes[..HEADER_BYTES as usize].fill(0);
        std::fs::write(&path, &bytes).expect("written");
        let refused = Embedded::new(&path, "one:1").acquire();
        assert!(
            matches!(refused, Err(Error::Unusable { .. })),
            "{refused:?}"
        );
        assert!(std::fs::read(&path).expect("a file") == bytes);
    }

    /// Two coordinators that start at once do not replace each other's file.
    #[test]
    fn one_process_at_a_time_makes_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("coordinator.redb");
        let lock = File::create(path.with_extension("redb.lock")).expect("a file");
        lock.lock().expect("it is free");
        assert_eq!(Embedded::new(&path, "one:1").acquire(), Ok(None));
        assert!(!path.exists());
        drop(lock);
        let leaders = std::thread::scope(|scope| {
            let start = |_| {
                scope.spawn(|| {
                    let mut store = Embedded::new(&path, "one:1");
                    (store.acquire(), store)
                })
            };
            let threads: Vec<_> = (0..8).map(start).collect();
            let ends = threads
                .into_iter()
                .map(|thread| thread.join().expect("ends"));
            let ends: Vec<_> = ends.collect(); // a store that leads is kept open meanwhile
            ends.iter()
                .filter(|(led, _)| matches!(led, Ok(Some(_))))
                .count()
        });
        assert_eq!(leaders, 1);
    }
}
