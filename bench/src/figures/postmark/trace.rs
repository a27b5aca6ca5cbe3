//! The operations of Postmark on the files of a key-value file system: small objects that are made,
//! read a few times and removed. Merritt17 §5.3 and Table 4; Postmark's own rules for sizes.
//!
//! Postmark makes files of 500 to 4,096 bytes, then performs transactions, and removes all files
//! at the end. A transaction creates or removes a file, and reads a file or appends to it. A file
//! is one object, as in TableFS, whose trace the paper has. The requests here were derived from
//! its description, not recorded; directories stay in the kernel's cache:
//!
//! | step | requests |
//! |---|---|
//! | create | GET file (not there), PUT inode, PUT inode with data |
//! | remove | GET file twice (look-up, removal), DEL file |
//! | read | GET file twice (open, read) |
//! | append | GET file twice (open, append), PUT file |
//!
//! **Invariants**
//! - R1: a request names a file that exists, unless it creates it; at the end no file is left.
//! - R2: the trace is a function of its size alone, so that all stores and threads do the same.

use crate::harness::Random;

/// Bytes of a file's object without data: the inode.
pub const INODE_BYTES: u16 = 256;
const FILE_BYTES_MIN: u64 = 500;
const FILE_BYTES_MAX: u64 = 4096;
/// The paper's 2 million files had 32 million transactions.
const TRANSACTIONS_PER_FILE: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Get,
    /// A GET of an object that is not there.
    Miss,
    /// A PUT of an object that is not there.
    Insert,
    /// A PUT of an object that is there.
    Overwrite,
    Remove,
}

/// A request. `object` is the number of the file.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub object: u32,
    /// Of the object: written, or found by a GET.
    pub bytes: u16,
    pub kind: Kind,
}

/// All requests of one thread.
pub struct Trace {
    pub steps: Vec<Step>,
    /// Objects that were ever made.
    pub objects: u32,
    /// Steps that make the first files.
    pub setup_steps: usize,
    /// The first step of the removal of all files.
    pub end_step: usize,
}

/// A file that exists.
#[derive(Clone, Copy)]
struct File {
    object: u32,
    bytes: u16,
}

struct Maker {
    random: Random,
    steps: Vec<Step>,
    files: Vec<File>,
    next: u32,
}

impl Trace {
    /// The requests of Postmark with so many files at first.
    pub fn new(files: u32) -> Trace {
        let mut maker = Maker {
            random: Random::new(35),
            steps: Vec::new(),
            files: Vec::new(),
            next: 0,
        };
        (0..files).for_each(|_| maker.create());
        let setup_steps = maker.steps.len();
        (0..files * TRANSACTIONS_PER_FILE).for_each(|_| maker.transact());
        let end_step = maker.steps.len();
        while !maker.files.is_empty() {
            let file = maker.take();
            maker.step(Kind::Get, file.object, file.bytes);
            maker.step(Kind::Remove, file.object, file.bytes);
        }
        Trace {
            steps: maker.steps,
            objects: maker.next,
            setup_steps,
            end_step,
        }
    }

    /// The highest sum of `bytes_of` over the live objects.
    pub fn peak(&self, bytes_of: impl Fn(u16) -> u64) -> u64 {
        let mut sizes = vec![0; self.objects as usize];
        let (mut live, mut peak) = (0, 0);
        for step in &self.steps {
            let size = &mut sizes[step.object as usize];
            match step.kind {
                Kind::Get | Kind::Miss => continue,
                Kind::Insert | Kind::Overwrite => {
                    live = live + bytes_of(step.bytes) - *size;
                    *size = bytes_of(step.bytes);
                }
                Kind::Remove => {
                    live -= *size;
                    *size = 0;
                }
            }
            peak = peak.max(live);
        }
        peak
    }

    /// The share of all steps that go to objects with at most so many steps, 0 to 1.
    pub fn share_of_objects_with(&self, steps_max: u32) -> f64 {
        let mut steps = vec![0u32; self.objects as usize];
        for step in &self.steps {
            steps[step.object as usize] += 1;
        }
        let few = steps.iter().filter(|steps| **steps <= steps_max);
        few.map(|steps| u64::from(*steps)).sum::<u64>() as f64 / self.steps.len() as f64
    }
}

