//! The data of a server: its store, and the layers below the store. They exist once the data is
//! loaded.

use crate::durability::{Durability, Progress};
use crate::flash::tier::Tier;
use crate::threads::all::Threads;
use duramen_backup::{Backup, Copies};
use duramen_cipher::KeyId;
use duramen_engine::flash::FlashStats;
use duramen_engine::{Store, TableId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The state that exists once the data is loaded.
struct Loaded {
    store: Arc<Store>,
    /// The durable layer; `None`: the data is in memory only.
    durability: Option<Arc<Durability>>,
    /// The second tier; `None`: memory is the only tier.
    tier: Option<Arc<Tier>>,
}

/// See the head of this file.
#[derive(Default)]
pub struct Storage {
    /// Empty while the server loads its data. Filled once.
    loaded: OnceLock<Loaded>,
    progress: Mutex<Progress>,
    /// A member's backup, which stores replicas for other members. Filled once, before the member
    /// enlists. Weak: the lock of the directory is freed with the backup, and the next life of the
    /// member in this process needs that lock.
    kept: OnceLock<Weak<Backup>>,
}

impl Storage {
    /// Shows the loaded data to all threads. Must be called once.
    pub(crate) fn put(
        &self,
        store: Arc<Store>,
        durability: Option<Arc<Durability>>,
        tier: Option<Arc<Tier>>,
    ) {
        self.loaded.get_or_init(|| Loaded {
            store,
            durability,
            tier,
        });
    }

    #[inline]
    pub(super) fn store(&self) -> Option<&Arc<Store>> {
        self.loaded.get().map(|loaded| &loaded.store)
    }

    #[inline]
    pub(super) fn durability(&self) -> Option<&Arc<Durability>> {
        self.loaded.get()?.durability.as_ref()
    }

    #[inline]
    pub(super) fn tier(&self) -> Option<&Arc<Tier>> {
        self.loaded.get()?.tier.as_ref()
    }

    /// The progress of loading.
    pub fn progress(&self) -> Progress {
        self.progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn set_progress(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Names the backup that stores replicas for other members. Must be called once.
    pub fn keep_for_others(&self, backup: &Arc<Backup>) {
        self.kept.get_or_init(|| Arc::downgrade(backup));
    }

    /// Memory of data not yet on disk: of this server's log, and of the replicas kept for others.
    pub fn copies(&self) -> Copies {
        let own = self
            .durability()
            .and_then(|durability| Some(durability.store().directory()?.copies()));
        let kept = self.kept.get().and_then(Weak::upgrade);
        let kept = kept.map(|backup| backup.figures().copies());
        own.into_iter().chain(kept).sum()
    }

    /// The id of the key that opened this server's own store, or the replicas that it keeps for
    /// others; `None`: they are not encrypted.
    pub fn encryption_key(&self) -> Option<KeyId> {
        let own = || self.durability()?.stats().encryption_key;
        let kept = || self.kept.get()?.upgrade()?.encryption_key();
        own().or_else(kept)
    }

    /// The names of all tables; none until the data is loaded.
    pub fn table_names(&self) -> HashMap<TableId, String> {
        let tables = self
            .store()
            .map(|data| data.tables().list())
            .unwrap_or_default();
        tables
            .into_iter()
            .map(|table| (table.id, table.name))
            .collect()
    }

    /// The name of a table; `None`: it does not exist, or the data is not loaded yet.
    pub(crate) fn table_name(&self, table: TableId) -> Option<String> {
        let tables = self.store()?.tables().list();
        let found = tables.into_iter().find(|known| known.id == table);
        found.map(|table| table.name)
    }
}

/// Figures of flash: the data there, and the reads by the engine and by the threads for their
/// clients.
pub fn flash_stats(store: &Store, threads: &Threads) -> FlashStats {
    let mut stats = store.stats().flash;
    stats.fetches += threads.sum(|counters| &counters.flash_fetches);
    stats.fetched_bytes += threads.sum(|counters| &counters.flash_fetched_bytes);
    stats.read_errors += threads.sum(|counters| &counters.flash_read_errors);
    stats
}
