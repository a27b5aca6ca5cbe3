//! Where a coordinator's state outlives it: one file ([`Embedded`]), or etcd ([`Etcd`]), where
//! several coordinators can wait for the leader's end. What they promise is written at
//! `duramen_cluster::coordinator::store`; one suite of tests holds all of them to it
//! (`tests/conformance`).

mod embedded;
mod etcd;

pub use embedded::Embedded;
pub use etcd::Etcd;

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
