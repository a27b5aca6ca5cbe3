//! The master key: its source, its text, its id.
//!
//! **Invariants**
//! - M1: a key file that other users may read is refused. A key file of root may be readable by its
//!   group, because Kubernetes and systemd give keys that way to a process that is not root.
//! - M2: a key is in no error, log or debug text: these have its id, from which the key cannot be
//!   computed.

use crate::command;
use crate::error::Error;
use crate::guarded::Guarded;
use crate::text::read_text;
use duramen_base::open::open_to_read;
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// Bytes of its text: hexadecimal digits and the end of the line.
pub const KEY_TEXT_BYTES: usize = 2 * KEY_BYTES + 1;
/// Bits of a mode that give other users rights.
const OTHERS: u32 = 0o077;
/// The bit with which the group of the file may read it.
const GROUP_READS: u32 = 0o040;

/// The source of a master key.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// A file with the key's text.
    File(PathBuf),
    /// A command for `sh` whose output is the key's text.
    Command(String),
    /// A key that was read before.
    Held(Arc<MasterKey>),
}

impl KeySource {
    /// Reads the key.
    ///
    /// # Errors
    /// [`Error`]: each text names the remedy.
    pub fn read(&self) -> Result<Arc<MasterKey>, Error> {
        let (text, place) = match self {
            KeySource::Held(key) => return Ok(key.clone()),
            KeySource::File(path) => (read_file(path)?, format!("`{}`", path.display())),
            KeySource::Command(command) => (
                command::output(command)?,
                "the output of encryption-key-command".to_owned(),
            ),
        };
        match MasterKey::parse(&text)? {
            Some(key) => Ok(Arc::new(key)),
            None => Err(Error::Form { place }),
        }
    }

    /// This source with the key itself in it, so that the key is not read again.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn held(&self) -> Result<KeySource, Error> {
        Ok(KeySource::Held(self.read()?))
    }
}

fn read_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, Error> {
    let failed = |source| Error::File {
        path: path.display().to_string(),
        source,
    };
    let file = open_to_read(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o777;
    if !is_closed(mode, metadata.uid()) {
        let path = path.display().to_string();
        return Err(Error::Open { path, mode }); // M1: others may read it
    }
    read_text(file).map_err(failed)
}

/// Whether only those users may read a key file that M1 allows. `owner`: the id of the file's
/// owner.
fn is_closed(mode: u32, owner: u32) -> bool {
    let open = if owner == 0 {
        OTHERS & !GROUP_READS
    } else {
        OTHERS
    };
    mode & open == 0
}

/// The id of a master key: it tells keys apart, and does not show them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// The key that encrypts the keys of stores.
pub struct MasterKey {
    bytes: Guarded<[u8; KEY_BYTES]>,
}

impl MasterKey {
    /// A new random key.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn random() -> Result<MasterKey, Error> {
        let bytes = random_bytes()?;
        let bytes = Guarded::new(|| *bytes)?;
        Ok(MasterKey { bytes })
    }

    /// The key in a text; `None`: the text has another form.
    fn parse(text: &[u8]) -> Result<Option<MasterKey>, Error> {
        let digits = text.trim_ascii();
        if digits.len() != 2 * KEY_BYTES {
            return Ok(None);
        }
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        let (pairs, _) = digits.as_chunks::<2>();
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            match pair.map(|digit| char::from(digit).to_digit(16)) {
                [Some(high), Some(low)] => *byte = (high << 4 | low) as u8,
                _ => return Ok(None),
            }
        }
        Ok(Some(MasterKey {
            bytes: Guarded::new(|| *bytes)?,
        }))
    }

    /// The text for a key file, with the end of its line.
    pub fn text(&self) -> Zeroizing<Vec<u8>> {
        let mut text = Zeroizing::new(Vec::with_capacity(KEY_TEXT_BYTES));
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
        for byte in self.bytes.iter() {
            text.extend([digit(byte >> 4), digit(byte & 15)]);
        }
        text.push(b'\n');
        text
    }

    pub fn id(&self) -> KeyId {
        let mut id = [0; 8];
        derive(&self.bytes, &[b"id"], &mut id);
        KeyId(id)
    }

    /// The key under which stores' keys are encrypted.
    pub(crate) fn wrapping_key(&self) -> Zeroizing<[u8; KEY_BYTES]> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        derive(&self.bytes, &[b"wrap"], &mut *key);
        key
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.id()) // M2: the id, never the key
    }
}

