//! Native clients' requests: frames of all connections of a round become batches of the engine.
//!
//! [`Servant`] of `node` executes them. Here the requests are decoded in the receive buffer,
//! prefetched, and run in order, like the RESP commands (`executor::batch::group`).
//!
//! **Invariants**
//! - Y1: everything that a request wrote or saw joins its client's wait before the next request
//!   runs, and so does this member's right to answer (membership::M2).
//! - Y2: each frame is answered once, in the order of the frames. A frame that is no request of a
//!   client gets an error that gives the reason.
//! - Y3: a read allocates nothing and writes no shared cache line.
//! - Y4: a request that needs an entry on flash changes nothing. Once the entry is fetched, the
//!   request is presented again unchanged, with the requests behind it on its connection
//!   (`command::cold`, `reactor::flash`). The bytes that it may have fetched are bounded.
//!
//! - Y5: a request runs only with the rights of its client's user ([`rights`]); a client whose user
//!   is gone runs nothing, and is closed.
//!
//! **Concurrency**: it belongs to its thread.
//!
//! Paper: [Ousterhout15 §3]

mod rights;

use duramen_base::ids::ServerId;
use duramen_engine::{Guard, Session};
use duramen_node::serve::HINTS;
use duramen_node::{ClientRequest, Hint, Servant, View, Views, WhenCold};
use duramen_redis::command::{AGAIN_MS, Ending, Key, look_ahead, native_waits_ms};
use duramen_redis::durability::Durability;
use duramen_redis::executor::{OUT_BYTES_PER_TURN, Pace, System, TURN_TIME};
use duramen_redis::membership::{Membership, ViewCache};
use duramen_redis::reply::Until as WaitUntil;
use duramen_redis::state::shared::commands::global;
use duramen_redis::state::{Client, Shared};
use duramen_wire::native::codec::{
    BodyError, CLIENT_FRAME_BYTES_MAX, Envelope, Frame, Header, MultiAnswer, MultiRequest, Parsed,
    Parts, Reply, Trouble, decode_login, decode_reply, decode_request, encode_enumerate_problem,
    encode_logged_in, encode_outcome, encode_trouble, outcome_bytes, parse_frame,
};
use duramen_wire::native::message::{Answer, Login, Outcome, Problem, Request, Single};
use rights::{Refusal, Verdict};
use std::ops::Range;
use std::time::Instant;

/// Requests in one batch: far more than the prefetch distance, few enough for the first-level
/// cache.
const GROUP_REQUESTS: usize = 64;
/// While the server has no data yet, clients are told to retry after this time.
const LOADING_MS: u32 = 50;

/// A frame that was received completely.
#[derive(Clone, Debug)]
pub(crate) struct Framed {
    /// Index of its turn in the round.
    pub(crate) turn: u32,
    pub(crate) header: Header,
    /// Their positions in the turn's input.
    pub(crate) body: Range<usize>,
    pub(crate) payload: Range<usize>,
}

/// The frames of one connection in one round.
pub(crate) struct Turn<'a> {
    pub(crate) client: &'a mut Client,
    pub(crate) input: &'a [u8],
    /// Replies are appended here.
    pub(crate) out: &'a mut Vec<u8>,
    /// Length of `out` before this turn.
    out_from: usize,
    /// Number of its frames that were answered. If some are left: flush `out`, then present the
    /// rest again.
    pub(crate) executed: usize,
    /// The reactor's next action for the connection.
    pub(crate) ending: Ending,
    halted: bool,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(client: &'a mut Client, input: &'a [u8], out: &'a mut Vec<u8>) -> Turn<'a> {
        Turn {
            client,
            input,
            out_from: out.len(),
            out,
            executed: 0,
            ending: Ending::Open,
            halted: false,
        }
    }

    fn begin(&mut self, shared: &Shared) {
        if !self.client.begin_native(shared) {
            self.ending = Ending::CloseNow; // Y5
            self.halted = true;
        }
    }
}

/// The decoded content of a frame.
enum Decoded<'a> {
    Request(ClientRequest<'a>),
    Login(Login<'a>),
    /// A message that is not a client's request.
    Foreign,
    Malformed(BodyError),
}

/// Provides the member's current view.
struct CurrentView<'s> {
    cache: &'s mut ViewCache,
    membership: &'s Membership,
    shared: &'s Shared,
}

