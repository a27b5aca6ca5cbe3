//! The requests that a node receives and sends, and their names.

use duramen_base::ids::ServerId;
use duramen_wire::native::Slice;
use duramen_wire::native::message::Peer;

/// Names a received request until it is answered. Given by the driver of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a request to the coordinator until it is answered: the part of the node that has sent it,
/// and the number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Token {
    Member(u64),
    ControlHead(u64),
    Recovery(u64),
    Migration(u64),
    ClientLeases(u64),
    Needed(u64),
    Loads(u64),
}

/// Names a request to another server until it is answered, as a [`Token`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerCall {
    Ping(u64),
    Replication(u64),
    Recovery(u64),
    Migration(u64),
    Needed(u64),
    Hint(u64),
}

impl PeerCall {
    /// The number that the part of the node has given it.
    pub fn number(self) -> u64 {
        let (PeerCall::Ping(number)
        | PeerCall::Replication(number)
        | PeerCall::Recovery(number)
        | PeerCall::Migration(number)
        | PeerCall::Needed(number)
        | PeerCall::Hint(number)) = self;
        number
    }
}

/// A request of another server that has come.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub request: RequestId,
    pub sender: ServerId,
    pub target: ServerId,
    pub question: Peer,
    pub payload: Vec<u8>,
}

/// A request to another server that is to be sent.
#[derive(Clone, Debug)]
pub struct PeerRequest {
    pub call: PeerCall,
    pub to: ServerId,
    pub question: Peer,
    pub payload: Slice,
}
