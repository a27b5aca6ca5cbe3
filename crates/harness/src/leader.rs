//! A real coordinator that leads, and its store in memory.

use crate::settings;
use duramen_base::ids::ClusterId;
use duramen_cluster::coordinator::store::{Batch, Memory, MetaStore};
use duramen_cluster::coordinator::{Config, Coordinator, Input, Output, Token};
use std::collections::VecDeque;

/// The first leader's configuration.
pub fn config() -> Config {
    Config {
        cluster: "test".to_owned(),
        new_id: ClusterId(1),
        name: "coordinator:1".to_owned(),
        term: 1,
        seed: 1,
        settings: settings(),
        balance_after_us: None,
    }
}

/// A coordinator that leads; see the module.
pub struct Leader {
    pub coordinator: Coordinator,
    pub store: Memory,
    pub term: u32,
    /// Whether batches are stored at once.
    pub stores: bool,
    /// Batches that are not stored.
    pub waiting: VecDeque<(Token, Batch)>,
    /// The time of the tick that it asked for last; `u64::MAX` after it.
    pub wakes_at_us: u64,
    /// It dies after so many outputs: the later ones, and what they would store, are lost.
    pub dies_after: Option<u64>,
    pub is_dead: bool,
}

impl Leader {
    /// Takes over from any earlier leader of this store, and returns its first outputs as well. Its
    /// name and term are those of the store.
    pub fn new(now_us: u64, store: &Memory, config: Config) -> (Leader, Vec<Output>) {
        let mut store = store.peer(&config.name);
        store.expire();
        let term = store.acquire().expect("reached").expect("nobody leads").0 as u32;
        let contents = store.load().expect("it leads");
        let config = Config { term, ..config };
        let (coordinator, outputs) = Coordinator::open(now_us, &contents, config)
            .expect("what a coordinator stores another one can read");
        let mut leader = Leader {
            coordinator,
            store,
            term,
            stores: true,
            waiting: VecDeque::new(),
            wakes_at_us: u64::MAX,
            dies_after: None,
            is_dead: false,
        };
        let outputs = leader.carry_out(now_us, outputs);
        (leader, outputs)
    }

    /// Handles an input. Batches are stored, or wait, and the time of the next tick is noted.
    /// Returns the other outputs in their order, also those that follow from a commit.
    pub fn handle(&mut self, now_us: u64, input: Input) -> Vec<Output> {
        if matches!(input, Input::Tick) {
            self.wakes_at_us = u64::MAX;
        }
        let outputs = self.coordinator.handle(now_us, input);
        self.carry_out(now_us, outputs)
    }

    fn carry_out(&mut self, now_us: u64, outputs: Vec<Output>) -> Vec<Output> {
        let mut outputs = VecDeque::from(outputs);
        let mut others = Vec::new();
        while let Some(output) = outputs.pop_front() {
            if let Some(left) = &mut self.dies_after {
                self.is_dead = *left == 0;
                if self.is_dead {
                    break;
                }
                *left -= 1;
            }
            match output {
                Output::Persist { token, batch } if self.stores => {
                    self.store.commit(&batch).expect("it leads");
                    let stored = Input::Persisted { token };
                    outputs.extend(self.coordinator.handle(now_us, stored));
                }
                Output::Persist { token, batch } => self.waiting.push_back((token, batch)),
                Output::WakeAt { at_us } => self.wakes_at_us = at_us,
                other => others.push(other),
            }
        }
        others
    }
}
