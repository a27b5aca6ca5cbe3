//! Random histories of one client against a model of each operation, which takes effect once.
//!
//! A request is sent again at any time: at once, when it is durable, after others of the same key,
//! after its answer was acknowledged. Copies come by old maps, for keys that are not here, and to
//! the master that has replayed the durable part of this one's log.

use crate::serve::world::{Got, SEED, SINCE, TABLE, World, rpc, view};
use duramen_base::expiry::is_expired;
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_base::random::Random;
use duramen_format::hash::KeyHasher;
use duramen_wire::native::message::{Amount, Condition, Expiry, Operation, Single};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const KEYS: u64 = 6;
const CLIENT: u64 = 3;

#[derive(Clone, Debug, PartialEq)]
struct Stored {
    value: Vec<u8>,
    version: u64,
    expires_at_ms: Option<u64>,
}

/// A request that was sent, and its answer.
#[derive(Clone, Debug)]
struct Sent {
    key: Vec<u8>,
    operation: Op,
    id: u64,
    acknowledged: u64,
    answer: Got,
    /// Whether a commit has made it durable.
    is_durable: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Write(Vec<u8>, Condition, Expiry),
    Remove(Condition),
    Add(i64),
}

impl Op {
    fn operation(&self) -> Operation<'_> {
        match self {
            Op::Write(value, condition, expiry) => Operation::Write {
                value,
                condition: *condition,
                expiry: *expiry,
            },
            Op::Remove(condition) => Operation::Remove {
                condition: *condition,
            },
            Op::Add(by) => Operation::Increment {
                by: Amount::Integer(*by),
            },
        }
    }
}

struct History {
    world: World,
    random: Random,
    objects: BTreeMap<Vec<u8>, Stored>,
    /// The highest version that each key ever had.
    versions: BTreeMap<Vec<u8>, u64>,
    sent: Vec<Sent>,
    next_id: u64,
    acknowledged: u64,
    /// The highest acknowledgement of any executed request.
    told: u64,
    /// The operations so far, for messages.
    trace: Vec<String>,
}

type Verdict = Result<(), String>;

/// Whether a condition holds for an object with this version.
fn holds(condition: Condition, current: Option<u64>) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Absent => current.is_none(),
        Condition::Present => current.is_some(),
        Condition::Version(version) => current == Some(version),
        Condition::NewerThan(version) => current.is_none_or(|now| now < version),
    }
}

impl History {
    fn check(&self, holds: bool, what: &str) -> Verdict {
        if holds {
            return Ok(());
        }
        let trace = self.trace[self.trace.len().saturating_sub(30)..].join("\n");
        Err(format!("{what}\n{trace}"))
    }

