//! Replies on the client's side: golden cases; the client reads what the server encodes; arbitrary
//! boundaries between reads; garbage.

use duramen_wire::resp::{
    Encoder, Protocol, Reply, ReplyError, ReplyLimits, ReplyParser, ReplySkipper, Skipped,
};
use proptest::prelude::*;

fn fed<'a>(
    chunks: impl IntoIterator<Item = &'a [u8]>,
    limits: ReplyLimits,
) -> (Vec<Reply>, Option<ReplyError>) {
    let mut parser = ReplyParser::new(limits);
    let mut replies = Vec::new();
    for chunk in chunks {
        parser.feed(chunk);
        loop {
            match parser.next_reply() {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(error) => return (replies, Some(error)),
            }
        }
    }
    (replies, None)
}

fn whole(input: &[u8]) -> (Vec<Reply>, Option<ReplyError>) {
    fed([input], ReplyLimits::default())
}

fn skipped<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Result<Skipped, ReplyError> {
    let (mut skipper, mut buffer, mut total) =
        (ReplySkipper::new(), Vec::new(), Skipped::default());
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        let now = skipper.advance(&buffer)?;
        buffer.drain(..now.bytes);
        total.bytes += now.bytes;
        total.replies += now.replies;
        total.errors += now.errors;
        total.nulls += now.nulls;
    }
    Ok(total)
}

#[test]
fn golden_replies() {
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    for (input, reply) in [
        ("+OK\r\n", Reply::Simple("OK".into())),
        ("-ERR no\r\n", Reply::Error("ERR no".into())),
        (":-7\r\n", Reply::Integer(-7)),
        ("$2\r\n\r\n\r\n", bulk("\r\n")),
        ("$0\r\n\r\n", bulk("")),
        ("$-1\r\n", Reply::Null),
        ("*-1\r\n", Reply::Null),
        ("_\r\n", Reply::Null),
        ("*0\r\n", Reply::Array(vec![])),
        (
            "*2\r\n*1\r\n:1\r\n*0\r\n",
            Reply::Array(vec![
                Reply::Array(vec![Reply::Integer(1)]),
                Reply::Array(vec![]),
            ]),
        ),
        (
            "%1\r\n+k\r\n:1\r\n",
            Reply::Map(vec![(Reply::Simple("k".into()), Reply::Integer(1))]),
        ),
        ("~1\r\n#t\r\n", Reply::Set(vec![Reply::Boolean(true)])),
        (">1\r\n#f\r\n", Reply::Push(vec![Reply::Boolean(false)])),
        (",1.5\r\n", Reply::Double(1.5)),
        (",inf\r\n", Reply::Double(f64::INFINITY)),
        (
            "(123456789012345678901234567890\r\n",
            Reply::BigNumber("123456789012345678901234567890".into()),
        ),
        (
            "=7\r\ntxt:abc\r\n",
            Reply::Verbatim {
                format: "txt".into(),
                text: b"abc".to_vec(),
            },
        ),
        ("!5\r\nERR x\r\n", Reply::Error("ERR x".into())),
        ("|1\r\n+ttl\r\n:9\r\n:5\r\n", Reply::Integer(5)),
        (
            "*2\r\n:1\r\n|1\r\n+ttl\r\n:9\r\n:5\r\n",
            Reply::Array(vec![Reply::Integer(1), Reply::Integer(5)]),
        ),
    ] {
        assert_eq!(whole(input.as_bytes()), (vec![reply], None), "{input:?}");
        let counted = skipped([input.as_bytes()]);
        assert_eq!(
            counted.map(|all| (all.bytes, all.replies)),
            Ok((input.len(), 1)),
            "{input:?}"
        );
    }
}

#[test]
fn skipper_tells_errors_and_nulls_of_the_top_level() {
    let input = b"-ERR a\r\n*2\r\n-ERR b\r\n$-1\r\n$-1\r\n$3\r\nabc\r\n_\r\n";
    assert_eq!(
        skipped([&input[..]]),
        Ok(Skipped {
            bytes: input.len(),
            replies: 5,
            errors: 1,
            nulls: 2
        })
    );
}

#[test]
fn bad_replies_are_refused() {
    let small = ReplyLimits {
        bulk_bytes_max: 4,
        values_max: 6,
        depth_max: 2,
    };
    for input in [
        "HTTP/1.1 200 OK\r\n",
        "$x\r\n",
        "$-2\r\n",
        "*-2\r\n",
        "%-1\r\n",
        ":1x\r\n",
        ":\r\n",
        "#x\r\n",
        "_x\r\n",
        ",x\r\n",
        "+OK\n",
        "$1\r\nax",
        "=2\r\nab\r\n",
        "$5\r\n",
        "*7\r\n",
        "%4\r\n",
        "*1\r\n*1\r\n*1\r\n",
    ] {
        let (replies, error) = fed([input.as_bytes()], small);
        let (_, bytewise) = fed(input.as_bytes().chunks(1), small);
        assert_eq!(bytewise, error, "{input:?}");
        assert!(
            replies.is_empty() && error.is_some(),
            "{input:?} gave {replies:?}"
        );
    }
    let many = "*2\r\n*2\r\n:1\r\n:2\r\n*2\r\n:3\r\n:4\r\n";
    assert_eq!(
        fed([many.as_bytes()], small).1,
        Some(ReplyError::TooBig {
            what: "values in one reply"
        })
    );
}

