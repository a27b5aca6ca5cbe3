//! The context in which a command runs, and the reasons for its failure.

use super::permit::Permit;
use super::spec::{Commands, Spec};
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::db::DROPPED;
use crate::state::local::Local;
use duramen_base::ids::Level;
use duramen_engine::{Error, Guard, TableId};
use duramen_wire::resp::{Args, Encoder};

/// Result of a command: its reply is in `out`, or the failure becomes the reply.
pub(crate) type Done = Result<(), Failure>;

/// Reason why a command was not executed; the text after `-` of its reply.
#[derive(Debug)]
pub(crate) enum Failure {
    Text(&'static str),
    Owned(Box<str>),
    Engine(Box<Error>),
    /// A string would be longer than the limit.
    TooLong,
    /// A collection would be longer than the limit, or have more elements.
    Full,
    /// The command had no effect, but may succeed soon: present it again, or fail with this text.
    NotNow(&'static str),
    /// The command waits for elements, and its client knows for which: present it again when there
    /// are some.
    Blocks,
    /// The command is not finished and has noted its progress: present it again after the other
    /// connections' turn.
    GoesOn,
}

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Failure {
        Failure::Engine(Box::new(error))
    }
}

impl From<duramen::Error> for Failure {
    #[cold]
    fn from(error: duramen::Error) -> Failure {
        match error {
            duramen::Error::Engine(error) => error.into(),
            duramen::Error::NoSuchTable(table) => Error::NoSuchTable(table).into(),
            duramen::Error::OutOfMemory {
                live_bytes,
                limit_bytes,
            } => {
                let error = Error::OutOfMemory {
                    live_bytes,
                    limit_bytes,
                };
                error.into()
            }
            error @ (duramen::Error::DiskFull(_) | duramen::Error::DiskFailed(_)) => {
                format!("MISCONF {error}").into()
            }
            error => format!("ERR {error}").into(),
        }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Owned(text.into_boxed_str())
    }
}

impl Failure {
    /// The command had no effect, because its keys are moving from one server to another.
    pub(crate) fn is_moving(&self) -> bool {
        match self {
            Failure::NotNow(_) => true,
            Failure::Engine(error) => matches!(**error, Error::TryAgain),
            _ => false,
        }
    }

    /// The entry of a key is damaged.
    pub(crate) fn is_damaged(&self) -> bool {
        matches!(self, Failure::Engine(error) if matches!(**error, Error::Damaged))
    }

    /// The log has failed. In a cluster: this server was declared crashed, and its life ends.
    pub(crate) fn is_disk_failed(&self) -> bool {
        matches!(self, Failure::Engine(error) if matches!(**error, Error::DiskFailed))
    }

    /// A value would be longer than the limit, or a collection have too many elements; or the
    /// values of one step are longer together than they may be.
    pub(crate) fn is_too_long(&self) -> bool {
        match self {
            Failure::TooLong | Failure::Full => true,
            Failure::Engine(error) => matches!(
                **error,
                Error::ValueTooLarge { .. } | Error::GroupTooLarge { .. }
            ),
            _ => false,
        }
    }

    /// The error line's text, without `-` and line end.
    pub(crate) fn text(&self) -> String {
        match self {
            Failure::Text(text) | Failure::NotNow(text) => (*text).to_string(),
            Failure::Owned(text) => text.to_string(),
            Failure::TooLong => {
                "ERR string exceeds maximum allowed size (proto-max-bulk-len)".to_owned()
            }
            Failure::Full => format!("ERR {}", duramen_types::Error::Full),
            Failure::Blocks | Failure::GoesOn => "ERR not done yet: ask again".to_string(),
            Failure::Engine(error) => match &**error {
                Error::OutOfMemory {
                    live_bytes,
                    limit_bytes,
                } => {
                    let advice = match live_bytes / 4 > limit_bytes / 5 {
                        true => "delete some, raise the budget, or use cache mode",
                        false => {
                            "no more became free in time: large values fragment it, or the disk or flash, if there is one, is slow"
                        }
                    };
                    format!(
                        "OOM command not allowed when used memory > 'maxmemory'. \
                         ({live_bytes} of {limit_bytes} bytes are live data: {advice})"
                    )
                }
                Error::ValueTooLarge { bytes, limit } => format!(
                    "ERR string exceeds maximum allowed size: value of {bytes} bytes is longer than the limit of {limit}"
                ),
                Error::GroupTooLarge { bytes, limit } => format!(
                    "ERR a command or transaction that writes {bytes} bytes is longer than the limit of {limit}: split it. The limit is an eighth of `wal-size`, of a member of a cluster 2 to 8 MiB, and of a script `script-memory`"
                ),
                error @ (Error::DiskFull | Error::DiskFailed) => format!("MISCONF {error}"),
                Error::WrongType => {
                    "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned()
                }
                Error::TryAgain => format!("TRYAGAIN {error}"),
                Error::Damaged => format!("DAMAGED {error}"),
                Error::Overflow => "ERR increment or decrement would overflow".to_string(),
                Error::NoSuchTable(DROPPED) => "ERR the table of this database does not exist any more: choose another with SELECT or DURAMEN.USE".to_owned(),
                Error::NoSuchTable(table) => format!(
                    "ERR table {table} does not exist any more: choose another with SELECT or DURAMEN.USE"
                ),
                error => format!("ERR {error}"),
            },
        }
    }
}

pub(crate) const SYNTAX: Failure = Failure::Text("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: Failure =
    Failure::Text("ERR value is not an integer or out of range");
pub(crate) const NOT_A_FLOAT: Failure = Failure::Text("ERR value is not a valid float");
pub(crate) const NO_SUCH_KEY: Failure = Failure::Text("ERR no such key");

/// One request, as the command that executes it sees it.
pub(crate) struct Context<'a> {
    pub(crate) args: Args<'a>,
    /// Of the check of its client's rights (permit::U1).
    pub(crate) permit: Permit,
    /// The permit's command.
    pub(crate) spec: &'static Spec,
    /// The command table.
    pub(crate) commands: &'static Commands,
    pub(crate) client: &'a mut Client,
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) shared: &'a Shared,
    pub(crate) local: &'a mut Local,
    /// The client's selected table.
    pub(crate) table: TableId,
    /// Its keys are locked, or no other session is in the store: it runs inside EXEC, or for the
    /// second time.
    pub(crate) locked: bool,
}