impl Maker {
    fn step(&mut self, kind: Kind, object: u32, bytes: u16) {
        self.steps.push(Step {
            object,
            bytes,
            kind,
        });
    }

    fn create(&mut self) {
        let sizes = FILE_BYTES_MAX - FILE_BYTES_MIN + 1;
        let file = File {
            object: self.next,
            bytes: (FILE_BYTES_MIN + self.random.below(sizes)) as u16,
        };
        self.next += 1;
        self.step(Kind::Miss, file.object, 0);
        self.step(Kind::Insert, file.object, INODE_BYTES);
        self.step(Kind::Overwrite, file.object, file.bytes);
        self.files.push(file);
    }

    fn any(&mut self) -> usize {
        self.random.below(self.files.len() as u64) as usize
    }

    fn take(&mut self) -> File {
        let n = self.any();
        self.files.swap_remove(n)
    }

    fn transact(&mut self) {
        if self.random.percent(50) || self.files.len() < 2 {
            self.create();
        } else {
            let file = self.take();
            self.step(Kind::Get, file.object, file.bytes);
            self.step(Kind::Get, file.object, file.bytes);
            self.step(Kind::Remove, file.object, file.bytes);
        }
        let n = self.any();
        let File { object, bytes } = self.files[n];
        self.step(Kind::Get, object, bytes);
        self.step(Kind::Get, object, bytes);
        // Postmark appends up to the largest size, and nothing to a file that has it.
        let room = FILE_BYTES_MAX - u64::from(bytes);
        if self.random.percent(50) && room > 0 {
            let bytes = bytes + 1 + self.random.below(room) as u16;
            self.files[n].bytes = bytes;
            self.step(Kind::Overwrite, object, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn every_step_fits_the_files_that_exist() {
        let trace = Trace::new(400);
        let mut live: HashMap<u32, u16> = HashMap::new();
        for step in &trace.steps {
            let found = live.get(&step.object).copied();
            match step.kind {
                Kind::Get => assert_eq!(found, Some(step.bytes)),
                Kind::Insert | Kind::Miss => assert_eq!(found, None),
                Kind::Overwrite | Kind::Remove => assert!(found.is_some()),
            }
            match step.kind {
                Kind::Get | Kind::Miss => {}
                Kind::Remove => drop(live.remove(&step.object)),
                _ => drop(live.insert(step.object, step.bytes)),
            }
        }
        assert!(live.is_empty());
    }

    /// The mix of the paper's Figure 10(b): 10 % inserts, 10 % removals, 20 % overwrites; and of
    /// 10(a): 80 % of all operations on objects with 18 or fewer.
    #[test]
    fn the_mix_is_the_papers() {
        let trace = Trace::new(4000);
        let middle = &trace.steps[trace.setup_steps..trace.end_step];
        let share = |kind| {
            let of_kind = middle.iter().filter(|step| step.kind == kind);
            of_kind.count() as f64 / middle.len() as f64
        };
        for (kind, want) in [
            (Kind::Insert, 0.10),
            (Kind::Remove, 0.10),
            (Kind::Overwrite, 0.20),
            (Kind::Get, 0.55),
        ] {
            assert!(
                (share(kind) - want).abs() < 0.04,
                "{kind:?}: {}",
                share(kind)
            );
        }
        let few = trace.share_of_objects_with(18);
        assert!((0.7..0.9).contains(&few), "{few}");
        let per_file = trace.steps.len() as f64 / 4000.0;
        assert!((per_file / (183.0 / 2.0) - 1.0).abs() < 0.1, "{per_file}");
    }

    #[test]
    fn the_peak_counts_each_live_object_once() {
        let step = |kind, object, bytes| Step {
            object,
            bytes,
            kind,
        };
        let trace = Trace {
            steps: vec![
                step(Kind::Insert, 0, 10),
                step(Kind::Overwrite, 0, 30),
                step(Kind::Insert, 1, 5),
                step(Kind::Remove, 0, 30),
                step(Kind::Insert, 2, 7),
            ],
            objects: 3,
            setup_steps: 0,
            end_step: 5,
        };
        assert_eq!(trace.peak(u64::from), 35);
        assert_eq!(trace.peak(|bytes| u64::from(bytes) + 1), 37);
    }
}
