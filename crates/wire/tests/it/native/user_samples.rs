//! Samples of a cluster's users, and of what its members say about them.

use crate::native::samples::{LOG, OTHER};
use duramen_wire::native::message::{ClusterFunctions, ClusterUsers, MemberHealth, MembersHealth};

pub fn health() -> MembersHealth {
    let member =
        |server, users_revision, fault: Option<&str>, certificate_expires_s| MemberHealth {
            server,
            users_revision,
            users_fault: fault.map(str::to_owned),
            certificate_expires_s,
        };
    MembersHealth {
        users_revision: 7,
        members: vec![
            member(LOG, 7, None, Some(1_800_000_000)),
            member(OTHER, 6, Some("Unknown command"), None),
        ],
    }
}

pub fn users() -> ClusterUsers {
    ClusterUsers {
        revision: 3,
        rules: b"user ann on ~* +@all\n".to_vec(),
    }
}

pub fn functions() -> ClusterFunctions {
    ClusterFunctions {
        revision: 2,
        texts: vec![b"#!lua name=one\n".to_vec(), b"#!lua name=two\n".to_vec()],
    }
}
