//! Random commands of all data types to Duramen and to redis-server, in RESP2 and in RESP3: each
//! reply must be the same bytes.
//!
//! A sequence with a difference is shortened before it is shown. Excluded are commands whose
//! replies are random, and those that Redis 7.0 answers otherwise than 7.4, which is the model:
//! fractions that a double does not hold exactly, BITCOUNT and BITPOS with wrong arguments, `ZRANK
//! … WITHSCORE`. So are sums that 80 bits do not hold, and `PFCOUNT` of one key, which changes its
//! value in Redis. The order of sets is not compared.
//!
//! `DURAMEN_DIFFERENCE_SECONDS`: for how long, 20 without it. `DURAMEN_DIFFERENCE_SEED`: the first
//! sequence.

use super::{Peer, both, streams};
use duramen_base::random::Random;
use duramen_base::test_tier;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub(crate) type Request = Vec<String>;

/// Requests of one sequence, which starts with empty databases.
const SEQUENCE: usize = 150;

/// Commands by their arguments: `k` key of any type but HyperLogLogs and places, whose bytes and
/// scores are not for other commands; `h l s z b p g` key of that type mostly; `H L S B G` key that
/// was made for it (SORT gives a sorted set another order of ZSCAN in Redis); `Q` sorted set of one
/// score; `f` field or member, `v` value, `n` small number, `i` index, `x` score, `a` end of a
/// range of scores, `y` end of a range of members, `o` bit offset, `t` bit field type, `lon`/`lat`
/// coordinates. `|` separates choices, `+` may be repeated, a `~` in front: in any order; other
/// words are themselves.
pub(crate) const TEMPLATES: &[&str] = &[
    "HSET h f v",
    "HSET h f v f v f v",
    "HMSET h f v f v",
    "HSETNX h f v",
    "HGET h f",
    "HMGET h f+",
    "HDEL h f+",
    "HLEN h",
    "HSTRLEN h f",
    "HEXISTS h f",
    "HKEYS h",
    "HVALS h",
    "HGETALL h",
    "HINCRBY h f n",
    "HINCRBY h f 9223372036854775807",
    "HINCRBYFLOAT h f 1|-5|12|x|abcde",
    "HINCRBYFLOAT h fraction 1.5|0.25|-2.5",
    "HRANDFIELD h 0",
    "HSCAN h 0",
    "HSCAN h 0 MATCH f*",
    "HSCAN h 0 COUNT n",
    "HSCAN h 1.5|inf|v",
    "LPUSH l v+",
    "RPUSH l v+",
    "LPUSH l v v v",
    "RPUSH l f f v",
    "LPUSHX l v",
    "RPUSHX l v+",
    "LPOP l",
    "RPOP l",
    "LPOP l n",
    "RPOP l n",
    "LLEN l",
    "LINDEX l i",
    "LINSERT l BEFORE|AFTER|x v v",
    "LSET l i v",
    "LRANGE l i i",
    "LRANGE l 0 -1",
    "LTRIM l i i",
    "LREM l i v",
    "LPOS l v",
    "LPOS l v RANK i",
    "LPOS l v COUNT n",
    "LPOS l v COUNT n RANK i MAXLEN n",
    "LMOVE l l LEFT|RIGHT LEFT|RIGHT",
    "RPOPLPUSH l l",
    "LMPOP 2 l l LEFT|RIGHT",
    "LMPOP 1 l LEFT COUNT n",
    "LMPOP n l l LEFT",
    "SADD s f+",
    "SADD s v v f",
    "SADD s n n n",
    "SREM s f+",
    "SCARD s",
    "SISMEMBER s f",
    "SMISMEMBER s f+",
    "~SMEMBERS s",
    "~SPOP s 1000",
    "~SRANDMEMBER s 1000",
    "SPOP s 0",
    "SMOVE s s f",
    "~SINTER s+",
    "~SUNION s+",
    "~SDIFF s+",
    "SINTERSTORE s s+",
    "SUNIONSTORE s s+",
    "SDIFFSTORE s s+",
    "SINTERCARD 2 s s",
    "SINTERCARD n s s LIMIT n",
    "~SSCAN s 0 COUNT 1000",
    "~SSCAN s 0 MATCH f* COUNT 1000",
    "ZADD z x f",
    "ZADD z x f x f x f",
    "ZADD z 1 f 1 f 1 f",
    "ZADD z NX|XX|GT|LT|CH x f x f",
    "ZADD z NX|XX|GT|LT|CH NX|XX|GT|LT|CH|INCR x f",
    "ZINCRBY z x f",
    "ZREM z f+",
    "ZCARD z",
    "ZSCORE z f",
    "ZMSCORE z f+",
    "ZRANK z f",
    "ZREVRANK z f",
    "ZCOUNT z a a",
    "ZLEXCOUNT z y y",
    "ZRANGE z i i",
    "ZRANGE z i i WITHSCORES",
    "ZRANGE z i i REV",
    "ZRANGE z a a BYSCORE",
    "ZRANGE z a a BYSCORE REV WITHSCORES",
    "ZRANGE z a a BYSCORE LIMIT n i",
    "ZRANGE z y y BYLEX",
    "ZADD Q 0 f 0 f 0 f",
    "ZRANGE Q y y BYLEX REV LIMIT n n",
    "ZRANGE Q y y BYLEX LIMIT n n",
    "ZRANGE z y y BYLEX WITHSCORES",
    "ZRANGE z i i LIMIT n n",
    "ZREVRANGE z i i",
    "ZREVRANGE z i i WITHSCORES",
    "ZRANGEBYSCORE z a a",
    "ZRANGEBYSCORE z a a WITHSCORES LIMIT i i",
    "ZREVRANGEBYSCORE z a a",
    "ZRANGEBYLEX z y y",
    "ZREVRANGEBYLEX Q y y LIMIT n i",
    "ZREMRANGEBYLEX Q y y",
    "ZLEXCOUNT Q y y",
    "ZRANGESTORE z z i i",
    "ZRANGESTORE z z a a BYSCORE",
    "ZRANGESTORE z z y y BYLEX REV",
    "ZREMRANGEBYRANK z i i",
    "ZREMRANGEBYSCORE z a a",
    "ZREMRANGEBYLEX z y y",
    "ZPOPMIN z",
    "ZPOPMAX z",
    "ZPOPMIN z n",
    "ZPOPMAX z n",
    "ZMPOP 2 z z MIN|MAX",
    "ZMPOP 1 z MAX COUNT n",
    "ZUNION 2 z z",
    "ZUNION 2 z s WITHSCORES",
    "ZUNION 2 z z WEIGHTS x x AGGREGATE SUM|MIN|MAX|x WITHSCORES",
    "ZINTER 2 z z WITHSCORES",
    "ZINTER 2 z s",
    "ZDIFF 2 z z",
    "ZDIFF 2 z s WITHSCORES",
    "ZUNIONSTORE z 2 z z",
    "ZINTERSTORE z 2 z z AGGREGATE MAX",
    "ZUNIONSTORE z n z s WEIGHTS x x",
    "ZDIFFSTORE z 2 z z",
    "ZINTERCARD 2 z z",
    "ZINTERCARD 2 z s LIMIT n",
    "ZRANDMEMBER z 0",
    "~ZSCAN z 0 COUNT 1000",
    "~ZSCAN z 0 MATCH f* COUNT 1000",
    "SETBIT b o 0|1",
    "SETBIT b o n",
    "GETBIT b o",
    "BITCOUNT b",
    "BITCOUNT b i i",
    "BITCOUNT b i i BIT",
    "BITPOS b 0|1",
    "BITPOS b 0|1 i",
    "BITPOS b 0|1 i i",
    "BITPOS b 0|1 i i BIT",
    "BITOP AND|OR|XOR b b b",
    "BITOP NOT b b",
    "BITOP NOT b b b",
    "BITFIELD b SET t o v",
    "BITFIELD b GET t o",
    "BITFIELD b INCRBY t o n OVERFLOW SAT|FAIL|WRAP|x INCRBY t o n",
    "BITFIELD b OVERFLOW SAT SET t o n GET t #1",
    "BITFIELD b SET t o -1 INCRBY t o i",
    "BITFIELD_RO b GET t o",
    "BITFIELD_RO b SET t o n",
    "GET b",
    "STRLEN b",
    "PFADD p f+",
    "PFADD p v v v v",
    "PFCOUNT p p",
    "PFCOUNT p p nothing",
    "PFMERGE p p",
    "PFMERGE p p p",
    "STRLEN p",
    "GEOADD g lon lat f",
    "GEOADD g lon lat f lon lat f",
    "GEOADD g NX|XX|CH lon lat f",
    "GEODIST G f f",
    "GEODIST G f f km|mi|ft|x",
    "GEOHASH G f+",
    "GEOPOS G f+",
    "GEOSEARCH G FROMLONLAT lon lat BYRADIUS 3000 km ASC",
    "GEOSEARCH G FROMMEMBER f BYBOX 4000 4000 km DESC WITHDIST WITHHASH",
    "GEOSEARCH G FROMMEMBER f BYRADIUS 2000 km ASC COUNT n WITHCOORD",
    "GEOSEARCHSTORE g G FROMLONLAT lon lat BYRADIUS 2000 km",
    "GEORADIUS G lon lat 3000 km ASC WITHDIST",
    "GEORADIUSBYMEMBER G f 3000 km DESC",
    "GEORADIUS G lon lat 3000 km STORE g",
    "GEORADIUS_RO G lon lat 3000 km ASC",
    "GEORADIUSBYMEMBER_RO G f 3000 mi ASC COUNT n",
    "GEOSEARCH G FROMMEMBER f BYRADIUS 2000 km ANY",
    "GEORADIUS G lon lat -1 km",
    "ZRANGE g 0 -1",
    "SORT L",
    "SORT L ALPHA",
    "SORT S ALPHA DESC",
    "SORT H|B",
    "~SORT L BY nosort",
    "SORT L BY w* GET # GET w*",
    "SORT L ALPHA STORE L",
    "SORT_RO S ALPHA",
    "SORT L BY h1->* GET h1->*",
    "ZADD zsort x f x f x f",
    "SORT zsort ALPHA LIMIT n n",
    "SORT zsort BY nosort LIMIT n n DESC|ASC",
    "RPUSH lsort n n v n",
    "SORT lsort BY nosort",
    "SET wf n",
    "SET wv n",
    "SET w1 n",
    "HSET h1 f n",
    "LCS b v0",
    "SET v0 v",
    "SET b v",
    "LCS b v0 LEN",
    "LCS b v0 IDX",
    "LCS b v0 IDX MINMATCHLEN n WITHMATCHLEN",
    "TYPE k",
    "EXISTS k k",
    "DEL k",
    "UNLINK k k",
    "RENAME k k",
    "RENAMENX k k",
    "COPY k k",
    "COPY k k REPLACE",
    "EXPIREAT k 4000000000",
    "EXPIRETIME k",
    "PERSIST k",
    "TTL k0",
    "SET k v",
    "GET k",
    "APPEND k v",
    "INCR k",
    "STRLEN k",
    "GETRANGE k i i",
    "SETRANGE k n v",
    "GETSET k v",
    "GETDEL k",
    "SET k v GET",
    "MGET k k k",
    "SETNX k v",
    "INCRBYFLOAT k 12|-5|x",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH k",
    "OBJECT ENCODING h",
    "OBJECT ENCODING z",
    "SCAN 0 COUNT 1000 TYPE none",
    "TOUCH k",
    "HSET",
    "HGET h",
    "LPUSH l",
    "SADD s",
    "ZADD z",
    "ZADD z x",
    "HSET h f",
    "LPOP l x",
    "SPOP s -1",
    "ZPOPMIN z -1",
    "ZADD z v f",
    "ZUNION 0 z",
    "ZUNION 9 z",
    "SINTERCARD 0 s",
    "LMPOP 0 l LEFT",
    "LMPOP 1 l x",
    "ZMPOP 1 z x",
    "ZADD z NX XX x f",
    "LPOS l v RANK 0",
    "LPOS l v COUNT -1",
    "LPOS l v MAXLEN -1",
    "LPOP l 1 2",
    "ZRANGE z i i x",
    "ZRANGESTORE z z i i WITHSCORES",
];

