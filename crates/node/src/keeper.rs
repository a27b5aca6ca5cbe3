//! The keeper: the part of a node with the disk. It carries out its tasks in their order.
//!
//! Paper: [Ousterhout15 §4.2]

use crate::backup_service::{Asked, BackupService, Reply, Task};
use crate::interface::NodeOutput;
use crate::requests::{ReceivedRequest, RequestId};

impl BackupService<RequestId> {
    /// Carries out a task, or holds it until [`settle`](Self::settle).
    pub fn obey(&mut self, now_us: u64, task: Task, out: &mut Vec<NodeOutput>) {
        match task {
            Task::StartRead {
                request,
                recovery,
                log,
                min_open,
            } => {
                let (answer, payload) = self.start_read(now_us, recovery, log, min_open);
                out.push(NodeOutput::Answer {
                    request,
                    answer,
                    payload,
                });
            }
            Task::NotNeeded { log, replicas } => {
                // Remaining replicas are asked about again (replica_gc::U3).
                let _ = self.not_needed(log, &replicas);
            }
            Task::Crashed(log) => self.crashed(log),
            Task::Removed(log) => {
                // Replicas that could not be dropped now are asked about again (replica_gc::U2).
                let _ = self.removed(log);
            }
        }
    }

    /// Commits the waiting chunks: to be called when [`due_us`](Self::due_us) has come.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn settle(
        &mut self,
        clock: &dyn Fn() -> u64,
        out: &mut Vec<NodeOutput>,
    ) -> Result<(), duramen_backup::Error> {
        let mut replies = Vec::new();
        let result = self.run(clock, &mut replies);
        out.extend(replies.into_iter().map(NodeOutput::from));
        result
    }
}

impl ReceivedRequest {
    /// The request, for the backup here.
    pub fn asked(&self) -> Asked<'_, RequestId> {
        Asked {
            tag: self.request,
            sender: self.sender,
            target: self.target,
            question: &self.question,
            payload: &self.payload,
        }
    }
}

impl From<Reply<RequestId>> for NodeOutput {
    fn from(reply: Reply<RequestId>) -> NodeOutput {
        NodeOutput::AnswerPeer {
            request: reply.tag,
            answer: reply.answer,
            payload: reply.payload,
        }
    }
}
