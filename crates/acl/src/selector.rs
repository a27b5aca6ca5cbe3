//! One selector of a user: the commands, keys, channels and tables that it allows together.
//!
//! **Invariant**
//! - A4: [`Selector::allows`] looks at all keys, channels and tables of the request before it
//!   allows it, unless the selector allows all of that kind.

use crate::catalog::Catalog;
use duramen_base::glob::{PATTERN_BYTES_MAX, Pattern};
use std::collections::BTreeMap;

/// Kinds of access to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub reads: bool,
    /// Whether it inserts, updates or deletes.
    pub writes: bool,
}

impl Access {
    const ALL: Access = Access {
        reads: true,
        writes: true,
    };

    fn covers(self, wanted: Access) -> bool {
        (self.reads || !wanted.reads) && (self.writes || !wanted.writes)
    }
}

/// A request, as the check sees it. Positions are those of its arguments; position 0 is its name.
pub trait Request {
    /// Number of its command in the catalog.
    fn command(&self) -> usize;

    fn arg(&self, position: usize) -> Option<&[u8]>;

    /// Calls `look` with each key, its position and the access to it, until `look` returns false.
    fn each_key(&self, look: &mut dyn FnMut(usize, &[u8], Access) -> bool);

    /// The position of an argument by which the request may read any key; `None` if it reads only
    /// the keys of [`each_key`](Self::each_key).
    fn reads_any_key(&self) -> Option<usize> {
        None
    }

    /// As [`each_key`](Self::each_key), for channels. The last parameter is true for a pattern.
    fn each_channel(&self, look: &mut dyn FnMut(usize, &[u8], bool) -> bool) {
        let _ = look;
    }

    /// As [`each_key`](Self::each_key), for the names of tables; `None` stands for all tables.
    fn each_table(&self, look: &mut dyn FnMut(usize, Option<&str>) -> bool) {
        let _ = look;
    }
}

/// The part of a request that no selector allows. The numbers are positions of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    Command,
    Key(usize),
    Channel(usize),
    Table(usize),
}

/// The error of a wrong rule. The texts are Redis's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("Unknown command or category name in ACL")]
    Unknown,
    #[error("Syntax error")]
    Syntax,
    #[error(
        "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not \
         have any effect. Try 'resetkeys' to start with an empty list of patterns"
    )]
    AfterAllKeys,
    #[error(
        "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does \
         not have any effect. Try 'resetchannels' to start with an empty list of channels"
    )]
    AfterAllChannels,
    #[error("The password you are trying to remove from the user does not exist")]
    NoSuchPassword,
    #[error(
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal \
         characters"
    )]
    NotAHash,
    #[error("Allowing first-arg of a subcommand is not supported")]
    FirstArgOfSubcommand,
    #[error("A pattern has at most {PATTERN_BYTES_MAX} bytes")]
    LongPattern,
}

/// A pattern with its text.
#[derive(Debug, Clone)]
struct Glob {
    text: Vec<u8>,
    compiled: Pattern,
}

impl Glob {
    fn new(text: &[u8]) -> Result<Glob, RuleError> {
        if has_spaces(text) {
            return Err(RuleError::Syntax);
        }
        Ok(Glob {
            text: text.to_vec(),
            compiled: Pattern::new(text, false).ok_or(RuleError::LongPattern)?,
        })
    }
}

#[derive(Debug, Clone)]
struct KeyGlob {
    glob: Glob,
    access: Access,
}

impl KeyGlob {
    fn allows(&self, key: &[u8], wanted: Access) -> bool {
        self.access.covers(wanted) && self.glob.compiled.matches(key)
    }
}

/// Whether a text has white space as C defines it, or a zero byte.
pub(crate) fn has_spaces(text: &[u8]) -> bool {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || [0, 0x0b].contains(byte);
    text.iter().any(is_space)
}

/// The patterns of a kind; `None`: all of the kind is allowed.
type Limited<T> = Option<Vec<T>>;

