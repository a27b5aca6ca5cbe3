//! Users, their rights, and the check of a request against them, in the syntax and with the texts
//! of Redis 7.4. No I/O.
//!
//! A [`User`] has passwords and selectors. A selector allows commands, keys, channels and tables.
//! A request is allowed if one selector allows all of it. The caller describes its commands by a
//! [`Catalog`] and each request by [`Request`], so this crate knows no command.
//!
//! [`Logins`] compares passwords and slows addresses whose logins fail. [`basic`] reads the login
//! of an HTTP request.

pub mod basic;
mod catalog;
mod logins;
mod password;
mod selector;
#[cfg(test)]
mod tests;
mod user;
mod users;

pub use catalog::{CATEGORIES, Catalog, Command};
pub use logins::{LoginError, Logins};
pub use password::{Digest, random_password};
pub use selector::{Access, Denied, Request, RuleError, Selector};
pub use user::User;
pub use users::{Fault, Users, is_user_name, joined_selectors};

/// The user of connections that have not named one.
pub const DEFAULT_USER: &str = "default";
