//! The interpreter of scripts: any text, and any bytes for its libraries, end with a reply or an
//! error, within the limit of memory, and the interpreter takes the next script.
#![no_main]

#[path = "peak.rs"]
mod peak;

use duramen_script::{
    Answer, Arguments, Event, Job, LibraryText, Limits, Machine, Outcome, Program, Script,
};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Memory of an interpreter, and length of each value that its libraries make.
const MEMORY_BYTES: usize = 2 << 20;
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Memory of a run: the interpreter's, its reply, and a value of a library with its growth.
const BYTES_MAX: usize = 5 * MEMORY_BYTES;
/// A script is stopped after so many slices.
const SLICES: usize = 5;
const SLICE: Duration = Duration::from_millis(1);

/// Scripts over the libraries, with any bytes as arguments. Each returns `ok` or the failed check.
const PROGRAMS: [&str; 9] = [
    // Decoded JSON is encoded, and the second text is the same.
    "local ok, value = pcall(cjson.decode, ARGV[1]) if not ok then return 'ok' end
     local ok, text = pcall(cjson.encode, value) if not ok then return 'ok' end
     local ok, again = pcall(cjson.decode, text) if not ok then return {text, again} end
     if type(value) ~= 'table' and cjson.encode(again) ~= text then return {text} end return 'ok'",
    "local ok, value = pcall(cmsgpack.unpack, ARGV[1]) if not ok then return 'ok' end
     local packed = cmsgpack.pack(value) local ok, again = pcall(cmsgpack.unpack, packed)
     if type(value) == 'string' and value ~= again then return {value, again} end return 'ok'",
    "pcall(cmsgpack.unpack_one, ARGV[1], #ARGV[2]) pcall(cmsgpack.unpack_limit, ARGV[1], 3, #ARGV[2])
     pcall(cmsgpack.pack, ARGV[1], {ARGV[2], {ARGV[1]}}, #ARGV[1]) return 'ok'",
    "pcall(struct.unpack, ARGV[1], ARGV[2]) pcall(struct.size, ARGV[1])
     pcall(struct.pack, ARGV[1], 1, ARGV[2], 2.5, ARGV[2], -3, ARGV[2]) return 'ok'",
    "for _, n in ipairs({1e300, -1e300, 0/0, 2.5, -1}) do pcall(string.find, ARGV[2], ARGV[1], n)
     pcall(string.gsub, ARGV[2], ARGV[1], '', n) pcall(string.sub, ARGV[1], n) pcall(string.byte, ARGV[1], n) end
     pcall(string.find, ARGV[2], ARGV[1]) pcall(string.match, ARGV[2], ARGV[1], 2)
     pcall(function() for a, b in string.gmatch(ARGV[2], ARGV[1]) do end end) return 'ok'",
    "pcall(string.gsub, ARGV[2], ARGV[1], ARGV[2]) pcall(string.gsub, ARGV[2], ARGV[1], {a = 'b'}, 3)
     pcall(string.gsub, ARGV[2], ARGV[1], function(a) return a end) return 'ok'",
    "pcall(string.format, ARGV[1], ARGV[2], 3, ARGV[2], -4.5) pcall(string.format, ARGV[1], 3, ARGV[2], 7)
     return 'ok'",
    "local x = tonumber(ARGV[1]) or 0 local n = #ARGV[2]
     for _, f in ipairs({'band', 'bor', 'bxor', 'lshift', 'rshift', 'arshift', 'rol', 'ror', 'tohex'}) do
     pcall(bit[f], x, n) end pcall(string.rep, ARGV[1], n) if #ARGV[2] < 5 then pcall(string.rep, ARGV[1], ARGV[2]) end pcall(string.sub, ARGV[1], n, x)
     pcall(string.char, n, x) pcall(string.byte, ARGV[1], 1, n) return 'ok'",
    "pcall(redis.call, ARGV[1], ARGV[2]) local ok, f = pcall(loadstring, ARGV[1]) if f then pcall(f) end
     pcall(redis.sha1hex, ARGV[1]) pcall(redis.error_reply, ARGV[1]) pcall(redis.status_reply, ARGV[2])
     pcall(redis.log, redis.LOG_WARNING, ARGV[1]) return 'ok'",
];

/// Pieces of scripts: a text of any of them is often a script.
const PIECES: [&str; 64] = [
    "local a=",
    "local b=",
    "a",
    "b",
    "=",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    "..",
    "+",
    "-",
    "*",
    "/",
    "%",
    "^",
    "#",
    "==",
    "~=",
    "<",
    "not ",
    " and ",
    " or ",
    "nil",
    "true",
    "1",
    "-7",
    "1e300",
    "0/0",
    "'x'",
    "'%a*'",
    " return ",
    " if ",
    " then ",
    " else ",
    " end ",
    " for i=1,9 do ",
    " while ",
    " do ",
    " function()",
    " repeat ",
    " until ",
    "pcall",
    "error",
    "KEYS[1]",
    "ARGV[1]",
    "cjson.encode",
    "cjson.decode",
    "cmsgpack.pack",
    "cmsgpack.unpack",
    "struct.pack",
    "string.rep",
    "string.gsub",
    "table.concat",
    "table.sort",
    "setmetatable",
    "unpack",
    "redis.call",
    "redis.pcall",
    " ",
];

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Runs what `begin` starts, answers its calls with `reply`, and stops it after some slices.
fn run(reply: &[u8], begin: impl FnOnce(&mut Machine) -> Event) -> Outcome {
    MACHINE.with_borrow_mut(|place| {
        if place.as_ref().is_some_and(Machine::is_heavy) {
            *place = None;
        }
        let machine = place.get_or_insert_with(|| {
            let limits = Limits {
                memory_bytes: MEMORY_BYTES,
                version: "7.4.0",
                version_number: 0x0007_0400,
            };
            Machine::new(limits).expect("memory for a stack")
        });
        // An interpreter makes its globals when it begins its first script.
        let mut event = machine.start(job(b"return 1", &[]));
        while !matches!(event, Event::Done(_)) {
            event = machine.resume(Answer::GoOn);
        }
        peak::bounded(BYTES_MAX, || {
            let mut slices = 0;
            let mut event = begin(machine);
            loop {
                let answer = match event {
                    Event::Done(outcome) => {
                        assert!(outcome.stopped || outcome.reply.len() <= REPLY_BYTES_MAX + 64);
                        return outcome;
                    }
                    Event::Call { .. } => Answer::Reply(reply.to_vec()),
                    Event::Allowed { .. } => Answer::Reply(b":1\r\n".to_vec()),
                    Event::Log { .. } => Answer::GoOn,
                    Event::Slice { .. } if slices == SLICES => Answer::Stop,
                    Event::Slice { .. } => {
                        slices += 1;
                        Answer::GoOn
                    }
                };
                event = machine.resume(answer);
            }
        })
    })
}

fn job(text: &[u8], args: &[&[u8]]) -> Box<Job> {
    Box::new(Job {
        program: Program::Script(Arc::new(Script::new(text).expect("a script"))),
        keys: Arguments::of([&b"key"[..]].into_iter()),
        args: Arguments::of(args.iter().copied()),
        resp3: args.first().is_some_and(|arg| arg.len() % 2 == 1),
        slice: SLICE,
        reply_bytes_max: REPLY_BYTES_MAX,
    })
}

/// The reply of a command of a script.
fn reply_of(byte: u8) -> &'static [u8] {
    let replies: [&[u8]; 7] = [
        b"+OK\r\n",
        b"$-1\r\n",
        b":7\r\n",
        b"-ERR no\r\n",
        b"*3\r\n$1\r\na\r\n*1\r\n:1\r\n$-1\r\n",
        b"%1\r\n$1\r\na\r\n,1.5\r\n",
        b"$3\r\nabc\r\n",
    ];
    replies[usize::from(byte) % replies.len()]
}

