//! Databases, tables, channels and scripts that arguments name: for the check of rights, for EXEC,
//! and for a cluster.

use duramen_wire::resp::Args;

/// Names among the arguments of a command, beside those of its keys.
#[derive(Clone, Copy)]
pub(crate) enum Names {
    Nothing,
    /// The database that is selected, argument 1.
    Selected,
    /// Two databases that are exchanged, arguments 1 and 2.
    Exchanged,
    /// The database that gets the key in argument `key`.
    Target {
        key: u8,
        database: Database,
    },
    /// A table, in this argument.
    Table(u8),
    /// No name: the command concerns, or shows, the keys of all tables.
    AllTables,
    /// As `AllTables` if the function returns true for the arguments; no names otherwise.
    AllTablesIf(fn(&Args<'_>) -> bool),
    /// The channel in argument 1.
    Channel,
    /// The channels in all arguments.
    Channels,
    /// As `Channels`, with patterns.
    Patterns,
    /// A script in argument 1, which may declare that it writes nothing.
    Script(ScriptName),
}

/// The argument with the database that gets a key.
#[derive(Clone, Copy)]
pub(crate) enum Database {
    Argument(u8),
    /// Behind each option `DB` from this argument on. The last one counts.
    Option(u8),
}

/// The form in which an argument names a script.
#[derive(Clone, Copy)]
pub(crate) enum ScriptName {
    Text,
    /// The digest of its text.
    Digest,
    Function,
}

impl Names {
    #[inline]
    pub(crate) fn select(self) -> bool {
        matches!(self, Names::Selected)
    }

    #[inline]
    pub(crate) fn are_databases(self) -> bool {
        matches!(
            self,
            Names::Selected | Names::Exchanged | Names::Target { .. }
        )
    }

    /// The argument with the key that another database gets.
    #[inline]
    pub(crate) fn moved_key(self) -> Option<usize> {
        match self {
            Names::Target { key, .. } => Some(key.into()),
            _ => None,
        }
    }

    /// Argument numbers of databases. An option may lack its argument.
    pub(crate) fn databases<'a>(self, args: &Args<'a>) -> impl Iterator<Item = usize> + use<'a> {
        let args = *args;
        let (fixed, options) = match self {
            Names::Selected => (1..2, args.len()),
            Names::Exchanged => (1..3, args.len()),
            Names::Target { database, .. } => match database {
                Database::Argument(n) => (usize::from(n)..usize::from(n) + 1, args.len()),
                Database::Option(from) => (0..0, usize::from(from)),
            },
            _ => (0..0, args.len()),
        };
        let is_option = move |n: &usize| {
            let option = args.get(*n).unwrap_or_default();
            option.eq_ignore_ascii_case(b"db")
        };
        let options = (options..args.len()).filter(is_option);
        fixed.chain(options.map(|n| n + 1))
    }

    /// Argument numbers of channels, and whether they are patterns.
    pub(crate) fn channels(self, args: &Args<'_>) -> (std::ops::Range<usize>, bool) {
        match self {
            Names::Channel => (1..2, false),
            Names::Channels => (1..args.len(), false),
            Names::Patterns => (1..args.len(), true),
            _ => (0..0, false),
        }
    }
}
