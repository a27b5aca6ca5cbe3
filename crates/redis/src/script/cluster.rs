//! The libraries of functions of a cluster, which its coordinator keeps.

use crate::membership::{Membership, UNFIT_ANSWER};
use crate::state::Shared;
use crate::state::script::cache::limits;
use crate::state::script::libraries::Libraries;
use duramen_wire::native::message::{ClusterFunctions, CoordinatorAnswer, ToCoordinator};
use std::time::Instant;

/// Takes over the libraries of the cluster, unless this server has them, or newer ones, already.
/// Blocks until they are loaded.
pub fn adopt_functions(shared: &Shared, newest: &ClusterFunctions) {
    let limits = limits(shared.config().scripts.memory_bytes);
    if shared.scripts().libraries.adopt(newest, &limits) {
        shared.scripts().renew();
    }
}

/// Changes the libraries of the cluster by `make`, which may be called several times. Blocks
/// until `deadline`, or until the coordinator has stored them; then they are in force here, and
/// the coordinator tells the other members.
///
/// # Errors
/// `make` has failed, or the coordinator has not answered: the text says whether it is known
/// that nothing was changed.
pub(crate) fn change_cluster_functions(
    shared: &Shared,
    membership: &Membership,
    deadline: Instant,
    make: impl Fn(&mut Libraries) -> Result<(), String>,
) -> Result<(), String> {
    let registry = &shared.scripts().libraries;
    let _one = registry.lock_cluster_changes();
    membership.change_kept("functions", deadline, |ask| {
        let (revision, before) = registry.newest();
        let mut after = Libraries::clone(&before);
        make(&mut after)?;
        let wanted = ClusterFunctions {
            revision: revision + 1,
            texts: after.texts(),
        };
        let answer = ask(&ToCoordinator::SetFunctions(wanted.clone()))?;
        let CoordinatorAnswer::Functions(newest) = answer else {
            return Err(UNFIT_ANSWER.to_owned());
        };
        adopt_functions(shared, &newest);
        Ok((*newest == wanted).then_some(()))
    })
}
