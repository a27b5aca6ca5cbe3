//! State that one executor owns beside its session: reusable buffers, randomness, its copy of the
//! settings.

use super::client::Client;
use super::db::DBS;
use super::progress::Progress;
use crate::figures::counters::{CommandCounters, ThreadCommands, ThreadCounters};
use crate::figures::error_names;
use crate::figures::meter::Meter;
use crate::membership::ViewCache;
use crate::state::interpreters::Scripts;
use crate::state::pubsub::subscribers::Subscribers;
use crate::state::transaction::queue::Spare;
use crate::state::transaction::run::ExecRun;
use crate::state::{ConfigCache, Shared};
use duramen_base::ids::Level;
use duramen_base::random::Random;
use duramen_base::waiters::{Ticket, WaitKey};
use duramen_config::ServerConfig;
use duramen_engine::{KeyHash, TableId, TypedWrite};
use duramen_types::Type;
use duramen_types::stream::{Id, Place};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A place in a stream that this thread has searched.
#[derive(Default)]
pub(crate) struct StreamPlace {
    pub(crate) table: TableId,
    pub(crate) key: Vec<u8>,
    pub(crate) version: u64,
    pub(crate) start: Id,
    pub(crate) place: Place,
    /// How often a stream was searched.
    #[cfg(test)]
    pub(crate) searches: u32,
}

pub(crate) struct Local {
    thread: usize,
    config: ConfigCache,
    pub(crate) random: Random,
    /// The clients of this thread that have subscriptions.
    pub(crate) subscribers: Subscribers,
    slow_us: i64,
    /// The time from which on `LATENCY` records a command, and the shorter of it and the limit of
    /// the slow log.
    event_from: Duration,
    noted_from: Duration,
    /// Work that the bytes of the entries do not show (pace::P3), as a number of bytes.
    pub(crate) work: u64,
    /// The server has a second tier.
    pub(crate) tier: bool,
    /// The classes of requests that the audit log records; 0 = none.
    pub(crate) audited: u32,
    /// A command of a transaction is running.
    pub(crate) in_exec: bool,
    /// Number of objects that walks of the running EXEC have visited.
    pub(crate) walked: usize,
    /// The tables behind the databases, as the running EXEC found them under its guard. It creates
    /// none: it would wait for its own open group.
    pub(crate) exec_dbs: Option<[Option<TableId>; DBS]>,
    /// The progress of the command that combines values; `None`: it does so in one go.
    pub(crate) progress: Option<Progress>,
    /// The place from which the last reader of a stream has read that waited.
    pub(crate) stream_place: Option<StreamPlace>,
    /// The suspended run of the EXEC that runs, before it goes on and after it has stopped.
    pub(crate) exec_run: Option<Box<ExecRun>>,
    /// This thread's copy of the member's view.
    pub(crate) views: ViewCache,
    /// Limit for the output of a client (`output-limit`).
    pub(crate) output_bytes_max: usize,
    /// Time of the group's commands that the slow log timed one by one.
    pub(crate) timed_ns: u64,
    /// Divides the group's time among commands, and the start of that time.
    pub(crate) meter: Meter,
    metered_since: Instant,
    pub(crate) locks: Vec<(TableId, KeyHash)>,
    /// Tables of transactions.
    pub(crate) spare: Spare,
    /// Clients of this thread that wait for elements, and must look again.
    pub(crate) woken: Vec<u64>,
    /// Hashes of a command that has more keys than a batch.
    pub(crate) hashes: Vec<KeyHash>,
    /// The thread's interpreters of scripts.
    pub(crate) scripts: Scripts,
    /// Time that the scripts of the running EXEC have taken.
    pub(crate) scripts_took: Duration,
    /// Bytes that a command collects before it can write them.
    pub(crate) scratch: Vec<u8>,
}

