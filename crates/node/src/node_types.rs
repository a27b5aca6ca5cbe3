//! What a node is made of, what it is told, and what it says.
//!
//! Paper: [Ousterhout15 §3, §6]

use crate::backup_service::BackupService;
use crate::job::{Job, JobDone};
use crate::keeper::Task;
use crate::member::{Candidate, Input, RequestId, Token};
use crate::remote::PeerCall;
use crate::serve::Clients;
use crate::view::View;
use duramen::Store;
use duramen_backup::Backup;
use duramen_base::ids::ServerId;
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    ClusterSettings, Peer, PeerAnswer, ServerAnswer, ToCoordinator,
};
use std::sync::Arc;

/// What a node is made of.
pub struct NodeOptions {
    pub candidate: Candidate,
    /// Engine, levels and figures. A member's store has no directory.
    pub store: duramen::Options,
    /// What it keeps for others; `None`: it is no backup.
    pub backup: Option<Arc<Backup>>,
    /// Bytes of replicas that are kept in memory, sorted, of all logs that are recovered; half as
    /// much is on its way to be replayed here.
    pub ahead_bytes: usize,
    /// How often the coordinator is told how much room there is, in microseconds; 0: never.
    pub room_us: u64,
    /// Whether the store starts threads; if not, whoever drives the node calls `background_step`
    /// and `try_commit_here`.
    pub threads: bool,
    /// Asks for a call of [`Node::handle`](crate::Node::handle) soon. Called with locks of the
    /// store held: must only signal.
    pub wake: Arc<dyn Fn() + Send + Sync>,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum NodeInput {
    /// What a [`Member`](crate::Member) hears, pings excepted.
    Member(Input),
    /// Another server asks.
    Asked {
        request: RequestId,
        sender: ServerId,
        target: ServerId,
        question: Peer,
        payload: Vec<u8>,
    },
    /// Another server answered; `None`: it was not reached, or the connection broke.
    PeerAnswered {
        call: PeerCall,
        answer: Option<(PeerAnswer, Slice)>,
    },
    /// [`NodeOutput::Job`] is done.
    JobDone(JobDone),
    /// The time of [`Node::due_us`](crate::Node::due_us) has come, or the store has woken somebody.
    /// May come at any time.
    Tick,
}

impl NodeInput {
    /// Another server, or the coordinator, has answered this one.
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

/// What to do.
pub enum NodeOutput {
    /// Ask the coordinator at this address, `host:port`.
    AskCoordinator {
        token: Token,
        address: String,
        question: ToCoordinator,
    },
    /// Ask another server, or this one itself, in this order on one connection. The sender is this
    /// server.
    AskPeer {
        call: PeerCall,
        to: ServerId,
        address: String,
        question: Peer,
        payload: Slice,
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
    /// Store this id where the next life finds it, then say [`Input::IdStored`].
    StoreId { server: ServerId },
    /// A member at last. The store is open; `keeper` takes [`NodeOutput::Keep`], in order.
    Opened {
        store: Arc<Store>,
        keeper: Option<Box<BackupService<RequestId>>>,
        /// For each thread's [`Servant`](crate::Servant).
        clients: Arc<Clients>,
    },
    /// For the keeper: [`BackupService::obey`].
    Keep(Task),
    /// From now on, requests go by this view, and reads also by
    /// [`Node::read_until`](crate::Node::read_until).
    View(Arc<View>),
    /// [`Job::run`] it, on any thread but the node's, then say [`NodeInput::JobDone`].
    Job(Job),
    /// Something that it was told to do fails, and is tried again; for the log.
    Fails(String),
    /// The settings changed. Those of the log hold from the next life on.
    Settings(ClusterSettings),
    /// This life is over. `again`: enlist as a new one.
    Ended { again: bool, reason: String },
}
