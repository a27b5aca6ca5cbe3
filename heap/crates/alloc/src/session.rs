//! The session: the process's one heap, from `init` to `close`, and the functions for programs.
//!
//! **Invariants**
//! - N1: no data on flash is given up before the first allocation that succeeds: until then a
//!   checkpoint may be restored, whatever else was called.

use crate::budget::Budget;
use crate::error::Error;
use crate::heap::checkpoint::Frame;
use crate::heap::oalloc::OBJECT_BYTES_MAX;
use crate::heap::{Heap, ROOTS};
use crate::pager::{Faults, PAGE_BYTES, Pager, REGION_PAGES};
use crate::paging::Tables;
use crate::signal;
use crate::stats::Stats;
use duramen_disk::{Device, FileDevice};
use duramen_flash::ObjectStore;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Preferred beginning of the arena: far from the addresses that the system hands out, from
/// programs and from sanitizers.
const START: usize = 0x2000_0000_0000;
/// Addresses that are reserved by default: a page for each of 2^30 objects.
const ADDRESS_BYTES: u64 = 4 << 40;
/// Most addresses that may be reserved: half of a process's addresses on most processors.
const ADDRESS_BYTES_MAX: u64 = 1 << 46;

/// Configuration for [`init`]. Sizes in bytes; 0 means the library's default, if the field
/// documents one.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A file, which is created if it does not exist, or a partition.
    pub flash_file: PathBuf,
    /// Length of the file; 0: its present length.
    pub flash_bytes: u64,
    /// RAM that this library may use in total; at least about 5 MiB.
    pub ram_bytes: u64,
    /// RAM for shown pages; 0: a twenty-fourth of `ram_bytes`, at most 25 MiB.
    pub page_buffer_bytes: u64,
    /// Reserved addresses; an object of [`oalloc`] takes a page of them, or more. 0: 4 TiB.
    pub address_bytes: u64,
    /// The mechanism of faults; `None`: userfaultfd if the kernel has it, else `mprotect`.
    pub faults: Option<Faults>,
}

enum State {
    Closed,
    /// Nothing is allocated yet (N1).
    Ready(Box<Ready>),
    Running,
}

/// The flash file, whose lock a forked child gives up.
struct Locked(FileDevice);

impl Locked {
    fn new(device: FileDevice) -> Locked {
        signal::set_lock(device.descriptor());
        Locked(device)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        signal::set_lock(None); // the number may soon belong to another file
    }
}

impl Device for Locked {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(at, into)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn lies_in(&self, found: &std::fs::Metadata) -> bool {
        self.0.lies_in(found)
    }

    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.0.descriptor()
    }
}

struct Ready {
    device: Arc<Locked>,
    pager: Pager,
    options: Options,
    /// Set before the first allocation.
    roots: [usize; ROOTS],
}

static STATE: Mutex<State> = Mutex::new(State::Closed);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reserve(options: &Options, at: usize, bytes: usize, exactly: bool) -> Result<Pager, Error> {
    let taken = |error: io::Error| match error.raw_os_error() {
        Some(libc::EEXIST) => Error::AddressTaken { address: at },
        _ => Error::kernel("reserving addresses for pages that fault")(error),
    };
    match options.faults {
        Some(kind) => Pager::reserve(kind, at, bytes, exactly).map_err(taken),
        None => match Pager::reserve(Faults::Userfault, at, bytes, exactly) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                Pager::reserve(Faults::Protect, at, bytes, exactly).map_err(taken)
            }
            found => found.map_err(taken),
        },
    }
}

impl Ready {
    fn store_options(&self) -> duramen_flash::Options {
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        duramen_flash::Options { device }
    }

    fn budget(&self) -> Result<Budget, Error> {
        let options = &self.options;
        let device = self.device.bytes();
        let pages_max = self.pager.pages_max();
        Budget::new(
            options.ram_bytes,
            options.page_buffer_bytes,
            device,
            pages_max,
        )
    }
}

/// Refuses sizes that no machine, or not this one, can provide.
fn check_sizes(options: &Options) -> Result<(), Error> {
    if options.address_bytes > ADDRESS_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "address_bytes = {}: at most {ADDRESS_BYTES_MAX}",
            options.address_bytes
        )));
    }
    // SAFETY: plain queries to the system.
    let (pages, page) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    let has = u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0);
    let most = if has == 0 { u64::MAX } else { has };
    for (name, bytes) in [
        ("ram_bytes", options.ram_bytes),
        ("page_buffer_bytes", options.page_buffer_bytes),
    ] {
        if bytes > most {
            return Err(Error::Invalid(format!(
                "{name} = {bytes}: this machine has {most} bytes of RAM"
            )));
        }
    }
    Ok(())
}

