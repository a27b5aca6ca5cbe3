//! A call that allocates nothing leaves the last checkpoint as it is (session::N1): between `init`
//! and `restore` a program reads counts and roots, passes wrong arguments, or asks for more than
//! there is.

mod common;

use common::options;
use duramen_alloc::{Error, Faults};
use std::path::Path;

const FLASH: u64 = 64 << 20;
const RAM: u64 = 5 << 20;
const KINDS: [Faults; 2] = [Faults::Userfault, Faults::Protect];

/// False: this kernel cannot do it; a message reports that.
fn begin(dir: &Path, faults: Faults) -> bool {
    match duramen_alloc::init(&options(dir, FLASH, RAM, faults)) {
        Ok(()) => true,
        Err(error @ Error::Kernel { .. }) => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn close() {
    // SAFETY: this test has one thread.
    unsafe { duramen_alloc::close() }.unwrap();
}

/// Every function, in ways that allocate nothing: its result, and the one that the header names.
fn calls(dir: &Path) -> Vec<(&'static str, i32, i32)> {
    let mut outside = [0_u64; 8];
    let foreign = outside.as_mut_ptr().cast::<u8>();
    let code = |done: Result<(), Error>| done.map_or_else(|error| error.code(), |()| 0);
    let got = |done: Result<*mut u8, Error>| done.map_or_else(|error| error.code(), |_| 0);
    // SAFETY: a foreign pointer is an error that changes nothing.
    let (free, realloc) = unsafe {
        (
            duramen_alloc::free(foreign),
            duramen_alloc::realloc(foreign, 10),
        )
    };
    // SAFETY: null: no effect, or a new block, which cannot be this long.
    let (free_null, realloc_null) = unsafe {
        (
            duramen_alloc::free(std::ptr::null_mut()),
            duramen_alloc::realloc(std::ptr::null_mut(), usize::MAX),
        )
    };
    vec![
        ("root", got(duramen_alloc::root(0)), 0),
        ("root beyond", got(duramen_alloc::root(99)), -2),
        ("set_root", code(duramen_alloc::set_root(1, foreign)), 0),
        (
            "set_root beyond",
            code(duramen_alloc::set_root(99, foreign)),
            -2,
        ),
        ("stats", code(duramen_alloc::stats().map(drop)), 0),
        ("free", code(free), -5),
        ("free of null", code(free_null), 0),
        ("realloc", got(realloc), -5),
        ("realloc of null", got(realloc_null), -2),
        ("pin", code(duramen_alloc::pin(foreign, 64, true)), -5),
        ("unpin", code(duramen_alloc::unpin(foreign, 64)), -5),
        ("no object", got(duramen_alloc::oalloc(0, 8)), -2),
        ("too long", got(duramen_alloc::oalloc(1, 2 << 30)), -2),
        ("too many", got(duramen_alloc::oalloc(1 << 20, 1024)), -4),
        (
            "too many for RAM",
            got(duramen_alloc::oalloc(350_000, 128)),
            -3,
        ),
        (
            "too many addresses",
            got(duramen_alloc::oalloc(u32::MAX as usize, 4)),
            -4,
        ),
        ("malloc beyond", got(duramen_alloc::malloc(usize::MAX)), -2),
        (
            "malloc of more than flash",
            got(duramen_alloc::malloc(1 << 30)),
            -4,
        ),
        ("calloc", got(duramen_alloc::calloc(usize::MAX, 2)), -2),
        (
            "checkpoint",
            code(duramen_alloc::checkpoint(&dir.join("checkpoint"))),
            -1,
        ),
        (
            "checkpoint of a device",
            code(duramen_alloc::checkpoint(Path::new("/dev/null"))),
            -1,
        ),
    ]
}

#[test]
fn what_allocates_nothing_leaves_the_checkpoint() {
    for faults in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        if !begin(dir.path(), faults) {
            continue;
        }
        let object = duramen_alloc::oalloc(1, 100).unwrap();
        // SAFETY: an object of this length.
        unsafe { object.write(77) };
        duramen_alloc::set_root(0, object).unwrap();
        duramen_alloc::checkpoint(&path).unwrap();
        close();

        assert!(begin(dir.path(), faults));
        let before = std::fs::read(dir.path().join("flash")).unwrap();
        for (call, found, wanted) in calls(dir.path()) {
            assert_eq!(found, wanted, "{call} by {faults:?}");
        }
        assert!(duramen_alloc::root(0).unwrap().is_null());
        assert_eq!(
            duramen_alloc::stats().unwrap(),
            duramen_alloc::Stats::default()
        );
        let after = std::fs::read(dir.path().join("flash")).unwrap();
        assert!(before == after, "the flash file is unchanged");
        duramen_alloc::restore(&path).unwrap();
        assert_eq!(duramen_alloc::root(0).unwrap(), object);
        assert!(
            duramen_alloc::root(1).unwrap().is_null(),
            "the checkpoint's roots"
        );
        // SAFETY: as above.
        assert_eq!(unsafe { object.read() }, 77);
        close();

        // Roots that are set before the first allocation stay.
        assert!(begin(dir.path(), faults));
        duramen_alloc::set_root(3, object).unwrap();
        duramen_alloc::malloc(10).unwrap();
        assert_eq!(duramen_alloc::root(3).unwrap(), object);
        close();
    }
}
