//! Inputs and outputs of a member.

use crate::ranges::Ranges;
use crate::reconciliation::{Purge, Reconciliation};
use crate::requests::{RequestId, Token};
use crate::view::View;
use duramen_base::ids::{ListVersion, ServerId, TabletsVersion};
use duramen_wire::native::message::{
    ClusterFunctions, ClusterSettings, ClusterUsers, CoordinatorAnswer, FromCoordinator, Peer,
    PeerAnswer, ServerAnswer, ServerChange, Shared, ToCoordinator,
};
use std::sync::Arc;

/// An input of a member.
#[derive(Clone, Debug)]
pub enum Input {
    /// A request of the coordinator. `sender` and `target`: of the frame.
    Order {
        request: RequestId,
        sender: ServerId,
        target: ServerId,
        question: FromCoordinator,
    },
    /// Another server pings.
    Pinged {
        request: RequestId,
        target: ServerId,
        nonce: u64,
    },
    /// The coordinator's answer.
    Answered {
        token: Token,
        answer: CoordinatorAnswer,
    },
    /// A server's answer to a ping.
    Ponged {
        nonce: u64,
        /// The version of its list.
        list_version: ListVersion,
    },
    /// No coordinator was reached, or the connection broke: there will be no answer.
    Unanswered { token: Token },
    /// These requests to the coordinator have no answer yet, but their connection has moved
    /// something since the last such input.
    Moving(Vec<Token>),
    /// The connection to a server was refused or reset.
    Unreachable { server: ServerId },
    /// [`Output::StoreId`] is done, durably.
    IdStored { server: ServerId },
    /// [`Output::Obey`] is done.
    Obeyed { version: TabletsVersion },
    /// [`Output::Obey`] has failed: a list that arrived meanwhile is tried in its place.
    NotObeyed {
        version: TabletsVersion,
        reason: String,
    },
    /// Some time has passed since an order failed: the newest list is tried.
    ObeyAgain,
    /// [`Output::Purge`] is done.
    Purged,
    /// A recovery has ended here, and left objects of these ranges.
    Left(Ranges),
    /// The users of [`Output::Users`] are in force, or the functions of [`Output::Functions`], or
    /// newer ones. `fault`: they are not understood here, and those before them stay.
    UsersTaken {
        request: RequestId,
        fault: Option<String>,
    },
    /// The time of [`Member::due_us`](super::Member::due_us) has come. May come at any time.
    Tick,
}

/// An output of a member.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send a request to the coordinator at this address, `host:port`.
    AskCoordinator {
        token: Token,
        address: String,
        question: ToCoordinator,
    },
    /// Send a request to another server, at this address.
    Ask {
        to: ServerId,
        address: String,
        question: Peer,
    },
    /// Answer the coordinator.
    Answer {
        request: RequestId,
        answer: ServerAnswer,
    },
    /// Answer a server.
    AnswerPeer {
        request: RequestId,
        answer: PeerAnswer,
    },
    /// Pass this request to the backup service or to the recovery master, and their answer to the
    /// sender. Its sender and target are right.
    Delegate {
        request: RequestId,
        question: FromCoordinator,
    },
    /// Store this id for the next life, then pass in [`Input::IdStored`].
    StoreId { server: ServerId },
    /// This server is a member: its log has this id, and its backups are found with these settings.
    Joined {
        server: ServerId,
        settings: ClusterSettings,
    },
    /// From now on, requests are routed by this view.
    View(Arc<View>),
    /// [`Reconciliation::run`] it on a worker, then pass in [`Input::Obeyed`]. The next one comes
    /// only after that.
    Obey(Reconciliation),
    /// [Begin](Purge::begin) it on a worker, run it slice by slice, then pass in [`Input::Purged`].
    /// The next one comes only after that.
    Purge(Purge),
    /// The server list changed. For replication and the backup.
    Members(Vec<ServerChange>),
    /// The settings changed.
    Settings(ClusterSettings),
    /// Take over these users of the cluster, which may be those that are here, or older ones; then
    /// pass in [`Input::UsersTaken`].
    Users {
        request: RequestId,
        users: Shared<ClusterUsers>,
    },
    /// As [`Output::Users`], of the libraries of functions.
    Functions {
        request: RequestId,
        functions: Shared<ClusterFunctions>,
    },
    /// This life is over: nothing is served any more. `again`: enlist as a new one, in a new
    /// process or at once.
    Ended { again: bool, reason: String },
}
