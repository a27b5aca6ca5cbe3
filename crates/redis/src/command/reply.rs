//! The reply of a request: the output of its connection, within a limit.

use super::outcome::{Done, Failure};
use duramen_wire::resp::{Encoder, Protocol, Room};

/// The part of a reply that stays from one request of a turn to the next.
#[derive(Debug)]
pub(crate) struct ReplyState {
    /// The limit of the whole output (`output-limit`).
    room: Room,
    /// Whether the request has written confirmations of subscriptions. As in Redis, they are
    /// pushes, which `CLIENT REPLY` does not silence.
    confirms: bool,
}

impl Default for ReplyState {
    fn default() -> ReplyState {
        ReplyState {
            room: Room {
                bytes_max: usize::MAX,
                exceeded: false,
            },
            confirms: false,
        }
    }
}

impl ReplyState {
    #[inline]
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.room.bytes_max = bytes_max;
    }

    #[inline]
    pub(crate) fn bytes_max(&self) -> usize {
        self.room.bytes_max
    }

    /// A request begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.confirms = false;
    }

    pub(crate) fn confirms(&self) -> bool {
        self.confirms
    }
}

/// The output and the state of a reply while a request writes it.
pub(crate) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
    state: &'a mut ReplyState,
}

impl<'a> Reply<'a> {
    #[inline]
    pub(crate) fn new(
        out: &'a mut Vec<u8>,
        protocol: Protocol,
        state: &'a mut ReplyState,
    ) -> Reply<'a> {
        Reply {
            out,
            protocol,
            state,
        }
    }

    /// A reply for a command that another one runs, as a part of this reply.
    pub(crate) fn part(&mut self, protocol: Protocol) -> Reply<'_> {
        Reply::new(self.out, protocol, self.state)
    }

    /// A reply for a command that another one runs, with an output of its own.
    pub(crate) fn apart<'r>(&'r mut self, out: &'r mut Vec<u8>, protocol: Protocol) -> Reply<'r> {
        Reply::new(out, protocol, self.state)
    }

    /// A request begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.state.begin();
    }

    pub(crate) fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    #[inline]
    pub(crate) fn encoder(&mut self) -> Encoder<'_> {
        Encoder::within(self.out, self.protocol, &mut self.state.room)
    }

    /// As [`encoder`](Self::encoder), for a single value, whatever the limit is.
    #[inline]
    pub(crate) fn boundless(&mut self) -> Encoder<'_> {
        Encoder::new(self.out, self.protocol)
    }

    /// Length of the output.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// Appends bytes of replies, whatever the limit is.
    #[inline]
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Puts `out` in place of the output, and returns the output.
    pub(crate) fn replace(&mut self, out: Vec<u8>) -> Vec<u8> {
        std::mem::replace(self.out, out)
    }

    #[inline]
    pub(crate) fn bytes_max(&self) -> usize {
        self.state.bytes_max()
    }

    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.state.set_bytes_max(bytes_max);
    }

    /// Room for values that are gathered before they are appended.
    pub(crate) fn room_left(&self) -> Room {
        Room {
            bytes_max: self.bytes_max().saturating_sub(self.out.len()),
            exceeded: false,
        }
    }

    /// Whether a value was omitted: the reply does not fit.
    #[inline]
    pub(crate) fn is_exceeded(&self) -> bool {
        self.state.room.exceeded
    }

    /// Sets whether a value was omitted; returns what was set before.
    pub(crate) fn set_exceeded(&mut self, exceeded: bool) -> bool {
        std::mem::replace(&mut self.state.room.exceeded, exceeded)
    }

    /// Takes back a reply that may have been too long: it is written anew, or not at all.
    pub(crate) fn take_back(&mut self, start: usize) {
        self.out.truncate(start);
        self.state.room.exceeded = false;
    }

    /// Takes back the reply that begins at `start`, if it does not fit.
    pub(crate) fn end_if_exceeded(&mut self, start: usize) {
        if self.state.room.is_exceeded_by(self.out) {
            self.out.truncate(start);
        }
    }

    /// The request writes confirmations of subscriptions.
    pub(crate) fn set_confirms(&mut self, confirms: bool) {
        self.state.confirms = confirms;
    }

    pub(crate) fn confirms(&self) -> bool {
        self.state.confirms()
    }

    /// Fails when the reply does not fit into the connection's output: for commands that would
    /// otherwise work in vain.
    #[inline]
    pub(crate) fn fits(&self) -> Done {
        match self.is_exceeded() {
            false => Ok(()),
            true => Err(self.too_long()),
        }
    }

    #[cold]
    pub(crate) fn too_long(&self) -> Failure {
        let limit = self.bytes_max();
        Failure::from(format!(
            "ERR the reply does not fit into this connection's output-limit of {limit} bytes: ask for less at once"
        ))
    }

    #[inline]
    pub(crate) fn ok(&mut self) -> Done {
        self.append(b"+OK\r\n");
        Ok(())
    }

    #[inline]
    pub(crate) fn integer(&mut self, value: i64) -> Done {
        match value {
            0 => self.append(b":0\r\n"),
            1 => self.append(b":1\r\n"),
            _ => self.encoder().integer(value),
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn bulk(&mut self, value: &[u8]) -> Done {
        self.encoder().bulk(value);
        Ok(())
    }

    #[inline]
    pub(crate) fn null(&mut self) -> Done {
        self.encoder().null();
        Ok(())
    }

    /// A list of status lines, the reply of the HELP of a container.
    pub(crate) fn help(&mut self, container: Option<&str>, lines: &[&str]) -> Done {
        let container = container.unwrap_or_default().to_ascii_uppercase();
        let mut reply = self.encoder();
        reply.array(lines.len() + 3);
        reply.simple(format!(
            "{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
        ));
        for line in lines {
            reply.simple(line);
        }
        reply.simple("HELP");
        reply.simple("    Prints this help.");
        Ok(())
    }
}
