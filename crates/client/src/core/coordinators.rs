//! The choice of the coordinator to ask: the last one that answered, or the leader that another one
//! named.

use std::sync::Arc;

/// Addresses of the coordinators, one of which leads at a time.
#[derive(Debug)]
pub struct Coordinators {
    addresses: Vec<Arc<str>>,
    current: usize,
    /// Consecutive failures.
    failures: u32,
    last_trouble: Option<String>,
    /// The last failure of each coordinator; in the order of `addresses`.
    troubles: Vec<Option<String>>,
}

impl Coordinators {
    /// # Panics
    /// If there are no addresses: the options were checked before this.
    pub(super) fn new(addresses: Vec<String>) -> Coordinators {
        assert!(!addresses.is_empty(), "a coordinator's address is needed");
        Coordinators {
            troubles: vec![None; addresses.len()],
            addresses: addresses.into_iter().map(Arc::from).collect(),
            current: 0,
            failures: 0,
            last_trouble: None,
        }
    }

    /// The address to ask.
    pub fn current(&self) -> Arc<str> {
        self.addresses[self.current].clone()
    }

    /// Notes that the current coordinator gave a useful answer.
    pub fn answered(&mut self) {
        self.failures = 0;
        self.last_trouble = None;
        self.troubles[self.current] = None;
    }

    fn note(&mut self, address: &str, why: &str) {
        self.last_trouble = Some(format!("coordinator {address}: {why}"));
        let known = self.addresses.iter().position(|known| **known == *address);
        if let Some(at) = known {
            self.troubles[at] = Some(why.to_owned());
        }
    }

    /// The last failure of each coordinator that was asked; for error texts.
    pub fn troubles(&self) -> String {
        let all = self.addresses.iter().zip(&self.troubles);
        let said = all.map(|(address, why)| {
            let why = why.as_deref().unwrap_or("not asked");
            format!("{address}: {why}")
        });
        said.collect::<Vec<String>>().join("; ")
    }

    /// Notes that this address gives no useful answer: the next address becomes the current one.
    /// Returns the number of consecutive failures per address.
    pub fn failed(&mut self, address: &str, why: &str) -> u32 {
        self.note(address, why);
        self.failures += 1;
        if *self.addresses[self.current] == *address {
            self.current = (self.current + 1) % self.addresses.len();
        }
        self.failures.div_ceil(self.addresses.len() as u32)
    }

    /// Notes that the coordinator at this address leads, and is to be asked again later.
    pub fn postponed(&mut self, address: &str, why: &str) {
        self.note(address, why);
    }

    /// Notes that the coordinator at this address does not lead; it may name the leader.
    pub fn redirected(&mut self, address: &str, leader: Option<&str>) {
        let Some(leader) = leader.filter(|leader| *leader != address) else {
            self.failed(address, "does not lead, and knows no leader");
            return;
        };
        self.note(address, &format!("{leader} leads"));
        let known = self.addresses.iter().position(|known| **known == *leader);
        self.current = known.unwrap_or_else(|| {
            self.addresses.push(leader.into());
            self.troubles.push(None);
            self.addresses.len() - 1
        });
    }

    /// The last failure, for error texts.
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
        assert_eq!(all.troubles(), "a: refused; b: refused; c: refused");
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
        let troubles =
            "a: c leads; b: not asked; c: d leads; d: does not lead, and knows no leader";
        assert_eq!(all.troubles(), troubles);
    }
}
