//! The certificates of the members' connections, for the status.

use super::Driver;
use duramen_base::ids::ServerId;
use duramen_net::ConnectionId;
use duramen_wire::native::message::{MembersHealth, ToCoordinator};
use std::collections::HashMap;

/// Members whose certificates are kept: more than a cluster has. Beyond them, a peer that speaks
/// for others could fill the memory.
const SERVERS_MAX: usize = 4_096;

/// The certificate of a member.
#[derive(Clone, Copy)]
struct Shown {
    /// The number of its connection: a newer one has a higher number.
    number: u64,
    expires_s: i64,
}

/// When the certificates of members expire, in seconds since the Unix epoch. Empty without TLS.
///
/// A connection stays open when its member has read a new certificate: the member reports the new
/// one.
#[derive(Default)]
pub(super) struct Certificates {
    connections: HashMap<ConnectionId, Shown>,
    /// Number of connections so far.
    accepted: u64,
    /// The certificate of the newest connection of each member that has asked something.
    servers: HashMap<ServerId, Shown>,
}

impl Certificates {
    /// A member has connected, with this certificate.
    pub(super) fn accepted(&mut self, connection: ConnectionId, expires_s: i64) {
        self.accepted += 1;
        let number = self.accepted;
        self.connections
            .insert(connection, Shown { number, expires_s });
    }

    pub(super) fn closed(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
    }

    /// This member asks something on a connection.
    pub(super) fn asked(
        &mut self,
        connection: ConnectionId,
        server: ServerId,
        question: &ToCoordinator,
    ) {
        let Some(shown) = self.connections.get_mut(&connection) else {
            return;
        };
        if let ToCoordinator::Certificate {
            server: of,
            expires_s,
        } = question
            && *of == server
        {
            shown.expires_s = *expires_s;
        }
        let shown = *shown;
        if self.servers.len() >= SERVERS_MAX && !self.servers.contains_key(&server) {
            self.servers.clear(); // members ask again
        }
        let newest = self.servers.entry(server).or_insert(shown);
        if newest.number <= shown.number {
            *newest = shown;
        }
    }

    /// Adds the times to the health of the members, and forgets servers that are no members.
    fn add_to(&mut self, health: &mut MembersHealth) {
        for member in &mut health.members {
            let shown = self.servers.get(&member.server);
            member.certificate_expires_s = shown.map(|shown| shown.expires_s);
        }
        let members = &health.members;
        let is_member = |server: &ServerId| members.iter().any(|member| member.server == *server);
        self.servers.retain(|server, _| is_member(server));
    }
}

impl Driver {
    /// The health of the members; `None`: this coordinator does not lead.
    pub(super) fn members_health(&mut self) -> Option<MembersHealth> {
        let leading = self.roles.leading()?;
        let mut health = leading.machine.members_health();
        self.certificates.add_to(&mut health);
        Some(health)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_net::{Event, Hub, Options, Payload};
    use duramen_wire::native::codec::{Envelope, Role, encode_ping};
    use duramen_wire::native::message::MemberHealth;
    use std::time::Duration;

    /// Ids of two connections.
    fn connections() -> [ConnectionId; 2] {
        let hub = |role| Hub::<()>::new(Options::new(role, "x")).expect("sockets");
        let mut listening = hub(Role::Coordinator);
        let address = listening.listen("127.0.0.1:0".parse().expect("an address"));
        let address = address.expect("a free port").to_string();
        let mut peers = [hub(Role::Server), hub(Role::Server)];
        for peer in &mut peers {
            peer.ask(&address, Role::Server, 1, Payload::None, |out| {
                encode_ping(out, &Envelope::default());
            });
        }
        let (mut found, mut events) = (Vec::new(), Vec::new());
        while found.len() < 2 {
            for peer in &mut peers {
                peer.poll(Some(Duration::ZERO), &mut Vec::new());
            }
            listening.poll(Some(Duration::from_millis(1)), &mut events);
            found.extend(events.drain(..).filter_map(|event| match event {
                Event::Accepted { connection, .. } => Some(connection),
                _ => None,
            }));
        }
        [found[0], found[1]]
    }

    #[test]
    fn the_newest_connection_of_a_member_counts() {
        let [first, second] = connections();
        let (one, other) = (ServerId::new(0, 1), ServerId::new(1, 1));
        let mut certificates = Certificates::default();
        let shown = |certificates: &mut Certificates| {
            let members = [one].map(|server| MemberHealth {
                server,
                users_revision: 0,
                users_fault: None,
                certificate_expires_s: None,
            });
            let mut health = MembersHealth {
                users_revision: 0,
                members: members.to_vec(),
            };
            certificates.add_to(&mut health);
            health.members[0].certificate_expires_s
        };
        assert_eq!(shown(&mut certificates), None);
        let question = ToCoordinator::Servers;
        certificates.accepted(first, 100);
        certificates.asked(first, one, &question);
        certificates.asked(first, other, &question);
        assert_eq!(shown(&mut certificates), Some(100));
        assert_eq!(certificates.servers.len(), 1, "the other is no member");
        for number in 0..2 * SERVERS_MAX as u32 {
            certificates.asked(first, ServerId::new(number, 7), &question);
            assert!(certificates.servers.len() <= SERVERS_MAX);
        }
        certificates.asked(first, one, &question);
        certificates.accepted(second, 200);
        assert_eq!(
            shown(&mut certificates),
            Some(100),
            "it has asked nothing there"
        );
        certificates.asked(second, one, &question);
        assert_eq!(shown(&mut certificates), Some(200));
        certificates.asked(first, one, &question);
        assert_eq!(shown(&mut certificates), Some(200), "the older connection");
        // It was renewed, and the connection stayed: an alert was false for ever.
        let renewed = |server| ToCoordinator::Certificate {
            server,
            expires_s: 300,
        };
        certificates.asked(second, one, &renewed(other));
        assert_eq!(shown(&mut certificates), Some(200), "another's");
        certificates.asked(second, one, &renewed(one));
        certificates.asked(second, one, &question);
        assert_eq!(shown(&mut certificates), Some(300));
        certificates.closed(first);
        certificates.closed(second);
        assert_eq!(shown(&mut certificates), Some(300));
    }
}
