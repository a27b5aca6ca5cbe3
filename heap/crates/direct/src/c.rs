//! The calls for C; `include/duramen_direct.h` documents each. A failure is a line on standard
//! error and -1.

use crate::{Error, Objects, Stats};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

static OBJECTS: OnceLock<Objects> = OnceLock::new();

fn opened() -> &'static Objects {
    OBJECTS.get().expect("direct_open comes first")
}

fn code<T>(done: Result<T, Error>, number: impl FnOnce(T) -> c_int) -> c_int {
    match done {
        Ok(done) => number(done),
        Err(error) => {
            eprintln!("duramen_direct: {error}");
            -1
        }
    }
}

/// # Safety
/// `flash_file` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn direct_open(
    flash_file: *const c_char,
    flash_bytes: u64,
    ram_bytes: u64,
    objects: u32,
    object_bytes_min: usize,
    object_bytes_max: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let file = unsafe { CStr::from_ptr(flash_file) };
    let file = Path::new(OsStr::from_bytes(file.to_bytes()));
    let lengths = object_bytes_min..=object_bytes_max;
    let made = Objects::create(file, flash_bytes, ram_bytes, objects, lengths);
    code(made, |made| {
        assert!(OBJECTS.set(made).is_ok(), "direct_open is called once");
        0
    })
}

/// # Safety
/// `length` bytes can be read at `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn direct_put(name: u32, bytes: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), length) };
    code(opened().put(name, bytes), |()| 0)
}

/// # Safety
/// `length` bytes can be written at `into`, and hold values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn direct_get(name: u32, into: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast(), length) };
    code(opened().get(name, into), c_int::from)
}

#[unsafe(no_mangle)]
pub extern "C" fn direct_remove(name: u32) -> c_int {
    code(opened().remove(name), |()| 0)
}

/// # Safety
/// `stats` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn direct_stats(stats: *mut Stats) {
    // SAFETY: the caller's promise.
    unsafe { stats.write(opened().stats()) };
}
