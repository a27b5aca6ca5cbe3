//! The path of a checkpoint: only a checkpoint is replaced.
//!
//! `ssd_checkpoint` with the flash file's path returned `SSD_OK`, put the checkpoint in the place
//! of the flash file, and all data was lost. A device node, a pipe or a text were replaced too,
//! also at the name beside the path, to which the checkpoint is written first.

mod common;

use common::{Heap, options};
use duramen_alloc::{Error, Faults};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

const EINVAL: i32 = -2;
const FLASH: u64 = 8 << 20;
const RAM: u64 = 6 << 20;

fn beside(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.new", path.display()))
}

/// Refused, with a sentence of the reason.
fn assert_refused(path: &Path, why: &str) {
    let error = duramen_alloc::checkpoint(path).unwrap_err();
    assert_eq!(error.code(), EINVAL, "{path:?}: {error}");
    assert!(error.to_string().contains(why), "{path:?}: {error}");
}

fn pipe(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

/// A heap with one object, which is in a checkpoint.
fn begun() -> Option<(Heap, *mut u64, PathBuf)> {
    let heap = Heap::open(FLASH, RAM, Faults::Protect)?;
    let object = duramen_alloc::oalloc(1, 64).unwrap().cast::<u64>();
    duramen_alloc::set_root(0, object.cast()).unwrap();
    // SAFETY: an object of 64 bytes.
    unsafe { object.write(1) };
    let good = heap.dir.path().join("good");
    duramen_alloc::checkpoint(&good).unwrap();
    Some((heap, object, good))
}

/// The object's value in the checkpoint, in another life.
fn restored(heap: &Heap, path: &Path) -> u64 {
    // SAFETY: it is not used any more. It may be closed already.
    let _ = unsafe { duramen_alloc::close() };
    duramen_alloc::init(&options(heap.dir.path(), FLASH, RAM, Faults::Protect)).unwrap();
    duramen_alloc::restore(path).unwrap();
    let object = duramen_alloc::root(0).unwrap().cast::<u64>();
    // SAFETY: an object of 64 bytes.
    unsafe { object.read() }
}

#[test]
fn the_flash_file_is_never_replaced() {
    let Some((heap, object, good)) = begun() else {
        return;
    };
    let dir = heap.dir.path();
    let flash = dir.join("flash");
    std::fs::hard_link(&flash, dir.join("hard")).unwrap();
    std::fs::hard_link(&flash, dir.join("other.new")).unwrap();
    std::os::unix::fs::symlink("flash", dir.join("soft")).unwrap();
    // SAFETY: an object of 64 bytes.
    unsafe { object.write(2) };
    assert_refused(&flash, "it is the flash file");
    assert_refused(
        &dir.join("../").join(dir.file_name().unwrap()).join("flash"),
        "flash file",
    );
    assert_refused(&dir.join("hard"), "it is the flash file");
    assert_refused(&dir.join("other"), "it is the flash file");
    assert_refused(&dir.join("soft"), "no regular file");
    assert_eq!(restored(&heap, &good), 1, "the checkpoint before holds");
}

#[test]
fn what_is_no_checkpoint_is_never_replaced() {
    let Some((heap, object, good)) = begun() else {
        return;
    };
    let dir = heap.dir.path();
    let text = dir.join("text");
    std::fs::write(&text, "precious").unwrap();
    for is_beside in [false, true] {
        let at = |name: &str| {
            let path = dir.join(format!("{name}-{is_beside}"));
            let place = if is_beside {
                beside(&path)
            } else {
                path.clone()
            };
            (path, place)
        };
        let (path, place) = at("pipe");
        pipe(&place);
        assert_refused(&path, "no regular file");
        assert!(place.symlink_metadata().unwrap().file_type().is_fifo());
        let (path, place) = at("directory");
        std::fs::create_dir(&place).unwrap();
        assert_refused(&path, "no regular file");
        let (path, place) = at("link");
        std::os::unix::fs::symlink(&text, &place).unwrap();
        assert_refused(&path, "no regular file");
        assert!(place.is_symlink());
        let (path, place) = at("nowhere");
        std::os::unix::fs::symlink("none", &place).unwrap();
        assert_refused(&path, "no regular file");
        for words in ["precious", "DURA", "\0\0 and a text"] {
            let (path, place) = at("words");
            std::fs::write(&place, words).unwrap();
            assert_refused(&path, "no checkpoint");
            assert_eq!(std::fs::read_to_string(&place).unwrap(), words);
        }
    }
    assert_eq!(std::fs::read_to_string(&text).unwrap(), "precious");
    // An empty file, a former checkpoint, and the remains of a checkpoint that was killed.
    let empty = dir.join("empty");
    std::fs::write(&empty, "").unwrap();
    std::fs::write(beside(&empty), "").unwrap();
    duramen_alloc::checkpoint(&empty).unwrap();
    let mut unfinished = vec![0; 4096];
    unfinished.extend(b"a part of it");
    for left in [unfinished, std::fs::read(&empty).unwrap()] {
        std::fs::write(beside(&good), left).unwrap();
        duramen_alloc::checkpoint(&good).unwrap();
        assert!(!beside(&good).exists());
    }
    // SAFETY: an object of 64 bytes.
    unsafe { object.write(3) };
    duramen_alloc::checkpoint(&good).unwrap();
    assert_eq!(restored(&heap, &good), 3);
}

/// The two paths of a program were exchanged: its checkpoint would have become the flash file.
#[test]
fn a_checkpoint_is_no_flash_file() {
    let Some((heap, _, good)) = begun() else {
        return;
    };
    heap.close();
    let before = std::fs::read(&good).unwrap();
    let mut swapped = options(heap.dir.path(), FLASH, RAM, Faults::Protect);
    swapped.flash_file = good.clone();
    let error = duramen_alloc::init(&swapped).unwrap_err();
    assert!(
        matches!(error, Error::Disk(_)) && error.code() == EINVAL,
        "{error}"
    );
    assert!(error.to_string().contains("a checkpoint"), "{error}");
    assert!(std::fs::read(&good).unwrap() == before);
    assert_eq!(restored(&heap, &good), 1);
}

/// A restore from a pipe waited for a writer, for ever.
#[test]
fn a_restore_takes_a_regular_file_only() {
    let Some((heap, _, good)) = begun() else {
        return;
    };
    let fifo = heap.dir.path().join("fifo");
    pipe(&fifo);
    for path in [&fifo, heap.dir.path(), Path::new("/dev/null")] {
        // SAFETY: it is not used any more. It may be closed already.
        let _ = unsafe { duramen_alloc::close() };
        duramen_alloc::init(&options(heap.dir.path(), FLASH, RAM, Faults::Protect)).unwrap();
        let error = duramen_alloc::restore(path).unwrap_err();
        assert_eq!(error.code(), -9, "{path:?}: {error}");
    }
    assert_eq!(restored(&heap, &good), 1);
}