/// Writes a reply as the server does in RESP3.
fn encode(reply: &Reply, to: &mut Encoder<'_>) {
    match reply {
        Reply::Simple(text) => to.simple(text),
        Reply::Error(text) => to.error(text),
        Reply::Integer(value) => to.integer(*value),
        Reply::Bulk(bytes) => to.bulk(bytes),
        Reply::Null => to.null(),
        Reply::Double(value) => to.double(*value),
        Reply::Boolean(value) => to.boolean(*value),
        Reply::BigNumber(digits) => to.big_number(digits),
        Reply::Verbatim { format, text } => to.verbatim(format, &String::from_utf8_lossy(text)),
        Reply::Array(elements) => {
            to.array(elements.len());
            elements.iter().for_each(|element| encode(element, to));
        }
        Reply::Set(elements) => {
            to.set(elements.len());
            elements.iter().for_each(|element| encode(element, to));
        }
        Reply::Push(elements) => {
            to.push(elements.len());
            elements.iter().for_each(|element| encode(element, to));
        }
        Reply::Map(pairs) => {
            to.map(pairs.len());
            for (key, value) in pairs {
                encode(key, to);
                encode(value, to);
            }
        }
    }
}

fn reply() -> impl Strategy<Value = Reply> {
    let leaf = prop_oneof![
        "[ -~]{0,20}".prop_map(Reply::Simple),
        "ERR [ -~]{0,20}".prop_map(Reply::Error),
        any::<i64>().prop_map(Reply::Integer),
        proptest::collection::vec(any::<u8>(), 0..120).prop_map(Reply::Bulk),
        Just(Reply::Null),
        any::<f64>()
            .prop_filter("equal to itself", |value| !value.is_nan())
            .prop_map(Reply::Double),
        any::<bool>().prop_map(Reply::Boolean),
        "-?[1-9][0-9]{0,40}".prop_map(Reply::BigNumber),
        "[a-z ]{0,20}".prop_map(|text| Reply::Verbatim {
            format: "txt".into(),
            text: text.into_bytes()
        }),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let elements = proptest::collection::vec(inner.clone(), 0..6);
        prop_oneof![
            elements.clone().prop_map(Reply::Array),
            elements.clone().prop_map(Reply::Set),
            elements.prop_map(Reply::Push),
            proptest::collection::vec((inner.clone(), inner), 0..4).prop_map(Reply::Map),
        ]
    })
}

fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(b"+-:$*_,#(=!%~>|\r\n".to_vec()).prop_map(|byte| vec![byte]),
        Just(b"\r\n".to_vec()),
        Just(b"$1\r\nx\r\n".to_vec()),
        Just(b":1\r\n".to_vec()),
        Just(b"*2\r\n".to_vec()),
        Just(b"|1\r\n".to_vec()),
        any::<u8>().prop_map(|byte| vec![byte]),
        (-3i64..10).prop_map(|n| n.to_string().into_bytes()),
        any::<i64>().prop_map(|n| n.to_string().into_bytes()),
    ];
    proptest::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_is_encoded_is_read_whatever_the_cuts(replies in proptest::collection::vec(reply(), 1..5), cut in 1usize..40) {
        let mut input = Vec::new();
        let mut encoder = Encoder::new(&mut input, Protocol::Resp3);
        replies.iter().for_each(|reply| encode(reply, &mut encoder));
        prop_assert_eq!(whole(&input), (replies.clone(), None));
        prop_assert_eq!(fed(input.chunks(cut), ReplyLimits::default()), (replies.clone(), None));
        for chunks in [input.len(), cut] {
            let counted = skipped(input.chunks(chunks));
            prop_assert_eq!(counted.map(|all| (all.bytes, all.replies)), Ok((input.len(), replies.len())));
        }
    }

    #[test]
    fn garbage_means_the_same_however_it_is_cut(input in garbage()) {
        let small = ReplyLimits { bulk_bytes_max: 100, values_max: 40, depth_max: 3 };
        for limits in [ReplyLimits::default(), small] {
            let expected = fed([&*input], limits);
            prop_assert_eq!(format!("{:?}", fed(input.chunks(1), limits)), format!("{expected:?}"));
        }
        let counted = skipped([&*input]);
        prop_assert_eq!(skipped(input.chunks(1)).is_ok(), counted.is_ok());
        if let (Ok(counted), (replies, None)) = (counted, whole(&input)) {
            prop_assert_eq!(counted.replies, replies.len());
        }
    }
}

/// Each call returns one reply, also if several arrive at once or one arrives in pieces.
#[test]
fn replies_are_read_from_a_stream_one_by_one() {
    let mut stream = std::io::Read::chain(&b"+OK\r\n:1\r\n$3\r\na"[..], &b"bc\r\n?"[..]);
    let mut parser = ReplyParser::new(ReplyLimits::default());
    let mut next = || parser.read_from(&mut stream);
    assert_eq!(next().expect("a status"), Reply::Simple("OK".to_owned()));
    assert_eq!(next().expect("a number"), Reply::Integer(1));
    assert_eq!(next().expect("a text"), Reply::Bulk(b"abc".to_vec()));
    let kind = |error: std::io::Error| error.kind();
    assert_eq!(next().map_err(kind), Err(std::io::ErrorKind::InvalidData));
    let mut cut = &b"$3\r\na"[..];
    let end = ReplyParser::new(ReplyLimits::default()).read_from(&mut cut);
    assert_eq!(end.map_err(kind), Err(std::io::ErrorKind::UnexpectedEof));
}
