//! The same requests to Duramen and to Debian's redis-server 7.0: the replies must be the same
//! bytes.
//!
//! The reason for an intended difference is beside the request. The test fails if such replies have
//! become equal, so that the list stays true. Without redis-server on this machine the test prints
//! SKIPPED.

mod blocking;
mod events;
mod latency;
mod pubsub;
mod random;
mod scripts;
mod streams;

use duramen_config::ServerConfig;
use duramen_server::Server;
use duramen_wire::resp::ReplySkipper;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The form of this file is described in its first lines.
const REQUESTS: &str = include_str!("requests.txt");

struct Redis {
    process: Child,
    address: SocketAddr,
}

impl Redis {
    /// `None` if there is no redis-server on this machine. redis-server cannot report which port it
    /// took: ports that were just free are tried until one works.
    fn start() -> Option<Redis> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = free.local_addr().expect("its address");
            drop(free);
            let mut command = Command::new("redis-server");
            command
                .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "no"])
                .current_dir(std::env::temp_dir())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let process = command.spawn().ok()?;
            let mut redis = Redis { process, address };
            // The process ends at once if another program took the port meanwhile.
            while redis.process.try_wait().expect("it is ours").is_none() {
                if TcpStream::connect(address).is_ok() {
                    return Some(redis);
                }
                assert!(Instant::now() < deadline, "redis-server does not listen");
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Peer {
    stream: TcpStream,
}

impl Peer {
    fn connect(address: SocketAddr) -> Peer {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    let timeout = Some(Duration::from_secs(60));
                    stream.set_read_timeout(timeout).expect("a timeout");
                    return Peer { stream };
                }
                Err(error) => assert!(Instant::now() < deadline, "{address}: {error}"),
            }
            std::thread::yield_now();
        }
    }

    /// The bytes of the reply to one inline request; if the connection is closed, the bytes before
    /// the end.
    fn ask(&mut self, request: &str) -> String {
        self.send(request);
        self.reply(request)
    }

    /// As [`ask`](Self::ask), for a request of arguments with any bytes.
    fn ask_args(&mut self, args: &[&str]) -> String {
        let mut request = format!("*{}\r\n", args.len());
        for arg in args {
            request.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        self.stream.write_all(request.as_bytes()).expect("sent");
        self.reply(&args.join(" "))
    }

    fn send(&mut self, request: &str) {
        let request = format!("{request}\r\n");
        self.stream.write_all(request.as_bytes()).expect("sent");
    }

    fn reply(&mut self, request: &str) -> String {
        let (mut reply, mut skipper, mut passed) = (Vec::new(), ReplySkipper::new(), 0);
        loop {
            let mut bytes = [0; 16 * 1024];
            let read = match self.stream.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap_or_else(|error| panic!("{request}: {error}")),
            };
            if read == 0 {
                break;
            }
            reply.extend_from_slice(&bytes[..read]);
            let skipped = skipper.advance(&reply[passed..]).expect("a reply");
            passed += skipped.bytes;
            if skipped.replies > 0 {
                break;
            }
        }
        String::from_utf8_lossy(&reply).into_owned()
    }
}

/// Within this time both servers report the same times.
const ALIKE: Duration = Duration::from_millis(300);

/// Result of one sequence of requests.
#[derive(Default)]
struct Comparison {
    compared: usize,
    differing: usize,
    wrong: Vec<String>,
}

fn compare(sequence: &str, address: SocketAddr, redis: SocketAddr) -> Comparison {
    let mut said = Comparison::default();
    let (mut ours, mut theirs) = (Peer::connect(address), Peer::connect(redis));
    let requests = sequence
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in std::iter::once("FLUSHALL").chain(requests) {
        let (request, reason) = match line.split_once("  ~ ") {
            Some((request, reason)) => (request, Some(reason)),
            None => (line, None),
        };
        let (our, their) = (ours.ask(request), theirs.ask(request));
        said.compared += 1;
        said.differing += usize::from(reason.is_some());
        if (our == their) == reason.is_some() {
            let expected = if reason.is_some() {
                "another reply than"
            } else {
                "the reply of"
            };
            said.wrong.push(format!(
                "{request}\n   Duramen: {our:?}\n   expected {expected} Redis: {their:?}"
            ));
        }
    }
    said
}

/// A server of each kind. `None`: there is no redis-server on this machine, which is printed.
fn both() -> Option<(Server, Redis)> {
    let Some(redis) = Redis::start() else {
        println!("SKIPPED: there is no redis-server on this machine");
        return None;
    };
    Some((duramen(), redis))
}

fn duramen() -> Server {
    let config = ServerConfig {
        level: Some(duramen_config::Level::Memory),
        port: 0,
        threads: 2,
        admin: false,
        memory_bytes: 128 << 20,
        ..ServerConfig::default()
    };
    Server::start(config).expect("a server")
}

