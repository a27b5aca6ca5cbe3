//! A RESP client that follows a cluster's redirections and otherwise does nothing on its own: an
//! outcome that no answer gives stays unknown.
//!
//! Invariants:
//! - I1: a request is sent again only after an answer which means that nothing was done.
//! - I2: a connection that failed is never used again: an answer is always that of the request
//!   before it.

use duramen_format::hash::slot;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pause between two attempts to find a server that accepts a request.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest accepted part of an answer.
const BULK_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Number(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Reply>),
}

/// The reason why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was not sent, or every server refused it, until the deadline. Holds the last reason.
    NotDone(String),
    /// It was sent, and its outcome is not known.
    Unknown(String),
}

/// The server of each slot, shared by all clients: a redirection of one client serves the others.
#[derive(Clone, Debug)]
pub(crate) struct Guide {
    seeds: Vec<String>,
    /// A user and its password; an empty password: none.
    login: (String, String),
    slots: Arc<Mutex<HashMap<u16, String>>>,
}

impl Guide {
    pub(crate) fn new(seeds: Vec<String>, login: (String, String)) -> Guide {
        Guide {
            seeds,
            login,
            slots: Arc::default(),
        }
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, HashMap<u16, String>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client. Not shared.
#[derive(Debug)]
pub(crate) struct Client {
    guide: Guide,
    links: HashMap<String, Link>,
    /// Timeout of an answer, and of a connection attempt.
    patience: Duration,
    next_seed: usize,
}

impl Client {
    pub(crate) fn new(guide: Guide, number: usize, patience: Duration) -> Client {
        Client {
            guide,
            links: HashMap::new(),
            patience,
            next_seed: number,
        }
    }

    /// Sends these commands together to the owner of `key` and returns their answers; tries until
    /// one server accepts them, or until the deadline.
    pub(crate) fn run(
        &mut self,
        key: &[u8],
        commands: &[Vec<&[u8]>],
        deadline: Instant,
    ) -> Result<Vec<Reply>, Failure> {
        let slot = slot(key);
        let mut asking = None;
        loop {
            let (address, is_asking) = match asking.take() {
                Some(address) => (address, true),
                None => (self.address_of(slot), false),
            };
            let refusal = match self.attempt(&address, is_asking, commands) {
                Ok(replies) => match (refusal(&replies), unacknowledged(&replies)) {
                    (_, Some(text)) => return Err(Failure::Unknown(format!("{address}: {text}"))),
                    (Some(refusal), None) => refusal.to_owned(),
                    (None, None) => return Ok(replies),
                },
                Err(Failure::NotDone(reason)) => {
                    self.forget(slot, &address);
                    reason
                }
                Err(unknown) => {
                    self.forget(slot, &address);
                    return Err(unknown);
                }
            };
            if Instant::now() >= deadline {
                return Err(Failure::NotDone(refusal));
            }
            let mut words = refusal.split(' ');
            match (words.next(), words.next(), words.next()) {
                (Some("MOVED"), Some(_), Some(to)) => {
                    self.guide.slots().insert(slot, to.to_owned());
                }
                (Some("ASK"), Some(_), Some(to)) => asking = Some(to.to_owned()),
                _ => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
            // A circle of redirections must not become a storm.
            std::thread::yield_now();
        }
    }

    fn address_of(&mut self, slot: u16) -> String {
        if let Some(known) = self.guide.slots().get(&slot) {
            return known.clone();
        }
        self.next_seed += 1;
        self.guide.seeds[self.next_seed % self.guide.seeds.len()].clone()
    }

    fn forget(&mut self, slot: u16, address: &str) {
        self.links.remove(address);
        let mut slots = self.guide.slots();
        if slots.get(&slot).is_some_and(|known| known == address) {
            slots.remove(&slot);
        }
    }

    fn attempt(
        &mut self,
        address: &str,
        asking: bool,
        commands: &[Vec<&[u8]>],
    ) -> Result<Vec<Reply>, Failure> {
        let patience = self.patience;
        let link = match self.links.entry(address.to_owned()) {
            std::collections::hash_map::Entry::Occupied(link) => link.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                let link = Link::open(address, patience, &self.guide.login)
                    .map_err(|error| Failure::NotDone(format!("{address}: {error}")))?;
                place.insert(link)
            }
        };
        let mut request = Vec::new();
        if asking {
            encode(&mut request, &[b"ASKING"]);
        }
        for command in commands {
            encode(&mut request, command);
        }
        let mut answers = || -> io::Result<Vec<Reply>> {
            link.stream.get_mut().write_all(&request)?;
            if asking {
                link.reply()?;
            }
            commands.iter().map(|_| link.reply()).collect()
        };
        answers().map_err(|error| Failure::Unknown(format!("{address}: {error}")))
    }
}

/// The reply in place of one that needed acknowledgements of the backups: the outcome is unknown.
fn unacknowledged(replies: &[Reply]) -> Option<&str> {
    replies.iter().find_map(|reply| match reply {
        Reply::Error(text) if text.starts_with("NOREPLICAS") => Some(text.as_str()),
        _ => None,
    })
}

/// The answer which means that no command had an effect.
fn refusal(replies: &[Reply]) -> Option<&str> {
    const REFUSALS: [&str; 6] = [
        "MOVED ",
        "ASK ",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
    ];
    let errors = replies.iter().chain(match replies.last() {
        Some(Reply::Array(results)) => results.as_slice(),
        _ => &[],
    });
    for reply in errors {
        if let Reply::Error(text) = reply
            && REFUSALS.iter().any(|refusal| text.starts_with(refusal))
        {
            return Some(text);
        }
    }
    None
}

pub(crate) fn encode(request: &mut Vec<u8>, command: &[&[u8]]) {
    request.extend(format!("*{}\r\n", command.len()).bytes());
    for part in command {
        request.extend(format!("${}\r\n", part.len()).bytes());
        request.extend(*part);
        request.extend(b"\r\n");
    }
}

#[derive(Debug)]
struct Link {
    stream: BufReader<TcpStream>,
}

impl Link {
    fn open(
        address: &str,
        patience: Duration,
        (user, password): &(String, String),
    ) -> io::Result<Link> {
        let to = address.to_socket_addrs()?.next();
        let to = to.ok_or_else(|| io::Error::other("no such address"))?;
        let stream = TcpStream::connect_timeout(&to, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        let mut link = Link {
            stream: BufReader::new(stream),
        };
        if !password.is_empty() {
            let mut request = Vec::new();
            encode(
                &mut request,
                &[b"AUTH", user.as_bytes(), password.as_bytes()],
            );
            link.stream.get_mut().write_all(&request)?;
            if let Reply::Error(refusal) = link.reply()? {
                return Err(io::Error::other(refusal));
            }
        }
        Ok(link)
    }

    fn reply(&mut self) -> io::Result<Reply> {
        read_reply(&mut self.stream)
    }
}

/// Reads one reply of RESP2.
pub(crate) fn read_reply(stream: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let text = line
        .strip_suffix("\r\n")
        .ok_or_else(|| io::Error::from(ErrorKind::UnexpectedEof))?;
    let malformed = || io::Error::new(ErrorKind::InvalidData, format!("not RESP: {text}"));
    let (kind, rest) = text.split_at_checked(1).ok_or_else(malformed)?;
    let number = || rest.parse::<i64>().map_err(|_| malformed());
    Ok(match kind {
        "+" => Reply::Simple(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Number(number()?),
        "$" | "*" if number()? < 0 => Reply::Null,
        "$" => {
            let length = number()? as usize;
            if length > BULK_BYTES_MAX {
                return Err(malformed());
            }
            let mut bulk = vec![0; length + 2];
            stream.read_exact(&mut bulk)?;
            bulk.truncate(length);
            Reply::Bulk(bulk)
        }
        "*" => Reply::Array(
            (0..number()?)
                .map(|_| read_reply(stream))
                .collect::<io::Result<_>>()?,
        ),
        _ => return Err(malformed()),
    })
}