pub(crate) struct Generator {
    pub(crate) random: Random,
    /// Ids of streams up to now have at most these milliseconds.
    pub(crate) id_ms: u64,
}

impl Generator {
    fn key(&mut self, kind: &str) -> String {
        let kind = match self.random.one_in(25) {
            true => self.one(&["h", "l", "s", "z", "b", "e"]),
            false => kind.to_owned(),
        };
        format!("{kind}{}", self.random.below(3))
    }

    pub(crate) fn one(&mut self, of: &[&str]) -> String {
        self.random.pick(of).copied().unwrap_or_default().to_owned()
    }

    fn words(&mut self, template: &str) -> Request {
        let mut words = Vec::new();
        for word in template.trim_start_matches('~').split(' ') {
            let (word, repeats) = match word.strip_suffix('+') {
                Some(word) => (word, 1 + self.random.below(4)),
                None => (word, 1),
            };
            for _ in 0..repeats {
                let word = self.word(word);
                words.push(word);
            }
        }
        words
    }

    fn word(&mut self, word: &str) -> String {
        const FIELDS: &[&str] = &[
            "f",
            "f1",
            "f2",
            "g",
            "10",
            "-7",
            "300",
            "",
            "aaaaaaaaaaaaaaaaaaaaaaaa",
        ];
        const VALUES: &[&str] = &[
            "v",
            "1",
            "-5",
            "0",
            "12",
            "007",
            "2.5",
            "abcde",
            "9223372036854775807",
            "",
            "x y",
        ];
        const SCORES: &[&str] = &[
            "0", "1", "2", "-3", "1.5", "0.25", "100", "inf", "-inf", "1e3",
        ];
        match word {
            "k" => {
                let kind = self.one(&["h", "l", "s", "z", "b", "e", "k"]);
                self.key(&kind)
            }
            "H" | "L" | "S" | "B" | "G" | "Q" => {
                format!("{}{}", word.to_ascii_lowercase(), self.random.below(3))
            }
            "h" | "l" | "s" | "z" | "b" | "p" | "g" | "e" => self.key(word),
            "new" | "later" | "id" | "end" | "grp" | "c" => self.stream_word(word),
            "f" => self.one(FIELDS),
            "v" => self.one(VALUES),
            "n" => self.random.below(5).to_string(),
            "i" => (self.random.below(9) as i64 - 4).to_string(),
            "x" => self.one(SCORES),
            "a" => {
                let open = if self.random.one_in(3) { "(" } else { "" };
                format!("{open}{}", self.one(SCORES))
            }
            "y" => match self.random.below(4) {
                0 => "-".to_owned(),
                1 => "+".to_owned(),
                2 => format!("[{}", self.one(FIELDS)),
                _ => format!("({}", self.one(FIELDS)),
            },
            "o" => self.random.below(60).to_string(),
            "t" => self.one(&["u8", "i8", "u1", "i64", "u63", "i5", "u64", "i0"]),
            "lon" => self.one(&["13.361389", "15.087269", "-122.5", "0", "179.5", "200"]),
            "lat" => self.one(&["38.115556", "37.502669", "45.25", "0", "-60.5", "85.05"]),
            word if word.contains('|') => {
                let choices: Vec<&str> = word.split('|').collect();
                match self.one(&choices).as_str() {
                    key @ ("H" | "B" | "id") => self.word(key),
                    word => word.to_owned(),
                }
            }
            word => word.to_owned(),
        }
    }
}

