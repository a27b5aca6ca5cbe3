//! The options, inputs and outputs of a node.
//!
//! Paper: [Ousterhout15 §3, §6]

use crate::backup_service::{BackupService, Task};
use crate::job::{Job, JobDone};
use crate::member::{Candidate, Input};
use crate::requests::{PeerCall, PeerRequest, ReceivedRequest, RequestId, Token};
use crate::serve::Clients;
use crate::view::View;
use duramen::Store;
use duramen_backup::Backup;
use duramen_base::ids::ServerId;
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    ClusterFunctions, ClusterSettings, ClusterUsers, PeerAnswer, ServerAnswer, Shared,
    ToCoordinator,
};
use std::sync::Arc;

/// The options of a node.
pub struct NodeOptions {
    pub candidate: Candidate,
    /// Engine, levels and figures. A member's store has no directory.
    pub store: duramen::Options,
    /// The backup for other servers' replicas; `None`: this server is no backup.
    pub backup: Option<Arc<Backup>>,
    /// Memory for sorted replicas of all logs that are being recovered, in bytes; half as much
    /// holds data to be replayed here.
    pub ahead_bytes: usize,
    /// Interval of the reports to the coordinator about free room, in microseconds; 0: never.
    pub room_us: u64,
    /// Whether the store starts threads; if not, the driver of the node calls `background_step` and
    /// `try_commit_here`.
    pub threads: bool,
    /// Requests a call of [`Node::handle`](crate::Node::handle) soon. Called with locks of the
    /// store held: must only signal.
    pub wake: Arc<dyn Fn() + Send + Sync>,
}

/// An input of a node.
#[derive(Clone, Debug)]
pub enum NodeInput {
    /// An input of a [`Member`](crate::Member), except pings.
    Member(Input),
    /// A request of another server, except one that a backup here answers
    /// ([`BackupService::asked`]) and messages of PUBLISH.
    Request(ReceivedRequest),
    /// The answer of another server; `None`: it was not reached, or the connection broke.
    PeerAnswered {
        call: PeerCall,
        answer: Option<(PeerAnswer, Slice)>,
    },
    /// These requests have no answer yet, but their connections have moved something since the last
    /// such input, so none of them is lost.
    Moving(Vec<PeerCall>),
    /// [`NodeOutput::Job`] is done.
    JobDone(JobDone),
    /// The time of [`Node::due_us`](crate::Node::due_us) has come, or the store has signalled. May
    /// come at any time.
    Tick,
}

impl NodeInput {
    /// Whether another server, or the coordinator, has answered this one.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(
            self,
            NodeInput::PeerAnswered {
                answer: Some(_),
                ..
            } | NodeInput::Member(Input::Answered { .. })
        )
    }
}

/// An output of a node.
pub enum NodeOutput {
    /// Send a request to the coordinator at this address, `host:port`.
    AskCoordinator {
        token: Token,
        address: String,
        question: ToCoordinator,
    },
    /// Send a request to another server at this address, or to this one itself, in this order on
    /// one connection. The sender is this server.
    AskPeer {
        request: PeerRequest,
        address: String,
    },
    /// Answer the coordinator.
    Answer {
        request: RequestId,
        answer: ServerAnswer,
        payload: Vec<u8>,
    },
    /// Answer a server.
    AnswerPeer {
        request: RequestId,
        answer: PeerAnswer,
        payload: Slice,
    },
    /// Store this id for the next life, then pass in [`Input::IdStored`].
    StoreId { server: ServerId },
    /// The server is a member. The store is open; `keeper` gets [`NodeOutput::Keep`], in order.
    Opened {
        store: Arc<Store>,
        keeper: Option<Box<BackupService<RequestId>>>,
        /// The clients, for each thread's [`Servant`](crate::Servant).
        clients: Arc<Clients>,
    },
    /// A task of the keeper: [`BackupService::obey`].
    Keep(Task),
    /// From now on, requests are routed by this view, and reads also need
    /// [`Node::read_until`](crate::Node::read_until).
    View(Arc<View>),
    /// [`Job::run`] it, on any thread but the node's, then pass in [`NodeInput::JobDone`].
    Job(Job),
    /// An order of the coordinator fails, and is tried again; for the log.
    Fails(String),
    /// The settings changed. Those of the log take effect in the next life.
    Settings(ClusterSettings),
    /// Take over these users of the cluster, which may be those that are here, or older ones; then
    /// pass in [`Input::UsersTaken`].
    Users {
        request: RequestId,
        users: Shared<ClusterUsers>,
    },
    /// As [`NodeOutput::Users`], of the libraries of functions.
    Functions {
        request: RequestId,
        functions: Shared<ClusterFunctions>,
    },
    /// This life is over. `again`: enlist as a new one.
    Ended { again: bool, reason: String },
}