/// Opens the flash file and reserves addresses. Data on flash stays until the first allocation:
/// [`restore`] may come before it.
///
/// # Errors
/// [`Error::State`], [`Error::Budget`], [`Error::Kernel`], [`Error::Flash`].
pub fn init(options: &Options) -> Result<(), Error> {
    if signal::is_forked() {
        return Err(Error::Forked);
    }
    let mut state = state();
    if !matches!(*state, State::Closed) {
        return Err(Error::State("it is initialized already; close it first"));
    }
    check_sizes(options)?;
    let region = REGION_PAGES * PAGE_BYTES as u64;
    let bytes = match options.address_bytes {
        0 => ADDRESS_BYTES,
        bytes => bytes.next_multiple_of(region),
    };
    let pager = reserve(options, START, bytes as usize, false)?;
    let device = Locked::new(FileDevice::open(&options.flash_file, options.flash_bytes)?);
    let ready = Ready {
        device: Arc::new(device),
        pager,
        options: options.clone(),
        roots: [0; ROOTS],
    };
    ready.budget()?;
    *state = State::Ready(Box::new(ready));
    Ok(())
}

/// The heap; `None`: nothing is allocated yet.
fn running() -> Result<Option<&'static Heap>, Error> {
    if let Some(heap) = signal::heap() {
        return Ok(Some(heap));
    }
    if signal::is_forked() {
        return Err(Error::Forked);
    }
    match *state() {
        State::Closed => Err(Error::NotInitialized),
        State::Ready(_) => Ok(None),
        State::Running => Ok(signal::heap()),
    }
}

/// The heap, for a function that gets an address of an object.
fn heap_of(address: usize) -> Result<&'static Heap, Error> {
    running()?.ok_or(Error::BadPointer {
        address,
        why: "nothing is allocated yet",
    })
}

/// Allocates. The first allocation that succeeds creates the heap; one that fails leaves flash as
/// it is (N1).
fn allocate(once: impl Fn(&Heap) -> Result<usize, Error>) -> Result<*mut u8, Error> {
    if let Some(heap) = signal::heap() {
        return Ok(once(heap)? as *mut u8);
    }
    if signal::is_forked() {
        return Err(Error::Forked);
    }
    let mut state = state();
    match std::mem::replace(&mut *state, State::Closed) {
        State::Ready(ready) => {
            let (now, allocated) = allocate_first(ready, once);
            *state = now;
            allocated
        }
        found => {
            *state = found;
            drop(state);
            let heap = signal::heap().ok_or(Error::NotInitialized)?;
            Ok(once(heap)? as *mut u8)
        }
    }
}

/// The first allocation, and the state after it (N1).
fn allocate_first(
    ready: Box<Ready>,
    once: impl Fn(&Heap) -> Result<usize, Error>,
) -> (State, Result<*mut u8, Error>) {
    let prepared = ready.budget().and_then(|budget| {
        let store = ObjectStore::prepare(ready.store_options())?;
        let tables = Tables::reserve(&ready.pager, &budget)?;
        Ok((budget, store, tables))
    });
    let (budget, store, tables) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return (State::Ready(ready), Err(error)),
    };
    let Ready {
        device,
        pager,
        options,
        roots,
    } = *ready;
    let kind = pager.kind();
    let heap = Heap::new(pager, store, budget, tables);
    let allocated = once(&heap).and_then(|address| {
        heap.paging().units().give_up_old()?;
        Ok(address)
    });
    let address = match allocated {
        Ok(address) => address,
        Err(error) => {
            let ready = Ready {
                device,
                pager: heap.into_pager(),
                options,
                roots,
            };
            return (State::Ready(Box::new(ready)), Err(error));
        }
    };
    for (number, set) in roots.into_iter().enumerate() {
        heap.set_root(number, set);
    }
    match signal::install(Box::new(heap), kind) {
        Ok(_) => (State::Running, Ok(address as *mut u8)),
        Err(error) => (State::Closed, Err(error)),
    }
}

