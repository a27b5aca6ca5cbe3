//! Requests: golden cases with Redis 7's error texts, and properties (arbitrary boundaries between
//! reads, garbage, round trip).

use duramen_wire::resp::{
    Consumed, Limits, ParseState, ProtocolError, RequestEncoder, Requests, parse_requests,
};
use proptest::prelude::*;

type Words = Vec<Vec<u8>>;

fn words(requests: &Requests, input: &[u8]) -> Vec<Words> {
    (0..requests.len())
        .map(|n| requests.args(n, input).iter().map(<[u8]>::to_vec).collect())
        .collect()
}

/// Feeds `chunks` as a connection does; returns all requests, and the error that ended it.
fn fed<'a>(
    chunks: impl IntoIterator<Item = &'a [u8]>,
    limits: &Limits,
) -> (Vec<Words>, Option<ProtocolError>, usize) {
    let (mut state, mut requests) = (ParseState::new(), Requests::new());
    let (mut buffer, mut all) = (Vec::new(), Vec::new());
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        loop {
            let result = parse_requests(&buffer, limits, &mut state, &mut requests);
            all.extend(words(&requests, &buffer));
            match result {
                Ok(Consumed { bytes, more }) => {
                    buffer.drain(..bytes);
                    assert!(state.bytes_needed() > buffer.len() || buffer.is_empty() || more);
                    if !more {
                        break;
                    }
                }
                Err(error) => return (all, Some(error), buffer.len()),
            }
        }
    }
    (all, None, buffer.len())
}

fn whole(input: &[u8]) -> (Vec<Words>, Option<ProtocolError>, usize) {
    fed([input], &Limits::default())
}

fn parsed(input: &[u8]) -> Vec<Vec<String>> {
    let (requests, error, left) = whole(input);
    assert_eq!((error, left), (None, 0), "{}", input.escape_ascii());
    requests
        .iter()
        .map(|words| {
            words
                .iter()
                .map(|word| word.escape_ascii().to_string())
                .collect()
        })
        .collect()
}

fn error(input: &[u8], limits: &Limits) -> String {
    let (_, error, _) = fed([input], limits);
    error.map_or_else(
        || format!("no error for {}", input.escape_ascii()),
        |error| error.to_string(),
    )
}

