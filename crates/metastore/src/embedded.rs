//! The embedded store: a redb file. The process that has it open leads. The file's lock ends with
//! the process, so there is no lease to renew.
//!
//! **Invariants**
//! - E1: only the process that holds the file's lock reads and writes the state (store::M1).
//! - E2: a batch is one redb transaction, synced before `commit` returns (store::M1, store::M3).

use crate::{unavailable, unusable};
use duramen_cluster::coordinator::store::{Batch, Contents, Error, MetaStore, Renewal, Term};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const STATE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("state");
const TERMS: TableDefinition<&str, u64> = TableDefinition::new("terms");

/// The embedded store; see the module.
pub struct Embedded {
    path: PathBuf,
    name: String,
    database: Option<Database>,
}

impl Embedded {
    /// The store in the file at `path`, which is created if it does not exist. `name`: of this
    /// coordinator.
    pub fn new(path: &Path, name: &str) -> Embedded {
        Embedded {
            path: path.to_owned(),
            name: name.to_owned(),
            database: None,
        }
    }

    /// Path of the file with the name of the coordinator that has the store open. Coordinators that
    /// cannot open the store read it.
    fn sign(&self) -> PathBuf {
        self.path.with_extension("leader")
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
        let state = transaction.open_table(STATE)?;
        let mut contents = Contents::new();
        for row in state.iter()? {
            let (key, value) = row?;
            contents.insert(key.value().to_vec(), value.value().to_vec());
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
            for (key, value) in batch.changes() {
                match value {
                    Some(value) => state.insert(key, value)?,
                    None => state.remove(key)?,
                };
            }
        }
        transaction.commit()?;
        Ok(())
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
        match Database::create(&self.path) {
            Ok(database) => self.database = Some(database),
            Err(DatabaseError::DatabaseAlreadyOpen) => return Ok(None),
            Err(DatabaseError::Storage(redb::StorageError::Io(error)))
                if error.kind() != ErrorKind::InvalidData =>
            {
                return Err(unavailable(format!("{}: {error}", self.path.display())));
            }
            Err(error) => return Err(unusable(format!("{}: {error}", self.path.display()))),
        }
        let term = match self.next_term() {
            Ok(term) => term,
            Err(error) => {
                self.database = None;
                return Err(trouble(error));
            }
        };
        // Only a hint: nothing depends on it.
        let _ = std::fs::write(self.sign(), &self.name);
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
}
