//! The options of a hub.

use duramen_base::ids::ClusterId;
use duramen_tls::Identity;
use duramen_wire::native::codec::{CLIENT_FRAME_BYTES_MAX, PEER_FRAME_BYTES_MAX, Role};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Default limit of unproved connections: more than all servers and many clients that reconnect at
/// once. Each takes about 2 KiB, or 20 KiB with TLS, for at most [`Limits::hello`].
const STRANGERS_MAX: usize = 1024;
/// Unproved connections have at most this part of the descriptors that the process may open.
const STRANGERS_PART: u64 = 8;
const STRANGERS_MIN: u64 = 16;

/// Limits of a hub.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest frame from servers and coordinators, and from clients, in bytes.
    pub peer_frame_bytes: usize,
    pub client_frame_bytes: usize,
    /// Maximum unsent output per connection; beyond it the connection is closed.
    pub output_bytes: usize,
    /// Above this much unsent output, or this many unanswered questions, the connection is not read
    /// from.
    pub pause_bytes: usize,
    pub pause_questions: usize,
    /// Maximum connections that peers opened and on which they have proved themselves.
    pub connections: usize,
    /// Maximum connections that peers opened and on which they have not proved themselves. A new
    /// one closes the oldest.
    pub strangers: usize,
    /// Maximum time for connecting, and for the handshake.
    pub hello: Duration,
    /// Longest time for which sent bytes may remain unacknowledged.
    pub patience: Duration,
    /// Pause between two attempts to connect: it doubles from the minimum to the maximum.
    pub retry_min: Duration,
    pub retry_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            peer_frame_bytes: PEER_FRAME_BYTES_MAX,
            client_frame_bytes: CLIENT_FRAME_BYTES_MAX,
            output_bytes: 256 << 20,
            pause_bytes: 16 << 20,
            pause_questions: 4096,
            connections: 4096,
            strangers: strangers_max(),
            hello: Duration::from_secs(3),
            patience: Duration::from_secs(10),
            retry_min: Duration::from_millis(10),
            retry_max: Duration::from_millis(250),
        }
    }
}

fn strangers_max() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let part = files.current.map_or(u64::MAX, |most| most / STRANGERS_PART);
    STRANGERS_MAX.min(part.max(STRANGERS_MIN) as usize)
}

/// Options of a hub.
#[derive(Clone, Debug)]
pub struct Options {
    /// The role in which it answers peers that connect.
    pub role: Role,
    /// The name of the cluster; empty for any cluster.
    pub cluster: String,
    /// The cluster's id; [`ClusterId::NONE`] for any cluster of that name. See
    /// [`Hub::set_cluster_id`](crate::Hub::set_cluster_id).
    pub cluster_id: ClusterId,
    /// The cluster's token; empty if it has none. Both sides prove that they have the token, and
    /// never send it.
    pub token: Vec<u8>,
    pub limits: Limits,
    /// The certificates for TLS (net::W6); each new connection uses the newest ones. `None` for TCP
    /// without TLS.
    pub identity: Option<Arc<Identity>>,
    /// Whether connections of a role are not kept: they come out as
    /// [`Event::Handed`](crate::Event::Handed).
    pub hands_over: fn(Role) -> bool,
    /// Returns all addresses of `host:port`. It may take seconds: unless the host is an address, it
    /// is called on its own thread.
    pub resolve: fn(&str) -> std::io::Result<Vec<SocketAddr>>,
    /// Counts invalid frames of peers, and refused hellos. Hubs may share it.
    pub offences: Arc<AtomicU64>,
    /// Counts connections, of both directions, that TLS ended: a certificate that is not accepted,
    /// or a side without TLS.
    pub tls_failures: Arc<AtomicU64>,
}

impl Options {
    pub fn new(role: Role, cluster: &str) -> Options {
        Options {
            role,
            cluster: cluster.to_owned(),
            cluster_id: ClusterId::NONE,
            token: Vec::new(),
            limits: Limits::default(),
            identity: None,
            hands_over: |_| false,
            resolve: |address| Ok(address.to_socket_addrs()?.collect()),
            offences: Arc::default(),
            tls_failures: Arc::default(),
        }
    }
}
