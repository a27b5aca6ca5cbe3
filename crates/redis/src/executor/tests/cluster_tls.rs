//! Redirections and reports of a member, for clients with TLS and without (routing::R3).

use super::cluster_member::{Member, keys};
use duramen_base::ids::ServerId;
use duramen_format::hash::slot;
use duramen_wire::native::message::Addresses;

pub(super) fn addresses(member: &Member, server: ServerId) -> Addresses {
    let host = match member.has_ipv6 {
        true => format!("[fd00::{}]", server.slot),
        false => format!("10.0.0.{}", server.slot),
    };
    Addresses {
        native: format!("{host}:7379"),
        resp: Some(format!("{host}:{}", member.resp_port)),
        plain: member.plain_port.map(|port| format!("{host}:{port}")),
        admin: None,
    }
}

/// `MOVED` had brackets, unlike Redis's and unlike `CLUSTER SLOTS`: a client that takes the address
/// as it is knew each member twice.
#[test]
fn an_address_of_ipv6_is_told_in_one_form() {
    let mut member = Member::new(1);
    member.has_ipv6 = true;
    member.tell_halves();
    let (_, foreign) = keys();
    let session = &mut member.session;
    let moved = format!("-MOVED {} fd00::1:6379\r\n", slot(foreign.as_bytes()));
    session.expect(&format!("GET {foreign}"), &moved);
    let slots = session.ask("CLUSTER SLOTS");
    assert!(slots.contains("$7\r\nfd00::1\r\n:6379\r\n"), "{slots}");
}

/// A plain client was redirected to the TLS port of the other member.
#[test]
fn a_client_is_told_of_ports_of_its_own_kind() {
    for has_tls in [false, true] {
        let mut member = Member::new(1);
        (member.resp_port, member.plain_port) = (6380, Some(6379));
        member.tell_halves();
        let (port, other) = if has_tls { (6380, 6379) } else { (6379, 6380) };
        let (own, foreign) = keys();
        let session = &mut member.session;
        if has_tls {
            session.client.note_tls();
        }
        let moved = format!("-MOVED {} 10.0.0.1:{port}\r\n", slot(foreign.as_bytes()));
        session.expect(&format!("GET {foreign}"), &moved);
        session.expect(&format!("MGET {{{foreign}}}a {{{foreign}}}b"), &moved);
        session.expect(&format!("EVAL x 1 {foreign}"), &moved);
        session.expect(&format!("SSUBSCRIBE {foreign}"), &moved);
        session.expect(&format!("COPY {{{foreign}}}a {{{foreign}}}b"), &moved);
        session.expect("MULTI", "+OK\r\n");
        session.expect(&format!("SET {foreign} 1"), &moved);
        session.expect_error("EXEC", "EXECABORT");
        for report in ["SLOTS", "SHARDS", "NODES"] {
            let said = session.ask(&format!("CLUSTER {report}"));
            let shows = |port: u16| said.contains(&format!(":{port}"));
            assert!(shows(port) && !shows(other), "{report}: {said}");
        }
        session.expect(&format!("GET {own}"), "$-1\r\n");
    }
}