impl Views for CurrentView<'_> {
    #[inline]
    fn view(&mut self) -> &View {
        self.cache.get(self.membership)
    }

    /// The milliseconds for which a pause delays writes; `None` if there is no pause (pause::P2).
    #[inline]
    fn writes_wait_ms(&mut self) -> Option<u32> {
        match self.shared.commands.gate() & global::PAUSED {
            0 => None,
            _ => native_waits_ms(self.shared, || true),
        }
    }
}

/// Runs native clients' requests for one reactor thread.
pub(crate) struct Executor {
    /// The part of the node that executes requests; `None` until this server is a member.
    servant: Option<Servant>,
    cache: ViewCache,
    pace: Pace,
    /// Memory of the last batch, to be reused by the next.
    decoded: Vec<Decoded<'static>>,
}

impl Default for Executor {
    fn default() -> Executor {
        Executor {
            servant: None,
            cache: ViewCache::default(),
            pace: Pace::new(TURN_TIME, System),
            decoded: Vec::new(),
        }
    }
}

/// An empty vector in the memory of `full`: collecting a vector's own iterator reuses its memory.
pub(crate) fn emptied<A, B>(mut full: Vec<A>) -> Vec<B> {
    full.clear();
    full.into_iter()
        .map(|_| unreachable!("it was emptied"))
        .collect()
}

impl Executor {
    /// Whether requests still wait for the log, even if no reply is held for them any more.
    pub(crate) fn is_waiting(&self) -> bool {
        self.servant.as_ref().is_some_and(Servant::is_waiting)
    }

    /// After commits: finishes the requests that are durable now.
    pub(crate) fn settle(&mut self, durability: Option<&Durability>) {
        if let Some(servant) = &mut self.servant
            && let Some(durability) = durability
            && servant.is_waiting()
        {
            servant.settle(|position| durability.log().reached(position));
        }
    }

    /// A round of the thread begins, with about so many turns, which share its time.
    pub(crate) fn begin_round(&mut self, turns: usize) {
        self.pace.begin_round(turns);
    }

    /// Runs `frames` in order and appends the replies. Each client's wait holds the conditions for
    /// sending them. `session`: None while the data is loaded.
    pub(crate) fn run(
        &mut self,
        shared: &Shared,
        session: Option<&mut Session>,
        turns: &mut [Turn<'_>],
        frames: &[Framed],
    ) {
        let (Some(session), Some(membership)) = (session, shared.membership()) else {
            return turn_away(turns, frames);
        };
        let servant = self
            .servant
            .get_or_insert_with(|| Servant::new(membership.clients().clone()));
        let mut round = Round::new(shared, membership, servant, &mut self.cache);
        self.pace.begin_part(turns.len());
        for turn in &mut *turns {
            turn.begin(shared);
        }
        for group in frames.chunks(GROUP_REQUESTS) {
            let mut guard = session.pin();
            self.pace
                .begin_guard(Instant::now(), guard.pin().work().met_bytes());
            let mut decoded = emptied(std::mem::take(&mut self.decoded));
            for framed in group {
                let turn = &turns[framed.turn as usize];
                decoded.push(decode(&guard, framed, turn.input));
            }
            for asked in decoded.iter().take(HINTS) {
                fetch(&guard, asked);
            }
            for (n, framed) in group.iter().enumerate() {
                if let Some(ahead) = decoded.get(n + HINTS) {
                    fetch(&guard, ahead);
                }
                let turn = &mut turns[framed.turn as usize];
                if turn.halted {
                    if turn.ending == Ending::Cold {
                        ahead_of(shared, &guard, turn.client, &decoded[n]);
                    }
                    continue;
                }
                self.pace
                    .begin_turn(framed.turn, guard.pin().work().met_bytes());
                if !run_one(&mut round, &mut guard, &decoded[n], framed, turn) {
                    continue;
                }
                turn.executed += 1;
                let replies = turn.out.len() - turn.out_from;
                turn.halted |= replies > OUT_BYTES_PER_TURN || guard.pin().work().take_waited();
                let work = guard.pin().work().met_bytes();
                let is_last = n + 1 == group.len();
                if is_walk(&decoded[n]) || is_last || self.pace.is_due(work) {
                    let look = self.pace.look(work);
                    turn.halted |= look.turn_is_over;
                    if look.guard_is_old && !is_last {
                        guard.refresh();
                        self.pace.begin_guard(self.pace.now(), work);
                    }
                }
            }
            self.decoded = emptied(decoded);
        }
        for turn in turns {
            if turn.ending != Ending::Cold {
                turn.client.parking.end();
            }
        }
    }
}

/// Runs one frame, and answers it. Returns false if the frame needs an entry on flash, and is not
/// answered (Y4).
#[inline]
fn run_one(
    round: &mut Round<'_>,
    guard: &mut Guard<'_>,
    decoded: &Decoded<'_>,
    framed: &Framed,
    turn: &mut Turn<'_>,
) -> bool {
    match decoded {
        Decoded::Request(asked) => return round.admit(guard, asked, &framed.header, turn),
        Decoded::Login(login) => log_in(round.shared, login, &framed.header, turn),
        Decoded::Foreign => refuse(turn.out, &framed.header, &FOREIGN),
        Decoded::Malformed(error) => {
            let reason = &error.to_string();
            refuse(turn.out, &framed.header, &Trouble::Malformed { reason });
        }
    }
    true
}

/// Whether a request may take a millisecond.
#[inline]
fn is_walk(decoded: &Decoded<'_>) -> bool {
    matches!(
        decoded,
        Decoded::Request(ClientRequest {
            request: Request::Enumerate { .. },
            ..
        })
    )
}

/// The state that the requests of one round share.
struct Round<'a> {
    shared: &'a Shared,
    servant: &'a mut Servant,
    seen: CurrentView<'a>,
    now_us: u64,
    /// Maximum bytes that a client may have fetched from flash. `None` if there is no flash.
    fetch_bytes: Option<usize>,
}

