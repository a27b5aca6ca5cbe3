//! Records of requests for the audit log.

use crate::command::flag;
use crate::command::secrets::REDACTED;
use crate::command::spec::Spec;
use crate::state::Shared;
use crate::state::access::audit::{Outcome, Record};
use crate::state::client::Client;
use duramen_config::AUDIT_CLASSES;
use duramen_wire::resp::Args;

/// Maximum arguments in a record, and maximum bytes of each.
const ARGS_MAX: usize = 16;
const ARG_BYTES_MAX: usize = 128;

/// Records a request, if there is an audit log.
#[cold]
pub(crate) fn record(
    shared: &Shared,
    client: &Client,
    spec: &Spec,
    args: &Args<'_>,
    outcome: Outcome,
) {
    if !shared.audit().is_on() {
        return;
    }
    let class = spec.class().and_then(|class| AUDIT_CLASSES.get(class));
    let key = spec.key_positions(args).next();
    let key = key.and_then(|at| args.get(at));
    let shown = match spec.has(flag::ADMIN) {
        true => shown_args(spec, args),
        false => Vec::new(),
    };
    shared.audit().add(&Record {
        user: client.login().user_name(),
        address: &client.record().shown_peer(),
        client: client.id(),
        command: spec.name,
        class: class.copied().unwrap_or("other"),
        outcome,
        key,
        args: &shown,
    });
}

/// The arguments after the name, without secrets (audit::L2).
fn shown_args(spec: &Spec, args: &Args<'_>) -> Vec<String> {
    let numbered = args.iter().enumerate().skip(1).take(ARGS_MAX);
    let shown = numbered.map(|(n, arg)| match spec.is_secret(n) {
        true => REDACTED,
        false => &arg[..arg.len().min(ARG_BYTES_MAX)],
    });
    shown
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .collect()
}
