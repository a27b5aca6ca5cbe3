//! The orders that this server has to apply to its store: lists of tablets, and ranges to purge.

use crate::job::{Job, JobResult};
use crate::life::Life;
use crate::reconciliation::{Purge, Purging, Reconciliation};
use duramen::internals::{LogWriter, Position};
use duramen_base::ids::{Level, TabletsVersion};

/// The newest order of each kind.
#[derive(Default)]
pub(super) struct Orders {
    /// The order and the purge that wait for the leftovers of migrations (migration::M4).
    order: Option<Reconciliation>,
    purge: Option<Purge>,
    /// A completed order, and the position to be synced before it is confirmed (node::D1).
    obeyed: Option<(TabletsVersion, Position)>,
}

impl Orders {
    pub(super) fn hold(&mut self, order: Reconciliation) {
        self.order = Some(order);
    }

    pub(super) fn hold_purge(&mut self, purge: Purge) {
        self.purge = Some(purge);
    }

    /// Nothing blocks the orders: their jobs, the purge's first.
    pub(super) fn take(&mut self, life: &Life) -> impl Iterator<Item = Job> + use<> {
        let purge = self.purge.take().map(|purge| purge_job(life, purge));
        let order = self.order.take().map(|order| order_job(life, order));
        purge.into_iter().chain(order)
    }

    /// An order has been applied to the store.
    pub(super) fn is_obeyed(&mut self, version: TabletsVersion, life: &Life) {
        let log = life.store.engine().log();
        let position = log.expect("a member's store has a log").appended();
        self.obeyed = Some((version, position));
    }

    /// node::D1: the version of the completed order, once all of it is synced.
    pub(super) fn take_synced(&mut self, log: &LogWriter) -> Option<TabletsVersion> {
        let (version, position) = self.obeyed.as_ref()?;
        if log.reached(position) < Level::Synced {
            log.demand(Level::Synced);
            return None;
        }
        let version = *version;
        self.obeyed = None;
        Some(version)
    }
}

fn order_job(life: &Life, order: Reconciliation) -> Job {
    let (store, clients) = (life.store.clone(), life.client_leases.clients().clone());
    let work = move || {
        let result = order.run(store.engine(), &clients);
        JobResult::Obeyed(order, result)
    };
    Job::new("order", work)
}

fn purge_job(life: &Life, purge: Purge) -> Job {
    let (store, clients) = (life.store.clone(), life.client_leases.clients().clone());
    let work = move || purge_slice(purge.begin(store.engine(), &clients));
    Job::new("purge", work)
}

/// A purge continues in another job, after those that were issued meanwhile.
pub(super) fn purge_on(rest: Purging) -> Job {
    Job::new("purge", || purge_slice(rest))
}

fn purge_slice(purging: Purging) -> JobResult {
    match purging.slice() {
        Ok(true) => JobResult::Purged(Ok(()), Some(purging)),
        Ok(false) => JobResult::Purged(Ok(()), None),
        Err(error) => JobResult::Purged(Err(error), Some(purging)),
    }
}