/// Most bytes of the outcome of an operation that is refused, or to be sent again.
const REFUSAL_BYTES_MAX: usize = 96;

impl<'a> Round<'a> {
    #[inline]
    fn new(
        shared: &'a Shared,
        membership: &'a Membership,
        servant: &'a mut Servant,
        cache: &'a mut ViewCache,
    ) -> Round<'a> {
        Round {
            shared,
            servant,
            seen: CurrentView {
                cache,
                membership,
                shared,
            },
            now_us: membership.now_us(),
            fetch_bytes: shared.tier().map(|tier| tier.fetch_bytes()),
        }
    }

    /// Runs a request as far as its client's user may run it (Y5). Returns whether it was answered.
    #[inline]
    fn admit(
        &mut self,
        guard: &mut Guard<'_>,
        asked: &ClientRequest<'_>,
        header: &Header,
        turn: &mut Turn<'_>,
    ) -> bool {
        let gate = self.shared.commands.gate();
        if gate & global::PAUSED != 0
            && let Some(after_ms) = self.paused_ms(asked)
        {
            refuse(turn.out, header, &Trouble::Busy { after_ms });
            return true;
        }
        if gate & global::RESERVED != 0 && self.writes_to_reserved(guard, asked, turn.client) {
            let after_ms = AGAIN_MS as u32;
            refuse(turn.out, header, &Trouble::Busy { after_ms });
            return true;
        }
        match rights::check(self.shared, turn.client, &asked.request) {
            Verdict::Allowed => {
                let is_answered = self.serve(guard, asked, turn);
                if is_answered {
                    rights::note(self.shared, turn.client, &asked.request, &[]);
                }
                is_answered
            }
            Verdict::Refused(refusal) => {
                refuse_all(turn.out, header, asked, refusal);
                rights::note(self.shared, turn.client, &asked.request, &[Some(refusal)]);
                true
            }
            Verdict::Parts(parts, refused) => {
                let is_answered = self.serve_parts(guard, asked, (parts, &refused), turn);
                if is_answered {
                    rights::note(self.shared, turn.client, &asked.request, &refused);
                }
                is_answered
            }
        }
    }

    /// The milliseconds after which a request that a pause delays is to be sent again (pause::P2).
    #[cold]
    fn paused_ms(&self, asked: &ClientRequest<'_>) -> Option<u32> {
        match asked.request {
            Request::Single(single) => native_waits_ms(self.shared, || single.operation.mutates()),
            Request::Multi(parts) => native_waits_ms(self.shared, || {
                parts.iter().any(|single| single.operation.mutates())
            }),
            Request::Enumerate { .. } => native_waits_ms(self.shared, || false),
            Request::Ping => None,
        }
    }

    /// Whether a request would write to keys that a script has reserved.
    #[cold]
    fn writes_to_reserved(
        &self,
        guard: &Guard<'_>,
        asked: &ClientRequest<'_>,
        client: &mut Client,
    ) -> bool {
        let mut keys = Vec::new();
        let mut add = |single: Single<'_>| {
            if single.operation.mutates() {
                keys.push(guard.hash(single.key));
            }
        };
        match asked.request {
            Request::Single(single) => add(single),
            Request::Multi(parts) => parts.iter().for_each(add),
            Request::Ping | Request::Enumerate { .. } => {}
        }
        let mut all = keys.iter();
        let (commands, id) = (&self.shared.commands, client.id());
        let patience = &mut client.patience;
        let waits = all.any(|key| patience.is_key_put_off(commands, id, *key));
        if !waits {
            keys.iter().for_each(|key| patience.end_key_put_off(*key));
        }
        waits
    }

    /// Runs those operations of a request that are not refused, as one request, and answers all
    /// operations. Returns whether it was answered.
    #[cold]
    fn serve_parts(
        &mut self,
        guard: &mut Guard<'_>,
        asked: &ClientRequest<'_>,
        (parts, refused): (Parts<'_>, &[Option<Refusal>]),
        turn: &mut Turn<'_>,
    ) -> bool {
        let mut bytes = Vec::new();
        let mut multi = MultiRequest::new(&mut bytes, &asked.envelope);
        for (single, refusal) in parts.iter().zip(refused) {
            if refusal.is_none() {
                multi.push(&single);
            }
        }
        multi.finish();
        let Ok(Parsed::Frame { frame, .. }) = parse_frame(&bytes, usize::MAX) else {
            unreachable!("it was written above");
        };
        let Ok(Some(request)) = decode_request(&frame) else {
            unreachable!("it was written above");
        };
        let allowed = ClientRequest { request, ..*asked };
        let before = turn.out.len();
        if !self.serve(guard, &allowed, turn) {
            return false;
        }
        let answer = turn.out.split_off(before);
        merge(&answer, refused, turn.out);
        true
    }

    /// Runs a request, or parks it until its entries are fetched. Returns whether it was answered.
    #[inline]
    fn serve(
        &mut self,
        guard: &mut Guard<'_>,
        asked: &ClientRequest<'_>,
        turn: &mut Turn<'_>,
    ) -> bool {
        if let Some(most) = self.fetch_bytes {
            let lent = turn.client.parking.lent_bytes(turn.executed);
            self.servant.when_cold(WhenCold::Waits {
                bytes_max: most.saturating_sub(lent),
            });
        }
        self.answer(guard, asked, turn);
        if let Some(most) = self.fetch_bytes
            && !self.serve_cold(guard, most, asked, turn)
        {
            return false;
        }
        let position = self.servant.take_wait();
        let tells_of_data = !matches!(asked.request, Request::Ping);
        turn.client.wait.settle_native(&position, tells_of_data); // Y1
        true
    }

    #[inline]
    fn answer(&mut self, guard: &mut Guard<'_>, asked: &ClientRequest<'_>, turn: &mut Turn<'_>) {
        let (seen, now_us) = (&mut self.seen, self.now_us);
        self.servant.serve(guard, seen, now_us, asked, turn.out);
    }

    /// Y4: parks a request that lacked entries on flash, or answers it if it cannot be parked.
    /// Returns whether it was answered.
    fn serve_cold(
        &mut self,
        guard: &mut Guard<'_>,
        most: usize,
        asked: &ClientRequest<'_>,
        turn: &mut Turn<'_>,
    ) -> bool {
        let wanted = self.servant.take_wanted();
        if wanted.is_empty() {
            return true;
        }
        if let Some(then) = turn.client.parking.park_native(turn.executed, wanted, most) {
            self.servant.when_cold(then); // `then` makes sure that it is answered
            self.answer(guard, asked, turn);
            return true;
        }
        self.servant.take_wait(); // no reply depends on it
        turn.ending = Ending::Cold;
        turn.halted = true;
        false
    }
}

