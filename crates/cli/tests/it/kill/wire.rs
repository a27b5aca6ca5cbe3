//! A plain connection for requests and replies.

use duramen_wire::resp::{Reply, ReplyLimits, ReplyParser, RequestEncoder};
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::time::Duration;

pub(crate) struct Wire {
    out: Vec<u8>,
    stream: TcpStream,
    parser: ReplyParser,
}

impl Wire {
    pub(crate) fn connect(port: u16) -> io::Result<Wire> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        // Long enough for a busy machine: a server that takes longer is stuck.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Wire {
            out: Vec::new(),
            stream,
            parser: ReplyParser::new(ReplyLimits::default()),
        })
    }

    /// Adds a request to those that [`flush`](Self::flush) sends.
    pub(crate) fn request(&mut self, args: &[&[u8]]) {
        RequestEncoder::new(&mut self.out).request(args);
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let out = std::mem::take(&mut self.out);
        self.stream.write_all(&out)
    }

    pub(crate) fn ask(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        self.request(args);
        self.flush()?;
        self.reply()
    }

    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
        self.parser.read_from(&mut self.stream)
    }
}

/// Whether a reply is this status text.
pub(crate) fn says(reply: &Reply, status: &str) -> bool {
    matches!(reply, Reply::Simple(text) if text == status)
}
