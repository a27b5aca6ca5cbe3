//! Names of the requests that a node receives and sends.

use duramen_base::ids::ServerId;
use duramen_wire::native::Slice;
use duramen_wire::native::message::Peer;

/// Names a received request until it is answered. Given by the driver of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a request to the coordinator until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Names a request to another server until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerCall(pub u64);

/// A request to another server that is to be sent.
pub(crate) struct Asked {
    pub call: PeerCall,
    pub to: ServerId,
    pub question: Peer,
    pub payload: Slice,
}
