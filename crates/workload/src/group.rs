//! Operations on a group of keys: collections, scripts, transactions, and pops that wait for an
//! element. All keys of a group are in one slot.
//!
//! A command is recorded as the checker reads it (tests/checker/commands.go): with short names of
//! keys, and the name of a script in place of `EVAL` and its text. A word that begins with
//! [`MARK`] is a text that is dressed on its way to a server (see [`crate::history`]).

use crate::history::{Command, Input, Op, dress, undress};
use crate::resp::Reply;
use duramen_base::random::Random;
use serde_json::{Value, json};

/// The first byte of a text that is dressed.
const MARK: char = '~';

/// The scripts: name, number of keys, text.
const SCRIPTS: [(&str, usize, &str); 2] = [
    (
        "CHANGE",
        2,
        "local found = redis.call('HGET', KEYS[1], 'state') or '' \
         if found ~= ARGV[1] then return found end \
         redis.call('HSET', KEYS[1], 'state', ARGV[2]) \
         redis.call('RPUSH', KEYS[2], ARGV[2]) \
         return 1",
    ),
    (
        "CARRY",
        2,
        "local item = redis.call('LPOP', KEYS[1]) \
         if item then redis.call('ZADD', KEYS[2], ARGV[1], item) end \
         return item",
    ),
];

/// The keys of a group: two lists, a hash, a set, a sorted set, a stream, a plain string.
const KEYS: [&str; 7] = ["l", "m", "h", "s", "z", "x", "w"];
/// The commands that read a whole group.
const READS: [&str; 8] = [
    "LRANGE l 0 -1",
    "LRANGE m 0 -1",
    "HGETALL h",
    "SMEMBERS s",
    "ZRANGE z 0 -1 WITHSCORES",
    "XRANGE x - +",
    "XPENDING x g",
    "GET w",
];

fn command(text: &str) -> Command {
    text.split(' ').map(str::to_owned).collect()
}

/// Reads every key of a group in one transaction.
pub(crate) fn read() -> Input {
    commands(READS.map(command).to_vec())
}

fn commands(commands: Vec<Command>) -> Input {
    Input {
        commands,
        ..Input::new(Op::Commands)
    }
}

/// A random operation. `text` is an element that no other operation has; `client` is the number of
/// the client; `state`: the state of the script `CHANGE` that the client saw last.
pub(crate) fn draw(random: &mut Random, client: usize, text: &str, state: &str) -> Input {
    let text = &format!("{MARK}{text}");
    let mut number = |end: usize| random.index(end);
    let single = match number(32) {
        0 => return read(),
        1 | 2 => return commands(together(number(5), text, number(5))),
        3 => format!("DEL {}", KEYS[number(KEYS.len())]),
        4 => "RENAME l m".to_owned(),
        5..8 => format!("{} l {text}", ["LPUSH", "RPUSH"][number(2)]),
        8 => format!("{} {}", ["LPOP", "RPOP"][number(2)], ["l", "m"][number(2)]),
        9 => format!("LMOVE {}", ["l m LEFT RIGHT", "m l RIGHT LEFT"][number(2)]),
        10 | 11 => format!("BLPOP {} 0.0{}", ["l", "m"][number(2)], 1 + number(9)),
        12 => format!("BLMOVE l m RIGHT LEFT 0.0{}", 1 + number(9)),
        13 => format!("LRANGE {} 0 -1", ["l", "m"][number(2)]),
        14 => format!("HSET h v{} {text}", number(3)),
        15 | 16 => format!("HINCRBY h n{} {}", number(2), 1 + number(3)),
        17 => format!("HDEL h v{}", number(3)),
        18 => "HGETALL h".to_owned(),
        19 => format!("{} s {MARK}m{}", ["SADD", "SREM"][number(2)], number(4)),
        20 => "SMEMBERS s".to_owned(),
        21 => format!("ZADD z {} {text}", number(9)),
        22 => format!("ZINCRBY z {} {MARK}i{}", 1 + number(3), number(3)),
        23 => ["ZPOPMIN z", "ZRANGE z 0 -1 WITHSCORES"][number(2)].to_owned(),
        24 => format!("BZPOPMIN z 0.0{}", 1 + number(9)),
        25 | 26 => format!("XADD x 1-* f {text}"),
        27 => ["XLEN x", "XRANGE x - +", "XPENDING x g"][number(3)].to_owned(),
        28 => match number(4) {
            0 => format!("XTRIM x MAXLEN {}", number(6)),
            1 => format!("XDEL x 1-{}", number(20)),
            _ => "XGROUP CREATE x g 0 MKSTREAM".to_owned(),
        },
        29 => format!("XREADGROUP GROUP g c{client} COUNT 1 STREAMS x >"),
        30 => format!("XACK x g 1-{}", number(20)),
        _ if number(2) == 0 => format!("CARRY l z {}", number(9)),
        _ => return commands(vec![change(state, text)]),
    };
    commands(vec![command(&single)])
}

