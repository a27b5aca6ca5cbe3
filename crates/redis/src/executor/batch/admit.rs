//! Admission of requests: unknown names, missing passwords, MULTI, pauses, monitors, silent
//! replies. Only requests off the fast path are checked here.

use super::Turn;
use crate::access::{commands as acl, record as audit};
use crate::command::flag;
use crate::command::lookup::Resolved;
use crate::command::pause;
use crate::command::permit::Permit;
use crate::command::refusal::{NO_AUTH, Refusal};
use crate::command::routing::NotServed;
use crate::command::spec::{Kind, Request, Spec};
use crate::monitor;
use crate::state::Shared;
use crate::state::access::audit::Outcome;
use crate::state::client::{Client, gate};
use crate::state::patience::{AGAIN_MS, Patience};
use crate::state::shared::commands::global;
use crate::state::thread::Thread;
use crate::table::COMMANDS;
use duramen_config::clock;
use duramen_engine::KeyHash;
use duramen_wire::resp::{Args, Encoder};
use std::time::Duration;

/// Maximum number of commands without keys in a transaction, `SELECT` excluded. All clients wait
/// for a transaction, and the time of such a command does not depend on its length.
const WITHOUT_KEYS_MAX: usize = 1_024;

pub(crate) enum Admitted {
    Run(Permit),
    /// The request was queued or refused; the reply is written.
    Answered,
    /// The request is an attack: the connection must be closed.
    Attack,
    /// The request waits until this time, in milliseconds of the server's clock.
    Later {
        until_ms: u64,
    },
}

/// Whether replies are switched off, permanently or for one request.
pub(crate) fn is_silent(client: &Client) -> bool {
    client.gate() & (gate::REPLY_OFF | gate::REPLY_SKIP | gate::REPLY_SKIP_NEXT) != 0
}

/// Moves `CLIENT REPLY SKIP` on to its target, the next request; `true` = this request may be
/// silent.
pub(crate) fn begin_silence(turn: &mut Turn<'_>) -> bool {
    turn.replies.begin();
    let client = &mut *turn.client;
    if client.gate() & gate::REPLY_SKIP_NEXT != 0 {
        client.set_gate(gate::REPLY_SKIP_NEXT, false);
        client.set_gate(gate::REPLY_SKIP, true);
    }
    client.gate() & (gate::REPLY_OFF | gate::REPLY_SKIP) != 0
}

/// Whether the request is still silent after it ran (`CLIENT REPLY ON` is not).
pub(crate) fn end_silence(client: &mut Client) -> bool {
    let silent = client.gate() & (gate::REPLY_OFF | gate::REPLY_SKIP) != 0;
    client.set_gate(gate::REPLY_SKIP, false);
    silent
}

/// Whether the replies of a command are messages of publish and subscribe, which clients get
/// whatever `CLIENT REPLY` says: `SUBSCRIBE`, `UNSUBSCRIBE` and their kin.
pub(crate) fn replies_by_messages(spec: &Spec) -> bool {
    spec.has(flag::PUBSUB) && spec.has(flag::SUBSCRIBED)
}

/// A client whose request asks to run: the state that decides whether it runs, and the output for
/// the reply if it does not.
pub(super) struct Admission<'a> {
    shared: &'a Shared,
    thread: &'a mut Thread,
    client: &'a mut Client,
    out: &'a mut Vec<u8>,
}

impl Turn<'_> {
    #[inline]
    pub(super) fn admission<'t>(
        &'t mut self,
        shared: &'t Shared,
        thread: &'t mut Thread,
    ) -> Admission<'t> {
        Admission {
            shared,
            thread,
            client: &mut *self.client,
            out: &mut *self.out,
        }
    }
}

