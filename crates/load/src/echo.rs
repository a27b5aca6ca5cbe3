//! The floor: a one-thread RESP server without a store. It answers every GET with the same 100
//! bytes and every SET with `+OK`; its cost per request is that of epoll, TCP and parsing, which
//! every server of this shape has.

use crate::{Doing, Failure, Result};
use duramen_wire::resp::{Encoder, Limits, ParseState, Protocol, Requests, parse_requests};
use rustix::event::epoll;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

const LISTENER: u64 = 0;
/// Longest pipeline in bytes: far longer than those of the figures.
const BUFFER_BYTES: usize = 1 << 20;

struct Peer {
    stream: TcpStream,
    /// The part of a request that has arrived.
    rest: Vec<u8>,
    state: ParseState,
    output: Vec<u8>,
}

/// Serves until it is killed, after printing `ready resp=ADDRESS`.
pub fn run() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing("listening")?;
    println!("ready resp={}", listener.local_addr().doing("listening")?);
    serve(&listener)
}

/// Serves for ever.
pub fn serve(listener: &TcpListener) -> Result<()> {
    listener.set_nonblocking(true).doing("listening")?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).doing("creating an epoll instance")?;
    let watch = |stream: &dyn std::os::fd::AsFd, token: u64| {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&epoll, stream, data, epoll::EventFlags::IN).doing("watching a connection")
    };
    watch(listener, LISTENER)?;
    let mut peers: HashMap<u64, Peer> = HashMap::new();
    let (mut next, mut requests) = (LISTENER + 1, Requests::new());
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut events = Vec::with_capacity(1024);
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::new("waiting for events", error)),
        }
        for event in &events {
            let token = event.data.u64();
            if token == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nodelay(true).doing("accepting")?;
                    stream.set_nonblocking(true).doing("accepting")?;
                    watch(&stream, next)?;
                    peers.insert(next, Peer::new(stream));
                    next += 1;
                }
            } else if let Some(peer) = peers.get_mut(&token)
                && !peer.turn(&mut buffer, &mut requests)
            {
                peers.remove(&token);
            }
        }
    }
}

impl Peer {
    fn new(stream: TcpStream) -> Peer {
        Peer {
            stream,
            rest: Vec::new(),
            state: ParseState::default(),
            output: Vec::new(),
        }
    }

    /// Reads, answers, writes; false = the connection is over.
    fn turn(&mut self, buffer: &mut [u8], requests: &mut Requests) -> bool {
        let kept = self.rest.len();
        let Some((front, room)) = buffer.split_at_mut_checked(kept) else {
            return false;
        };
        front.copy_from_slice(&self.rest);
        let bytes = match self.stream.read(room) {
            Ok(0) => return false,
            Ok(bytes) => bytes,
            Err(error) => {
                return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
            }
        };
        self.answer(&buffer[..kept + bytes], requests) && self.write()
    }

    fn answer(&mut self, input: &[u8], requests: &mut Requests) -> bool {
        const VALUE: [u8; 100] = [b'x'; 100];
        let Ok(consumed) = parse_requests(input, &Limits::default(), &mut self.state, requests)
        else {
            return false;
        };
        self.rest.clear();
        self.rest.extend_from_slice(&input[consumed.bytes..]);
        self.output.clear();
        let mut encoder = Encoder::new(&mut self.output, Protocol::Resp2);
        for n in 0..requests.len() {
            let args = requests.args(n, input);
            match args.get(0) {
                Some(b"GET") => encoder.bulk(&VALUE),
                Some(b"MGET") => {
                    encoder.array(args.len() - 1);
                    (1..args.len()).for_each(|_| encoder.bulk(&VALUE));
                }
                _ => encoder.ok(),
            }
        }
        true
    }

    /// The generator reads all replies, so a full socket empties by itself.
    fn write(&mut self) -> bool {
        let mut rest = self.output.as_slice();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(bytes) => rest = &rest[bytes..],
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return false,
            }
        }
        true
    }
}
