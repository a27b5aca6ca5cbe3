//! The fault handler, the previous handler, and the protection of a thread from disturbance
//! meanwhile.
//!
//! **Invariants**
//! - H1: a foreign fault reaches the handler that would have got it without us, with the same
//!   signals blocked.
//! - H2: a thread that serves a fault, or is in a function of the C interface, runs to its end: it
//!   is not cancelled, and while it serves a fault no other handler of the program interrupts it,
//!   because such a handler might jump out of it. The locks of the thread would then stay held for
//!   ever.
//! - H3: a handler that was installed after ours stays installed.
//!
//! Paper: [Badam11 §3.3]: "control is returned to the originally installed seg-fault handler".

use crate::error::Error;
use crate::heap::Heap;
use crate::pager::Faults;
use crate::paging::Fault;
use duramen_disk::foreign_signals;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// The heap whose faults are served; null: none.
static HEAP: AtomicPtr<Heap> = AtomicPtr::new(std::ptr::null_mut());
/// The signal of this heap's faults; 0: none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Set in a forked child, where no function works.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The descriptor that holds the flash file's lock; below 0: none.
static LOCK: AtomicI32 = AtomicI32::new(-1);

/// State of a signal that was taken over.
struct Taken {
    /// Whether our handler is installed, or a later one may call it.
    is_ours: AtomicBool,
    previous: UnsafeCell<MaybeUninit<libc::sigaction>>,
    /// The handler that was found in place of ours when ours was to be removed; 0: ours was there.
    later: AtomicUsize,
}

// SAFETY: `previous` is written before our handler is installed, read by it afterwards.
unsafe impl Sync for Taken {}

impl Taken {
    const fn new() -> Taken {
        Taken {
            is_ours: AtomicBool::new(false),
            previous: UnsafeCell::new(MaybeUninit::uninit()),
            later: AtomicUsize::new(0),
        }
    }
}

/// SIGBUS and SIGSEGV.
static TAKEN: [Taken; 2] = [const { Taken::new() }; 2];

fn taken(signal: libc::c_int) -> &'static Taken {
    &TAKEN[usize::from(signal == libc::SIGSEGV)]
}

/// The heap that serves this process.
pub(crate) fn heap() -> Option<&'static Heap> {
    // SAFETY: null, or a heap that was leaked, and that is taken back by `uninstall` alone.
    unsafe { HEAP.load(Ordering::Acquire).as_ref() }
}

pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Runs in a forked child: no function works there, and the parent's lock ends with the parent.
extern "C" fn after_fork() {
    FORKED.store(true, Ordering::Relaxed);
    HEAP.store(std::ptr::null_mut(), Ordering::Release);
    let lock = LOCK.swap(-1, Ordering::Relaxed);
    if lock >= 0 {
        // SAFETY: the child's own copy, which is not used there: every function returns that it is
        // forked.
        unsafe { libc::close(lock) };
    }
}

/// Sets the descriptor that holds the flash file's lock, from the locking until before it is
/// closed; `None`: none.
pub(crate) fn set_lock(descriptor: Option<i32>) {
    static AT_FORK: std::sync::Once = std::sync::Once::new();
    // SAFETY: the handler only stores to atomics and closes a descriptor.
    AT_FORK.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(after_fork));
    });
    LOCK.store(descriptor.unwrap_or(-1), Ordering::Relaxed);
}

fn installed(signal: libc::c_int) -> std::io::Result<libc::sigaction> {
    let mut now = MaybeUninit::uninit();
    // SAFETY: queries the installed action; the kernel fills it in.
    unsafe {
        if libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(now.assume_init())
    }
}

fn ours() -> usize {
    on_fault as *const () as usize
}

/// Signals 32 and 33, by which C libraries cancel a thread at any moment. The libraries add them to
/// no set, and glibc 2.36 cancels a thread by one that was sent just before the thread forbade it.
const CANCELS: u64 = 0b11 << 31;

