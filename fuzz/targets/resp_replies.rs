//! Replies: any bytes, cut anywhere, give the same replies and the same error as uncut, and the
//! parser that only counts agrees with the one that builds.
#![no_main]

use duramen_wire::resp::{Reply, ReplyLimits, ReplyParser, ReplySkipper};
use libfuzzer_sys::fuzz_target;

const LIMITS: ReplyLimits = ReplyLimits {
    bulk_bytes_max: 1 << 16,
    values_max: 1000,
    depth_max: 16,
};

/// All replies in `input`, and whether an error ended them.
fn parse(input: &[u8], step: usize) -> (Vec<Reply>, bool) {
    let mut parser = ReplyParser::new(LIMITS);
    let mut replies = Vec::new();
    for chunk in input.chunks(step) {
        parser.feed(chunk);
        loop {
            match parser.next_reply() {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(_) => return (replies, true),
            }
        }
    }
    (replies, false)
}

fuzz_target!(|data: &[u8]| {
    let Some((step, input)) = data.split_first() else {
        return;
    };
    let (replies, failed) = parse(input, input.len().max(1));
    let (cut, cut_failed) = parse(input, usize::from(*step) + 1);
    // By text: a NaN is not equal to itself.
    assert_eq!(format!("{replies:?}"), format!("{cut:?}"));
    if failed != cut_failed {
        // A bulk string without CR LF at its end may be detected at its CR or only once both bytes
        // are there.
        let longer = [input, b"\n"].concat();
        assert!(failed && parse(&longer, usize::from(*step) + 1).1);
    }
    if !failed && let Ok(skipped) = ReplySkipper::new().advance(input) {
        assert!(skipped.bytes <= input.len());
        assert_eq!(skipped.replies, replies.len());
    }
});
