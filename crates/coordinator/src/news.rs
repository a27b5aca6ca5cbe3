//! Messages of the other threads to the driver.

use crate::Role;
use duramen_cluster::coordinator::Token;
use duramen_cluster::coordinator::store::{Contents, Term};
use duramen_net::Handle;
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

/// Messages of other threads to the driver.
pub(crate) enum News {
    Leads(Leads),
    Stored {
        epoch: u64,
        token: Token,
    },
    /// The leadership of this epoch is over.
    Lost {
        epoch: u64,
        reason: String,
    },
    /// Another coordinator leads.
    Follows(Option<String>),
    /// The store can't be reached; the keeper tries again.
    Away(String),
    /// The store can't be used; the keeper does not try again.
    Unusable(String),
    /// The keeper has ended after an [`Order::Stop`](crate::keeper::Order::Stop).
    Resigned,
    /// Other users are in force.
    Users,
    Report(SyncSender<Report>),
    Stop,
}

/// State of the coordinator for admin HTTP.
pub(crate) struct Report {
    pub role: Role,
    /// The cluster's status; `None`: it does not lead.
    pub status: Option<String>,
    /// The reason why it is not ready although it leads.
    pub mistaken: Option<String>,
    /// Age of the commit that the leader's store has not finished yet.
    pub store_waits: Duration,
    pub metrics: String,
}

/// A new leadership.
pub(crate) struct Leads {
    pub epoch: u64,
    pub term: Term,
    pub contents: Contents,
}

/// Gets a report from the driver, for the admin thread; `None`: no answer within 2 s.
pub(crate) fn ask_report(handle: &Handle<News>) -> Option<Report> {
    let (to, answer) = mpsc::sync_channel(1);
    handle.tell(News::Report(to));
    answer.recv_timeout(Duration::from_secs(2)).ok()
}
