//! TEMPORARY: the engine's interface over one locked map, so that the rooms above can be built while the engine is.
//! It is replaced before anything is released; build against the signatures, not the behaviour under load.

use crate::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

struct Stored {
    value: Vec<u8>,
    version: u64,
    expires_at_ms: Option<u64>,
}
#[derive(Default)]
struct Table {
    name: String,
    map: BTreeMap<(u64, Vec<u8>), Stored>,
    floor: u64,
}
struct Tables {
    tables: Vec<Option<Table>>,
}
/// The store: tables of objects in log-structured memory. Shared by [`Arc`]; dropped = cleaners joined, memory returned.
pub struct Store {
    inner: Mutex<Tables>,
    clock: Clock,
    memory_bytes: u64,
}
/// One thread's way into the store (its head, its reclaim slot). `Send`, not `Sync`.
pub struct Session {
    store: Arc<Store>,
}
/// A pinned session: memory it has seen is not reused until it is dropped. Keep it for one batch, not longer.
pub struct Guard<'s> {
    inner: MutexGuard<'s, Tables>,
    now_ms: u64,
    memory_bytes: u64,
    scratch: Vec<u8>,
}

impl Store {
    pub fn new(options: Options) -> Result<Arc<Store>, Error> {
        let minimum = duramen_base::limits::MEMORY_BYTES_MIN;
        if options.memory_bytes < minimum {
            return Err(Error::BudgetTooSmall {
                bytes: options.memory_bytes,
                minimum,
            });
        }
        let first = Table {
            name: "default".into(),
            ..Table::default()
        };
        Ok(Arc::new(Store {
            inner: Mutex::new(Tables {
                tables: vec![Some(first)],
            }),
            clock: options.clock,
            memory_bytes: options.memory_bytes,
        }))
    }
    pub fn session(self: &Arc<Self>) -> Result<Session, Error> {
        Ok(Session {
            store: self.clone(),
        })
    }
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
    pub fn create_table(&self, name: &str) -> Result<TableId, Error> {
        if self.table_id(name).is_some() {
            return Err(Error::TableExists(name.into()));
        }
        let mut inner = self.inner.lock().unwrap();
        inner.tables.push(Some(Table {
            name: name.into(),
            ..Table::default()
        }));
        Ok(TableId(inner.tables.len() as u32 - 1))
    }
    pub fn table_id(&self, name: &str) -> Option<TableId> {
        self.tables()
            .into_iter()
            .find(|t| t.name == name)
            .map(|t| t.id)
    }
    pub fn tables(&self) -> Vec<TableInfo> {
        let inner = self.inner.lock().unwrap();
        inner
            .tables
            .iter()
            .enumerate()
            .filter_map(|(i, t)| {
                t.as_ref().map(|t| TableInfo {
                    id: TableId(i as u32),
                    name: t.name.clone(),
                    objects: t.map.len() as u64,
                })
            })
            .collect()
    }
    /// Objects in a table; expired ones that nobody has met yet count too.
    pub fn objects(&self, table: TableId) -> u64 {
        self.tables()
            .iter()
            .find(|t| t.id == table)
            .map_or(0, |t| t.objects)
    }
    /// Drops a table and its objects (table 0 can only be emptied). Must not be called while this thread holds a guard.
    pub fn drop_table(&self, table: TableId) -> Result<(), Error> {
        self.inner
            .lock()
            .unwrap()
            .tables
            .get_mut(table.0 as usize)
            .and_then(Option::take)
            .map(|_| ())
            .ok_or(Error::NoSuchTable(table))
    }
    /// Removes every object of a table at one instant, for all sessions. Must not be called while this thread holds a guard.
    pub fn clear_table(&self, table: TableId) -> Result<(), Error> {
        let mut inner = self.inner.lock().unwrap();
        let t = inner
            .tables
            .get_mut(table.0 as usize)
            .and_then(Option::as_mut)
            .ok_or(Error::NoSuchTable(table))?;
        t.floor = t
            .floor
            .max(t.map.values().map(|s| s.version + 1).max().unwrap_or(0));
        t.map.clear();
        Ok(())
    }
    pub fn stats(&self) -> Stats {
        let inner = self.inner.lock().unwrap();
        let objects = inner
            .tables
            .iter()
            .flatten()
            .map(|t| t.map.len() as u64)
            .sum();
        Stats {
            objects,
            ..Stats::default()
        }
    }
    pub fn memory_report(&self) -> MemoryReport {
        MemoryReport::default()
    }
}
impl Session {
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }
    /// Enters the store for one batch of operations.
    pub fn pin(&mut self) -> Guard<'_> {
        Guard {
            inner: self.store.inner.lock().unwrap(),
            now_ms: self.store.clock.now_ms(),
            memory_bytes: self.store.memory_bytes,
            scratch: Vec::new(),
        }
    }
    /// Enters the store alone: waits until every other session is between guards and keeps them out.
    /// For what must be atomic over everything (`FLUSHALL`, a transaction with such a command).
    pub fn pin_exclusive(&mut self) -> Guard<'_> {
        self.pin()
    }
}
impl<'s> Guard<'s> {
    /// Milliseconds since the Unix epoch, read once per guard.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(
            key.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
                (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
            }) >> 14,
        )
    }
    /// First step of a batch: starts fetching the bucket line.
    pub fn prefetch_bucket(&self, _table: TableId, _hash: KeyHash) {}
    /// Second step of a batch, some operations later: starts fetching the entry's first lines.
    pub fn prefetch_entry(&self, _table: TableId, _hash: KeyHash) {}
    fn table(&self, table: TableId) -> Result<&Table, Error> {
        self.inner
            .tables
            .get(table.0 as usize)
            .and_then(Option::as_ref)
            .ok_or(Error::NoSuchTable(table))
    }
    /// The object, or `None` if absent or expired.
    pub fn read(
        &self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<Object<'_>>, Error> {
        let t = self.table(table)?;
        Ok(t.map
            .get_key_value(&(hash.0, key.to_vec()))
            .filter(|(_, s)| s.expires_at_ms.is_none_or(|e| e > self.now_ms))
            .map(|(k, s)| Object {
                key: &k.1,
                value: &s.value,
                version: s.version,
                expires_at_ms: s.expires_at_ms,
            }))
    }
    /// Identifies the key's present state.
    pub fn stamp(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Result<Stamp, Error> {
        Ok(match self.read(table, hash, key)? {
            Some(o) => Stamp::Present { version: o.version },
            None => Stamp::Absent {
                floor: self.table(table)?.floor,
            },
        })
    }
    /// Read-modify-write of one key, atomic against every other session. The closure sees the object (or `None`) and an
    /// empty scratch buffer; it may be called again if memory had to be found first, so it must reset what it collects.
    pub fn update<'v>(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        mut decide: impl FnMut(Option<Object<'_>>, &mut Vec<u8>) -> Decision<'v>,
    ) -> Result<Outcome, Error> {
        let limit = duramen_base::limits::KEY_BYTES_MAX;
        if key.len() > limit {
            return Err(Error::KeyTooLarge {
                bytes: key.len(),
                limit,
            });
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let found = self.read(table, hash, key)?;
        let before = found.map(|o| o.version);
        let decision = decide(found, &mut scratch);
        let now_ms = self.now_ms;
        let t = self.inner.tables[table.0 as usize].as_mut().unwrap();
        let old = t.map.get(&(hash.0, key.to_vec())).map(|s| s.version);
        let (value, expires_at_ms) = match decision {
            Decision::Keep => {
                return Ok(Outcome {
                    before,
                    after: before,
                });
            }
            Decision::Put {
                value,
                expires_at_ms,
            } if expires_at_ms.is_none_or(|e| e > now_ms) => (value.to_vec(), expires_at_ms),
            Decision::PutScratch { expires_at_ms } if expires_at_ms.is_none_or(|e| e > now_ms) => {
                (scratch.clone(), expires_at_ms)
            }
            _ => {
                if let Some(s) = t.map.remove(&(hash.0, key.to_vec())) {
                    t.floor = t.floor.max(s.version + 1);
                }
                return Ok(Outcome {
                    before,
                    after: None,
                });
            }
        };
        let limit = duramen_base::limits::VALUE_BYTES_MAX;
        if value.len() > limit {
            return Err(Error::ValueTooLarge {
                bytes: value.len(),
                limit,
            });
        }
        let version = old.map_or(t.floor.max(1), |v| v + 1);
        t.map.insert(
            (hash.0, key.to_vec()),
            Stored {
                value,
                version,
                expires_at_ms,
            },
        );
        Ok(Outcome {
            before,
            after: Some(version),
        })
    }
    pub fn write(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Result<Outcome, Error> {
        self.update(table, hash, key, |_, _| Decision::Put {
            value,
            expires_at_ms,
        })
    }
    pub fn remove(&mut self, table: TableId, hash: KeyHash, key: &[u8]) -> Result<Outcome, Error> {
        self.update(table, hash, key, |_, _| Decision::Remove)
    }
    pub fn conditional_write(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
        condition: Condition,
    ) -> Result<Outcome, Error> {
        let mut failed = None;
        let outcome = self.update(table, hash, key, |found, _| {
            let current = found.map(|o| o.version);
            let holds = match condition {
                Condition::Always => true,
                Condition::Absent => current.is_none(),
                Condition::Present => current.is_some(),
                Condition::Version(v) => current == Some(v),
                Condition::NewerThan(v) => current.is_none_or(|c| c < v),
            };
            failed = (!holds).then_some(current);
            if holds {
                Decision::Put {
                    value,
                    expires_at_ms,
                }
            } else {
                Decision::Keep
            }
        })?;
        match failed {
            Some(current) => Err(Error::ConditionFailed { current }),
            None => Ok(outcome),
        }
    }
    /// Adds to a decimal integer (absent = 0), keeping the expiry.
    pub fn increment(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        by: i64,
    ) -> Result<Incremented<i64>, Error> {
        let mut result = Ok(0);
        let outcome = self.update(table, hash, key, |found, scratch| {
            result = found
                .map_or(Ok(0), |o| {
                    std::str::from_utf8(o.value)
                        .ok()
                        .and_then(|s| s.parse::<i64>().ok())
                        .ok_or(Error::NotAnInteger)
                })
                .and_then(|n| n.checked_add(by).ok_or(Error::Overflow));
            match &result {
                Ok(n) => {
                    scratch.extend_from_slice(n.to_string().as_bytes());
                    Decision::PutScratch {
                        expires_at_ms: found.and_then(|o| o.expires_at_ms),
                    }
                }
                Err(_) => Decision::Keep,
            }
        })?;
        Ok(Incremented {
            value: result?,
            version: outcome.after.unwrap(),
        })
    }
    /// Adds to a decimal floating-point number (absent = 0), keeping the expiry. The stored text is what is returned.
    pub fn increment_float(
        &mut self,
        _table: TableId,
        _hash: KeyHash,
        _key: &[u8],
        _by: f64,
    ) -> Result<Incremented<f64>, Error> {
        Err(Error::NotAFloat)
    }
    /// Makes the operations of this guard on these keys one atomic step: other sessions see all of them or none, from the
    /// first call until [`unlock_keys`](Self::unlock_keys). Call it before any other write of the guard.
    pub fn lock_keys(&mut self, _keys: &[(TableId, KeyHash)]) -> Result<(), Error> {
        Ok(())
    }
    pub fn unlock_keys(&mut self) {}
    /// Shows about `count` objects from `cursor` (0 = start) in hash order; returns the next cursor, 0 = finished.
    /// An object that is there for the whole scan is shown at least once, whatever grows or moves meanwhile.
    pub fn scan(
        &self,
        table: TableId,
        cursor: u64,
        count: usize,
        mut show: impl FnMut(Object<'_>),
    ) -> Result<u64, Error> {
        let t = self.table(table)?;
        for (n, (k, s)) in t
            .map
            .range((Bound::Included((cursor, Vec::new())), Bound::Unbounded))
            .enumerate()
        {
            if n >= count && k.0 != cursor {
                return Ok(k.0);
            }
            if s.expires_at_ms.is_none_or(|e| e > self.now_ms) {
                show(Object {
                    key: &k.1,
                    value: &s.value,
                    version: s.version,
                    expires_at_ms: s.expires_at_ms,
                });
            }
        }
        Ok(0)
    }
    /// Some object of the table, chosen by `random`; `None` if the table is empty.
    pub fn random(&self, table: TableId, _random: u64) -> Result<Option<Object<'_>>, Error> {
        let t = self.table(table)?;
        Ok(t.map.iter().next().map(|(k, s)| Object {
            key: &k.1,
            value: &s.value,
            version: s.version,
            expires_at_ms: s.expires_at_ms,
        }))
    }
    /// Bytes the object takes in the log and the index; `None` if absent.
    pub fn footprint_bytes(
        &self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<u64>, Error> {
        Ok(self
            .read(table, hash, key)?
            .map(|o| (o.key.len() + o.value.len() + 28) as u64))
    }
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}
