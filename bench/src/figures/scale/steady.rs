//! The load of a large cluster's coordinator beside recoveries: its real code, with the requests of
//! so many servers at their real rate.

use super::cluster::{Batches, MESSAGE, coordinator, encode, settings, settle};
use crate::harness::Result;
use duramen_base::ids::{KeyRange, MapVersion, RouteHash, ServerId, TabletsVersion};
use duramen_base::units::MIB;
use duramen_cluster::coordinator::store::Memory;
use duramen_cluster::coordinator::{Coordinator, Input, Output, ReplyId};
use duramen_wire::native::codec::{
    Envelope, PEER_FRAME_BYTES_MAX, Parsed, decode_question, encode_to_coordinator, parse_frame,
};
use duramen_wire::native::message::{Admin, ToCoordinator};
use std::time::Instant;

/// Reports of each server about its tablets, per second (`duramen_node`'s member).
const CONFIRMS: f64 = 0.1;
/// Parts into which a dead server's tablet is cut, each with a new owner.
const CUTS: u64 = 205;

/// Seconds between two requests of a server for the map: while all tablets are served, and while
/// some are not (as in the member).
fn map_pauses(servers: usize) -> (f64, f64) {
    let servers = servers as f64;
    ((servers * 500e-6).max(1.0), (servers * 200e-6).max(0.1))
}

/// The result: parts of one core.
pub(super) struct Steady {
    pub busy: f64,
    /// During a recovery, beside the recovery itself.
    pub busy_meanwhile: f64,
    pub messages_per_second: f64,
}

pub(super) fn load(servers: usize) -> Result<Steady> {
    let (mut coordinator, mut store, ids) = coordinator(servers, servers, settings(512 * MIB, 3))?;
    let status = coordinator.status();
    let (version, list_version) = (status.map_version, status.list_version);
    let map = |since: MapVersion| move |_: ServerId| ToCoordinator::MapChanges { since };
    let current_ns = cost(&mut coordinator, &ids, map(version));
    let confirm_ns = cost(&mut coordinator, &ids, |server| ToCoordinator::Confirm {
        server,
        list_version,
        tablets_version: TabletsVersion(version.0),
    });
    let first = status
        .tablets
        .first()
        .map(|tablet| (tablet.table, tablet.range));
    if let Some((table, range)) = first {
        for at in cuts(range) {
            change(&mut coordinator, &mut store, Admin::Split { table, at })?;
        }
    }
    let changed_ns = cost(&mut coordinator, &ids, map(version));
    let (pause, soon) = map_pauses(servers);
    let servers = servers as f64;
    let confirming = servers * CONFIRMS * confirm_ns / 1e9;
    Ok(Steady {
        busy: servers / pause * current_ns / 1e9 + confirming,
        busy_meanwhile: servers / soon * changed_ns / 1e9 + confirming,
        messages_per_second: servers / pause + servers * CONFIRMS,
    })
}

fn cuts(range: KeyRange) -> impl Iterator<Item = RouteHash> {
    let step = (range.last.0 - range.first.0) / CUTS;
    (1..CUTS).map(move |n| RouteHash(range.first.0 + n * step))
}

fn change(coordinator: &mut Coordinator, store: &mut Memory, admin: Admin) -> Result<()> {
    let asked = Input::Request {
        reply: ReplyId(u64::MAX),
        sender: ServerId::NONE,
        question: ToCoordinator::Admin(admin),
    };
    let outputs = coordinator.handle(1, asked);
    let persists = outputs.into_iter().filter_map(|output| match output {
        Output::Persist { token, batch } => Some((token, batch)),
        _ => None,
    });
    let mut batches: Batches = persists.collect();
    settle(coordinator, store, &mut batches)
}

/// Nanoseconds of a request and its answer; each server sends one.
fn cost(
    coordinator: &mut Coordinator,
    ids: &[ServerId],
    question: impl Fn(ServerId) -> ToCoordinator,
) -> f64 {
    let begun = Instant::now();
    let mut out = Vec::new();
    for (n, server) in ids.iter().enumerate() {
        out.clear();
        let envelope = Envelope {
            request: n as u64,
            target: ServerId::NONE,
            sender: *server,
        };
        let question = question(*server);
        encode_to_coordinator(&mut out, &envelope, &question);
        if let Ok(Parsed::Frame { frame, .. }) = parse_frame(&out, PEER_FRAME_BYTES_MAX) {
            assert!(decode_question(&frame).is_ok(), "it was just encoded");
        }
        let asked = Input::Request {
            reply: ReplyId(n as u64),
            sender: *server,
            question,
        };
        for output in &coordinator.handle(1, asked) {
            out.clear();
            encode(&mut out, output);
            assert!(
                !matches!(output, Output::Persist { .. }),
                "nothing is stored"
            );
        }
    }
    begun.elapsed().as_nanos() as f64 / ids.len() as f64 + 2.0 * MESSAGE as f64
}