/// Answers a request of which nothing was run.
#[cold]
fn refuse_all(out: &mut Vec<u8>, header: &Header, asked: &ClientRequest<'_>, refusal: Refusal) {
    if refusal != Refusal::UnknownTable {
        let reason = &refusal.text();
        return refuse(out, header, &Trouble::NotPermitted { reason });
    }
    let envelope = Envelope {
        request: header.envelope.request,
        ..Envelope::default()
    };
    match asked.request {
        Request::Enumerate { .. } => {
            encode_enumerate_problem(out, &envelope, &Problem::UnknownTable);
        }
        _ => encode_outcome(out, &envelope, &Outcome::Problem(Problem::UnknownTable)),
    }
}

/// Appends the answer to a request of which some operations were refused. `answer`: the frame that
/// answers the others.
fn merge(answer: &[u8], refused: &[Option<Refusal>], out: &mut Vec<u8>) {
    let Ok(Parsed::Frame { frame, .. }) = parse_frame(answer, usize::MAX) else {
        unreachable!("a whole frame was written");
    };
    let Ok(Reply::Client(Answer::Multi(outcomes))) = decode_reply(&frame) else {
        // A reason for which none of them was served.
        return out.extend_from_slice(answer);
    };
    let mut outcomes = outcomes.iter();
    let mut merged = MultiAnswer::new(out, &frame.header.envelope);
    let again = Outcome::Problem(Problem::Retry { after_ms: 0 });
    let mut reason;
    for (n, refusal) in refused.iter().enumerate() {
        let outcome = match refusal {
            Some(Refusal::UnknownTable) => Outcome::Problem(Problem::UnknownTable),
            Some(refusal) => {
                reason = refusal.text();
                Outcome::Problem(Problem::Failed { reason: &reason })
            }
            None => outcomes.next().unwrap_or(again),
        };
        let left = (refused.len() - n) * REFUSAL_BYTES_MAX;
        let room = CLIENT_FRAME_BYTES_MAX.saturating_sub(merged.body_bytes() + left);
        match refusal.is_some() || outcome_bytes(&outcome) <= room {
            true => merged.push(&outcome),
            false => merged.push(&again),
        }
    }
    merged.finish();
}

