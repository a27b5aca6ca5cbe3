//! The rights of subscribers at sockets.

use crate::reactor::support::{Asking, start};
use duramen_redis::threads::Message;

/// Each wake-up of a thread checked all subscriptions, and found one that its client had from
/// before it logged in. redis-server closes it when the rights change.
#[test]
fn subscriptions_are_judged_when_rights_change() {
    let server = start(|_| {});
    let mut client = Asking::connect(&server);
    let mut admin = Asking::connect(&server);
    let user = [
        &b"ACL"[..],
        b"SETUSER",
        b"u",
        b"on",
        b"nopass",
        b"+@all",
        b"resetchannels",
    ];
    admin.ask(&user);
    client.ask(&[b"HELLO", b"3"]);
    client.ask(&[b"SUBSCRIBE", b"a"]);
    client.ask(&[b"AUTH", b"u", b"x"]);
    for _ in 0..3 {
        server.shared().threads.post_all(&Message::Wake);
        client.raw.ping();
    }
    admin.ask(&[b"ACL", b"SETUSER", b"other"]);
    client.raw.read_to_end();
    server.stop();
    server.wait().expect("stops");
}