    fn single<'a>(&self, sent: &'a Sent) -> Single<'a> {
        Single {
            table: TABLE,
            key: &sent.key,
            operation: sent.operation.operation(),
            level: None,
            rpc: rpc(CLIENT, sent.id, sent.acknowledged),
        }
    }

    fn read(&mut self, key: &[u8]) -> Got {
        self.world.do_now(&Single {
            table: TABLE,
            key,
            operation: Operation::Read,
            level: None,
            rpc: None,
        })
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key {}", self.random.below(KEYS)).into_bytes()
    }

    fn condition(&mut self, key: &[u8]) -> Condition {
        let now = self.objects.get(key).map_or(0, |object| object.version);
        match self.random.below(8) {
            0 | 1 => Condition::Absent,
            2 => Condition::Present,
            3 => Condition::Version((now + self.random.below(2)).max(1)),
            4 => Condition::NewerThan(now + self.random.below(2)),
            _ => Condition::Always,
        }
    }

    fn operation(&mut self, key: &[u8]) -> Op {
        match self.random.below(10) {
            0..4 => Op::Add(self.random.below(9) as i64 - 4),
            4..6 => Op::Remove(self.condition(key)),
            _ => {
                let value = match self.random.below(3) {
                    0 => b"no number".to_vec(),
                    _ => self.random.below(100).to_string().into_bytes(),
                };
                let expiry = match self.random.below(4) {
                    0 => Expiry::At(self.world.now_ms() + 1 + self.random.below(40)),
                    1 => Expiry::Keep,
                    _ => Expiry::Never,
                };
                Op::Write(value, self.condition(key), expiry)
            }
        }
    }

    /// Applies an operation to the model, if its answer is right.
    fn apply(&mut self, key: &[u8], operation: &Op, got: &Got) -> Verdict {
        let now_ms = self.world.now_ms();
        let found = self.objects.get(key).cloned();
        let current = found.as_ref().map(|object| object.version);
        let next = self.versions.get(key).copied().unwrap_or(0) + 1;
        let failed = Got::Failed(current);
        let put = |value: Vec<u8>, version: u64, expires_at_ms: Option<u64>| Stored {
            value,
            version,
            expires_at_ms,
        };
        let (is_right, after) = match operation {
            Op::Write(_, condition, _) | Op::Remove(condition) if !holds(*condition, current) => {
                (*got == failed, found.clone())
            }
            Op::Write(value, _, expiry) => {
                let expires_at_ms = match expiry {
                    Expiry::Never => None,
                    Expiry::Keep => found.as_ref().and_then(|object| object.expires_at_ms),
                    Expiry::At(time_ms) => {
                        Some(*time_ms).filter(|time_ms| !is_expired(*time_ms, now_ms))
                    }
                };
                match got {
                    Got::Written(version) => (
                        *version >= next,
                        Some(put(value.clone(), *version, expires_at_ms)),
                    ),
                    _ => (false, None),
                }
            }
            Op::Remove(_) => match &found {
                Some(object) => (*got == Got::Removed(object.version), None),
                None => (*got == Got::Absent, None),
            },
            Op::Add(by) => {
                let old = found.as_ref().map_or(Some(0), |object| {
                    std::str::from_utf8(&object.value).ok()?.parse::<i64>().ok()
                });
                match (old.map(|old| old + by), got) {
                    (None, got) => (*got == Got::NotANumber, found.clone()),
                    (Some(sum), Got::Number(value, version)) => (
                        *value == Amount::Integer(sum) && *version >= next,
                        Some(put(
                            sum.to_string().into_bytes(),
                            *version,
                            found.as_ref().and_then(|object| object.expires_at_ms),
                        )),
                    ),
                    _ => (false, None),
                }
            }
        };
        self.check(is_right, &format!("{operation:?} of {found:?}: {got:?}"))?;
        match after {
            Some(object) => {
                self.versions.insert(key.to_vec(), object.version);
                self.objects.insert(key.to_vec(), object);
            }
            None => {
                self.objects.remove(key);
            }
        }
        Ok(())
    }

    fn send_new(&mut self) -> Verdict {
        let key = self.key();
        let operation = self.operation(&key);
        self.next_id += 1;
        let mut sent = Sent {
            key,
            operation,
            id: self.next_id,
            acknowledged: self.acknowledged,
            answer: Got::Absent,
            is_durable: false,
        };
        let single = self.single(&sent);
        let got = self.world.do_now(&single);
        self.trace.push(format!("{sent:?} -> {got:?}"));
        let (key, operation) = (sent.key.clone(), sent.operation.clone());
        self.apply(&key, &operation, &got)?;
        // Such an answer waits until effect and record are durable.
        let waits = !self.world.wait.is_none() && !self.world.is_durable(&self.world.wait.clone());
        self.check(waits, "the answer does not wait for its record")?;
        self.told = self.told.max(self.acknowledged);
        sent.answer = got;
        self.sent.push(sent);
        Ok(())
    }

    /// A copy of an earlier request, unchanged.
    fn send_again(&mut self) -> Verdict {
        if self.sent.is_empty() {
            return Ok(());
        }
        let back = (self.random.below(12) + 1).min(self.sent.len() as u64) as usize;
        let sent = self.sent[self.sent.len() - back].clone();
        let single = self.single(&sent);
        let got = self.world.do_now(&single);
        self.trace.push(format!("again {sent:?} -> {got:?}"));
        let right = if sent.id <= self.told {
            got == Got::Stale
        } else if sent.is_durable {
            got == sent.answer
        } else {
            got == Got::InProgress
        };
        self.check(right, "a copy was answered otherwise")
    }

    /// A copy that came by a map from before this master owned the key: another server may have
    /// executed it.
    fn send_late(&mut self) -> Verdict {
        let key = self.key();
        let operation = self.operation(&key);
        let sent = Sent {
            key,
            operation,
            id: self.next_id + 100,
            acknowledged: self.acknowledged,
            answer: Got::Absent,
            is_durable: false,
        };
        let single = self.single(&sent);
        let got = self.world.ask(SINCE - 1, &single);
        self.trace.push(format!("late {sent:?} -> {got:?}"));
        self.check(got == Got::UnknownTablet, "a late copy was looked at")
    }

    /// Another server owns the key for a moment.
    fn send_elsewhere(&mut self) -> Verdict {
        let key = self.key();
        let operation = self.operation(&key);
        let route = KeyHasher::new(SEED).route(&key);
        let other = KeyRange::new(RouteHash(route.0 ^ 1 << 60), RouteHash(route.0 ^ 1 << 60));
        let single = Single {
            table: TABLE,
            key: &key,
            operation: operation.operation(),
            level: None,
            rpc: rpc(CLIENT, self.next_id + 1, self.acknowledged),
        };
        self.world.view = view(other);
        let got = self.world.do_now(&single);
        self.world.view = view(KeyRange::ALL);
        self.trace
            .push(format!("elsewhere {operation:?} -> {got:?}"));
        let right = matches!(got, Got::UnknownTablet | Got::UnknownTable | Got::Retry);
        self.check(right, "a key that is not here was looked at")
    }

    fn commit(&mut self) {
        self.trace.push("commit".to_owned());
        self.world.commit();
        self.sent.iter_mut().for_each(|sent| sent.is_durable = true);
    }

    fn acknowledge(&mut self) {
        let undurable = self.sent.iter().find(|sent| !sent.is_durable);
        let up_to = undurable.map_or(self.next_id, |sent| sent.id - 1);
        // Not all of it: the newest requests are those that are sent again.
        self.acknowledged = self
            .acknowledged
            .max(up_to.saturating_sub(self.random.below(6)));
    }

    fn pass_time(&mut self) {
        let by_ms = self.random.below(30);
        self.world.clock_ms.fetch_add(by_ms, Ordering::Relaxed);
        let now_ms = self.world.now_ms();
        self.objects.retain(|_, object| {
            object
                .expires_at_ms
                .is_none_or(|time_ms| !is_expired(time_ms, now_ms))
        });
    }

    /// It crashes; the next owner of its keys has replayed the durable entries.
    fn crash(&mut self) -> Verdict {
        self.commit();
        self.trace.push("crash".to_owned());
        let clock_ms = self.world.now_ms();
        let durable = std::mem::take(&mut self.world.durable);
        self.world = World::with(&durable);
        self.world.durable = durable;
        self.world.clock_ms.store(clock_ms, Ordering::Relaxed);
        self.world.lease(&[CLIENT]);
        Ok(())
    }

    fn look(&mut self) -> Verdict {
        for n in 0..KEYS {
            let key = format!("key {n}").into_bytes();
            let got = self.read(&key);
            let right = match self.objects.get(&key) {
                Some(object) => {
                    Got::Value(object.value.clone(), object.version, object.expires_at_ms)
                }
                None => Got::Absent,
            };
            self.check(got == right, &format!("key {n} is {got:?}, not {right:?}"))?;
        }
        Ok(())
    }
}

/// Runs a history; `Err`: the violation.
pub(crate) fn run(seed: u64) -> Verdict {
    let mut history = History {
        world: World::new(),
        random: Random::new(seed),
        objects: BTreeMap::new(),
        versions: BTreeMap::new(),
        sent: Vec::new(),
        next_id: 0,
        acknowledged: 0,
        told: 0,
        trace: Vec::new(),
    };
    history.world.lease(&[CLIENT]);
    for _ in 0..120 {
        match history.random.below(24) {
            0..8 => history.send_new()?,
            8..15 => history.send_again()?,
            15 => history.send_late()?,
            16 => history.send_elsewhere()?,
            17..20 => history.commit(),
            20 => history.acknowledge(),
            21 => history.pass_time(),
            22 if history.random.below(3) == 0 => history.crash()?,
            _ => history.look()?,
        }
    }
    history.look()
}
