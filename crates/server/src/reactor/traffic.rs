//! The ways of a thread's connection between its owners: it is found, led to the next owner,
//! watched and closed.

use super::behind::Behind;
use super::connection::{Connection, WaitsFor};
use super::connections::{Connections, Token};
use super::flash::FlashReads;
use super::here::Thread;
use super::hold::Holds;
use super::key_waits::Waits;
use super::next::Next;
use super::output::{BufferPool, account};
use super::receive::Receive;
use super::release::Releases;
use super::ring::Local;
use super::round::Groups;
use super::sweeps::Sweeps;
use super::watch::Watch;
use super::{Traffic, native};
use crate::doors::Doors;
use duramen_config::{ServerError, seldom};
use duramen_redis::executor::Executor;
use duramen_redis::threads::ThreadShared;
use rustix::event::epoll::EventFlags;
use std::sync::Arc;

impl Traffic {
    /// # Errors
    /// [`ServerError`] if the engine has no room for another thread.
    pub(super) fn new(
        doors: Arc<Doors>,
        number: usize,
        watch: Watch,
    ) -> Result<Traffic, ServerError> {
        Ok(Traffic {
            executor: Executor::new(Arc::clone(doors.shared()), number)?,
            connections: Connections::default(),
            watch,
            input: Receive::new(),
            native: native::Round::default(),
            groups: Groups::default(),
            buffers: BufferPool::default(),
            sweeps: Sweeps::default(),
            holds: Holds::default(),
            releases: Releases::default(),
            flash: FlashReads::default(),
            waits: Waits::default(),
            behind: Behind::default(),
            thread: Thread::new(doors, number),
        })
    }

    /// The part of this thread that others see.
    #[inline]
    pub(super) fn me(&self) -> &ThreadShared {
        self.thread.me()
    }

    /// Whether a group waits to be run.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        !self.groups.is_empty() || !self.native.is_empty()
    }

    pub(super) fn token_of(&self, client: u64) -> Option<Token> {
        let record = self.me().clients.get(client)?;
        let token = self.connections.token(record.slot)?;
        self.connection(token)
            .filter(|it| it.record.id == client)
            .map(|_| token)
    }

    /// Leads a connection that is out of its slot to where it goes next.
    #[inline]
    pub(super) fn go(&mut self, token: Token, mut connection: Box<Connection>, next: Next) {
        match next {
            Next::Rest => self.connections.put(token, connection),
            Next::Mute => {
                self.watch_exactly(token, &mut connection);
                self.connections.put(token, connection);
            }
            Next::Parse(source) => self.parse(token, connection, source),
            Next::Send => match self.send(&mut connection) {
                true => self.settle(token, connection),
                false => self.close_taken(token, connection),
            },
            Next::Settle => self.settle(token, connection),
            Next::Close => self.close_taken(token, connection),
        }
    }

    /// Registers for the event that the connection waits for. A held connection, or one that waits
    /// for flash, stays registered for input until some arrives.
    pub(super) fn update_interest(&mut self, token: Token, connection: &mut Connection) {
        let is_quiet = (connection.held.is_some() || connection.waits_for == WaitsFor::Flash)
            && connection.interest == EventFlags::IN
            && connection.sendable_bytes() == 0;
        if !is_quiet {
            self.watch_exactly(token, connection);
        }
    }

    /// Registers for exactly the events that the connection waits for.
    fn watch_exactly(&mut self, token: Token, connection: &mut Connection) {
        let wanted = self.behind.interest(self.thread.here(), connection);
        self.watch.set(token, connection, wanted);
    }

    /// Closes a connection. Its requests that are about to run do not run.
    pub(super) fn close(&mut self, token: Token) {
        let connection = self.connections.take(token);
        if let Some(connection) = connection.or_else(|| self.groups.take(token)) {
            self.close_taken(token, connection);
        }
    }

    /// Ends a connection that is not in its slot.
    pub(super) fn close_taken(&mut self, token: Token, mut connection: Box<Connection>) {
        self.cut_off(token, &mut connection);
        if connection.unsent_bytes() == 0 {
            connection.say_goodbye();
        }
    }

    /// As [`close_taken`](Self::close_taken), without another byte for the client.
    pub(super) fn cut_off(&mut self, token: Token, connection: &mut Connection) {
        if connection.local().is_some_and(Local::is_corrupt) {
            self.me().counters.protocol_errors.add(1);
            seldom!(
                warn,
                client = connection.record.id,
                "closing a client on this machine: {}",
                duramen_shm::Corrupt
            );
        }
        // A server that stops lets its clients read their last replies.
        if let (None, Some(local)) = (self.thread.stop_deadline(), connection.local()) {
            local.give_back(&connection.fd);
        }
        connection.end_turn(self.thread.doors());
        self.flash
            .unpark(self.thread.here(), connection, &mut self.executor);
        self.waits.end(self.thread.here(), token, connection);
        self.executor.end_subscriptions(&mut connection.client);
        self.executor.end_tracking(&mut connection.client);
        self.holds
            .orphan(self.thread.here(), connection, &mut self.releases);
        self.watch.ends(connection);
        account(self.thread.here(), connection, 0, 0);
        self.holds.ends(connection);
        let memory = connection.memory().max(connection.memory);
        self.buffers.note_closed(memory + size_of::<Connection>());
        self.connections.release(token);
        self.me().clients.remove(connection.record.id);
        connection.record.note_gone();
        self.thread.door().connections_changed(-1);
        self.thread.shared().threads.leave();
    }
}
