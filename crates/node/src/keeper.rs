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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup_service::BackupConfig;
    use crate::interface::{NodeInput, NodeOptions};
    use crate::member::Input;
    use crate::node::Node;
    use crate::requests::Token;
    use crate::servers;
    use duramen_backup::os::OsDisk;
    use duramen_backup::{Backup, Geometry, Identity, Mode};
    use duramen_base::ids::{Level, RecoveryId, SegmentId, ServerId};
    use duramen_format::certificate::Certificate;
    use duramen_format::segment::{Header, Kind};
    use duramen_wire::native::message::{
        CoordinatorAnswer, Enlisted, Peer, PeerAnswer, Refusal, ServerAnswer, WriteReplica,
    };
    use std::sync::Arc;

    const ME: ServerId = ServerId::new(4, 1);
    const MASTER: ServerId = ServerId::new(3, 7);
    const CONTROL: SegmentId = SegmentId(1);
    const LEASE_MS: u32 = 500;

    type Service = BackupService<RequestId>;

    fn backup(dir: &tempfile::TempDir) -> Arc<Backup> {
        let disk = OsDisk::new(&dir.path().join("store"), Mode::Buffered);
        let geometry = Geometry {
            segment_bytes: servers::settings().segment_bytes,
            wal_bytes: 16 << 20,
            frames: 128,
        };
        let identity = Identity {
            cluster: "test".to_owned(),
            server: 1,
            hash_seed: 1,
        };
        let options = duramen_backup::Options::default();
        let made = Backup::create(Arc::new(disk), &options, &geometry, &identity);
        Arc::new(made.expect("an empty disk"))
    }

    fn handle(node: &mut Node, now_us: u64, input: Input) -> Vec<NodeOutput> {
        let mut out = Vec::new();
        node.handle(now_us, NodeInput::Member(input), &mut out);
        out
    }

    /// The newest question of the membership to the coordinator.
    fn asked(out: &[NodeOutput]) -> Token {
        let tokens = out.iter().filter_map(|output| match output {
            NodeOutput::AskCoordinator { token, .. } => Some(*token),
            _ => None,
        });
        let mut tokens = tokens.filter(|token| matches!(token, Token::Member(_)));
        tokens.next_back().expect("a question to the coordinator")
    }

    /// A node that has become a member, its backup's service, and a question that is not answered.
    fn joined(backup: Arc<Backup>) -> (Node, Box<Service>, Token) {
        let options = NodeOptions {
            backup: Some(backup),
            ..servers::options(None)
        };
        let mut node = Node::new(0, options);
        let token = asked(&handle(&mut node, 0, Input::Tick));
        let mut settings = servers::settings();
        settings.read_lease_ms = LEASE_MS;
        let enlisted = Enlisted {
            server: ME,
            list: servers::list(1, &[ME, MASTER]).into(),
            settings,
        };
        let answer = CoordinatorAnswer::Enlisted(Box::new(enlisted));
        handle(&mut node, 0, Input::Answered { token, answer });
        let mut out = handle(&mut node, 0, Input::IdStored { server: ME });
        let token = asked(&out);
        let mut keepers = out.iter_mut().filter_map(|output| match output {
            NodeOutput::Opened { keeper, .. } => keeper.take(),
            _ => None,
        });
        let keeper = keepers.next().expect("it is a member");
        (node, keeper, token)
    }

    fn from_master<'a>(question: &'a Peer, payload: &'a [u8]) -> Asked<'a, RequestId> {
        Asked {
            tag: RequestId(1),
            sender: MASTER,
            target: ME,
            question,
            payload,
        }
    }

    fn ask(keeper: &mut Service, now_us: u64, question: &Peer, payload: &[u8]) -> PeerAnswer {
        let mut out = Vec::new();
        keeper.asked(now_us, from_master(question, payload), &mut out);
        if out.is_empty() {
            keeper.run(&|| now_us, &mut out).expect("a disk");
        }
        out.pop().expect("an answer").answer
    }

    /// The opening of a control segment.
    fn opening(segment: SegmentId) -> (Peer, [u8; 64]) {
        let capacity = servers::settings().segment_bytes;
        let header = Header {
            kind: Kind::Control,
            segment,
            log: MASTER.number(),
            head: 0,
            capacity,
        };
        let bytes = header.encode();
        let write = WriteReplica {
            log: MASTER,
            segment,
            kind: Kind::Control,
            epoch: 1,
            offset: 0,
            certificate: Some(Certificate::of(&bytes)),
            open: true,
            close: false,
            primary: true,
            level: Level::Synced,
            capacity,
        };
        (Peer::WriteReplica(write), bytes)
    }

    fn a_life_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut node, mut keeper, token) = joined(backup(&dir));
        let (write, bytes) = opening(CONTROL);
        let stored = PeerAnswer::Stored {
            level: Level::Synced,
            leased: true,
        };
        assert_eq!(ask(&mut keeper, 100_000, &write, &bytes), stored);
        let renewal = Peer::RenewLease {
            log: MASTER,
            control: CONTROL,
        };
        assert_eq!(ask(&mut keeper, 200_000, &renewal, &[]), PeerAnswer::Leased);

        let answer = CoordinatorAnswer::Refused(Refusal::NotUp(ME));
        let out = handle(&mut node, 250_000, Input::Answered { token, answer });
        assert!(out.iter().any(|it| matches!(it, NodeOutput::Ended { .. })));

        let refused = PeerAnswer::Refused(Refusal::NotUp(ME));
        assert_eq!(ask(&mut keeper, 300_000, &renewal, &[]), refused, "D2");
        let (write, bytes) = opening(SegmentId(2));
        assert_eq!(ask(&mut keeper, 300_000, &write, &bytes), refused, "D2");
        let (answer, _) = keeper.start_read(400_000, RecoveryId(1), MASTER, CONTROL);
        let ServerAnswer::Replicas(replicas) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(replicas.segments.len(), 1);
        assert_eq!(replicas.lease_left_ms, 200 + LEASE_MS - 400);
    }

    /// The keeper's thread stops a while after its life. Until then it granted leases, and took
    /// writes.
    #[test]
    fn a_life_that_has_ended_grants_no_lease() {
        a_life_ends();
    }

    /// Only what was committed counted as there when it was freed.
    #[test]
    fn a_control_segment_that_is_freed_before_its_commit_does_not_come_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = BackupConfig {
            server: ME,
            hash_seed: 1,
            read_lease_ms: LEASE_MS,
            ahead_bytes: 1 << 20,
        };
        let mut keeper: Service = BackupService::new(backup(&dir), config, 0);
        let (write, bytes) = opening(CONTROL);
        let mut out = Vec::new();
        keeper.asked(0, from_master(&write, &bytes), &mut out);
        assert!(out.is_empty(), "it waits for a commit");
        let free = Peer::FreeReplicas {
            log: MASTER,
            segments: vec![CONTROL],
        };
        assert_eq!(ask(&mut keeper, 0, &free, &[]), PeerAnswer::Freed);
        let late = ask(&mut keeper, 1, &write, &bytes);
        assert_eq!(late, PeerAnswer::Unknown, "B7");
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_lease_that_is_granted_after_the_end_is_found() {
        use duramen_base::planted::{Bug, with_bug};
        let found = std::panic::catch_unwind(|| with_bug(Bug::ServesAfterEnd, a_life_ends));
        assert!(found.is_err());
    }
}
