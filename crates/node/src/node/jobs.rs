//! The ends of jobs, and the retries of orders and purges.

use super::Node;
use super::orders::purge_on;
use crate::interface::NodeOutput;
use crate::job::{JobDone, JobResult};
use crate::life::Again;
use crate::member::Input;

/// A job that failed for lack of memory is tried again after this time.
const AGAIN_US: u64 = 100_000;

impl Node {
    pub(super) fn job_done(&mut self, now_us: u64, done: JobDone, out: &mut Vec<NodeOutput>) {
        let Some(life) = self.life.as_mut().filter(|_| !self.ended) else {
            return;
        };
        let again_us = now_us + AGAIN_US;
        match done.result {
            JobResult::Obeyed(order, Ok(())) => {
                self.orders.is_obeyed(order.version, life);
                life.complaint = None;
            }
            JobResult::Obeyed(_, Err(duramen_engine::Error::FlashFailed))
            | JobResult::Purged(Err(duramen_engine::Error::FlashFailed), _) => {
                // The data to be dropped cannot be read, so no new data could be served. Its
                // replicas can be read.
                self.quit(now_us, true, "flash cannot be read", out);
            }
            JobResult::Obeyed(order, Err(error)) => {
                life.again.push((again_us, Again::Obey));
                let version = order.version;
                let reason =
                    format!("the tables cannot be made as the coordinator says, yet: {error}");
                if life.complaint.as_ref() != Some(&reason) {
                    life.complaint = Some(reason.clone());
                    out.push(NodeOutput::Fails(reason.clone()));
                }
                self.tell_member(now_us, Input::NotObeyed { version, reason }, out);
            }
            JobResult::Purged(Ok(()), Some(rest)) => out.push(NodeOutput::Job(purge_on(rest))),
            JobResult::Purged(Err(_), Some(rest)) => {
                life.again.push((again_us, Again::Purge(rest)));
            }
            JobResult::Purged(_, None) => self.tell_member(now_us, Input::Purged, out),
            JobResult::Counted(loads) => life.loads.counted(loads),
            JobResult::Recovery(run, completion) => {
                life.recoveries.job_done(now_us, run, completion);
            }
            JobResult::Migration(run, completion) => {
                self.migrate(
                    |migrations, _, _| migrations.job_done(now_us, run, completion),
                    out,
                );
            }
        }
    }

    pub(super) fn try_again(&mut self, now_us: u64, out: &mut Vec<NodeOutput>) {
        let Some(life) = self.life.as_mut().filter(|_| !self.ended) else {
            return;
        };
        let due = life.again.extract_if(.., |(at_us, _)| *at_us <= now_us);
        let due: Vec<Again> = due.map(|(_, again)| again).collect();
        for again in due {
            match again {
                Again::Obey => self.tell_member(now_us, Input::ObeyAgain, out),
                Again::Purge(rest) => out.push(NodeOutput::Job(purge_on(rest))),
            }
        }
    }
}