/// A request, and whether the order of its reply counts.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) request: Request,
    is_ordered: bool,
}

impl Step {
    pub(crate) fn new(words: &[&str]) -> Step {
        Step {
            request: words.iter().map(|word| (*word).to_owned()).collect(),
            is_ordered: true,
        }
    }
}

pub(crate) fn sequence(seed: u64, templates: &[&str]) -> Vec<Step> {
    let mut generator = Generator {
        random: Random::new(seed),
        id_ms: 1,
    };
    // Values come from few commands: those run more often.
    let makers = [
        "HSET h f v f v f v",
        "RPUSH l v+",
        "SADD s f+",
        "ZADD z x f x f x f",
        "GEOADD g lon lat f lon lat f",
        "SETBIT b o 1",
        "PFADD p f+",
        "RPUSH l n n n",
    ];
    let (templates, makers) = match generator.random.one_in(2) {
        true => (templates, &makers[..]),
        false => (streams::TEMPLATES, streams::MAKERS),
    };
    let mut steps = Vec::with_capacity(SEQUENCE);
    while steps.len() < SEQUENCE {
        let chosen = match generator.random.one_in(4) {
            true => makers,
            false => templates,
        };
        let template = *generator.random.pick(chosen).expect("templates");
        let request = generator.words(template);
        let before = streams::consumers_of(&request).into_iter();
        let is_ordered = !template.starts_with('~');
        steps.extend(before.chain([request]).map(|request| Step {
            request,
            is_ordered,
        }));
    }
    steps
}