impl Admission<'_> {
    /// Decides whether a request runs. `place`: whether this server serves its keys. `hashes`: the
    /// hashes of its keys, or none.
    pub(crate) fn admit(
        &mut self,
        resolved: &Resolved,
        args: &Args<'_>,
        hashes: &[KeyHash],
        place: Result<(), NotServed>,
    ) -> Admitted {
        let spec = match resolved {
            Resolved::Command(spec) => *spec,
            _ if is_attack(args) => return Admitted::Attack,
            resolved => {
                let text = stranger_text(resolved, args);
                return self.refuse(resolved.spec(), &text);
            }
        };
        let request = Request {
            spec,
            args: *args,
            hashes,
        };
        if !self.client.is_authenticated() && self.shared.acl().is_open() {
            self.client.log_in_by_default(self.shared);
        }
        if !self.client.is_authenticated() && !spec.has(flag::NO_AUTH) {
            return self.refuse(Some(spec), NO_AUTH);
        }
        if let Kind::Refused(reason) = spec.kind() {
            let text = spec.refusal(reason);
            return self.refuse(Some(spec), &text);
        }
        if self.client.in_multi() && spec.has(flag::NO_MULTI) {
            let text = "ERR Command not allowed inside a transaction";
            return self.refuse(Some(spec), text);
        }
        let table = self.client.table(self.shared);
        let permit = match Permit::check(spec, args, self.client, table, self.shared) {
            Ok(permit) => permit,
            Err(refusal) => return self.deny(&request, refusal),
        };
        match place {
            Ok(()) => {}
            Err(NotServed::Refused(text)) => return self.refuse(Some(spec), &text),
            // The keys of a queued request may be served later: EXEC checks again.
            Err(NotServed::NotNow(_))
                if self.client.in_multi() && !spec.has(flag::NEVER_QUEUED) => {}
            Err(NotServed::NotNow(text)) => match self.client.patience.waits_for_owner() {
                Some(until_ms) => return Admitted::Later { until_ms },
                None => return self.refuse(Some(spec), text),
            },
        }
        if self.client.gate() & gate::SUBSCRIBED != 0 && !spec.has(flag::SUBSCRIBED) {
            let text = format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
                spec.name
            );
            return self.refuse(Some(spec), &text);
        }
        let until_ms = self
            .waits_for_pause(&request)
            .or_else(|| self.waits_for_reserved(&request));
        if let Some(until_ms) = until_ms {
            return Admitted::Later { until_ms };
        }
        if self.client.in_multi() && !spec.has(flag::NEVER_QUEUED) {
            return self.enqueue(&request);
        }
        if !self.client.key_wait.waits() {
            self.report(&request);
        }
        Admitted::Run(permit)
    }

    /// Writes a request that will run into the audit log, and shows it to monitors.
    #[inline]
    fn report(&mut self, request: &Request<'_>) {
        let (spec, args) = (request.spec, &request.args);
        if !self.client.parking.take_audited() && spec.is_audited(self.thread.audited()) {
            audit::record(self.shared, self.client, spec, args, Outcome::Allowed);
        }
        // EXEC sends its own line to monitors.
        if self.shared.commands.gate() & global::MONITORED != 0
            && !self.client.parking.take_monitored()
            && !spec.has(flag::RUNS_QUEUE)
        {
            monitor::feed(self.shared, self.client, spec, args);
        }
    }

    /// Refuses a request that the client's user may not make.
    #[cold]
    pub(crate) fn deny(&mut self, request: &Request<'_>, refusal: Refusal) -> Admitted {
        let (spec, args) = (request.spec, &request.args);
        let text = acl::refusal_text(refusal, self.client, spec);
        if let Refusal::Denied(denied) = refusal {
            let context = if self.client.in_multi() {
                "multi"
            } else {
                "toplevel"
            };
            acl::note_denied(self.shared, self.client, spec, args, denied, context);
            audit::record(self.shared, self.client, spec, args, Outcome::Denied);
        }
        self.refuse(Some(spec), &text)
    }

    pub(crate) fn refuse(&mut self, spec: Option<&'static Spec>, text: &str) -> Admitted {
        self.client.transaction.refuse();
        self.client.end_key_wait(self.shared, true);
        let is_exec = spec.is_some_and(|spec| spec.has(flag::RUNS_QUEUE));
        if is_exec {
            self.client.end_transaction();
            let why = text.strip_prefix("ERR ").unwrap_or(text);
            let text = format!("EXECABORT Transaction discarded because of: {why}");
            Encoder::new(self.out, self.client.protocol()).error(text);
        } else {
            Encoder::new(self.out, self.client.protocol()).error(text);
        }
        self.thread.note_error(self.shared, text);
        if let Some(spec) = spec {
            self.thread
                .command(self.shared, spec.number)
                .rejected
                .add(1);
        }
        Admitted::Answered
    }

    /// The end of the `CLIENT PAUSE` for which a request waits, if it does. If an EXEC waits for
    /// one, its suspended run is dropped, as that of a script is: so its memory keeps no other
    /// request out (interpreters::S4).
    fn waits_for_pause(&mut self, request: &Request<'_>) -> Option<u64> {
        let until_ms = pause::waits(&COMMANDS, request, self.shared, self.client);
        if until_ms.is_some()
            && let Some(transaction) = self.client.transaction.open_mut()
            && transaction.run.take().is_some()
        {
            transaction.ran = Duration::ZERO; // the next run begins with the first command
            self.thread.scripts.keep_nothing(self.client.id());
        }
        until_ms
    }

    /// The time at which a request is shown again that waits for keys that another client has
    /// reserved; `None` if it waits for none.
    fn waits_for_reserved(&mut self, request: &Request<'_>) -> Option<u64> {
        let waits = self.shared.commands.gate() & global::RESERVED != 0
            && !self.client.key_wait.is_over(self.client.record())
            && self.writes_to_reserved(request);
        waits.then(|| clock::now_ms() + AGAIN_MS)
    }

    /// Whether a request would write to keys that another client has reserved. Scripts look at
    /// reservations when they commit, and commands that wait for elements when they find some.
    #[cold]
    fn writes_to_reserved(&mut self, request: &Request<'_>) -> bool {
        let (spec, shared, client) = (request.spec, self.shared, &mut *self.client);
        let (id, in_multi, patience) = (client.id(), client.in_multi(), &mut client.patience);
        if !spec.has(flag::RUNS_QUEUE) {
            let looks_later = spec.has(flag::SCRIPTING | flag::TAKES_FIRST);
            let writes = spec.has(flag::WRITE) && spec.has_keys() && !looks_later;
            return writes && !in_multi && are_put_off(request, shared, patience, id);
        }
        let Some(queue) = client.transaction.open() else {
            return false;
        };
        queue.writes
            && !queue.is_drafted()
            && !queue.sliced
            && match (patience.is_still_put_off(&shared.commands), queue.hashes()) {
                (Some(lasts), _) => lasts,
                (None, Some(keys)) => {
                    patience.is_put_off(&shared.commands, id, keys.iter().copied())
                }
                (None, None) => {
                    let mut requests = queue.requests(&COMMANDS);
                    requests.any(|request| are_put_off(&request, shared, patience, id))
                }
            }
    }

    /// Queues a request of a client in MULTI that may make it.
    pub(crate) fn enqueue(&mut self, request: &Request<'_>) -> Admitted {
        let spec = request.spec;
        let limit = self.thread.config(self.shared).request_limit_bytes;
        if let Some(transaction) = self.client.transaction.open_mut() {
            let has_no_keys = !spec.has_keys() && !spec.names.select();
            let without_keys = transaction.without_keys + usize::from(has_no_keys);
            if without_keys > WITHOUT_KEYS_MAX {
                let text = format!(
                    "ERR a transaction may have {WITHOUT_KEYS_MAX} commands without keys at most"
                );
                return self.refuse(Some(spec), &text);
            }
            let queued_bytes = transaction
                .queued_bytes
                .saturating_add(queued_bytes(&request.args));
            if queued_bytes > limit || !transaction.push(request) {
                let text =
                    format!("ERR transaction is larger than the request limit of {limit} bytes");
                return self.refuse(Some(spec), &text);
            }
            transaction.queued_bytes = queued_bytes;
            transaction.without_keys = without_keys;
            transaction.writes |= pause::may_write(request, self.shared);
        }
        self.out.extend_from_slice(b"+QUEUED\r\n");
        Admitted::Answered
    }
}

