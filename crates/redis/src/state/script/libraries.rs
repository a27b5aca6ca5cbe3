//! The libraries of functions that are in force.
//!
//! **Invariants**
//! - L1: the libraries of a server change as a whole, one change after the other
//!   ([`Registry::change`]). A change that fails changes nothing.
//! - L2: no two functions have one name, whatever its case is, and no two libraries have one name.
//!
//! **Concurrency.** Each call of a function takes the lock of `current` for a moment, to share the
//! libraries. A change takes it for a moment, after the change was stored.

use duramen_script::{Answer, Event, LibraryText, Limits, Machine, Registered};
use duramen_wire::native::message::ClusterFunctions;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// A library must register its functions within this time.
pub(crate) const LOAD_MAX: Duration = Duration::from_millis(500);
pub(crate) const LOAD_TIMEOUT: &str = "ERR Error registering functions: FUNCTION LOAD timeout";

/// A library and its functions.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) text: Arc<LibraryText>,
    pub(crate) functions: Vec<Registered>,
}

/// All libraries of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Libraries {
    by_name: BTreeMap<String, Arc<Library>>,
    /// The functions by their names in lower case.
    functions: HashMap<String, (Arc<Library>, Registered)>,
}

impl Libraries {
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Library>> {
        self.by_name.get(name)
    }

    /// All libraries, in the order of their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Library>> {
        self.by_name.values()
    }

    pub(crate) fn functions(&self) -> usize {
        self.functions.len()
    }

    /// A function by its name in any case.
    pub(crate) fn find(&self, name: &[u8]) -> Option<(&Arc<Library>, &Registered)> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        let (library, function) = self.functions.get(&name)?;
        Some((library, function))
    }

    /// Adds a library.
    ///
    /// # Errors
    /// The text of the error reply (L2).
    pub(crate) fn add(&mut self, library: Arc<Library>, replace: bool) -> Result<(), String> {
        let name = &library.text.name;
        if self.by_name.contains_key(name) && !replace {
            return Err(format!("ERR Library {name} already exists"));
        }
        self.remove(name);
        for function in &library.functions {
            if self
                .functions
                .contains_key(&function.name.to_ascii_lowercase())
            {
                return Err(format!("ERR Function {} already exists", function.name));
            }
        }
        for function in &library.functions {
            let place = (Arc::clone(&library), function.clone());
            let key = function.name.to_ascii_lowercase();
            self.functions.insert(key, place);
        }
        self.by_name.insert(name.clone(), library);
        Ok(())
    }

    /// Removes a library. Returns false if none has this name.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.functions
            .retain(|_, (library, _)| library.text.name != name);
        self.by_name.remove(name).is_some()
    }

    /// The libraries in these texts, some of which may be here already. Those that cannot be loaded
    /// are named in the log.
    pub(crate) fn read<'t>(
        &self,
        texts: impl Iterator<Item = &'t [u8]>,
        limits: &Limits,
    ) -> Libraries {
        let mut libraries = Libraries::default();
        for text in texts {
            let read = LibraryText::new(text).and_then(|text| match self.get(&text.name) {
                Some(known) if *known.text == text => Ok(Arc::clone(known)),
                _ => load_now(Arc::new(text), limits).map(Arc::new),
            });
            if let Err(fault) = read.and_then(|library| libraries.add(library, false)) {
                tracing::error!(
                    "a library cannot be loaded here, so its functions are not found: {fault}"
                );
            }
        }
        libraries
    }

    pub(crate) fn texts(&self) -> Vec<Vec<u8>> {
        let all = self.all().map(|library| library.text.text.to_vec());
        all.collect()
    }
}

