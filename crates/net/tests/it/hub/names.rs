//! A peer stays reachable while its name cannot be looked up (net::link::L1).

use super::{answer, ask, hub, impatient, is_told, limits, until};
use duramen_net::{Event, Hub, Options, Payload, Reason};
use duramen_wire::native::codec::Role;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const WORKS: u32 = 0;
const FAILS: u32 = 1;
const HANGS: u32 = 2;
static RESOLVER: AtomicU32 = AtomicU32::new(WORKS);

fn resolve(name: &str) -> std::io::Result<Vec<SocketAddr>> {
    let port = name.split_once(':').expect("a port").1;
    while RESOLVER.load(Ordering::SeqCst) == HANGS {
        std::thread::sleep(Duration::from_millis(10));
    }
    match RESOLVER.load(Ordering::SeqCst) {
        WORKS => Ok(vec![format!("127.0.0.1:{port}").parse().expect("one")]),
        _ => Err(std::io::Error::other("no answer")),
    }
}

/// A member that was called crashed could not come back while the resolver was dead: nobody reached
/// it to believe it.
#[test]
fn a_peer_is_reached_where_it_was_while_its_name_is_unknown() {
    let mut client: Hub<u32> = Hub::new(Options {
        limits: limits(),
        resolve,
        ..Options::new(Role::Server, "here")
    })
    .expect("a hub");
    let mut at: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    for (request, resolver) in [(1, WORKS), (2, FAILS), (3, HANGS)] {
        RESOLVER.store(resolver, Ordering::SeqCst);
        let mut server = hub(Role::Server, "here", limits());
        at = server.listen(at).expect("it listens");
        ask(
            &mut client,
            &format!("peer:{}", at.port()),
            request,
            Payload::None,
        );
        until(&mut [&mut server, &mut client], |n, hub, event| {
            answer(hub, &event);
            assert!(!matches!(event, Event::Unanswered { .. }), "{event:?}");
            n == 1 && matches!(event, Event::Answer { request: r, .. } if r == request)
        });
        drop(server);
        is_told(&mut client, |reason| *reason == Reason::Ended);
    }
    // The name may have another address by now.
    RESOLVER.store(FAILS, Ordering::SeqCst);
    ask(
        &mut client,
        &format!("peer:{}", at.port()),
        4,
        Payload::None,
    );
    is_told(&mut client, |reason| {
        matches!(reason, Reason::Unreachable(_)) && !reason.is_sign_of_death()
    });
    // Nor is a peer reached that never was.
    ask(&mut client, "other:1", 5, Payload::None);
    is_told(&mut client, |reason| {
        matches!(reason, Reason::Unreachable(_))
    });
}

/// Lookups took longer than an attempt waits, and each attempt ended before its own lookup: a peer
/// with a new address was never reached, while its old address was silent.
#[test]
fn a_lookup_that_ends_late_leads_to_the_new_address() {
    static MOVED: AtomicBool = AtomicBool::new(false);
    fn resolve(name: &str) -> std::io::Result<Vec<SocketAddr>> {
        let port = name.split_once(':').expect("a port").1;
        let host = match MOVED.load(Ordering::SeqCst) {
            true => {
                std::thread::sleep(Duration::from_millis(800));
                "127.0.0.2"
            }
            false => "127.0.0.1",
        };
        Ok(vec![format!("{host}:{port}").parse().expect("one")])
    }
    let mut client: Hub<u32> = Hub::new(Options {
        limits: impatient(),
        resolve,
        ..Options::new(Role::Server, "here")
    })
    .expect("a hub");
    let mut old = hub(Role::Server, "here", limits());
    let at = old
        .listen("127.0.0.1:0".parse().expect("one"))
        .expect("it listens");
    let name = format!("peer:{}", at.port());
    ask(&mut client, &name, 1, Payload::None);
    let mut request = 1;
    until(&mut [&mut old, &mut client], |n, hub, event| {
        answer(hub, &event);
        // The machine stood still, and the hello came too late.
        if n == 1 && matches!(event, Event::Unanswered { .. }) {
            request += 1;
            ask(hub, &name, request, Payload::None);
        }
        n == 1 && matches!(event, Event::Answer { .. })
    });
    drop(old);
    is_told(&mut client, |reason| *reason == Reason::Ended);
    MOVED.store(true, Ordering::SeqCst);
    let _silent = std::net::TcpListener::bind(at).expect("it listens");
    let mut new = hub(Role::Server, "here", limits());
    let there = SocketAddr::new("127.0.0.2".parse().expect("one"), at.port());
    new.listen(there).expect("it listens");
    request += 1;
    ask(&mut client, &name, request, Payload::None);
    let most = request + 40;
    until(&mut [&mut new, &mut client], |n, hub, event| {
        answer(hub, &event);
        if n == 1 && matches!(event, Event::Unanswered { .. }) {
            request += 1;
            assert!(request < most, "it is never reached");
            ask(hub, &name, request, Payload::None);
        }
        n == 1 && matches!(event, Event::Answer { .. })
    });
}