fuzz_target!(|data: &[u8]| {
    let [kind, number, bytes @ ..] = data else {
        return;
    };
    let (first, second) = bytes.split_at(usize::from(*number).min(bytes.len()));
    match usize::from(kind % 12) {
        0 => {
            let Ok(script) = Script::new(bytes) else {
                return;
            };
            MACHINE.with_borrow_mut(|machine| {
                machine
                    .as_mut()
                    .map(|machine| machine.compile_error(&Arc::new(script)))
            });
            run(reply_of(*number), |machine| {
                machine.start(job(bytes, &[b"arg"]))
            });
        }
        1 => {
            let text = [b"#!lua name=x\n", bytes].concat();
            let _ = LibraryText::new(bytes);
            let library = Arc::new(LibraryText::new(&text).expect("a library"));
            run(reply_of(*number), |machine| machine.load(library, SLICE));
        }
        2 => {
            let pieces = second.iter().map(|byte| PIECES[usize::from(byte % 64)]);
            let text = pieces.collect::<String>();
            run(reply_of(*number), |machine| {
                machine.start(job(text.as_bytes(), &[first]))
            });
        }
        program => {
            let text = PROGRAMS[program - 3].as_bytes();
            let outcome = run(reply_of(*number), |machine| {
                machine.start(job(text, &[first, second]))
            });
            let reply = String::from_utf8_lossy(&outcome.reply);
            let is_small = bytes.len() < 1_000; // a longer text may need more than there is
            assert!(
                outcome.stopped || outcome.reply == b"$2\r\nok\r\n" || !is_small,
                "{first:?} {second:?}: {reply}"
            );
        }
    }
});
