//! The C interface; `include/duramen_alloc.h` documents each function.
//!
//! **Invariants**
//! - E1: every failure has a number and a text, both of the calling thread, until its next call
//!   that fails. They need no destructor, so functions may fail in a thread that is ending, as in
//!   destructors of its other data.
//! - E2: a thread is not cancelled within a function (signal::H2).

use crate::error::Error;
use crate::pager::Faults;
use crate::session::{self, Options};
use crate::signal;
use crate::stats::Stats;
use std::cell::Cell;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

/// Bytes of a text, its end included. A longer one is cut.
const TEXT_BYTES: usize = 1024;

thread_local! {
    static CODE: Cell<c_int> = const { Cell::new(0) };
    static TEXT: Cell<[u8; TEXT_BYTES]> = const { Cell::new([0; TEXT_BYTES]) };
}

fn failed(error: &Error) -> c_int {
    let code = error.code();
    CODE.set(code);
    let text = error.to_string().replace('\0', " ");
    let mut bytes = [0; TEXT_BYTES];
    let end = text.floor_char_boundary(TEXT_BYTES - 1);
    bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
    TEXT.set(bytes);
    code
}

fn number(done: Result<(), Error>) -> c_int {
    done.map_or_else(|error| failed(&error), |()| 0)
}

fn pointer(done: Result<*mut u8, Error>) -> *mut c_void {
    match done {
        Ok(object) => object.cast(),
        Err(error) => {
            failed(&error);
            // SAFETY: the thread's own.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            std::ptr::null_mut()
        }
    }
}

/// Calls `call`, which runs to its end even if another thread cancels this one meanwhile (E2).
fn whole<T: Copy>(call: impl FnOnce() -> T) -> T {
    let before = signal::forbid_cancel();
    let called = std::panic::catch_unwind(AssertUnwindSafe(call));
    let Ok(value) = called.map_err(drop) else {
        std::process::abort() // the panic has been reported, and C cannot handle one
    };
    signal::restore_cancel(before);
    value
}

/// `struct ssd_options`.
#[repr(C)]
pub struct SsdOptions {
    flash_file: *const c_char,
    flash_bytes: u64,
    ram_bytes: u64,
    page_buffer_bytes: u64,
    address_bytes: u64,
    faults: u32,
    reserved: [u32; 7],
}

/// # Safety
/// A string or null.
unsafe fn path(text: *const c_char) -> Result<PathBuf, Error> {
    if text.is_null() {
        return Err(Error::Invalid("a path is missing (NULL)".to_owned()));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)).to_path_buf())
}

/// # Safety
/// As in the header: null, or options.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ssd_init(options: *const SsdOptions) -> c_int {
    // SAFETY: the caller's promise.
    whole(|| number(unsafe { init(options) }))
}

/// # Safety
/// Null, or options.
unsafe fn init(options: *const SsdOptions) -> Result<(), Error> {
    let invalid = |why: String| Err(Error::Invalid(why));
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { options.as_ref() }) else {
        return invalid("options are missing (NULL)".to_owned());
    };
    let faults = match options.faults {
        0 => None,
        1 => Some(Faults::Userfault),
        2 => Some(Faults::Protect),
        other => return invalid(format!("faults = {other}: 0, 1 or 2")),
    };
    if options.reserved != [0; 7] {
        return invalid("reserved fields must be 0".to_owned());
    }
    session::init(&Options {
        // SAFETY: the caller's promise.
        flash_file: unsafe { path(options.flash_file) }?,
        flash_bytes: options.flash_bytes,
        ram_bytes: options.ram_bytes,
        page_buffer_bytes: options.page_buffer_bytes,
        address_bytes: options.address_bytes,
        faults,
    })
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_oalloc(count: usize, bytes: usize) -> *mut c_void {
    whole(|| pointer(session::oalloc(count, bytes)))
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_stride(bytes: usize) -> usize {
    session::stride(bytes)
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_malloc(bytes: usize) -> *mut c_void {
    whole(|| pointer(session::malloc(bytes)))
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_calloc(count: usize, bytes: usize) -> *mut c_void {
    whole(|| pointer(session::calloc(count, bytes)))
}

/// # Safety
/// As in the header: null, or a block that no other thread uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ssd_realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    whole(|| pointer(unsafe { session::realloc(block.cast(), bytes) }))
}

/// # Safety
/// As in the header: the object is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ssd_free(object: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    whole(|| number(unsafe { session::free(object.cast()) }))
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_usable_size(object: *const c_void) -> usize {
    whole(|| session::usable_bytes(object.cast()).unwrap_or(0))
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_pin(object: *const c_void, bytes: usize, write: c_int) -> c_int {
    whole(|| number(session::pin(object.cast(), bytes, write != 0)))
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_unpin(object: *const c_void, bytes: usize) -> c_int {
    whole(|| number(session::unpin(object.cast(), bytes)))
}

/// # Safety
/// As in the header: a string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ssd_checkpoint(file: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    whole(|| number(unsafe { path(file) }.and_then(|path| session::checkpoint(&path))))
}

/// # Safety
/// As in the header: a string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ssd_restore(file: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    whole(|| number(unsafe { path(file) }.and_then(|path| session::restore(&path))))
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_set_root(number_of: u32, object: *mut c_void) -> c_int {
    whole(|| number(session::set_root(number_of as usize, object.cast())))
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_root(number_of: u32) -> *mut c_void {
    whole(|| match session::root(number_of as usize) {
        Ok(object) => object.cast(),
        Err(error) => {
            failed(&error);
            std::ptr::null_mut()
        }
    })
}

/// # Safety
/// As in the header: null, or room for the counts.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ssd_stats(into: *mut Stats) -> c_int {
    let done = || {
        if into.is_null() {
            let why = "room for the counts is missing (NULL)";
            return Err(Error::Invalid(why.to_owned()));
        }
        // SAFETY: the caller's promise.
        session::stats().map(|stats| unsafe { into.write(stats) })
    };
    whole(|| number(done()))
}

/// # Safety
/// As in the header: no other thread uses the library or its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ssd_close() -> c_int {
    // SAFETY: the caller's promise.
    whole(|| number(unsafe { session::close() }))
}

/// # Safety
/// As in the header: the arguments of a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ssd_handle_fault(
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    whole(|| c_int::from(unsafe { signal::serve_undisturbed(info, context) }))
}

/// As in the header.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_error() -> c_int {
    CODE.get()
}

/// As in the header (E1).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ssd_error_message() -> *const c_char {
    TEXT.with(|text| text.as_ptr().cast())
}
