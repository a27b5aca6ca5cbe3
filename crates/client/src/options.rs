//! The options of a client.

use crate::error::Error;
use std::time::Duration;

/// Options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Addresses `host:port` of coordinators. One that answers is enough: it names the leader.
    pub coordinators: Vec<String>,
    /// The cluster's name; empty: any cluster.
    pub cluster: String,
    /// The cluster's token, if it has one.
    pub token: Vec<u8>,
    /// Maximum time of a call, failures and recoveries included.
    pub deadline: Duration,
    /// Maximum time to wait for one answer before the request is sent again.
    pub attempt: Duration,
    /// Writes take effect exactly once. If false, a write whose answer is lost may take effect
    /// twice.
    pub exactly_once: bool,
}

impl Options {
    /// The defaults.
    pub fn new<A: Into<String>>(coordinators: impl IntoIterator<Item = A>) -> Options {
        Options {
            coordinators: coordinators.into_iter().map(Into::into).collect(),
            cluster: String::new(),
            token: Vec::new(),
            deadline: Duration::from_secs(30),
            attempt: Duration::from_secs(1),
            exactly_once: true,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Options(what.to_owned()));
        if self.coordinators.is_empty() {
            return wrong("name at least one coordinator, as host:port");
        }
        if self.cluster.len() > 255 || self.token.len() > 1024 {
            return wrong("a cluster's name has at most 255 bytes, a token 1024");
        }
        if self.deadline.is_zero() || self.attempt.is_zero() {
            return wrong("deadline and attempt must be longer than nothing");
        }
        Ok(())
    }
}
