//! The commands and categories that rules may name.

use std::collections::HashMap;

/// Redis's categories, in the order of `ACL CAT`. The bit of a category in
/// [`Command::categories`] is its position here.
pub const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// A command, as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The name in lower case; `container|sub` for a subcommand.
    pub name: &'static str,
    /// One bit for each of [`CATEGORIES`].
    pub categories: u32,
    /// Whether every client may run it, even before it gives a password.
    pub is_free: bool,
}

/// All commands. A command's position is its number.
#[derive(Debug)]
pub struct Catalog {
    commands: Vec<Command>,
    by_name: HashMap<&'static str, usize>,
    /// For each command the numbers of its subcommands.
    subcommands: Vec<Vec<usize>>,
}

impl Catalog {
    pub fn new(commands: impl IntoIterator<Item = Command>) -> Catalog {
        let commands: Vec<Command> = commands.into_iter().collect();
        let names = commands.iter().enumerate();
        let by_name: HashMap<_, _> = names.map(|(n, command)| (command.name, n)).collect();
        let mut subcommands = vec![Vec::new(); commands.len()];
        for (n, command) in commands.iter().enumerate() {
            let container = command.name.split_once('|').map(|(name, _)| name);
            if let Some(at) = container.and_then(|name| by_name.get(name))
                && let Some(list) = subcommands.get_mut(*at)
            {
                list.push(n);
            }
        }
        Catalog {
            commands,
            by_name,
            subcommands,
        }
    }

    /// The number of the command with this name, in any case.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        let name = name.to_ascii_lowercase();
        self.by_name.get(name.as_str()).copied()
    }

    /// The name of the command with this number; empty: there is no such command.
    pub fn name(&self, command: usize) -> &'static str {
        self.commands
            .get(command)
            .map_or("", |command| command.name)
    }

    pub(crate) fn is_free(&self, command: usize) -> bool {
        let command = self.commands.get(command);
        command.is_some_and(|command| command.is_free)
    }

    pub(crate) fn subcommands(&self, command: usize) -> &[usize] {
        self.subcommands.get(command).map_or(&[], Vec::as_slice)
    }

    /// Number of commands.
    pub fn count(&self) -> usize {
        self.commands.len()
    }

    /// The numbers of the commands of a category, given by name in any case; `None`: there is no
    /// such category.
    pub fn in_category(&self, name: &str) -> Option<Vec<usize>> {
        let is_it = |known: &&str| known.eq_ignore_ascii_case(name);
        let bit = CATEGORIES.iter().position(is_it)?;
        let numbered = self.commands.iter().enumerate();
        let inside = numbered.filter(|(_, command)| command.categories & 1 << bit != 0);
        Some(inside.map(|(n, _)| n).collect())
    }
}
