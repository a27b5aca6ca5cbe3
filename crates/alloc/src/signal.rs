//! The fault handler, and the handler that was there before.
//!
//! **Invariants**
//! - H1: a fault that is not ours reaches whoever would have got it without us.
//!
//! Paper: [Badam11 §3.3]: "control is returned to the originally installed seg-fault handler".

use crate::error::Error;
use crate::heap::{Fault, Heap};
use crate::pager::Faults;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Whose faults they are; null: nobody's.
static HEAP: AtomicPtr<Heap> = AtomicPtr::new(std::ptr::null_mut());
/// The signal that was taken over; 0: none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// In a forked child nothing works.
static FORKED: AtomicBool = AtomicBool::new(false);

struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);
// SAFETY: written before the handler is installed, read by it afterwards.
unsafe impl Sync for Previous {}
static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));

/// The heap that serves this process.
pub(crate) fn heap() -> Option<&'static Heap> {
    // SAFETY: null, or a heap that was leaked, and that is taken back by `uninstall` alone.
    unsafe { HEAP.load(Ordering::Acquire).as_ref() }
}

pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

extern "C" fn after_fork() {
    FORKED.store(true, Ordering::Relaxed);
    HEAP.store(std::ptr::null_mut(), Ordering::Release);
}

/// From now on faults in the heap's arena are its own.
pub(crate) fn install(heap: Box<Heap>, kind: Faults) -> Result<&'static Heap, Error> {
    static AT_FORK: std::sync::Once = std::sync::Once::new();
    // SAFETY: the handler only stores to two atomics.
    AT_FORK.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(after_fork));
    });
    let signal = match kind {
        Faults::Userfault => libc::SIGBUS,
        Faults::Protect => libc::SIGSEGV,
    };
    // SAFETY: of plain integers and pointers, for which zero is "nothing".
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_fault as *const () as usize;
    // NODEFER: a handler that was there before may fault in turn.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    if kind == Faults::Protect {
        // Who is told when a stack has overflown needs another one; else the thread's own has more room.
        action.sa_flags |= libc::SA_ONSTACK;
    }
    if SIGNAL.load(Ordering::Acquire) != signal {
        // SAFETY: plain system calls; PREVIOUS is nobody's before a handler is installed.
        let done = unsafe {
            libc::sigaction(signal, std::ptr::null(), (*PREVIOUS.0.get()).as_mut_ptr()) == 0
                && libc::sigaction(signal, &action, std::ptr::null_mut()) == 0
        };
        if !done {
            return Err(Error::kernel("installing the fault handler")(
                std::io::Error::last_os_error(),
            ));
        }
        SIGNAL.store(signal, Ordering::Release);
    }
    let heap = Box::into_raw(heap);
    HEAP.store(heap, Ordering::Release);
    // SAFETY: just leaked.
    Ok(unsafe { &*heap })
}

/// Takes the heap back. Nobody uses it, or touches its memory, from now on.
///
/// # Safety
/// No reference that [`heap`] or [`install`] gave is used any more.
pub(crate) unsafe fn uninstall() -> Option<Box<Heap>> {
    let heap = HEAP.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if heap.is_null() {
        return None;
    }
    let signal = SIGNAL.swap(0, Ordering::AcqRel);
    // SAFETY: the handler was installed by `install`, which wrote PREVIOUS; the heap was leaked there.
    unsafe {
        libc::sigaction(signal, (*PREVIOUS.0.get()).as_ptr(), std::ptr::null_mut());
        Some(Box::from_raw(heap))
    }
}

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: the kernel gives a handler with SA_SIGINFO what it says.
    let served = unsafe { serve(info, context) };
    // SAFETY: as above.
    unsafe { *errno = saved };
    if !served {
        // SAFETY: the kernel's own arguments.
        unsafe { pass_on(signal, info, context) };
    }
}

/// True: the fault was ours, and the access may be tried again.
///
/// # Safety
/// The arguments are the kernel's.
pub(crate) unsafe fn serve(info: *mut libc::siginfo_t, context: *mut libc::c_void) -> bool {
    let Some(heap) = heap() else {
        return false;
    };
    // SAFETY: the caller's promise; SIGBUS and SIGSEGV have an address.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // Codes up to 0 were sent by somebody (kill); 4 and 5 of SIGBUS are broken memory.
    // SAFETY: as above.
    let is_access = code > 0 && code < 4;
    if !is_access || !heap.contains(address) {
        return false;
    }
    // SAFETY: the caller's promise.
    let write = unsafe { is_write(context) };
    match heap.fault(address, write) {
        Fault::Served => true,
        Fault::NotOurs => false,
        Fault::Failed(error) => {
            report(address, &error);
            false
        }
    }
}

/// Whether the access was a write; where the processor does not say, a fault of a page that is shown can only be one.
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

/// Says why the program is about to get a signal: there is no other way to tell.
fn report(address: usize, error: &Error) {
    let text = format!("duramen_alloc: the object at {address:#x} cannot be brought: {error}\n");
    // SAFETY: writes bytes of ours to standard error; if that fails nobody can be told.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// H1.
///
/// # Safety
/// The arguments are the kernel's.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: this handler is installed, so PREVIOUS was written.
    let previous = unsafe { (*PREVIOUS.0.get()).assume_init_ref() };
    // SAFETY: the kernel's argument.
    let was_sent = unsafe { (*info).si_code <= 0 };
    match previous.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is tried again and kills the process, as it would have (the kernel ignores no fault either).
            // SAFETY: of plain integers and pointers.
            unsafe {
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &action, std::ptr::null_mut());
                if was_sent {
                    libc::raise(signal); // it was sent: no access will be tried again
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: it was installed as such a function.
            let handler: Action = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed as such a function.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