/// The end of the reply at the start of `bytes`; `None`: it is not complete.
pub(crate) fn end_of_reply(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let header = std::str::from_utf8(&bytes[1..line - 2]).expect("text");
    let number = || header.parse::<i64>().expect("a length").max(0) as usize;
    let values = match bytes[0] {
        b'$' | b'=' if !header.starts_with('-') => {
            let end = line + number() + 2;
            return (bytes.len() >= end).then_some(end);
        }
        b'*' | b'~' | b'>' => number(),
        b'%' => 2 * number(),
        _ => 0,
    };
    let mut end = line;
    for _ in 0..values {
        end += end_of_reply(&bytes[end..])?;
    }
    Some(end)
}

/// Sends all requests at once; returns their replies.
pub(crate) fn ask_all(peer: &mut Peer, steps: &[Step]) -> Vec<String> {
    let mut input = Vec::new();
    for step in steps {
        input.extend_from_slice(format!("*{}\r\n", step.request.len()).as_bytes());
        for word in &step.request {
            input.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
    }
    peer.stream.write_all(&input).expect("sent");
    let (mut replies, mut bytes) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 64 << 10];
    while replies.len() < steps.len() {
        if let Some(end) = (!bytes.is_empty()).then(|| end_of_reply(&bytes)).flatten() {
            let reply: Vec<u8> = bytes.drain(..end).collect();
            replies.push(String::from_utf8_lossy(&reply).into_owned());
            continue;
        }
        let read = peer.stream.read(&mut buffer).expect("a reply");
        assert!(
            read > 0,
            "closed after {} of {}",
            replies.len(),
            steps.len()
        );
        bytes.extend_from_slice(&buffer[..read]);
    }
    replies
}