fn change(state: &str, text: &str) -> Command {
    ["CHANGE", "h", "l", state, text]
        .map(str::to_owned)
        .to_vec()
}

/// A transaction over two keys.
fn together(kind: usize, text: &str, by: usize) -> Vec<Command> {
    let (first, second) = match kind {
        0 => (format!("SET w {text}"), format!("HSET h v0 {text}")),
        1 => (format!("RPUSH l {text}"), format!("SADD s {text}")),
        2 => ("RPOP m".to_owned(), format!("LPUSH l {text}")),
        3 => (format!("XADD x 1-* t {text}"), format!("HINCRBY h n0 {by}")),
        _ => (format!("ZADD z {by} {text}"), "LPOP l".to_owned()),
    };
    vec![command(&first), command(&second)]
}

/// The words on their way to a server. `prefix` stands before each name of a key.
pub(crate) fn words(prefix: &str, command: &Command) -> Vec<Vec<u8>> {
    let name = command[0].as_str();
    let script = SCRIPTS.iter().find(|(known, ..)| *known == name);
    let keys = keys_of(command, script.map(|(_, keys, _)| *keys));
    let rest = command.iter().enumerate().skip(1);
    let rest = rest.map(|(at, word)| match word {
        key if keys.contains(&at) => format!("{prefix}{key}").into_bytes(),
        text if text.starts_with(MARK) => dress(text),
        word => word.clone().into_bytes(),
    });
    let begin = match script {
        Some((_, keys, text)) => vec![
            b"EVAL".to_vec(),
            text.as_bytes().to_vec(),
            keys.to_string().into_bytes(),
        ],
        None => vec![name.as_bytes().to_vec()],
    };
    begin.into_iter().chain(rest).collect()
}

/// The places of the keys in a command.
fn keys_of(command: &Command, of_script: Option<usize>) -> std::ops::Range<usize> {
    match command[0].as_str() {
        _ if of_script.is_some() => 1..1 + of_script.unwrap_or(0),
        "RENAME" | "LMOVE" | "BLMOVE" => 1..3,
        "XGROUP" => 2..3,
        "XREADGROUP" => 7..8,
        _ => 1..2,
    }
}

/// A reply as the checker reads it. `None`: no server gives such a reply.
pub(crate) fn recorded(prefix: &str, reply: &Reply) -> Option<Value> {
    Some(match reply {
        Reply::Simple(text) => json!(text),
        Reply::Number(number) => json!(number),
        Reply::Null => Value::Null,
        Reply::Error(text) => json!({"error": text.split(' ').next()?}),
        Reply::Bulk(text) if text.starts_with(&[MARK as u8]) => json!(undress(text)),
        Reply::Bulk(text) => {
            let text = String::from_utf8_lossy(text);
            json!(text.strip_prefix(prefix).unwrap_or(&text))
        }
        Reply::Array(parts) => {
            let parts = parts.iter().map(|part| recorded(prefix, part));
            Value::Array(parts.collect::<Option<_>>()?)
        }
    })
}

