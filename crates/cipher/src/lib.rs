//! Encryption at rest: the cipher of sectors, and the keys of a store.
//!
//! A *master key* comes from a file or from a command's output. It encrypts one *store key*, which
//! is random and is stored with the store. Each file of the store has a key of its own, derived
//! from the store key and the file's name. So the master key can be replaced without writing the
//! data again.
//!
//! | file | content |
//! |---|---|
//! | `command` | runs the command whose output is a key |
//! | `guarded` | memory for keys: locked, in no core dump, wiped |
//! | `master` | the master key, its source, its id |
//! | `sectors` | AES-256-XTS of sectors |
//! | `store_key` | the key of one store, encrypted by a master key |
//! | `text` | reads the text of a key |

mod command;
mod error;
mod guarded;
mod master;
mod sectors;
mod store_key;
mod text;

pub use error::Error;
pub use master::{KEY_TEXT_BYTES, KeyId, KeySource, MasterKey};
pub use sectors::{SECTOR_BYTES, SectorCipher};
pub use store_key::{NONCE_BYTES, OVERHEAD_BYTES, Opened, StoreKey, Wrapped};
