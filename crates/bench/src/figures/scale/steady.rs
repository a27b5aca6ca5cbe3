//! What the coordinator of a large cluster does while nothing happens: its real code, asked what so many servers ask, as often.

use super::cluster::{MESSAGE, coordinator, encode, settings};
use crate::harness::Result;
use duramen_base::ids::TabletsVersion;
use duramen_base::units::MIB;
use duramen_cluster::coordinator::{Input, Output, ReplyId};
use duramen_wire::native::codec::{
    Envelope, PEER_FRAME_BYTES_MAX, Parsed, decode_question, encode_to_coordinator, parse_frame,
};
use duramen_wire::native::message::ToCoordinator;
use std::time::Instant;

/// How often each server asks, per second: for the map, and to say what it has (`duramen_node`'s member).
const MAPS: f64 = 1.0;
const CONFIRMS: f64 = 0.1;

/// What was found.
pub(super) struct Steady {
    /// Part of one core.
    pub busy: f64,
    pub messages_per_second: f64,
}

pub(super) fn load(servers: usize) -> Result<Steady> {
    let (mut coordinator, _store, ids) = coordinator(servers, servers, settings(512 * MIB, 3))?;
    let status = coordinator.status();
    let mut ns = [0.0; 2];
    for (kind, ns) in ns.iter_mut().enumerate() {
        let begun = Instant::now();
        let mut out = Vec::new();
        for (n, server) in ids.iter().enumerate() {
            let question = if kind == 0 {
                ToCoordinator::Map {
                    table: None,
                    since: status.map_version,
                }
            } else {
                ToCoordinator::Confirm {
                    server: *server,
                    list_version: status.list_version,
                    tablets_version: TabletsVersion(status.map_version.0),
                }
            };
            out.clear();
            let envelope = Envelope {
                request: n as u64,
                target: duramen_base::ids::ServerId::NONE,
                sender: *server,
            };
            encode_to_coordinator(&mut out, &envelope, &question);
            let parsed = parse_frame(&out, PEER_FRAME_BYTES_MAX);
            if let Ok(Parsed::Frame { frame, .. }) = parsed {
                let question = decode_question(&frame);
                assert!(question.is_ok(), "it was just encoded");
            }
            let outputs = coordinator.handle(
                1,
                Input::Asked {
                    reply: ReplyId(n as u64),
                    sender: *server,
                    question,
                },
            );
            for output in &outputs {
                out.clear();
                encode(&mut out, output);
                assert!(
                    !matches!(output, Output::Persist { .. }),
                    "nothing is stored"
                );
            }
        }
        *ns = begun.elapsed().as_nanos() as f64 / ids.len() as f64 + 2.0 * MESSAGE as f64;
    }
    let rates = [MAPS * servers as f64, CONFIRMS * servers as f64];
    let busy = (ns[0] * rates[0] + ns[1] * rates[1]) / 1e9;
    Ok(Steady {
        busy,
        messages_per_second: rates.iter().sum(),
    })
}
