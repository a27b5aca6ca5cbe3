//! Checkpoints: the object tables, blocks and caller's blob from which a later process continues.
//!
//! **Invariants**
//! - C1: when a checkpoint is whole under its name, every object that it lists is on the device and
//!   synced.
//! - C2: a block that the last whole checkpoint needs is not filled again (flash::space::S4) before
//!   a later one has replaced it for good. So after a crash or a failure at any moment the file
//!   under the checkpoint's name can be used.
//! - C3: the superblock of a device names the checkpoints that it honours: the last one, and the
//!   one whose file may be about to replace it. Others are refused. The number of a failed
//!   checkpoint is never given to another one.
//! - C4: the counts of a block's live objects and bytes (flash::space::S2) are taken from the very
//!   locations and lengths that are written.
//!
//! **Concurrency** several threads read, verify and place pieces of the file: while one waits for
//! the device, another works. A location of a table belongs to one piece.
//!
//! **Layout** the stream of `pieces`: all lengths and offsets come first.
//!
//! ```text
//! tables     number u32, objects u32, longest u32, cells per object u32 each
//! cells      u32 each, table by table: locations, then lengths if there are two per object
//! blocks     sequence u64, room u32, live objects u32, live bytes u32, 0 u32 each
//! caller     its blob
//! ```
//!
//! **Order** objects are written and synced; the file is written beside the last one and synced;
//! the two are exchanged, and their directory is synced. At this point the checkpoint is made. Then
//! the superblock names it as the last one, which voids the one before, and blocks that only the
//! one before needs are free. A failure before that point puts the last one's file back, and the
//! superblock marks the number as void. If the superblock cannot be written, both checkpoints are
//! honoured and hold their blocks, and the next checkpoint begins with the rest of this work.
//!
//! Paper: [Badam11 §3.6]; differs: a checkpoint is a file of its own.

use crate::core::Core;
use crate::error::Error;
use crate::layout::{BLOCK_BYTES, OBJECT_BYTES_MAX, SECTORS_PER_BLOCK, Superblock, block_of};
use crate::pieces::{Header, Pieces, Room, STREAM_BYTES, Writer};
use crate::place::{self, beside};
use crate::space::{Kept, Space};
use crate::store::{ObjectStore, Options};
use crate::superblock::{Unsettled, drawn, superblock_of, write_superblock};
use crate::table::{NOWHERE, Table, Tables};
use duramen_disk::{Device, quietly};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const TABLE_ENTRY_BYTES: u64 = 16;
const BLOCK_ENTRY_BYTES: u64 = 24;
/// Locations that are checked together: a page of memory, which is not touched if all of them are
/// empty.
const LOCATIONS_AT_ONCE: usize = 1024;
/// Repetitions of a checkpoint in order to hold less.
const AGAIN: u32 = 3;
/// Threads that read a checkpoint.
const READERS: u64 = 4;

/// Result of [`ObjectStore::restore`].
pub struct Restored {
    pub store: ObjectStore,
    /// The blob that was given to [`ObjectStore::checkpoint`].
    pub blob: Vec<u8>,
}

/// The reason why the next checkpoint's file did not replace the last one's.
struct NotReplaced {
    source: io::Error,
    /// Whether the last checkpoint's file is in its place as before.
    is_undone: bool,
    /// The file whose directory must be synced before the superblock names either checkpoint.
    parent: Option<PathBuf>,
}

/// The way to undo the placement of a file.
enum Undo {
    /// The former file is beside it: exchange them.
    Exchange,
    /// There was no former file.
    Remove,
    /// The file system can only replace it.
    Never,
}

fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

fn put_in_place(beside: &Path, path: &Path) -> io::Result<Undo> {
    let undo = match exchange(beside, path) {
        Ok(()) => return Ok(Undo::Exchange),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Undo::Remove,
        Err(error) => match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => Undo::Never,
            _ => return Err(error),
        },
    };
    std::fs::rename(beside, path)?;
    Ok(undo)
}

impl Core {
    pub(crate) fn superblock(&self) -> MutexGuard<'_, Superblock> {
        self.superblock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn unsettle(&self, unsettled: Unsettled) {
        let mut slot = self
            .unsettled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *slot = unsettled;
    }

