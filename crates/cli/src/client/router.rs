//! Router: a server, or a cluster that is reached through one of its members.
//!
//! **Invariants**
//! - R1: a request is sent again only if it has not run: after `MOVED`, `TRYAGAIN`, `CLUSTERDOWN`
//!   and `LOADING`, or when no connection could be made for it. If a connection breaks later, the
//!   outcome is unknown, and that is an error.
//! - R2: a single server gets no extra requests for a request about keys: its answer shows whether
//!   it is a member.
//! - R3: what is collected from all members is complete: together they served every key when the
//!   walk began, and each of them served the same keys, by the same list of tablets, when it ended.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use duramen_wire::resp::Reply;

use super::connection::{ConnectArgs, Connection};
use crate::failure::Failure;

/// Pause between two attempts while no server serves the key.
const PAUSE: Duration = Duration::from_millis(50);
/// Most walks over all members if keys move during each walk. The pauses between the walks double,
/// and take 13 s in total.
const WALKS_MAX: u32 = 9;
/// Redirections that are followed without a pause. A member with an old map may redirect to one
/// that redirects back.
const HOPS_MAX: u32 = 5;

/// The servers for requests.
pub(crate) struct Servers {
    args: ConnectArgs,
    /// The server that the user named.
    home: Connection,
    /// Other members, by `host:port`.
    others: HashMap<String, Connection>,
}

/// The redirection in an error.
#[derive(Debug, PartialEq, Eq)]
enum Redirect {
    /// Another member has the key: its host (empty: the host of the server that answered) and port.
    Moved(String, u16),
    /// No server serves the key at the moment.
    Wait,
    No,
}

impl Redirect {
    fn of(error: &str) -> Redirect {
        let mut words = error.split(' ');
        match words.next() {
            Some("MOVED") => {
                let address = words.nth(1).and_then(|address| address.rsplit_once(':'));
                match address.map(|(host, port)| (host, port.parse())) {
                    Some((host, Ok(port))) => {
                        Redirect::Moved(host.trim_matches(['[', ']']).to_owned(), port)
                    }
                    _ => Redirect::No,
                }
            }
            // A missing table does not appear by itself: the error names the command that creates
            // it.
            Some("CLUSTERDOWN") if error.contains("duramen table create") => Redirect::No,
            Some("TRYAGAIN" | "CLUSTERDOWN" | "LOADING") => Redirect::Wait,
            _ => Redirect::No,
        }
    }
}

/// The reason why a server does not list the members of its cluster.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// It is not a member of a cluster: it has all keys.
    Alone,
    /// It will list them soon.
    Wait,
    /// The user has no right to ask. The server may be a member, and its own keys only a part of
    /// all.
    Right,
    Other,
}

impl Refusal {
    fn of(error: &str) -> Refusal {
        if error.contains("cluster support disabled") {
            return Refusal::Alone;
        }
        match (Redirect::of(error), error.split(' ').next()) {
            (Redirect::Wait, _) => Refusal::Wait,
            (_, Some("NOPERM")) => Refusal::Right,
            _ => Refusal::Other,
        }
    }
}

impl Servers {
    pub(crate) fn open(args: &ConnectArgs) -> Result<Servers, Failure> {
        let until = deadline(args);
        let home = loop {
            match Connection::open(args) {
                // Authentication and table selection are refused while data is loaded.
                Err(Failure::Server(text)) if may_wait(&text, until) => std::thread::sleep(PAUSE),
                opened => break opened?,
            }
        };
        Ok(Servers {
            args: args.clone(),
            home,
            others: HashMap::new(),
        })
    }

    /// Address of the named server, for messages.
    pub(crate) fn address(&self) -> &str {
        self.home.address()
    }