/// The error text for an unknown or malformed request.
fn stranger_text(resolved: &Resolved, args: &Args<'_>) -> String {
    match resolved {
        Resolved::Command(spec) | Resolved::Arity(spec) => {
            format!("ERR wrong number of arguments for '{}' command", spec.name)
        }
        Resolved::UnknownSubcommand(container) => format!(
            "ERR unknown subcommand '{}'. Try {} HELP.",
            shown(args.get(1).unwrap_or_default(), 128),
            container.name.to_ascii_uppercase()
        ),
        Resolved::UnknownCommand => {
            let mut list = String::new();
            for arg in args.skip(1) {
                if list.len() >= 128 {
                    break;
                }
                let room = 128 - list.len();
                list.push_str(&format!("'{}' ", shown(arg, room)));
            }
            format!(
                "ERR unknown command '{}', with args beginning with: {list}",
                shown(args.name(), 128)
            )
        }
    }
}

/// At most `room` bytes of a client's text, up to its first NUL.
fn shown(text: &[u8], room: usize) -> String {
    let end = text
        .iter()
        .take(room)
        .position(|b| *b == 0)
        .unwrap_or(text.len().min(room));
    String::from_utf8_lossy(&text[..end]).into_owned()
}

/// Whether these are the first lines of an HTTP request that a web page was tricked into sending.
fn is_attack(args: &Args<'_>) -> bool {
    let name = args.name();
    name.eq_ignore_ascii_case(b"host:") || name.eq_ignore_ascii_case(b"post")
}

/// Whether a write to the keys of a request waits for another client's reservation. Once the write
/// waits, it waits for that reservation alone (reserved::V3), and its keys are not compared again.
/// `client`: the number of the request's client.
fn are_put_off(
    request: &Request<'_>,
    shared: &Shared,
    patience: &mut Patience,
    client: u64,
) -> bool {
    /// All threads wait while so many are compared: some microseconds.
    const KEYS_AT_ONCE: usize = 256;
    if let Some(lasts) = patience.is_still_put_off(&shared.commands) {
        return lasts;
    }
    let own: Vec<KeyHash>;
    let hashes = match request.hashes {
        [] => {
            let store = shared.store();
            let keys = request.key_positions();
            own = keys.map(|at| store.hash(request.arg(at))).collect();
            &own
        }
        known => known,
    };
    let mut parts = hashes.chunks(KEYS_AT_ONCE);
    parts.any(|keys| patience.is_put_off(&shared.commands, client, keys.iter().copied()))
}

/// Memory of a queued request until EXEC is over: its arguments, and its entries in tables here
/// and in EXEC's plan.
fn queued_bytes(args: &Args<'_>) -> usize {
    /// A request's entry in the queue and its step in the plan, in bytes.
    const REQUEST_BYTES: usize = 104;
    /// An argument's range and the bytes behind it, and the hash and the lock of an argument that
    /// is a key, in bytes.
    const ARGUMENT_BYTES: usize = 40;
    let arguments: usize = args.iter().map(|arg| arg.len() + ARGUMENT_BYTES).sum();
    REQUEST_BYTES + arguments
}
