//! The state of a cluster for its clients.

use super::cluster_member::Member;
use crate::membership::status::MemberStatus;

/// Of a cluster with two replicas, while so many servers are up.
pub(super) fn status(servers_up: usize) -> MemberStatus {
    MemberStatus {
        replicas: 2,
        servers_up,
        enough_backups: servers_up > 2,
        ..MemberStatus::default()
    }
}

/// Two of five servers were down, with three replicas: nothing was answered, and the state was
/// `ok`.
#[test]
fn a_cluster_that_cannot_answer_has_failed() {
    let mut member = Member::new(1);
    member.tell_halves();
    member.membership.set_status(status(2));
    let info = member.session.ask("CLUSTER INFO");
    let why = "duramen_waits_for:2 of the 3 servers needed are up: start another one";
    for line in ["cluster_state:fail", why] {
        assert!(info.contains(line), "{line} in {info}");
    }
}
