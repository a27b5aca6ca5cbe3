//! The store in etcd, through its JSON gateway: for any number of coordinators, one of which leads.
//!
//! **Layout** below the prefix `/duramen/<cluster>/`:
//!
//! ```text
//! leader      the leader's term and name; written once per leadership
//! beat        a number that the leader changes
//! term        the number of the last leadership
//! step        how many changes the leader has made
//! s/<key>     the state, key by key
//! a/<key>     advice, key by key (store::M4)
//! p/<number>  parts of a batch that is too large for one transaction
//! commit      the number of parts, and the number of applied ones: the batch is committed, and is
//!             being applied
//! ```
//!
//! **Invariants**
//! - T1: every transaction of a leader compares the revision at which it wrote `leader`. A
//!   coordinator that takes over writes `leader`, so no late transaction of a deposed leader is
//!   applied after that (store::M1).
//! - T2: a coordinator deposes the leader when it has seen the same `beat` for as long as the
//!   lease, by its own clock. A wrong clock deposes a leader early, and has no other effect.
//! - T3: a batch is one transaction, or, if it is too large for etcd's limits, parts that have no
//!   effect until `commit` is written in one transaction. From then on they are applied, by the
//!   next leader if this one ends, before anything else is read or written. A part is applied in
//!   one transaction with the new count of applied parts: the next leader continues behind it.
//! - T4: a change of the state compares `step` and raises it. A change that is tried again takes
//!   effect once, and a delayed change does not take effect after younger ones (store::M2).
//!
//! It uses no etcd lease: etcd 3.4 gives none below two seconds, and T1 does not need one. It does
//! not use the crate `etcd-client`, which depends on tonic and some hundred other crates, and
//! needs `protoc` to be built; these few requests need a connection and JSON.
//!
//! **Concurrency** one thread, blocking calls, each bounded by its timeouts. Another thread sends
//! signs of life ([`renewal`]) on a connection of its own: loading, applying and storing may take
//! longer than a lease.

mod gateway;
mod http;
mod renewal;

use crate::store::unusable;
use duramen_cluster::coordinator::store::{
    Batch, Contents, Error, MetaStore, Renewal, Term, is_advice,
};
pub use gateway::Access;
use gateway::{Gateway, Row, has_held, revision, rows, transaction};
use http::encode;
use renewal::{COMPACT_EVERY, EtcdRenewal};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Silence of a leader after which another coordinator takes over.
const LEASE: Duration = Duration::from_millis(1200);
/// Longest wait for the answer to one request; beyond it the connection is dropped.
const TIMEOUT: Duration = Duration::from_millis(1000);
/// Time for which a change is tried; beyond it its outcome is unknown. A shorter restart of etcd is
/// not noticed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most operations per transaction; etcd's default limits are 128 operations and 1.5 MiB.
const OPERATIONS_MAX: usize = 100;
const BYTES_MAX: usize = 1 << 20;
/// Most keys per answer.
const PAGE: usize = 1000;

/// The store in etcd; see the module.
pub struct Etcd {
    gateway: Gateway,
    name: String,
    lease: Duration,
    patience: Duration,
    compact_every: Duration,
    leading: Option<Leading>,
    /// Revision of `leader` as this coordinator wrote it last, whether it still leads or not.
    own: Option<i64>,
    seen: Option<LeaderSign>,
    beats: u64,
}

/// A leadership of this coordinator (T1).
#[derive(Clone, Copy)]
struct Leading {
    revision: i64,
    term: Term,
    /// Changes made so far (T4).
    step: u64,
}

/// The last sign of life of another leader (T2).
struct LeaderSign {
    leader: i64,
    beat: i64,
    since: Instant,
}

impl Etcd {
    /// The store of a cluster on these endpoints (`host:port`, at least one). `name`: of this
    /// coordinator.
    ///
    /// # Panics
    /// If there is no endpoint.
    pub fn new(endpoints: &[String], cluster: &str, name: &str) -> Etcd {
        Etcd {
            gateway: Gateway::new(endpoints, format!("/duramen/{cluster}/"), TIMEOUT),
            name: name.to_owned(),
            lease: LEASE,
            patience: PATIENCE,
            compact_every: COMPACT_EVERY,
            leading: None,
            own: None,
            seen: None,
            beats: 0,
        }
    }

    /// Uses etcd by TLS, or as one of its users.
    #[must_use]
    pub fn with_access(mut self, access: Access) -> Etcd {
        self.gateway.set_access(access);
        self
    }

