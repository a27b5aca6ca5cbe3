//! A record of the cluster that is changed by revisions: the newest, and that which is stored.

use duramen_wire::native::message::{ClusterFunctions, ClusterUsers, Shared};

pub(super) trait Revision {
    fn revision(&self) -> u64;
}

impl Revision for ClusterUsers {
    fn revision(&self) -> u64 {
        self.revision
    }
}

impl Revision for ClusterFunctions {
    fn revision(&self) -> u64 {
        self.revision
    }
}

#[derive(Default)]
pub(super) struct Revised<T> {
    newest: Shared<T>,
    published: Shared<T>,
}

impl<T: Revision> Revised<T> {
    /// Takes over the stored record.
    pub(super) fn adopt(&mut self, record: T) {
        self.newest = Shared::from(record);
        self.published = self.newest.clone();
    }

    pub(super) fn newest(&self) -> &Shared<T> {
        &self.newest
    }

    pub(super) fn published(&self) -> &Shared<T> {
        &self.published
    }

    /// The newest, if it is not published.
    pub(super) fn changed(&self) -> Option<Shared<T>> {
        let is_new = self.newest.revision() > self.published.revision();
        is_new.then(|| self.newest.clone())
    }

    /// It will be stored.
    pub(super) fn change(&mut self, record: T) {
        self.newest = Shared::from(record);
    }

    /// It is stored.
    pub(super) fn publish(&mut self, record: Shared<T>) {
        self.published = record;
    }
}
