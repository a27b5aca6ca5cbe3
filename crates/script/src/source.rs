//! The text of a script, the flags of its first line, and the cache of sources by their SHA-1.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

/// Maximum bytes of the text of a script or of a library: some 10 ms for the parser, in which a
/// thread can do nothing else.
pub const TEXT_BYTES_MAX: usize = 512 << 10;
/// Number of hex digits of a script's name.
pub const SHA1_HEX_BYTES: usize = 40;

/// The SHA-1 of some bytes as lower-case hex digits: the name of a script.
pub fn sha1_hex(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, bytes);
    let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
    let bytes = digest.as_ref().iter();
    bytes
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

/// The flags of a script's first line, `#!lua flags=…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Whether the script has such a line: without one, each of its commands is checked alone.
    pub declared: bool,
    pub no_writes: bool,
    pub allow_oom: bool,
    pub allow_stale: bool,
    pub no_cluster: bool,
    pub allow_cross_slot_keys: bool,
}

impl Flags {
    /// Sets the flag of this name; returns whether there is one.
    pub(crate) fn set(&mut self, name: &str) -> bool {
        match name {
            "no-writes" => self.no_writes = true,
            "allow-oom" => self.allow_oom = true,
            "allow-stale" => self.allow_stale = true,
            "no-cluster" => self.no_cluster = true,
            "allow-cross-slot-keys" => self.allow_cross_slot_keys = true,
            _ => return false,
        }
        true
    }

    /// The flags in the first line of a script. None are set if the line is wrong.
    pub fn of(text: &[u8]) -> Flags {
        first_line(text).map(|(_, flags)| flags).unwrap_or_default()
    }

    /// The names of the flags, in the order of Redis.
    pub fn names(self) -> Vec<&'static str> {
        let all = [
            (self.no_writes, "no-writes"),
            (self.allow_oom, "allow-oom"),
            (self.allow_stale, "allow-stale"),
            (self.no_cluster, "no-cluster"),
            (self.allow_cross_slot_keys, "allow-cross-slot-keys"),
        ];
        let set = all.into_iter().filter(|(is_set, _)| *is_set);
        set.map(|(_, name)| name).collect()
    }
}

/// A script.
#[derive(Debug)]
pub struct Script {
    /// The SHA-1 of its text, in lower-case hex digits.
    pub sha1: String,
    /// The whole text.
    pub text: Box<[u8]>,
    /// Length of the `#!` line without its line end: Lua reads the text behind it.
    pub line_bytes: usize,
    pub flags: Flags,
}

impl Script {
    /// # Errors
    /// The text of the error reply, if the first line is wrong, or the text too long.
    pub fn new(text: &[u8]) -> Result<Script, String> {
        check_length(text)?;
        let (line_bytes, flags) = first_line(text)?;
        Ok(Script {
            sha1: sha1_hex(text),
            text: text.into(),
            line_bytes,
            flags,
        })
    }

    /// The part that Lua reads. The line end of the `#!` line belongs to it, so that Lua's numbers
    /// of lines are those of the whole text.
    pub fn code(&self) -> &[u8] {
        self.text.get(self.line_bytes..).unwrap_or_default()
    }
}

/// # Errors
/// The text of the error reply, if the text is longer than [`TEXT_BYTES_MAX`].
pub(crate) fn check_length(text: &[u8]) -> Result<(), String> {
    if text.len() > TEXT_BYTES_MAX {
        Err(format!(
            "ERR the text has {} bytes: a script or a library may have {TEXT_BYTES_MAX}",
            text.len()
        ))
    } else {
        Ok(())
    }
}

