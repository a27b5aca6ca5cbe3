//! `duramen.toml`: reads it, and changes it for `CONFIG REWRITE`.
//!
//! **Invariants**
//! - I1: a rewrite replaces values in place and adds lines at the end; every other byte stays
//!   unchanged.
//! - I2: the old file stays complete and in its place until the new one is on disk: no error loses
//!   it.
//! - I3: a rewrite never writes a secret, so a secret in the file stays.
//!
//! **Concurrency.** One rewrite at a time; `CONFIG SET` waits for it.
#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::{Kind, SETTINGS, ServerConfig, Setting};
use crate::error::ServerError;
use crate::finish::Finish;
use crate::seldom;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use toml::de::{DeTable, DeValue};

/// Most bytes of a file with settings or with a token. Without a limit, reading a device such as
/// `/dev/zero` would never end.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a file of users: 100,000 users with a few rules each. `ACL SAVE` writes no more,
/// so that the next start can read it.
pub const USERS_BYTES_MAX: u64 = 16 << 20;

/// Reads a file with settings.
///
/// # Errors
/// It cannot be read, has more than 1 MiB, or is no UTF-8 text.
pub fn load(path: &Path) -> io::Result<String> {
    let bytes = load_bytes(path)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

pub(crate) fn load_bytes(path: &Path) -> io::Result<Vec<u8>> {
    bytes_of(&File::open(path)?, FILE_BYTES_MAX)
}

/// All of an open file.
///
/// # Errors
/// It cannot be read, or has more than `bytes_max`.
pub fn bytes_of(file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let text = format!("it has more than {} MiB", bytes_max >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// Heading of the lines that a rewrite added.
const ADDED: &str = "# Added by CONFIG REWRITE";

/// One key of a file.
#[derive(Debug)]
pub struct Entry {
    pub key: String,
    /// The value as the text of a flag; `None` for a table, a float or a date.
    pub text: Option<String>,
    /// Whether it is a section, or a table of keys.
    pub is_table: bool,
    /// The line, counted from 1.
    pub line: usize,
    /// Byte range of the value, quotes included.
    value: Range<usize>,
}

/// Error: the file is not TOML.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: not TOML: {message}")]
pub struct NotToml {
    /// The line, counted from 1.
    pub line: usize,
    pub message: String,
}

/// Reads the keys of a file, in its order; the caller decides which of them are settings.
///
/// # Errors
/// [`NotToml`] gives the place: correct the file.
pub fn read(text: &str) -> Result<Vec<Entry>, NotToml> {
    let line = |at: usize| text.get(..at).unwrap_or_default().matches('\n').count() + 1;
    let table = DeTable::parse(text).map_err(|error| NotToml {
        line: error.span().map_or(1, |span| line(span.start)),
        message: error.message().to_owned(),
    })?;
    let entries = table.get_ref().iter().map(|(key, value)| Entry {
        key: key.get_ref().to_string(),
        text: plain(value.get_ref()),
        is_table: value.get_ref().is_table(),
        line: line(key.span().start),
        value: value.span(),
    });
    let mut entries: Vec<Entry> = entries.collect();
    entries.sort_by_key(|entry| entry.value.start);
    Ok(entries)
}

fn plain(value: &DeValue<'_>) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    if let Some(number) = value.as_integer() {
        return i64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .map(|number| number.to_string());
    }
    if let Some(on) = value.as_bool() {
        return Some(if on { "yes" } else { "no" }.to_owned());
    }
    let list: Option<Vec<&str>> = value
        .as_array()?
        .iter()
        .map(|value| value.get_ref().as_str())
        .collect();
    Some(list?.join(","))
}

/// A setting's value (as [`Setting::show`] returns it) in the syntax of the file.
pub fn written(setting: &Setting, value: String) -> String {
    match setting.kind {
        Kind::Number { .. } => value,
        Kind::Flag => (value == "yes").to_string(),
        _ => toml::Value::String(value).to_string(),
    }
}

/// The requested rewrites. However many are requested, at most one runs and one waits, because the
/// disk may hang.
#[derive(Default)]
struct Rewrites {
    is_running: bool,
    next: Option<Arc<Finish>>,
}

/// The file with which a server was started.
pub struct ConfigFile {
    path: PathBuf,
    /// Names of the settings that `CONFIG SET` has changed since the start.
    changed: Mutex<BTreeSet<&'static str>>,
    rewrites: Mutex<Rewrites>,
    /// Settings and values that rewrites have put into the file.
    rewritten: Mutex<BTreeMap<&'static str, String>>,
}

impl ConfigFile {
    /// `path` may be relative to the current working directory.
    pub fn new(path: &Path) -> ConfigFile {
        ConfigFile {
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            changed: Mutex::default(),
            rewrites: Mutex::default(),
            rewritten: Mutex::default(),
        }
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Remembers a setting for the next rewrite.
    pub fn note(&self, setting: &Setting) {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        changed.insert(setting.name);
    }

    /// Settings and values that were put into the file since the last call: when the file is read
    /// again, these values are no changes.
    pub fn take_rewritten(&self) -> BTreeMap<&'static str, String> {
        let mut rewritten = self
            .rewritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut rewritten)
    }

    fn rewrites(&self) -> MutexGuard<'_, Rewrites> {
        self.rewrites.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a rewrite that reads the settings after this call. If it returns true, the caller
    /// must start a thread that calls [`next_rewrite`](Self::next_rewrite) until that returns
    /// `None`, or do so itself.
    pub fn request_rewrite(&self) -> (Arc<Finish>, bool) {
        let mut rewrites = self.rewrites();
        let next = Arc::clone(rewrites.next.get_or_insert_default());
        (next, !std::mem::replace(&mut rewrites.is_running, true))
    }

    /// The rewrite to be carried out now; `None` if there is none, and the thread ends.
    pub fn next_rewrite(&self) -> Option<Arc<Finish>> {
        let mut rewrites = self.rewrites();
        let next = rewrites.next.take();
        rewrites.is_running = next.is_some();
        next
    }

    /// Writes the settings that `CONFIG SET` changed into the file, where the file differs.
    /// `running` returns the current settings. Blocks until the file is on disk; one thread at a
    /// time.
    ///
    /// # Errors
    /// [`ServerError::File`] or [`ServerError::Config`]: the file is unchanged, or new and
    /// complete. Remove the cause that the text names and try again.
    pub fn rewrite(&self, running: impl FnOnce() -> Arc<ServerConfig>) -> Result<(), ServerError> {
        // A link stays a link: its target is rewritten.
        let path = std::fs::canonicalize(&self.path)
            .map_err(|source| failed("find", &self.path, source))?;
        let metadata = std::fs::metadata(&path).map_err(|e| failed("look at", &path, e))?;
        if !metadata.is_file() {
            // Reading a pipe could block the thread for good.
            let source = io::Error::other("it is not a regular file");
            return Err(failed("rewrite", &path, source));
        }
        let text = load(&path).map_err(|e| failed("read", &path, e))?;
        // A setting is noted after it has its value. The lock is not held while the disk is waited
        // for: every CONFIG SET takes it.
        let changed = {
            let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
            changed.clone()
        };
        let running = running();
        let edited = edit(&text, &running, &changed)
            .map_err(|what| ServerError::Config(format!("{}: {what}", path.display())))?;
        if edited != text {
            replace(&path, &edited)?;
        }
        let is_written = |setting: &&Setting| changed.contains(setting.name) && !setting.secret; // I3
        let written = SETTINGS.iter().filter(is_written);
        let mut rewritten = self
            .rewritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        rewritten.extend(written.map(|setting| (setting.name, setting.show_plain(&running))));
        seldom!(info, path = %path.display(), "CONFIG REWRITE: the configuration file is up to date");
        Ok(())
    }
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> ServerError {
    ServerError::File {
        doing,
        path: path.to_owned(),
        source,
    }
}

/// The settings that the file alone defines.
fn settings(entries: &[Entry]) -> Result<ServerConfig, String> {
    let mut config = ServerConfig::default();
    for Entry {
        key, text, line, ..
    } in entries
    {
        let (Some(setting), Some(text)) = (Setting::of_key(key), text) else {
            return Err(format!(
                "line {line}: `{key}` is not a correct setting; see `duramen config check`"
            ));
        };
        setting
            .apply(&mut config, text)
            .map_err(|error| format!("line {line}: {error}"))?;
    }
    Ok(config)
}

/// The text of the file with the values that the `changed` settings have in `running`.
fn edit(
    text: &str,
    running: &ServerConfig,
    changed: &BTreeSet<&'static str>,
) -> Result<String, String> {
    let entries = read(text).map_err(|error| error.to_string())?;
    let mut wanted = settings(&entries)?;
    let mut replaced: Vec<(Range<usize>, String)> = Vec::new();
    let mut added = Vec::new();
    for setting in SETTINGS.iter().filter(|s| changed.contains(s.name)) {
        let value = (setting.get)(running);
        if (setting.get)(&wanted) == value {
            continue;
        }
        if setting.secret {
            seldom!(
                warn,
                "CONFIG REWRITE: `{}` is a secret and not written: change it in the file by hand",
                setting.name
            );
            continue;
        }
        (setting.set)(&mut wanted, value);
        let value = written(setting, setting.show(running));
        match entries
            .iter()
            .find(|entry| setting.names().any(|name| name == entry.key))
        {
            Some(entry) => replaced.push((entry.value.clone(), value)),
            None => added.push(format!("{} = {value}", setting.name)),
        }
    }
    let mut edited = text.to_owned();
    // Replace from the end, so that the positions before stay valid.
    replaced.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    for (span, value) in replaced {
        edited.replace_range(span, &value);
    }
    add(&mut edited, &added);
    let again = read(&edited).map_err(|error| error.to_string())?;
    if settings(&again)? != wanted {
        return Err("its form is one that cannot be rewritten; change it by hand".to_owned());
    }
    Ok(edited)
}

fn add(text: &mut String, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push_str(end);
    }
    if !text.contains(ADDED) {
        if !text.is_empty() {
            text.push_str(end);
        }
        text.push_str(ADDED);
        text.push_str(end);
    }
    for line in lines {
        text.push_str(line);
        text.push_str(end);
    }
}

/// Replaces the file by one with `text` and the same owner and permissions (I2).
fn replace(path: &Path, text: &str) -> Result<(), ServerError> {
    let temporary = beside(path);
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(|source| failed("write a new file beside", path, source))?;
    let done = fill(file, path, text)
        .map_err(|source| failed("write a new file beside", path, source))
        .and_then(|()| {
            std::fs::rename(&temporary, path).map_err(|source| failed("replace", path, source))
        });
    if done.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
        return done;
    }
    sync_folder_of(path)
}

