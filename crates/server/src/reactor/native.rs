//! Connections of native clients. Their hellos were exchanged elsewhere
//! (`Doors::hand_over_native`); then they are in the slots like RESP connections, with the same
//! bounds. Their input consists of frames, and their replies wait in the same way.
//!
//! An invalid frame ends the connection: the start of the next frame is not known.

use super::Traffic;
use super::backlog::Backlog;
use super::connection::{Connection, WaitsFor};
use super::connections::Token;
use super::here::Here;
use super::next::Next;
use super::receive::Source;
use super::round::TURN_REQUESTS_MAX;
use crate::native::{Executor, Framed, Turn, emptied};
use duramen_base::ids::ServerId;
use duramen_config::seldom;
use duramen_redis::command::Ending;
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Envelope, FrameError, HEADER_BYTES, Kind, Parsed, Trouble,
    encode_trouble, parse_frame,
};

/// A connection with frames to run.
struct Ready {
    token: Token,
    connection: Box<Connection>,
    source: Source,
    /// Start of its replies in the connection's output.
    replies_from: usize,
    /// End of its frames in [`Round::frames`].
    frames_to: usize,
    /// The error behind the last valid frame.
    broken: Option<FrameError>,
    consumed: usize,
    /// The input may have another whole frame.
    more: bool,
}

/// Native connections of a group.
#[derive(Default)]
pub(super) struct Round {
    executor: Executor,
    ready: Vec<Ready>,
    frames: Vec<Framed>,
    /// Memory of the last turns, to be reused.
    turns: Vec<Turn<'static>>,
    /// For each turn, the number of its frames that were answered, and its ending.
    ended: Vec<(usize, Ending)>,
}

impl Round {
    /// A round of the thread begins, with about so many turns.
    pub(super) fn begin_round(&mut self, turns: usize) {
        self.executor.begin_round(turns);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// A connection with frames that are about to run.
    pub(super) fn about_to_run(&self, token: Token) -> Option<&Connection> {
        let ready = self.ready.iter().find(|ready| ready.token == token);
        ready.map(|ready| &*ready.connection)
    }

    /// Number of connections.
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }
}

impl Traffic {
    /// Puts a connection into the group if it has whole frames.
    pub(super) fn parse_native(
        &mut self,
        token: Token,
        mut connection: Box<Connection>,
        source: Source,
    ) {
        let round = &mut self.native;
        let (turn, first) = (round.ready.len() as u32, round.frames.len());
        let input = match &source {
            Source::Shared(range) => self.input.get(range),
            Source::Own => connection.input.get(),
        };
        let (mut at, mut needed, mut broken) = (0, 0, None);
        while round.frames.len() - first < TURN_REQUESTS_MAX {
            match parse_frame(&input[at..], CLIENT_FRAME_BYTES_MAX) {
                Ok(Parsed::Frame { frame, bytes }) => {
                    let body = at + HEADER_BYTES..at + HEADER_BYTES + frame.body.len();
                    round.frames.push(Framed {
                        turn,
                        header: frame.header,
                        payload: body.end..at + bytes,
                        body,
                    });
                    at += bytes;
                }
                Ok(Parsed::Incomplete { needed: bytes }) => {
                    needed = bytes;
                    break;
                }
                Err(error) => {
                    broken = Some(error);
                    break;
                }
            }
        }
        let more = needed == 0 && broken.is_none();
        let count = round.frames.len() - first;
        if let Some(native) = &mut connection.native {
            native.bytes_needed = needed;
        }
        if count == 0 && broken.is_none() {
            if let Source::Shared(range) = &source {
                connection.input = Backlog::from(self.input.get(range));
            }
            return self.settle(token, connection);
        }
        if let Source::Shared(range) = &source {
            self.input.keep(range);
        }
        self.groups.note_requests(count.max(1));
        if connection.output.is_empty() {
            connection.output = self.buffers.take(connection.replies_bytes);
        }
        self.native.ready.push(Ready {
            replies_from: connection.output.len(),
            token,
            connection,
            source,
            frames_to: first + count,
            broken,
            consumed: at,
            more,
        });
    }

