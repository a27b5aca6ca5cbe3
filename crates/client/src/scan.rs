//! A scan: all objects of a table, one after another.

use crate::core::{Settled, Work};
use crate::error::Error;
use crate::net::Shared;
use crate::outcome::Object;
use duramen_base::ids::{KeyRange, TableId};
use std::vec::IntoIter;

/// Maximum bytes of one request's objects.
const PIECE_BYTES: u32 = 256 << 10;

/// See [`Table::scan`](crate::Table::scan).
#[derive(Debug)]
pub struct Scan<'t> {
    shared: &'t Shared,
    table: TableId,
    /// The ranges that are still to be requested, each with its cursor; the next one is last.
    rest: Vec<(KeyRange, u64)>,
    piece: IntoIter<(Vec<u8>, Object)>,
}

impl<'t> Scan<'t> {
    pub(crate) fn new(shared: &'t Shared, table: TableId) -> Scan<'t> {
        Scan {
            shared,
            table,
            rest: vec![(KeyRange::ALL, 0)],
            piece: Vec::new().into_iter(),
        }
    }

    /// Fetches the next piece. False: the scan is complete.
    fn fetch(&mut self) -> Result<bool, Error> {
        let Some((range, cursor)) = self.rest.last().copied() else {
            return Ok(false);
        };
        let work = Work::Enumerate {
            table: self.table,
            range,
            cursor,
            bytes_max: PIECE_BYTES,
        };
        let shared = self.shared;
        let mut results = shared.run(shared.batch([work]));
        let Some(Settled::Objects(objects)) = results.next().transpose()? else {
            return Err(Error::Refused(
                "an answer that does not fit an enumeration".to_owned(),
            ));
        };
        self.rest.pop();
        self.rest.extend(objects.rest.into_iter().rev());
        self.piece = objects.objects.into_iter();
        Ok(true)
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Vec<u8>, Object), Error>;

    /// After an error the next call requests the same piece again.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(object) = self.piece.next() {
                return Some(Ok(object));
            }
            match self.fetch() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
