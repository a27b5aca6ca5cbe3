//! Each system call of a checkpoint fails, or the process is killed there: the checkpoint under its
//! name is the previous or the new one, whole, and it is the previous one if the program got an
//! error.
//!
//! A child process delegates its system calls to this one (seccomp's user notification), which lets
//! all of them pass except one. So the test sees the calls of every thread of the library.

mod common;

use common::{assert_filled, fill, options};
use duramen_alloc::{Error, Faults};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const CHILD: &str = "DURAMEN_ALLOC_TEST_INTERRUPTED";
const OBJECTS: usize = 6;
const WORDS: usize = 120;
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory of both processes: the descriptor of the child's system calls and 1; the result of the
/// checkpoint.
struct Shared(*mut AtomicU64);

const RUNNING: u64 = 0;
const MADE: u64 = 1;
const FAILED: u64 = 2;

impl Shared {
    fn new(dir: &Path) -> Shared {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("shared"))
            .unwrap();
        file.set_len(4096).unwrap();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, of a file with this length.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                both,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Shared(at.cast())
    }

    fn word(&self, nth: usize) -> &AtomicU64 {
        // SAFETY: mapped, a page long, and zeros at first.
        unsafe { &*self.0.add(nth) }
    }

    fn calls(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn ended(&self) -> &AtomicU64 {
        self.word(1)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// From now on each system call of each thread waits for an answer, which comes through the
/// descriptor.
fn give_calls_away() -> io::Result<i32> {
    let mut all = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_USER_NOTIF,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: all.as_mut_ptr(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
        | libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
    // SAFETY: plain system calls with a filter that lives long enough.
    let descriptor = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &program,
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(descriptor as i32)
}

fn fill_all(array: usize, block: *mut u64, version: u64) {
    let stride = duramen_alloc::stride(WORDS * 8);
    for index in 0..OBJECTS {
        // SAFETY: an array of this many objects with this many words.
        unsafe {
            fill(
                (array + index * stride) as *mut u64,
                WORDS,
                index as u64,
                version,
            )
        };
    }
    // SAFETY: a block of this many words.
    unsafe { fill(block, WORDS, 99, version) };
}

fn begin(dir: &Path, kind: Faults) -> bool {
    match duramen_alloc::init(&options(dir, 8 << 20, 6 << 20, kind)) {
        Ok(()) => true,
        Err(error @ Error::Kernel { .. }) => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// The child: a normal checkpoint of version 1, then one of version 2 with delegated system calls.
fn live(dir: &Path, kind: Faults) {
    let shared = Shared::new(dir);
    if !begin(dir, kind) {
        return;
    }
    let array = duramen_alloc::oalloc(OBJECTS, WORDS * 8).unwrap();
    let block = duramen_alloc::malloc(WORDS * 8).unwrap();
    duramen_alloc::set_root(0, array).unwrap();
    duramen_alloc::set_root(1, block).unwrap();
    fill_all(array.addr(), block.cast(), 1);
    let path = dir.join("checkpoint");
    duramen_alloc::checkpoint(&path).unwrap();
    fill_all(array.addr(), block.cast(), 2);
    match give_calls_away() {
        Ok(descriptor) => shared
            .calls()
            .store(descriptor as u64 + 1, Ordering::SeqCst),
        Err(error) => return println!("skipped: seccomp: {error}"),
    }
    let made = duramen_alloc::checkpoint(&path);
    let ended = if made.is_ok() { MADE } else { FAILED };
    shared.ended().store(ended, Ordering::SeqCst);
    // SAFETY: the process ends here, like a killed one.
    unsafe { libc::_exit(0) };
}

/// The event at the call of this number.
#[derive(Clone, Copy, Debug)]
enum Event {
    Fails(u64, i32),
    Killed(u64),
}

/// The child's descriptor, in this process.
fn calls_of(child: &Child, shared: &Shared) -> Option<OwnedFd> {
    let until = Instant::now() + PATIENCE;
    let number = loop {
        match shared.calls().load(Ordering::SeqCst) {
            0 if Instant::now() > until => panic!("the child does not begin"),
            0 => std::thread::sleep(Duration::from_millis(1)),
            number => break number - 1,
        }
        // SAFETY: checks whether the child has ended, and leaves the reaping to `wait`.
        let has_ended = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, child.id(), &mut info, how) == 0 && info.si_pid() != 0
        };
        if has_ended {
            return None;
        }
    };
    // SAFETY: new descriptors, which have no other owner.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, child.id(), 0);
        assert!(process >= 0, "{}", io::Error::last_os_error());
        let process = OwnedFd::from_raw_fd(process as i32);
        let calls = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0);
        assert!(calls >= 0, "{}", io::Error::last_os_error());
        Some(OwnedFd::from_raw_fd(calls as i32))
    }
}

/// Answers the child's calls until it has ended; returns the number of calls before the end of its
/// checkpoint.
fn answer(child: &mut Child, calls: &OwnedFd, shared: &Shared, event: Event) -> u64 {
    let mut count = 0;
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(
            Instant::now() < until,
            "{event:?}: the child waits for ever"
        );
        let mut poll = libc::pollfd {
            fd: calls.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor.
        let found = unsafe { libc::poll(&mut poll, 1, 1000) };
        if found > 0 && poll.revents & libc::POLLIN == 0 {
            return count; // the child has closed its end
        }
        if found <= 0 {
            continue;
        }
        // SAFETY: structures of the kernel, for which zeros are valid.
        let (mut call, mut response) = unsafe {
            (
                std::mem::zeroed::<libc::seccomp_notif>(),
                std::mem::zeroed::<libc::seccomp_notif_resp>(),
            )
        };
        // SAFETY: it fills the structure.
        let got =
            unsafe { libc::ioctl(calls.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &mut call) };
        if got != 0 {
            continue; // the thread was killed meanwhile
        }
        response.id = call.id;
        response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        if shared.ended().load(Ordering::SeqCst) == RUNNING {
            let waits_or_wakes = i64::from(call.data.nr) == libc::SYS_futex;
            match event {
                // A futex only wakes and waits: it has no device that could fail, and after a lost
                // wake-up its waiter waits for ever.
                Event::Fails(nth, _) if nth == count && waits_or_wakes => {}
                Event::Fails(nth, error) if nth == count => {
                    (response.flags, response.error) = (0, -error);
                }
                Event::Killed(nth) if nth == count => child.kill().unwrap(),
                _ => {}
            }
            count += 1;
        }
        // SAFETY: reads the structure. It fails if the thread was killed meanwhile.
        unsafe { libc::ioctl(calls.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &response) };
    }
}

/// The version that a restore finds in all objects.
fn restored_version(dir: &Path, kind: Faults, event: Event) -> u64 {
    assert!(begin(dir, kind));
    duramen_alloc::restore(&dir.join("checkpoint")).unwrap_or_else(|error| {
        panic!("{event:?}: {error}");
    });
    let array = duramen_alloc::root(0).unwrap().addr();
    let block = duramen_alloc::root(1).unwrap().cast::<u64>();
    // SAFETY: both are restored, with the same length.
    let version = unsafe { *block } >> 8 & 0xff;
    let stride = duramen_alloc::stride(WORDS * 8);
    for index in 0..OBJECTS {
        // SAFETY: as above.
        unsafe {
            let object = (array + index * stride) as *const u64;
            assert_filled(object, WORDS, index as u64, version);
        }
    }
    // SAFETY: as above; not used any more afterwards.
    unsafe {
        assert_filled(block, WORDS, 99, version);
        duramen_alloc::close().unwrap();
    }
    version
}

/// Runs the child once. False: its checkpoint ended before the event, or this machine cannot do it.
fn once(name: &str, kind: Faults, event: Event) -> bool {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
    let shared = Shared::new(dir.path());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", name])
        .env(CHILD, dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let Some(calls) = calls_of(&child, &shared) else {
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(said.contains("skipped"), "{said}");
        println!("{said}");
        return false;
    };
    let count = answer(&mut child, &calls, &shared, event);
    let _: ExitStatus = child.wait().unwrap();
    let version = restored_version(dir.path(), kind, event);
    match shared.ended().load(Ordering::SeqCst) {
        MADE => assert_eq!(version, 2, "{event:?}: it was made"),
        FAILED => assert_eq!(version, 1, "{event:?}: it failed"),
        _ => assert!((1..=2).contains(&version), "{event:?}: one of both"),
    }
    let (Event::Fails(nth, _) | Event::Killed(nth)) = event;
    nth < count
}

fn each(name: &str, kind: Faults, event: impl Fn(u64) -> Event) {
    if let Some(dir) = std::env::var_os(CHILD) {
        return live(Path::new(&dir), kind);
    }
    // The tests of this file share a process, which has one heap.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let tried = (0..)
        .take_while(|nth| once(name, kind, event(*nth)))
        .count();
    println!("{tried} system calls");
}

#[test]
fn a_system_call_fails_by_userfaultfd() {
    let name = "a_system_call_fails_by_userfaultfd";
    each(name, Faults::Userfault, |nth| Event::Fails(nth, libc::EIO));
}

#[test]
fn a_system_call_fails_by_mprotect() {
    let name = "a_system_call_fails_by_mprotect";
    each(name, Faults::Protect, |nth| Event::Fails(nth, libc::ENOSPC));
}

#[test]
fn the_process_is_killed_at_a_system_call() {
    let name = "the_process_is_killed_at_a_system_call";
    each(name, Faults::Userfault, Event::Killed);
}
