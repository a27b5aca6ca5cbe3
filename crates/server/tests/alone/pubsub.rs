//! Memory for messages to slow subscribers.

use crate::alone;
use crate::support::{Asking, counter, start, wait_until};
use duramen_wire::resp::Reply;

/// The largest memory of this process so far, in bytes.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    1024 * kib.expect("a peak").parse::<usize>().expect("a number")
}

fn patterns(number: usize) -> Vec<Vec<u8>> {
    (0..number)
        .map(|n| [b"a".to_vec(), vec![b'*'; n + 1]].concat())
        .collect()
}

fn psubscribe(client: &mut Asking, patterns: &[Vec<u8>]) {
    for pattern in patterns {
        client.ask(&[b"PSUBSCRIBE", pattern]);
    }
}

/// A copy for each of many patterns was made before the first was sent: one message took
/// gigabytes.
#[test]
fn one_message_for_many_patterns_takes_little_memory() {
    let _alone = alone();
    let server = start(|_| {});
    let mut slow = Asking::connect(&server);
    let mut publisher = Asking::connect(&server);
    let patterns = patterns(800);
    psubscribe(&mut slow, &patterns);
    let before = peak_bytes();
    let message = vec![b'm'; 4 << 20];
    let heard = publisher.ask(&[b"PUBLISH", b"a", &message]);
    assert_eq!(heard, Reply::Integer(800));
    wait_until("the slow subscriber is closed", || {
        counter(&server, |counters| counters.output_closed.get()) == 1
    });
    let grown = peak_bytes() - before;
    assert!(grown < 1 << 30, "{} MiB", grown >> 20);
    // One that takes its messages gets all.
    let mut quick = Asking::connect(&server);
    psubscribe(&mut quick, &patterns[..20]);
    let message = &message[..64 << 10];
    publisher.ask(&[b"PUBLISH", b"a", message]);
    for _ in 0..20 {
        let Reply::Array(parts) = quick.reply() else {
            panic!("no message");
        };
        assert_eq!(parts[3], Reply::Bulk(message.to_vec()));
    }
    server.stop();
    server.wait().expect("stops");
}
