//! A client as one line: for CLIENT LIST, and for the logs of logins and denied requests.

use crate::state::Shared;
use crate::threads::clients::{ClientRecord, shown};
use duramen_engine::TableId;
use std::sync::atomic::Ordering::Relaxed;

/// A client as one line of `CLIENT LIST`.
pub(crate) fn line(shared: &Shared, record: &ClientRecord, now_ms: u64) -> String {
    let mut letters = String::new();
    let shows = |flag| record.shows(flag);
    // In the order of Redis, which clients compare with.
    for (is_set, letter) in [
        (shows(shown::MONITOR), 'O'),
        (shows(shown::PUBSUB), 'P'),
        (shows(shown::MULTI), 'x'),
        (record.waits(), 'b'),
        (shows(shown::TRACKS), 't'),
        (shows(shown::BROKEN_REDIRECT), 'R'),
        (shows(shown::BROADCASTS), 'B'),
        (record.socket.is_some(), 'U'),
        (shows(shown::NO_EVICT), 'e'),
        (shows(shown::NO_TOUCH), 'T'),
    ] {
        if is_set {
            letters.push(letter);
        }
    }
    if letters.is_empty() {
        letters.push('N');
    }
    let queued = if shows(shown::MULTI) {
        i64::from(record.queued.load(Relaxed))
    } else {
        -1
    };
    let last_command = record.last_command.load(Relaxed);
    let command = match shared.acl().catalog().name(last_command as usize) {
        "" => "NULL",
        name => name,
    };
    let text = record.text();
    let (peer, local) = record.shown_addresses();
    let table = TableId(record.table.load(Relaxed));
    let db = shared.commands.db_of(table).map_or(-1, i64::from);
    let [channels, shard_channels, patterns] = &record.subscriptions;
    let output_bytes = record.output_bytes.load(Relaxed);
    format!(
        "id={} addr={peer} laddr={local} fd={} name={} age={} idle={} flags={letters} db={db} sub={} psub={} ssub={} multi={queued} \
         watch={} qbuf={} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl={output_bytes} oll=0 omem={output_bytes} \
         tot-mem={} events=r cmd={command} user={} redir={} resp={} lib-name={} lib-ver={} tot-net-in={} tot-net-out={}",
        record.id,
        record.fd,
        text.name,
        now_ms.saturating_sub(record.connected_at_ms) / 1000,
        record.idle_ms(now_ms) / 1000,
        channels.load(Relaxed),
        patterns.load(Relaxed),
        shard_channels.load(Relaxed),
        record.watched.load(Relaxed),
        record.query_bytes.load(Relaxed),
        record.query_bytes.load(Relaxed) + output_bytes,
        match text.user.as_str() {
            "" => duramen_acl::DEFAULT_USER,
            user => user,
        },
        record.shown_redirect(),
        record.protocol.load(Relaxed),
        text.lib_name,
        text.lib_version,
        record.received_bytes.load(Relaxed),
        record.sent_bytes.load(Relaxed),
    )
}
