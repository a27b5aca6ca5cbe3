//! The connection of a member's store to its backups and to the coordinator.
//!
//! The store puts its requests into a [`Queue`], from any thread. [`Remote`] sends them to servers,
//! repeats unanswered ones, and interprets the answers.
//!
//! **Invariants**
//! - Q1: a request is repeated until it is answered, or its backup is lost: the rules wait for one
//!   of the two. It is not repeated while its connection [moves](Remote::moving) something
//!   for it: the repetitions would fill a slow link.
//! - Q2: an answer counts once, and only for the request that is still open: the request that
//!   follows from an answer has another name.
//! - Q3: a lease counts from the first time that its request was sent, whichever copy was answered
//!   (cluster::lease::E1).
//! - Q4: bytes copied from one replica to a new one match their certificate.
//! - Q5: a backup that lacks the requested replica, or has a newer state, is lost for this log,
//!   with all its replicas of it; after a while it is a backup like any other that has none.
//! - Q6: a server that is told that it is fenced, or not UP, sends no more requests.
//! - Q7: of the closed segments that are copied from one backup to another, whole, through this
//!   server, [`COPIES_MAX`] are in flight: a dead backup may have had replicas of all segments. A
//!   copy for which nothing has moved for [`COPY_US`] delays the others no longer.
//! - Q8: a backup that is UP, but carries out no request of this log for some seconds, is
//!   [`silent`](Remote::silent). Time does not count while no server at all answers this one. A
//!   lost backup is taken back only after it has answered a [`probe`](Remote::probe), which is as
//!   long as a write, and writes to the disk there.
//! - Q9: a backup whose writes take much longer than those of the others is [`slow`](Remote::slow).
//!   It keeps its replicas, and gets no new ones while others suffice.
//! - Q10: a survivor is sent as a recipe first. A backup that cannot build it, that has not built
//!   it after [`BUILD_US`], or whose answer is lost, gets its bytes, in a request with another name
//!   (Q2): the rules only see that one call takes longer. An older server does not know recipes.
//! - Q11: a backup that finds a write's bytes to be damaged is well, and is not lost: they are sent
//!   again, verified (durable::remote::J5). Otherwise one bit that has flipped in this server's
//!   memory would lose one backup after the other. A backup that finds that four times loses this
//!   replica alone, if another backup can take it (`cluster::replication::replicas`).
//!
//! **Concurrency**: [`Queue`] is shared and is held only to push or take.
//!
//! Paper: [Ousterhout15 §4.2, §7.3]

mod pace;
mod silence;

