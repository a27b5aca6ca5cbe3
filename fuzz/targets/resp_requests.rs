//! Requests: any bytes, cut anywhere, give the same requests and the same error as uncut, and
//! parsed requests can be written and parsed again.
#![no_main]

use duramen_wire::resp::{
    Consumed, Limits, ParseState, ProtocolError, RequestEncoder, Requests, parse_requests,
};
use libfuzzer_sys::fuzz_target;

type Words = Vec<Vec<u8>>;

const LIMITS: Limits = Limits {
    args_max: 1000,
    bulk_bytes_max: 1 << 16,
    inline_bytes_max: 1 << 12,
    request_bytes_max: 1 << 20,
    requests_max: 100,
    parsed_bytes_max: 1 << 10,
    unauthenticated: false,
};

/// Feeds `input` in chunks of `step` bytes, as a connection would.
fn parse(input: &[u8], step: usize) -> (Vec<Words>, Option<ProtocolError>) {
    let (mut state, mut requests) = (ParseState::new(), Requests::new());
    let (mut buffer, mut all) = (Vec::new(), Vec::new());
    for chunk in input.chunks(step) {
        buffer.extend_from_slice(chunk);
        loop {
            let result = parse_requests(&buffer, &LIMITS, &mut state, &mut requests);
            for n in 0..requests.len() {
                all.push(
                    requests
                        .args(n, &buffer)
                        .iter()
                        .map(<[u8]>::to_vec)
                        .collect(),
                );
            }
            match result {
                Ok(Consumed { bytes, more }) => {
                    assert!(bytes <= buffer.len());
                    buffer.drain(..bytes);
                    if !more {
                        break;
                    }
                }
                Err(error) => return (all, Some(error)),
            }
        }
    }
    (all, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((step, input)) = data.split_first() else {
        return;
    };
    let (words, error) = parse(input, input.len().max(1));
    let step = usize::from(*step) + 1;
    let (cut_words, cut_error) = parse(input, step);
    assert_eq!(words, cut_words);
    if error != cut_error {
        // An argument without CR LF at its end may be detected at its CR or only once both bytes
        // are there.
        let longer = [input, b"\n"].concat();
        assert_eq!((cut_error, &error), (None, &parse(&longer, step).1));
    }
    let mut written = Vec::new();
    for request in &words {
        RequestEncoder::new(&mut written).request(request);
    }
    assert_eq!(parse(&written, written.len().max(1)), (words, None));
});
