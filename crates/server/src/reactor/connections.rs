//! The connections of a thread, in slots with small numbers, and their tokens for epoll.

use super::connection::Connection;
use super::here::Here;
use rustix::event::epoll::EventData;

/// The subject of an epoll event: a slot and its generation, or one of the reserved values at the
/// top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Token(u64);

/// Connections from here on are reserved: no server has 4 billion connections.
const RESERVED: u32 = u32::MAX - 1024;

impl Token {
    pub(super) const MAILBOX: Token = Token(u32::MAX as u64);
    /// The reader of flash.
    pub(super) const FLASH: Token = Token(u32::MAX as u64 - 1);

    pub(super) fn listener(n: usize) -> Token {
        Token(u64::from(RESERVED) + n as u64)
    }

    pub(super) fn as_listener(self) -> Option<usize> {
        (self.0 >= u64::from(RESERVED) && self.0 < Token::FLASH.0)
            .then(|| (self.0 - u64::from(RESERVED)) as usize)
    }

    pub(super) fn data(self) -> EventData {
        EventData::new_u64(self.0)
    }

    pub(super) fn number(self) -> u64 {
        self.0
    }

    fn slot(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl From<EventData> for Token {
    fn from(data: EventData) -> Token {
        Token(data.u64())
    }
}

#[derive(Default)]
struct Slot {
    /// Grows when the slot is given back, so that late events for the slot's former connection are
    /// recognised. Starts at 1.
    generation: u32,
    connection: Option<Box<Connection>>,
    used: bool,
}

/// The connections of one thread.
#[derive(Default)]
pub(super) struct Connections {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Those with whole requests that have not run: they continue without waiting for epoll.
    soon: Vec<Token>,
}

impl Connections {
    /// Number of connections, those taken out included.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Reserves a slot; fill it with [`put`](Self::put).
    pub(super) fn reserve(&mut self) -> (u32, Token) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 1,
                ..Slot::default()
            });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.used = true;
        let token = Token(u64::from(entry.generation) << 32 | u64::from(slot));
        (slot, token)
    }

    /// The token of a slot in use.
    pub(super) fn token(&self, slot: u32) -> Option<Token> {
        let entry = self.slots.get(slot as usize).filter(|entry| entry.used)?;
        Some(Token(u64::from(entry.generation) << 32 | u64::from(slot)))
    }

    fn entry(&mut self, token: Token) -> Option<&mut Slot> {
        self.slots
            .get_mut(token.slot())
            .filter(|entry| entry.used && entry.generation == token.generation())
    }

    /// The token's connection; `None` if it is closed or was taken out.
    pub(super) fn get(&self, token: Token) -> Option<&Connection> {
        self.slots
            .get(token.slot())
            .filter(|entry| entry.generation == token.generation())?
            .connection
            .as_deref()
    }

    /// As [`get`](Self::get).
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut Connection> {
        self.entry(token)?.connection.as_deref_mut()
    }

    /// Whether the token's connection is not closed.
    pub(super) fn is_used(&self, token: Token) -> bool {
        let entry = self.slots.get(token.slot());
        entry.is_some_and(|entry| entry.used && entry.generation == token.generation())
    }

    /// Takes the connection out of its slot; the slot stays reserved for it.
    pub(super) fn take(&mut self, token: Token) -> Option<Box<Connection>> {
        self.entry(token)?.connection.take()
    }

    pub(super) fn put(&mut self, token: Token, connection: Box<Connection>) {
        let entry = self
            .entry(token)
            .expect("a taken connection keeps its slot");
        debug_assert!(entry.connection.is_none());
        entry.connection = Some(connection);
    }

    /// Gives back the slot of a connection that was taken out and closed.
    pub(super) fn release(&mut self, token: Token) {
        let entry = self.entry(token).expect("released once");
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.used = false;
        self.free.push(token.slot() as u32);
    }

    /// The connection of a client of this thread, if it is in its slot.
    pub(super) fn of_client(&self, here: Here<'_>, client: u64) -> Option<Token> {
        let record = here.thread.clients.get(client)?;
        let token = self.token(record.slot)?;
        let connection = self.get(token);
        connection
            .filter(|it| it.record.id == client)
            .map(|_| token)
    }

    /// The connection has whole requests that have not run: it continues in the next round.
    #[inline]
    pub(super) fn continue_soon(&mut self, token: Token) {
        self.soon.push(token);
    }

    /// These continue in the next round, behind all others.
    pub(super) fn continue_behind(&mut self, tokens: Vec<Token>) {
        self.soon.extend(tokens);
    }

    /// Number of connections that continue in the next round.
    #[inline]
    pub(super) fn soon(&self) -> usize {
        self.soon.len()
    }

    #[inline]
    pub(super) fn take_soon(&mut self) -> Vec<Token> {
        std::mem::take(&mut self.soon)
    }

    pub(super) fn tokens(&self) -> Vec<Token> {
        (0..self.slots.len() as u32)
            .filter_map(|slot| self.token(slot))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_another_token() {
        let mut slots = Connections::default();
        let (slot, first) = slots.reserve();
        assert_eq!(slots.token(slot), Some(first));
        slots.release(first);
        assert_eq!(slots.token(slot), None);
        let (again, second) = slots.reserve();
        assert_eq!(again, slot);
        assert_ne!(first, second);
        assert!(slots.take(first).is_none());
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn reserved_tokens_are_told_apart() {
        assert_eq!(Token::listener(0).as_listener(), Some(0));
        assert_eq!(Token::listener(7).as_listener(), Some(7));
        assert_eq!(Token::MAILBOX.as_listener(), None);
        let mut slots = Connections::default();
        let (_, token) = slots.reserve();
        assert_eq!(token.as_listener(), None);
        assert_ne!(token, Token::MAILBOX);
    }
}