use crate::requests::{PeerCall, PeerRequest, Token};
use duramen::internals::{Backups, Bytes, Call, ToBackups};
use duramen_base::ids::{Level, SegmentId, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::replication::{BackupId, Rejection, Ticket};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use duramen_wire::native::Slice;
use duramen_wire::native::message::{CoordinatorAnswer, Peer, PeerAnswer, Refusal, ToCoordinator};
use pace::Paces;
pub(crate) use pace::{SLOW_US, Slow};
use silence::{Need, Silence};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A request without an answer is repeated when nothing has moved for it for this time.
const PATIENCE_US: u64 = 500_000;
/// A request that did not reach its server, or was refused for now, is repeated after this time.
const REST_US: u64 = 50_000;
/// See Q7.
const COPIES_MAX: usize = 1;
const COPY_US: u64 = 5_000_000;
/// A survivor that its backup has not built after this time is sent as bytes (Q10): a recovery may
/// keep the backup's readers busy for long. Less than the time after which a backup is silent.
const BUILD_US: u64 = 2_000_000;
/// Bytes of a probe: a path may pass small packets alone.
const PROBE_BYTES: usize = 64 << 10;
/// The request waits for its turn (Q7).
const NOT_YET: u64 = u64::MAX;

/// The queue of the store's requests.
pub(crate) struct Queue {
    requests: Mutex<Vec<ToBackups>>,
    /// Called after a push.
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Queue {
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Queue {
        Queue {
            requests: Mutex::default(),
            wake,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ToBackups>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<ToBackups> {
        std::mem::take(&mut *self.lock())
    }
}

impl Backups for Queue {
    fn ask(&self, request: ToBackups) {
        self.lock().push(request);
        (self.wake)();
    }
}

/// An event that the store is told of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RemoteEvent {
    Answered(Ticket, Result<Level, Rejection>),
    /// A backup has found the bytes of a write damaged.
    Damaged(BackupId),
    /// A backup could not build a survivor, and is sent these bytes.
    RecipeRefused(u64),
    /// None of these holders had the bytes of a closed segment.
    NotFetched(Ticket, Vec<BackupId>),
    Freed(BackupId, SegmentId),
    Synced(BackupId),
    Noted(SegmentId),
    /// A holder granted a read lease; the time of the request.
    Granted(BackupId, u64),
    /// This backup is lost for the log (Q5).
    Lost(BackupId),
    /// A lost backup answers again, after this time.
    Back(BackupId, u64),
    /// This server is told that it is fenced, or not UP (Q6).
    Fenced,
}

enum Request {
    /// A call with its bytes, with the recipe by which the backup builds them, or, if the bytes are
    /// not here, with the request for them to one of their holders.
    Call(Call),
    Free(SegmentId),
    Sync,
    Probe,
    Renew(SegmentId),
}

impl Request {
    fn is_build(&self) -> bool {
        matches!(self, Request::Call(call) if matches!(call.bytes, Bytes::Built { .. }))
    }

    /// The work of the backup that has failed if there is no answer (Q8).
    fn need(&self) -> Option<Need> {
        match self {
            Request::Call(_) | Request::Free(_) | Request::Sync => Some(Need::Disk),
            Request::Renew(_) => Some(Need::Lease),
            Request::Probe => None,
        }
    }
}

struct Open {
    to: BackupId,
    request: Request,
    /// Part of a copy of a closed segment (Q7), which began, or last moved, at this time.
    copy_us: Option<u64>,
    /// When it was first sent.
    sent_us: Option<u64>,
    /// When it is sent (again).
    due_us: u64,
}

/// The connection to backups and coordinator; see the module.
pub(crate) struct Remote {
    log: ServerId,
    queue: Arc<Queue>,
    calls: BTreeMap<PeerCall, Open>,
    /// The newest control segment that was sent to each backup.
    controls: BTreeMap<BackupId, SegmentId>,
    /// The control head that the coordinator is to note, and the time of the next request.
    head: Option<(SegmentId, u64)>,
    heads: BTreeMap<Token, SegmentId>,
    next: u64,
    silence: Silence,
    paces: Paces,
    ended: bool,
}

impl Remote {
    pub fn new(log: ServerId, queue: Arc<Queue>) -> Remote {
        Remote {
            log,
            queue,
            calls: BTreeMap::new(),
            controls: BTreeMap::new(),
            head: None,
            heads: BTreeMap::new(),
            next: 0,
            silence: Silence::default(),
            paces: Paces::default(),
            ended: false,
        }
    }

    /// When [`poll`](Self::poll) has a request to repeat.
    pub fn due_us(&self) -> u64 {
        let calls = self.calls.values().map(|open| open.due_us);
        let head = self.head.map(|(_, due_us)| due_us);
        calls.chain(head).min().unwrap_or(u64::MAX)
    }

    /// Takes the store's requests, and sends those that are due.
    pub fn poll(
        &mut self,
        now_us: u64,
        out: &mut Vec<PeerRequest>,
    ) -> Option<(Token, ToCoordinator)> {
        let requests = self.queue.take();
        if self.ended {
            return None; // Q6
        }
        for request in requests {
            match request {
                ToBackups::Write(call) => self.call(now_us, call),
                ToBackups::Free(backup, segment) => {
                    self.open(now_us, backup, Request::Free(segment));
                }
                ToBackups::Sync(backup) => self.open(now_us, backup, Request::Sync),
                ToBackups::ControlHead(min_open) => {
                    let known = self.head.map_or(SegmentId::NONE, |(known, _)| known);
                    self.head = Some((min_open.max(known), now_us));
                }
            }
        }
        self.count_unanswered(now_us);
        let is_over =
            |open: &Open| matches!(open.request, Request::Renew(_)) && open.sent_us.is_some();
        self.calls
            .retain(|_, open| open.due_us > now_us || !is_over(open)); // `Leases` sends a new request
        self.begin_copies(now_us);
        for (call, open) in &mut self.calls {
            if open.due_us <= now_us {
                open.due_us = now_us + PATIENCE_US;
                if has_bug(Bug::LateLease) {
                    open.sent_us = None;
                }
                open.sent_us.get_or_insert(now_us); // Q3
                let (question, payload) = question(self.log, &open.request);
                out.push(PeerRequest {
                    call: *call,
                    to: ServerId::from_number(open.to.0),
                    question,
                    payload,
                });
            }
        }
        let (min_open, due_us) = self.head.as_mut()?;
        if *due_us > now_us {
            return None;
        }
        *due_us = now_us + PATIENCE_US;
        self.next += 1;
        let token = Token::ControlHead(self.next);
        self.heads.insert(token, *min_open);
        let question = ToCoordinator::ControlHead {
            server: self.log,
            min_open: *min_open,
        };
        Some((token, question))
    }

    /// Counts the requests that were not answered in time (Q8).
    fn count_unanswered(&mut self, now_us: u64) {
        for open in self.calls.values() {
            if open.due_us <= now_us
                && open.sent_us.is_some_and(|sent| sent < now_us)
                && let Some(need) = open.request.need()
            {
                self.silence.in_vain(now_us, open.to, need);
            }
        }
    }

    /// Notes an answer of any server, backup or not.
    pub fn heard(&mut self, now_us: u64) {
        self.silence.heard(now_us);
    }

    /// Backups that have not carried out requests for long (Q8).
    pub fn silent(&self) -> BTreeSet<BackupId> {
        self.silence.silent()
    }

    /// Backups that have stored writes slowly for long (Q9).
    pub fn slow(&self) -> Vec<Slow> {
        self.paces.slow()
    }

    /// Drops what is known of the pace of a backup.
    pub fn forget_pace(&mut self, backup: BackupId) {
        self.paces.forget(backup);
    }

    /// Asks a lost backup whether it works again: [`RemoteEvent::Back`].
    pub fn probe(&mut self, now_us: u64, backup: BackupId) {
        self.open(now_us, backup, Request::Probe);
    }

    /// Begins copies of closed segments, as long as there is room for one (Q7).
    fn begin_copies(&mut self, now_us: u64) {
        let lasts = |open: &&Open| open.copy_us.is_some_and(|began| began + COPY_US > now_us);
        let under_way = self.calls.values().filter(lasts).count();
        let waiting = self.calls.values_mut().filter(|o| o.due_us == NOT_YET);
        for open in waiting.take(COPIES_MAX.saturating_sub(under_way)) {
            (open.due_us, open.copy_us) = (now_us, Some(now_us));
        }
    }

    fn open(&mut self, now_us: u64, to: BackupId, request: Request) {
        self.open_copy(now_us, to, request, None);
    }

    fn open_copy(&mut self, due_us: u64, to: BackupId, request: Request, copy_us: Option<u64>) {
        self.next += 1;
        let open = Open {
            to,
            request,
            copy_us,
            sent_us: None,
            due_us,
        };
        self.calls.insert(PeerCall::Replication(self.next), open);
    }

    fn call(&mut self, now_us: u64, call: Call) {
        if call.write.kind == Kind::Control {
            let newest = self.controls.entry(call.to).or_default();
            *newest = (*newest).max(call.write.segment);
        }
        match &call.bytes {
            Bytes::Here(_) | Bytes::Built { .. } => {
                self.open(now_us, call.to, Request::Call(call));
            }
            Bytes::At(holders) => {
                let Some(first) = holders.first().copied() else {
                    return; // the rules give no holder only if they know none
                };
                self.open_copy(NOT_YET, first, Request::Call(call), None);
            }
        }
    }

    /// Requests leases from these holders.
    pub fn renew(&mut self, now_us: u64, holders: Vec<BackupId>) {
        for holder in holders {
            if let Some(control) = self.controls.get(&holder).copied() {
                self.open(now_us, holder, Request::Renew(control));
            }
        }
    }

    /// An unanswered request is not lost: its connection moves. This does not hold for leases:
    /// pings on their connection are answered although the backup's disk hangs.
    pub fn moving(&mut self, now_us: u64, call: PeerCall) {
        let is_bulk = |open: &&mut Open| !matches!(open.request, Request::Renew(_));
        let open = self.calls.get_mut(&call).filter(is_bulk);
        if let Some(open) = open.filter(|open| open.sent_us.is_some()) {
            open.due_us = open.due_us.max(now_us + PATIENCE_US);
            open.copy_us = open.copy_us.map(|_| now_us);
        }
    }

    /// The answer of a server; `None`: it was not reached, or the connection broke.
    pub fn answered(
        &mut self,
        now_us: u64,
        call: PeerCall,
        answer: Option<(PeerAnswer, Slice)>,
        events: &mut Vec<RemoteEvent>,
    ) {
        let Some(mut open) = self.calls.remove(&call) else {
            return; // Q2
        };
        let (answer, payload) = match answer {
            Some((PeerAnswer::Fenced, _)) => {
                if let Request::Call(call) = open.request
                    && !matches!(call.bytes, Bytes::At(_))
                {
                    let fenced = Err(Rejection::Fenced);
                    events.push(RemoteEvent::Answered(call.ticket, fenced));
                }
                return events.push(RemoteEvent::Fenced);
            }
            None | Some((PeerAnswer::Refused(Refusal::NotReady { .. } | Refusal::NotUp(_)), _)) => {
                let is_build = open.request.is_build();
                let is_late = open.sent_us.is_some_and(|sent| sent + BUILD_US <= now_us);
                if is_build && (is_late || answer.is_none()) {
                    return self.send_whole(now_us, open, events); // it may not know recipes
                }
                open.due_us = now_us + if is_build { PATIENCE_US } else { REST_US };
                self.calls.insert(call, open); // Q1
                return;
            }
            Some(answer) => answer,
        };
        if let Some(need) = open.request.need() {
            self.silence.answered(open.to, need);
        }
        if open.request.is_build() && matches!(answer, PeerAnswer::Bad { .. }) {
            return self.send_whole(now_us, open, events);
        }
        self.conclude(now_us, open, (answer, payload), events);
    }

    /// A request has its last answer.
    fn conclude(
        &mut self,
        now_us: u64,
        open: Open,
        (answer, payload): (PeerAnswer, Slice),
        events: &mut Vec<RemoteEvent>,
    ) {
        let (to, sent_us) = (open.to, open.sent_us.unwrap_or(0));
        match (open.request, answer) {
            (Request::Call(call), answer) if matches!(call.bytes, Bytes::At(_)) => {
                let bytes = matches!(answer, PeerAnswer::Segment).then_some(payload);
                self.fetched(now_us, to, (call, open.copy_us), bytes, events);
            }
            (Request::Call(call), PeerAnswer::Stored { level, leased }) => {
                let is_sent = matches!(call.bytes, Bytes::Here(_)) && open.copy_us.is_none();
                if is_sent && call.write.level >= Level::Synced {
                    self.paces.stored(now_us, to, now_us - sent_us);
                }
                if leased && call.write.kind == Kind::Control {
                    events.push(RemoteEvent::Granted(to, sent_us));
                }
                events.push(RemoteEvent::Answered(call.ticket, Ok(level)));
            }
            (Request::Call(call), PeerAnswer::Busy | PeerAnswer::Full) => {
                events.push(RemoteEvent::Answered(call.ticket, Err(Rejection::Busy)));
            }
            // Q11: the backup is well, the bytes are not.
            (Request::Call(call), PeerAnswer::Bad { .. }) if !has_bug(Bug::DamageLosesBackups) => {
                events.push(RemoteEvent::Damaged(to));
                events.push(RemoteEvent::Answered(call.ticket, Err(Rejection::Damaged)));
            }
            (Request::Free(segment), PeerAnswer::Freed | PeerAnswer::Unknown) => {
                events.push(RemoteEvent::Freed(to, segment));
            }
            (Request::Sync, PeerAnswer::Synced) => events.push(RemoteEvent::Synced(to)),
            (Request::Probe, PeerAnswer::Synced) => {
                events.push(RemoteEvent::Back(to, now_us - sent_us));
            }
            (Request::Renew(_), PeerAnswer::Leased) => {
                events.push(RemoteEvent::Granted(to, sent_us))
            }
            (Request::Renew(_), _) => {} // no lease from that holder
            (Request::Call(_) | Request::Free(_) | Request::Sync | Request::Probe, _) => {
                events.push(RemoteEvent::Lost(to));
            }
        }
    }

    /// Q10: the bytes of a survivor take the place of its recipe.
    fn send_whole(&mut self, now_us: u64, build: Open, events: &mut Vec<RemoteEvent>) {
        let Request::Call(Call {
            ticket,
            to,
            write,
            bytes: Bytes::Built { bytes, .. },
        }) = build.request
        else {
            unreachable!("only called with one");
        };
        events.push(RemoteEvent::RecipeRefused(bytes.len() as u64));
        let call = Call {
            ticket,
            to,
            write,
            bytes: Bytes::Here(bytes),
        };
        self.open(now_us, to, Request::Call(call));
    }

    /// This holder has sent the bytes of a closed segment, or does not have them.
    fn fetched(
        &mut self,
        now_us: u64,
        holder: BackupId,
        (call, copy_us): (Call, Option<u64>),
        bytes: Option<Slice>,
        events: &mut Vec<RemoteEvent>,
    ) {
        let Bytes::At(holders) = &call.bytes else {
            unreachable!("only called with one");
        };
        let certificate = call.write.certificate;
        let good = bytes.filter(|bytes| Some(Certificate::of(bytes)) == certificate); // Q4
        let (to, call) = match good {
            Some(bytes) => {
                let payload = bytes.part(call.write.offset as usize..bytes.len());
                let bytes = Bytes::Here(payload);
                (call.to, Call { bytes, ..call })
            }
            None => {
                let mut others = holders.iter().skip_while(|other| **other != holder);
                let Some(next) = others.nth(1).copied() else {
                    // The rules ask again, with the holders at that time.
                    let failed = holders.clone();
                    return events.push(RemoteEvent::NotFetched(call.ticket, failed));
                };
                (next, call)
            }
        };
        let due_us = copy_us.map_or(NOT_YET, |_| now_us); // a holder was lost before its turn
        self.open_copy(due_us, to, Request::Call(call), copy_us);
    }

    /// The answer of the coordinator; `None`: it was not reached.
    pub fn head_answered(
        &mut self,
        now_us: u64,
        token: Token,
        answer: Option<&CoordinatorAnswer>,
        events: &mut Vec<RemoteEvent>,
    ) {
        let Some(min_open) = self.heads.remove(&token) else {
            return;
        };
        match answer {
            Some(CoordinatorAnswer::Noted) => {
                events.push(RemoteEvent::Noted(min_open));
                self.heads.retain(|_, asked| *asked > min_open);
                self.head.take_if(|(wanted, _)| *wanted <= min_open);
            }
            Some(CoordinatorAnswer::Refused(Refusal::NotUp(_))) => events.push(RemoteEvent::Fenced),
            _ => {
                if let Some((_, due_us)) = &mut self.head {
                    *due_us = now_us + REST_US;
                }
            }
        }
    }

    /// A backup has crashed, or is lost for this log.
    pub fn lost(&mut self, now_us: u64, backup: BackupId, events: &mut Vec<RemoteEvent>) {
        self.silence.forget(backup);
        self.paces.forget(backup);
        let concerned = |open: &Open| {
            let is_call = matches!(&open.request, Request::Call(call) if call.to == backup);
            open.to == backup || is_call
        };
        let calls: Vec<PeerCall> = self
            .calls
            .iter()
            .filter(|(_, open)| concerned(open))
            .map(|(call, _)| *call)
            .collect();
        for call in calls {
            let open = self.calls.remove(&call).expect("it was just seen");
            if let Request::Call(call) = open.request
                && call.to != backup
            {
                self.fetched(now_us, backup, (call, open.copy_us), None, events);
            }
        }
    }

    /// Sends no more requests (Q6).
    pub fn end(&mut self) {
        self.ended = true;
        self.calls.clear();
        self.heads.clear();
        self.head = None;
    }
}

fn question(log: ServerId, request: &Request) -> (Peer, Slice) {
    let question = match request {
        Request::Call(Call { write, bytes, .. }) => match bytes {
            Bytes::Here(payload) => return (Peer::WriteReplica(*write), payload.clone()),
            Bytes::Built { recipe, .. } => return (Peer::BuildReplica(*write), recipe.clone()),
            Bytes::At(_) => Peer::ReadSegment {
                log,
                segment: write.segment,
                certificate: write
                    .certificate
                    .expect("bytes that others have are certified"),
            },
        },
        Request::Free(segment) => Peer::FreeReplicas {
            log,
            segments: vec![*segment],
        },
        Request::Sync => Peer::SyncReplicas { log },
        Request::Probe => {
            return (Peer::SyncReplicas { log }, vec![0; PROBE_BYTES].into());
        }
        Request::Renew(control) => Peer::RenewLease {
            log,
            control: *control,
        },
    };
    (question, Slice::default())
}

#[cfg(test)]
mod tests;
