//! The state of one thread that its executor alone uses, beside the session: reusable buffers,
//! randomness, its copy of the settings. [`ThreadShared`](crate::threads::thread::ThreadShared) is
//! what other threads see of it.

use super::client::Client;
use super::progress::Progress;
use crate::figures::counters::{CommandCounters, ThreadCommands, ThreadCounters};
use crate::figures::error_names;
use crate::figures::timing::Timing;
use crate::membership::{Membership, ViewCache};
use crate::state::interpreters::Scripts;
use crate::state::pubsub::subscribers::Subscribers;
use crate::state::transaction::exec::RunningExec;
use crate::state::transaction::queue::Spare;
use crate::state::{ConfigCache, Shared};
use duramen_base::ids::Level;
use duramen_base::random::Random;
use duramen_base::waiters::{Ticket, WaitKey};
use duramen_config::ServerConfig;
use duramen_engine::{Guard, KeyHash, TableId, TypedWrite};
use duramen_node::View;
use duramen_types::Type;
use duramen_types::stream::{Id, Place};
use std::sync::Arc;
use std::time::Instant;

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

/// Memory that commands use in turn. Each takes what it needs, and gives it back empty.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) locks: Vec<(TableId, KeyHash)>,
    /// Hashes of a command that has more keys than a batch.
    pub(crate) hashes: Vec<KeyHash>,
    /// Bytes that a command collects before it can write them.
    pub(crate) scratch: Vec<u8>,
}

/// The state of one thread; see the module.
pub(crate) struct Thread {
    number: usize,
    config: ConfigCache,
    random: Random,
    /// The clients of this thread that have subscriptions.
    pub(crate) subscribers: Subscribers,
    /// Work that the bytes of the entries do not show (pace::P3), as a number of bytes.
    work: u64,
    /// Whether the server has a second tier.
    tier: bool,
    /// The classes of requests that the audit log records; 0 = none.
    audited: u32,
    pub(crate) exec: RunningExec,
    /// The progress of the command that combines values; `None` if it combines them all in one go.
    progress: Option<Progress>,
    /// The place in a stream from which the last reader that waited has read.
    stream_place: Option<StreamPlace>,
    /// This thread's copy of the member's view.
    views: ViewCache,
    /// Limit for the output of a client (`output-limit`).
    output_bytes_max: usize,
    pub(crate) timing: Timing,
    pub(crate) buffers: Buffers,
    /// The tables that transactions use in turn.
    spare: Spare,
    /// Clients of this thread that wait for elements, and must look again.
    woken: Vec<u64>,
    /// The thread's interpreters of scripts.
    pub(crate) scripts: Scripts,
}

