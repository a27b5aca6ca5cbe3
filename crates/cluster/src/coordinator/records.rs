//! The stored records of a coordinator, key by key.
//!
//! **Layout** keys are a letter and big-endian numbers, so that they are ordered as their numbers;
//! values are postcard:
//!
//! ```text
//! "m"                        Meta
//! "i"                        ClusterId         since layout 2
//! "s" server u64             ServerRecord      a member, UP or crashed
//! "g" slot u32               u32               the highest generation given to the slot
//! "t" table u32              TableEntry
//! "b" table u32, first u64   TabletRecord
//! "x" migration u64          MigrationRecord
//! "c" client u64             nothing           a client's lease, its id alone
//! "u"                        ClusterUsers      since layout 3
//! "f"                        ClusterFunctions  since layout 4
//! "~l" server u64            list of RangeLoad coarse loads of a member's ranges
//! "~a" server u64            list of u32       tokens of losses that an operator has accepted
//! ```
//!
//! Keys from "~" on are [advice](super::store::ADVICE): older programs leave them alone, so they
//! need no new layout. Advice that cannot be decoded is left out.
//!
//! **Invariants**
//! - R1: recoveries are not stored: a crashed server that still owns tablets is being recovered.
//! - R2: tablets of a table neither overlap nor leave gaps, from its creation to its end.

use super::store::ADVICE;
use duramen_base::ids::{
    ClientId, KeyRange, ListVersion, MapVersion, MigrationId, RecoveryId, RouteHash, SegmentId,
    ServerId, TableId,
};
use duramen_wire::native::message::{ClusterSettings, ServerEntry};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Newest layout. A newer one is refused. A store of layout 1 has no id; it gets one. A store has
/// the oldest layout that fits it, so that an older program can go on with it.
pub(super) const FORMAT: u32 = 4;
pub(super) const WITH_ID: u32 = 2;
pub(super) const WITH_USERS: u32 = 3;
pub(super) const WITH_FUNCTIONS: u32 = 4;

/// The state that belongs to no single server, table or client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub format: u32,
    pub cluster: String,
    pub settings: ClusterSettings,
    pub list_version: ListVersion,
    /// The version of the map; versions of the lists of single servers are taken from it, too.
    pub map_version: MapVersion,
    pub next_table: TableId,
    pub next_client: ClientId,
    /// A counter of older programs, without effect.
    pub unused: u32,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServerRecord {
    pub entry: ServerEntry,
    /// The nonce of its enlistment: a request with the same nonce is of the same server.
    pub nonce: u64,
    /// Open control segments with lower ids are not eligible.
    pub min_open: SegmentId,
}

