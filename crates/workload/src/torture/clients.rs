//! The other clients of a run: transfers, counters, crossing deletions, scans, fillers, and rough
//! ones.

use super::own::Own;
use super::plan::{self, Plan};
use super::rough::Rough;
use super::setting::{COUNTERS, Setting, is_refusal};
use super::wire::{Command, Result, Trouble, Wire, command, shown, words};
use crate::resp::Reply;
use duramen_base::random::Random;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Accounts between which money is transferred, and the amount on each at the start.
const ACCOUNTS: usize = 16;
const START: i64 = 1_000;
/// Keys that stay unchanged, for scans.
const STABLE: usize = 200;
/// Longest value of a filler: memory is full after a few seconds.
const FILL_BYTES_MAX: usize = 64 << 10;
/// Old keys that one command deletes.
const BATCH: usize = 500;

/// One client of a run.
pub(crate) enum Client {
    Own(Own),
    Transfer(Random),
    Counter(Random),
    Crossing(Crossing),
    Scan(Random),
    Fill(Random),
    Rough(Rough),
}

impl Client {
    /// The client of this number; kinds alternate.
    pub(crate) fn new(number: usize, plan: &Plan, clients: usize) -> Client {
        let seed = plan
            .seed
            .wrapping_mul(1_000_003)
            .wrapping_add(number as u64);
        let random = Random::new(seed);
        match number % 8 {
            0..3 => Client::Own(Own::new(number, seed)),
            4 if plan.full && number % 16 == 12 => Client::Fill(random),
            3 => Client::Transfer(random),
            4 => Client::Counter(random),
            5 | 6 => Client::Crossing(Crossing::new(number, clients, plan, random)),
            _ if number % 16 == 7 => Client::Scan(random),
            _ => Client::Rough(Rough::new(random)),
        }
    }

    pub(crate) fn turn(&mut self, wire: &mut Wire, setting: &Setting) -> Result<()> {
        match self {
            Client::Own(own) => own.turn(wire, setting),
            Client::Transfer(random) => transfer(random, wire, setting),
            Client::Counter(random) => count(random, wire, setting),
            Client::Crossing(crossing) => crossing.turn(wire, setting),
            Client::Scan(random) => scan(random, wire, setting),
            Client::Fill(random) => fill(random, wire, setting),
            Client::Rough(rough) => rough.turn(wire, setting),
        }
    }

    /// Its connection ended: state for the old connection is dropped.
    pub(crate) fn lost(&mut self) {
        if let Client::Crossing(crossing) = self {
            crossing.uncertain = true;
        }
    }
}

/// Writes the data that must exist before the clients begin.
pub(crate) fn load(wire: &mut Wire, plan: &Plan) -> Result<()> {
    let mut lines: Vec<Command> = Vec::new();
    for account in 0..ACCOUNTS {
        lines.push(words(&format!("SET t:{account} {START}")));
    }
    for stable in 0..STABLE {
        lines.push(words(&format!("SET s:{stable} stable")));
    }
    for old in 0..plan.old_keys {
        lines.push(words(&format!("SET old:{old} {old}")));
    }
    for some in lines.chunks(1_000) {
        wire.send_all(some)?;
        for line in some {
            let reply = wire.reply(&shown(line))?;
            if reply != Reply::Simple("OK".to_owned()) && !is_refusal(&reply) {
                return Err(wrong(line, &reply));
            }
        }
    }
    Ok(())
}

fn wrong(asked: &Command, reply: &Reply) -> Trouble {
    Trouble::Failed(format!("{}: {reply:?}", shown(asked)))
}

/// Moves an amount from one account to another in one transaction, or checks the sum.
fn transfer(random: &mut Random, wire: &mut Wire, setting: &Setting) -> Result<()> {
    if !setting.plan.keeps_keys() {
        return wire.ask("PING").map(drop);
    }
    if random.index(3) == 0 {
        return check_sum(wire);
    }
    let from = random.index(ACCOUNTS);
    let to = (from + 1 + random.index(ACCOUNTS - 1)) % ACCOUNTS;
    let amount = random.index(10);
    let watched = random.index(2) == 0;
    let mut sets = [
        format!("DECRBY t:{from} {amount}"),
        format!("INCRBY t:{to} {amount}"),
    ];
    if watched {
        wire.ask(&format!("WATCH t:{from} t:{to}"))?;
        let mut held = [0, 0];
        for (place, account) in held.iter_mut().zip([from, to]) {
            let asked = words(&format!("GET t:{account}"));
            match wire.call(&asked)? {
                Reply::Bulk(text) => *place = number(&text, &asked)?,
                other => return Err(wrong(&asked, &other)),
            }
        }
        let amount = amount as i64;
        sets = [
            format!("SET t:{from} {}", held[0] - amount),
            format!("SET t:{to} {}", held[1] + amount),
        ];
    }
    let commands = [
        words("MULTI"),
        words(&sets[0]),
        words(&sets[1]),
        words("EXEC"),
    ];
    wire.send_all(&commands)?;
    let replies: Vec<Reply> = commands
        .iter()
        .map(|asked| wire.reply(&shown(asked)))
        .collect::<Result<_>>()?;
    match &replies[3] {
        Reply::Array(parts) if !parts.iter().any(|part| matches!(part, Reply::Error(_))) => Ok(()),
        // Either part alone would change the sum.
        Reply::Array(parts) if parts.iter().all(is_refusal) => Ok(()),
        Reply::Null if watched => Ok(()),
        refused if is_refusal(refused) => Ok(()),
        other => Err(wrong(&commands[3], other)),
    }
}