pub(crate) fn random_bytes() -> Result<Zeroizing<[u8; KEY_BYTES]>, Error> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    let filled = SystemRandom::new().fill(&mut *bytes);
    filled.map_err(Error::random)?;
    Ok(bytes)
}

/// Length of derived bytes, for ring.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Fills `into` with bytes that follow from a key and a purpose: HKDF-SHA-256 (RFC 5869).
pub(crate) fn derive(key: &[u8; KEY_BYTES], purpose: &[&[u8]], into: &mut [u8]) {
    let pseudorandom = Salt::new(HKDF_SHA256, b"duramen encryption at rest").extract(key);
    let filled = pseudorandom
        .expand(purpose, Length(into.len()))
        .and_then(|expanded| expanded.fill(into));
    if filled.is_err() {
        into.zeroize();
        unreachable!("HKDF gives up to 8,160 bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(text: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file.as_file()
            .set_permissions(std::fs::Permissions::from_mode(mode))
            .unwrap();
        file
    }

    fn read(text: &[u8], mode: u32) -> Result<KeyId, String> {
        let file = file(text, mode);
        let read = KeySource::File(file.path().to_owned()).read();
        read.map(|key| key.id()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_file_is_a_line_of_hexadecimal_digits() {
        let key = MasterKey::random().unwrap();
        let text = key.text();
        assert_eq!(text.len(), KEY_TEXT_BYTES);
        for mode in [0o600, 0o400] {
            assert_eq!(read(&text, mode), Ok(key.id()));
        }
        assert_eq!(read(text.trim_ascii(), 0o600), Ok(key.id()));
        assert_eq!(read(&text.to_ascii_uppercase(), 0o600), Ok(key.id()));
        let digits = text.trim_ascii();
        let long = [digits, b"0"].concat();
        for wrong in [&b""[..], b"\n", &digits[1..], &long, &[b'g'; 64], &[0; 500]] {
            let refused = read(wrong, 0o600).unwrap_err();
            assert!(
                refused.contains("one line of 64 hexadecimal digits"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let text = MasterKey::random().unwrap().text();
        for mode in [0o660, 0o604, 0o620, 0o644] {
            let refused = read(&text, mode).unwrap_err();
            assert!(refused.contains("chmod 600"), "{refused}"); // M1
        }
        // A key from Kubernetes: of root, and readable by the group of the server.
        assert!(is_closed(0o440, 0) && is_closed(0o640, 0) && is_closed(0o400, 0));
        assert!(!is_closed(0o444, 0) && !is_closed(0o460, 0) && !is_closed(0o450, 0));
        assert!(!is_closed(0o440, 1000) && is_closed(0o400, 1000));
        let none = KeySource::File("/nowhere/key".into()).read().unwrap_err();
        assert!(none.to_string().contains("`/nowhere/key`"), "{none}");
    }

    #[test]
    fn a_key_is_in_no_text() {
        let key = Arc::new(MasterKey::random().unwrap());
        let text = key.text();
        let digits = std::str::from_utf8(text.trim_ascii()).unwrap();
        let shown = format!("{key:?} {:?}", KeySource::Held(key.clone()));
        for part in (0..64).step_by(8) {
            assert!(!shown.contains(&digits[part..part + 8]), "{shown}"); // M2
        }
    }

    #[test]
    fn ids_tell_keys_apart() {
        let zero = MasterKey::parse(&[b'0'; 64]).unwrap().unwrap();
        let one = MasterKey::parse(&[b'1'; 64]).unwrap().unwrap();
        assert_ne!(zero.id(), one.id());
        // Stores name their keys by these ids: they never change.
        assert_eq!(zero.id().to_string(), "9694a29e588035d6");
    }
}