    /// Records the outcome of the next checkpoint in the superblock, and frees the blocks that only
    /// the other one needs. The caller holds the lock of the filled block.
    fn settle(&self) -> Result<(), Error> {
        let mut unsettled = self
            .unsettled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (Unsettled::Void(parent) | Unsettled::Replaced(parent)) = &*unsettled else {
            return Ok(());
        };
        if let Some(path) = parent {
            sync_parent(path).map_err(Error::device("syncing the checkpoint's directory"))?;
        }
        let mut superblock = self.superblock();
        let next = superblock.next;
        match &*unsettled {
            Unsettled::Replaced(_) => {
                self.write_numbers(&mut superblock, next, next + 1)?;
                self.space.next_is_last();
            }
            _ => {
                let last = superblock.checkpoint;
                self.write_numbers(&mut superblock, last, next + 1)?;
                self.space.drop_next();
            }
        }
        *unsettled = Unsettled::No;
        self.made_room();
        Ok(())
    }

    /// Writes the device first: a failed write may have reached it all the same.
    fn write_numbers(
        &self,
        superblock: &mut Superblock,
        checkpoint: u64,
        next: u64,
    ) -> Result<(), Error> {
        let new = Superblock {
            version: superblock.version + 1,
            checkpoint,
            next,
            ..*superblock
        };
        write_superblock(&*self.device, &new)?;
        *superblock = new;
        Ok(())
    }
}

