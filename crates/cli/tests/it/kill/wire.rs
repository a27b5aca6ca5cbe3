//! A plain connection for requests and replies.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Ok,
    Queued,
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Reply>),
    Error(String),
}

pub(crate) struct Wire {
    out: Vec<u8>,
    input: BufReader<TcpStream>,
}

impl Wire {
    pub(crate) fn connect(port: u16) -> io::Result<Wire> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        // Long enough for a busy machine: a server that takes longer is stuck.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Wire {
            out: Vec::new(),
            input: BufReader::new(stream),
        })
    }

    /// Adds a request to those that [`flush`](Self::flush) sends.
    pub(crate) fn request(&mut self, args: &[&[u8]]) {
        let _ = write!(self.out, "*{}\r\n", args.len());
        for arg in args {
            let _ = write!(self.out, "${}\r\n", arg.len());
            self.out.extend_from_slice(arg);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let out = std::mem::take(&mut self.out);
        self.input.get_mut().write_all(&out)
    }

    pub(crate) fn ask(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        self.request(args);
        self.flush()?;
        self.reply()
    }

    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 || !line.ends_with("\r\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().map_err(|_| garbage(&line));
        Ok(match kind {
            "+" if rest == "OK" => Reply::Ok,
            "+" if rest == "QUEUED" => Reply::Queued,
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" if number()? < 0 => Reply::Null,
            "$" => {
                let mut bytes = vec![0; number()? as usize + 2];
                self.input.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes)
            }
            "*" if number()? < 0 => Reply::Null,
            "*" => {
                let parts = (0..number()?).map(|_| self.reply());
                Reply::Array(parts.collect::<io::Result<_>>()?)
            }
            _ => return Err(garbage(&line)),
        })
    }
}

fn garbage(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no reply: {line:?}"))
}
