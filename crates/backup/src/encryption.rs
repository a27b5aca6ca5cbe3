//! The keys of an encrypted store: made with it, and opened with it.
//!
//! The superblock has a box with the store key, encrypted by a master key that is not on the disk.
//! The ciphers of the write-ahead log and of the frames are derived from the store key. The two
//! header blocks of the write-ahead log are not encrypted, nor is the superblock itself: both are
//! read before there is a key. They have no bytes of a client and no checksum of such bytes.
//!
//! **Invariants**
//! - E1: a store whose key is not given, or not the right one, is refused before anything is
//!   written. A plain store for which a key is given is refused in the same way.
//! - E2: each store and each copy has a store key of its own. So no two of them encrypt with the
//!   same key at the same place.

use std::sync::Arc;

use duramen_cipher::{KeyId, MasterKey, SectorCipher, StoreKey, Wrapped};
use duramen_format::superblock::{Encryption, Superblock};

use crate::disk::Disk;
use crate::error::Error;
use crate::region;

/// The ciphers of a store's files.
pub(crate) struct Ciphers {
    pub(crate) key: KeyId,
    pub(crate) wal: Arc<SectorCipher>,
    pub(crate) frames: Arc<SectorCipher>,
    /// For the hints of hot keys, which are no file of a backup.
    pub(crate) heat: Arc<SectorCipher>,
}

impl Ciphers {
    fn new(key: KeyId, store: &StoreKey) -> Result<Ciphers, Error> {
        let cipher = |file| store.cipher(file).map(Arc::new);
        Ok(Ciphers {
            key,
            wal: cipher(region::WAL)?,
            frames: cipher(region::FRAMES)?,
            heat: cipher("heat")?,
        })
    }
}

/// Ties a box to its store.
fn context(of: &Superblock) -> Vec<u8> {
    let mut context = b"duramen store key".to_vec();
    context.extend(of.server.to_le_bytes());
    context.extend(of.created_ms.to_le_bytes());
    context
}

/// The superblock with a box for this store key.
pub(crate) fn boxed(
    mut superblock: Superblock,
    store: &StoreKey,
    by: &MasterKey,
    rewrapped: u32,
) -> Result<Superblock, Error> {
    let wrapped = store.wrap(by, &superblock.secrets(), &context(&superblock))?;
    superblock.encryption = Some(Encryption {
        key: wrapped.key.0,
        nonce: wrapped.nonce,
        rewrapped,
        bytes: wrapped
            .bytes
            .try_into()
            .expect("the secrets have one length"),
    });
    Ok(superblock)
}

/// The superblock of a store or copy that begins on this disk: with a new store key, if the disk
/// has a key (E2).
///
/// # Errors
/// [`Error::Key`].
pub(crate) fn begin(disk: &dyn Disk, superblock: Superblock) -> Result<Superblock, Error> {
    let Some(source) = disk.key() else {
        return Ok(Superblock {
            encryption: None,
            ..superblock
        });
    };
    boxed(superblock, &StoreKey::random()?, &*source.read()?, 0)
}

/// The superblock with its secrets, and the ciphers of the store.
///
/// # Errors
/// E1: [`Error::Encrypted`], [`Error::OtherKey`], [`Error::NotEncrypted`], [`Error::DamagedKey`],
/// [`Error::Key`].
pub(crate) fn unlock(
    disk: &dyn Disk,
    mut superblock: Superblock,
) -> Result<(Superblock, Option<Ciphers>), Error> {
    let place = disk.label();
    let Some(encryption) = superblock.encryption else {
        return match disk.key() {
            Some(_) => Err(Error::NotEncrypted { place }),
            None => Ok((superblock, None)),
        };
    };
    let key = KeyId(encryption.key);
    let Some(source) = disk.key() else {
        return Err(Error::Encrypted { place, key });
    };
    let master = source.read()?;
    if master.id() != key {
        let given = master.id();
        return Err(Error::OtherKey { place, key, given });
    }
    let store = open(&mut superblock, &master)?;
    let store = store.ok_or(Error::DamagedKey { place, key })?;
    Ok((superblock, Some(Ciphers::new(key, &store)?)))
}

/// Opens the box of a superblock; `None`: this key does not open it.
pub(crate) fn open(superblock: &mut Superblock, by: &MasterKey) -> Result<Option<StoreKey>, Error> {
    let Some(encryption) = superblock.encryption else {
        return Ok(None);
    };
    let wrapped = Wrapped {
        key: KeyId(encryption.key),
        nonce: encryption.nonce,
        bytes: encryption.bytes.to_vec(),
    };
    let opened = StoreKey::unwrap(&wrapped, by, &context(superblock))?;
    Ok(opened.and_then(|(store, secrets)| {
        let revealed = superblock.reveal(&secrets);
        revealed.ok().map(|()| store)
    }))
}
