//! The cost per message of a coordinator of 10,000 servers. By hand: `cargo test --release … scale
//! -- --ignored --nocapture`.

use crate::coordinator::rig::Rig;
use duramen_base::ids::{SegmentId, ServerId, TabletsVersion};
use duramen_wire::native::message::ToCoordinator;
use std::time::Instant;

const SERVERS: u64 = 10_000;
const MESSAGES: u64 = 100_000;

/// Prints the time of a message of this kind.
fn measure(
    rig: &mut Rig,
    servers: &[ServerId],
    what: &str,
    question: &dyn Fn(u64, ServerId) -> ToCoordinator,
) {
    let begin = Instant::now();
    for n in 0..MESSAGES {
        let server = servers[(n % SERVERS) as usize];
        rig.ask(server, question(n, server));
        if n % 1000 == 0 {
            rig.be_good();
            rig.answers.clear();
        }
    }
    println!(
        "{what}: {} ns per message",
        begin.elapsed().as_nanos() as u64 / MESSAGES
    );
}

#[test]
#[ignore = "a measurement"]
fn by_hand_ten_thousand_servers() {
    let mut rig = Rig::new();
    let begin = Instant::now();
    rig.leader.stores = false;
    for n in 1..=SERVERS {
        rig.ask(ServerId::NONE, crate::coordinator::rig::enlist(n, n, None));
        rig.asked.clear();
    }
    rig.leader.stores = true;
    println!("{SERVERS} enlistments: {:?}", begin.elapsed());
    let begin = Instant::now();
    rig.store_all();
    rig.answers.clear();
    println!(
        "their answers, each with the whole list: {:?}",
        begin.elapsed()
    );
    let begin = Instant::now();
    rig.be_good();
    println!("all lists and tablets confirmed: {:?}", begin.elapsed());
    rig.create_table("a", SERVERS as u32);
    rig.be_good();
    let servers: Vec<ServerId> = rig.status().servers.iter().map(|s| s.server).collect();
    let status = rig.status();
    let (list_version, map) = (status.list_version, status.map_version);
    measure(&mut rig, &servers, "Confirm", &|_, server| {
        ToCoordinator::Confirm {
            server,
            list_version,
            tablets_version: TabletsVersion(map.0),
        }
    });
    measure(
        &mut rig,
        &servers,
        "ControlHead, stored in memory",
        &|n, server| ToCoordinator::ControlHead {
            server,
            min_open: SegmentId(n),
        },
    );
    measure(
        &mut rig,
        &servers,
        "ClientLease, stored in memory",
        &|_, _| ToCoordinator::ClientLease { client: None },
    );
    let begin = Instant::now();
    for _ in 0..10_000 {
        rig.pass(100_000);
        rig.be_good();
        rig.answers.clear();
    }
    println!(
        "own pings: {} ns per second of them",
        begin.elapsed().as_nanos() as u64 / 1_000
    );
    let begin = Instant::now();
    rig.crash(servers[5]);
    let told = rig.asked.len();
    println!("a crash, {told} questions made: {:?}", begin.elapsed());
    let begin = Instant::now();
    rig.be_good();
    println!("its list confirmed by all: {:?}", begin.elapsed());
}