/// Commands, keys, channels and tables that are allowed together.
#[derive(Debug, Clone)]
pub struct Selector {
    /// Whether the printed rules begin with `+@all`.
    from_all: bool,
    /// One bit for each command of the catalog. The bits behind them say whether the rules began
    /// with all commands.
    allowed: Vec<u64>,
    /// First arguments with which a command is allowed although its bit is not set.
    first_args: BTreeMap<usize, Vec<String>>,
    /// The rules about commands that have an effect, in their order: `+get`, `-@admin`.
    rules: Vec<String>,
    keys: Limited<KeyGlob>,
    channels: Limited<Glob>,
    tables: Limited<Glob>,
}

impl Selector {
    /// A selector that allows nothing, except that it allows all tables: rules of Redis have no
    /// tables.
    pub(crate) fn new(catalog: &Catalog) -> Selector {
        Selector {
            from_all: false,
            allowed: vec![0; catalog.count().div_ceil(64)],
            first_args: BTreeMap::new(),
            rules: Vec::new(),
            keys: Some(Vec::new()),
            channels: Some(Vec::new()),
            tables: None,
        }
    }

    /// Whether it allows every request.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.from_all
            && self.allowed.iter().all(|word| *word == u64::MAX)
            && self.keys.is_none()
            && self.channels.is_none()
            && self.tables.is_none()
    }

    /// Applies one rule about commands, keys, channels or tables.
    pub(crate) fn apply(&mut self, rule: &[u8], catalog: &Catalog) -> Result<(), RuleError> {
        let lower = rule.to_ascii_lowercase();
        match lower.as_slice() {
            b"allkeys" | b"~*" => self.keys = None,
            b"resetkeys" => self.keys = Some(Vec::new()),
            b"allchannels" | b"&*" => self.channels = None,
            b"resetchannels" => self.channels = Some(Vec::new()),
            b"alltables" => self.tables = None,
            b"resettables" => self.tables = Some(Vec::new()),
            b"allcommands" | b"+@all" => self.set_all_commands(true),
            b"nocommands" | b"-@all" => self.set_all_commands(false),
            [b'~' | b'%', ..] => self.add_key(rule)?,
            [b'&', ..] => self.add_channel(rule.get(1..).unwrap_or_default())?,
            [b't', b'a', b'b', b'l', b'e', b':', ..] => {
                self.add_table(rule.get(6..).unwrap_or_default())?;
            }
            [b'+' | b'-', ..] => {
                let text = std::str::from_utf8(&lower).map_err(|_| RuleError::Unknown)?;
                self.apply_command(text, catalog)?;
            }
            _ => return Err(RuleError::Syntax),
        }
        Ok(())
    }

    fn set_all_commands(&mut self, allowed: bool) {
        self.from_all = allowed;
        self.allowed.fill(if allowed { u64::MAX } else { 0 });
        self.first_args.clear();
        self.rules.clear();
    }

    /// Adds a rule `~pattern`, `%R~pattern`, `%W~pattern` or `%RW~pattern`.
    fn add_key(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let Some(keys) = &mut self.keys else {
            return Err(RuleError::AfterAllKeys);
        };
        let (access, pattern) = match rule {
            [b'~', pattern @ ..] => (Access::ALL, pattern),
            _ => parse_access(rule).ok_or(RuleError::Syntax)?,
        };
        let glob = Glob::new(pattern)?;
        match keys.iter_mut().find(|known| known.glob.text == pattern) {
            Some(known) => {
                known.access.reads |= access.reads;
                known.access.writes |= access.writes;
            }
            None => keys.push(KeyGlob { glob, access }),
        }
        Ok(())
    }

    fn add_channel(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        let Some(channels) = &mut self.channels else {
            return Err(RuleError::AfterAllChannels);
        };
        add(channels, pattern)
    }

    /// Adds a table. The first table ends the right to all tables.
    fn add_table(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if pattern.is_empty() {
            return Err(RuleError::Syntax);
        }
        let mut tables = self.tables.take().unwrap_or_default();
        let added = add(&mut tables, pattern);
        self.tables = Some(tables);
        added
    }

    /// Applies a rule about commands. `rule` is in lower case and begins with `+` or `-`.
    fn apply_command(&mut self, rule: &str, catalog: &Catalog) -> Result<(), RuleError> {
        let allow = rule.starts_with('+');
        let name = rule.get(1..).unwrap_or_default();
        if let Some(category) = name.strip_prefix('@') {
            let commands = catalog.in_category(category).ok_or(RuleError::Unknown)?;
            for command in commands {
                self.set_command(command, allow, catalog);
            }
        } else if let Some(command) = catalog.find(name) {
            self.set_command(command, allow, catalog);
        } else {
            let (command, first) = name.rsplit_once('|').ok_or(RuleError::Unknown)?;
            let number = catalog.find(command).ok_or(RuleError::Unknown)?;
            if !allow || !catalog.subcommands(number).is_empty() {
                return Err(RuleError::Unknown);
            }
            if catalog.name(number).contains('|') {
                return Err(RuleError::FirstArgOfSubcommand);
            }
            if first.is_empty() || has_spaces(first.as_bytes()) {
                return Err(RuleError::Syntax);
            }
            let firsts = self.first_args.entry(number).or_default();
            if !firsts.iter().any(|known| known == first) {
                firsts.push(first.to_owned());
            }
        }
        self.note_rule(rule);
        Ok(())
    }

    /// Notes a rule, which replaces earlier rules about the same command or its subcommands.
    fn note_rule(&mut self, rule: &str) {
        let name = rule.get(1..).unwrap_or_default();
        self.rules.retain(|known| {
            let rest = known.get(1..).and_then(|known| known.strip_prefix(name));
            !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('|'))
        });
        self.rules.push(rule.to_owned());
    }

    fn set_command(&mut self, command: usize, allow: bool, catalog: &Catalog) {
        let subcommands = catalog.subcommands(command).iter().copied();
        for number in std::iter::once(command).chain(subcommands) {
            if let Some(word) = self.allowed.get_mut(number / 64) {
                if allow {
                    *word |= 1 << (number % 64);
                } else {
                    *word &= !(1 << (number % 64));
                }
            }
        }
        self.first_args.remove(&command);
    }

    /// Whether the selector allows a request, and if not, the reason.
    pub(crate) fn allows(&self, request: &dyn Request, catalog: &Catalog) -> Result<(), Denied> {
        if !self.allows_command(request, catalog) {
            return Err(Denied::Command);
        }
        let mut denied = None;
        if let Some(keys) = &self.keys {
            request.each_key(&mut |position, key, wanted| {
                let is_allowed = keys.iter().any(|known| known.allows(key, wanted));
                denied = (!is_allowed).then_some(Denied::Key(position));
                is_allowed
            });
            let reads_all = |known: &KeyGlob| known.access.reads && known.glob.text == b"*";
            if denied.is_none() && !keys.iter().any(reads_all) {
                denied = request.reads_any_key().map(Denied::Key);
            }
        }
        if denied.is_none() && self.channels.is_some() {
            request.each_channel(&mut |position, channel, is_pattern| {
                let is_allowed = self.has_channel(channel, is_pattern);
                denied = (!is_allowed).then_some(Denied::Channel(position));
                is_allowed
            });
        }
        if denied.is_none() && self.tables.is_some() {
            request.each_table(&mut |position, table| {
                let is_allowed = table.is_some_and(|name| self.has_table(name));
                denied = (!is_allowed).then_some(Denied::Table(position));
                is_allowed
            });
        }
        denied.map_or(Ok(()), Err)
    }

    /// Whether it allows a channel, or a pattern of channels, which must be allowed literally.
    pub(crate) fn has_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let Some(channels) = &self.channels else {
            return true;
        };
        channels.iter().any(|known| {
            if is_pattern {
                known.text == channel
            } else {
                known.compiled.matches(channel)
            }
        })
    }

    /// Whether it allows a command with this key, and has no rules about tables.
    pub(crate) fn allows_one_key(&self, command: usize, key: &[u8], wanted: Access) -> bool {
        let allows = |known: &KeyGlob| known.allows(key, wanted);
        let keys = self.keys.as_ref();
        self.has(command)
            && self.tables.is_none()
            && keys.is_none_or(|keys| keys.iter().any(allows))
    }

    /// Whether it allows this key to be read.
    pub(crate) fn may_read_key(&self, key: &[u8]) -> bool {
        let reads = |known: &KeyGlob| known.access.reads && known.glob.compiled.matches(key);
        let keys = self.keys.as_ref();
        keys.is_none_or(|keys| keys.iter().any(reads))
    }

    /// Whether it allows a command with any arguments.
    pub(crate) fn has(&self, command: usize) -> bool {
        let word = self.allowed.get(command / 64).copied().unwrap_or(0);
        word >> (command % 64) & 1 == 1
    }

    pub(crate) fn has_all_tables(&self) -> bool {
        self.tables.is_none()
    }

    /// Whether it allows this table.
    pub(crate) fn has_table(&self, name: &str) -> bool {
        let is_it = |known: &Glob| known.compiled.matches(name.as_bytes());
        let tables = self.tables.as_ref();
        tables.is_none_or(|tables| tables.iter().any(is_it))
    }

    fn allows_command(&self, request: &dyn Request, catalog: &Catalog) -> bool {
        let command = request.command();
        if self.has(command) || catalog.is_free(command) {
            return true;
        }
        let Some(firsts) = self.first_args.get(&command) else {
            return false;
        };
        request.arg(1).is_some_and(|arg| {
            let mut firsts = firsts.iter();
            firsts.any(|first| first.as_bytes().eq_ignore_ascii_case(arg))
        })
    }

    /// The rules about commands, as `ACL GETUSER` shows them.
    pub fn commands(&self) -> String {
        let base = if self.from_all { "+@all" } else { "-@all" };
        let rules = self.rules.iter().map(String::as_str);
        let all: Vec<&str> = std::iter::once(base).chain(rules).collect();
        all.join(" ")
    }

    /// The patterns of keys, as `ACL GETUSER` shows them.
    pub fn keys(&self) -> Vec<u8> {
        match &self.keys {
            None => b"~*".to_vec(),
            Some(keys) => keys.iter().map(key_rule).collect::<Vec<_>>().join(&b' '),
        }
    }

    /// The patterns of channels, as `ACL GETUSER` shows them.
    pub fn channels(&self) -> Vec<u8> {
        match &self.channels {
            None => b"&*".to_vec(),
            Some(channels) => prefixed(channels, b"&"),
        }
    }

    /// The patterns of tables; empty if it allows all tables.
    pub fn tables(&self) -> Vec<u8> {
        match &self.tables {
            None => Vec::new(),
            Some(tables) if tables.is_empty() => b"resettables".to_vec(),
            Some(tables) => prefixed(tables, b"table:"),
        }
    }

    /// All rules, as `ACL LIST` shows them.
    pub(crate) fn print(&self) -> Vec<u8> {
        let mut parts = vec![self.keys()];
        if self.channels.is_some() {
            parts.push(b"resetchannels".to_vec());
        }
        parts.extend([self.channels(), self.tables()]);
        parts.push(self.commands().into_bytes());
        parts.retain(|part| !part.is_empty());
        parts.join(&b' ')
    }
}