/// The way in which a tablet came to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Origin {
    Created,
    Recovered {
        recovery: RecoveryId,
        partition: u32,
    },
    Migrated(MigrationId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TabletRecord {
    pub last: RouteHash,
    /// The owner, also while it is crashed: until the tablet is recovered it belongs to its log.
    pub owner: ServerId,
    /// Entries of it in the owner's segments below this one do not belong to the tablet.
    pub creation: SegmentId,
    /// A new leader recognizes by its origin a report that its predecessor has accepted.
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MigrationRecord {
    pub table: TableId,
    pub range: KeyRange,
    pub from: ServerId,
    pub to: ServerId,
}

/// A decoded key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Meta,
    Id,
    Server(ServerId),
    Slot(u32),
    Table(TableId),
    Tablet(TableId, RouteHash),
    Migration(MigrationId),
    Client(ClientId),
    Users,
    Functions,
    Loads(ServerId),
    Accepted(ServerId),
}

impl Key {
    pub(super) fn encode(self) -> Vec<u8> {
        let with = |letter: u8, parts: &[&[u8]]| {
            let mut key = vec![letter];
            parts.iter().for_each(|part| key.extend_from_slice(part));
            key
        };
        match self {
            Key::Meta => with(b'm', &[]),
            Key::Id => with(b'i', &[]),
            Key::Server(id) => with(b's', &[&id.number().to_be_bytes()]),
            Key::Slot(slot) => with(b'g', &[&slot.to_be_bytes()]),
            Key::Table(id) => with(b't', &[&id.0.to_be_bytes()]),
            Key::Tablet(id, first) => with(b'b', &[&id.0.to_be_bytes(), &first.0.to_be_bytes()]),
            Key::Migration(id) => with(b'x', &[&id.0.to_be_bytes()]),
            Key::Client(id) => with(b'c', &[&id.0.to_be_bytes()]),
            Key::Users => with(b'u', &[]),
            Key::Functions => with(b'f', &[]),
            Key::Loads(id) => with(ADVICE, &[b"l", &id.number().to_be_bytes()]),
            Key::Accepted(id) => with(ADVICE, &[b"a", &id.number().to_be_bytes()]),
        }
    }

    pub(super) fn decode(key: &[u8]) -> Option<Key> {
        let (letter, rest) = key.split_first()?;
        let long = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
        let short = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
        Some(match *letter {
            b'm' if rest.is_empty() => Key::Meta,
            b'i' if rest.is_empty() => Key::Id,
            b's' => Key::Server(ServerId::from_number(long(rest)?)),
            b'g' => Key::Slot(short(rest)?),
            b't' => Key::Table(TableId(short(rest)?)),
            b'b' => {
                let (table, first) = rest.split_at_checked(4)?;
                Key::Tablet(TableId(short(table)?), RouteHash(long(first)?))
            }
            b'x' => Key::Migration(MigrationId(long(rest)?)),
            b'c' => Key::Client(ClientId(long(rest)?)),
            b'u' if rest.is_empty() => Key::Users,
            b'f' if rest.is_empty() => Key::Functions,
            ADVICE => {
                let (kind, id) = rest.split_first()?;
                let id = ServerId::from_number(long(id)?);
                match *kind {
                    b'l' => Key::Loads(id),
                    b'a' => Key::Accepted(id),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
}

/// A record's bytes.
///
/// # Panics
/// Never: plain data in memory can always be written.
pub(super) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    postcard::to_stdvec(record).expect("plain data can be written to memory")
}

/// The record in these bytes, if it takes all of them.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Some(record),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_and_are_ordered_as_their_numbers() {
        let keys = [
            Key::Tablet(TableId(1), RouteHash(0)),
            Key::Tablet(TableId(1), RouteHash(u64::MAX)),
            Key::Tablet(TableId(256), RouteHash(3)),
            Key::Client(ClientId(9)),
            Key::Slot(8),
            Key::Meta,
            Key::Id,
            Key::Users,
            Key::Functions,
            Key::Server(ServerId::new(7, 2)),
            Key::Table(TableId(5)),
            Key::Migration(MigrationId(1 << 60)),
            Key::Loads(ServerId::new(7, 2)),
            Key::Accepted(ServerId::new(7, 2)),
        ];
        for key in keys {
            assert_eq!(Key::decode(&key.encode()), Some(key));
            let mut longer = key.encode();
            longer.push(0);
            assert_eq!(Key::decode(&longer), None);
        }
        assert!(keys[0].encode() < keys[1].encode() && keys[1].encode() < keys[2].encode());
        assert_eq!(Key::decode(b""), None);
        assert_eq!(Key::decode(b"q1"), None);
    }

    #[test]
    fn a_record_is_all_of_its_bytes() {
        let record = TabletRecord {
            last: RouteHash::MAX,
            owner: ServerId::new(1, 2),
            creation: SegmentId(3),
            origin: Origin::Recovered {
                recovery: RecoveryId(4),
                partition: 5,
            },
        };
        let mut bytes = encode(&record);
        assert_eq!(decode(&bytes), Some(record));
        bytes.push(0);
        assert_eq!(decode::<TabletRecord>(&bytes), None);
        assert_eq!(decode::<TabletRecord>(&bytes[..2]), None);
    }
}