/// A reply in which forms are one that differ in Redis 7.0: it has one form of lists, and one of
/// sets that ever had a string, sorted sets have the large form once they were sorted, and strings
/// are raw once they were changed.
fn without_forms(reply: &str) -> String {
    let forms = [
        ("$9\r\nquicklist", "$8\r\nlistpack"),
        ("$9\r\nhashtable", "$8\r\nlistpack"),
        ("$6\r\nintset", "$8\r\nlistpack"),
        ("$8\r\nskiplist", "$8\r\nlistpack"),
        ("$3\r\nraw", "$6\r\nembstr"),
        ("$3\r\nint", "$6\r\nembstr"),
    ];
    forms.iter().fold(reply.to_owned(), |reply, (old, new)| {
        reply.replace(old, new)
    })
}

/// The lines of a reply, with fractions and exponents as numbers: Redis 7.0 writes all 17 digits of
/// some.
fn with_numbers(reply: &str) -> Vec<String> {
    let is_fraction = |line: &str| line.contains(['.', 'e']) || line.len() > 16;
    let number = |line: &str| line.trim_start_matches(',').parse::<f64>().ok();
    let lines = reply.split("\r\n").collect::<Vec<_>>();
    let mut seen = Vec::with_capacity(lines.len());
    for line in lines {
        match number(line).filter(|_| is_fraction(line)) {
            Some(number) => {
                if seen
                    .last()
                    .is_some_and(|length: &String| length.starts_with('$'))
                {
                    seen.pop();
                }
                seen.push(format!("{number:e}"));
            }
            None => seen.push(line.to_owned()),
        }
    }
    seen
}

/// The lines of a reply, as [`with_numbers`], in an order that is the same for all orders of a set.
pub(crate) fn unordered(reply: &str) -> Vec<String> {
    let mut lines = with_numbers(reply);
    lines.sort_unstable();
    lines
}

struct Pair {
    ours: Peer,
    theirs: Peer,
}

impl Pair {
    fn connect(addresses: (SocketAddr, SocketAddr), protocol: &str) -> Pair {
        let mut pair = Pair {
            ours: Peer::connect(addresses.0),
            theirs: Peer::connect(addresses.1),
        };
        pair.ours.ask(&format!("HELLO {protocol}"));
        pair.theirs.ask(&format!("HELLO {protocol}"));
        pair
    }

