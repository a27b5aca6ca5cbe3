//! The outputs of the parts of a node.

use crate::backup_service::Task;
use crate::job::Job;
use crate::ranges::Ranges;
use crate::requests::{PeerRequest, Token};
use duramen_base::ids::ServerId;
use duramen_wire::native::message::ToCoordinator;

/// The outputs of the parts of a life, which the node carries out.
#[derive(Default)]
pub(crate) struct Effects {
    pub requests: Vec<PeerRequest>,
    pub reports: Vec<(Token, ToCoordinator)>,
    pub jobs: Vec<Job>,
    pub tasks: Vec<Task>,
    /// Ranges whose objects belong to the member from now on if it owns them, and are to be purged
    /// if not (recovery::R3).
    pub ended: Vec<Ranges>,
    /// Dead servers some of whose data belong to the member from now on.
    pub recovered: Vec<ServerId>,
}
