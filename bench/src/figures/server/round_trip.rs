//! One connection, one request at a time: the latency for a caller.

use super::{ADAPTIVE, OFF, REDIS, start_all};
use crate::harness::{
    Bound, Contender, Latencies, Options, Report, Result, Row, alternate, progress,
};
use crate::servers::Programs;
use duramen_base::units::MIB;
use duramen_load::{Command, Limit, Load};
use std::cell::RefCell;
use std::time::Duration;

/// Runs the part.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let keys = 10_000;
    let servers = start_all(programs, 256 * MIB)?;
    for server in &servers {
        let mut load = Load::usual(server.address, Command::Set, 64);
        load.keys = keys;
        load.preload(0)?;
    }
    let mut rows = Vec::new();
    for (client, spin) in [("sleeps", false), ("spins", true)] {
        let latencies: Vec<_> = servers
            .iter()
            .map(|_| RefCell::new(Latencies::default()))
            .collect();
        let mut contenders: Vec<_> = servers
            .iter()
            .zip(&latencies)
            .map(|(server, all)| {
                Contender::new(&server.name, move || {
                    let mut load = Load::usual(server.address, Command::Get, 1);
                    (load.keys, load.connections, load.spin) = (keys, 1, spin);
                    load.limit = Limit::Time(Duration::from_millis(options.size(1000, 300)));
                    let outcome = load.run()?;
                    all.borrow_mut().add(&outcome.latencies);
                    Ok(outcome.latencies.at_us(0.50))
                })
            })
            .collect();
        let medians = alternate(options.rounds(), &mut contenders)?;
        let of = |name: &str| {
            let found = contenders
                .iter()
                .position(|contender| contender.name == name);
            found.map_or(f64::NAN, |n| medians[n])
        };
        let redis = of(REDIS);
        for (n, contender) in contenders.iter().enumerate() {
            let summary = latencies[n].borrow().summary();
            progress!(
                "one connection, client {client}: {}: p50 {:.1} µs",
                contender.name,
                medians[n]
            );
            rows.push(
                Row::new()
                    .with("client", client)
                    .with("server", contender.name.as_str())
                    .number("p50 µs", medians[n], 3)
                    .number("/ redis", medians[n] / redis, 3)
                    .number("p99 µs", summary.p99_us, 3)
                    .number("p99.9 µs", summary.p99_9_us, 3),
            );
        }
        let target =
            format!("one connection, client {client}, adaptive polling: p50 ≤ 0.4x redis-server's");
        report.target(target, of(ADAPTIVE) / redis, Bound::AtMost(0.4));
        let target =
            format!("one connection, client {client}, polling off: p50 ≤ 1.0x redis-server's");
        report.target(target, of(OFF) / redis, Bound::AtMost(1.0));
    }
    report.table("One connection, GET, round trip", rows);
    Ok(())
}
