//! Random commands of streams: their templates, and what may differ in their replies.
//!
//! Excluded, because Redis 7.0 answers otherwise than 7.4: consumers that are made by asking in
//! vain (here they are made before they ask), the time in which a consumer was inactive, the id `+`
//! of XREAD, `~` of MINID after a removal, an XSETID below the highest deleted id. BLOCK would
//! wait there. Times and nodes of trees are not compared.

use super::Peer;
use super::both;
use super::random::{Generator, Request, ask_bytes};

/// As [`random::TEMPLATES`](super::random), with `e` key of a stream, `new` ascending id, `later`
/// id behind all of them, `id` id that may exist, `end` end of a range of ids, `grp` group, `c`
/// consumer.
pub(crate) const TEMPLATES: &[&str] = &[
    "XADD e new f v",
    "XADD e new f v f v",
    "XADD e new f v f1 v f2 v",
    "XADD e * f v",
    "XADD e id f v",
    "XADD e 3-*|9-*|40-* f v",
    "XADD e NOMKSTREAM new f v",
    "XADD e MAXLEN n new f v",
    "XADD e MAXLEN ~|= n new f v",
    "XADD e MINID id new f v",
    "XADD e MAXLEN ~ n LIMIT n new f v",
    "XADD e MAXLEN n MINID id new f v",
    "XADD e LIMIT n new f v",
    "XADD e MAXLEN n LIMIT n new f v",
    "XADD e MAXLEN -1|x new f v",
    "XADD e new f v f",
    "XADD e 0-0|x|-|+|1-2-3|18446744073709551615 f v",
    "XLEN e",
    "XRANGE e - +",
    "XRANGE e end end",
    "XRANGE e end end COUNT i",
    "XRANGE e end end x",
    "XREVRANGE e + -",
    "XREVRANGE e end end",
    "XREVRANGE e end end COUNT n",
    "XDEL e id+",
    "XDEL e id x",
    "XTRIM e MAXLEN n",
    "XTRIM e MAXLEN ~|= n",
    "XTRIM e MINID id",
    "XTRIM e MAXLEN n LIMIT n",
    "XTRIM e LIMIT n",
    "XTRIM e x n",
    "XSETID e later",
    "XSETID e later ENTRIESADDED n MAXDELETEDID id",
    "XSETID e later ENTRIESADDED 100",
    "XSETID e new x 1",
    "XREAD STREAMS e id",
    "XREAD COUNT n STREAMS e e id $|id|0",
    "XREAD COUNT n STREAMS e e id id",
    "XREAD BLOCK -1|x STREAMS e 0",
    "XREAD COUNT x STREAMS e 0",
    "XREAD STREAMS e >|x|-",
    "XREAD NOACK STREAMS e 0",
    "XREAD GROUP grp c STREAMS e 0",
    "XREAD x STREAMS e 0",
    "XREADGROUP GROUP grp c STREAMS e >",
    "XREADGROUP GROUP grp c COUNT n STREAMS e >",
    "XREADGROUP GROUP grp c COUNT 1 STREAMS e e > >",
    "XREADGROUP GROUP grp c NOACK COUNT 1 STREAMS e >",
    "XREADGROUP GROUP grp c STREAMS e 0|id",
    "XREADGROUP GROUP grp c COUNT 1 STREAMS e 0",
    "XREADGROUP GROUP grp c STREAMS e $|x|-",
    "XREADGROUP COUNT n NOACK STREAMS e >",
    "XGROUP CREATE e grp 0|$|id",
    "XGROUP CREATE e grp 0|$|id MKSTREAM",
    "XGROUP CREATE e grp 0|$|id ENTRIESREAD i MKSTREAM",
    "XGROUP CREATE e grp x|- MKSTREAM",
    "XGROUP CREATE e grp 0 x",
    "XGROUP SETID e grp 0|$|id|-|+|x",
    "XGROUP SETID e grp 0|$|id ENTRIESREAD i",
    "XGROUP SETID e grp 0 MKSTREAM",
    "XGROUP DESTROY e grp",
    "XGROUP CREATECONSUMER e grp c",
    "XGROUP DELCONSUMER e grp c",
    "XGROUP HELP",
    "XGROUP x e grp",
    "XACK e grp id+",
    "XACK e grp id x",
    "XPENDING e grp",
    "XPENDING e grp - + 10",
    "XPENDING e grp end end n",
    "XPENDING e grp end end n c",
    "XPENDING e grp IDLE 0|100000000 - + 10 c",
    "XPENDING e grp IDLE 0 - +",
    "XPENDING e grp - +",
    "XCLAIM e grp c 0|100000000 id+",
    "XCLAIM e grp c 0 id+ JUSTID",
    "XCLAIM e grp c 0 id+ FORCE",
    "XCLAIM e grp c 0 id IDLE 5000|0|-5|x",
    "XCLAIM e grp c 0 id id TIME 1000 RETRYCOUNT n",
    "XCLAIM e grp c 0 id FORCE JUSTID RETRYCOUNT i LASTID id",
    "XCLAIM e grp c 1.5|-1 id",
    "XCLAIM e grp c 0 id x",
    "XAUTOCLAIM e grp c 0|100000000 0|id",
    "XAUTOCLAIM e grp c 0 end COUNT n",
    "XAUTOCLAIM e grp c 0 0 COUNT 1 JUSTID",
    "XAUTOCLAIM e grp c -1|1.5 0",
    "XAUTOCLAIM e grp c 0 0 x",
    "XINFO STREAM e",
    "XINFO STREAM e FULL",
    "XINFO STREAM e FULL COUNT n",
    "XINFO STREAM e x",
    "XINFO STREAM e FULL x 1",
    "XINFO GROUPS e",
    "XINFO CONSUMERS e grp",
    "XINFO HELP",
    "XINFO x e",
    "TYPE e",
    "OBJECT ENCODING e",
    "COPY e e",
    "COPY e e REPLACE",
    "RENAME e e",
    "DEL e",
    "EXPIREAT e 4000000000",
    "EXPIRETIME e",
    "SORT e",
    "LPUSH e v",
    "APPEND e v",
    "XADD h f new v",
    "XLEN h|l|s|z|b",
    "MULTI",
    "EXEC",
];

