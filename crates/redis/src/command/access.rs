//! A command's access to its keys, in the words of Redis's key specifications: for `COMMAND`, and
//! for the check of a user's rights.

/// A set of Redis's flags of a key specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyAccess(u16);

const RO: u16 = 1;
const RW: u16 = 1 << 1;
const OW: u16 = 1 << 2;
const RM: u16 = 1 << 3;
const ACCESS: u16 = 1 << 4;
const UPDATE: u16 = 1 << 5;
const INSERT: u16 = 1 << 6;
const DELETE: u16 = 1 << 7;
const VARIABLE: u16 = 1 << 8;
/// Only the slot counts, not the key of this name.
const NOT_KEY: u16 = 1 << 9;

const NAMES: [&str; 10] = [
    "RO",
    "RW",
    "OW",
    "RM",
    "access",
    "update",
    "insert",
    "delete",
    "variable_flags",
    "not_key",
];

/// It returns the value or a part of it.
pub(crate) const READS: KeyAccess = KeyAccess(RO | ACCESS);
/// It tells something about the value, but not the value.
pub(crate) const LOOKS: KeyAccess = KeyAccess(RO);
/// It returns the value and may write it again in another form.
pub(crate) const REFORMS: KeyAccess = KeyAccess(RW | ACCESS);
/// It returns the value and changes it.
pub(crate) const CHANGES: KeyAccess = KeyAccess(RW | ACCESS | UPDATE);
/// It changes the value.
pub(crate) const UPDATES: KeyAccess = KeyAccess(RW | UPDATE);
/// It adds to the value.
pub(crate) const ADDS: KeyAccess = KeyAccess(RW | INSERT);
/// It reads the value and adds to it.
pub(crate) const MERGES: KeyAccess = KeyAccess(RW | ACCESS | INSERT);
/// It removes parts of the value.
pub(crate) const REMOVES: KeyAccess = KeyAccess(RW | DELETE);
/// It returns what it removes.
pub(crate) const TAKES: KeyAccess = KeyAccess(RW | ACCESS | DELETE);
/// Its arguments decide whether it returns the value, and whether it changes it.
pub(crate) const VARIES: KeyAccess = KeyAccess(RW | ACCESS | UPDATE | VARIABLE);
/// It replaces the value.
pub(crate) const SETS: KeyAccess = KeyAccess(OW | UPDATE);
/// It sets the value of a key that does not exist.
pub(crate) const CREATES: KeyAccess = KeyAccess(OW | INSERT);
/// It deletes the key.
pub(crate) const DELETES: KeyAccess = KeyAccess(RM | DELETE);
/// A channel in a key's place: it has a slot, as a key has.
pub(crate) const CHANNEL: KeyAccess = KeyAccess(NOT_KEY);

impl KeyAccess {
    pub(super) const NONE: KeyAccess = KeyAccess(0);

    pub(super) const fn is(self, other: KeyAccess) -> bool {
        self.0 == other.0
    }

    pub(super) const fn and(self, other: KeyAccess) -> KeyAccess {
        KeyAccess(self.0 | other.0)
    }

    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let named = NAMES.iter().enumerate();
        named
            .filter(move |(bit, _)| self.0 & 1 << bit != 0)
            .map(|(_, name)| *name)
    }

    /// Whether there is a key, and not only the name of a shard channel.
    pub(crate) const fn is_of_key(self) -> bool {
        self.0 & NOT_KEY == 0
    }

    /// The rights that it needs.
    pub(crate) fn rights(self) -> duramen_acl::Access {
        duramen_acl::Access {
            reads: self.0 & ACCESS != 0,
            writes: self.0 & (UPDATE | INSERT | DELETE) != 0,
        }
    }
}
