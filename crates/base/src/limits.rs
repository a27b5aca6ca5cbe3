//! Limits that a user meets, in one place.

/// Longest key, in bytes. The entry's wide header stores the length in 16 bits.
pub const KEY_BYTES_MAX: usize = 65_535;

/// Longest value, in bytes. A value never spans segments, and the smallest segment is 2 MiB.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Maximum elements of a collection (hash, list, set, sorted set, stream), which is one value: an
/// operation may decode all of them, and stays below 2 ms.
pub const COLLECTION_ELEMENTS_MAX: usize = 1 << 17;

/// Maximum number of tables in a store. Each counter of a store keeps 8 bytes per possible table.
pub const TABLES_MAX: usize = 1024;

/// Smallest memory budget of a server, in bytes: 32 segments of the smallest size.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Smallest memory budget a store accepts, in bytes: the smallest that a server leaves it.
pub const STORE_BYTES_MIN: u64 = 48 << 20;

/// Maximum requests of one native client that may lack an acknowledgement, including answered ones
/// after them: limits the memory of a master per client.
pub const RPC_WINDOW: u32 = 512;
