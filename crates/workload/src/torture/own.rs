//! A client with keys of its own: its model gives the right reply to each command.
//!
//! **Invariants**
//! - O1: only this client writes its keys, so each reply is determined by its model.
//! - O2: a command that is refused for lack of room changes nothing, however many keys
//!   it names.
//! - O3: after a lost connection the keys have the state after some prefix of the sent
//!   commands. Each command counts as a whole. Where memory may be full, each of them may have been
//!   refused.

use super::setting::{Setting, is_refusal};
use super::wire::{Command, Result, Trouble, Wire, command, shown};
use crate::resp::Reply;
use duramen_base::random::Random;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

/// Keys of one client.
const KEYS: usize = 24;
/// Most commands of one pipeline.
const PIPELINE_MAX: usize = 16;

/// Most states of the keys that are distinguished after a lost connection.
const STATES_MAX: usize = 1 << 15;

/// Operations that a report of a failure shows.
const HISTORY: usize = 40;

type Keys = BTreeMap<usize, Vec<u8>>;

/// A command, its effect on the keys, and its reply if it is executed.
#[derive(Clone)]
enum Op {
    Get(usize),
    Set(usize, Vec<u8>),
    SetGet(usize, Vec<u8>),
    SetNew(usize, Vec<u8>),
    Append(usize, Vec<u8>),
    GetDel(usize),
    Length(usize),
    Delete(Vec<usize>),
    Exists(Vec<usize>),
    SetMany(Vec<(usize, Vec<u8>)>),
    SetManyNew(Vec<(usize, Vec<u8>)>),
    GetMany(Vec<usize>),
    Rename(usize, usize),
    Copy(usize, usize),
    /// Between MULTI and EXEC.
    Together(Vec<Op>),
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut commands = Vec::new();
        self.send(|key| key.to_string().into_bytes(), &mut commands);
        let lines: Vec<String> = commands.iter().map(shown).collect();
        f.write_str(&lines.join("; "))
    }
}

pub(crate) struct Own {
    number: usize,
    random: Random,
    written: u64,
    keys: Keys,
    /// Sent, and not known to be executed (O3).
    unanswered: Option<Vec<Op>>,
    /// The last operations and their replies, for the report of a failure.
    history: VecDeque<String>,
}

fn bulk(value: Option<&Vec<u8>>) -> Reply {
    value.map_or(Reply::Null, |value| Reply::Bulk(value.clone()))
}

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

impl Op {
    /// Applies the operation to the model; returns the reply.
    fn apply(&self, keys: &mut Keys) -> Reply {
        let count = |keys: &Keys, some: &[usize]| {
            Reply::Number(some.iter().filter(|key| keys.contains_key(key)).count() as i64)
        };
        match self {
            Op::Get(key) => bulk(keys.get(key)),
            Op::Set(key, value) => {
                keys.insert(*key, value.clone());
                ok()
            }
            Op::SetGet(key, value) => bulk(keys.insert(*key, value.clone()).as_ref()),
            Op::SetNew(key, value) => {
                let is_new = !keys.contains_key(key);
                keys.entry(*key).or_insert_with(|| value.clone());
                Reply::Number(is_new.into())
            }
            Op::Append(key, more) => {
                let value = keys.entry(*key).or_default();
                value.extend(more);
                Reply::Number(value.len() as i64)
            }
            Op::GetDel(key) => bulk(keys.remove(key).as_ref()),
            Op::Length(key) => Reply::Number(keys.get(key).map_or(0, Vec::len) as i64),
            Op::Delete(some) => {
                let reply = count(keys, some);
                keys.retain(|key, _| !some.contains(key));
                reply
            }
            Op::Exists(some) => count(keys, some),
            Op::SetMany(pairs) => {
                keys.extend(pairs.iter().cloned());
                ok()
            }
            Op::SetManyNew(pairs) => {
                let is_new = pairs.iter().all(|(key, _)| !keys.contains_key(key));
                if is_new {
                    keys.extend(pairs.iter().cloned());
                }
                Reply::Number(is_new.into())
            }
            Op::GetMany(some) => Reply::Array(some.iter().map(|key| bulk(keys.get(key))).collect()),
            Op::Rename(from, to) => match keys.remove(from) {
                Some(value) => {
                    keys.insert(*to, value);
                    ok()
                }
                None => Reply::Error("ERR no such key".to_owned()),
            },
            Op::Copy(from, to) => {
                let value = keys.get(from).cloned();
                let copied = value.map(|value| keys.insert(*to, value)).is_some();
                Reply::Number(copied.into())
            }
            Op::Together(ops) => Reply::Array(ops.iter().map(|op| op.apply(keys)).collect()),
        }
    }

