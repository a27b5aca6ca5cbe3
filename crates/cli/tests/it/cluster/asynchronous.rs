//! The asynchronous native client and real processes: many operations in flight on one thread while
//! servers are killed and stopped.

use crate::cluster::process::{DEADLINE, Process, signal, until};
use duramen_client::Options;
use duramen_client::asynchronous::{AsyncClient, AsyncTable, Pending, wait};
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

const KEYS: usize = 100;

fn up(more: &[&str]) -> Process {
    let args = ["up", "--servers", "3", "--memory", "64mb"];
    Process::start(&[&args[..], more].concat())
}

fn table(up: &Process) -> AsyncTable {
    let coordinators = up.said("coordinator");
    let mut options = Options::new(coordinators.split(','));
    options.deadline = DEADLINE;
    let client = AsyncClient::new(options).expect("a thread");
    wait(client.table("db0")).expect("RESP's first table")
}

fn pids(up: &Process) -> Vec<u32> {
    let pids = up.said("pids");
    pids.split(',')
        .map(|pid| pid.parse().expect("a pid"))
        .collect()
}

fn increments(table: &AsyncTable, count: usize) -> Vec<Pending<i64>> {
    let keys = (0..count).map(|n| format!("sum {}", n % KEYS));
    keys.map(|key| table.increment(key.as_bytes(), 1)).collect()
}

fn sum(table: &AsyncTable) -> i64 {
    let sums: Vec<Pending<i64>> = (0..KEYS)
        .map(|n| table.increment(format!("sum {n}").as_bytes(), 0))
        .collect();
    sums.into_iter().map(|sum| wait(sum).expect("read")).sum()
}

/// 10,000 increments at a time on one thread, half of them without their futures: a server is
/// killed among the first, another declared dead among the next, and each counts once.
#[test]
fn ten_thousand_increments_in_flight_outlive_servers_and_count_once() {
    const COUNT: usize = 10_000;
    // A busy machine delays a living server for a moment. The killed one is noticed at once.
    let up = up(&["--verdict-timeout", "3s"]);
    let table = table(&up);
    let mut calls = increments(&table, COUNT);
    wait(calls.pop().expect("the last one")).expect("executed");
    let mut expected = COUNT;
    calls.extend(increments(&table, COUNT));
    signal(pids(&up)[1], "KILL");
    for (n, call) in calls.into_iter().enumerate() {
        match n % 2 {
            0 => drop(call),
            _ => drop(wait(call).expect("masked")),
        }
    }
    expected += COUNT;
    until("the recovery is shown as done", || {
        let answer = up.call(&["status"]).run();
        answer.expect(0);
        answer.out.contains("done")
    });
    let alive = up.call(&["status", "--json"]).run().json();
    let mut members = alive["servers"].as_array().expect("members").iter();
    let member = members.find(|member| member["state"] == "up");
    let member = member.expect("one is up")["server"].as_str();
    let calls = increments(&table, COUNT);
    up.call(&["crash", member.expect("a name")]).run().expect(0);
    for call in calls {
        wait(call).expect("masked");
    }
    expected += COUNT;
    until("all dropped ones have ended", || {
        sum(&table) == expected as i64
    });
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(sum(&table), expected as i64, "one has counted twice");
}

/// The server stays a member all the time, and holds no lease that the others need soon.
#[test]
fn a_stopped_server_delays_its_own_operations_alone() {
    let up = up(&["--verdict-timeout", "40s", "--read-lease", "20s"]);
    let table = table(&up);
    let keys: Vec<String> = (0..3_000).map(|n| format!("key {n}")).collect();
    let objects: Vec<(&String, &[u8])> = keys.iter().map(|key| (key, &b"value"[..])).collect();
    for written in wait(table.set_many(&objects, duramen_client::Write::default())) {
        written.expect("written");
    }
    let stopped = pids(&up)[2];
    signal(stopped, "STOP");
    let since = Instant::now();
    let mut reads: Vec<_> = keys.iter().map(|key| table.get(key.as_bytes())).collect();
    let mut context = Context::from_waker(Waker::noop());
    // Two of three servers answer, and each has a third of the keys.
    let mut answered = 0;
    while answered < keys.len() / 2 {
        assert!(since.elapsed() < DEADLINE, "{answered} answers");
        reads.retain_mut(|read| match Pin::new(read).poll(&mut context) {
            std::task::Poll::Ready(found) => {
                assert!(found.expect("read").is_some());
                answered += 1;
                false
            }
            std::task::Poll::Pending => true,
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    // The others still answer at once, one operation after the other, of their keys.
    let quick = keys.iter().filter(|key| {
        let mut read = table.get(key.as_bytes());
        let until = Instant::now() + Duration::from_millis(200); // or it is the stopped server's
        while Instant::now() < until {
            if Pin::new(&mut read).poll(&mut context).is_ready() {
                return true;
            }
        }
        false
    });
    assert_eq!(quick.take(30).count(), 30);
    assert!(!reads.is_empty(), "the stopped server has answered");
    signal(stopped, "CONT");
    for read in reads {
        assert!(wait(read).expect("read").is_some());
    }
}