/// Makes `on_fault` the handler of the signal, unless it already is, or the installed handler calls
/// it (H3).
fn take_over(signal: libc::c_int) -> std::io::Result<()> {
    let taken = taken(signal);
    let now = installed(signal)?;
    let handler = now.sa_sigaction;
    let calls_us = handler == taken.later.load(Ordering::Acquire);
    if handler == ours() || taken.is_ours.load(Ordering::Acquire) && calls_us {
        return Ok(());
    }
    // SAFETY: plain integers and pointers, for which zero is valid.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = ours();
    action.sa_mask = foreign_signals(); // H2: no other handler interrupts ours
    // SAFETY: a set begins with a bit for each of 64 signals, and this one belongs to this
    // function.
    unsafe { *(&raw mut action.sa_mask).cast::<u64>() |= CANCELS };
    // NODEFER: the previous handler may fault in turn.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    if signal == libc::SIGSEGV {
        // A handler of stack overflows needs another stack; for other faults the thread's own has
        // more room.
        action.sa_flags |= libc::SA_ONSTACK;
    }
    // SAFETY: no thread reads `previous` before our handler is installed; then a plain system call.
    let done = unsafe {
        (*taken.previous.get()).write(now);
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    if done != 0 {
        return Err(std::io::Error::last_os_error());
    }
    taken.later.store(0, Ordering::Release);
    taken.is_ours.store(true, Ordering::Release);
    Ok(())
}

/// From now on `heap` serves the faults in its arena.
pub(crate) fn install(heap: Box<Heap>, kind: Faults) -> Result<&'static Heap, Error> {
    let signal = match kind {
        Faults::Userfault => libc::SIGBUS,
        Faults::Protect => libc::SIGSEGV,
    };
    take_over(signal).map_err(Error::kernel("installing the fault handler"))?;
    SIGNAL.store(signal, Ordering::Release);
    let heap = Box::into_raw(heap);
    HEAP.store(heap, Ordering::Release);
    // SAFETY: just leaked.
    Ok(unsafe { &*heap })
}

/// Takes the heap back. It is not used, and its memory not touched, from now on.
///
/// # Safety
/// No reference from [`heap`] or [`install`] is used any more.
pub(crate) unsafe fn uninstall() -> Option<Box<Heap>> {
    let heap = HEAP.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if heap.is_null() {
        return None;
    }
    let signal = SIGNAL.swap(0, Ordering::AcqRel);
    let taken = taken(signal);
    match installed(signal) {
        Ok(now) if now.sa_sigaction == ours() => {
            // SAFETY: our handler was installed by `take_over`, which wrote `previous`.
            unsafe {
                libc::sigaction(
                    signal,
                    (*taken.previous.get()).as_ptr(),
                    std::ptr::null_mut(),
                );
            }
            taken.is_ours.store(false, Ordering::Release);
        }
        // H3: the handler that is installed now may call ours.
        Ok(now) => taken.later.store(now.sa_sigaction, Ordering::Release),
        Err(_) => {}
    }
    // SAFETY: the heap was leaked by `install`.
    Some(unsafe { Box::from_raw(heap) })
}

const CANCEL_DISABLE: libc::c_int = 1;
const CANCEL_DEFERRED: libc::c_int = 0;
const CANCEL_ASYNCHRONOUS: libc::c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
    fn pthread_setcanceltype(kind: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// The conditions under which a thread can be cancelled.
#[derive(Clone, Copy)]
pub(crate) struct Cancel {
    state: libc::c_int,
    kind: libc::c_int,
}

/// Forbids cancellation of the calling thread (H2); returns the former conditions. The state does
/// not suffice: a cancellation that was sent just before looks at the type alone when it arrives.
pub(crate) fn forbid_cancel() -> Cancel {
    let mut before = Cancel { state: 0, kind: 0 };
    // SAFETY: stores to the thread's own state, and to `before`.
    unsafe {
        pthread_setcanceltype(CANCEL_DEFERRED, &mut before.kind);
        pthread_setcancelstate(CANCEL_DISABLE, &mut before.state);
    }
    before
}

/// As [`forbid_cancel`], in a handler that blocks the signal of cancellations. With the deferred
/// type, a system call of glibc would wait for that signal.
fn forbid_cancel_in_handler() -> Cancel {
    let mut before = Cancel { state: 0, kind: 0 };
    // SAFETY: stores to the thread's own state, and to `before`.
    unsafe {
        pthread_setcancelstate(CANCEL_DISABLE, &mut before.state);
        pthread_setcanceltype(CANCEL_ASYNCHRONOUS, &mut before.kind);
    }
    before
}

/// Restores the former conditions. A thread that can be cancelled at any moment may end here: the
/// caller, and its callers, have nothing to be dropped.
pub(crate) fn restore_cancel(before: Cancel) {
    // SAFETY: former conditions of the thread. The frames that it may leave have nothing to be
    // dropped.
    unsafe {
        pthread_setcanceltype(before.kind, std::ptr::null_mut());
        pthread_setcancelstate(before.state, std::ptr::null_mut());
    }
}

extern "C-unwind" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let cancel = forbid_cancel_in_handler();
    // SAFETY: the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: the kernel passes valid arguments to a handler with SA_SIGINFO.
    let served = unsafe { serve(info, context) };
    // SAFETY: as above.
    unsafe { *errno = saved };
    restore_cancel(cancel);
    if !served {
        // SAFETY: the kernel's own arguments.
        unsafe { pass_on(signal, info, context) };
    }
}

