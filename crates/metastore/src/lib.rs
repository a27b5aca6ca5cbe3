//! The persistent stores of a coordinator's state: one file ([`Embedded`]), or etcd ([`Etcd`]),
//! with which several coordinators can stand by for the leader's end. Their contract is in
//! `duramen_cluster::coordinator::store`; one suite of tests checks all of them
//! (`tests/conformance`).

mod embedded;
mod etcd;

pub use embedded::Embedded;
pub use etcd::{Access as EtcdAccess, Etcd};

use duramen_cluster::coordinator::store::Error;

fn unavailable(reason: impl std::fmt::Display) -> Error {
    Error::Unavailable {
        reason: reason.to_string(),
    }
}

fn unusable(reason: impl std::fmt::Display) -> Error {
    Error::Unusable {
        reason: reason.to_string(),
    }
}
