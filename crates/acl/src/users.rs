//! All users of a server, and files of users.
//!
//! **Invariants**
//! - A1: rules are applied to a copy: a user or a file with one wrong rule changes nothing.
//! - A2: the printed rules of a user, applied to a new user, make an equal user.
//! - A3: no password is kept or printed, only its SHA-256.
//! - A5: a user that was removed and made again has another id. This holds on every server that
//!   loads the users printed with their ids, whatever it has loaded before.
//! - A6: the id of a user of a configuration is made from the user's name, so that members with the
//!   same configuration have the same users. No user that is made later has such an id.

use crate::DEFAULT_USER;
use crate::catalog::Catalog;
use crate::selector::{RuleError, has_spaces};
use crate::user::User;
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

/// All users; one of them is [`DEFAULT_USER`]. A change makes another set, which shares the users
/// that are the same.
#[derive(Clone, Debug)]
pub struct Users {
    users: BTreeMap<String, Arc<User>>,
}

/// The error of a wrong rule of a user. Nothing is changed.
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

/// Maximum bytes of the rules of one user: they are kept, and printed as one line.
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
        let mut default = User::new(DEFAULT_USER, DEFAULT_ID, catalog);
        for rule in [&b"on"[..], b"nopass", b"~*", b"&*", b"+@all"] {
            let applied = default.apply(rule, catalog);
            debug_assert!(applied.is_ok(), "a fixed rule is right");
        }
        Users {
            users: BTreeMap::from([(DEFAULT_USER.to_owned(), Arc::new(default))]),
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

    /// All users, in the order of their names.
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
            None => User::new(name, fresh_id(), catalog),
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
        self.users.insert(name.to_owned(), Arc::new(user));
        Ok(())
    }

    /// Removes a user; returns false if none has this name, or if it is the default user.
    pub fn remove(&mut self, name: &str) -> bool {
        name != DEFAULT_USER && self.users.remove(name).is_some()
    }

    /// The users that the lines of a file describe: `user NAME RULES…`, comments with `#`, blank
    /// lines. Without a line for it, the default user is as in [`new`](Self::new). A user has the
    /// id in the comment before its line ([`print_with_ids`](Self::print_with_ids)), else the id
    /// that it has now, if it exists. `place` names the file in errors.
    ///
    /// # Errors
    /// [`Fault::File`] with every wrong line (A1).
    pub fn load(&self, text: &[u8], place: &str, catalog: &Catalog) -> Result<Users, Fault> {
        self.load_with(text, place, catalog, |_| fresh_id())
    }

    /// The users of a configuration, at the start of a server: as [`load`](Self::load), but a user
    /// without a printed id has the id of its name (A6).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn configured(text: &[u8], place: &str, catalog: &Catalog) -> Result<Users, Fault> {
        Users::new(catalog).load_with(text, place, catalog, id_of_name)
    }

    fn load_with(
        &self,
        text: &[u8],
        place: &str,
        catalog: &Catalog,
        new_id: fn(&str) -> u64,
    ) -> Result<Users, Fault> {
        let mut loaded = Users::new(catalog);
        let mut id = None;
        let mut names: Vec<&[u8]> = Vec::new();
        let mut faults = Vec::new();
        for (n, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                id = parse_id(line).or(id);
                continue;
            }
            let id = id.take();
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
                fault(format!("Duplicate user '{}' found", shown(name)));
                continue;
            }
            names.push(name);
            // A line describes the user completely: the user's rules begin anew.
            if let Ok(name) = std::str::from_utf8(name) {
                let known = || self.get(name).map(|known| known.id());
                let id = if name == DEFAULT_USER {
                    DEFAULT_ID
                } else {
                    id.or_else(known).unwrap_or_else(|| new_id(name))
                };
                let user = Arc::new(User::new(name, id, catalog));
                loaded.users.insert(name.to_owned(), user);
            }
            if let Err(why) = loaded.set(name, words, catalog) {
                fault(match why {
                    Fault::Rule { why, rule } => format!("{why} ('{rule}')"),
                    why => why.to_string(),
                });
            }
        }
        if faults.is_empty() {
            Ok(loaded)
        } else {
            Err(Fault::File(faults.join("\n")))
        }
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

    /// As [`print`](Self::print), with the id of each user in a comment before its line, which
    /// older programs skip. Loaded elsewhere, it makes users that are the same for their
    /// connections.
    pub fn print_with_ids(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for user in self.iter() {
            if user.id() != DEFAULT_ID {
                text.extend_from_slice(ID_COMMENT);
                text.extend_from_slice(format!("{:x}\n", user.id()).as_bytes());
            }
            text.extend(user.print());
            text.push(b'\n');
        }
        text
    }
}

/// Id of the default user, which is never removed.
const DEFAULT_ID: u64 = 0;
/// The beginning of a comment with the hexadecimal digits of a user's id.
const ID_COMMENT: &[u8] = b"#:";
/// Bits of an id: enough that two users of one name never have the same, and few enough for a text.
const ID_BITS: u32 = 40;

/// A random id for a new user. It differs from the ids of all users that had this name, on any
/// server of its cluster.
fn fresh_id() -> u64 {
    // Each `RandomState` has random keys of its own.
    let random = RandomState::new().hash_one(0u8);
    (random >> (u64::BITS - ID_BITS)).max(1)
}

/// The id of a configured user (A6): the FNV-1a hash of its name, above all random ids.
fn id_of_name(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash | 1 << (u64::BITS - 1)
}

fn parse_id(comment: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(comment.strip_prefix(ID_COMMENT)?).ok()?;
    u64::from_str_radix(digits, 16)
        .ok()
        .filter(|id| *id != DEFAULT_ID)
}

/// A rule for an error text; a password is not shown.
fn shown(rule: &[u8]) -> String {
    match rule.first() {
        Some(b'>' | b'<') => "(a password)".to_owned(),
        _ => String::from_utf8_lossy(rule).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A6: the first change of a cluster's users closed all connections on the other members.
    #[test]
    fn members_with_one_configuration_have_the_same_users() {
        let catalog = Catalog::new([]);
        let text = b"user ann on >secret\nuser bob on >secret";
        let configured = || Users::configured(text, "users", &catalog).expect("right");
        let (mut here, there) = (configured(), configured());
        let rules = [&b"on"[..]];
        here.set(b"eve", rules, &catalog).expect("right");
        let pushed = here.print_with_ids();
        let there = there.load(&pushed, "pushed", &catalog).expect("right");
        let id = |users: &Users, name| users.get(name).map(|user| user.id());
        let configured = configured();
        for name in ["ann", "bob"] {
            assert_eq!(id(&there, name), id(&configured, name), "{name}");
        }
        assert_ne!(id(&there, "ann"), id(&there, "bob"));
        // A5: one that is made again is another.
        assert!(here.remove("ann"));
        here.set(b"ann", rules, &catalog).expect("right");
        assert_ne!(id(&here, "ann"), id(&configured, "ann"));
    }
}
