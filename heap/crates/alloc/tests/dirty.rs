//! No write is lost between the check whether a page is dirty and its eviction: a model of the
//! protocol of `heap`, `buffer` and `pager`, of which every order of steps is tried.
//! `no_write_is_lost_when_pages_are_taken_away` and `counters.c` test the code itself.
//!
//! **The argument**
//! - The thread that evicts a page, saves it or allows writes to it, owns its unit (buffer::B1):
//!   faulting threads wait for it, and find its result.
//! - A page is writable only if its unit marks it as dirty (buffer::B2), which a fault decides,
//!   synchronously: the owner of the unit sees, before it begins, whether any thread may have
//!   written. No write can come between that check and the eviction unnoticed.
//! - Writes to a dirty page continue while it is being evicted, until the evicting system call has
//!   returned: until then another processor may have the page in its TLB. So its content is read
//!   after that, from a pipe that refers to the page itself (lift::L1).
//! - A page that stays is read after writes were forbidden and all processors have flushed the old
//!   mapping; a later write faults, and waits.
//! - The content is saved before the unit is released: a fault finds it, never the older content.
//!
//! The model has one page, two writers with a processor each, one thread that evicts the page, and
//! one that saves it for a checkpoint. Each of the sentences above is broken once: the model must
//! then lose a write.

use std::collections::HashSet;

const WRITERS: usize = 2;
/// Writes of each writer, to a word of its own.
const WRITES: u8 = 2;
const EVICTIONS: u8 = 2;
const SAVES: u8 = 1;

type Content = [u8; WRITERS];

/// The broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The content is read before the page is evicted.
    ReadFirst,
    /// The content is read when the page is gone, but processors may still have it in their TLBs.
    ReadBeforeFlush,
    /// Writes do not fault: the evicting thread checks whether the page has changed.
    Look,
    /// Other threads may get the unit before the content is saved.
    ReleaseFirst,
    /// A page that stays is read before all processors have flushed the writable mapping.
    SaveBeforeFlush,
    /// A write is allowed, and the page is not marked as dirty.
    Silent,
}

