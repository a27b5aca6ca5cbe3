//! Any bytes for the decoders of the libraries: an answer or an error, and the interpreter goes on.

use duramen_script::{Answer, Arguments, Event, Job, Limits, Machine, Outcome, Program, Script};
use proptest::prelude::*;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::new(
        Machine::new(Limits { memory_bytes: 16 << 20, version: "7.4.0", version_number: 1 })
            .expect("memory for a stack"),
    );
}

fn run(text: &str, args: &[&[u8]]) -> Outcome {
    MACHINE.with_borrow_mut(|machine| {
        let mut event = machine.start(Box::new(Job {
            program: Program::Script(Arc::new(Script::new(text.as_bytes()).expect("a script"))),
            keys: Arguments::default(),
            args: Arguments::of(args.iter().copied()),
            resp3: false,
            slice: Duration::from_secs(60),
            reply_bytes_max: 1 << 20,
        }));
        loop {
            match event {
                Event::Done(outcome) => return outcome,
                _ => event = machine.resume(Answer::GoOn),
            }
        }
    })
}

/// Decodes, encodes and decodes again: the second value is encoded like the first.
const JSON: &str = "local ok, value = pcall(cjson.decode, ARGV[1]) if not ok then return 'error' end
local ok, text = pcall(cjson.encode, value) if not ok then return 'error' end
local again = cjson.encode(cjson.decode(text)) if type(value) ~= 'table' and again ~= text then return {text, again} end
return 'ok'";
const PACK: &str =
    "local ok, err = pcall(cmsgpack.unpack, ARGV[1]) if not ok then return 'error' end
local value = cmsgpack.unpack_one(ARGV[1]) cmsgpack.pack(value) return 'ok'";
const STRUCT: &str = "local ok = pcall(struct.unpack, ARGV[1], ARGV[2]) pcall(struct.pack, ARGV[1], 1, 'a', 2, 'b', 3)
pcall(struct.size, ARGV[1]) return 'ok'";

fn is_answered(script: &str, args: &[&[u8]]) {
    let outcome = run(script, args);
    let reply = String::from_utf8_lossy(&outcome.reply).into_owned();
    assert!(
        reply == "$2\r\nok\r\n" || reply == "$5\r\nerror\r\n",
        "{args:?}: {reply}"
    );
}

/// Bytes that are often a part of JSON.
fn json() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"\\u12\"",
        "\"\\ud83d\\ude00\"",
        "1",
        "-",
        "0x1f",
        "1e5",
        "1.",
        "true",
        "fals",
        "null",
        "nan",
        "inf",
        " ",
        "\"",
        "\\",
        "\u{e9}",
        "\0",
    ]);
    prop::collection::vec(pieces, 0..30).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn json_of_any_pieces(text in json()) {
        is_answered(JSON, &[&text]);
    }

    #[test]
    fn json_of_any_bytes(text in prop::collection::vec(any::<u8>(), 0..60)) {
        is_answered(JSON, &[&text]);
    }

    #[test]
    fn message_pack_of_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        is_answered(PACK, &[&bytes]);
    }

    #[test]
    fn layouts_of_any_bytes(
        format in "[<>!bBhHlLTiIfdnxsc 0-9z]{0,12}",
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        is_answered(STRUCT, &[format.as_bytes(), &bytes]);
    }

    #[test]
    fn any_bytes_as_a_script(text in prop::collection::vec(any::<u8>(), 0..60)) {
        let Ok(script) = Script::new(&text) else { return Ok(()) };
        MACHINE.with_borrow_mut(|machine| machine.compile_error(&Arc::new(script)));
        is_answered("return 'ok'", &[]);
    }

    #[test]
    fn numbers_survive_message_pack(number in any::<f64>()) {
        let script = "local x = tonumber(ARGV[1]) local y = cmsgpack.unpack(cmsgpack.pack(x))
            if x == y or x ~= x then return 'ok' end return {ARGV[1], tostring(y)}";
        is_answered(script, &[format!("{number:e}").as_bytes()]);
    }

    #[test]
    fn bits_of_any_numbers(a in any::<f64>(), b in -100i32..100) {
        let script = "local a, b = tonumber(ARGV[1]) or 0, tonumber(ARGV[2])
            for _, f in ipairs({'band', 'bor', 'bxor', 'lshift', 'rshift', 'arshift', 'rol', 'ror'}) do
              local x = bit[f](a, b) assert(x >= -2^31 and x < 2^31 and x % 1 == 0)
            end
            assert(#bit.tohex(a, b) <= 8) return 'ok'";
        is_answered(script, &[format!("{a:e}").as_bytes(), b.to_string().as_bytes()]);
    }
}