    /// The first request whose replies differ, with both replies.
    fn difference(&mut self, steps: &[Step]) -> Option<(usize, String, String)> {
        for peer in [&mut self.ours, &mut self.theirs] {
            peer.ask("DISCARD");
            peer.ask("UNWATCH");
            peer.ask("FLUSHALL");
        }
        let (ours, theirs) = (
            ask_all(&mut self.ours, steps),
            ask_all(&mut self.theirs, steps),
        );
        // Inside a transaction a reply comes with EXEC.
        let replies = steps.iter().zip(ours).zip(theirs).enumerate();
        for (n, ((step, our), their)) in replies {
            let has_sets = step.request[0] == "EXEC" || !step.is_ordered;
            let tells_forms = ["OBJECT", "EXEC"].contains(&step.request[0].as_str());
            let (new, old) = (without_forms(&our), without_forms(&their));
            let newer = tells_forms
                && (with_numbers(&new) == with_numbers(&old)
                    || has_sets && unordered(&new) == unordered(&old));
            let same = our == their
                || newer
                || streams::tells_of_consumers(&step.request, &our)
                || with_numbers(&our) == with_numbers(&their)
                || streams::without_times(&our) == streams::without_times(&their)
                || has_sets && unordered(&our) == unordered(&their);
            // Each server finds its own way through a HyperLogLog that another command has changed.
            if !same
                && [&our, &their]
                    .iter()
                    .any(|reply| reply.contains("INVALIDOBJ"))
            {
                return None;
            }
            if !same {
                return Some((n, our, their));
            }
        }
        None
    }
}

/// Removes requests as long as a difference is left. `difference`: the number of the request that
/// shows one.
pub(crate) fn shortened(
    mut steps: Vec<Step>,
    mut difference: impl FnMut(&[Step]) -> Option<usize>,
) -> Vec<Step> {
    let mut part = steps.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + part).min(steps.len()));
            match difference(&fewer) {
                Some(last) => {
                    fewer.truncate(last + 1);
                    steps = fewer;
                }
                None => at += part,
            }
        }
        part /= 2;
    }
    steps
}

/// The number in a variable of the environment.
fn number(name: &str) -> Option<u64> {
    let set = std::env::var(name).ok();
    set.map(|text| text.parse().expect("a number"))
}

/// The seeds of a test: `quick` ones; in the full tier for some seconds, and at least three times
/// as many. `DURAMEN_DIFFERENCE_SEED` names the first one, `DURAMEN_DIFFERENCE_SECONDS` the time.
pub(crate) fn seeds(quick: u64, seconds: u64) -> impl Iterator<Item = u64> {
    let first = number("DURAMEN_DIFFERENCE_SEED").unwrap_or(1);
    let asked = number("DURAMEN_DIFFERENCE_SECONDS");
    let least = first + test_tier::runs(quick, 3 * quick);
    let time = Duration::from_secs(asked.unwrap_or_else(|| test_tier::runs(0, seconds)));
    let began = Instant::now();
    (first..).take_while(move |seed| *seed < least || began.elapsed() < time)
}

#[test]
fn random_commands_of_all_types_are_answered_as_by_redis() {
    let Some((server, redis)) = both() else {
        return;
    };
    let addresses = (server.addresses().resp[0], redis.address);
    let mut pairs = [Pair::connect(addresses, "2"), Pair::connect(addresses, "3")];
    let (mut compared, mut found) = (0, Vec::new());
    for seed in seeds(300, 20) {
        if found.len() >= 10 {
            break;
        }
        let pair = &mut pairs[seed as usize % 2];
        let steps = sequence(seed, TEMPLATES);
        compared += steps.len();
        let Some((last, ..)) = pair.difference(&steps) else {
            continue;
        };
        // If it is not there again, it depends on the time: entries that are idle for a
        // millisecond.
        if pair.difference(&steps[..=last]).is_none() {
            continue;
        }
        let steps = shortened(steps[..=last].to_vec(), |steps| {
            pair.difference(steps).map(|(last, ..)| last)
        });
        let difference = pair.difference(&steps);
        if difference.is_none() {
            continue;
        }
        let shown: Vec<String> = steps
            .iter()
            .map(|step| format!("{:?}", step.request))
            .collect();
        found.push(format!(
            "seed {seed}: {}\n   {difference:?}",
            shown.join("\n   ")
        ));
    }
    server.stop();
    server.wait().expect("stops");
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(compared >= SEQUENCE, "only {compared} requests");
    println!("{compared} random requests, no difference");
}

