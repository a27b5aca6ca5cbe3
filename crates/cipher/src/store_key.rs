//! The key of one store: random, stored with the store under a master key.
//!
//! **Invariants**
//! - K1: the store key is encrypted by AES-256-GCM, under a nonce that is random and used once. A
//!   box that was changed, that belongs to another store (the context), or that has another master
//!   key does not open.
//! - K2: each file has keys of its own, derived from the store key and the file's name. A new store
//!   and a new copy have a new store key.

use crate::error::Error;
use crate::guarded::Guarded;
use crate::master::{KEY_BYTES, KeyId, MasterKey, derive, random_bytes};
use crate::sectors::{KEYS_BYTES, SectorCipher};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = NONCE_LEN;
/// Bytes of a box beside the secrets in it: the store key and a tag.
pub const OVERHEAD_BYTES: usize = KEY_BYTES + 16;

/// A store key and other secrets, encrypted (K1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapped {
    /// The master key.
    pub key: KeyId,
    pub nonce: [u8; NONCE_BYTES],
    /// [`OVERHEAD_BYTES`] more than the secrets.
    pub bytes: Vec<u8>,
}

/// The content of a box: the store key, and the secrets beside it.
pub type Opened = (StoreKey, Zeroizing<Vec<u8>>);

/// The key of one store.
pub struct StoreKey(Guarded<[u8; KEY_BYTES]>);

impl StoreKey {
    /// A new random key.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn random() -> Result<StoreKey, Error> {
        let bytes = random_bytes()?;
        Guarded::new(|| *bytes).map(StoreKey)
    }

    /// Encrypts this key and the secrets.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn wrap(&self, by: &MasterKey, secrets: &[u8], context: &[u8]) -> Result<Wrapped, Error> {
        let mut nonce = [0; NONCE_BYTES];
        SystemRandom::new()
            .fill(&mut nonce)
            .map_err(Error::random)?;
        let mut bytes = Vec::with_capacity(OVERHEAD_BYTES + secrets.len());
        bytes.extend(*self.0);
        bytes.extend(secrets);
        let sealed = gcm(by).seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(context),
            &mut bytes,
        );
        sealed.map_err(Error::random)?;
        Ok(Wrapped {
            key: by.id(),
            nonce,
            bytes,
        })
    }

    /// The key and the secrets in a box; `None`: it does not open (K1).
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn unwrap(
        wrapped: &Wrapped,
        by: &MasterKey,
        context: &[u8],
    ) -> Result<Option<Opened>, Error> {
        let mut bytes = Zeroizing::new(wrapped.bytes.clone());
        let nonce = Nonce::assume_unique_for_key(wrapped.nonce);
        let opened = gcm(by).open_in_place(nonce, Aad::from(context), &mut bytes);
        let Some((key, secrets)) = opened
            .ok()
            .and_then(|opened| opened.split_first_chunk::<KEY_BYTES>())
        else {
            return Ok(None);
        };
        let key = StoreKey(Guarded::new(|| *key)?);
        Ok(Some((key, Zeroizing::new(secrets.to_vec()))))
    }

    /// The cipher of one file (K2).
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn cipher(&self, file: &str) -> Result<SectorCipher, Error> {
        let mut keys = Zeroizing::new([0; KEYS_BYTES]);
        derive(&self.0, &[b"file ", file.as_bytes()], &mut *keys);
        SectorCipher::new(&keys)
    }
}

fn gcm(by: &MasterKey) -> LessSafeKey {
    let key = by.wrapping_key();
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key).expect("32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECTOR_BYTES;

    fn encrypted(cipher: &SectorCipher) -> Vec<u8> {
        let mut into = vec![0; SECTOR_BYTES];
        cipher.encrypt(0, &[7; SECTOR_BYTES], &mut into);
        into
    }

    #[test]
    fn a_box_opens_with_its_key_in_its_store_alone() {
        let (key, other) = (MasterKey::random().unwrap(), MasterKey::random().unwrap());
        let store = StoreKey::random().unwrap();
        let wrapped = store.wrap(&key, b"secret", b"store 1").unwrap();
        assert_eq!(wrapped.bytes.len(), OVERHEAD_BYTES + 6);
        assert!(!wrapped.bytes.windows(6).any(|part| part == b"secret"));
        let open = |wrapped: &Wrapped, by: &MasterKey, context: &[u8]| {
            StoreKey::unwrap(wrapped, by, context).unwrap()
        };
        let (found, secrets) = open(&wrapped, &key, b"store 1").unwrap();
        assert_eq!(&**secrets, b"secret");
        let cipher = |store: &StoreKey| encrypted(&store.cipher("wal").unwrap());
        assert_eq!(cipher(&found), cipher(&store));
        assert!(open(&wrapped, &other, b"store 1").is_none());
        assert!(open(&wrapped, &key, b"store 2").is_none());
        for bit in 0..wrapped.bytes.len() * 8 {
            let mut changed = wrapped.clone();
            changed.bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&changed, &key, b"store 1").is_none(), "bit {bit}"); // K1
        }
        let short = Wrapped {
            bytes: vec![0; 3],
            ..wrapped
        };
        assert!(open(&short, &key, b"store 1").is_none());
    }

    #[test]
    fn no_two_files_and_no_two_stores_have_the_same_key() {
        let stores = [StoreKey::random().unwrap(), StoreKey::random().unwrap()];
        let mut seen: Vec<Vec<u8>> = Vec::new();
        for store in &stores {
            for file in ["wal", "frames", "heat"] {
                seen.push(encrypted(&store.cipher(file).unwrap())); // K2
            }
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 6);
    }
}
