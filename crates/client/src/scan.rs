//! All objects of a table, one after the other.

use crate::client::Table;
use crate::core::{Settled, Work};
use crate::error::Error;
use crate::outcome::Object;
use duramen_base::ids::{KeyRange, RouteHash};
use std::vec::IntoIter;

/// Bytes asked for at once.
const PIECE_BYTES: u32 = 256 << 10;

/// See [`Table::scan`].
#[derive(Debug)]
pub struct Scan<'t> {
    table: &'t Table,
    /// What is still to be asked for; `None`: nothing.
    at: Option<RouteHash>,
    piece: IntoIter<(Vec<u8>, Object)>,
}

impl<'t> Scan<'t> {
    pub(crate) fn new(table: &'t Table) -> Scan<'t> {
        Scan {
            table,
            at: Some(RouteHash::MIN),
            piece: Vec::new().into_iter(),
        }
    }

    fn fetch(&mut self, at: RouteHash) -> Result<(), Error> {
        let work = Work::Enumerate {
            table: self.table.id(),
            range: KeyRange::new(at, RouteHash::MAX),
            bytes_max: PIECE_BYTES,
        };
        let shared = &self.table.shared;
        let mut results = shared.run(shared.batch([work]));
        let Some(Settled::Objects(objects)) = results.next().transpose()? else {
            return Err(Error::Refused(
                "an answer that does not fit an enumeration".to_owned(),
            ));
        };
        // Backwards it would never end.
        self.at = objects.next.filter(|next| *next > at);
        self.piece = objects.objects.into_iter();
        Ok(())
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Vec<u8>, Object), Error>;

    /// After an error the same piece can be asked for again.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(object) = self.piece.next() {
                return Some(Ok(object));
            }
            if let Err(error) = self.fetch(self.at?) {
                return Some(Err(error));
            }
        }
    }
}
