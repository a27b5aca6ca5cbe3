//! The master key of a store: its id, and its replacement.
//!
//! **Invariants**
//! - R1: a rotation writes one copy of the superblock after the other, each durably, first the copy
//!   that does not count. At any time one of them is whole, and it opens with the old key or with
//!   the new one. The store key stays, so a server that has the store open goes on.

use std::io;

use duramen_cipher::{KeyId, KeySource, MasterKey};
use duramen_format::superblock::{BLOCK_BYTES, COPY_AT, Superblock};

use crate::create::{self, Probe};
use crate::disk::{Disk, OpenHow};
use crate::encryption::{boxed, open, unlock};
use crate::error::Error;
use crate::region::{self, Region};

/// The id of the master key of the store on a disk; `None`: it is not encrypted. No key is needed.
///
/// # Errors
/// [`Error::Absent`]; as [`Backup::open`](crate::Backup::open) for a damaged superblock.
pub fn key_of(disk: &dyn Disk) -> Result<Option<KeyId>, Error> {
    match create::probe(disk)? {
        Probe::Store(found) => Ok(found.encryption.map(|encryption| KeyId(encryption.key))),
        Probe::Empty => Err(Error::Absent {
            place: disk.label(),
        }),
    }
}

/// The keys before and after a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotated {
    pub from: KeyId,
    pub to: KeyId,
}

/// Encrypts the store key on this disk with another master key (R1). The disk's key is the old one.
/// After an interruption the same call completes it; both keys are still needed for that. A server
/// may have the store open meanwhile.
///
/// # Errors
/// As [`Backup::open`](crate::Backup::open); [`Error::Absent`]; [`Error::Io`]: call it again.
pub fn rotate(disk: &dyn Disk, new: &KeySource) -> Result<Rotated, Error> {
    let place = disk.label();
    let Probe::Store(found) = create::probe(disk)? else {
        return Err(Error::Absent { place });
    };
    let mut found = *found;
    let new = new.read()?;
    let interrupted = found.encryption.is_some_and(|it| it.key == new.id().0);
    let opened = match interrupted {
        true => open(&mut found, &new)?.map(|_| found.clone()),
        false => None,
    };
    let step = |source| Error::io(&place, "write the superblock", source);
    let (from, next) = match opened {
        // The newer copy has the new key already: the other one follows.
        Some(superblock) => (new.id(), superblock),
        None => rewrapped(disk, found, &new)?,
    };
    let region = region::superblock(disk, OpenHow::ReadWrite).map_err(step)?;
    write_both(&region, &next).map_err(step)?;
    check_both(&region, &next).map_err(step)?;
    let to = new.id();
    Ok(Rotated { from, to })
}

/// The old key, and the superblock with the new one.
fn rewrapped(
    disk: &dyn Disk,
    mut found: Superblock,
    new: &MasterKey,
) -> Result<(KeyId, Superblock), Error> {
    let (_, ciphers) = unlock(disk, found.clone())?;
    let (Some(ciphers), Some(source)) = (ciphers, disk.key()) else {
        return Err(Error::NotEncrypted {
            place: disk.label(),
        });
    };
    let key = ciphers.key;
    let count = found.encryption.map_or(0, |it| it.rewrapped);
    let store = open(&mut found, &*source.read()?)?;
    let store = store.ok_or_else(|| Error::DamagedKey {
        place: disk.label(),
        key,
    })?;
    Ok((key, boxed(found, &store, new, count.saturating_add(1))?))
}

/// R1: writes both copies, first the one that does not count now.
fn write_both(region: &Region, next: &Superblock) -> io::Result<()> {
    let block = next.encode();
    let read = |at: u64| {
        let mut bytes = vec![0; BLOCK_BYTES];
        let read = region.read_medium(at, &mut bytes);
        read.ok().and_then(|()| Superblock::decode(&bytes).ok())
    };
    let [first, second] = COPY_AT.map(read);
    let first_counts = match (&first, &second) {
        (Some(first), Some(second)) => !second.is_newer_than(first),
        (first, _) => first.is_some(),
    };
    let order = match first_counts {
        true => [COPY_AT[1], COPY_AT[0]],
        false => COPY_AT,
    };
    for at in order {
        region.write_durably(at, &block)?;
    }
    Ok(())
}

/// Returns an error if another rotation ran at the same time: this one is not complete then.
fn check_both(region: &Region, next: &Superblock) -> io::Result<()> {
    let block = next.encode();
    for at in COPY_AT {
        let mut bytes = vec![0; BLOCK_BYTES];
        region.read_medium(at, &mut bytes)?;
        if bytes != block {
            let text = "another rotation ran at the same time: run this one again";
            return Err(io::Error::other(text));
        }
    }
    Ok(())
}
