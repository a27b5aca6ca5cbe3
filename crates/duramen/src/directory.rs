//! The directory of a store, for the server: its identity, its room, and the verification and
//! repair of its contents.

use crate::durable::{Durable, Local, Repair};
use crate::{Error, Options, Store, restart};
use duramen_backup::Copies;
use std::time::Duration;

/// A store's directory; from [`Store::directory`].
#[derive(Clone, Copy)]
pub struct Directory<'s> {
    durable: &'s Durable,
    local: &'s Local,
}

impl Store {
    /// Its directory; `None` if it is in memory alone, or on the disks of others.
    #[doc(hidden)]
    pub fn directory(&self) -> Option<Directory<'_>> {
        let durable = &self.durable.as_ref()?.log.durable;
        let local = durable.local()?;
        Some(Directory { durable, local })
    }
}

impl Directory<'_> {
    fn options(&self) -> &Options {
        &self.durable.options
    }

    /// The id of the store, which its copies have too.
    pub fn id(&self) -> u64 {
        self.local.backup.identity().server
    }

    /// A number that grows with each write or sync that the disk has ended.
    pub fn answers(&self) -> u64 {
        let done = self.local.backup.stats();
        done.commits + done.syncs + done.wal_written_bytes + done.frame_written_bytes
    }

    /// Memory of data in flight to the disk, beside the budget.
    pub fn copies(&self) -> Copies {
        self.local.backup.figures().copies()
    }

    /// The damage of the file of hot keys, as a message; `None`: there is none.
    pub fn hint_damage(&self) -> Option<String> {
        self.local.heat.as_ref()?.damage()
    }

    /// Bytes of log that the directory has room for, and those that the options require, if the
    /// latter are more; `None`: there is room. A snapshot gets the room that the options require.
    pub fn lacking_room(&self) -> Option<(u64, u64)> {
        restart::lacking_room(self.local.backup.geometry(), self.options())
    }

    /// Bytes of log that the options ask for, and the fewest with which all heads can write, if
    /// those are more: then the log gets them.
    pub fn raised_disk(&self) -> Option<(u64, u64)> {
        restart::raised_disk(self.local.backup.geometry(), self.options())
    }

    /// Sets the interval at which one frame is verified; 0 = none, except on request.
    pub fn set_scrub_interval(&self, interval: Duration) {
        self.local.scrub.set_interval(interval);
    }

    /// Verifies one frame; returns whether there was one. For a store that was opened without
    /// threads.
    ///
    /// # Errors
    /// As [`Store::background_step`].
    pub fn scrub_step(&self) -> Result<bool, Error> {
        self.local.scrub_step(&self.durable.common)
    }

    /// Calls `hook` for each replica on disk that is damaged now, or is found damaged later, and
    /// for each step of its repair. The hook must be short, is called from the background thread,
    /// and must not call the store. Only the last hook counts.
    pub fn watch_repairs(&self, hook: impl Fn(&Repair) + Send + Sync + 'static) {
        self.local.repairs.watch(Box::new(hook));
    }
}
