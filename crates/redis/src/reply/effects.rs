//! The effects of a turn's requests on other clients: messages and events. They are gathered while
//! the requests run, and released with the replies.
//!
//! **Invariants**
//! - E1: effects are released at one place (`pubsub::release`), when the replies of their turn
//!   may be sent: no subscriber hears of a write that is less durable than the reply requires. If
//!   the replies become errors instead, because the log has failed, the effects are dropped.
//! - E2: a request that parks or is shown again has added no effects: they are cut off together
//!   with its reply (`run::run`). A request that fails keeps the effects of the changes that it
//!   made: an event is added after the change that it reports.
//! - E3: effects do not depend on the connection: if it is closed while they wait, they are
//!   released later, without the reply.
//! - E4: a request that changes the subscriptions of its client, or ends the client, runs when the
//!   effects of the client's earlier requests are released: in a round of its own if there are
//!   some. Inside of `EXEC` no effect is released, so `EXEC` as a whole waits for the effects of
//!   earlier requests.

use crate::threads::publication::Kind;
use duramen_config::EventClasses;

/// The reply of PUBLISH until its message is released.
pub(crate) const NO_RECEIVERS: &[u8] = b":0\r\n";

/// Something that has happened to a key, for subscribers of keyspace events.
#[derive(Debug)]
pub(crate) struct Event<K> {
    /// The classes of the setting when the event happened; they decide on which channels the event
    /// is published.
    pub(crate) classes: EventClasses,
    pub(crate) db: u8,
    pub(crate) name: &'static str,
    pub(crate) key: K,
}

/// An effect on other clients.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A message of PUBLISH or SPUBLISH.
    Message {
        kind: Kind,
        channel: Box<[u8]>,
        payload: Box<[u8]>,
        /// The place of its reply, [`NO_RECEIVERS`], in the output; `None`: there is no reply.
        reply_at: Option<usize>,
    },
    /// A keyspace event.
    Event(Event<Box<[u8]>>),
}

impl Effect {
    /// Bytes of memory that it takes.
    fn bytes(&self) -> usize {
        let texts = match self {
            Effect::Message {
                channel, payload, ..
            } => channel.len() + payload.len(),
            Effect::Event(event) => event.key.len(),
        };
        size_of::<Effect>() + texts
    }
}

/// The effects of one turn, in order.
#[derive(Debug, Default)]
pub struct Effects {
    list: Vec<Effect>,
    bytes: usize,
}

fn bytes_of(effects: &[Effect]) -> usize {
    effects.iter().map(Effect::bytes).sum()
}

impl Effects {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes of memory that they take.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, effect: Effect) {
        self.bytes += effect.bytes();
        self.list.push(effect);
    }

    /// Cuts off the effects from number `len` on (E2).
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.list.len() {
            self.split_off(len);
        }
    }

    /// Moves the last `count` effects to place `from`.
    pub(crate) fn bring_forward(&mut self, from: usize, count: usize) {
        self.list[from..].rotate_right(count);
    }

    /// Takes the effects from number `at` on.
    pub(crate) fn split_off(&mut self, at: usize) -> Effects {
        let list = self.list.split_off(at.min(self.list.len()));
        let bytes = bytes_of(&list);
        self.bytes -= bytes;
        Effects { list, bytes }
    }

    pub(crate) fn append(&mut self, mut later: Effects) {
        self.bytes += later.bytes;
        self.list.append(&mut later.list);
    }

    /// Notes that the messages from number `at` on have no replies of their own.
    pub(crate) fn forget_replies(&mut self, at: usize) {
        for effect in self.list.iter_mut().skip(at) {
            if let Effect::Message { reply_at, .. } = effect {
                *reply_at = None;
            }
        }
    }

    /// `reply_at`: the length of the output before its reply.
    pub(crate) fn message(&mut self, kind: Kind, channel: &[u8], payload: &[u8], reply_at: usize) {
        self.push(Effect::Message {
            kind,
            channel: channel.into(),
            payload: payload.into(),
            reply_at: Some(reply_at),
        });
    }

    pub(crate) fn event(&mut self, event: Event<Box<[u8]>>) {
        self.push(Effect::Event(event));
    }

    /// Notes that the output from `start` on is taken back: the messages there have no replies.
    pub(crate) fn silence(&mut self, start: usize) {
        for effect in &mut self.list {
            if let Effect::Message { reply_at, .. } = effect {
                *reply_at = reply_at.filter(|at| *at < start);
            }
        }
    }

    /// Takes all effects; the replies of their turn begin at `from` in the output.
    #[inline]
    pub fn take(&mut self, from: usize) -> Effects {
        let mut effects = std::mem::take(self);
        effects.count_from(from);
        effects
    }

    /// From now on the places of replies are counted from `from`, the start of the turn's replies.
    pub fn count_from(&mut self, from: usize) {
        for effect in &mut self.list {
            if let Effect::Message { reply_at, .. } = effect {
                *reply_at = reply_at.and_then(|at| at.checked_sub(from));
            }
        }
    }

    /// Notes that the replies of the effects from number `at` on have moved `bytes` back in the
    /// output.
    pub(crate) fn move_replies(&mut self, at: usize, bytes: usize) {
        for effect in self.list.iter_mut().skip(at) {
            if let Effect::Message { reply_at, .. } = effect {
                *reply_at = reply_at.map(|at| at + bytes);
            }
        }
    }

    /// The effects, in order.
    pub(crate) fn into_list(self) -> Vec<Effect> {
        self.list
    }
}