/// The bytes of the reply to a request of any bytes.
pub(crate) fn ask_bytes(peer: &mut Peer, args: &[&[u8]]) -> Vec<u8> {
    let mut input = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        input.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        input.extend_from_slice(arg);
        input.extend_from_slice(b"\r\n");
    }
    peer.stream.write_all(&input).expect("sent");
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    while bytes.is_empty() || end_of_reply(&bytes).is_none() {
        let read = peer.stream.read(&mut buffer).expect("a reply");
        assert!(read > 0, "closed");
        bytes.extend_from_slice(&buffer[..read]);
    }
    bytes
}

/// Each server restores what the other has dumped.
#[test]
fn values_are_exchanged_with_redis() {
    let Some((server, redis)) = both() else {
        return;
    };
    let [mut ours, mut theirs] = [server.addresses().resp[0], redis.address].map(Peer::connect);
    let numbers: Vec<String> = (0..700).map(|n| (n * n * n).to_string()).collect();
    let words: Vec<String> = (0..700)
        .map(|n| format!("word {n} {}", "x".repeat(n % 90)))
        .collect();
    let mut makers = Vec::new();
    for part in [&numbers[..100], &numbers, &words[..100], &words] {
        let part = || part.iter().map(String::as_str);
        makers.push((
            [vec!["SADD", "k"], part().collect()].concat(),
            "SORT k ALPHA",
        ));
        makers.push((
            [vec!["RPUSH", "k"], part().collect()].concat(),
            "LRANGE k 0 -1",
        ));
        makers.push(([vec!["HSET", "k"], part().collect()].concat(), "HGETALL k"));
        let scored = part().zip(["1", "2.5", "-7", "inf"].into_iter().cycle());
        let scored = scored.flat_map(|(member, score)| [score, member]).collect();
        makers.push((
            [vec!["ZADD", "k"], scored].concat(),
            "ZRANGE k 0 -1 WITHSCORES",
        ));
        makers.push((vec!["SET", "k", part().next().expect("one")], "GET k"));
    }
    let long = "compressed ".repeat(5_000);
    makers.push((vec!["SET", "k", &long], "GET k"));
    makers.push((vec!["RPUSH", "k", &long, "short"], "LRANGE k 0 -1"));
    makers.push((vec!["PFADD", "k", "a", "b", "c"], "PFCOUNT k"));
    for (make, read) in &makers {
        let make: Vec<&[u8]> = make.iter().map(|word| word.as_bytes()).collect();
        let read: Vec<&[u8]> = read.split(' ').map(str::as_bytes).collect();
        for redis_dumps in [true, false] {
            let (from, to) = match redis_dumps {
                true => (&mut theirs, &mut ours),
                false => (&mut ours, &mut theirs),
            };
            from.ask("DEL k");
            to.ask("DEL k");
            ask_bytes(from, &make);
            let dumped = ask_bytes(from, &[b"DUMP", b"k"]);
            let start = dumped
                .windows(2)
                .position(|pair| pair == b"\r\n")
                .expect("a length");
            let payload = &dumped[start + 2..dumped.len() - 2];
            let name = String::from_utf8_lossy(make[0]);
            let restored = ask_bytes(to, &[b"RESTORE", b"k", b"0", payload]);
            assert_eq!(
                String::from_utf8_lossy(&restored),
                "+OK\r\n",
                "{name} {redis_dumps}"
            );
            let again = ask_bytes(to, &[b"RESTORE", b"k", b"0", payload]);
            assert!(again.starts_with(b"-BUSYKEY"), "{name}");
            let (expected, found) = (ask_bytes(from, &read), ask_bytes(to, &read));
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (expected, found) = (text(&expected), text(&found));
            // Redis's larger hashes have an order of their own.
            assert_eq!(
                unordered(&expected),
                unordered(&found),
                "{name} {redis_dumps}"
            );
        }
    }
    server.stop();
    server.wait().expect("stops");
}