/// Loads a library at once.
///
/// # Errors
/// The text of the error reply.
fn load_now(text: Arc<LibraryText>, limits: &Limits) -> Result<Library, String> {
    let machine = Machine::new(limits.clone());
    let mut machine = machine.map_err(|error| format!("ERR no memory for scripts: {error}"))?;
    let mut event = machine.load(Arc::clone(&text), LOAD_MAX);
    loop {
        event = match event {
            Event::Done(outcome) => {
                return outcome
                    .loaded()
                    .map(|functions| Library { text, functions });
            }
            Event::Slice { .. } => {
                machine.stop();
                return Err(LOAD_TIMEOUT.to_owned());
            }
            _ => machine.resume(Answer::GoOn),
        };
    }
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Registry {
    /// The libraries, with their revision in the cluster.
    current: RwLock<(u64, Arc<Libraries>)>,
    changes: Mutex<()>,
    /// Held during a change of the cluster's libraries, which asks the coordinator.
    cluster_changes: Mutex<()>,
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    pub(crate) fn current(&self) -> Arc<Libraries> {
        self.newest().1
    }

    /// The libraries, with their revision in the cluster.
    pub(crate) fn newest(&self) -> (u64, Arc<Libraries>) {
        let current = self.current.read();
        let current = current.unwrap_or_else(PoisonError::into_inner);
        (current.0, Arc::clone(&current.1))
    }

    fn put(&self, revision: u64, libraries: Libraries) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = (revision, Arc::new(libraries));
    }

    /// Changes the libraries by `make`, and stores the change by `store`, which gets the libraries
    /// before and after the change.
    ///
    /// # Errors
    /// The errors of `make` and `store`.
    pub(crate) fn change<E>(
        &self,
        make: impl FnOnce(&mut Libraries) -> Result<(), E>,
        store: impl FnOnce(&Libraries, &Libraries) -> Result<(), E>,
    ) -> Result<(), E> {
        let _one = lock(&self.changes);
        let before = self.current();
        let mut after = Libraries::clone(&before);
        make(&mut after)?;
        store(&before, &after)?;
        self.put(0, after);
        Ok(())
    }

    /// Takes over the libraries of the cluster. Blocks until they are loaded. Returns false if this
    /// server has these, or newer ones.
    pub(crate) fn adopt(&self, newest: &ClusterFunctions, limits: &Limits) -> bool {
        let _one = lock(&self.changes);
        let (revision, before) = self.newest();
        if newest.revision <= revision {
            return false;
        }
        let libraries = before.read(newest.texts.iter().map(Vec::as_slice), limits);
        self.put(newest.revision, libraries);
        true
    }

    /// Locks the cluster's libraries: no other thread of this server changes them while the lock is
    /// held.
    pub(crate) fn lock_cluster_changes(&self) -> MutexGuard<'_, ()> {
        lock(&self.cluster_changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(name: &str, functions: &[&str]) -> Library {
        let text = format!("#!lua name={name}\n");
        let function = |name: &&str| Registered {
            name: (*name).to_owned(),
            description: None,
            flags: duramen_script::Flags::default(),
        };
        Library {
            text: Arc::new(LibraryText::new(text.as_bytes()).expect("a library")),
            functions: functions.iter().map(function).collect(),
        }
    }

    #[test]
    fn no_two_functions_have_one_name() {
        let registry = Registry::default();
        let add = |name: &str, functions: &[&str], replace: bool| {
            let added = Arc::new(library(name, functions));
            registry.change(|all| all.add(added, replace), |_, _| Ok(()))
        };
        assert_eq!(add("a", &["f", "g"], false), Ok(()));
        assert_eq!(add("b", &["h"], false), Ok(()));
        let exists = |what: &str| Err(format!("ERR {what} already exists"));
        assert_eq!(add("a", &["k"], false), exists("Library a"));
        assert_eq!(add("b", &["h", "F"], true), exists("Function F"));
        assert_eq!(registry.current().functions(), 3, "nothing changed");
        assert_eq!(add("a", &["G", "k"], true), Ok(()));
        let current = registry.current();
        assert!(current.find(b"f").is_none() && current.find(b"K").is_some());
        assert_eq!(current.find(b"g").expect("a function").1.name, "G");
        let stored: Result<(), &str> = registry.change(
            |all| all.remove("a").then_some(()).ok_or("none"),
            |_, _| Err("the disk is full"),
        );
        assert_eq!(stored, Err("the disk is full"));
        assert!(registry.current().get("a").is_some());
    }
}
