//! Answers to backups that ask about replicas of this server's log.

use crate::life::Life;
use crate::replica_gc;
use duramen_base::ids::{SegmentId, ServerId};
use duramen_cluster::replication::BackupId;
use duramen_wire::native::message::{PeerAnswer, Refusal, ReplicaEntry};

/// Replicas of this server's log that a backup may drop, and those that count. `None`: it is
/// another's log.
pub(super) fn hand_back(
    life: Option<&Life>,
    sender: ServerId,
    replicas: &[ReplicaEntry],
) -> PeerAnswer {
    let Some(life) = life else {
        return not_ours();
    };
    let found = replica_gc::found(sender, replicas);
    let (segments, counted) = life.log().hand_back(BackupId(sender.number()), &found);
    PeerAnswer::NotNeeded { segments, counted }
}

/// Replicas of this server's log that a backup has found damaged. `None`: it is another's log.
pub(super) fn replace_damaged(
    life: Option<&Life>,
    sender: ServerId,
    segments: &[SegmentId],
) -> PeerAnswer {
    let Some(life) = life else {
        return not_ours();
    };
    let backup = BackupId(sender.number());
    let counted = life.log().replace_damaged(backup, segments);
    PeerAnswer::NotNeeded {
        segments: Vec::new(),
        counted,
    }
}

fn not_ours() -> PeerAnswer {
    PeerAnswer::Refused(Refusal::Invalid("this is another's log".to_owned()))
}