#[test]
fn arrays() {
    assert_eq!(parsed(b"*1\r\n$4\r\nPING\r\n"), [["PING"]]);
    assert_eq!(
        parsed(b"*2\r\n$3\r\nGET\r\n$16\r\n0123456789abcdef\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n"),
        [["GET", "0123456789abcdef"], ["GET", ""]]
    );
    assert_eq!(
        parsed(b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n"),
        [["GET", r"a\r\nb"]]
    );
    let long = "v".repeat(100_000);
    for bytes in [9, 10, 99, 100, 999, 1000, 100_000] {
        let value = &long[..bytes];
        let input =
            format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${bytes}\r\n{value}\r\n*1\r\n$4\r\nPING\r\n");
        assert_eq!(
            parsed(input.as_bytes()),
            [vec!["SET", "k", value], vec!["PING"]]
        );
    }
}

#[test]
fn empty_requests_are_passed_over() {
    assert_eq!(
        parsed(b"*0\r\n\r\n\n*-1\r\n*-7\r\n   \r\n*1\r\n$4\r\nPING\r\n"),
        [["PING"]]
    );
}

#[test]
fn inline_commands() {
    let none: [[&str; 0]; 0] = [];
    assert_eq!(parsed(b"\r\n"), none);
    assert_eq!(parsed(b"PING\r\n"), [["PING"]]);
    assert_eq!(parsed(b"  set\tkey  value \n"), [["set", "key", "value"]]);
    assert_eq!(
        parsed(b"set k \"a b\\x41\\x0g\\n\\t\\r\\a\\b\\q\\\"\"\n"),
        [["set", "k", "a bAx0g\\n\\t\\r\\x07\\x08q\\\""]]
    );
    assert_eq!(
        parsed(b"set k 'a \"b\\'\\n'\n"),
        [["set", "k", r#"a \"b\'\\n"#]]
    );
    assert_eq!(
        parsed(b"set foo\"bar\" '' \"\"\n"),
        [["set", "foobar", "", ""]]
    );
    assert_eq!(parsed(b"a\x0bb \x0bc\r\r\n"), [[r"a\x0bb", "c"]]);
    assert_eq!(parsed(b"a\0b\n"), [[r"a\x00b"]]);
    assert_eq!(
        parsed(b"PING\r\n*1\r\n$4\r\nPING\r\nECHO x\r\n"),
        [vec!["PING"], vec!["PING"], vec!["ECHO", "x"]]
    );
}

/// The error texts, and the inputs that cause them, equal those of redis-server 7.0.15.
#[test]
fn errors_in_redis_words() {
    for (input, text) in [
        ("*x\r\n", "Protocol error: invalid multibulk length"),
        ("*\r\n", "Protocol error: invalid multibulk length"),
        ("*+1\r\n", "Protocol error: invalid multibulk length"),
        ("*01\r\n", "Protocol error: invalid multibulk length"),
        ("*1048577\r\n", "Protocol error: invalid multibulk length"),
        (
            "*3000000000\r\n",
            "Protocol error: invalid multibulk length",
        ),
        (
            "*99999999999999999999\r\n",
            "Protocol error: invalid multibulk length",
        ),
        ("*1\r\nx", "Protocol error: expected '$', got 'x'"),
        (
            "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$-1\r\n",
            "Protocol error: invalid bulk length",
        ),
        (
            "*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n",
            "Protocol error: expected '$', got 'f'",
        ),
        (
            "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$2000000000\r\n",
            "Protocol error: invalid bulk length",
        ),
        (
            "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$blabla\r\n",
            "Protocol error: invalid bulk length",
        ),
        ("*1\r\n$\r\n", "Protocol error: invalid bulk length"),
        (
            "*1\r\n$04\r\nPING\r\n",
            "Protocol error: invalid bulk length",
        ),
        (
            "*1\r\n$004\r\nPING\r\n",
            "Protocol error: invalid bulk length",
        ),
        (
            "*1\r\n$4\r\nPINGxx",
            "Protocol error: expected CRLF after bulk string",
        ),
        (
            "*1\r\n$4\r\nPING\rx",
            "Protocol error: expected CRLF after bulk string",
        ),
        ("set '\r\n", "Protocol error: unbalanced quotes in request"),
        (
            "set \"a\"b\r\n",
            "Protocol error: unbalanced quotes in request",
        ),
        (
            "set \"\\\"\r\n",
            "Protocol error: unbalanced quotes in request",
        ),
        (
            "*00000000000000000000000000000000",
            "Protocol error: too big mbulk count string",
        ),
        (
            "*1\r\n$00000000000000000000000000000000",
            "Protocol error: too big bulk count string",
        ),
    ] {
        assert_eq!(
            error(input.as_bytes(), &Limits::default()),
            text,
            "{input:?}"
        );
    }
    assert_eq!(
        error(&[b'a'; 64 * 1024 + 2], &Limits::default()),
        "Protocol error: too big inline request"
    );
}

#[test]
fn limits_before_authentication() {
    let limits = Limits::unauthenticated();
    assert_eq!(
        error(b"*11\r\n", &limits),
        "Protocol error: unauthenticated multibulk length"
    );
    assert_eq!(
        error(b"*1\r\n$16385\r\n", &limits),
        "Protocol error: unauthenticated bulk length"
    );
    let mut input = b"*10\r\n".to_vec();
    for _ in 0..10 {
        input.extend_from_slice(b"$16384\r\n");
        input.extend_from_slice(&[b'x'; 16384]);
        input.extend_from_slice(b"\r\n");
    }
    let (requests, error, left) = fed([&*input], &limits);
    assert_eq!((requests.len(), error, left), (1, None, 0));
}

#[test]
fn limits_at_their_edges() {
    let limits = Limits {
        args_max: 2,
        bulk_bytes_max: 5,
        inline_bytes_max: 6,
        request_bytes_max: 22,
        ..Limits::default()
    };
    for (input, text) in [
        ("*3\r\n", "Protocol error: invalid multibulk length"),
        ("*1\r\n$6\r\n", "Protocol error: invalid bulk length"),
        ("abcdefg\n", "Protocol error: too big inline request"),
        ("abcdefg\r\n", "Protocol error: too big inline request"),
        (
            "*2\r\n$5\r\nabcde\r\n$2\r\nab\r\n",
            "no error for *2\\r\\n$5\\r\\nabcde\\r\\n$2\\r\\nab\\r\\n",
        ),
        (
            "*2\r\n$5\r\nabcde\r\n$1\r\na\r\n",
            "no error for *2\\r\\n$5\\r\\nabcde\\r\\n$1\\r\\na\\r\\n",
        ),
        (
            "*2\r\n$5\r\nabcde\r\n$5\r\n",
            "Protocol error: too big request",
        ),
        ("abcdef\n", "no error for abcdef\\n"),
        ("abcdef\r\n", "no error for abcdef\\r\\n"),
    ] {
        let limits = if input.contains("ab\r\n") {
            Limits {
                request_bytes_max: 23,
                ..limits
            }
        } else {
            limits
        };
        assert_eq!(error(input.as_bytes(), &limits), text, "{input:?}");
    }
}

#[test]
fn whole_requests_before_an_error_are_kept() {
    let (requests, error, _) = whole(b"PING\r\n*1\r\n$4\r\nPING\r\n*2\r\n$1\r\na\r\n?");
    assert_eq!(requests, [[b"PING"], [b"PING"]]);
    assert_eq!(error, Some(ProtocolError::ExpectedBulk { got: b'?' }));
    let (requests, error, _) = whole(b"PING\r\nset \"x\" \"\n");
    assert_eq!(requests, [[b"PING"]]);
    assert_eq!(error, Some(ProtocolError::UnbalancedQuotes));
}

#[test]
fn stops_at_the_most_requests_and_goes_on() {
    let input = b"PING\r\n*1\r\n$4\r\nPING\r\nPING\r\n";
    let limits = Limits {
        requests_max: 2,
        ..Limits::default()
    };
    let (mut state, mut requests) = (ParseState::new(), Requests::new());
    let first = parse_requests(input, &limits, &mut state, &mut requests);
    assert_eq!(
        first,
        Ok(Consumed {
            bytes: 20,
            more: true
        })
    );
    assert_eq!(requests.len(), 2);
    let second = parse_requests(&input[20..], &limits, &mut state, &mut requests);
    assert_eq!(
        second,
        Ok(Consumed {
            bytes: 6,
            more: false
        })
    );
    assert_eq!(requests.len(), 1);
}

/// All empty lines of a long input were parsed by one call, and again by the next one.
#[test]
fn stops_behind_so_many_bytes_and_goes_on() {
    let limits = Limits {
        parsed_bytes_max: 100,
        ..Limits::default()
    };
    let (mut state, mut requests) = (ParseState::new(), Requests::new());
    let mut parse = |input: &[u8]| {
        let consumed = parse_requests(input, &limits, &mut state, &mut requests);
        (consumed.expect("right requests"), requests.len())
    };
    let more = |bytes| Consumed { bytes, more: true };
    let long = [&b"*1\r\n$200\r\n"[..], &[b'x'; 200], b"\r\n"].concat();
    let behind_it = [&long[..], b"PING\r\n"].concat();
    assert_eq!(parse(&b"\r\n".repeat(1_000)), (more(102), 0));
    assert_eq!(parse(&b"*0\r\n".repeat(1_000)), (more(104), 0));
    assert_eq!(parse(&b"PING\r\n".repeat(100)), (more(102), 17));
    assert_eq!(parse(&behind_it), (more(long.len()), 1));
    let all = Consumed {
        bytes: long.len(),
        more: false,
    };
    assert_eq!(parse(&long), (all, 1));
}

/// A peer that declares much and sends little makes the parser wait; the caller learns for how many
/// bytes.
#[test]
fn declared_lengths_are_waited_for() {
    let (mut state, mut requests) = (ParseState::new(), Requests::new());
    let input = b"*1048576\r\n$536870912\r\nx";
    assert_eq!(
        parse_requests(input, &Limits::default(), &mut state, &mut requests),
        Ok(Consumed {
            bytes: 0,
            more: false
        })
    );
    assert_eq!(state.bytes_needed(), 22 + 536_870_912 + 1);
}

/// A request of many arguments that arrives in small pieces is not parsed from its beginning each
/// time.
#[test]
fn long_requests_in_small_pieces_take_linear_time() {
    let args: Words = (0..200_000u32)
        .map(|n| n.to_string().into_bytes())
        .collect();
    let mut input = Vec::new();
    RequestEncoder::new(&mut input).request(&args);
    let began = std::time::Instant::now();
    let (requests, error, left) = fed(input.chunks(64), &Limits::default());
    // With quadratic time, this would be 30,000 passes over up to 200,000 arguments: minutes.
    assert!(began.elapsed().as_secs() < 20);
    assert_eq!((requests, error, left), (vec![args], None, 0));
}

#[test]
fn queued_requests_outlive_their_input() {
    let input = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nECHO 'a b'\r\n";
    let (mut state, mut requests) = (ParseState::new(), Requests::new());
    assert!(parse_requests(input, &Limits::default(), &mut state, &mut requests).is_ok());
    let mut queue = Requests::new();
    for n in 0..requests.len() {
        assert!(queue.push(requests.args(n, input)));
    }
    // With the bytes between the arguments.
    assert_eq!(
        queue.copied_bytes(),
        "GET\r\n$1\r\nk".len() + "ECHOa b".len()
    );
    assert_eq!(words(&queue, b""), words(&requests, input));
    assert_eq!(
        queue.args(1, b"").skip(1).iter().collect::<Vec<_>>(),
        [b"a b"]
    );
    assert!(queue.args(2, b"").is_empty());
    assert_eq!(queue.args(2, b"").name(), b"");
}

fn request() -> impl Strategy<Value = Words> {
    let word = prop_oneof![
        8 => proptest::collection::vec(any::<u8>(), 0..12),
        2 => proptest::collection::vec(any::<u8>(), 90..120),
        1 => proptest::collection::vec(any::<u8>(), 990..1010),
    ];
    prop_oneof![8 => proptest::collection::vec(word.clone(), 1..12), 1 => proptest::collection::vec(word, 30..70)]
}

/// Bytes that resemble the protocol, so that garbage gets deep into the parser.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"'".to_vec()),
        Just(b"\\x4".to_vec()),
        Just(b" ".to_vec()),
        Just(b"*1\r\n".to_vec()),
        Just(b"*2\r\n$3\r\nGET\r\n".to_vec()),
        Just(b"$1\r\nk\r\n".to_vec()),
        Just(b"$-1\r\n".to_vec()),
        any::<u8>().prop_map(|byte| vec![byte]),
        (-3i64..40).prop_map(|n| n.to_string().into_bytes()),
        any::<i64>().prop_map(|n| n.to_string().into_bytes()),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn round_trip_whatever_the_cuts(requests in proptest::collection::vec(request(), 1..6), cuts in proptest::collection::vec(1usize..80, 1..50)) {
        let mut input = Vec::new();
        for request in &requests {
            RequestEncoder::new(&mut input).request(request);
        }
        prop_assert_eq!(whole(&input), (requests.clone(), None, 0));
        let mut rest = &input[..];
        let mut chunks = Vec::new();
        for cut in cuts.iter().cycle() {
            let (chunk, after) = rest.split_at((*cut).min(rest.len()));
            chunks.push(chunk);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(fed(chunks, &Limits::default()), (requests, None, 0));
    }

    #[test]
    fn garbage_means_the_same_however_it_is_cut(input in garbage()) {
        let small = Limits { args_max: 8, bulk_bytes_max: 20, inline_bytes_max: 24, request_bytes_max: 60, ..Limits::default() };
        for limits in [Limits::default(), small, Limits::unauthenticated()] {
            let (requests, error, _) = fed([&*input], &limits);
            let bytewise = fed(input.chunks(1), &limits);
            prop_assert_eq!((&bytewise.0, bytewise.1), (&requests, error));
            for at in 0..=input.len() {
                let (head, tail) = input.split_at(at);
                let cut = fed([head, tail], &limits);
                prop_assert_eq!((&cut.0, cut.1), (&requests, error), "cut at {}", at);
            }
        }
    }

    #[test]
    fn any_bytes_are_parsed_without_panic(input in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (requests, error, _) = whole(&input);
        let bytewise = fed(input.chunks(1), &Limits::default());
        prop_assert_eq!((bytewise.0, bytewise.1), (requests, error));
    }
}
