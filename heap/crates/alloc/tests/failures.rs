//! Failures that no function can return: flash that is full or fails while a page is brought into
//! RAM, and a process that is killed. Each in a child process, which runs this test again.

mod common;

use common::{assert_filled, fill, options};
use duramen_alloc::{Error, Faults};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const CHILD: &str = "DURAMEN_ALLOC_TEST_CHILD";
/// More than half of usable flash: two versions of all of them do not fit.
const OBJECTS: usize = 3000;
const WORDS: usize = 256;
const RAM: u64 = 5 << 20;
const FLASH: u64 = 12 << 20;

/// Runs the test of this name again, in a folder.
fn child(name: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", name])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The folder, in the child.
fn here() -> Option<std::path::PathBuf> {
    std::env::var_os(CHILD).map(Into::into)
}

/// False: this kernel cannot do it; a message reports that.
fn begin(dir: &Path) -> bool {
    match duramen_alloc::init(&options(dir, FLASH, RAM, Faults::Userfault)) {
        Ok(()) => true,
        Err(error @ Error::Kernel { .. }) => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn at(array: usize, index: usize) -> *mut u64 {
    (array + index * duramen_alloc::stride(WORDS * 8)) as *mut u64
}

fn fill_all(array: usize, version: u64) {
    for index in 0..OBJECTS {
        // SAFETY: an array of this many objects with this many words.
        unsafe { fill(at(array, index), WORDS, index as u64, version) };
    }
}

fn assert_restored(dir: &Path, version: impl Fn(u64) -> u64) {
    // The tests of this file share a process, which has one heap.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !begin(dir) {
        return;
    }
    duramen_alloc::restore(&dir.join("checkpoint")).unwrap();
    let array = duramen_alloc::root(0).unwrap().addr();
    let round = duramen_alloc::root(1).unwrap().addr() as u64;
    for index in 0..OBJECTS {
        // SAFETY: as above.
        unsafe { assert_filled(at(array, index), WORDS, index as u64, version(round)) };
    }
    // SAFETY: it is not used any more.
    unsafe { duramen_alloc::close() }.unwrap();
}

/// The last checkpoint holds flash that is needed: the program gets a message, dies by SIGBUS as
/// with any mapping whose device is full, and the checkpoint is whole.
#[test]
fn a_full_device_ends_the_program_with_a_word_and_a_whole_checkpoint() {
    let name = "a_full_device_ends_the_program_with_a_word_and_a_whole_checkpoint";
    if let Some(dir) = here() {
        if begin(&dir) {
            let array = duramen_alloc::oalloc(OBJECTS, WORDS * 8).unwrap();
            fill_all(array.addr(), 1);
            duramen_alloc::set_root(0, array).unwrap();
            duramen_alloc::checkpoint(&dir.join("checkpoint")).unwrap();
            for version in 2..20 {
                fill_all(array.addr(), version);
            }
            panic!("flash never was full");
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ended = child(name, dir.path()).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    if ended.status.success() {
        return; // skipped
    }
    assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{said}");
    assert!(said.contains("flash is full"), "{said}");
    assert_restored(dir.path(), |_| 1);
}

/// Unreadable flash: a message, and a signal.
#[test]
fn a_device_that_fails_ends_the_program_with_a_word() {
    let name = "a_device_that_fails_ends_the_program_with_a_word";
    if let Some(dir) = here() {
        if begin(&dir) {
            let array = duramen_alloc::oalloc(OBJECTS, WORDS * 8).unwrap();
            fill_all(array.addr(), 1);
            let file = std::fs::File::options().write(true).open(dir.join("flash"));
            file.unwrap().set_len(4096).unwrap();
            for index in 0..OBJECTS {
                // SAFETY: as above.
                unsafe { assert_filled(at(array.addr(), index), WORDS, index as u64, 1) };
            }
            panic!("everything was read from nowhere");
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ended = child(name, dir.path()).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    if !ended.status.success() {
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{said}");
        assert!(said.contains("cannot be brought"), "{said}");
    }
}

/// Killed at several moments between checkpoints: a restore finds one state, whole.
#[test]
fn kill_9_leaves_the_last_checkpoint() {
    use std::io::BufRead;
    if let Some(dir) = here() {
        if begin(&dir) {
            let array = duramen_alloc::oalloc(OBJECTS, WORDS * 8).unwrap();
            duramen_alloc::set_root(0, array).unwrap();
            for round in 1.. {
                fill_all(array.addr(), round);
                duramen_alloc::set_root(1, round as *mut u8).unwrap();
                duramen_alloc::checkpoint(&dir.join("checkpoint")).unwrap();
                println!("round {round}");
            }
        }
        println!("round 0");
        return;
    }
    for rounds in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = child("kill_9_leaves_the_last_checkpoint", dir.path());
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = None;
        for line in lines {
            if let Some(round) = line.unwrap().strip_prefix("round ") {
                said = round.parse::<u64>().ok();
            }
            if said == Some(0) || said >= Some(rounds) {
                break;
            }
        }
        child.kill().unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = said.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&ended.stderr)));
        if said > 0 {
            assert_restored(dir.path(), |round| {
                assert!(round >= said, "round {said} was told of, {round} is found");
                round
            });
        }
    }
}