    /// The commands to send, appended to `commands`.
    fn send(&self, name: impl Fn(usize) -> Vec<u8> + Copy, commands: &mut Vec<Command>) {
        let one = |verb: &[u8], key: usize| command([verb, &name(key)]);
        let with = |verb: &[u8], key: usize, value: &[u8]| command([verb, &name(key), value]);
        let many = |verb: &[u8], some: &[usize]| {
            let mut words = vec![verb.to_vec()];
            words.extend(some.iter().map(|&key| name(key)));
            words
        };
        let pairs = |verb: &[u8], some: &[(usize, Vec<u8>)]| {
            let mut words = vec![verb.to_vec()];
            for (key, value) in some {
                words.extend([name(*key), value.clone()]);
            }
            words
        };
        let last = match self {
            Op::Get(key) => one(b"GET", *key),
            Op::Set(key, value) => with(b"SET", *key, value),
            Op::SetGet(key, value) => command([b"SET", &name(*key), value, b"GET"]),
            Op::SetNew(key, value) => with(b"SETNX", *key, value),
            Op::Append(key, more) => with(b"APPEND", *key, more),
            Op::GetDel(key) => one(b"GETDEL", *key),
            Op::Length(key) => one(b"STRLEN", *key),
            Op::Delete(some) => many(b"DEL", some),
            Op::Exists(some) => many(b"EXISTS", some),
            Op::SetMany(some) => pairs(b"MSET", some),
            Op::SetManyNew(some) => pairs(b"MSETNX", some),
            Op::GetMany(some) => many(b"MGET", some),
            Op::Rename(from, to) => command([b"RENAME", &name(*from), &name(*to)]),
            Op::Copy(from, to) => command([b"COPY", &name(*from), &name(*to), b"REPLACE"]),
            Op::Together(ops) => {
                commands.push(command([b"MULTI"]));
                ops.iter().for_each(|op| op.send(name, commands));
                command([b"EXEC"])
            }
        };
        commands.push(last);
    }

    /// Number of replies before the last one, which is this operation's own.
    fn replies_before(&self) -> usize {
        match self {
            Op::Together(ops) => ops.len() + 1,
            _ => 0,
        }
    }
}

impl Own {
    pub(crate) fn new(number: usize, seed: u64) -> Own {
        Own {
            number,
            random: Random::new(seed),
            written: 0,
            keys: Keys::new(),
            unanswered: None,
            history: VecDeque::new(),
        }
    }

    fn value(&mut self, setting: &Setting) -> Vec<u8> {
        self.written += 1;
        let text = format!("<{} {}>", self.number, self.written);
        let length = match self.random.index(20) {
            0 => self.random.index(setting.plan.value_bytes_max),
            1..4 => self.random.index(4_096.min(setting.plan.value_bytes_max)),
            _ => self.random.index(200),
        };
        text.bytes().cycle().take(length.max(text.len())).collect()
    }

    fn some_keys(&mut self) -> Vec<usize> {
        let count = 1 + self.random.index(10);
        let mut keys: Vec<usize> = (0..count).map(|_| self.random.index(KEYS)).collect();
        keys.sort_unstable();
        keys.dedup();
        // Keys in any order: the order in which two clients lock keys must not matter.
        if self.random.index(2) == 0 {
            keys.reverse();
        }
        keys
    }

