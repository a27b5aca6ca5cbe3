//! A scan: all objects of a table, one after another.

use crate::core::{Settled, Work};
use crate::error::Error;
use crate::net::Shared;
use crate::outcome::Object;
use duramen_base::ids::{KeyRange, TableId};
use std::vec::IntoIter;

/// Maximum bytes of one request's objects.
const PIECE_BYTES: u32 = 256 << 10;

/// The state of a scan, independent of the way in which its requests are sent.
#[derive(Debug)]
pub(crate) struct Progress {
    table: TableId,
    /// The ranges that are still to be requested, each with its cursor; the next one is last.
    rest: Vec<(KeyRange, u64)>,
    piece: IntoIter<(Vec<u8>, Object)>,
}

impl Progress {
    pub fn new(table: TableId) -> Progress {
        Progress {
            table,
            rest: vec![(KeyRange::ALL, 0)],
            piece: Vec::new().into_iter(),
        }
    }

    /// The next object that has arrived.
    pub fn object(&mut self) -> Option<(Vec<u8>, Object)> {
        self.piece.next()
    }

    /// The request for the next piece; `None` if the scan is complete.
    pub fn request(&self) -> Option<Work<'static>> {
        let (range, cursor) = self.rest.last().copied()?;
        Some(Work::Enumerate {
            table: self.table,
            range,
            cursor,
            bytes_max: PIECE_BYTES,
        })
    }

    /// Takes the answer to the last request.
    pub fn answered(&mut self, settled: Settled) -> Result<(), Error> {
        let Settled::Objects(objects) = settled else {
            return Err(Error::Refused(
                "an answer that does not fit an enumeration".to_owned(),
            ));
        };
        self.rest.pop();
        self.rest.extend(objects.rest.into_iter().rev());
        self.piece = objects.objects.into_iter();
        Ok(())
    }
}

/// See [`Table::scan`](crate::Table::scan).
#[derive(Debug)]
pub struct Scan<'t> {
    shared: &'t Shared,
    progress: Progress,
}

impl<'t> Scan<'t> {
    pub(crate) fn new(shared: &'t Shared, table: TableId) -> Scan<'t> {
        Scan {
            shared,
            progress: Progress::new(table),
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Vec<u8>, Object), Error>;

    /// After an error the next call requests the same piece again.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(object) = self.progress.object() {
                return Some(Ok(object));
            }
            let work = self.progress.request()?;
            let mut results = self.shared.run(self.shared.batch([work]));
            let settled = results.next().expect("a result of each operation");
            if let Err(error) = settled.and_then(|settled| self.progress.answered(settled)) {
                return Some(Err(error));
            }
        }
    }
}