/// The replies of the commands of an operation, as the checker reads them.
pub(crate) fn replies(prefix: &str, input: &Input, replies: &[Reply]) -> Option<Vec<Value>> {
    let results = match (input.commands.len(), replies) {
        (1, [reply]) => std::slice::from_ref(reply),
        (count, [.., Reply::Array(results)]) if results.len() == count => results,
        _ => return None,
    };
    // A refused command of a group is that of a wrong state; each other refusal is a failure.
    let is_expected = |reply: &Reply| match reply {
        Reply::Error(text) => ["ERR no such key", "NOGROUP ", "BUSYGROUP "]
            .iter()
            .any(|known| text.starts_with(known)),
        _ => true,
    };
    let all = results.iter().map(|reply| {
        if is_expected(reply) {
            recorded(prefix, reply)
        } else {
            None
        }
    });
    all.collect()
}

/// The state that a reply of the script `CHANGE` shows.
pub(crate) fn state_after(input: &Input, replies: &[Value]) -> Option<String> {
    let [command] = input.commands.as_slice() else {
        return None;
    };
    match (command[0].as_str(), replies) {
        ("CHANGE", [Value::String(found)]) => Some(found.clone()),
        ("CHANGE", [_]) => command.get(4).cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(command: Command) -> String {
        let words = words("{a}", &command);
        let words = words.iter().map(|word| String::from_utf8_lossy(word));
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn keys_have_the_prefix_of_their_group() {
        assert_eq!(sent(command("RPUSH l ~7-1")), "RPUSH {a}l ~7-1");
        assert_eq!(
            sent(command("LMOVE l m LEFT RIGHT")),
            "LMOVE {a}l {a}m LEFT RIGHT"
        );
        assert_eq!(
            sent(command("XGROUP CREATE x g 0 MKSTREAM")),
            "XGROUP CREATE {a}x g 0 MKSTREAM"
        );
        let read = "XREADGROUP GROUP g c1 COUNT 1 STREAMS x >";
        assert_eq!(
            sent(command(read)),
            "XREADGROUP GROUP g c1 COUNT 1 STREAMS {a}x >"
        );
        let carried = sent(command("CARRY l z 3"));
        assert!(
            carried.starts_with("EVAL local") && carried.ends_with(" 2 {a}l {a}z 3"),
            "{carried}"
        );
    }

    /// Each kind of operation is drawn, and has no empty word but the state of a script.
    #[test]
    fn operations_of_all_kinds_are_drawn() {
        let mut random = Random::new(1);
        let mut names = std::collections::BTreeSet::new();
        for n in 0..5_000 {
            for command in draw(&mut random, 3, &format!("3-{n}"), "").commands {
                let is_change = command[0] == "CHANGE";
                assert!(
                    is_change || command.iter().all(|word| !word.is_empty()),
                    "{command:?}"
                );
                names.insert(command[0].clone());
            }
        }
        assert_eq!(names.len(), 35, "{names:?}");
    }

    #[test]
    fn replies_are_recorded_as_the_checker_reads_them() {
        let input = commands(vec![command("GET w"), command("LRANGE l 0 -1")]);
        let text = Reply::Bulk(dress("~1-1"));
        let found = Reply::Array(vec![
            Reply::Null,
            Reply::Array(vec![text, Reply::Bulk(b"{a}l".to_vec())]),
        ]);
        let queued = Reply::Simple("QUEUED".to_owned());
        let found = replies("{a}", &input, &[queued, found]).map(Value::from);
        assert_eq!(found, Some(json!([null, ["~1-1", "l"]])));
        let read = commands(vec![command("XPENDING x g")]);
        let refused = |text: &str| replies("{a}", &read, &[Reply::Error(text.to_owned())]);
        assert_eq!(
            refused("NOGROUP No such key"),
            Some(vec![json!({"error": "NOGROUP"})])
        );
        assert_eq!(refused("ERR unknown command"), None);
    }

    #[test]
    fn a_script_shows_its_state() {
        let input = commands(vec![change("", "~1-1")]);
        assert_eq!(state_after(&input, &[json!(1)]).as_deref(), Some("~1-1"));
        assert_eq!(
            state_after(&input, &[json!("~2-5")]).as_deref(),
            Some("~2-5")
        );
        assert_eq!(state_after(&read(), &[json!(1)]), None);
    }
}
