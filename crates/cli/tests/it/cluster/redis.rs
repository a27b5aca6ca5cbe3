//! A minimal Redis client of a cluster: follows MOVED, retries requests that are not served now.

use crate::cluster::process::DEADLINE;
use duramen_wire::resp::{Reply, ReplyLimits, ReplyParser, RequestEncoder};
use std::collections::HashMap;
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub struct Redis {
    addresses: Vec<String>,
    connections: HashMap<String, TcpStream>,
    next: usize,
}

impl Redis {
    pub fn new(addresses: &[String]) -> Redis {
        Redis {
            addresses: addresses.to_vec(),
            connections: HashMap::new(),
            next: 0,
        }
    }

    /// The text of the reply, from whichever server.
    pub fn ask(&mut self, request: &[&str]) -> String {
        let until = Instant::now() + DEADLINE;
        let mut address = self.addresses[0].clone();
        let mut last = String::new();
        while Instant::now() < until {
            match self.exchange(&address, request) {
                Some(Reply::Error(text)) => {
                    let mut words = text.split(' ');
                    match (words.next(), words.nth(1)) {
                        (Some("MOVED"), Some(to)) => to.clone_into(&mut address),
                        (Some("TRYAGAIN" | "CLUSTERDOWN" | "LOADING"), _) => {}
                        _ => panic!("{request:?}: {text}"),
                    }
                    last = text;
                }
                Some(reply) => {
                    return String::from_utf8_lossy(reply.as_bytes().unwrap_or_default())
                        .into_owned();
                }
                None => {
                    // It is gone, or about to be: another server has a newer map.
                    self.next += 1;
                    address = self.addresses[self.next % self.addresses.len()].clone();
                }
            }
            if !last.starts_with("MOVED") || self.next > 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        panic!("{request:?} was not answered: {last}");
    }

    /// The reply of the server at this address; `None`: the connection failed.
    pub fn exchange(&mut self, address: &str, request: &[&str]) -> Option<Reply> {
        let reply = self.try_exchange(address, request);
        if reply.is_none() {
            self.connections.remove(address);
        }
        reply
    }

    fn try_exchange(&mut self, address: &str, request: &[&str]) -> Option<Reply> {
        if !self.connections.contains_key(address) {
            let stream = TcpStream::connect(address).ok()?;
            stream.set_read_timeout(Some(DEADLINE)).ok()?;
            stream.set_nodelay(true).ok()?;
            self.connections.insert(address.to_owned(), stream);
        }
        let stream = self.connections.get_mut(address)?;
        let mut bytes = Vec::new();
        RequestEncoder::new(&mut bytes).request(request);
        stream.write_all(&bytes).ok()?;
        let mut parser = ReplyParser::new(ReplyLimits::default());
        parser.read_from(stream).ok()
    }
}