fn number(text: &[u8], asked: &Command) -> Result<i64> {
    let text = String::from_utf8_lossy(text);
    text.parse()
        .map_err(|_| Trouble::Failed(format!("{}: no number: {text}", shown(asked))))
}

/// All accounts, read in one step, have the sum of the start.
pub(crate) fn check_sum(wire: &mut Wire) -> Result<()> {
    let mut asked = words("MGET");
    asked.extend((0..ACCOUNTS).map(|account| format!("t:{account}").into_bytes()));
    let reply = wire.call(&asked)?;
    let Reply::Array(parts) = &reply else {
        return if is_refusal(&reply) {
            Ok(())
        } else {
            Err(wrong(&asked, &reply))
        };
    };
    let mut sum = 0;
    for part in parts {
        let Reply::Bulk(text) = part else {
            return Err(wrong(&asked, &reply));
        };
        sum += number(text, &asked)?;
    }
    if sum != START * ACCOUNTS as i64 {
        return Err(Trouble::Failed(format!(
            "accounts add up to {sum}: {parts:?}"
        )));
    }
    Ok(())
}

/// Increments a counter that others increment too.
fn count(random: &mut Random, wire: &mut Wire, setting: &Setting) -> Result<()> {
    let counter = random.index(COUNTERS);
    let uncertain = &setting.uncertain[counter];
    uncertain.fetch_add(1, Ordering::Relaxed);
    let asked = words(&format!("INCR c:{counter}"));
    let reply = wire.call(&asked)?;
    uncertain.fetch_sub(1, Ordering::Relaxed);
    match &reply {
        Reply::Number(_) => {
            setting.counted[counter].fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        refused if is_refusal(refused) => Ok(()),
        other => Err(wrong(&asked, other)),
    }
}

/// Each counter has every acknowledged increment, and at most the uncertain ones besides.
pub(crate) fn check_counters(wire: &mut Wire, setting: &Setting) -> Result<()> {
    for counter in 0..COUNTERS {
        let asked = words(&format!("GET c:{counter}"));
        let least = setting.counted[counter].load(Ordering::Relaxed);
        let most = least + setting.uncertain[counter].load(Ordering::Relaxed);
        let found = match wire.call(&asked)? {
            Reply::Bulk(text) => number(&text, &asked)?,
            Reply::Null => 0,
            other => return Err(wrong(&asked, &other)),
        };
        if !(least..=most).contains(&found) {
            return Err(Trouble::Failed(format!(
                "counter {counter} is {found}, not {least} to {most}"
            )));
        }
    }
    Ok(())
}

/// Deletes old keys of its own in large batches, and writes and deletes shared keys in crossing
/// orders: the deadlock of 2026 needed nothing more.
pub(crate) struct Crossing {
    /// Its share of the old keys: every `step`-th from `first` on.
    first: usize,
    step: usize,
    total: usize,
    random: Random,
    /// Numbers of its batches that are deleted.
    gone: BTreeSet<usize>,
    /// A reply was lost: counts of deletions are not checked any more.
    pub(crate) uncertain: bool,
}

impl Crossing {
    fn new(number: usize, clients: usize, plan: &Plan, random: Random) -> Crossing {
        Crossing {
            first: number,
            step: clients,
            total: plan.old_keys,
            random,
            gone: BTreeSet::new(),
            uncertain: false,
        }
    }

    fn batch(&self, number: usize) -> Vec<usize> {
        let own = (self.first..self.total).step_by(self.step);
        own.skip(number * BATCH).take(BATCH).collect()
    }

    fn turn(&mut self, wire: &mut Wire, setting: &Setting) -> Result<()> {
        match self.random.index(4) {
            0 | 1 => self.old(wire, setting),
            _ => self.shared(wire),
        }
    }

    fn old(&mut self, wire: &mut Wire, setting: &Setting) -> Result<()> {
        let batches = self.total.div_ceil(self.step).div_ceil(BATCH).max(1);
        let number = self.random.index(batches);
        let keys = self.batch(number);
        if keys.is_empty() {
            return Ok(());
        }
        let names = keys.iter().map(|key| format!("old:{key}").into_bytes());
        let is_gone = self.gone.contains(&number);
        let mut asked = words(if is_gone { "MSET" } else { "DEL" });
        for name in names {
            asked.push(name);
            if is_gone {
                asked.push(b"again".to_vec());
            }
        }
        let reply = wire.call(&asked)?;
        match reply {
            Reply::Number(count) if !is_gone => {
                let is_right = count == keys.len() as i64;
                // A load leaves keys out if memory has no room for them; so does a cache.
                if !is_right && setting.plan.keeps_keys() && !self.uncertain {
                    let refused = setting.watch.refusals.load(Ordering::Relaxed);
                    if refused == 0 && setting.plan.memory_mb >= 128 {
                        return Err(Trouble::Failed(format!(
                            "{}: {count} of {} deleted",
                            shown(&asked),
                            keys.len()
                        )));
                    }
                }
                self.gone.insert(number);
            }
            Reply::Simple(_) if is_gone => {
                self.gone.remove(&number);
            }
            refused if is_refusal(&refused) => {
                setting.watch.refusals.fetch_add(1, Ordering::Relaxed);
            }
            other => return Err(wrong(&asked, &other)),
        }
        Ok(())
    }

    /// Commands over keys that all crossing clients share, in any order.
    fn shared(&mut self, wire: &mut Wire) -> Result<()> {
        let key = |random: &mut Random| format!("x:{}", random.index(400));
        let random = &mut self.random;
        let many = |random: &mut Random, verb: &str, value: &str| {
            let mut line = verb.to_owned();
            for _ in 0..2 + random.index(40) {
                line.push_str(&format!(" {}{value}", key(random)));
            }
            words(&line)
        };
        let mut commands = vec![words("MULTI")];
        match random.index(6) {
            0 => commands = vec![many(random, "DEL", "")],
            1 => commands = vec![many(random, "MSET", " v")],
            2 => commands = vec![many(random, "MSETNX", " v")],
            3 => {
                commands.push(words(&format!("DEL {}", key(random))));
                commands.push(words(&format!("SET {} v", key(random))));
                commands.push(words(&format!("GETDEL {}", key(random))));
            }
            4 => {
                for _ in 0..3 {
                    commands.push(words(&format!("RENAME {} {}", key(random), key(random))));
                }
            }
            _ => {
                commands.push(many(random, "DEL", ""));
                commands.push(many(random, "MSET", " v"));
            }
        }
        if commands.len() > 1 {
            commands.push(words("EXEC"));
        }
        wire.send_all(&commands)?;
        for asked in &commands {
            let reply = wire.reply(&shown(asked))?;
            if let Reply::Error(text) = &reply
                && !is_refusal(&reply)
                && !text.starts_with("ERR no such key")
            {
                return Err(wrong(asked, &reply));
            }
        }
        Ok(())
    }
}

/// Writes values over more keys than memory has room for, and sometimes deletes some of them.
fn fill(random: &mut Random, wire: &mut Wire, setting: &Setting) -> Result<()> {
    let bytes = FILL_BYTES_MAX;
    // A value has half of the longest length on average: twice what memory and flash have room for.
    let room = setting.plan.memory_mb
        + if setting.plan.flash {
            plan::FLASH_MB
        } else {
            0
        };
    let keys = (room as usize) << 22;
    let keys = keys / bytes;
    let value = "v".repeat(1 + random.index(bytes));
    let key = |random: &mut Random| format!("f:{}", random.index(keys));
    let commands: Vec<Command> = match random.index(8) {
        0 => {
            let names: Vec<String> = (0..200).map(|_| key(random)).collect();
            vec![words(&format!("DEL {}", names.join(" ")))]
        }
        _ => (0..50)
            .map(|_| words(&format!("SET {} {value}", key(random))))
            .collect(),
    };
    wire.send_all(&commands)?;
    for asked in &commands {
        let reply = wire.reply(&shown(asked))?;
        if is_refusal(&reply) {
            setting.watch.refusals.fetch_add(1, Ordering::Relaxed);
        } else if let Reply::Error(_) = reply {
            return Err(wrong(asked, &reply));
        }
    }
    Ok(())
}

/// A whole SCAN finds every key that existed during all of it.
fn scan(random: &mut Random, wire: &mut Wire, setting: &Setting) -> Result<()> {
    let mut found = BTreeSet::new();
    let mut cursor = b"0".to_vec();
    let count = [10, 100, 1_000][random.index(3)].to_string();
    // A bound for a cursor that never ends: more turns than there can be keys.
    for _ in 0..1_000_000 {
        let asked = command([
            b"SCAN",
            &cursor,
            b"COUNT",
            count.as_bytes(),
            b"MATCH",
            b"s:*",
        ]);
        let reply = wire.call(&asked)?;
        if is_refusal(&reply) {
            return Ok(());
        }
        let Reply::Array(parts) = &reply else {
            return Err(wrong(&asked, &reply));
        };
        let [Reply::Bulk(next), Reply::Array(keys)] = parts.as_slice() else {
            return Err(wrong(&asked, &reply));
        };
        for key in keys {
            if let Reply::Bulk(key) = key {
                found.insert(key.clone());
            }
        }
        cursor.clone_from(next);
        if cursor == b"0" {
            break;
        }
        if setting.watch.is_stopped() {
            return Ok(());
        }
    }
    if found.len() < STABLE && setting.plan.keeps_keys() {
        let missing: Vec<usize> = (0..STABLE)
            .filter(|key| !found.contains(format!("s:{key}").as_bytes()))
            .collect();
        return Err(Trouble::Failed(format!("SCAN left out s:{missing:?}")));
    }
    Ok(())
}