    fn some_pairs(&mut self, setting: &Setting) -> Vec<(usize, Vec<u8>)> {
        let keys = self.some_keys();
        keys.into_iter()
            .map(|key| (key, self.value(setting)))
            .collect()
    }

    fn draw(&mut self, setting: &Setting) -> Op {
        let key = self.random.index(KEYS);
        match self.random.index(20) {
            0..4 => Op::Get(key),
            4..7 => Op::Set(key, self.value(setting)),
            7 => Op::SetGet(key, self.value(setting)),
            8 => Op::SetNew(key, self.value(setting)),
            9 if self.keys.get(&key).is_none_or(|value| value.len() < 4_096) => {
                Op::Append(key, b"more".to_vec())
            }
            10 => Op::GetDel(key),
            11 => Op::Length(key),
            12 => Op::Delete(self.some_keys()),
            13 => Op::Exists(self.some_keys()),
            14 => Op::SetMany(self.some_pairs(setting)),
            15 => Op::SetManyNew(self.some_pairs(setting)),
            16 => Op::Rename(key, self.random.index(KEYS)),
            17 => Op::Copy(key, (key + 1 + self.random.index(KEYS - 1)) % KEYS),
            18 => {
                let count = 1 + self.random.index(5);
                let ops = (0..count).map(|_| self.draw_single(setting)).collect();
                Op::Together(ops)
            }
            _ => Op::GetMany(self.some_keys()),
        }
    }

    /// An operation that is allowed between MULTI and EXEC.
    fn draw_single(&mut self, setting: &Setting) -> Op {
        loop {
            let op = self.draw(setting);
            if !matches!(op, Op::Together(_)) {
                return op;
            }
        }
    }

    /// Sends some operations at once and checks each reply (O1, O2).
    pub(crate) fn turn(&mut self, wire: &mut Wire, setting: &Setting) -> Result<()> {
        if let Some(ops) = self.unanswered.take() {
            self.settle(wire, setting, ops)?;
        }
        let count = 1 + self.random.index(PIPELINE_MAX);
        let ops: Vec<Op> = (0..count).map(|_| self.draw(setting)).collect();
        let number = self.number;
        let name = |key: usize| format!("o:{number}:{key}").into_bytes();
        let mut commands = Vec::new();
        ops.iter().for_each(|op| op.send(name, &mut commands));
        let sent = wire.send_all(&commands);
        for (at, op) in ops.iter().enumerate() {
            let outcome = match &sent {
                Ok(()) => self.check(wire, op, name, setting),
                Err(Trouble::Gone(reason)) => Err(Trouble::Gone(reason.clone())),
                Err(Trouble::Failed(reason)) => Err(Trouble::Failed(reason.clone())),
            };
            if let Err(trouble) = outcome {
                self.unanswered = Some(ops[at..].to_vec());
                return Err(trouble);
            }
        }
        Ok(())
    }

    fn check(
        &mut self,
        wire: &mut Wire,
        op: &Op,
        name: impl Fn(usize) -> Vec<u8> + Copy,
        setting: &Setting,
    ) -> Result<()> {
        let mut sent = Vec::new();
        op.send(name, &mut sent);
        let asked = sent.last().map(shown).unwrap_or_default();
        let mut refused_early = false;
        for _ in 0..op.replies_before() {
            let reply = wire.reply(&asked)?;
            refused_early |= matches!(reply, Reply::Error(_));
        }
        let reply = wire.reply(&asked)?;
        self.note(format!("{op:?}: {reply:?}"));
        if is_refusal(&reply) || refused_early {
            setting.watch.refusals.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if let (Op::Together(ops), Reply::Array(parts)) = (op, &reply)
            && parts.iter().any(is_refusal)
        {
            return self.check_parts(ops, parts, &asked, setting);
        }
        let expected = op.apply(&mut self.keys);
        if reply == expected || !setting.plan.keeps_keys() {
            if !setting.plan.keeps_keys() {
                self.keys.clear();
            }
            return Ok(());
        }
        Err(Trouble::Failed(
            self.told(differs(&asked, &reply, &expected)),
        ))
    }

    fn note(&mut self, line: String) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(line.chars().take(400).collect());
    }

