//! A user: whether it may log in, its passwords, and its selectors.

use crate::Access;
use crate::catalog::Catalog;
use crate::password::Digest;
use crate::selector::{Denied, Request, RuleError, Selector};

/// A user with its rights. It never changes: a change of the user makes another one.
#[derive(Debug, Clone)]
pub struct User {
    name: String,
    /// A number that differs for users that had the same name at different times.
    id: u64,
    is_enabled: bool,
    needs_no_password: bool,
    /// Whether a flag is printed for Redis's tools; nothing here reads payloads of RESTORE.
    skips_sanitizing: bool,
    passwords: Vec<Digest>,
    root: Selector,
    others: Vec<Selector>,
}

impl User {
    /// A user that may do nothing.
    pub(crate) fn new(name: &str, id: u64, catalog: &Catalog) -> User {
        User {
            name: name.to_owned(),
            id,
            is_enabled: false,
            needs_no_password: false,
            skips_sanitizing: false,
            passwords: Vec::new(),
            root: Selector::new(catalog),
            others: Vec::new(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// A number that differs for users that had the same name at different times.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the user may log in. When this ends, open connections of the user stay open.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Whether a connection has this user's rights without a password.
    pub fn is_open(&self) -> bool {
        self.is_enabled && self.needs_no_password
    }

    pub fn needs_no_password(&self) -> bool {
        self.needs_no_password
    }

    /// Whether every request is allowed.
    pub fn is_unrestricted(&self) -> bool {
        self.root.is_unrestricted() || self.others.iter().any(Selector::is_unrestricted)
    }

    /// Whether a client with this password may log in. The time does not depend on the digests.
    pub fn accepts(&self, password: &[u8]) -> bool {
        let digest = Digest::of(password);
        let known = self.passwords.iter().map(|known| known.is(&digest));
        let is_known = known.fold(false, |any, is| any | is);
        self.is_enabled && (self.needs_no_password || is_known)
    }

    /// Whether some selector allows the command of this name with any arguments.
    pub fn has(&self, command: &str, catalog: &Catalog) -> bool {
        let mut selectors = std::iter::once(&self.root).chain(&self.others);
        let command = catalog.find(command);
        command.is_some_and(|command| selectors.any(|selector| selector.has(command)))
    }

    /// Whether some selector allows the command of this name on all tables, with any keys.
    pub fn may_use_all_tables(&self, command: &str, catalog: &Catalog) -> bool {
        let mut selectors = std::iter::once(&self.root).chain(&self.others);
        let command = catalog.find(command);
        command.is_some_and(|command| {
            selectors.any(|selector| selector.has(command) && selector.has_all_tables())
        })
    }

    /// Whether some selector allows the command of this name on this table, with any keys.
    pub fn may_use_table(&self, command: &str, table: &str, catalog: &Catalog) -> bool {
        let mut selectors = std::iter::once(&self.root).chain(&self.others);
        let command = catalog.find(command);
        command.is_some_and(|command| {
            selectors.any(|selector| selector.has(command) && selector.has_table(table))
        })
    }

    /// Whether some selector allows this channel, or the pattern as it is written.
    pub fn has_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let mut selectors = std::iter::once(&self.root).chain(&self.others);
        selectors.any(|selector| selector.has_channel(channel, is_pattern))
    }

    /// Whether some selector allows this key to be read.
    pub fn may_read_key(&self, key: &[u8]) -> bool {
        let mut selectors = std::iter::once(&self.root).chain(&self.others);
        selectors.any(|selector| selector.may_read_key(key))
    }

    /// Whether the rules outside of selectors allow a command with this key, and no other rule can
    /// deny it. If false, [`check`](Self::check) decides.
    #[inline]
    pub fn allows_one_key(&self, command: usize, key: &[u8], access: Access) -> bool {
        self.root.allows_one_key(command, key, access)
    }

    /// Checks a request.
    ///
    /// # Errors
    /// The part of the request that is not allowed: the command if no selector allows it, else the
    /// last key, channel or table that was refused, as in Redis.
    pub fn check(&self, request: &dyn Request, catalog: &Catalog) -> Result<(), Denied> {
        let mut denied = match self.root.allows(request, catalog) {
            Ok(()) => return Ok(()),
            Err(denied) => denied,
        };
        for selector in &self.others {
            match selector.allows(request, catalog) {
                Ok(()) => return Ok(()),
                Err(other) => denied = denied.max(other),
            }
        }
        Err(denied)
    }

    /// Applies one rule; nothing if it is empty.
    pub(crate) fn apply(&mut self, rule: &[u8], catalog: &Catalog) -> Result<(), RuleError> {
        let lower = rule.to_ascii_lowercase();
        match lower.as_slice() {
            b"" => {}
            b"on" => self.is_enabled = true,
            b"off" => self.is_enabled = false,
            b"nopass" => {
                self.needs_no_password = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.needs_no_password = false;
                self.passwords.clear();
            }
            b"skip-sanitize-payload" => self.skips_sanitizing = true,
            b"sanitize-payload" => self.skips_sanitizing = false,
            b"clearselectors" => self.others.clear(),
            b"reset" => *self = User::new(&self.name, self.id, catalog),
            [b'>' | b'#' | b'<' | b'!', ..] => self.apply_password(rule)?,
            [b'(', .., b')'] => {
                let mut selector = Selector::new(catalog);
                let inner = rule.get(1..rule.len() - 1).unwrap_or_default();
                for rule in inner.split(|byte| *byte == b' ') {
                    // Printed among other rules, such a rule would begin or end a selector.
                    if rule.starts_with(b"(") || rule.ends_with(b")") {
                        return Err(RuleError::Syntax);
                    }
                    if !rule.is_empty() {
                        selector.apply(rule, catalog)?;
                    }
                }
                self.others.push(selector);
            }
            _ => self.root.apply(rule, catalog)?,
        }
        Ok(())
    }

    fn apply_password(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let (kind, text) = rule.split_first().ok_or(RuleError::Syntax)?;
        let digest = match kind {
            b'>' | b'<' => Digest::of(text),
            _ => Digest::parse(text).ok_or(RuleError::NotAHash)?,
        };
        let known = self.passwords.iter().position(|known| *known == digest);
        match (kind, known) {
            (b'>' | b'#', known) => {
                self.needs_no_password = false;
                if known.is_none() {
                    self.passwords.push(digest);
                }
            }
            (_, Some(at)) => drop(self.passwords.remove(at)),
            (_, None) => return Err(RuleError::NoSuchPassword),
        }
        Ok(())
    }

    /// The flags, as `ACL GETUSER` shows them.
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_enabled { "on" } else { "off" }];
        if self.needs_no_password {
            flags.push("nopass");
        }
        flags.push(if self.skips_sanitizing {
            "skip-sanitize-payload"
        } else {
            "sanitize-payload"
        });
        flags
    }

    pub fn passwords(&self) -> &[Digest] {
        &self.passwords
    }

    pub fn root(&self) -> &Selector {
        &self.root
    }

    /// The selectors beside the root.
    pub fn others(&self) -> &[Selector] {
        &self.others
    }

    /// The user as `user NAME RULES…`: a line of `ACL LIST` and of a file of users.
    pub fn print(&self) -> Vec<u8> {
        let mut line = format!("user {} {}", self.name, self.flags().join(" "));
        for password in &self.passwords {
            line.push_str(&format!(" #{password}"));
        }
        let mut line = line.into_bytes();
        line.push(b' ');
        line.extend(self.root.print());
        for other in &self.others {
            line.extend_from_slice(b" (");
            line.extend(other.print());
            line.push(b')');
        }
        line
    }
}