impl Local {
    pub(crate) fn new(shared: &Shared, thread: usize) -> Local {
        Local {
            thread,
            config: ConfigCache::new(shared),
            random: Random::new(shared.started_unix_ms ^ ((thread as u64 + 1) << 48)),
            subscribers: Subscribers::new(thread),
            slow_us: i64::MAX,
            event_from: Duration::MAX,
            noted_from: Duration::MAX,
            work: 0,
            tier: false,
            audited: 0,
            in_exec: false,
            walked: 0,
            exec_dbs: None,
            exec_run: None,
            progress: None,
            stream_place: None,
            views: ViewCache::default(),
            output_bytes_max: shared.config().output_limit_bytes,
            timed_ns: 0,
            meter: Meter::new(),
            metered_since: Instant::now(),
            locks: Vec::new(),
            spare: Spare::default(),
            woken: Vec::new(),
            hashes: Vec::new(),
            scripts: Scripts::default(),
            scripts_took: Duration::ZERO,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn config(&mut self, shared: &Shared) -> &Arc<ServerConfig> {
        self.config.get(shared)
    }

    /// The level of the client's requests, unless they request another.
    pub(crate) fn level_of(&mut self, shared: &Shared, client: &Client) -> Level {
        self.level_of_table(shared, client.table(shared))
    }

    /// The level of writes to a table: its own, or the server's.
    pub(crate) fn level_of_table(&mut self, shared: &Shared, table: TableId) -> Level {
        match shared.commands.levels.of(table) {
            Some(level) => level,
            None => self.config.get(shared).write_level(),
        }
    }

    /// Wakes the clients that wait for values that were written. Nobody can miss them: the writes
    /// are visible (waiters::W1).
    pub(crate) fn wake_waiters(&mut self, shared: &Shared, writes: &mut Vec<TypedWrite>) {
        for write in writes.drain(..) {
            let TypedWrite {
                table, hash, first, ..
            } = write;
            // No command waits for fields or members, and of those that wait only XREADGROUP wants
            // to know that there is nothing to wait for any more.
            let is_awaited = match write.is_gone {
                true => first == Type::Stream as u8,
                false => first != Type::Hash as u8 && first != Type::Set as u8,
            };
            if is_awaited {
                let key = WaitKey {
                    table: table.0,
                    hash: hash.number(),
                    kind: first,
                };
                let wake = |ticket| self.show_again(shared, ticket);
                shared.waiters.wake(key, wake);
            }
        }
    }

    /// Wakes all clients that wait for keys of a table.
    #[cold]
    pub(crate) fn wake_table(&mut self, shared: &Shared, table: TableId) {
        let wake = |ticket| self.show_again(shared, ticket);
        shared.waiters.wake_table(table.0, wake);
    }

    #[cold]
    fn show_again(&mut self, shared: &Shared, ticket: Ticket) {
        match ticket.thread as usize == self.thread {
            true => self.woken.push(ticket.client),
            false => shared.show_again(ticket),
        }
    }

    /// Reads the settings once for the whole group.
    pub(crate) fn begin_group(&mut self, shared: &Shared, now: Instant) {
        self.tier = shared.tier().is_some();
        self.audited = shared.audit.classes();
        let config = self.config.get(shared);
        self.output_bytes_max = config.output_limit_bytes;
        self.slow_us = match config.slow.log_slower_than_us {
            off if off < 0 => i64::MAX,
            limit_us => limit_us,
        };
        self.event_from = match config.slow.event_ms {
            0 => Duration::MAX,
            ms => Duration::from_millis(ms),
        };
        self.noted_from = self
            .event_from
            .min(Duration::from_micros(self.slow_us.unsigned_abs()));
        self.metered_since = now;
        self.meter.start();
    }

    /// Ends the group: counts the time of its commands.
    pub(crate) fn end_group(&mut self, shared: &Shared, now: Instant) {
        let elapsed_ns = now.duration_since(self.metered_since).as_nanos() as u64;
        let commands = &shared.commands.threads[self.thread].commands;
        self.meter.end(elapsed_ns, |number, requests, ns| {
            if let Some(command) = commands.get(number) {
                let times = command.times.get_or_init(Box::default);
                times.record_all(ns, requests);
            }
        });
    }

    /// For a command that reports or resets counters: counts the requests before it in its group.
    pub(crate) fn count_up_to_now(&mut self, shared: &Shared, command: usize) {
        let now = Instant::now();
        self.end_group(shared, now);
        self.metered_since = now;
        self.meter.start();
        self.meter.begin(command);
    }

    /// Counts an error reply with this text.
    pub(crate) fn note_error(&self, shared: &Shared, text: &str) {
        shared.note_if_full(error_names::code(text), text);
        self.note_error_of_script(shared, text);
    }

    /// Counts an error reply whose text a script may have made: such a text is no sign that memory
    /// is full.
    pub(crate) fn note_error_of_script(&self, shared: &Shared, text: &str) {
        self.counters(shared).errors.add(1);
        let code = error_names::code(text);
        let place = match error_names::position(code) {
            Some(place) => place,
            None if shared.error_codes.count(code) => return,
            None => 0,
        };
        if let Some(counter) = self.state(shared).errors.get(place) {
            counter.add(1);
        }
    }

    /// Limit of the slow log in microseconds, `i64::MAX` = off.
    #[inline]
    pub(crate) fn slow_us(&self) -> i64 {
        self.slow_us
    }

    /// The time from which on `LATENCY` records a command; [`Duration::MAX`] = never.
    pub(crate) fn event_from(&self) -> Duration {
        self.event_from
    }

    /// The time from which on a command is recorded, by the slow log or by `LATENCY`.
    #[inline]
    pub(crate) fn noted_from(&self) -> Duration {
        self.noted_from
    }

    #[inline]
    pub(crate) fn counters<'s>(&self, shared: &'s Shared) -> &'s ThreadCounters {
        &shared.threads[self.thread].counters
    }

    fn state<'s>(&self, shared: &'s Shared) -> &'s ThreadCommands {
        &shared.commands.threads[self.thread]
    }

    #[inline]
    pub(crate) fn command<'s>(&self, shared: &'s Shared, number: usize) -> &'s CommandCounters {
        &self.state(shared).commands[number]
    }
}
