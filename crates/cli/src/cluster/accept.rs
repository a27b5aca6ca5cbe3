//! `duramen accept-loss --server`: shows the data that a recovery waits for although no replica has
//! it, and passes on the operator's decision to continue without that data.

use super::{Cluster, names, say, unfit};
use crate::failure::Failure;
use crate::offline::AcceptArgs;
use duramen_client::{Admin, AdminAnswer};
use serde_json::json;
use std::fmt::Write as _;

pub(crate) fn run(args: &AcceptArgs, cluster: &super::ClusterArgs) -> Result<(), Failure> {
    let is_json = cluster.json;
    let cluster = Cluster::open(cluster)?;
    let named = args.server.as_deref().unwrap_or_default();
    let server = names::server(&cluster.overview()?.status, named)?.server;
    let (losses, token) = match cluster.ask(Admin::Losses { server })? {
        AdminAnswer::Losses { losses, token } => (losses, format!("{token:08x}")),
        other => return Err(unfit(&other)),
    };
    if let Some(given) = &args.token {
        let given = u32::from_str_radix(given, 16);
        let token = given.map_err(|_| Failure::Usage("a token has 8 hex digits".to_owned()))?;
        cluster.ask(Admin::AcceptLoss { server, token })?;
    }
    let is_accepted = args.token.is_some();
    let mut text = String::new();
    for line in losses.iter().flat_map(|loss| &loss.lines) {
        let _ = writeln!(text, "{line}");
    }
    let _ = match (losses.len(), is_accepted) {
        (0, _) => writeln!(text, "nothing of server {server} is known to be lost"),
        (_, true) => writeln!(text, "accepted: the recovery goes on without it"),
        (_, false) => writeln!(
            text,
            "to recover without exactly this: duramen accept-loss --server {server} --token {token}"
        ),
    };
    let value = json!({
        "server": server.to_string(),
        "losses": losses.iter().map(|loss| json!({
            "segment": loss.segment.0,
            "lines": loss.lines,
        })).collect::<Vec<_>>(),
        "token": (!losses.is_empty()).then_some(token),
        "accepted": is_accepted,
    });
    say(is_json, &text, &value)?;
    match losses.is_empty() || is_accepted {
        true => Ok(()),
        false => Err(Failure::NotFound(String::new())), // exit code 1: something is lost
    }
}