    /// A sentence with the operations before it.
    fn told(&self, sentence: String) -> String {
        let lines: Vec<&str> = self.history.iter().map(String::as_str).collect();
        format!("{sentence}\nbefore it:\n{}", lines.join("\n"))
    }

    /// EXEC in which some commands were refused: the others were executed in their order.
    fn check_parts(
        &mut self,
        ops: &[Op],
        parts: &[Reply],
        asked: &str,
        setting: &Setting,
    ) -> Result<()> {
        setting.watch.refusals.fetch_add(1, Ordering::Relaxed);
        for (op, part) in ops.iter().zip(parts) {
            if is_refusal(part) {
                continue;
            }
            let expected = op.apply(&mut self.keys);
            if *part != expected && setting.plan.keeps_keys() {
                return Err(Trouble::Failed(self.told(differs(asked, part, &expected))));
            }
        }
        Ok(())
    }

    /// The possible states of the keys after some of these operations: after each prefix, in which
    /// any of them may be left out if they `may_be_refused`. None: too many to be distinguished.
    fn states(&self, ops: &[Op], may_be_refused: bool) -> Option<BTreeSet<Keys>> {
        let mut newest = BTreeSet::from([self.keys.clone()]);
        let mut all = newest.clone();
        for op in ops {
            let after = newest.iter().cloned().map(|mut keys| {
                op.apply(&mut keys);
                keys
            });
            let after: BTreeSet<Keys> = after.collect();
            newest = if may_be_refused {
                newest.union(&after).cloned().collect()
            } else {
                after
            };
            all.extend(newest.iter().cloned());
            if all.len() > STATES_MAX {
                return None;
            }
        }
        Some(all)
    }

    /// Finds the state of the keys among the possible ones (O3).
    fn settle(&mut self, wire: &mut Wire, setting: &Setting, ops: Vec<Op>) -> Result<()> {
        let mut found = Keys::new();
        for key in 0..KEYS {
            let name = format!("o:{}:{key}", self.number).into_bytes();
            let read = wire.call(&command([b"GET", &name]));
            match read.inspect_err(|_| self.unanswered = Some(ops.clone()))? {
                Reply::Bulk(value) => {
                    found.insert(key, value);
                }
                Reply::Null => {}
                other => {
                    self.unanswered = Some(ops);
                    return Err(Trouble::Gone(format!("cannot read back: {other:?}")));
                }
            }
        }
        let may_be_refused =
            setting.plan.full || setting.watch.refusals.load(Ordering::Relaxed) > 0;
        let states = self.states(&ops, may_be_refused);
        let is_possible = states.as_ref().is_none_or(|states| states.contains(&found));
        if !is_possible && setting.plan.keeps_keys() {
            let wrong: Vec<String> = (0..KEYS)
                .filter(|key| found.get(key) != self.keys.get(key))
                .map(|key| {
                    let text = |keys: &Keys| keys.get(&key).map(|value| brief(value));
                    format!("{key}: {:?} for {:?}", text(&found), text(&self.keys))
                })
                .collect();
            return Err(Trouble::Failed(self.told(format!(
                "client {}: after a lost connection its keys are in none of {} states; against those \
                 before: {wrong:?}; it had sent: {ops:?}",
                self.number,
                states.map_or(0, |states| states.len()),
            ))));
        }
        self.note("the connection was lost, and the keys were read back".to_owned());
        self.keys = found;
        Ok(())
    }
}

fn brief(value: &[u8]) -> String {
    let start = String::from_utf8_lossy(&value[..value.len().min(24)]).into_owned();
    format!("{start} ({} bytes)", value.len())
}

fn differs(asked: &str, reply: &Reply, expected: &Reply) -> String {
    let cut = |reply: &Reply| {
        let text = match reply {
            Reply::Bulk(value) => brief(value),
            other => format!("{other:?}"),
        };
        text.chars().take(300).collect::<String>()
    };
    format!(
        "{asked}: {} where {} was expected",
        cut(reply),
        cut(expected)
    )
}
