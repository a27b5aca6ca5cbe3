//! The persistent stores of a coordinator's state: one file ([`Embedded`]), or etcd ([`Etcd`]),
//! with which several coordinators can stand by for the leader's end. Their contract is in
//! `duramen_cluster::coordinator::store`; one suite of tests checks all of them
//! (`tests/it/conformance`).

mod embedded;
mod etcd;
mod spec;

pub use embedded::Embedded;
pub use etcd::{Access as EtcdAccess, Etcd};
pub use spec::{StoreError, StoreSpec};

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
