//! Answers to backups that ask about replicas of this server's log.

use super::{Node, needed};
use duramen_base::ids::{SegmentId, ServerId};
use duramen_cluster::replication::BackupId;
use duramen_wire::native::message::{PeerAnswer, Refusal, ReplicaEntry};

impl Node {
    /// Replicas of this server's log that a backup may drop, and those that count.
    pub(super) fn hand_back(
        &self,
        sender: ServerId,
        log: ServerId,
        replicas: &[ReplicaEntry],
    ) -> PeerAnswer {
        let Some(life) = self.life.as_ref().filter(|_| log == self.member.id()) else {
            return PeerAnswer::Refused(Refusal::Invalid("this is another's log".to_owned()));
        };
        let found = needed::found(sender, replicas);
        let (segments, counted) = life.log().hand_back(BackupId(sender.number()), &found);
        PeerAnswer::NotNeeded { segments, counted }
    }

    /// Replicas of this server's log that a backup has found damaged.
    pub(super) fn replace_damaged(
        &self,
        sender: ServerId,
        log: ServerId,
        segments: &[SegmentId],
    ) -> PeerAnswer {
        let Some(life) = self.life.as_ref().filter(|_| log == self.member.id()) else {
            return PeerAnswer::Refused(Refusal::Invalid("this is another's log".to_owned()));
        };
        let backup = BackupId(sender.number());
        let counted = life.log().replace_damaged(backup, segments);
        PeerAnswer::NotNeeded {
            segments: Vec::new(),
            counted,
        }
    }
}
