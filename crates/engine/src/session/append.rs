//! The head that a guard appends to, and the room that it has there.

use super::observed::{Observed, level_of};
use super::pin::Pin;
use crate::core::Core;
use crate::head::{Head, Tail};
use crate::index::Index;
use crate::log::{Log, begin_group};
use crate::space::Purpose;
use duramen_base::sync::MutexGuard;
use duramen_base::waits::{self, NOTHING, Resource};
use std::ops::Range;

/// The appends of a guard.
pub(crate) struct Appender<'s> {
    head: &'s Head,
    /// The head's lock, from the first write on (head::H1).
    tail: Option<MutexGuard<'s, Tail>>,
    /// Windows that its next group has set aside (room::R2).
    ahead: Vec<u32>,
    /// The open group has room for all its appends (room::R1).
    granted: bool,
    /// The purpose for which its writes take memory.
    purpose: Purpose,
    /// The least version that its next writes give; 0 = any.
    version_at_least: u64,
    /// The bytes of the value that is being made.
    pub(crate) scratch: &'s mut Vec<u8>,
}

impl<'s> Appender<'s> {
    #[inline(always)]
    pub(super) fn new(head: &'s Head, scratch: &'s mut Vec<u8>) -> Appender<'s> {
        Appender {
            head,
            tail: None,
            ahead: Vec::new(),
            granted: false,
            purpose: Purpose::Head,
            version_at_least: 0,
            scratch,
        }
    }

    #[inline(always)]
    pub(crate) fn head(&self) -> &'s Head {
        self.head
    }

    /// The number of its head's stream in the log.
    #[inline(always)]
    pub(crate) fn stream(&self) -> u16 {
        self.head.number as u16
    }

    /// Takes the head's lock, to keep it. Values that were read may not be used again: the guard
    /// may have been outside meanwhile.
    #[inline(always)]
    pub(crate) fn take_head(&mut self, pin: &mut Pin<'s>) {
        if self.tail.is_none() {
            match self.head.tail.try_lock() {
                Ok(tail) => self.tail = Some(tail),
                Err(_) => self.wait_for_head(pin),
            }
            if pin.is_alone()
                && pin.core().log.is_some()
                && let Some(tail) = &mut self.tail
            {
                begin_group(tail);
            }
        }
    }

    /// Waits for a head that another session has, outside of the store: that session may be waiting
    /// for memory that our pin would hold back, or may be alone soon.
    #[cold]
    pub(super) fn wait_for_head(&mut self, pin: &mut Pin<'s>) {
        debug_assert!(!pin.locks().are_taken(), "a transaction has its head");
        let head = self.head;
        let lock = |holding: &'static [Resource]| {
            let _noted = waits::note(Resource::Head, holding);
            head.tail.lock().expect("head")
        };
        self.tail = Some(match pin.is_alone() {
            true => lock(&[Resource::Door, Resource::Pin]),
            false => pin.outside_until(|| lock(NOTHING)),
        });
    }

    /// The head's tail, for an append. The head was locked before the bucket.
    #[inline(always)]
    pub(crate) fn tail(&mut self) -> &mut Tail {
        self.tail.as_mut().expect("locked before the append")
    }

    /// The head's tail, if the head is locked.
    #[inline(always)]
    pub(crate) fn taken(&mut self) -> Option<&mut Tail> {
        self.tail.as_deref_mut()
    }

    /// Unlocks the head, because no thread may wait for it while the guard waits.
    #[inline(always)]
    pub(crate) fn let_head_go(&mut self) {
        self.tail = None;
    }

    /// Appends to another head from now on. No group is open, and the position of own appends was
    /// kept.
    pub(super) fn go_to(&mut self, head: &'s Head) {
        self.tail = None;
        self.head = head;
    }

    /// Begins a group, in a store with a log.
    pub(crate) fn begin_group(&mut self, core: &Core) {
        if core.log.is_some()
            && let Some(tail) = &mut self.tail
        {
            begin_group(tail);
        }
    }

    /// The places of the entries of the open group.
    pub(crate) fn group(&self) -> Range<usize> {
        let tail = self.tail.as_ref();
        tail.map_or(0..0, |tail| tail.group())
    }

    /// Ends the group: its entries may be collected.
    pub(crate) fn end_group(&mut self, log: &Log) {
        if let Some(tail) = &mut self.tail {
            log.streams().end_group(self.head.number, tail);
        }
    }

    /// Records an append of this guard, which ends at the tail.
    #[inline(always)]
    pub(crate) fn note_own(&self, seen: &Observed, log: &Log, index: &Index) {
        if let Some(tail) = &self.tail {
            seen.note_own(self.stream(), tail.position(), level_of(log, index));
        }
    }

    /// The purpose for which its writes take memory.
    #[inline(always)]
    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    #[inline(always)]
    pub(super) fn set_purpose(&mut self, purpose: Purpose) {
        self.purpose = purpose;
    }

    /// The least version that its next writes give; 0 = any.
    #[inline(always)]
    pub(crate) fn version_at_least(&self) -> u64 {
        self.version_at_least
    }

    pub(crate) fn set_version_at_least(&mut self, version: u64) {
        self.version_at_least = version;
    }

    /// Whether the open group has room for all its appends (room::R1).
    #[inline(always)]
    pub(crate) fn is_granted(&self) -> bool {
        self.granted
    }

    /// The open group has room for all its appends.
    pub(crate) fn grant(&mut self) {
        self.granted = true;
    }

    /// Number of the windows that were set aside.
    #[inline(always)]
    pub(crate) fn windows_ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Sets a window aside for its next group.
    pub(crate) fn put_ahead(&mut self, window: u32) {
        self.ahead.push(window);
    }

    /// The open group continues in a window that was set aside, if there is one.
    pub(crate) fn go_on(&mut self, core: &Core) {
        let Some(window) = self.ahead.pop() else {
            return;
        };
        let number = self.head.number;
        let tail = self.tail();
        core.windows().name(window, number);
        match &core.log {
            None => tail.roll(&core.space, window),
            Some(log) => log
                .streams()
                .span(log.windows(), &core.space, number, tail, window),
        }
    }

    /// Gives the unused windows of a step back, when the step has ended or was given up.
    pub(crate) fn give_room_back(&mut self, core: &Core) {
        self.granted = false;
        for window in self.ahead.drain(..) {
            core.windows().give_back(window); // room::R2: unused windows go back
        }
    }
}