/// The length of the `#!` line and its flags.
fn first_line(text: &[u8]) -> Result<(usize, Flags), String> {
    let mut flags = Flags::default();
    if !text.starts_with(b"#!") {
        return Ok((0, flags));
    }
    let Some(bytes) = text.iter().position(|byte| *byte == b'\n') else {
        return Err("ERR Invalid script shebang".to_owned());
    };
    let line = String::from_utf8_lossy(text.get(..bytes).unwrap_or_default()).into_owned();
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let engine = words.next().unwrap_or_default();
    if engine != "#!lua" {
        return Err(format!("ERR Unexpected engine in script shebang: {engine}"));
    }
    flags.declared = true;
    for word in words {
        let Some(names) = word.strip_prefix("flags=") else {
            return Err(format!("ERR Unknown lua shebang option: {word}"));
        };
        for name in names.split(',').filter(|name| !name.is_empty()) {
            if !flags.set(name) {
                return Err(format!("ERR Unexpected flag in script shebang: {name}"));
            }
        }
    }
    Ok((bytes, flags))
}

/// The scripts that `SCRIPT LOAD` or `EVAL` has shown to this server. Their bytes are limited: the
/// scripts that were used longest ago are forgotten, and clients that name them get the error
/// `NOSCRIPT`.
#[derive(Debug)]
pub struct Cache {
    scripts: Mutex<Scripts>,
    bytes_max: usize,
}

/// Memory of a script beside its text: its entries in three tables.
const ENTRY_BYTES: usize = 300;

/// A script, compared and hashed by its text.
#[derive(Debug)]
struct ByText(Arc<Script>);

impl Borrow<[u8]> for ByText {
    fn borrow(&self) -> &[u8] {
        &self.0.text
    }
}

impl PartialEq for ByText {
    fn eq(&self, other: &ByText) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for ByText {}

impl Hash for ByText {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.text.hash(hasher);
    }
}

#[derive(Debug, Default)]
struct Scripts {
    by_sha1: HashMap<String, (Arc<Script>, u64)>,
    by_text: HashSet<ByText>,
    /// The scripts by their last uses.
    by_use: BTreeMap<u64, Arc<Script>>,
    /// Bytes of all texts, each with [`ENTRY_BYTES`] more.
    bytes: usize,
    /// Number of uses so far.
    uses: u64,
}

impl Scripts {
    /// A script by its name in lower case; marks it as the last one used.
    fn used(&mut self, name: &str) -> Option<Arc<Script>> {
        let (script, used) = self.by_sha1.get_mut(name)?;
        if *used != self.uses {
            self.uses += 1;
            self.by_use.remove(used);
            self.by_use.insert(self.uses, Arc::clone(script));
            *used = self.uses;
        }
        Some(Arc::clone(script))
    }

    /// Removes the entry of a script's text, and its share of the bytes.
    fn forget(&mut self, script: &Script) {
        self.by_text.remove(&*script.text);
        self.bytes -= ENTRY_BYTES + script.text.len();
    }
}