/// Allocates `count` objects of `bytes` bytes, zeros, each on pages of its own, [`stride`] bytes
/// apart. Several objects are an array, which is freed as a whole.
///
/// # Errors
/// [`Error::Invalid`], [`Error::Budget`], [`Error::NoSpace`], [`Error::NoAddresses`],
/// [`Error::NotInitialized`].
pub fn oalloc(count: usize, bytes: usize) -> Result<*mut u8, Error> {
    allocate(|heap| heap.allocate_objects(count, bytes))
}

/// Bytes from one object of an array to the next; 0: no object can be this long.
pub fn stride(object_bytes: usize) -> usize {
    if object_bytes > OBJECT_BYTES_MAX {
        return 0;
    }
    crate::chunk::rounded(object_bytes).next_multiple_of(PAGE_BYTES)
}

/// A block of memory at a multiple of 16. Its content is undefined.
///
/// # Errors
/// As of [`oalloc`].
pub fn malloc(bytes: usize) -> Result<*mut u8, Error> {
    allocate(|heap| heap.allocate_memory(bytes))
}

/// A block of `count` times `bytes` zeros.
///
/// # Errors
/// As of [`oalloc`].
pub fn calloc(count: usize, bytes: usize) -> Result<*mut u8, Error> {
    let whole = count.checked_mul(bytes);
    let whole = whole.ok_or_else(|| Error::Invalid(format!("{count} times {bytes} bytes")))?;
    allocate(|heap| {
        let block = heap.allocate_memory(whole)?;
        // The first block of a heap is zeros already. If it were filled here and flash failed, data
        // on flash would have been given up already (N1).
        if signal::heap().is_some() {
            heap.zero_or_free(block, whole)?;
        }
        Ok(block)
    })
}

/// A block of `bytes` bytes with the content of the one at `block`, which is freed if the result is
/// another one. Null: a new one.
///
/// # Safety
/// No other thread uses the block meanwhile.
///
/// # Errors
/// As of [`oalloc`], and [`Error::BadPointer`]; then the block is unchanged.
pub unsafe fn realloc(block: *mut u8, bytes: usize) -> Result<*mut u8, Error> {
    if block.is_null() {
        return malloc(bytes);
    }
    let heap = heap_of(block as usize)?;
    let bad = |why| Error::BadPointer {
        address: block as usize,
        why,
    };
    let has = heap.usable_bytes(block as usize);
    let has = has.ok_or_else(|| bad("no block begins there"))?;
    if heap.is_of_array(block as usize) {
        return Err(bad(
            "it is an array of objects, which stays as long as it is",
        ));
    }
    if bytes <= has && bytes >= has / 2 {
        return Ok(block);
    }
    let new = malloc(bytes)?;
    heap.copy_or_free(block as usize, new as usize, has.min(bytes))?;
    heap.free(block as usize)?;
    Ok(new)
}

/// Frees an object, an array or a block. Null: no effect.
///
/// # Safety
/// The object is not used any more.
///
/// # Errors
/// [`Error::BadPointer`], [`Error::DoubleFree`]: nothing was changed.
pub unsafe fn free(object: *mut u8) -> Result<(), Error> {
    if object.is_null() {
        return Ok(());
    }
    heap_of(object as usize)?.free(object as usize)
}

/// Usable bytes of an object, an element of an array or a block; `None`: no object begins there.
pub fn usable_bytes(object: *const u8) -> Option<usize> {
    signal::heap()?.usable_bytes(object as usize)
}

/// Keeps the pages of `bytes` bytes in RAM until [`unpin`], readable, and writable if `write`: the
/// kernel can then use them (`read(2)`); it cannot fetch them itself.
///
/// # Errors
/// [`Error::BadPointer`]; [`Error::Invalid`]: more than half of the page buffer would be pinned.
pub fn pin(object: *const u8, bytes: usize, write: bool) -> Result<(), Error> {
    let heap = heap_of(object as usize)?;
    heap.paging().pin(object as usize, bytes, write)
}

/// Undoes [`pin`]; with the same arguments, once for each call of it.
///
/// # Errors
/// [`Error::BadPointer`]: it is not pinned.
pub fn unpin(object: *const u8, bytes: usize) -> Result<(), Error> {
    let heap = heap_of(object as usize)?;
    heap.paging().unpin(object as usize, bytes)
}