    /// Changes the silence after which another coordinator takes over. All coordinators of a
    /// cluster must have the same.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Etcd {
        self.lease = lease;
        self
    }

    /// Changes the time for which a change is tried.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Etcd {
        self.patience = patience;
        self
    }

    /// Changes the interval of compactions.
    #[must_use]
    pub fn with_compaction(mut self, every: Duration) -> Etcd {
        self.compact_every = every;
        self
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Value {
        self.gateway.put(key, value)
    }

    /// Whether the comparisons held, so that the operations were done; and the whole answer.
    fn transact(
        &mut self,
        compare: &Value,
        operations: &[Value],
        otherwise: &[Value],
    ) -> Result<(bool, Value), Error> {
        let body = transaction(compare, operations, otherwise);
        let answer = self.gateway.ask("/v3/kv/txn", &body)?;
        Ok((has_held(&answer), answer))
    }

    /// A leader's transaction that does not change the state (T1).
    fn led(&mut self, operations: &[Value]) -> Result<(), Error> {
        let leading = self.leading.ok_or(Error::Deposed)?;
        let compare = json!([self.gateway.is_at(b"leader", leading.revision)]);
        let (held, _) = self.transact(&compare, operations, &[])?;
        if !held {
            self.leading = None;
            return Err(Error::Deposed);
        }
        Ok(())
    }

    /// A change of the state, tried until it is done or `patience` is over (T1, T4).
    fn change(&mut self, mut operations: Vec<Value>) -> Result<(), Error> {
        let leading = self.leading.ok_or(Error::Deposed)?;
        let next = (leading.step + 1).to_string();
        let compare = json!([
            self.gateway.is_at(b"leader", leading.revision),
            {
                "key": encode(&self.gateway.key(b"step")),
                "target": "VALUE",
                "result": "EQUAL",
                "value": encode(leading.step.to_string().as_bytes()),
            },
        ]);
        operations.push(self.put(b"step", next.as_bytes()));
        let otherwise = [self.gateway.get(b"leader"), self.gateway.get(b"step")];
        let until = Instant::now() + self.patience;
        let body = transaction(&compare, &operations, &otherwise);
        let answer = self.gateway.ask_until(until, "/v3/kv/txn", &body)?;
        let mut done = has_held(&answer);
        if !done {
            let mut found = answer["responses"].as_array().into_iter().flatten();
            let mut row = || rows(&found.next()?["response_range"]).ok()?.pop();
            let (leader, step) = (row(), row());
            let leads = leader.is_some_and(|row| row.revision == leading.revision);
            // An earlier try took effect, and its answer was lost.
            done = leads && step.is_some_and(|row| row.value == next.as_bytes());
        }
        if !done {
            self.leading = None;
            return Err(Error::Deposed);
        }
        if let Some(leading) = &mut self.leading {
            leading.step += 1;
        }
        Ok(())
    }

    fn read(&mut self, key: &[u8]) -> Result<Option<Row>, Error> {
        let body = json!({ "key": encode(&self.gateway.key(key)) });
        let answer = self.gateway.ask("/v3/kv/range", &body)?;
        Ok(rows(&answer)?.pop())
    }

    /// All keys with the prefix `letter/`, without the prefix.
    fn read_all(&mut self, letter: u8) -> Result<Contents, Error> {
        let mut from = self.gateway.key(&[letter, b'/']);
        let skip = from.len();
        let end = self.gateway.key(&[letter, b'/' + 1]);
        let mut contents = Contents::new();
        loop {
            let body = json!({
                "key": encode(&from),
                "range_end": encode(&end),
                "limit": PAGE.to_string(),
            });
            // If a page fails, only that page is read again.
            let until = Instant::now() + self.patience;
            let answer = self.gateway.ask_until(until, "/v3/kv/range", &body)?;
            let page = rows(&answer)?;
            let is_last = page.len() < PAGE;
            for row in page {
                from.clone_from(&row.key);
                let key = row.key.get(skip..).unwrap_or_default();
                contents.insert(key.to_vec(), row.value);
            }
            if is_last {
                return Ok(contents);
            }
            from.push(0); // the first key after it
        }
    }

    /// Applies the remaining parts of a committed batch (T3).
    fn redo(&mut self) -> Result<(), Error> {
        let Some(commit) = self.read(b"commit")? else {
            return Ok(());
        };
        let text = String::from_utf8(commit.value).unwrap_or_default();
        let (count, done) = text.split_once(' ').unwrap_or((&text, "0"));
        let number = |text: &str| text.parse::<usize>();
        let (Ok(count), Ok(done)) = (number(count), number(done)) else {
            return Err(unusable("`commit` is no number"));
        };
        let parts = self.read_all(b'p')?;
        for number in done..count {
            let part = parts.get(format!("{number:08}").as_bytes());
            let part = part.ok_or_else(|| unusable("a part of a committed batch is missing"))?;
            let mut operations: Vec<Value> =
                serde_json::from_slice(part).map_err(|_| unusable("a part is damaged"))?;
            let note = format!("{count} {}", number + 1);
            operations.push(self.put(b"commit", note.as_bytes()));
            self.change(operations)?;
        }
        let end = vec![
            self.gateway.delete(b"commit"),
            self.gateway.delete_all(b'p'),
        ];
        self.change(end)
    }

    fn commit_in_parts(&mut self, operations: Vec<Value>) -> Result<(), Error> {
        let mut count = 0;
        let mut rest = operations.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(OPERATIONS_MAX).take_while(|operation| {
                bytes += operation.to_string().len();
                bytes < BYTES_MAX / 2
            });
            let (part, after) = rest.split_at(fits.count().max(1));
            let value = Value::from(part.to_vec()).to_string();
            let put = self.put(format!("p/{count:08}").as_bytes(), value.as_bytes());
            self.change(vec![put])?;
            rest = after;
            count += 1;
        }
        let commit = self.put(b"commit", count.to_string().as_bytes());
        self.change(vec![commit])?;
        self.redo()
    }

    /// The last leader (an empty value: it has resigned), and its last sign of life's revision.
    fn look(&mut self) -> Result<(Option<Row>, i64), Error> {
        let leader = self.read(b"leader")?;
        let beat = self.read(b"beat")?.map_or(0, |row| row.revision);
        Ok((leader, beat))
    }

    fn take_over(
        &mut self,
        leader: Option<&Row>,
        beat: i64,
        last: Term,
    ) -> Result<Option<Term>, Error> {
        let term = Term(last.0 + 1);
        let at = leader.map_or(0, |row| row.revision);
        let compare = json!([
            self.gateway.is_at(b"leader", at),
            self.gateway.is_at(b"beat", beat),
        ]);
        let value = format!("{} {}", term.0, self.name);
        self.beats += 1;
        let operations = [
            self.put(b"leader", value.as_bytes()),
            self.put(b"beat", self.beats.to_string().as_bytes()),
            self.put(b"term", term.0.to_string().as_bytes()),
            self.put(b"step", b"0"),
        ];
        let (won, answer) = self.transact(&compare, &operations, &[])?;
        self.seen = None;
        if !won {
            return Ok(None);
        }
        let revision = revision(&answer)?;
        self.own = Some(revision);
        self.leading = Some(Leading {
            revision,
            term,
            step: 0,
        });
        Ok(Some(term))
    }

    fn try_acquire(&mut self) -> Result<Option<Term>, Error> {
        let (leader, beat) = self.look()?;
        let term = self.read(b"term")?.map_or(Ok(0), |row| {
            let text = String::from_utf8(row.value).unwrap_or_default();
            text.parse().map_err(|_| unusable("`term` is no number"))
        })?;
        if let Some(row) = leader.as_ref().filter(|row| !row.value.is_empty()) {
            let is_same = |seen: &&LeaderSign| seen.leader == row.revision && seen.beat == beat;
            match self.seen.as_ref().filter(is_same) {
                Some(seen) if seen.since.elapsed() >= self.lease => {} // T2
                _ if self.own == Some(row.revision) => {} // this one led, and does not lead now
                Some(_) => return Ok(None),
                None => {
                    self.seen = Some(LeaderSign {
                        leader: row.revision,
                        beat,
                        since: Instant::now(),
                    });
                    return Ok(None);
                }
            }
        }
        self.take_over(leader.as_ref(), beat, Term(term))
    }
}

