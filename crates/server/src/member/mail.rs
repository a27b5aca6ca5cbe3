//! Messages between the threads of a member.

use duramen_base::ids::{ClusterId, ServerId};
use duramen_net::Incoming;
use duramen_node::{
    BackupService, JobDone, NodeOutput, ReceivedRequest, ReplicaWasRead, RequestId, Task,
};
use duramen_redis::membership::CoordinatorQuestion;

/// A message of this server's other threads to the node's thread.
pub(crate) enum Mail {
    JobDone(JobDone),
    /// The id is stored, or the reason why it is not.
    Stored(ServerId, std::io::Result<()>),
    /// The cluster's id, received while this server was a member, is stored, or the reason why it
    /// is not.
    Adopted(ClusterId, std::io::Result<()>),
    /// Output of the keeper, to be sent by the node.
    Output(NodeOutput),
    /// A question of another thread to the coordinator.
    Ask(CoordinatorQuestion),
    /// Messages of PUBLISH wait for the other members.
    Published,
    /// Messages of PUBLISH of another member are delivered, and its question is to be answered.
    Delivered(RequestId),
    /// Whether the backup's disk has no room for other members' writes (`true`), or has room again.
    BackupFull(bool),
    /// The users of the cluster are in force, or the reason why they are not understood.
    UsersTaken(RequestId, Option<String>),
    /// A replica on this member's disk was found damaged.
    Damaged,
    /// The disk failed for good.
    Failed(String),
    /// The server ends.
    Stop,
}

/// An order to the keeper.
pub(super) enum Order {
    /// The keeper serves from now on.
    Opened(Box<BackupService<RequestId>>),
    Task(Task),
    /// A request for the backup that came on a connection of the node.
    Asked(ReceivedRequest),
    Adopt(Incoming),
    /// A replica was read, with the reader's memory.
    Read {
        read: ReplicaWasRead,
        scratch: Vec<u8>,
    },
    /// The life is over.
    Stop,
}
