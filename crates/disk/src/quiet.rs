//! Threads of a library in a foreign process: they do not receive the program's signals.

use std::mem::MaybeUninit;

/// Signals that a thread causes itself. If they were blocked, they would end the process without a
/// message.
const OF_THE_THREAD: [libc::c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Restores the former signals of the calling thread.
struct Restored(libc::sigset_t);

impl Drop for Restored {
    fn drop(&mut self) {
        // SAFETY: a set that the kernel filled.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// All signals except those that a thread causes itself.
pub fn foreign_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills the set, the others change it.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in OF_THE_THREAD {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Calls `start`, whose new threads begin with the program's signals blocked: a signal for which
/// the program waits in a thread of its own, or by `signalfd`, is never delivered to one of them.
pub fn quietly<T>(start: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::uninit();
    let blocked = foreign_signals();
    // SAFETY: sets of the caller's own; the call cannot fail with these arguments, and fills
    // `before`.
    let _restored = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, before.as_mut_ptr());
        Restored(before.assume_init())
    };
    start()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: reads the thread's signals, which fills the set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    /// The library's threads took SIGTERM, which the program had blocked to read it by `signalfd`,
    /// and the program ended.
    #[test]
    fn threads_begin_with_the_programs_signals_blocked() {
        let seen = quietly(|| {
            std::thread::spawn(|| [libc::SIGTERM, libc::SIGUSR1, libc::SIGSEGV].map(blocks))
        });
        assert_eq!(seen.join().unwrap(), [true, true, false]);
        assert!(!blocks(libc::SIGTERM), "the caller's signals are as before");
    }
}