/// A name for a new file in the folder of `path`.
fn beside(path: &Path) -> PathBuf {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    // A unique name: a file that a killed server left behind must not be in the way.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.as_nanos());
    name.push(format!(".{}-{nanos}.tmp", std::process::id()));
    folder.join(name)
}

fn sync_folder_of(path: &Path) -> Result<(), ServerError> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))
        .and_then(|folder| folder.sync_all())
        .map_err(|source| failed("sync the folder of the rewritten", path, source))
}

/// Writes a file that only this user may read, completely or not at all: the old one stays until
/// the new one is on disk. A link stays a link.
pub fn write_private(path: &Path, text: &[u8]) -> Result<(), ServerError> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let temporary = beside(&path);
    let done = duramen_base::private::make_new_file(&temporary)
        .and_then(|mut file| {
            file.write_all(text)?;
            file.sync_all()
        })
        .map_err(|source| failed("write a new file beside", &path, source))
        .and_then(|()| {
            std::fs::rename(&temporary, &path).map_err(|source| failed("replace", &path, source))
        });
    if done.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
        return done;
    }
    sync_folder_of(&path)
}

fn fill(mut file: File, like: &Path, text: &str) -> io::Result<()> {
    let old = std::fs::metadata(like)?;
    let new = file.metadata()?;
    file.write_all(text.as_bytes())?;
    if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
        std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
    }
    file.set_permissions(old.permissions())?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
