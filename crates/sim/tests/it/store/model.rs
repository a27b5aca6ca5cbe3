//! The promises of a history, key by key.

use std::collections::BTreeMap;

/// The state of a key: a number that was written, or nothing.
pub type Is = Option<u64>;

/// The states of one key, in order, and the last promised ones.
#[derive(Clone, Debug)]
pub struct History {
    /// Each with the highest object version up to there.
    states: Vec<(Is, u64)>,
    /// The last state that survives a kill, and a power cut.
    buffered: usize,
    synced: usize,
}

impl Default for History {
    fn default() -> History {
        History {
            states: vec![(None, 0)],
            buffered: 0,
            synced: 0,
        }
    }
}

impl History {
    pub fn last(&self) -> Is {
        self.states.last().expect("there is always a first state").0
    }

    fn version(&self) -> u64 {
        self.states.last().expect("there is always a first state").1
    }
}

/// All keys.
#[derive(Clone, Debug, Default)]
pub struct Model {
    keys: BTreeMap<Vec<u8>, History>,
}

/// The end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Kill,
    PowerCut,
}

impl Model {
    pub fn is(&self, key: &[u8]) -> Is {
        self.keys.get(key).and_then(History::last)
    }

    pub fn keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.keys.keys()
    }

    pub fn remove(&mut self, key: &[u8]) {
        let history = self.keys.entry(key.to_vec()).or_default();
        history.states.push((None, history.version()));
    }

    /// Versions only grow. (A version that was never promised and is lost may be given again.)
    pub fn write(&mut self, key: &[u8], number: u64, version: u64) {
        let history = self.keys.entry(key.to_vec()).or_default();
        let known = history.version();
        assert!(version > known, "version {version} after {known}");
        history.states.push((Some(number), version));
    }

    /// All states up to now have been acknowledged, or shown by a reply, at a level.
    pub fn promise_all(&mut self, synced: bool) {
        for history in self.keys.values_mut() {
            history.buffered = history.states.len() - 1;
            if synced {
                history.synced = history.buffered;
            }
        }
    }

    /// The present state of this key has been shown to a client.
    pub fn promise_key(&mut self, key: &[u8]) {
        if let Some(history) = self.keys.get_mut(key) {
            history.synced = history.states.len() - 1;
        }
    }

    /// After a crash: the key has its state of some moment at or after the last promise, and keeps
    /// it from here on.
    pub fn settle(&mut self, key: &[u8], found: Is, end: End) {
        let history = self.keys.entry(key.to_vec()).or_default();
        let promised = match end {
            End::Kill => history.buffered.max(history.synced),
            End::PowerCut => history.synced,
        };
        let at = (promised..history.states.len()).find(|n| history.states[*n].0 == found);
        assert!(
            at.is_some(),
            "{:?} is {found:?} after a {end:?}; promised was {:?}, then came {:?}",
            String::from_utf8_lossy(key),
            history.states[promised],
            &history.states[promised + 1..]
        );
        let version = at.map_or(0, |at| history.states[at].1);
        *history = History {
            states: vec![(found, version)],
            buffered: 0,
            synced: 0,
        };
    }
}
