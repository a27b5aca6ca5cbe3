//! Which of the coordinators is asked.

use std::sync::Arc;

/// Addresses of the coordinators, of which one leads at a time.
#[derive(Debug)]
pub struct Coordinators {
    addresses: Vec<Arc<str>>,
    current: usize,
    /// In a row.
    failures: u32,
    last_trouble: Option<String>,
}

impl Coordinators {
    /// # Panics
    /// If there are no addresses: options are checked before.
    pub(super) fn new(addresses: Vec<String>) -> Coordinators {
        assert!(!addresses.is_empty(), "a coordinator's address is needed");
        Coordinators {
            addresses: addresses.into_iter().map(Arc::from).collect(),
            current: 0,
            failures: 0,
            last_trouble: None,
        }
    }

    /// Whom to ask.
    pub fn current(&self) -> Arc<str> {
        self.addresses[self.current].clone()
    }

    /// The current one gave a useful answer.
    pub fn answered(&mut self) {
        self.failures = 0;
        self.last_trouble = None;
    }

    /// No useful answer comes from this address: the next one is the current one. Returns how many failures there were in a row,
    /// per address.
    pub fn failed(&mut self, address: &str, why: &str) -> u32 {
        self.last_trouble = Some(format!("coordinator {address}: {why}"));
        self.failures += 1;
        if *self.addresses[self.current] == *address {
            self.current = (self.current + 1) % self.addresses.len();
        }
        self.failures.div_ceil(self.addresses.len() as u32)
    }

    /// The one at this address does not lead; perhaps it knows who does.
    pub fn redirected(&mut self, address: &str, leader: Option<&str>) {
        let Some(leader) = leader.filter(|leader| *leader != address) else {
            self.failed(address, "does not lead, and does not know who does");
            return;
        };
        self.last_trouble = Some(format!("coordinator {address}: {leader} leads"));
        let known = self.addresses.iter().position(|known| **known == *leader);
        self.current = known.unwrap_or_else(|| {
            self.addresses.push(leader.into());
            self.addresses.len() - 1
        });
    }

    /// For errors.
    pub fn last_trouble(&self) -> Option<&str> {
        self.last_trouble.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Coordinators {
        Coordinators::new(vec!["a".into(), "b".into(), "c".into()])
    }

    #[test]
    fn failures_go_round() {
        let mut all = three();
        assert_eq!(all.failed("a", "refused"), 1);
        assert_eq!(&*all.current(), "b");
        assert_eq!(all.failed("a", "refused"), 1, "late news of another call");
        assert_eq!(&*all.current(), "b");
        assert_eq!(all.failed("b", "refused"), 1);
        assert_eq!(all.failed("c", "refused"), 2);
        assert_eq!(&*all.current(), "a");
        assert_eq!(all.last_trouble(), Some("coordinator c: refused"));
        all.answered();
        assert_eq!(all.failed("a", "refused"), 1);
    }

    #[test]
    fn redirections_are_followed_and_learnt() {
        let mut all = three();
        all.redirected("a", Some("c"));
        assert_eq!(&*all.current(), "c");
        all.redirected("c", Some("d"));
        assert_eq!(&*all.current(), "d");
        all.redirected("d", None);
        assert_eq!(&*all.current(), "a");
    }
}