    /// Sends one request to the server that has its key, and waits for its reply.
    ///
    /// # Errors
    /// As [`Connection::ask`]; no server has served the key for `--timeout`.
    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Result<Reply, Failure> {
        let until = deadline(&self.args);
        let mut at: Option<(String, u16)> = None;
        let mut hops = 0;
        loop {
            let failure = match self.connection(at.as_ref()) {
                Ok(connection) => match connection.ask(words) {
                    Ok(reply) => return Ok(reply),
                    Err(failure) => failure,
                },
                // R1: nothing was sent. The member has ended or is starting; the other members will
                // have a new map soon.
                Err(failure) if at.is_some() && is_away(&failure) => {
                    hops = 0;
                    at = None;
                    wait(failure, until)?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let redirect = match &failure {
                Failure::Server(text) => Redirect::of(text),
                _ => Redirect::No,
            };
            match redirect {
                Redirect::Moved(host, port) => {
                    let here = at.map_or_else(|| self.args.host.clone(), |(host, _)| host);
                    let host = if host.is_empty() { here } else { host };
                    at = Some((host, port));
                    hops += 1;
                    if hops > HOPS_MAX {
                        wait(failure, until)?;
                    }
                }
                Redirect::Wait => {
                    at = None;
                    wait(failure, until)?;
                }
                Redirect::No => {
                    self.forget_broken(&failure);
                    return Err(failure);
                }
            }
        }
    }

    /// A connection to the named server, or to the member at this address.
    fn connection(&mut self, at: Option<&(String, u16)>) -> Result<&mut Connection, Failure> {
        let Some((host, port)) = at else {
            return Ok(&mut self.home);
        };
        if (host, *port) == (&self.args.host, self.args.port) {
            return Ok(&mut self.home);
        }
        let name = format!("{host}:{port}");
        if !self.others.contains_key(&name) {
            let args = ConnectArgs {
                host: host.clone(),
                port: *port,
                ..self.args.clone()
            };
            self.others.insert(name.clone(), Connection::open(&args)?);
        }
        Ok(self
            .others
            .get_mut(&name)
            .expect("it is there, or was put there"))
    }

    fn forget_broken(&mut self, failure: &Failure) {
        if let Failure::Broken { address, .. } = failure {
            self.others.retain(|_, other| other.address() != address);
        }
    }

    /// Calls `each` for every server, until one of these calls ends the walk. The servers together
    /// have all keys. If keys have moved between them meanwhile, the walk begins anew, with a new
    /// `T`.
    ///
    /// # Errors
    /// Those of `each`; as [`ask`](Self::ask); keys moved during every walk.
    pub(crate) fn walk<T: Default>(
        &mut self,
        mut each: impl FnMut(&mut Servers, &Member, &mut T) -> Result<ControlFlow<()>, Failure>,
    ) -> Result<T, Failure> {
        let mut pause = PAUSE;
        for _ in 0..WALKS_MAX {
            let (members, before) = self.all()?;
            let mut result = T::default();
            for member in &members {
                if each(self, member, &mut result)?.is_break() {
                    return Ok(result);
                }
            }
            if self.spread(&members)? == before {
                return Ok(result);
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        let why = format!(
            "keys moved between the members during each of {WALKS_MAX} attempts, so some may be missing: ask again when \
             `duramen status` shows no migration"
        );
        Err(Failure::Server(why))
    }

    /// The part of the keys that each of these members serves, with the version of its tablets.
    fn spread(&mut self, members: &[Member]) -> Result<Spread, Failure> {
        let mut spread = Spread::default();
        for member in members.iter().filter(|member| member.0.is_some()) {
            let info = self.ask_at(member, &["CLUSTER", "INFO"])?;
            let info = String::from_utf8_lossy(info.as_bytes().unwrap_or_default()).into_owned();
            spread.add(&info);
        }
        Ok(spread)
    }

    /// All servers that together have all keys: the named one, or all members of its cluster that
    /// own keys.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); some keys are served by no server.
    fn all(&mut self) -> Result<(Vec<Member>, Spread), Failure> {
        let until = deadline(&self.args);
        let alone = (vec![Member(None)], Spread::default());
        loop {
            let nodes = match self.home.ask(&["CLUSTER", "NODES"]) {
                Ok(nodes) => nodes,
                Err(Failure::Server(text)) => match Refusal::of(&text) {
                    Refusal::Alone => return Ok(alone),
                    Refusal::Wait => {
                        wait(Failure::Server(text), until)?;
                        continue;
                    }
                    Refusal::Right if self.is_alone()? => return Ok(alone),
                    Refusal::Right => return Err(without_right(&text)),
                    Refusal::Other => return Err(Failure::Server(text)),
                },
                Err(failure) => return Err(failure),
            };
            let text = String::from_utf8_lossy(nodes.as_bytes().unwrap_or_default()).into_owned();
            let members = members(&text, &self.args.host);
            if members.is_empty() {
                return Ok(alone);
            }
            let failure = match self.spread(&members) {
                Ok(spread) if spread.is_whole() => return Ok((members, spread)),
                Ok(_) => Failure::Server(
                    "some keys are being recovered or moved: no member serves them at the moment"
                        .to_owned(),
                ),
                // This member has ended or is starting; the map does not show that yet.
                Err(failure) if is_away(&failure) => failure,
                Err(Failure::Server(text)) if Refusal::of(&text) == Refusal::Right => {
                    return Err(without_right(&text));
                }
                Err(failure) => return Err(failure),
            };
            wait(failure, until)?;
        }
    }

    /// Whether the named server says that it is no member of a cluster: `HELLO` needs no right.
    fn is_alone(&mut self) -> Result<bool, Failure> {
        Ok(is_standalone(&self.home.ask(&["HELLO"])?))
    }

    /// Sends one request to this server, regardless of its key.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub(crate) fn ask_at<A: AsRef<[u8]>>(
        &mut self,
        member: &Member,
        words: &[A],
    ) -> Result<Reply, Failure> {
        let result = self.connection(member.0.as_ref())?.ask(words);
        if let Err(failure) = &result {
            self.forget_broken(failure);
        }
        result
    }
}

/// A server of [`Servers::all`]: the address of a member, or `None` for the named server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member(Option<(String, u16)>);

/// The parts of a table that members serve.
#[derive(Debug, Default, PartialEq, Eq)]
struct Spread {
    /// For each member the version of its tablets, and the number of hashes that it serves.
    served: Vec<(u128, u128)>,
    /// Number of hashes of all tablets of the table, as the members' maps show it.
    assigned: u128,
}

impl Spread {
    /// Adds a member's reply to `CLUSTER INFO`.
    fn add(&mut self, info: &str) {
        let field = |name: &str| {
            let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.parse().ok();
            info.lines().find_map(value).unwrap_or(0)
        };
        let version = field("duramen_tablets_version");
        self.served.push((version, field("duramen_hashes_served")));
        self.assigned = self.assigned.max(field("duramen_hashes_assigned"));
    }

    /// Whether every key is served.
    fn is_whole(&self) -> bool {
        self.served.iter().map(|(_, hashes)| hashes).sum::<u128>() == self.assigned
    }
}

/// The members in a reply to `CLUSTER NODES` that are up and have an address.
fn members(nodes: &str, here: &str) -> Vec<Member> {
    let of = |line: &str| {
        let mut words = line.split(' ');
        let address = words.nth(1)?;
        let flags = words.next()?;
        if flags
            .split(',')
            .any(|flag| flag.starts_with("fail") || flag == "noaddr")
        {
            return None;
        }
        // host:port@bus,hostname
        let address = address.split(['@', ',']).next()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_matches(['[', ']']);
        let host = if host.is_empty() { here } else { host };
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(Member(Some((host.to_owned(), port))))
    };
    nodes.lines().filter_map(of).collect()
}

/// A user who may not ask for the members gets an error, not the keys of one of them.
fn without_right(text: &str) -> Failure {
    let refusal = text.lines().next().unwrap_or_default();
    Failure::Server(format!(
        "{refusal}\nThe keys are spread over the members of a cluster, and this user may not ask \
         for these: `ACL SETUSER NAME +cluster|nodes +cluster|info` allows it; --user names \
         another user."
    ))
}

/// Whether a reply to `HELLO`, names and values in turn, is of a server that is no member.
fn is_standalone(hello: &Reply) -> bool {
    let mut fields = hello.as_array().unwrap_or_default().chunks_exact(2);
    fields.any(|field| match field {
        [name, value] => {
            let is = |reply: &Reply, text: &str| reply.as_bytes() == Some(text.as_bytes());
            is(name, "mode") && is(value, "standalone")
        }
        _ => false,
    })
}

/// Whether a member refused the connection, or does not serve clients yet.
fn is_away(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable { .. } => true,
        Failure::Server(text) => Redirect::of(text) == Redirect::Wait,
        _ => false,
    }
}

/// The time at which waiting ends; `None` if it never does.
fn deadline(args: &ConnectArgs) -> Option<Instant> {
    args.timeout().map(|timeout| Instant::now() + timeout)
}

fn may_wait(error: &str, until: Option<Instant>) -> bool {
    Redirect::of(error) == Redirect::Wait && until.is_none_or(|until| Instant::now() < until)
}

/// Pauses, or fails with `failure` after the deadline.
fn wait(failure: Failure, until: Option<Instant>) -> Result<(), Failure> {
    if until.is_some_and(|until| Instant::now() >= until) {
        return Err(failure);
    }
    std::thread::sleep(PAUSE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_where_to_ask() {
        let moved = |host: &str, port| Redirect::Moved(host.to_owned(), port);
        assert_eq!(
            Redirect::of("MOVED 12182 127.0.0.1:7002"),
            moved("127.0.0.1", 7002)
        );
        assert_eq!(Redirect::of("MOVED 1 [::1]:7002"), moved("::1", 7002));
        assert_eq!(Redirect::of("MOVED 1 ::1:7002"), moved("::1", 7002));
        assert_eq!(Redirect::of("MOVED 1 :7002"), moved("", 7002));
        for wait in [
            "TRYAGAIN later",
            "CLUSTERDOWN Hash slot not served",
            "LOADING 5 %",
        ] {
            assert_eq!(Redirect::of(wait), Redirect::Wait, "{wait}");
        }
        let no_table = "CLUSTERDOWN Hash slot not served: make it with `duramen table create db0`";
        for no in [
            "MOVED",
            "MOVED 1 nowhere",
            "ERR MOVED 1 a:1",
            "NOREPLICAS",
            "",
            no_table,
        ] {
            assert_eq!(Redirect::of(no), Redirect::No, "{no}");
        }
    }

    /// A user without the right to `CLUSTER NODES` got one member's keys, as if they were all.
    #[test]
    fn only_a_server_that_says_so_is_alone() {
        for (error, refusal) in [
            (
                "ERR This instance has cluster support disabled",
                Refusal::Alone,
            ),
            ("CLUSTERDOWN this member knows of no slot", Refusal::Wait),
            ("LOADING 5 %", Refusal::Wait),
            (
                "NOPERM User x has no permissions to run the 'cluster|nodes' command",
                Refusal::Right,
            ),
            ("NOAUTH Authentication required.", Refusal::Other),
            ("ERR unknown command 'CLUSTER'", Refusal::Other),
        ] {
            assert_eq!(Refusal::of(error), refusal, "{error}");
        }
        let said = without_right("NOPERM User x may not\nadvice").to_string();
        assert!(said.contains("NOPERM"), "{said}");
        assert!(said.contains("+cluster|nodes +cluster|info"), "{said}");
        let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        let hello = |mode| {
            let fields = [bulk("proto"), Reply::Integer(2), bulk("mode"), bulk(mode)];
            Reply::Array(fields.to_vec())
        };
        assert!(is_standalone(&hello("standalone")));
        assert!(!is_standalone(&hello("cluster")));
        assert!(!is_standalone(&Reply::Null));
    }

    #[test]
    fn keys_that_moved_or_are_not_served_are_noticed() {
        let spread = |members: [(u32, &str); 2]| {
            let mut spread = Spread::default();
            for (version, served) in members {
                spread.add(&format!(
                    "cluster_state:ok\r\nduramen_tablets_version:{version}\r\n\
                     duramen_hashes_assigned:18446744073709551616\r\nduramen_hashes_served:{served}\r\n"
                ));
            }
            spread
        };
        let (half, all) = ("9223372036854775808", "18446744073709551616");
        let before = spread([(7, half), (3, half)]);
        assert!(before.is_whole());
        assert!(
            !spread([(7, half), (3, "0")]).is_whole(),
            "it moves, or is recovered"
        );
        assert_ne!(before, spread([(9, all), (9, "0")]));
        assert_ne!(before, spread([(9, half), (9, half)]), "there and back");
    }

    #[test]
    fn members_are_those_that_are_there() {
        let nodes = "a 127.0.0.1:7001@7101,host myself,master - 0 0 1 connected 0-8191\n\
            b 127.0.0.1:7002@7102 master,fail - 0 0 1 disconnected\n\
            c :7003@7103 master - 0 0 1 connected 8192-16383\n\
            d :0@0 master,noaddr - 0 0 1 connected\n";
        let member = |port| Member(Some(("127.0.0.1".to_owned(), port)));
        assert_eq!(members(nodes, "127.0.0.1"), [member(7001), member(7003)]);
        assert_eq!(members("", "h"), []);
    }
}