impl<'a> Context<'a> {
    /// Argument `n` (0 is the name); empty if the request is shorter, which the arity excludes
    /// where it matters.
    #[inline]
    pub(crate) fn arg(&self, n: usize) -> &'a [u8] {
        self.args.get(n).unwrap_or_default()
    }

    /// The key of a command that has one.
    #[inline]
    pub(crate) fn only_key(&self) -> &'a [u8] {
        self.arg(self.spec.keys.first.into())
    }

    pub(crate) fn reply(&mut self) -> Encoder<'_> {
        Encoder::within(self.out, self.client.protocol, &mut self.local.room)
    }

    /// Fails when the reply does not fit into the connection's output: for commands that would
    /// otherwise work in vain.
    #[inline]
    pub(crate) fn fits(&self) -> Done {
        match self.local.room.exceeded {
            false => Ok(()),
            true => Err(self.too_long()),
        }
    }

    /// Whether a command that names no key may stop, and go on when it is shown again: not in
    /// EXEC, and not while the data is being loaded.
    pub(crate) fn may_go_on_later(&self) -> bool {
        !self.locked && !self.local.in_exec && self.shared.data().is_some()
    }

    #[cold]
    pub(crate) fn too_long(&self) -> Failure {
        let limit = self.local.room.bytes_max;
        Failure::from(format!(
            "ERR the reply does not fit into this connection's output-limit of {limit} bytes: ask for less at once"
        ))
    }

    /// Refuses a feature that needs several databases: a cluster has one, like Redis Cluster.
    pub(crate) fn not_in_cluster(&self, what: &str) -> Done {
        match self.shared.membership() {
            None => Ok(()),
            Some(_) => Err(format!("ERR {what} not allowed in cluster mode").into()),
        }
    }

    /// Counts the calls and times of the requests before this one.
    pub(crate) fn count_up_to_now(&mut self) {
        self.local.count_up_to_now(self.shared, self.spec.number);
    }

    /// The level of the selected table.
    pub(crate) fn level(&mut self) -> Level {
        self.local.level_of_table(self.shared, self.table)
    }

    /// The strictest level of some tables.
    pub(crate) fn strictest(&mut self, tables: &[TableId]) -> Level {
        let levels = tables
            .iter()
            .map(|table| self.local.level_of_table(self.shared, *table));
        levels.max().unwrap_or(Level::Memory)
    }

    /// Adds the position of the command's own guard to the replies' wait. Not used within EXEC,
    /// which does this for all its commands.
    pub(crate) fn settle(&mut self, guard: &mut Guard<'_>) {
        if guard.order().has_position() {
            let level = self.level();
            self.client.settle(guard, level);
        }
    }

    /// Makes the replies wait until all writes of any client up to now have the table's level: for
    /// data that is seen without a guard.
    pub(crate) fn settle_all(&mut self) {
        if let Some(log) = self.shared.store().log() {
            let level = self.level();
            self.client.settle_position(&log.appended(), level);
        }
    }

    #[inline]
    pub(crate) fn ok(&mut self) -> Done {
        self.out.extend_from_slice(b"+OK\r\n");
        Ok(())
    }

    #[inline]
    pub(crate) fn integer(&mut self, value: i64) -> Done {
        match value {
            0 => self.out.extend_from_slice(b":0\r\n"),
            1 => self.out.extend_from_slice(b":1\r\n"),
            _ => self.reply().integer(value),
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn bulk(&mut self, value: &[u8]) -> Done {
        self.reply().bulk(value);
        Ok(())
    }

    #[inline]
    pub(crate) fn null(&mut self) -> Done {
        self.reply().null();
        Ok(())
    }

    /// A list of status lines, the reply of HELP subcommands.
    pub(crate) fn help(&mut self, lines: &[&str]) -> Done {
        let container = self
            .spec
            .container()
            .unwrap_or_default()
            .to_ascii_uppercase();
        let mut reply = self.reply();
        reply.array(lines.len() + 3);
        reply.simple(format!(
            "{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
        ));
        for line in lines {
            reply.simple(line);
        }
        reply.simple("HELP");
        reply.simple("    Prints this help.");
        Ok(())
    }
}
