//! Clients that are behind with their replies, and the room for what they send meanwhile. The rules
//! are in `input`.

use super::connection::{Connection, RoomTurn, WaitsFor};
use super::here::Here;
use crate::doors::Doors;
use rustix::event::epoll::EventFlags;
use std::sync::atomic::Ordering;

/// See input::R1.
const AHEAD_PART: usize = 16;
/// See input::R2.
pub(super) const BEHIND_MS: u64 = 100;
/// See input::R4.
const FULL_MS: u64 = 5_000;
/// Most bytes that are received from a client whose first request waits for elements, that request
/// included. If the client has sent more, its end is not noticed: it lies behind bytes that the
/// client's own system keeps.
const PARKED_BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Behind {
    /// Whether a client may be behind with its replies, and wait for room (input::R2).
    is_any: bool,
    next_ms: u64,
}

impl Behind {
    pub(super) fn is_any(&self) -> bool {
        self.is_any
    }

    /// Whether the clients that wait for room are to be looked at now (input::R2).
    pub(super) fn is_due(&self, here: Here<'_>) -> bool {
        self.is_any && here.now_ms >= self.next_ms
    }

    /// A look at the clients begins.
    pub(super) fn begin(&mut self, here: Here<'_>) {
        self.next_ms = here.now_ms + BEHIND_MS;
        self.is_any = false;
    }

    /// Whether the connection's requests run before its client takes more replies.
    #[inline]
    pub(super) fn may_run(&mut self, here: Here<'_>, connection: &mut Connection) -> bool {
        !is_behind(here, connection) || self.may_run_ahead(here, connection)
    }

    /// Whether the connection is received from before its client takes more replies.
    #[inline]
    pub(super) fn may_receive(&mut self, here: Here<'_>, connection: &mut Connection) -> bool {
        !is_behind(here, connection) || self.room(here, connection) > 0
    }

    #[cold]
    fn may_run_ahead(&mut self, here: Here<'_>, connection: &mut Connection) -> bool {
        let limit = here.config.output_limit_bytes;
        let half = here.config.pipeline_bytes_max() / 2;
        connection.unsent_bytes() <= limit / AHEAD_PART && self.room(here, connection) > half
    }

    /// Bytes that may still be buffered for clients that do not take their replies (input::R1).
    #[cold]
    fn room(&mut self, here: Here<'_>, connection: &mut Connection) -> u64 {
        if !connection.client.is_authenticated() && !here.shared.acl().is_open() {
            if connection.turn == RoomTurn::Waits {
                connection.end_turn(here.doors);
            }
            return 0;
        }
        self.is_any = true;
        let buffered = here
            .shared
            .threads
            .sum(|counters| &counters.query_buffer_bytes)
            + here
                .shared
                .threads
                .sum(|counters| &counters.output_buffer_bytes);
        let bytes_max = here.config.pipeline_bytes_max();
        match bytes_max.saturating_sub(buffered) {
            0 if has_turn(here, connection) => {
                let own = connection.input.len() + connection.unsent_bytes();
                bytes_max.saturating_sub(own as u64)
            }
            room => room,
        }
    }

    /// The events that the connection waits for.
    pub(super) fn interest(&mut self, here: Here<'_>, connection: &mut Connection) -> EventFlags {
        let mut wanted = EventFlags::empty();
        let reads = !connection.closing
            && connection.held.is_none()
            && matches!(
                connection.waits_for,
                WaitsFor::Input | WaitsFor::Turn | WaitsFor::Output { ended: false }
            )
            && self.may_receive(here, connection)
            && !here.stops;
        if reads {
            wanted |= EventFlags::IN;
        } else if connection.waits_for == WaitsFor::Key && connection.held.is_none() {
            wanted |= match has_room_for_parked(here, connection) && !here.stops {
                true => EventFlags::IN,
                false => EventFlags::RDHUP,
            };
        } else if connection.is_watched_in_pause() {
            wanted |= EventFlags::RDHUP;
        }
        if connection.sendable_bytes() > 0 {
            wanted |= EventFlags::OUT;
        }
        wanted
    }
}

