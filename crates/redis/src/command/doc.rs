//! The words about a command for people: `COMMAND DOCS`, and the page of the commands.

/// The description of a command.
#[derive(Clone, Copy)]
pub(crate) struct Doc {
    pub(crate) topic: Topic,
    /// The first version of Redis that had the command; for Duramen's own commands, of Duramen.
    pub(crate) since: &'static str,
    pub(crate) complexity: &'static str,
    pub(crate) summary: &'static str,
    /// How it differs from Redis's command; empty if it does not.
    pub(crate) differs: &'static str,
}

pub(crate) const fn doc(
    topic: Topic,
    since: &'static str,
    complexity: &'static str,
    summary: &'static str,
) -> Doc {
    Doc {
        topic,
        since,
        complexity,
        summary,
        differs: "",
    }
}

/// The group in which a command is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Connection,
    String,
    Hash,
    List,
    Set,
    SortedSet,
    Bitmap,
    HyperLogLog,
    Geo,
    Stream,
    Generic,
    PubSub,
    Transactions,
    Scripting,
    Server,
    Cluster,
    Duramen,
    /// A command of Redis for features that do not exist here.
    Foreign,
}

impl Topic {
    /// The topic's name, as in Redis.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Topic::Connection => "connection",
            Topic::String => "string",
            Topic::Hash => "hash",
            Topic::List => "list",
            Topic::Set => "set",
            Topic::SortedSet => "sorted-set",
            Topic::Bitmap => "bitmap",
            Topic::HyperLogLog => "hyperloglog",
            Topic::Geo => "geo",
            Topic::Stream => "stream",
            Topic::Generic => "generic",
            Topic::PubSub => "pubsub",
            Topic::Transactions => "transactions",
            Topic::Scripting => "scripting",
            Topic::Server => "server",
            Topic::Cluster => "cluster",
            Topic::Duramen => "duramen",
            Topic::Foreign => "foreign",
        }
    }
}