impl ObjectStore {
    /// Makes all earlier writes durable: after this, [`restore`](Self::restore) restores this
    /// state, whatever happens to this process. Writers wait meanwhile. `blob` is stored with it.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Occupied`]: the previous checkpoint, if there is one, stays
    /// valid.
    pub fn checkpoint(&self, path: &Path, blob: &[u8]) -> Result<(), Error> {
        place::check(path, &*self.core.device)?;
        self.checkpoint_once(path, blob)?;
        // Blocks held by the previous checkpoint may have been in the way; now they are free.
        for _ in 0..AGAIN {
            if !self.core.is_sparse() || self.checkpoint_once(path, blob).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn checkpoint_once(&self, path: &Path, blob: &[u8]) -> Result<(), Error> {
        let core = &self.core;
        core.make_dense()?;
        let mut filling = core.filling();
        for _ in 0..AGAIN {
            if !core.is_sparse() {
                break;
            }
            drop(filling); // others have written meanwhile
            core.make_dense()?;
            filling = core.filling();
        }
        core.flush(&mut filling)?;
        core.sync()?; // C1: objects before the file
        core.settle()?;
        let made = self.replace_file(path, blob);
        core.space.hold_next(); // C2: its blocks are not filled again
        let replaced = made.is_ok();
        core.unsettle(match &made {
            Ok(()) => Unsettled::Replaced(None),
            Err(failed) if failed.is_undone => Unsettled::Void(failed.parent.clone()),
            Err(failed) => Unsettled::Replaced(failed.parent.clone()),
        });
        // The work is settled at once if possible. If not, both checkpoints hold their blocks until
        // it is: only room is lost.
        let settled = core.settle();
        if replaced {
            let _ = std::fs::remove_file(beside(path)); // the previous file, which is not needed
        }
        drop(filling);
        match made {
            Err(failed) if failed.is_undone || settled.is_err() => {
                Err(Error::device("writing the checkpoint")(failed.source))
            }
            _ => Ok(()),
        }
    }

    /// Gives up the last checkpoint: the blocks that it alone holds are free, and it is refused
    /// from now on.
    ///
    /// # Errors
    /// [`Error::Device`]: it stays valid.
    pub fn give_up_checkpoint(&self) -> Result<(), Error> {
        let core = &self.core;
        let filling = core.filling();
        let mut superblock = core.superblock();
        // Unused numbers: neither the last checkpoint nor a next one has them.
        let (checkpoint, next) = (superblock.next + 1, superblock.next + 2);
        core.write_numbers(&mut superblock, checkpoint, next)?;
        core.unsettle(Unsettled::No);
        core.space.hold_none();
        drop(superblock);
        drop(filling);
        core.made_room();
        Ok(())
    }

    /// Writes the next checkpoint's file, and puts it in the place of the last one's. The
    /// superblock honours both.
    fn replace_file(&self, path: &Path, blob: &[u8]) -> Result<(), NotReplaced> {
        let beside = beside(path);
        // A file there is left from an interrupted checkpoint, and was checked (place::W1).
        let _ = std::fs::remove_file(&beside);
        let unchanged = |source: io::Error| {
            if source.kind() != io::ErrorKind::AlreadyExists {
                let _ = std::fs::remove_file(&beside); // the file is void, wherever it is
            }
            NotReplaced {
                source,
                is_undone: true,
                parent: None,
            }
        };
        let superblock = *self.core.superblock();
        self.write_file(&beside, &superblock, blob)
            .map_err(unchanged)?;
        let undo = put_in_place(&beside, path).map_err(unchanged)?;
        sync_parent(path).map_err(|source| {
            let undone = match undo {
                Undo::Exchange => exchange(&beside, path),
                Undo::Remove => std::fs::remove_file(path),
                Undo::Never => Err(io::ErrorKind::Unsupported.into()),
            };
            let is_undone = undone.is_ok();
            if is_undone {
                let _ = std::fs::remove_file(&beside);
            }
            NotReplaced {
                source,
                is_undone,
                parent: Some(path.to_path_buf()),
            }
        })
    }

    fn write_file(&self, path: &Path, superblock: &Superblock, blob: &[u8]) -> io::Result<()> {
        let tables = self.core.tables.all();
        let space = &self.core.space;
        let cells: u64 = tables
            .iter()
            .map(|(_, table)| table.cells().len() as u64)
            .sum();
        let header = Header {
            store: superblock.store,
            checkpoint: superblock.next,
            blocks: superblock.blocks,
            tables: tables.len() as u32,
            blob_bytes: blob.len() as u64,
            stream_bytes: tables.len() as u64 * TABLE_ENTRY_BYTES
                + cells * 4
                + u64::from(space.len()) * BLOCK_ENTRY_BYTES
                + blob.len() as u64,
        };
        let mut out = Writer::create(path, header)?;
        for (number, table) in &tables {
            let per_object = if table.is_of_one_length() { 1 } else { 2 };
            for field in [*number, table.len(), table.bytes_max, per_object] {
                out.put(&field.to_le_bytes())?;
            }
        }
        let mut live = vec![(0u32, 0u32); space.len() as usize];
        let mut bytes = [0; 4 * LOCATIONS_AT_ONCE];
        for (_, table) in &tables {
            for (index, cell) in (0..).zip(table.locations()) {
                let location = cell.load(Ordering::Relaxed);
                if location != NOWHERE {
                    let (objects, bytes) = &mut live[block_of(location) as usize]; // C4
                    *objects += 1;
                    *bytes += table.footprint(index);
                }
            }
            for cells in table.cells().chunks(LOCATIONS_AT_ONCE) {
                for (cell, place) in cells.iter().zip(bytes.chunks_exact_mut(4)) {
                    place.copy_from_slice(&cell.load(Ordering::Relaxed).to_le_bytes());
                }
                out.put(&bytes[..4 * cells.len()])?;
            }
        }
        for (number, (live, live_bytes)) in (0..space.len()).zip(live) {
            let block = space.block(number);
            out.put(&block.sequence().to_le_bytes())?;
            for field in [block.room(), live, live_bytes, 0] {
                out.put(&field.to_le_bytes())?;
            }
        }
        out.put(blob)?;
        out.finish()
    }

    /// Continues from the checkpoint at `path`, on a device that is as long as then or longer.
    /// Objects are read on demand; this call reads the checkpoint alone, and writes a superblock:
    /// an unfinished checkpoint that was made at another path is void then.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::Foreign`], [`Error::Older`], [`Error::Newer`],
    /// [`Error::DamagedCheckpoint`], [`Error::Superseded`], [`Error::Device`]: this checkpoint is
    /// unchanged.
    pub fn restore(options: Options, path: &Path) -> Result<Restored, Error> {
        let pieces = Pieces::open(path)?;
        let header = pieces.header;
        let found = checked_superblock(&*options.device, &header, path)?;
        let (tables, rest) = read_all(&pieces)?;
        let blocks = (options.device.bytes() / BLOCK_BYTES as u64) as u32;
        let space = Space::restored(&rest.blocks, blocks, new_life(&rest.blocks));
        // From now on it is the last one. Another checkpoint that the device honoured as well is
        // void: its blocks may be filled.
        let superblock = Superblock {
            version: found.version + 1,
            checkpoint: header.checkpoint,
            next: found.next + 1,
            blocks,
            ..found
        };
        write_superblock(&*options.device, &superblock)?;
        let store = ObjectStore::start(options, superblock, space, tables)?;
        Ok(Restored {
            store,
            blob: rest.blob,
        })
    }
}

/// C3.
fn checked_superblock(
    device: &dyn Device,
    header: &Header,
    path: &Path,
) -> Result<Superblock, Error> {
    let superseded = |why| Error::Superseded {
        what: path.display().to_string(),
        why,
    };
    let found = superblock_of(device)?
        .ok_or_else(|| superseded("there is no object store in the flash file"))?;
    if found.store != header.store {
        return Err(superseded(
            "it belongs to another flash file, or the flash file has been written since",
        ));
    }
    if ![found.checkpoint, found.next].contains(&header.checkpoint) {
        return Err(superseded("there is a later one"));
    }
    // A device longer than in the checkpoint is good: the added blocks are free.
    if u64::from(header.blocks) > device.bytes() / BLOCK_BYTES as u64 {
        return Err(superseded("the flash file has become shorter"));
    }
    Ok(found)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| *parent != Path::new("")) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// The part behind the locations.
struct Rest {
    blocks: Vec<Kept>,
    blob: Vec<u8>,
}

/// A random high half that no sequence in `blocks` has.
fn new_life(blocks: &[Kept]) -> u32 {
    loop {
        let life = drawn() as u32;
        let taken = |block: &Kept| (block.sequence >> 32) as u32 == life;
        if !blocks.iter().any(taken) {
            return life;
        }
    }
}

/// Reads everything behind the header.
fn read_all(pieces: &Pieces) -> Result<(Tables, Rest), Error> {
    let mut room = Room::new();
    let contents = Contents::planned(pieces, &mut room)?;
    let first = contents.locations_at / STREAM_BYTES as u64;
    let next = AtomicU64::new(first);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let work = |room: &mut Room| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= pieces.count() {
                return;
            }
            let at = number * STREAM_BYTES as u64;
            let done = pieces
                .read(number, room)
                .and_then(|bytes| contents.put(pieces, at, bytes));
            if let Err(error) = done {
                next.store(pieces.count(), Ordering::Relaxed); // the other threads can stop
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(error);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        quietly(|| {
            for _ in 1..READERS.min(pieces.count() - first) {
                let named = std::thread::Builder::new().name("restore".to_owned());
                // If this thread cannot be started, the others take longer.
                let _ = named.spawn_scoped(scope, || work(&mut Room::new()));
            }
        });
        work(&mut room);
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    contents.finish(pieces)
}

/// The destinations of the contents of a stream.
struct Contents {
    /// For each table: start of its cells, number, table.
    tables: Vec<(u64, u32, Table)>,
    locations_at: u64,
    /// Start of the blocks and of the blob.
    rest_at: u64,
    rest: Mutex<Vec<u8>>,
    /// The last location of the device.
    last: u32,
}

impl Contents {
    /// From the stream's first part. Memory is reserved, not touched.
    fn planned(pieces: &Pieces, room: &mut Room) -> Result<Contents, Error> {
        let header = &pieces.header;
        let mut left = header.stream_bytes;
        let mut take = |bytes: u64| {
            let rest = left.checked_sub(bytes);
            left = rest.ok_or_else(|| pieces.damaged("it is shorter than it says"))?;
            Ok(header.stream_bytes - left)
        };
        let locations_at = take(u64::from(header.tables) * TABLE_ENTRY_BYTES)?;
        let mut tables = Vec::with_capacity(header.tables as usize);
        let mut at = locations_at;
        for number in 0..locations_at.div_ceil(STREAM_BYTES as u64) {
            let before = number * STREAM_BYTES as u64;
            let entries = (locations_at - before).min(STREAM_BYTES as u64) as usize;
            let bytes = pieces.read(number, room)?;
            for entry in bytes[..entries].chunks_exact(TABLE_ENTRY_BYTES as usize) {
                let [number, objects, bytes_max, per_object] =
                    [0, 4, 8, 12].map(|at| u32_at(entry, at));
                if bytes_max as usize > OBJECT_BYTES_MAX {
                    return Err(pieces.damaged("a table of objects that are too long"));
                }
                if !(1..=2).contains(&per_object) {
                    return Err(pieces.damaged("a table of an unknown form"));
                }
                let begins = at;
                at = take(u64::from(objects) * u64::from(per_object) * 4)?;
                let table = Table::new(objects, bytes_max, per_object == 1);
                tables.push((begins, number, table));
            }
        }
        take(u64::from(header.blocks) * BLOCK_ENTRY_BYTES)?;
        if take(header.blob_bytes)? != header.stream_bytes {
            return Err(pieces.damaged("it is longer than it says"));
        }
        Ok(Contents {
            tables,
            locations_at,
            rest_at: at,
            rest: Mutex::new(vec![0; (header.stream_bytes - at) as usize]),
            last: (u64::from(header.blocks) * u64::from(SECTORS_PER_BLOCK)).saturating_sub(1)
                as u32,
        })
    }

    /// Puts bytes of the stream, which begin at its byte `at`, to their destinations.
    fn put(&self, pieces: &Pieces, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let end = at + bytes.len() as u64;
        let first = self.tables.partition_point(|(begins, _, _)| *begins <= at);
        for (begins, _, table) in &self.tables[first.saturating_sub(1)..] {
            if *begins >= end {
                break;
            }
            let part = |begins: u64, cells: u64| {
                let (from, to) = (at.max(begins), end.min(begins + cells * 4));
                let its = || &bytes[(from - at) as usize..(to - at) as usize];
                (from < to).then(|| (((from - begins) / 4) as usize, its()))
            };
            let (locations, lengths) = table.cells().split_at(table.len() as usize);
            if let Some((from, its)) = part(*begins, locations.len() as u64)
                && !fill(&locations[from..], its, self.last)
            {
                return Err(pieces.damaged("a location beyond the flash file"));
            }
            let begins = begins + u64::from(table.len()) * 4;
            if let Some((from, its)) = part(begins, lengths.len() as u64)
                && !fill_lengths(&lengths[from..], its, table.bytes_max)
            {
                return Err(pieces.damaged("an object that is too long"));
            }
        }
        if end > self.rest_at {
            let from = at.max(self.rest_at);
            let to = (end - self.rest_at) as usize;
            let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
            rest[(from - self.rest_at) as usize..to]
                .copy_from_slice(&bytes[(from - at) as usize..]);
        }
        Ok(())
    }

    fn finish(self, pieces: &Pieces) -> Result<(Tables, Rest), Error> {
        let tables = Tables::default();
        for (_, number, table) in self.tables {
            tables
                .add(number, table)
                .map_err(|_| pieces.damaged("a table stands in it twice"))?;
        }
        let mut blocks = self
            .rest
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let blob = blocks.split_off(pieces.header.blocks as usize * BLOCK_ENTRY_BYTES as usize);
        let entry = |entry: &[u8]| Kept {
            sequence: u64::from(u32_at(entry, 4)) << 32 | u64::from(u32_at(entry, 0)),
            room: u32_at(entry, 8),
            live: u32_at(entry, 12),
            live_bytes: u32_at(entry, 16),
        };
        let blocks = blocks.chunks_exact(BLOCK_ENTRY_BYTES as usize);
        let blocks = blocks.map(entry).collect();
        Ok((tables, Rest { blocks, blob }))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes[at..].first_chunk().expect("within an entry");
    u32::from_le_bytes(*field)
}

/// Sets lengths. Returns false if one of them is more than `most`.
fn fill_lengths(cells: &[AtomicU32], bytes: &[u8], most: u32) -> bool {
    let lengths = bytes.chunks_exact(4).map(|bytes| u32_at(bytes, 0));
    cells.iter().zip(lengths).all(|(cell, length)| {
        if length > 0 {
            cell.store(length, Ordering::Relaxed); // as in `fill`
        }
        length <= most
    })
}

/// Sets locations. Returns false if one of them is beyond `last`, the last location of the device.
fn fill(cells: &[AtomicU32], bytes: &[u8], last: u32) -> bool {
    let cells = cells.chunks(LOCATIONS_AT_ONCE);
    for (cells, bytes) in cells.zip(bytes.chunks(4 * LOCATIONS_AT_ONCE)) {
        let locations = || bytes.chunks_exact(4).map(|bytes| u32_at(bytes, 0));
        // There are no branches, so the compiler handles eight locations at once.
        let (mut most, mut superblocks) = (NOWHERE, 0);
        for location in locations() {
            most = most.max(location);
            superblocks |= u32::from(location.wrapping_sub(NOWHERE + 1) < SECTORS_PER_BLOCK - 1);
        }
        if most > last || superblocks != 0 {
            return false;
        }
        if most != NOWHERE {
            for (cell, location) in cells.iter().zip(locations()) {
                cell.store(location, Ordering::Relaxed); // not read before all threads have ended
            }
        }
    }
    true
}