/// Whether its client takes its replies too slowly.
#[inline]
fn is_behind(here: Here<'_>, connection: &Connection) -> bool {
    connection.unsent_bytes() > here.config.output_pause_bytes
}

/// Whether more may be received from a connection that waits for elements.
pub(super) fn has_room_for_parked(here: Here<'_>, connection: &Connection) -> bool {
    connection.input.len() < PARKED_BYTES_MAX
        && here
            .shared
            .threads
            .sum(|counters| &counters.query_buffer_bytes)
            < here.config.pipeline_bytes_max()
}

/// Whether the connection has the turn of the long pipelines; asks for the turn if the connection
/// needs it (input::R3).
fn has_turn(here: Here<'_>, connection: &mut Connection) -> bool {
    if matches!(connection.turn, RoomTurn::Has { .. }) {
        return true;
    }
    if !connection.has_unreceived() {
        connection.end_turn(here.doors); // it can take its replies
        return false;
    }
    let has = here.doors.pipeline_turn.ask(connection.record.id);
    connection.turn = match has {
        true => RoomTurn::Has {
            since_ms: here.now_ms,
            sent_bytes: connection.record.sent_bytes.load(Ordering::Relaxed),
        },
        false => RoomTurn::Waits,
    };
    connection.taken_at_ms = here.now_ms;
    has
}

/// Ends the connection's turn, or its wait for the turn, if it does not need more room.
#[inline]
pub(super) fn settle_turn(here: Here<'_>, connection: &mut Connection) {
    if connection.turn == RoomTurn::None {
        return;
    }
    let is_behind = is_behind(here, connection);
    let sendable = connection.sendable_bytes();
    let is_over = match &mut connection.turn {
        RoomTurn::None => false,
        // A connection that waits for something else does not ask, and would block the others.
        RoomTurn::Waits => {
            let asks = !connection.closing
                && connection.held.is_none()
                && matches!(
                    connection.waits_for,
                    WaitsFor::Input | WaitsFor::Turn | WaitsFor::Output { ended: false }
                );
            !is_behind || !asks
        }
        RoomTurn::Has {
            since_ms,
            sent_bytes,
        } => {
            if sendable == 0 {
                // input::R4: its client cannot take anything.
                *since_ms = here.now_ms;
                *sent_bytes = connection.record.sent_bytes.load(Ordering::Relaxed);
            }
            !is_behind && connection.held.is_none() && connection.waits_for == WaitsFor::Input
        }
    };
    if is_over {
        connection.end_turn(here.doors);
    }
}

/// Whether the connection keeps others waiting for the turn for too long (input::R4).
pub(super) fn keeps_turn_too_long(here: Here<'_>, connection: &Connection, stall_ms: u64) -> bool {
    let RoomTurn::Has {
        since_ms,
        sent_bytes,
    } = connection.turn
    else {
        return false;
    };
    let bytes_max = here.config.pipeline_bytes_max().max(1);
    let taken = connection.record.sent_bytes.load(Ordering::Relaxed) - sent_bytes;
    let allowed_ms = stall_ms.saturating_add(stall_ms.saturating_mul(taken) / bytes_max);
    let is_full = (connection.input.len() + connection.unsent_bytes()) as u64 >= bytes_max;
    let since = |then_ms| here.now_ms.saturating_sub(then_ms);
    (since(since_ms) >= allowed_ms || is_full && since(connection.taken_at_ms) >= FULL_MS)
        && connection.sendable_bytes() > 0
        && here.doors.pipeline_turn.is_wanted()
}

impl Connection {
    /// Ends the connection's turn, or its wait for the turn (input::R3).
    pub(super) fn end_turn(&mut self, doors: &Doors) {
        if std::mem::replace(&mut self.turn, RoomTurn::None) != RoomTurn::None {
            doors.pipeline_turn.leave(self.record.id);
        }
    }
}