impl Thread {
    pub(crate) fn new(shared: &Shared, number: usize) -> Thread {
        Thread {
            number,
            config: ConfigCache::new(shared),
            random: Random::new(shared.figures.started_unix_ms() ^ ((number as u64 + 1) << 48)),
            subscribers: Subscribers::new(number),
            work: 0,
            tier: false,
            audited: 0,
            exec: RunningExec::default(),
            progress: None,
            stream_place: None,
            views: ViewCache::default(),
            output_bytes_max: shared.config().output_limit_bytes,
            timing: Timing::new(),
            buffers: Buffers::default(),
            spare: Spare::default(),
            woken: Vec::new(),
            scripts: Scripts::default(),
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

    /// Wakes the clients that wait for values that were written. No waiting client misses them: the
    /// writes are visible (waiters::W1).
    pub(crate) fn wake_waiters(&mut self, shared: &Shared, writes: &mut Vec<TypedWrite>) {
        for write in writes.drain(..) {
            let TypedWrite {
                table, hash, first, ..
            } = write;
            // No command waits for fields or members. Of the commands that wait, only XREADGROUP
            // must know that there is nothing to wait for any more.
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
                shared.waiters().wake(key, wake);
            }
        }
    }

    /// Wakes all clients that wait for keys of a table.
    #[cold]
    pub(crate) fn wake_table(&mut self, shared: &Shared, table: TableId) {
        let wake = |ticket| self.show_again(shared, ticket);
        shared.waiters().wake_table(table.0, wake);
    }

    #[cold]
    fn show_again(&mut self, shared: &Shared, ticket: Ticket) {
        match ticket.thread as usize == self.number {
            true => self.woken.push(ticket.client),
            false => shared.threads.show_again(ticket),
        }
    }

    /// Reads the settings once for the whole group.
    pub(crate) fn begin_group(&mut self, shared: &Shared, now: Instant) {
        self.tier = shared.tier().is_some();
        self.audited = shared.audit().classes();
        let config = self.config.get(shared);
        self.output_bytes_max = config.output_limit_bytes;
        self.timing.begin(config, now);
    }

    /// Ends the group: counts the time of its commands.
    pub(crate) fn end_group(&mut self, shared: &Shared, now: Instant) {
        let commands = &shared.commands.threads[self.number].commands;
        self.timing.end(commands, now);
    }

    /// For a command that reports or resets counters: counts the requests before it in its group.
    pub(crate) fn count_up_to_now(&mut self, shared: &Shared, command: usize) {
        let commands = &shared.commands.threads[self.number].commands;
        self.timing.count_up_to_now(commands, command);
    }

    /// Counts an error reply with this text.
    pub(crate) fn note_error(&self, shared: &Shared, text: &str) {
        shared
            .figures
            .refusals()
            .note_if_full(error_names::code(text), text);
        self.note_error_of_script(shared, text);
    }

    /// Counts an error reply whose text a script may have made: such a text is no sign that memory
    /// is full.
    pub(crate) fn note_error_of_script(&self, shared: &Shared, text: &str) {
        self.counters(shared).errors.add(1);
        let code = error_names::code(text);
        let place = match error_names::position(code) {
            Some(place) => place,
            None if shared.figures.error_codes().count(code) => return,
            None => 0,
        };
        if let Some(counter) = self.state(shared).errors.get(place) {
            counter.add(1);
        }
    }

    /// The view for a request that runs under this guard (membership::M1).
    #[inline]
    pub(crate) fn view(&mut self, member: &Membership, guard: &mut Guard<'_>) -> &Arc<View> {
        if !self.views.is_current(member) {
            guard.pin_mut().renew();
        }
        self.views.get(member)
    }

    /// The view for commands that only report it.
    pub(crate) fn view_to_tell(&mut self, member: &Membership) -> &Arc<View> {
        self.views.get(member)
    }

    /// The view that was returned last.
    pub(crate) fn last_view(&self) -> &View {
        self.views.last()
    }

    #[inline]
    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// The work of the group that the bytes of the entries do not show (pace::P3).
    #[inline]
    pub(crate) fn work(&self) -> u64 {
        self.work
    }

    /// Adds work of a command that the bytes of the entries do not show.
    pub(crate) fn add_work(&mut self, bytes: u64) {
        self.work += bytes;
    }

    /// Whether the server has a second tier.
    #[inline]
    pub(crate) fn has_tier(&self) -> bool {
        self.tier
    }

    /// The classes of requests that the audit log records; 0 = none.
    #[inline]
    pub(crate) fn audited(&self) -> u32 {
        self.audited
    }

    /// Limit for the output of a client (`output-limit`).
    #[inline]
    pub(crate) fn output_bytes_max(&self) -> usize {
        self.output_bytes_max
    }

    /// The tables that transactions use in turn.
    pub(crate) fn spare(&mut self) -> &mut Spare {
        &mut self.spare
    }

    /// Takes the progress of the command that combines values; `None` if it combines them all in
    /// one go.
    pub(crate) fn take_progress(&mut self) -> Option<Progress> {
        self.progress.take()
    }

    pub(crate) fn keep_progress(&mut self, progress: Option<Progress>) {
        self.progress = progress;
    }

    /// The place in a stream from which the last reader that waited has read.
    pub(crate) fn stream_place(&self) -> Option<&StreamPlace> {
        self.stream_place.as_ref()
    }

    /// The same place, to be overwritten.
    pub(crate) fn stream_place_mut(&mut self) -> &mut StreamPlace {
        self.stream_place.get_or_insert_default()
    }

    /// Whether clients of this thread were woken, and must look again.
    #[inline]
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Takes the clients of this thread that were woken.
    #[inline]
    pub(crate) fn take_woken(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.woken)
    }

    #[inline]
    pub(crate) fn counters<'s>(&self, shared: &'s Shared) -> &'s ThreadCounters {
        &shared.threads[self.number].counters
    }

    fn state<'s>(&self, shared: &'s Shared) -> &'s ThreadCommands {
        &shared.commands.threads[self.number]
    }

    #[inline]
    pub(crate) fn command<'s>(&self, shared: &'s Shared, number: usize) -> &'s CommandCounters {
        &self.state(shared).commands[number]
    }
}