/// Answers a login. A failed one is answered late, and the client's later requests wait.
#[cold]
fn log_in(shared: &Shared, login: &Login<'_>, header: &Header, turn: &mut Turn<'_>) {
    let Err((reason, until_ms)) = rights::log_in(shared, turn.client, login) else {
        let envelope = Envelope {
            request: header.envelope.request,
            ..Envelope::default()
        };
        // It may have been removed meanwhile.
        if !turn.client.renew(shared) {
            turn.ending = Ending::CloseNow;
            turn.halted = true;
        }
        return encode_logged_in(turn.out, &envelope);
    };
    let reason = &reason;
    refuse(turn.out, header, &Trouble::NotPermitted { reason });
    if let Some(until_ms) = until_ms {
        turn.client.wait.then(WaitUntil::Time(until_ms), &[]);
        turn.halted = true;
    }
}

/// Notes the flash entries that a request needs while the request stands behind one that waits for
/// flash.
#[cold]
fn ahead_of(shared: &Shared, guard: &Guard<'_>, client: &mut Client, decoded: &Decoded<'_>) {
    let Decoded::Request(asked) = decoded else {
        return;
    };
    let mut look = |single: &Single<'_>| {
        let key = Key::of(guard, single.table, single.key);
        look_ahead(shared, guard, client, key)
    };
    match &asked.request {
        Request::Single(single) => {
            look(single);
        }
        Request::Multi(parts) => {
            parts.iter().all(|single| look(&single)); // until there is no room
        }
        Request::Ping | Request::Enumerate { .. } => {}
    }
}

const FOREIGN: Trouble<'static> = Trouble::NotServing {
    reason: "this connection is a client's, and this server is not a coordinator",
};

#[inline]
fn decode<'a>(guard: &Guard<'_>, framed: &Framed, input: &'a [u8]) -> Decoded<'a> {
    let frame = Frame {
        header: framed.header,
        body: &input[framed.body.clone()],
        payload: &input[framed.payload.clone()],
    };
    match decode_request(&frame) {
        Ok(Some(request)) => Decoded::Request(ClientRequest {
            envelope: framed.header.envelope,
            request,
            hint: Hint::new(guard, &request),
        }),
        Ok(None) => match decode_login(&frame) {
            Ok(Some(login)) => Decoded::Login(login),
            Ok(None) => Decoded::Foreign,
            Err(error) => Decoded::Malformed(error),
        },
        Err(error) => Decoded::Malformed(error),
    }
}

#[inline]
fn fetch(guard: &Guard<'_>, decoded: &Decoded<'_>) {
    if let Decoded::Request(ClientRequest {
        hint: Some(hint), ..
    }) = decoded
    {
        hint.fetch(guard);
    }
}

/// Answers requests while there is no data yet.
#[cold]
fn turn_away(turns: &mut [Turn<'_>], frames: &[Framed]) {
    for framed in frames {
        let turn = &mut turns[framed.turn as usize];
        let busy = Trouble::Busy {
            after_ms: LOADING_MS,
        };
        refuse(turn.out, &framed.header, &busy);
        turn.executed += 1;
    }
}

/// Answers a frame without looking at it.
#[cold]
fn refuse(out: &mut Vec<u8>, header: &Header, trouble: &Trouble<'_>) {
    let envelope = Envelope {
        request: header.envelope.request,
        target: ServerId::NONE,
        sender: ServerId::NONE,
    };
    encode_trouble(out, &envelope, header.kind, trouble);
}
