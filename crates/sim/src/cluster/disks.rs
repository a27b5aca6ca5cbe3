//! The thread of a server's disk, and the end of a server whose disk fails.

use super::coverage::Class;
use super::machine::{AGAIN_US, STEPS_MAX};
use super::plan::Plan;
use super::world::{Event, World};
use duramen_base::random::Random;
use duramen_node::NodeOutput;

/// Time of a commit on a good disk.
const COMMIT_US: u64 = 150;

/// Longest additional time of an operation of a server's disk: each server has its own.
pub(super) fn operation_us(n: usize, plan: &Plan) -> u64 {
    let mut random = Random::new(plan.seed ^ 0x6469_736b ^ (n as u64) << 32);
    match random.below(3) {
        0 => random.below(plan.disk_us + 1),
        _ => 0,
    }
}

impl World {
    /// Runs the disk's thread. Its outputs leave when the disk has finished the operations.
    pub(super) fn keeper_works(&mut self, n: usize) {
        let true_us = self.now_us;
        let now_us = self.machines[n].clock(true_us);
        let machine = &mut self.machines[n];
        let (slow_us, operation_us) = (machine.slow_us, machine.operation_us);
        let begun = machine.disk.operations();
        let Some(process) = machine.process.as_mut() else {
            return;
        };
        if true_us < process.busy_until_us {
            return;
        }
        let mut out = Vec::new();
        let mut result = Ok(());
        let (mut took_us, mut steps) = (0, 0);
        if let Some(keeper) = &mut process.keeper {
            let mut replies = Vec::new();
            while keeper.read_step(now_us, &mut replies) {
                steps += 1;
                assert!(steps < STEPS_MAX, "server {n}: reading never ends");
            }
            out.extend(replies.into_iter().map(NodeOutput::from));
            if keeper.due_us().is_some_and(|due_us| due_us <= now_us) {
                result = keeper.settle(&|| now_us, &mut out);
                took_us = COMMIT_US + slow_us;
            }
        }
        let mut flushed = Ok(true);
        while let Ok(true) = flushed {
            flushed = process.backup.flush_step();
            steps += 1;
            assert!(steps < STEPS_MAX, "server {n}: flushing never ends");
        }
        let is_full = matches!(result, Err(duramen_backup::Error::Full { .. }));
        let has_failed = result.is_err() && !is_full
            || matches!(&flushed, Err(error) if !matches!(error, duramen_backup::Error::Full { .. }));
        if is_full {
            self.coverage.fired(Class::DiskFull);
            took_us += 20_000;
        }
        if operation_us > 0 {
            let operations = self.machines[n].disk.operations() - begun;
            for _ in 0..operations.min(100) {
                took_us += self.random.below(operation_us);
            }
            if operations > 0 {
                self.coverage.fired(Class::SlowDisk);
            }
        }
        self.later(n, took_us, out);
        if let Some(process) = self.machines[n].process.as_mut() {
            process.busy_until_us = true_us + took_us;
        }
        if has_failed || self.machines[n].disk.is_down() {
            self.disk_failed(n);
        }
    }

    /// Sends the disk's outputs after this time.
    pub(super) fn later(&mut self, n: usize, delay_us: u64, out: Vec<NodeOutput>) {
        if out.is_empty() {
            return;
        }
        let number = self.number();
        let generation = self.machines[n].generation;
        self.on_disk.insert(number, out);
        self.after(delay_us, Event::Disk(n, generation, number));
    }

    /// Ends a server whose disk failed; if its power failed, it stays off for a while.
    fn disk_failed(&mut self, n: usize) {
        let machine = &mut self.machines[n];
        if machine.disk.is_down() {
            let down_us = machine.cut_us.take().unwrap_or(500_000);
            self.coverage.fired(Class::PowerCut);
            self.stop(n, false);
            self.boot_after(n, down_us);
        } else {
            self.coverage.fired(Class::DiskError);
            self.stop(n, true);
            self.boot_after(n, 10 * AGAIN_US);
        }
    }
}
