//! Checks whether database 0 is served: each of its tablets answers a Redis client.

use super::super::{Cluster, tablet::RESP_TABLE};
use duramen_format::hash::KeyHasher;
use duramen_wire::native::message::{Status, TabletRoute};
use duramen_wire::resp::{Reply, ReplyLimits, ReplyParser, RequestEncoder};
use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

/// Longest wait for one server; a slower one is asked again later.
const PATIENCE: Duration = Duration::from_secs(1);

/// Requests a key of each tablet from its owner.
pub(super) fn is_served(cluster: &Cluster) -> bool {
    let Ok(status) = cluster.status() else {
        return false;
    };
    let table = status.tables.iter().find(|table| table.name == RESP_TABLE);
    let Some(table) = table.map(|table| table.table) else {
        return false;
    };
    let mut tablets = status.tablets.iter().filter(|route| route.table == table);
    tablets.all(|route| answers(&status, route))
}

fn answers(status: &Status, route: &TabletRoute) -> bool {
    let owner = status
        .servers
        .iter()
        .find(|entry| entry.server == route.owner);
    let Some(address) = owner.and_then(|entry| entry.addresses.resp_for(false)) else {
        return true; // no Redis client can reach it
    };
    let hasher = KeyHasher::new(status.settings.hash_seed);
    let keys = (0..1_000_000u32).map(|n| format!("probe:{n}"));
    let mut fitting = keys.filter(|key| route.range.contains(hasher.route(key.as_bytes())));
    let Some(key) = fitting.next() else {
        return true; // too small a range for a short key
    };
    matches!(get(address, &key), Some(Reply::Null | Reply::Bulk(_)))
}

fn get(address: &str, key: &str) -> Option<Reply> {
    let address = address.parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut request = Vec::new();
    RequestEncoder::new(&mut request).request(&["GET", key]);
    stream.write_all(&request).ok()?;
    let mut parser = ReplyParser::new(ReplyLimits::default());
    parser.read_from(&mut stream).ok()
}
