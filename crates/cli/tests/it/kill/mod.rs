//! Whole servers, repeatedly killed with SIGKILL under load: nothing that was acknowledged, or
//! shown to a client, may be lost.
//!
//! Several servers run at the same time, each with a directory of its own that it keeps from one
//! life to the next. Every cycle starts the server, compares all of its data with the clients'
//! record, loads it from several connections, and kills it at a random moment (sometimes it may
//! stop cleanly). `DURAMEN_KILL_CYCLES` sets the total number of cycles, `DURAMEN_KILL_SEED`
//! repeats the choices of a run, though not its timing.

mod check;
mod decay;
mod load;
mod series;
mod server;
mod wire;

use check::Model;
use duramen_base::random::Random;
use duramen_base::test_tier;
use server::Server;
use std::time::{Duration, Instant};

/// Servers at a time: enough to keep two cores and one disk busy.
const SERVERS: u32 = 3;

/// Enough for the frames of 64 MB of memory, four times over. Unused space takes no blocks.
const RAW_BYTES: u64 = 1 << 30;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let cycles = setting("DURAMEN_KILL_CYCLES").unwrap_or_else(|| test_tier::runs(20, 300)) as u32;
    let seed = setting("DURAMEN_KILL_SEED").unwrap_or(u64::from(std::process::id()));
    println!("DURAMEN_KILL_SEED={seed} DURAMEN_KILL_CYCLES={cycles}");
    let began = Instant::now();
    let servers: Vec<_> = (0..SERVERS)
        .map(|number| {
            let mine = cycles / SERVERS + u32::from(number < cycles % SERVERS);
            std::thread::spawn(move || lives(number, mine, seed))
        })
        .collect();
    let mut total = check::Totals::default();
    for server in servers {
        match server.join() {
            Ok(one) => total.add(&one),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    println!(
        "{cycles} cycles in {:.0} s: {total}",
        began.elapsed().as_secs_f64()
    );
    assert!(total.acknowledged > 0 && total.checked_keys > 0, "{total}");
}

/// One server's lives.
fn lives(number: u32, cycles: u32, seed: u64) -> check::Totals {
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = Random::new(seed ^ (u64::from(number) << 32 | 0x9e37));
    let mode = ["buffered", "direct", "raw"][number as usize % 3];
    if mode == "raw" {
        // One file in place of a partition.
        let file = std::fs::File::create(folder.path().join("data")).expect("a file");
        file.set_len(RAW_BYTES).expect("a file of that size");
    }
    let mut model = Model::new(load::WRITERS);
    let mut totals = check::Totals::default();
    for cycle in 0..cycles {
        let server = Server::start(folder.path(), mode, &mut random);
        totals.restarts_ms.push(server.started_ms);
        check_all(&server, &mut model, &mut totals, number, cycle);
        let run = Duration::from_millis(60 + random.below(240));
        load::run(&server, &mut model, run, &mut random, &mut totals);
    }
    // The last life's acknowledgements count too.
    let server = Server::start(folder.path(), mode, &mut random);
    check_all(&server, &mut model, &mut totals, number, cycles);
    drop(server);
    totals
}

fn check_all(
    server: &Server,
    model: &mut Model,
    totals: &mut check::Totals,
    number: u32,
    cycle: u32,
) {
    let wrong = model.check(server, totals);
    if wrong.is_empty() {
        return;
    }
    let kept = server::keep(server.dir());
    panic!(
        "server {number}, cycle {cycle}: {} wrong; its directory is kept as {kept}\n{}\n{}",
        wrong.len(),
        wrong
            .iter()
            .take(20)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n"),
        server.log()
    );
}