/// An entry of the page table, or of a processor's TLB.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    frame: usize,
    writable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Writer {
    Runs,
    Faults,
    Fills,
    Shows(Content),
    Allows,
    Allowed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Evictor {
    Idle,
    Owns,
    /// With a reference to the frame, if it is dirty; or with its content, if that is read too
    /// early.
    Takes(Option<usize>, Option<Content>),
    Flushes(Option<usize>, Option<Content>),
    Saves(Option<usize>, Option<Content>),
    Releases,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Saver {
    Idle,
    Forbids,
    Flushes,
    Saves,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    page: Option<Entry>,
    known: [Option<Entry>; WRITERS],
    frames: Vec<Content>,
    /// In the cache, or on flash.
    saved: Content,
    busy: bool,
    shown: bool,
    dirty: bool,
    writers: [Writer; WRITERS],
    written: Content,
    evictor: Evictor,
    evictions: u8,
    saver: Saver,
    saves: u8,
}

struct Lost;

impl World {
    fn new() -> World {
        World {
            page: None,
            known: [None; WRITERS],
            frames: Vec::new(),
            saved: [0; WRITERS],
            busy: false,
            shown: false,
            dirty: false,
            writers: [Writer::Runs; WRITERS],
            written: [0; WRITERS],
            evictor: Evictor::Idle,
            evictions: 0,
            saver: Saver::Idle,
            saves: 0,
        }
    }

    fn frame(&self) -> Option<usize> {
        self.page.map(|entry| entry.frame)
    }

    /// The possible states after a writer's step.
    fn after_writer(&self, me: usize, broken: Broken) -> Result<Vec<World>, Lost> {
        let mut next = self.clone();
        match self.writers[me] {
            Writer::Runs if self.written[me] == WRITES => return Ok(Vec::new()),
            Writer::Runs => match (self.known[me], self.page) {
                (Some(entry), _) if entry.writable => {
                    let word = &mut next.frames[entry.frame][me];
                    if *word != self.written[me] {
                        return Err(Lost);
                    }
                    *word += 1;
                    next.written[me] += 1;
                }
                (_, Some(entry)) if entry.writable => next.known[me] = Some(entry),
                _ => next.writers[me] = Writer::Faults,
            },
            Writer::Faults if self.busy => return Ok(Vec::new()),
            Writer::Faults => {
                next.writers[me] = if !self.shown {
                    Writer::Fills
                } else if !self.dirty && broken != Broken::Look {
                    Writer::Allows
                } else {
                    Writer::Runs
                };
                next.busy = next.writers[me] != Writer::Runs;
            }
            Writer::Fills => next.writers[me] = Writer::Shows(self.saved),
            Writer::Shows(content) => {
                next.frames.push(content);
                (next.shown, next.busy) = (true, false);
                next.writers[me] = Writer::Runs;
                let shown = |writable: bool| {
                    let mut next = next.clone();
                    let frame = self.frames.len();
                    next.page = Some(Entry { frame, writable });
                    next.dirty = writable && broken != Broken::Look;
                    next
                };
                // For a write, or for a reader.
                let read_only = (broken != Broken::Look).then(|| shown(false));
                return Ok([shown(true)].into_iter().chain(read_only).collect());
            }
            Writer::Allows => {
                next.page.as_mut().expect("it is shown").writable = true;
                next.writers[me] = Writer::Allowed;
            }
            Writer::Allowed => {
                (next.dirty, next.busy) = (broken != Broken::Silent, false);
                next.writers[me] = Writer::Runs;
            }
        }
        Ok(vec![next])
    }

    /// The state after a step of the evicting thread.
    fn after_evictor(&self, broken: Broken) -> Option<World> {
        let mut next = self.clone();
        match self.evictor {
            Evictor::Idle => {
                if self.evictions == EVICTIONS || !self.shown || self.busy {
                    return None;
                }
                next.busy = true;
                next.evictor = Evictor::Owns;
            }
            Evictor::Owns => {
                let frame = self.frame().expect("it is shown");
                let content = self.frames[frame];
                let dirty = self.dirty || broken == Broken::Look && content != self.saved;
                let early = (dirty && broken == Broken::ReadFirst).then_some(content);
                next.evictor = Evictor::Takes(dirty.then_some(frame), early);
            }
            Evictor::Takes(frame, early) => {
                next.page = None;
                let now = frame.filter(|_| broken == Broken::ReadBeforeFlush);
                let early = early.or(now.map(|frame| self.frames[frame]));
                next.evictor = Evictor::Flushes(frame, early);
            }
            Evictor::Flushes(frame, early) => {
                next.known = [None; WRITERS];
                if broken == Broken::ReleaseFirst {
                    (next.shown, next.dirty, next.busy) = (false, false, false);
                }
                next.evictor = Evictor::Saves(frame, early);
            }
            Evictor::Saves(frame, early) => {
                if let Some(frame) = frame {
                    next.saved = early.unwrap_or(self.frames[frame]);
                }
                next.evictor = Evictor::Releases;
            }
            Evictor::Releases => {
                if broken != Broken::ReleaseFirst {
                    (next.shown, next.dirty, next.busy) = (false, false, false);
                }
                next.evictor = Evictor::Idle;
                next.evictions += 1;
            }
        }
        Some(next)
    }

    /// The state after a step of the thread that saves the page and keeps it.
    fn after_saver(&self, broken: Broken) -> Option<World> {
        let mut next = self.clone();
        match self.saver {
            Saver::Idle => {
                if self.saves == SAVES || !self.dirty || self.busy {
                    return None;
                }
                next.busy = true;
                next.saver = Saver::Forbids;
            }
            Saver::Forbids => {
                next.page.as_mut().expect("it is shown").writable = false;
                next.saver = if broken == Broken::SaveBeforeFlush {
                    Saver::Saves
                } else {
                    Saver::Flushes
                };
            }
            Saver::Flushes => {
                next.known = [None; WRITERS];
                next.saver = Saver::Saves;
            }
            Saver::Saves => {
                next.saved = self.frames[self.frame().expect("it is shown")];
                (next.dirty, next.busy) = (false, false);
                next.saver = Saver::Idle;
                next.saves += 1;
            }
        }
        Some(next)
    }

    fn next(&self, broken: Broken) -> Result<Vec<World>, Lost> {
        let mut all = Vec::new();
        for writer in 0..WRITERS {
            all.extend(self.after_writer(writer, broken)?);
        }
        all.extend(self.after_evictor(broken));
        all.extend(self.after_saver(broken));
        Ok(all)
    }

    /// The content at the end of all steps.
    fn content(&self) -> Content {
        match self.frame() {
            Some(frame) => self.frames[frame],
            None => self.saved,
        }
    }
}

/// Tries every order of steps; returns the number of states.
fn explore(broken: Broken) -> Result<usize, Lost> {
    let mut seen = HashSet::new();
    let mut waiting = vec![World::new()];
    while let Some(world) = waiting.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let next = world.next(broken)?;
        if next.is_empty() {
            assert_eq!(world.written, [WRITES; WRITERS], "nobody waits for ever");
            if world.content() != world.written {
                return Err(Lost);
            }
        }
        waiting.extend(next);
    }
    Ok(seen.len())
}

#[test]
fn no_order_of_steps_loses_a_write() {
    match explore(Broken::Nothing) {
        Ok(states) => assert!(states > 1000, "{states} states are too few to say anything"),
        Err(Lost) => panic!("a write is lost"),
    }
}

#[test]
fn each_broken_rule_loses_a_write() {
    for broken in [
        Broken::ReadFirst,
        Broken::ReadBeforeFlush,
        Broken::Look,
        Broken::ReleaseFirst,
        Broken::SaveBeforeFlush,
        Broken::Silent,
    ] {
        assert!(explore(broken).is_err(), "{broken:?} is not found");
    }
}
