//! The Unix socket for clients on the same machine.

use super::{PATIENCE, STEP, TestHub, limits};
use duramen_base::ids::ClusterId;
use duramen_net::{Event, Hub, Options};
use duramen_wire::native::codec::{Credentials, Handshake, Role, fresh_nonce};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

fn hub(path: &Path) -> std::io::Result<TestHub> {
    let options = Options {
        limits: limits(),
        hands_over: |role| matches!(role, Role::Client | Role::Replica),
        ..Options::new(Role::Server, "here")
    };
    let mut hub = Hub::new(options).expect("a hub");
    hub.listen_locally(path)?;
    Ok(hub)
}

/// Connects in this role; true: the connection is open after the handshake.
fn connect(path: &Path, role: Role) -> bool {
    let mut socket = UnixStream::connect(path).expect("connects");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut opening = Vec::new();
    let handshake = Handshake::dial(role, fresh_nonce().expect("a nonce"), &mut opening);
    let ours = Credentials {
        cluster: "here",
        token: b"",
        id: ClusterId::NONE,
    };
    let shaken = handshake.run(ours, opening, &mut socket);
    // A refusal is a frame, or the end. A client hears nothing: the test drops what was handed.
    shaken.is_ok() && matches!(socket.read(&mut [0; 1]), Ok(0))
}

#[test]
fn clients_are_handed_over_and_no_other_role_is() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("127.0.0.1:7379");
    let mut hub = hub(&path).expect("it listens");
    let mode = std::fs::metadata(&path).expect("a socket").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    for role in [Role::Client, Role::Server, Role::Replica] {
        let there = path.clone();
        let peer = std::thread::spawn(move || connect(&there, role));
        let (mut events, mut handed, since) = (Vec::new(), false, Instant::now());
        while !peer.is_finished() {
            assert!(since.elapsed() < PATIENCE, "{role:?}");
            hub.poll(STEP, &mut events);
            for event in events.drain(..) {
                if let Event::Handed(incoming) = event {
                    assert!(incoming.is_local && incoming.peer.ip().is_loopback());
                    handed = true;
                }
            }
        }
        let is_client = role == Role::Client;
        assert_eq!(handed, is_client, "{role:?}");
        assert_eq!(peer.join().expect("no panic"), is_client, "{role:?}");
    }
    drop(hub);
    assert!(!path.exists(), "the socket's file is removed");
}

#[test]
fn only_the_socket_of_an_ended_process_is_replaced() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("socket");
    drop(UnixListener::bind(&path).expect("binds")); // its file stays, as after SIGKILL
    let first = hub(&path).expect("it replaces the socket");
    assert!(hub(&path).is_err(), "another process listens there");
    assert!(path.exists());
    drop(first);
    std::fs::write(&path, b"a file").expect("written");
    assert!(hub(&path).is_err());
    assert_eq!(std::fs::read(&path).expect("it is there"), b"a file");
    let long = folder.path().join("x".repeat(120));
    assert!(hub(&long).is_err(), "longer than a socket's path may be");
}
