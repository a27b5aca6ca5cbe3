//! The keys and arguments of a script.

use super::*;

/// They were put into tables in one piece, whatever their number: 500,000 took 100 ms.
#[test]
fn a_script_is_suspended_while_it_gets_its_arguments() {
    const NUMBER: usize = 100_000;
    let texts: Vec<String> = (0..NUMBER).map(|n| n.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let machine = || {
        let memory_bytes = 64 << 20;
        let limits = Limits {
            memory_bytes,
            ..limits()
        };
        Machine::new(limits).expect("memory for a stack")
    };
    let job = || {
        let mut job = job(
            "return {#KEYS, #ARGV, ARGV[#ARGV], redis.call('ping')}",
            &texts,
        );
        job.slice = Duration::from_micros(100);
        job
    };
    let mut stopped = machine();
    assert!(matches!(stopped.start(job()), Event::Slice { .. }));
    stopped.stop();
    assert!(!stopped.is_busy());
    let mut calls = 0;
    let outcome = run_with(&mut machine(), job(), usize::MAX, |_| {
        calls += 1;
        b"+PONG\r\n".to_vec()
    });
    let reply = String::from_utf8_lossy(&outcome.reply).into_owned();
    let last = "$5\r\n99999\r\n";
    assert_eq!(reply, format!("*4\r\n:1\r\n:{NUMBER}\r\n{last}+PONG\r\n"));
    assert_eq!(calls, 1);
}

/// Nothing is collected while a script gets very many texts; afterwards it is as ever, also if
/// there was no memory for the table of them.
#[test]
fn garbage_is_collected_after_very_many_texts() {
    const GARBAGE: &str = "for i = 1, 1000000 do local t = {i} end return 'done'"; // 100 MB
    let texts: Vec<String> = (0..200_000).map(|n| n.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let machine = |memory_bytes| {
        let limits = Limits {
            memory_bytes,
            ..limits()
        };
        Machine::new(limits).expect("memory for a stack")
    };
    let reply = |machine: &mut Machine, texts: &[&str]| {
        let ended = run_with(machine, job(GARBAGE, texts), usize::MAX, |_| Vec::new());
        String::from_utf8_lossy(&ended.reply).into_owned()
    };
    assert_eq!(reply(&mut machine(32 << 20), &texts), "$4\r\ndone\r\n");
    let mut small = machine(2 << 20);
    let full = reply(&mut small, &texts);
    assert!(full.contains("not enough memory"), "{full}");
    assert!(!small.is_heavy(), "it is used again");
    assert_eq!(reply(&mut small, &[]), "$4\r\ndone\r\n");
}