    /// Runs the frames of the group and sends the replies.
    pub(super) fn run_native(&mut self) {
        if self.native.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.native.ready);
        let frames = std::mem::take(&mut self.native.frames);
        let has_parked = self.flash.has_parked();
        if has_parked {
            for one in &mut ready {
                self.flash
                    .lend_fetched(&mut self.executor, &mut one.connection);
            }
        }
        let mut turns = emptied(std::mem::take(&mut self.native.turns));
        for one in &mut ready {
            let Connection {
                client,
                input,
                output,
                ..
            } = &mut *one.connection;
            let input = match &one.source {
                Source::Shared(range) => self.input.get(range),
                Source::Own => input.get(),
            };
            turns.push(Turn::new(client, input, output));
        }
        let session = self.executor.session();
        self.native
            .executor
            .run(self.thread.shared(), session, &mut turns, &frames);
        self.executor.wake_waiters();
        self.holds.group_ran();
        let mut ended = std::mem::take(&mut self.native.ended);
        ended.clear();
        ended.extend(turns.iter().map(|turn| (turn.executed, turn.ending)));
        self.native.turns = emptied(turns);
        if has_parked {
            self.flash.forget_fetched(&mut self.executor);
        }
        let counters = &self.me().counters;
        let executed = ended.iter().map(|(executed, _)| executed);
        counters.commands.add(executed.sum::<usize>() as u64);
        counters.batches.add(1);
        let mut from = 0;
        for (one, ended) in ready.drain(..).zip(&ended) {
            let frames_to = one.frames_to;
            self.finish_native(one, &frames[from..frames_to], *ended);
            from = frames_to;
        }
        self.native.ended = ended;
        self.native.ready = ready;
        self.native.frames = frames;
        self.native.frames.clear();
        self.settle_native();
        self.show_woken();
    }

    /// After the frames of a connection ran: keeps the rest of its input, sends its replies.
    fn finish_native(
        &mut self,
        ready: Ready,
        frames: &[Framed],
        (executed, ending): (usize, Ending),
    ) {
        let Ready {
            token,
            mut connection,
            source,
            replies_from,
            broken,
            mut consumed,
            mut more,
            ..
        } = ready;
        if ending == Ending::CloseNow {
            return self.cut_off(token, &mut connection);
        }
        let here = self.thread.here();
        let kept = self
            .flash
            .take_back(here, &mut connection, executed, &mut self.executor);
        connection.note_replies(replies_from);
        self.hold(token, &mut connection, replies_from);
        if let Some(next) = frames.get(executed) {
            (consumed, more) = (next.body.start - HEADER_BYTES, true);
        } else if let Some(error) = broken {
            refuse(self.thread.here(), &mut connection, &error);
        }
        let buffers = &mut self.buffers;
        self.input
            .keep_rest(&mut connection, &source, Some(consumed), buffers);
        connection.waits_for = if ending == Ending::Cold && !connection.closing {
            self.park(token, &mut connection, kept);
            connection.waits_for
        } else if more && !connection.closing {
            if connection.held.is_none() {
                self.connections.continue_soon(token);
            }
            WaitsFor::Turn
        } else {
            WaitsFor::Input
        };
        self.go(token, connection, Next::Send);
    }

    /// After a round or a commit: finishes requests that have become durable, even if their
    /// connections are gone.
    pub(super) fn settle_native(&mut self) {
        let durability = self
            .thread
            .shared()
            .durability()
            .map(|durability| &**durability);
        self.native.executor.settle(durability);
        let is_waiting = self.native.executor.is_waiting();
        self.holds.note_unfinished(is_waiting);
    }
}

fn refuse(here: Here<'_>, connection: &mut Connection, error: &FrameError) {
    here.thread.counters.protocol_errors.add(1);
    seldom!(
        info,
        client = connection.record.id,
        peer = %connection.record.peer,
        "{error}: closing the connection"
    );
    let envelope = Envelope {
        request: 0,
        target: ServerId::NONE,
        sender: ServerId::NONE,
    };
    let trouble = Trouble::Malformed {
        reason: &error.to_string(),
    };
    encode_trouble(
        &mut connection.output,
        &envelope,
        Kind::Ping as u16,
        &trouble,
    );
    connection.closing = true;
}