impl MetaStore for Etcd {
    fn acquire(&mut self) -> Result<Option<Term>, Error> {
        self.leading = None;
        let result = self.try_acquire();
        if result.is_err() {
            self.seen = None; // T2: a failed read does not prove silence
        }
        result
    }

    fn renewal(&self) -> Option<Box<dyn Renewal>> {
        let leader = self.leading.map(|leading| leading.revision);
        Some(Box::new(EtcdRenewal {
            gateway: self.gateway.twin(TIMEOUT),
            leader,
            beats: self.beats,
            compact_every: self.compact_every,
            revision: leader.unwrap_or(0),
            old: None,
        }))
    }

    fn lease_ms(&self) -> u64 {
        self.lease.as_millis() as u64
    }

    fn load(&mut self) -> Result<Contents, Error> {
        self.led(&[])?;
        self.redo()?;
        let mut contents = self.read_all(b's')?;
        contents.extend(self.read_all(b'a')?);
        self.led(&[])?; // it still leads: no other coordinator wrote meanwhile
        Ok(contents)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut bytes = 0;
        let mut operations = Vec::new();
        for (key, value) in batch.changes() {
            let place = if is_advice(key) { b"a/" } else { b"s/" };
            let key = [place, key].concat();
            bytes += key.len() + value.map_or(0, <[u8]>::len);
            operations.push(match value {
                Some(value) => self.put(&key, value),
                None => self.gateway.delete(&key),
            });
        }
        if operations.len() <= OPERATIONS_MAX && bytes <= BYTES_MAX {
            self.change(operations)
        } else {
            self.commit_in_parts(operations)
        }
    }

    fn leader(&mut self) -> Result<Option<String>, Error> {
        let (leader, _) = self.look()?;
        let value = leader.map(|row| String::from_utf8_lossy(&row.value).into_owned());
        Ok(value.and_then(|value| Some(value.split_once(' ')?.1.to_owned())))
    }

    fn resign(&mut self) {
        if self.leading.is_some() {
            // If this fails, the others wait for the end of the lease.
            let no_leader = self.put(b"leader", b"");
            let _ = self.led(&[no_leader]);
            self.leading = None;
        }
    }
}

impl Etcd {
    /// The term of this coordinator's leadership, which may have ended unnoticed.
    pub fn term(&self) -> Option<Term> {
        self.leading.map(|leading| leading.term)
    }
}
