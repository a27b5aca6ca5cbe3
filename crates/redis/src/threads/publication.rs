//! Messages for subscribers, on their way to the threads whose clients have subscribed.

use std::sync::Arc;

/// Bytes of messages in one mailbox above which it counts as crowded: a few rounds of its thread.
pub const CROWDED_BYTES: usize = 1 << 20;
/// Maximum bytes of messages in one mailbox.
pub(crate) const POSTED_BYTES_MAX: usize = 64 << 20;
/// Bytes that a message counts beside its texts and patterns.
const MESSAGE_BYTES: usize = 128;

/// The kinds of names that clients subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A channel of the whole cluster, for PUBLISH.
    Channel,
    /// A channel of the server that serves its slot, for SPUBLISH.
    Shard,
    /// Names of channels of the whole cluster.
    Pattern,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Channel, Kind::Shard, Kind::Pattern];
}

/// A message on its way to subscribers.
#[derive(Debug)]
pub struct Publication {
    /// Either `Channel` or `Shard`.
    pub kind: Kind,
    pub channel: Box<[u8]>,
    pub payload: Box<[u8]>,
    /// The patterns with subscribers that the channel's name matches. Its copies for subscribers of
    /// the channel come first, as in Redis.
    pub patterns: Vec<Arc<[u8]>>,
    /// Number of messages of the server before this one.
    pub number: u64,
}

impl Publication {
    /// The names by which clients get it, in the order of their copies: `None` = its channel.
    pub fn names(&self) -> impl Iterator<Item = Option<&Arc<[u8]>>> {
        std::iter::once(None).chain(self.patterns.iter().map(Some))
    }

    /// Whether the same clients get both messages by one name, if they had subscribed before.
    pub fn is_like(&self, other: &Publication) -> bool {
        let by_channel_alone = self.patterns.is_empty() && other.patterns.is_empty();
        by_channel_alone && self.kind == other.kind && self.channel == other.channel
    }

    /// Bytes that the message counts in a mailbox.
    pub fn bytes(&self) -> usize {
        let patterns = self.patterns.len() * size_of::<Arc<[u8]>>();
        MESSAGE_BYTES + self.channel.len() + self.payload.len() + patterns
    }
}