#[test]
fn replies_are_those_of_redis() {
    let Some((server, redis)) = both() else {
        return;
    };
    let address = server.addresses().resp[0];
    let (mut wrong, mut compared, mut differing) = (Vec::new(), 0, 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    for sequence in REQUESTS.split("\n\n") {
        let said = loop {
            let began = Instant::now();
            let said = compare(sequence, address, redis.address);
            // Remaining seconds are rounded: after this much time, one of the two servers may be
            // one second ahead.
            let is_certain = said.wrong.is_empty() || began.elapsed() < ALIKE;
            if is_certain || Instant::now() > deadline {
                break said;
            }
        };
        compared += said.compared;
        differing += said.differing;
        wrong.extend(said.wrong);
    }
    server.stop();
    server.wait().expect("stops");
    assert!(compared > 500, "only {compared} requests were read");
    assert!(
        wrong.is_empty(),
        "{} of {compared}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    println!("{compared} requests, {differing} differences on purpose");
}

/// Commands of data, which are described as by Redis: arity, flags, keys, categories, tips. Not
/// ZRANK and ZREVRANK, which take more arguments since Redis 7.2.
const DESCRIBED: &str = "append bitcount bitfield bitfield_ro bitop bitpos blmpop bzmpop copy \
    decr decrby del dump exists expire expireat expiretime geoadd geodist geohash geopos \
    georadius georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore get \
    getbit getdel getex getrange getset hdel hexists hget hgetall hincrby hincrbyfloat hkeys \
    hlen hmget hmset hrandfield hscan hset hsetnx hstrlen hvals incr incrby incrbyfloat lcs \
    lindex linsert llen lmove lmpop lpop lpos lpush lpushx lrange lrem lset ltrim mget move \
    mset msetnx object persist pexpire pexpireat pexpiretime pfadd pfcount pfmerge psetex \
    psubscribe pttl publish pubsub punsubscribe rename renamenx restore rpop rpoplpush rpush \
    rpushx sadd scan scard sdiff sdiffstore set setbit setex setnx setrange sinter sintercard \
    sinterstore sismember smembers smismember smove sort sort_ro spop spublish srandmember srem \
    sscan ssubscribe strlen subscribe substr sunion sunionstore sunsubscribe touch ttl type \
    unlink unsubscribe watch xack xadd xautoclaim xclaim xdel xgroup xinfo xlen xpending xrange \
    xread xreadgroup xrevrange xsetid xtrim zadd zcard zcount zdiff zdiffstore zincrby zinter \
    zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange \
    zrangebylex zrangebyscore zrangestore zrem zremrangebylex zremrangebyrank zremrangebyscore \
    zrevrange zrevrangebylex zrevrangebyscore zscan zscore zunion zunionstore";

/// Requests whose keys, and the access to each, are those of Redis.
const KEYS_OF: &[&str] = &[
    "LMPOP 2 a b LEFT",
    "BLMPOP 0 2 a b LEFT",
    "BLPOP a b 0",
    "BLMOVE a b LEFT LEFT 0",
    "ZUNIONSTORE to 3 a b c WEIGHTS 1 2 3",
    "ZINTERCARD 2 a b LIMIT 1",
    "ZMPOP 1 a MIN",
    "SORT a BY w* LIMIT 0 1 GET # GET b STORE to STORE other",
    "SORT a",
    "SORT a STORE to",
    "GEORADIUS a 1 2 3 km COUNT 5 STOREDIST c",
    "GEORADIUSBYMEMBER a m 3 km",
    "GEOSEARCHSTORE to from FROMLONLAT 1 2 BYRADIUS 1 km",
    "BITOP AND to a b c",
    "BITFIELD a GET u8 0 GET u8 8",
    "BITFIELD a GET u8 0 SET u8 8 1",
    "SET a b",
    "SET a b GET",
    "PFMERGE to a b",
    "PFCOUNT a b",
    "SINTERCARD 2 a b",
    "LCS a b LEN",
    "RESTORE a 0 x",
    "OBJECT ENCODING a",
    "COPY a b",
    "SMOVE a b m",
    "RENAME a b",
    "SPUBLISH a b",
    "SSUBSCRIBE a b",
    "SUNSUBSCRIBE a b",
    "XREAD BLOCK 0 COUNT 1 STREAMS streams b 0 0",
    "XREADGROUP GROUP streams c NOACK STREAMS a b > >",
    "XADD a * f v",
    "XGROUP CREATE a g 0",
    "XGROUP DELCONSUMER a g c",
    "XINFO STREAM a",
    "XCLAIM a g c 0 1-1",
];

#[test]
fn commands_are_described_as_by_redis() {
    let Some((server, redis)) = both() else {
        return;
    };
    let [mut ours, mut theirs] = [server.addresses().resp[0], redis.address].map(Peer::connect);
    let names = DESCRIBED
        .split_whitespace()
        .map(|name| format!("COMMAND INFO {name}"));
    let keys = KEYS_OF
        .iter()
        .map(|request| format!("COMMAND GETKEYSANDFLAGS {request}"));
    let mut wrong = Vec::new();
    for request in names.chain(keys) {
        let (our, their) = (ours.ask(&request), theirs.ask(&request));
        // The order of subcommands is that of a hash table there.
        let is_container = ["object", "pubsub", "xgroup", "xinfo"]
            .iter()
            .any(|name| request.ends_with(name));
        let same = match is_container {
            true => random::unordered(&our) == random::unordered(&their),
            false => our == their,
        };
        if !same {
            wrong.push(format!(
                "{request}\n   Duramen: {our:?}\n   Redis:   {their:?}"
            ));
        }
    }
    server.stop();
    server.wait().expect("stops");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
