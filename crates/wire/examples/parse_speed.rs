//! Time to parse one pipelined request and to write its reply: `cargo run --release -p
//! duramen-wire --example parse_speed`. For instruction counts: `valgrind --tool=callgrind
//! target/release/examples/parse_speed 1000 GET`, with the number of rounds and a part of the
//! case's name as arguments.

use std::hint::black_box;
use std::time::Instant;

use duramen_wire::resp::{
    Encoder, Limits, ParseState, Protocol, ReplySkipper, RequestEncoder, Requests, parse_requests,
};

/// Best of five runs, in nanoseconds per unit; one call of `work` does `units`. Runs only if the
/// command line selects it.
fn best(name: &str, rounds: usize, units: usize, mut work: impl FnMut()) {
    if std::env::args()
        .nth(2)
        .is_some_and(|chosen| !name.contains(&chosen))
    {
        return;
    }
    let best = (0..5)
        .map(|_| {
            let began = Instant::now();
            (0..rounds).for_each(|_| work());
            began.elapsed().as_nanos() as f64 / (rounds * units) as f64
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:<34} {best:7.2} ns");
}

fn parse(name: &str, rounds: usize, args: &[&[u8]]) {
    let mut input = Vec::new();
    (0..16).for_each(|_| RequestEncoder::new(&mut input).request(args));
    let (limits, mut state, mut requests) = (Limits::default(), ParseState::new(), Requests::new());
    best(name, rounds, 16, || {
        let parsed = parse_requests(black_box(&input), &limits, &mut state, &mut requests);
        assert_eq!(parsed.map(|consumed| consumed.bytes), Ok(input.len()));
        for n in 0..requests.len() {
            black_box(requests.args(n, &input).get(1));
        }
    });
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(200_000);
    let (key, value) = ([b'k'; 16], [b'v'; 100]);
    parse("GET, 16 B key", rounds, &[b"GET", &key]);
    parse(
        "SET, 16 B key, 100 B value",
        rounds,
        &[b"SET", &key, &value],
    );
    let keys: Vec<&[u8]> = std::iter::once(&b"MGET"[..])
        .chain((0..70).map(|_| &key[..]))
        .collect();
    parse("70 keys at once, per request", rounds / 20, &keys);

    let mut out = Vec::new();
    best("reply of 100 B, written", rounds, 16, || {
        out.clear();
        let mut encoder = Encoder::new(&mut out, Protocol::Resp2);
        (0..16).for_each(|_| encoder.bulk(black_box(&value)));
        black_box(&out);
    });
    out.clear();
    (0..16).for_each(|_| Encoder::new(&mut out, Protocol::Resp2).bulk(&value));
    let mut skipper = ReplySkipper::new();
    best("reply of 100 B, skipped", rounds, 16, || {
        let skipped = skipper.advance(black_box(&out));
        assert_eq!(skipped.map(|skipped| skipped.replies), Ok(16));
    });
    best("integer reply, written", rounds, 16, || {
        out.clear();
        let mut encoder = Encoder::new(&mut out, Protocol::Resp2);
        (0..16).for_each(|n| encoder.integer(black_box(123_456 + n)));
        black_box(&out);
    });
}