/// Makes all allocated objects durable: [`restore`] restores them in a later life, at the same
/// addresses. An object that another thread writes to meanwhile is stored as before or after the
/// write, each one whole.
///
/// # Errors
/// [`Error::Flash`]: the previous checkpoint, if there is one, stays valid. [`Error::State`]:
/// nothing has been allocated since [`init`], so there is nothing that may replace a checkpoint.
pub fn checkpoint(path: &Path) -> Result<(), Error> {
    let heap = running()?;
    let heap = heap.ok_or(Error::State(
        "nothing is allocated yet: a checkpoint comes after it, or after a restore",
    ))?;
    heap.checkpoint(path)
}

/// Continues from a checkpoint; call it after [`init`], before the first allocation. It reads the
/// checkpoint and none of the data.
///
/// # Errors
/// [`Error::Checkpoint`], [`Error::Version`], [`Error::AddressTaken`], [`Error::Budget`],
/// [`Error::Flash`]: the library is closed then, and may be initialized again.
pub fn restore(path: &Path) -> Result<(), Error> {
    if signal::is_forked() {
        return Err(Error::Forked);
    }
    let mut state = state();
    let ready = match std::mem::replace(&mut *state, State::Closed) {
        State::Ready(ready) => *ready,
        State::Closed => return Err(Error::NotInitialized),
        State::Running => {
            *state = State::Running;
            return Err(Error::State("restore comes before anything is allocated"));
        }
    };
    let budget = ready.budget()?;
    let restored = ObjectStore::restore(ready.store_options(), path)?;
    let frame = Frame::of(&restored.blob, path)?;
    let pager = if (ready.pager.start(), ready.pager.bytes()) == (frame.start, frame.bytes) {
        ready.pager
    } else {
        drop(ready.pager);
        reserve(&ready.options, frame.start, frame.bytes, true)?
    };
    let kind = pager.kind();
    let tables = Tables::reserve(&pager, &budget)?;
    let heap = Heap::new(pager, restored.store, budget, tables);
    heap.restore(&restored.blob, path)?;
    signal::install(Box::new(heap), kind)?;
    *state = State::Running;
    Ok(())
}

/// Stores an address for a later life, under a number below 16. [`restore`] replaces all of them.
///
/// # Errors
/// [`Error::Invalid`], [`Error::NotInitialized`].
pub fn set_root(number: usize, object: *mut u8) -> Result<(), Error> {
    check_root(number)?;
    if let Some(heap) = running()? {
        heap.set_root(number, object as usize);
        return Ok(());
    }
    if let State::Ready(ready) = &mut *state() {
        ready.roots[number] = object as usize;
        return Ok(());
    }
    set_root(number, object) // another thread has allocated meanwhile
}

/// The stored address; null: none.
///
/// # Errors
/// As of [`set_root`].
pub fn root(number: usize) -> Result<*mut u8, Error> {
    check_root(number)?;
    if let Some(heap) = running()? {
        return Ok(heap.root(number) as *mut u8);
    }
    if let State::Ready(ready) = &*state() {
        return Ok(ready.roots[number] as *mut u8);
    }
    root(number) // as above
}

fn check_root(number: usize) -> Result<(), Error> {
    if number >= ROOTS {
        return Err(Error::Invalid(format!("root {number}: there are {ROOTS}")));
    }
    Ok(())
}

/// The counts since [`init`]; before the first allocation all are 0.
///
/// # Errors
/// [`Error::NotInitialized`].
pub fn stats() -> Result<Stats, Error> {
    Ok(running()?.map(Heap::stats).unwrap_or_default())
}

/// Closes the library: releases memory, addresses and the flash file. Objects that no checkpoint
/// holds are lost.
///
/// # Safety
/// No other thread is within this library or touches its memory, now or later.
///
/// # Errors
/// [`Error::NotInitialized`].
pub unsafe fn close() -> Result<(), Error> {
    if signal::is_forked() {
        return Err(Error::Forked); // none of it belongs to the child
    }
    let mut state = state();
    match std::mem::replace(&mut *state, State::Closed) {
        State::Closed => Err(Error::NotInitialized),
        State::Ready(_) => Ok(()),
        State::Running => {
            // SAFETY: the caller's promise.
            drop(unsafe { signal::uninstall() });
            Ok(())
        }
    }
}