impl Cache {
    pub fn new(bytes_max: usize) -> Cache {
        Cache {
            scripts: Mutex::default(),
            bytes_max,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Scripts> {
        self.scripts
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// A script by its name, in hex digits of any case.
    pub fn get(&self, sha1: &[u8]) -> Option<Arc<Script>> {
        if sha1.len() != SHA1_HEX_BYTES {
            return None;
        }
        let name = String::from_utf8_lossy(sha1).to_ascii_lowercase();
        self.lock().used(&name)
    }

    /// A script by its text: that costs less than to compute its name.
    pub fn get_text(&self, text: &[u8]) -> Option<Arc<Script>> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let mut scripts = self.lock();
        if let Some((_, last)) = scripts.by_use.last_key_value()
            && *last.text == *text
        {
            return Some(Arc::clone(last));
        }
        let script = Arc::clone(&scripts.by_text.get(text)?.0);
        scripts.used(&script.sha1)
    }

    pub fn put(&self, script: Arc<Script>) {
        let mut scripts = self.lock();
        if let Some((old, used)) = scripts.by_sha1.remove(&script.sha1) {
            scripts.by_use.remove(&used);
            scripts.forget(&old);
        }
        scripts.uses += 1;
        let uses = scripts.uses;
        scripts.bytes += ENTRY_BYTES + script.text.len();
        scripts.by_use.insert(uses, Arc::clone(&script));
        scripts.by_text.insert(ByText(Arc::clone(&script)));
        let name = script.sha1.clone();
        scripts.by_sha1.insert(name, (script, uses));
        while scripts.bytes > self.bytes_max && scripts.by_sha1.len() > 1 {
            let Some((_, oldest)) = scripts.by_use.pop_first() else {
                break;
            };
            scripts.by_sha1.remove(&oldest.sha1);
            scripts.forget(&oldest);
        }
    }

    pub fn clear(&self) {
        let mut scripts = self.lock();
        scripts.by_sha1.clear();
        scripts.by_text.clear();
        scripts.by_use.clear();
        scripts.bytes = 0;
    }

    /// Number of scripts, and their bytes.
    pub fn size(&self) -> (usize, usize) {
        let scripts = self.lock();
        (scripts.by_sha1.len(), scripts.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_has_flags() {
        let script = Script::new(b"#!lua flags=no-writes,allow-oom\nreturn 1").unwrap();
        assert!(script.flags.no_writes && script.flags.allow_oom && script.flags.declared);
        assert_eq!(script.code(), b"\nreturn 1");
        let plain = Script::new(b"return 1").unwrap();
        assert_eq!(
            (plain.code(), plain.flags),
            (&b"return 1"[..], Flags::default())
        );
        for (text, why) in [
            ("#!lua", "ERR Invalid script shebang"),
            ("#!js\n", "ERR Unexpected engine in script shebang: #!js"),
            ("#!lua x=1\n", "ERR Unknown lua shebang option: x=1"),
            (
                "#!lua flags=x\n",
                "ERR Unexpected flag in script shebang: x",
            ),
        ] {
            assert_eq!(Script::new(text.as_bytes()).unwrap_err(), why);
        }
        let most = vec![b' '; TEXT_BYTES_MAX];
        assert!(Script::new(&most).is_ok());
        let why = Script::new(&[&most[..], b" "].concat()).unwrap_err();
        assert!(why.starts_with("ERR the text has 524289 bytes"), "{why}");
    }

    #[test]
    fn the_cache_has_a_limit_and_forgets_the_script_used_longest_ago() {
        let cache = Cache::new(2 * ENTRY_BYTES + 20);
        let names: Vec<String> = ["return 111", "return 222", "return 333"]
            .iter()
            .enumerate()
            .map(|(n, text)| {
                let script = Arc::new(Script::new(text.as_bytes()).unwrap());
                cache.put(Arc::clone(&script));
                if n == 1 {
                    assert!(
                        cache
                            .get(sha1_hex(b"return 111").to_uppercase().as_bytes())
                            .is_some()
                    );
                }
                script.sha1.clone()
            })
            .collect();
        let known: Vec<bool> = names
            .iter()
            .map(|name| cache.get(name.as_bytes()).is_some())
            .collect();
        assert_eq!(known, [true, false, true]);
        assert_eq!(cache.size(), (2, 2 * ENTRY_BYTES + 20));
        cache.clear();
        assert_eq!(cache.size(), (0, 0));
        assert!(cache.get_text(b"return 333").is_none());
    }

    #[test]
    fn a_text_has_its_script_until_the_script_is_forgotten() {
        let cache = Cache::new(2 * ENTRY_BYTES + 20);
        let put = |text: &[u8]| cache.put(Arc::new(Script::new(text).unwrap()));
        let has = |text: &[u8]| {
            let script = cache.get_text(text);
            script
                .inspect(|script| assert_eq!(*script.text, *text))
                .is_some()
        };
        put(b"return 111");
        put(b"return 222");
        put(b"return 222");
        assert_eq!(cache.size(), (2, 2 * ENTRY_BYTES + 20));
        assert!(has(b"return 111") && !has(b"return 11") && has(b"return 111"));
        put(b"return 333"); // 222 was used longest ago
        assert!(has(b"return 111") && !has(b"return 222") && has(b"return 333"));
        assert_eq!(cache.size(), (2, 2 * ENTRY_BYTES + 20));
    }
}