/// Commands that make entries and groups, which run more often.
pub(crate) const MAKERS: &[&str] = &[
    "XADD e new f v",
    "XADD e new f v",
    "XADD e new f1 v f2 v",
    "XGROUP CREATE e grp 0 MKSTREAM",
    "XREADGROUP GROUP grp c COUNT 2 STREAMS e >",
];

/// The requests that make the consumers for which a request asks.
pub(crate) fn consumers_of(request: &Request) -> Vec<Request> {
    let word = |at: usize| request.get(at).map_or("", String::as_str);
    let make = |key: &str, group: &str, consumer: &str| {
        let words = ["XGROUP", "CREATECONSUMER", key, group, consumer];
        words.map(str::to_owned).to_vec()
    };
    match word(0) {
        "XCLAIM" | "XAUTOCLAIM" => vec![make(word(1), word(2), word(3))],
        "XREADGROUP" => {
            let find = |name: &str| request.iter().position(|word| word == name);
            let (Some(group), Some(streams)) = (find("GROUP"), find("STREAMS")) else {
                return Vec::new();
            };
            let keys = &request[streams + 1..][..(request.len() - streams - 1) / 2];
            let keys = keys.iter();
            keys.map(|key| make(key, word(group + 1), word(group + 2)))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn is_id(line: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    line.split_once('-')
        .is_some_and(|(ms, seq)| is_number(ms) && is_number(seq))
}

/// The lines of a reply without times, nodes of trees, and what only newer versions tell.
pub(crate) fn without_times(reply: &str) -> Vec<String> {
    let lines: Vec<&str> = reply.split("\r\n").collect();
    let tells_more =
        reply.contains("consumers") || reply.contains("inactive") || reply.contains("\r\nidle\r\n");
    let mut seen: Vec<String> = Vec::with_capacity(lines.len());
    for (at, line) in lines.iter().enumerate() {
        let before = |n: usize| at.checked_sub(n).map_or("", |at| lines[at]);
        let is_header = line.starts_with(['*', '%']);
        if tells_more && is_header {
            continue; // the newer versions' maps are longer
        }
        let is_newer = |line: &str| matches!(line, "inactive" | "active-time");
        if is_newer(before(1)) {
            continue;
        }
        if is_newer(line) {
            seen.pop();
            continue;
        }
        let is_time = matches!(
            before(1),
            "idle" | "seen-time" | "radix-tree-keys" | "radix-tree-nodes"
        ) || is_id(before(1))
            || is_id(before(3)) && before(2).starts_with('$');
        if line.starts_with(':') && is_time {
            seen.push(":time".to_owned());
        } else if is_id(line) && line.len() > 13 {
            // An id that the server made.
            seen.pop();
            seen.push("id".to_owned());
        } else {
            seen.push((*line).to_owned());
        }
    }
    seen
}

/// The payload of a bulk reply.
fn bulk(reply: &[u8]) -> &[u8] {
    let start = reply.windows(2).position(|pair| pair == b"\r\n");
    &reply[start.expect("a length") + 2..reply.len() - 2]
}

/// Requests that make streams `k` with groups: of no, few and many entries, short and long ones.
fn makers() -> Vec<Vec<String>> {
    let long = "x".repeat(5000);
    let mut makers = Vec::new();
    for (number, is_long) in [(0, false), (1, true), (3, false), (250, false), (250, true)] {
        let mut make = vec!["XGROUP CREATE k first 0 MKSTREAM".to_owned()];
        for n in 1..=number {
            let other = if n % 7 == 0 { "other" } else { "same" };
            let value = if is_long && n % 9 == 0 { &long } else { "-77" };
            make.push(format!("XADD k {}-{n} {other} {value} n {n}", n / 3));
        }
        let groups = [
            "XDEL k 0-2 1-4",
            "XGROUP CREATE k second $ ENTRIESREAD 2",
            "XGROUP CREATECONSUMER k first idle",
            "XREADGROUP GROUP first b COUNT 5 STREAMS k >",
            "XREADGROUP GROUP first a COUNT 150 STREAMS k >",
            "XREADGROUP GROUP first b STREAMS k 0",
            "XACK k first 1-3",
            "XTRIM k MAXLEN 200",
        ];
        make.extend(groups.map(str::to_owned));
        makers.push(make);
    }
    makers
}

/// Each server restores the streams that the other has dumped, with their groups.
#[test]
fn streams_are_exchanged_with_redis() {
    let Some((server, redis)) = both() else {
        return;
    };
    let [mut ours, mut theirs] = [server.addresses().resp[0], redis.address].map(Peer::connect);
    for (make, redis_dumps) in makers()
        .iter()
        .flat_map(|make| [(make, true), (make, false)])
    {
        let (from, to) = match redis_dumps {
            true => (&mut theirs, &mut ours),
            false => (&mut ours, &mut theirs),
        };
        from.ask("DEL k");
        to.ask("DEL k");
        for request in make {
            from.ask(request);
        }
        let dumped = ask_bytes(from, &[b"DUMP", b"k"]);
        let restored = ask_bytes(to, &[b"RESTORE", b"k", b"0", bulk(&dumped)]);
        let restored = String::from_utf8_lossy(&restored);
        assert_eq!(restored, "+OK\r\n", "{redis_dumps} {make:?}");
        for request in [
            "XRANGE k - +",
            "XINFO STREAM k FULL COUNT 0",
            "XINFO GROUPS k",
            "XPENDING k first - + 1000",
            "XADD k 5000-1 same 1 n 2",
            "XREADGROUP GROUP first idle COUNT 3 STREAMS k >",
            "XINFO GROUPS k",
            "XLEN k",
        ] {
            let (expected, found) = (from.ask(request), to.ask(request));
            let (expected, found) = (without_times(&expected), without_times(&found));
            assert_eq!(expected, found, "{redis_dumps} {request}");
        }
    }
    server.stop();
    server.wait().expect("stops");
}

impl Generator {
    pub(crate) fn stream_word(&mut self, word: &str) -> String {
        match word {
            "new" => {
                self.id_ms += self.random.below(3);
                format!("{}-{}", self.id_ms, self.random.below(4))
            }
            "later" => {
                self.id_ms += 2;
                format!("{}-0", self.id_ms)
            }
            "id" => {
                let ms = self.random.below(self.id_ms + 2);
                match self.random.one_in(6) {
                    true => ms.to_string(),
                    false => format!("{ms}-{}", self.random.below(4)),
                }
            }
            "end" => match self.random.below(5) {
                0 => "-".to_owned(),
                1 => "+".to_owned(),
                2 => format!("({}", self.stream_word("id")),
                _ => self.stream_word("id"),
            },
            "grp" => self.one(&["g1", "g1", "g2", "10"]),
            _ => self.one(&["c1", "c2", "17"]),
        }
    }
}

/// Whether the reply tells whether an earlier request in vain has made a consumer: here `EXEC` may
/// show them all.
pub(crate) fn tells_of_consumers(request: &Request, reply: &str) -> bool {
    let word = |n: usize| request.get(n).map_or("", String::as_str);
    match word(0) {
        "XGROUP" => ["CREATECONSUMER", "DELCONSUMER"].contains(&word(1)),
        "EXEC" => reply.contains("\r\nconsumers\r\n"),
        _ => false,
    }
}
