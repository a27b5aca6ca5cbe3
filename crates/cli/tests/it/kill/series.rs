//! A writer's series: a list, a hash, a set, a sorted set and a stream with the same last numbers.
//! Each step adds the next number to all of them and removes the oldest, in a script or in a
//! transaction. After a crash all five have the numbers of one step, which is not before the last
//! acknowledged one and not after the last that was sent.

use super::check::{Totals, number_in};
use super::wire::Wire;
use duramen_wire::resp::Reply;
use std::io;

/// Numbers that a collection keeps.
const KEPT: u64 = 20;
const KINDS: [&str; 5] = ["list", "hash", "set", "scores", "stream"];
const SCRIPT: &str = "local number, item, oldest = ARGV[1], ARGV[2], ARGV[3]
redis.call('RPUSH', KEYS[1], item)
redis.call('LTRIM', KEYS[1], -20, -1)
redis.call('HSET', KEYS[2], number, item)
redis.call('HDEL', KEYS[2], oldest)
redis.call('SADD', KEYS[3], number)
redis.call('SREM', KEYS[3], oldest)
redis.call('ZADD', KEYS[4], number, number)
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -21)
redis.call('XADD', KEYS[5], 'MAXLEN', 20, number .. '-1', 'item', item)
return tonumber(number)";

/// The steps of one writer.
#[derive(Debug, Default)]
pub(crate) struct Series {
    sent: u64,
    acknowledged: u64,
}

fn keys(writer: usize) -> [String; 5] {
    KINDS.map(|kind| format!("{kind}:{writer}"))
}

/// Items have different lengths.
fn item_of(number: u64) -> String {
    format!("{number}:{}", ".".repeat((number % 9 * 30) as usize))
}

impl Series {
    /// Requests the next step. Returns the number of replies before the last one.
    pub(crate) fn send(&mut self, writer: usize, in_script: bool, wire: &mut Wire) -> usize {
        self.sent += 1;
        let keys = keys(writer);
        let [list, hash, set, scores, stream] = keys.each_ref().map(String::as_str);
        let (item, oldest) = (item_of(self.sent), self.sent.saturating_sub(KEPT));
        let (number, oldest) = (self.sent.to_string(), oldest.to_string());
        let (number, item, oldest) = (number.as_str(), item.as_str(), oldest.as_str());
        let ask = |wire: &mut Wire, words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            wire.request(&words);
        };
        if in_script {
            let words = [
                "EVAL", SCRIPT, "5", list, hash, set, scores, stream, number, item, oldest,
            ];
            ask(wire, &words);
            return 0;
        }
        let id = format!("{number}-1");
        let step: [&[&str]; 9] = [
            &["RPUSH", list, item],
            &["LTRIM", list, "-20", "-1"],
            &["HSET", hash, number, item],
            &["HDEL", hash, oldest],
            &["SADD", set, number],
            &["SREM", set, oldest],
            &["ZADD", scores, number, number],
            &["ZREMRANGEBYRANK", scores, "0", "-21"],
            &["XADD", stream, "MAXLEN", "20", &id, "item", item],
        ];
        ask(wire, &["MULTI"]);
        step.iter().for_each(|words| ask(wire, words));
        ask(wire, &["EXEC"]);
        1 + step.len()
    }

    /// The oldest unacknowledged step is answered.
    pub(crate) fn acknowledge(&mut self, reply: &Reply) {
        self.acknowledged += 1;
        let is_done = match reply {
            Reply::Integer(number) => *number as u64 == self.acknowledged,
            Reply::Array(parts) => !parts.iter().any(|part| matches!(part, Reply::Error(_))),
            _ => false,
        };
        assert!(is_done, "step {}: {reply:?}", self.acknowledged);
    }

    /// Compares the five collections after a crash, and continues from what is there.
    pub(crate) fn check(
        &mut self,
        writer: usize,
        wire: &mut Wire,
        wrong: &mut Vec<String>,
        totals: &mut Totals,
    ) {
        let found = read(writer, wire).expect("a fresh server takes requests");
        let last = found[0].last().copied().unwrap_or(0);
        if !(self.acknowledged..=self.sent).contains(&last) {
            wrong.push(format!(
                "series {writer} ends at {last}, and not at {} to {}",
                self.acknowledged, self.sent
            ));
        }
        let expected: Vec<u64> = (last.saturating_sub(KEPT) + 1..=last).collect();
        for (kind, numbers) in KINDS.iter().zip(&found) {
            if *numbers != expected {
                wrong.push(format!(
                    "series {writer} is torn: {kind} has {numbers:?}, and not {expected:?}"
                ));
            }
        }
        totals.checked_keys += KINDS.len() as u64;
        *self = Series {
            sent: last,
            acknowledged: last,
        };
    }
}

/// The numbers in each collection, in order.
fn read(writer: usize, wire: &mut Wire) -> io::Result<[Vec<u64>; 5]> {
    let keys = keys(writer);
    let [list, hash, set, scores, stream] = keys.each_ref().map(|key| key.as_bytes());
    let mut ask = |words: &[&[u8]]| -> io::Result<Vec<Reply>> {
        match wire.ask(words)? {
            Reply::Array(parts) => Ok(parts),
            other => panic!("{words:?}: {other:?}"),
        }
    };
    let list = ask(&[b"LRANGE", list, b"0", b"-1"])?;
    let pairs = ask(&[b"HGETALL", hash])?;
    let set = ask(&[b"SMEMBERS", set])?;
    let scores = ask(&[b"ZRANGE", scores, b"0", b"-1"])?;
    let stream = ask(&[b"XRANGE", stream, b"-", b"+"])?;
    let items = pairs.chunks(2).map(|pair| {
        let number = whole(&pair[1]);
        assert_eq!(number, number_of(&pair[0]), "a field has another's item");
        number
    });
    let entries = stream.iter().map(|entry| {
        let Reply::Array(parts) = entry else {
            panic!("no entry: {entry:?}");
        };
        let Some(Reply::Array(fields)) = parts.get(1) else {
            panic!("no fields: {entry:?}");
        };
        whole(&fields[1])
    });
    let mut hash: Vec<u64> = items.collect();
    let mut set: Vec<u64> = set.iter().map(number_of).collect();
    hash.sort_unstable();
    set.sort_unstable();
    Ok([
        list.iter().map(whole).collect(),
        hash,
        set,
        scores.iter().map(number_of).collect(),
        entries.collect(),
    ])
}

fn number_of(reply: &Reply) -> u64 {
    match reply {
        Reply::Bulk(text) => number_in(text),
        other => panic!("no text: {other:?}"),
    }
}

/// The number of an item, which must be whole.
fn whole(reply: &Reply) -> u64 {
    let number = number_of(reply);
    let item = Reply::Bulk(item_of(number).into_bytes());
    assert_eq!(*reply, item, "a damaged item");
    number
}
