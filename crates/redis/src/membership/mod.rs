//! A member's state for its reactors: the owner of each key, and the time until which they may
//! answer.
//!
//! **Invariants**
//! - M1: a request is executed with a view that was current when its guard was pinned or renewed. A
//!   thread that takes a range away waits for the guards from before (`Store::quiesce` of the
//!   engine), and so for every request that used an older view.
//! - M2: no reply is sent unless [`Membership::may_reply`] allows it after the request was
//!   executed. A reply that may not be sent waits: a lease granted later proves that no other
//!   server served the key meanwhile, and a life that ends closes the connection.
//!
//! **Concurrency**: the node's thread writes, any thread reads. Release in `publish` pairs with
//! Acquire in [`ViewCache::get`].
//!
//! Paper: [Ousterhout15 §3, §7.4].

pub(crate) mod clock;
pub(crate) mod outbox;
pub(crate) mod status;

pub use clock::Clock;
use duramen_node::{Clients, ReadUntil, View};
use duramen_wire::native::message::{CoordinatorAnswer, Refusal, ToCoordinator};
pub use outbox::BATCH_BYTES;
use outbox::Outbox;
pub use status::MemberStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Time after which a question without an answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Time after which a question is asked again that was refused for now, or reached no coordinator.
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// Pause after a change that another change preceded.
const CHANGE_PAUSE: Duration = Duration::from_millis(5);

/// Error if the coordinator answers another question than the one asked.
pub(crate) const UNFIT_ANSWER: &str = "the coordinator's answer does not fit";

/// A question to the coordinator, from a thread that waits for the answer.
pub struct CoordinatorQuestion {
    pub question: ToCoordinator,
    /// `host:port` of the coordinator to ask; `None`: the one that this member takes for the
    /// leader.
    pub address: Option<String>,
    /// Gets the answer, or the reason why there is none.
    pub answer: SyncSender<Result<CoordinatorAnswer, String>>,
}