fn add(globs: &mut Vec<Glob>, pattern: &[u8]) -> Result<(), RuleError> {
    let glob = Glob::new(pattern)?;
    if !globs.iter().any(|known| known.text == pattern) {
        globs.push(glob);
    }
    Ok(())
}

fn prefixed(globs: &[Glob], prefix: &[u8]) -> Vec<u8> {
    let rules = globs.iter().map(|glob| [prefix, &glob.text].concat());
    rules.collect::<Vec<_>>().join(&b' ')
}

fn key_rule(key: &KeyGlob) -> Vec<u8> {
    let prefix: &[u8] = match (key.access.reads, key.access.writes) {
        (true, false) => b"%R~",
        (false, true) => b"%W~",
        _ => b"~",
    };
    [prefix, &key.glob.text].concat()
}

/// The access and the pattern of `%R~…`.
fn parse_access(rule: &[u8]) -> Option<(Access, &[u8])> {
    let mut access = Access {
        reads: false,
        writes: false,
    };
    let mut rest = rule.get(1..)?;
    loop {
        match rest {
            [b'R' | b'r', after @ ..] if !access.reads => {
                access.reads = true;
                rest = after;
            }
            [b'W' | b'w', after @ ..] if !access.writes => {
                access.writes = true;
                rest = after;
            }
            [b'~', pattern @ ..] if access.reads || access.writes => {
                return Some((access, pattern));
            }
            _ => return None,
        }
    }
}
