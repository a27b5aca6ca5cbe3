//! All users of a server, and files of users.
//!
//! **Invariants**
//! - A1: rules are applied to a copy: a user or a file with one wrong rule changes nothing.
//! - A2: the printed rules of a user, applied to a new user, make an equal user.
//! - A3: no password is kept or printed: only its SHA-256.

use crate::DEFAULT_USER;
use crate::catalog::Catalog;
use crate::selector::{RuleError, has_spaces};
use crate::user::User;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All users; one of them is [`DEFAULT_USER`]. A change makes another set, which shares the users
/// that are the same.
#[derive(Clone, Debug)]
pub struct Users {
    users: BTreeMap<String, Arc<User>>,
    next_id: u64,
}

/// Error: a rule of a user is wrong. Nothing is changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("Error in ACL SETUSER modifier '{rule}': {why}")]
    Rule { rule: String, why: RuleError },
    #[error("Unmatched parenthesis in acl selector starting at '{0}'.")]
    Parenthesis(String),
    #[error("Usernames can't contain spaces or null characters")]
    Name,
    /// All wrong lines of a file, each with its number.
    #[error("{0}")]
    File(String),
}

/// Most bytes of the rules of one user: they are kept, and printed as one line.
const RULES_BYTES_MAX: usize = 1 << 20;

/// Whether a user may have this name.
pub fn is_user_name(name: &[u8]) -> bool {
    !name.is_empty() && !has_spaces(name) && std::str::from_utf8(name).is_ok()
}

/// Joins the arguments of a selector, `(~a` `+get)`, to one rule.
///
/// # Errors
/// [`Fault::Parenthesis`] with the argument that opens a selector without end.
pub fn joined_selectors<'a>(
    rules: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<Vec<u8>>, Fault> {
    let mut joined: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<(Vec<u8>, Vec<u8>)> = None;
    for rule in rules {
        match &mut open {
            None if rule.starts_with(b"(") && !rule.ends_with(b")") => {
                open = Some((rule.to_vec(), rule.to_vec()));
            }
            None => joined.push(rule.to_vec()),
            Some((_, selector)) => {
                selector.push(b' ');
                selector.extend_from_slice(rule);
                if rule.ends_with(b")") {
                    joined.extend(open.take().map(|(_, selector)| selector));
                }
            }
        }
    }
    match open {
        None => Ok(joined),
        Some((first, _)) => {
            let first = String::from_utf8_lossy(&first).into_owned();
            Err(Fault::Parenthesis(first))
        }
    }
}

impl Users {
    /// The default user alone: it may do everything, without a password.
    pub fn new(catalog: &Catalog) -> Users {
        let mut default = User::new(DEFAULT_USER, 0, catalog);
        for rule in [&b"on"[..], b"nopass", b"~*", b"&*", b"+@all"] {
            let applied = default.apply(rule, catalog);
            debug_assert!(applied.is_ok(), "a fixed rule is right");
        }
        Users {
            users: BTreeMap::from([(DEFAULT_USER.to_owned(), Arc::new(default))]),
            next_id: 1,
        }
    }

    pub fn get(&self, name: &str) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// The default user, which always exists.
    ///
    /// # Panics
    /// Never: [`remove`](Self::remove) keeps it.
    pub fn default_user(&self) -> &Arc<User> {
        self.get(DEFAULT_USER).expect("the default user exists")
    }

    /// In the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// Creates a user, or changes it by `rules` (A1).
    ///
    /// # Errors
    /// [`Fault`]: nothing is changed.
    pub fn set<'a>(
        &mut self,
        name: &[u8],
        rules: impl IntoIterator<Item = &'a [u8]>,
        catalog: &Catalog,
    ) -> Result<(), Fault> {
        let name = Some(name).filter(|name| is_user_name(name));
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or(Fault::Name)?;
        let mut user = match self.get(name) {
            Some(user) => User::clone(user),
            None => User::new(name, self.next_id, catalog),
        };
        let rules = joined_selectors(rules)?;
        for rule in &rules {
            user.apply(rule, catalog).map_err(|why| Fault::Rule {
                rule: shown(rule),
                why,
            })?;
        }
        if user.print().len() > RULES_BYTES_MAX {
            return Err(Fault::File(format!(
                "the rules of a user have at most {RULES_BYTES_MAX} bytes"
            )));
        }
        self.next_id = self.next_id.max(user.id() + 1);
        self.users.insert(name.to_owned(), Arc::new(user));
        Ok(())
    }

    /// Removes a user; false: there is none of this name, or it is the default user.
    pub fn remove(&mut self, name: &str) -> bool {
        name != DEFAULT_USER && self.users.remove(name).is_some()
    }

    /// The users that the lines of a file describe: `user NAME RULES…`, comments with `#`, blank
    /// lines. Without a line for it, the default user is as in [`new`](Self::new). Users that exist
    /// now keep their ids. `place` names the file in errors.
    ///
    /// # Errors
    /// [`Fault::File`] with every wrong line (A1).
    pub fn load(&self, text: &[u8], place: &str, catalog: &Catalog) -> Result<Users, Fault> {
        let mut loaded = Users::new(catalog);
        loaded.next_id = self.next_id;
        let mut names: Vec<&[u8]> = Vec::new();
        let mut faults = Vec::new();
        for (n, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let mut words = line
                .split(|byte| *byte == b' ' || *byte == b'\t')
                .filter(|word| !word.is_empty());
            let mut fault = |what: String| faults.push(format!("{place}:{}: {what}", n + 1));
            if words.next() != Some(b"user") {
                fault("should start with user keyword followed by the username".to_owned());
                continue;
            }
            let Some(name) = words.next() else {
                fault("should start with user keyword followed by the username".to_owned());
                continue;
            };
            if names.contains(&name) {
                fault(format!("duplicate user '{}'", shown(name)));
                continue;
            }
            names.push(name);
            // A line describes the whole user.
            loaded.take_over(name, self, catalog);
            if let Err(why) = loaded.set(name, words, catalog) {
                fault(match why {
                    Fault::Rule { why, rule } => format!("{why} ('{rule}')"),
                    why => why.to_string(),
                });
            }
        }
        match faults.is_empty() {
            true => Ok(loaded),
            false => Err(Fault::File(faults.join("\n"))),
        }
    }

    /// Makes a user without rights, with the id that it has in `before`.
    fn take_over(&mut self, name: &[u8], before: &Users, catalog: &Catalog) {
        let Ok(name) = std::str::from_utf8(name) else {
            return;
        };
        let id = match before.get(name) {
            Some(known) => known.id(),
            None => self.next_id,
        };
        self.next_id = self.next_id.max(id + 1);
        let user = Arc::new(User::new(name, id, catalog));
        self.users.insert(name.to_owned(), user);
    }

    /// The text of a file with all users.
    pub fn print(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for user in self.iter() {
            text.extend(user.print());
            text.push(b'\n');
        }
        text
    }
}

/// A rule for an error text; a password is not shown.
fn shown(rule: &[u8]) -> String {
    match rule.first() {
        Some(b'>' | b'<') => "(a password)".to_owned(),
        _ => String::from_utf8_lossy(rule).into_owned(),
    }
}