/// One life of a member: from the id that the coordinator assigned, to its end.
pub struct Membership {
    clock: Clock,
    view: RwLock<Arc<View>>,
    /// Grows with every change of `view`.
    generation: AtomicU64,
    read_until: Arc<ReadUntil>,
    /// Time at which this life began, in microseconds of its clock.
    began_us: u64,
    clients: Arc<Clients>,
    /// Sends a question to the coordinator at once.
    ask: Box<dyn Fn(CoordinatorQuestion) + Send + Sync>,
    status: RwLock<Arc<MemberStatus>>,
    /// Messages for the other members, and the call that wakes their sender.
    outbox: Outbox,
    wake_sender: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Membership {
    /// State before the first view: nothing is served. All parameters belong to the same node;
    /// `clients` came with its store.
    pub fn new(
        clock: Clock,
        read_until: Arc<ReadUntil>,
        clients: Arc<Clients>,
        ask: Box<dyn Fn(CoordinatorQuestion) + Send + Sync>,
    ) -> Membership {
        Membership {
            began_us: clock.now_us(),
            clock,
            view: RwLock::default(),
            generation: AtomicU64::new(1),
            read_until,
            clients,
            ask,
            status: RwLock::default(),
            outbox: Outbox::default(),
            wake_sender: OnceLock::new(),
        }
    }

    /// From now on `wake` is called when messages wait for the other members. Must be called once.
    pub fn when_published(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.wake_sender.get_or_init(|| wake);
    }

    /// Sends a message of PUBLISH to the other members.
    pub(crate) fn broadcast(&self, channel: &[u8], message: &[u8]) {
        if self.outbox.add(channel, message)
            && let Some(wake) = self.wake_sender.get()
        {
            wake();
        }
    }

    /// Grows with every change of the view.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Batches of messages for the other members, and the bytes that wait.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// The remembered requests of native clients.
    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// Asks the leading coordinator until it has answered, or until `deadline`. Blocks.
    ///
    /// # Errors
    /// The coordinator has refused, or it has not answered in time: then the question may have had
    /// its effect.
    pub fn ask_coordinator(
        &self,
        question: &ToCoordinator,
        deadline: Instant,
    ) -> Result<CoordinatorAnswer, String> {
        let mut address = None;
        let mut why = "no answer".to_owned();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("the coordinator has not answered in time: {why}"));
            }
            let (to, answer) = mpsc::sync_channel(1);
            (self.ask)(CoordinatorQuestion {
                question: question.clone(),
                address: address.take(),
                answer: to,
            });
            match answer.recv_timeout(left.min(ASK_AGAIN)) {
                Ok(Ok(CoordinatorAnswer::Refused(refusal))) => match refusal {
                    Refusal::NotLeader { leader } => address = leader,
                    Refusal::Invalid(why) => return Err(why),
                    other => why = other.to_string(),
                },
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(reason)) => why = reason,
                Err(_) => continue, // it has waited long enough
            }
            std::thread::sleep(ASK_PAUSE.min(left));
        }
    }

    /// Changes a part of the cluster's state that the coordinator keeps in revisions; `what` is its
    /// name. `offer` makes the change from the newest revision that is known here, and asks the
    /// coordinator by the function that it gets. If the coordinator has a newer revision, `offer`
    /// learns it, returns `None`, and is called again. Blocks, at most until `deadline`.
    ///
    /// # Errors
    /// `offer` has failed, or the coordinator has not answered: the text says whether it is known
    /// that nothing was changed.
    pub(crate) fn change_kept<T>(
        &self,
        what: &str,
        deadline: Instant,
        mut offer: impl FnMut(
            &dyn Fn(&ToCoordinator) -> Result<CoordinatorAnswer, String>,
        ) -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let ask = |question: &ToCoordinator| {
            self.ask_coordinator(question, deadline).map_err(|why| {
                format!("it is not known whether the {what} of the cluster changed: {why}")
            })
        };
        loop {
            if Instant::now() >= deadline {
                return Err("the coordinator was not asked in time; nothing changed".to_owned());
            }
            if let Some(changed) = offer(&ask)? {
                return Ok(changed);
            }
            // Another change came first, or the coordinator does not know yet what this member
            // knows.
            std::thread::sleep(CHANGE_PAUSE);
        }
    }

    /// Microseconds on the node's clock.
    pub fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// Whether replies may leave now (M2).
    pub fn may_reply(&self) -> bool {
        self.read_until.may_read(self.now_us())
    }

    /// Milliseconds for which this member has had no lease to serve the tablets that it owns or
    /// could own.
    pub fn unleased_ms(&self) -> u64 {
        let view = self.view();
        if view.map().owner(view.me()).is_none() {
            return 0;
        }
        let since_us = self.read_until.end_us().max(self.began_us);
        self.now_us().saturating_sub(since_us) / 1_000
    }

    /// The member's status, for people.
    pub fn status(&self) -> Arc<MemberStatus> {
        Arc::clone(&self.status.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The reason for which requests wait here, for people; `None` if they are answered.
    pub fn waits_for(&self) -> Option<String> {
        let status = self.status();
        let (up, needed) = (status.servers_up, status.replicas as usize + 1);
        match status.enough_backups {
            false if up < needed => Some(format!(
                "{up} of the {needed} servers needed are up: start another one"
            )),
            false => Some(format!(
                "too few of the {up} servers that are up keep replicas: start another one"
            )),
            true if !self.may_reply() => {
                Some("servers that keep its newest replicas do not answer".to_owned())
            }
            true => None,
        }
    }

    pub fn set_status(&self, status: MemberStatus) {
        *self.status.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(status);
    }

    pub fn publish(&self, view: Arc<View>) {
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = view;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The current view. A hot path should keep a [`ViewCache`].
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One thread's copy of the view, refreshed when it changes. Reading it costs one load of a cache
/// line that is rarely written.
#[derive(Default)]
pub struct ViewCache {
    generation: u64,
    view: Arc<View>,
}

impl ViewCache {
    /// Whether [`get`](Self::get) would return the same view as last time: then the guard need not
    /// be renewed (M1).
    #[inline]
    pub fn is_current(&self, membership: &Membership) -> bool {
        self.generation == membership.generation.load(Ordering::Acquire)
    }

    /// The view that [`get`](Self::get) returned last: the running request is here by this view.
    pub fn last(&self) -> &View {
        &self.view
    }

    /// The current view. Must be called after the guard was pinned or renewed (M1).
    #[inline]
    pub fn get(&mut self, membership: &Membership) -> &Arc<View> {
        let generation = membership.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.view = membership.view();
        }
        &self.view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::{RouteHash, ServerId, TableId, TabletsVersion};
    use duramen_node::{Map, Ranges, Route};

    #[test]
    fn a_cache_sees_what_was_published_and_nobody_replies_without_a_lease() {
        let membership = Membership::new(
            Clock::start(),
            Arc::default(),
            Clients::new(Arc::new(|| {})),
            Box::new(|_| {}),
        );
        let mut cache = ViewCache::default();
        let at = |view: &View| matches!(view.route(TableId(1), RouteHash(0)), Route::ClusterDown);
        assert!(at(cache.get(&membership)));
        let me = ServerId::new(0, 1);
        let (none, map) = (Ranges::default(), Arc::<Map>::default());
        let view = View::new(me, TabletsVersion(1), none.clone(), none, map);
        membership.publish(Arc::new(view));
        assert_eq!(cache.get(&membership).me(), me);
        assert!(!membership.may_reply());
    }
}
