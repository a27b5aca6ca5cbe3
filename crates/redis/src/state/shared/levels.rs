//! The levels at which writes to tables are answered.

use duramen_base::ids::Level;
use duramen_base::limits::TABLES_MAX;
use duramen_engine::TableId;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// See the head of this file.
#[derive(Debug)]
pub struct Levels {
    /// Levels of tables, by the positions of their ids: 0 = the server's, else the level's number
    /// plus one.
    tables: Box<[AtomicU8]>,
    /// Whether a write may have been answered before it was on disk. Relaxed: the thread that
    /// answers so has stored it before.
    early: AtomicBool,
}

impl Levels {
    pub(super) fn new() -> Levels {
        Levels {
            tables: (0..TABLES_MAX).map(|_| AtomicU8::new(0)).collect(),
            early: AtomicBool::new(false),
        }
    }

    /// The table's own level; None = the server's.
    #[inline]
    pub(crate) fn of(&self, table: TableId) -> Option<Level> {
        let level = self.tables.get(table.place())?.load(Ordering::Relaxed);
        Level::from_number(level.wrapping_sub(1))
    }

    pub fn set(&self, table: TableId, level: Option<Level>) {
        if let Some(level) = level {
            self.note(level);
        }
        if let Some(place) = self.tables.get(table.place()) {
            place.store(level.map_or(0, |level| level as u8 + 1), Ordering::Relaxed);
        }
    }

    /// Notes that writes are answered at this level from now on.
    pub fn note(&self, level: Level) {
        if level == Level::Memory {
            self.early.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a write may have been answered at level `memory` since the start: only then can a
    /// stop lose data.
    pub fn answered_early(&self) -> bool {
        self.early.load(Ordering::Relaxed)
    }
}
