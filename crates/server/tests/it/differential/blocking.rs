//! Commands that wait for elements, with several connections in a fixed order: the replies of each
//! are the same bytes, in RESP2 and RESP3.

use super::{Peer, both};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Scripts, divided by empty lines. A line is a connection's letter and its request. `&` at its
/// end: the request waits; the script goes on when the server says so. `A <`: the reply of A's
/// request that waited.
const SCRIPTS: &str = include_str!("blocking.txt");

struct Connections {
    peers: Vec<(char, Peer)>,
    control: Peer,
    address: SocketAddr,
    protocol: u8,
}

impl Connections {
    fn new(address: SocketAddr, protocol: u8) -> Connections {
        let mut control = Peer::connect(address);
        control.ask("FLUSHALL");
        Connections {
            peers: Vec::new(),
            control,
            address,
            protocol,
        }
    }

    fn peer(&mut self, name: char) -> &mut Peer {
        if !self.peers.iter().any(|(known, _)| *known == name) {
            let mut peer = Peer::connect(self.address);
            peer.ask(&format!("HELLO {}", self.protocol));
            self.peers.push((name, peer));
        }
        let known = self.peers.iter_mut().find(|(known, _)| *known == name);
        &mut known.expect("just added").1
    }

    /// A client as the server lists it.
    fn listed(&mut self, name: char) -> String {
        let address = self.peer(name).stream.local_addr().expect("an address");
        let list = self.control.ask("CLIENT LIST");
        let address = format!(" addr={address} ");
        let line = list.lines().find(|line| line.contains(&address));
        line.expect("the client").to_owned()
    }

    fn await_waiting(&mut self, name: char) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.listed(name).contains(" flags=b ") {
            assert!(Instant::now() < deadline, "{name} does not wait");
        }
    }

    fn run(&mut self, line: &str) -> String {
        let (name, request) = line.split_once(' ').expect("a connection's letter");
        let name = name.chars().next().expect("a letter");
        // Ids of clients differ: `@B` is that of B.
        let request = match request.split_once('@') {
            Some((before, after)) => {
                let (other, after) = after.split_at(1);
                let other = other.chars().next().expect("a letter");
                let listed = self.listed(other);
                let id = listed
                    .split_once("id=")
                    .and_then(|(_, id)| id.split(' ').next());
                format!("{before}{}{after}", id.expect("an id"))
            }
            None => request.to_owned(),
        };
        if let Some(request) = request.strip_suffix(" &") {
            self.peer(name).send(request);
            self.await_waiting(name);
            return String::new();
        }
        if request == "<" {
            return self.peer(name).reply("a reply that waited");
        }
        self.peer(name).ask(&request)
    }
}

#[test]
fn clients_wait_as_those_of_redis() {
    let Some((server, redis)) = both() else {
        return;
    };
    let mut wrong = Vec::new();
    let mut compared = 0;
    for protocol in [2, 3] {
        for script in SCRIPTS.split("\n\n") {
            let mut ours = Connections::new(server.addresses().resp[0], protocol);
            let mut theirs = Connections::new(redis.address, protocol);
            for line in script.lines().filter(|line| !line.starts_with('#')) {
                let (our, their) = (ours.run(line), theirs.run(line));
                compared += 1;
                if our != their {
                    wrong.push(format!(
                        "RESP{protocol} {line}\n   Duramen: {our:?}\n   Redis:   {their:?}\n in\n{script}"
                    ));
                }
            }
        }
    }
    server.stop();
    server.wait().expect("stops");
    assert!(compared > 100, "only {compared} lines were read");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