/// As [`serve`], from a handler that neither blocks the program's signals nor forbids cancellation.
///
/// # Safety
/// The arguments are the kernel's.
pub(crate) unsafe fn serve_undisturbed(
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) -> bool {
    let mut before = MaybeUninit::uninit();
    let foreign = foreign_signals();
    // SAFETY: sets of our own; the call fills `before`.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &foreign, before.as_mut_ptr()) };
    // SAFETY: the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: the caller's promise.
    let served = unsafe { serve(info, context) };
    // SAFETY: as above; `before` was filled.
    unsafe {
        *errno = saved;
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
    served
}

/// Serves a fault. Returns true if the fault was ours and the access may be retried. The thread is
/// not cancelled meanwhile (H2).
///
/// # Safety
/// The arguments are the kernel's.
pub(crate) unsafe fn serve(info: *mut libc::siginfo_t, context: *mut libc::c_void) -> bool {
    let Some(heap) = heap() else {
        return false;
    };
    // SAFETY: the caller's promise; SIGBUS and SIGSEGV have an address.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // Codes up to 0 were sent by a process (kill); 4 and 5 of SIGBUS are broken memory.
    let is_access = code > 0 && code < 4;
    if !is_access || !heap.paging().contains(address) {
        return false;
    }
    // SAFETY: the caller's promise.
    let write = unsafe { is_write(context) };
    let brought =
        std::panic::catch_unwind(AssertUnwindSafe(|| heap.paging().fault(address, write)));
    match brought {
        Ok(Fault::Served) => true,
        Ok(Fault::NotOurs) => false,
        Ok(Fault::Failed(error)) => {
            report(address, &error);
            false
        }
        Err(_) => std::process::abort(), // the panic has been reported
    }
}

/// Whether the access was a write; if the processor does not report it, a fault on a shown page
/// must be a write.
#[cfg(target_arch = "x86_64")]
unsafe fn is_write(context: *mut libc::c_void) -> Option<bool> {
    // SAFETY: the caller's promise.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    Some(context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0)
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn is_write(_: *mut libc::c_void) -> Option<bool> {
    None
}

/// Reports the reason for a signal to the program: there is no other way.
fn report(address: usize, error: &Error) {
    let text = format!("duramen_alloc: the object at {address:#x} cannot be brought: {error}\n");
    // SAFETY: writes our bytes to standard error; a failure cannot be reported.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Passes a foreign fault to the previous handler (H1).
///
/// # Safety
/// The arguments are the kernel's.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: this handler is installed, so `previous` was written.
    let previous = unsafe { (*taken(signal).previous.get()).assume_init_ref() };
    // SAFETY: the caller's promise.
    unsafe { block_as_before(signal, previous, context) };
    // SAFETY: the kernel's argument.
    let was_sent = unsafe { (*info).si_code <= 0 };
    match previous.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is retried and kills the process, as it would have (the kernel does not
            // ignore a fault either). SAFETY: plain integers and pointers.
            unsafe {
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &action, std::ptr::null_mut());
                if was_sent {
                    libc::raise(signal); // the signal was sent: no access will be retried
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Action =
                extern "C-unwind" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: it was installed as such a function.
            let handler: Action = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed as such a function.
            let handler: extern "C-unwind" fn(libc::c_int) =
                unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Blocks the signals that the kernel would have blocked if the previous handler were installed
/// (H1).
///
/// # Safety
/// The context is the kernel's.
unsafe fn block_as_before(
    signal: libc::c_int,
    previous: &libc::sigaction,
    context: *mut libc::c_void,
) {
    /// Bytes of a set that the kernel uses: a bit for each of 64 signals.
    const SET_BYTES: usize = 8;
    let mut blocked = previous.sa_mask;
    // SAFETY: the caller's promise; the sets have at least this length.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        let interrupted = (&raw const (*context).uc_sigmask).cast::<u8>();
        let into = (&raw mut blocked).cast::<u8>();
        for nth in 0..SET_BYTES {
            *into.add(nth) |= *interrupted.add(nth);
        }
        if previous.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, std::ptr::null_mut());
    }
}
