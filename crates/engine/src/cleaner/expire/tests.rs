//! Expiry by times that were verified.

use crate::{Options, Store, TableId};
use duramen_base::planted::{Bug, with_bug};

/// sound::V1: a bit of the time of expiry flips, and the object looks expired. It stays. With
/// the planted bug it is gone.
#[test]
fn an_object_expires_by_a_verified_time_only() {
    const T: TableId = TableId::DEFAULT;
    let stays = |bug: Option<Bug>| {
        let store = Store::new(Options {
            cleaners: 0,
            ..Options::new(64 << 20)
        })
        .expect("a store");
        let mut session = store.session().expect("a session");
        let in_a_day = store.core().clock().now_ms() + 86_400_000;
        let mut guard = session.pin();
        let hash = guard.hash(b"key");
        let written = guard.write(T, hash, b"key", b"value", Some(in_a_day));
        written.expect("there is room");
        drop(guard);
        store.heads().close_all();
        let highest = 63 - in_a_day.leading_zeros() as usize;
        assert!(store.flips().entry(T, b"key", &[8 * 16 + highest]));
        let core = store.core();
        let context = core.cleaners.lock(0);
        let expire = || {
            for (window, segment) in core.space.segments.iter().enumerate() {
                if segment.is_in_log() {
                    super::expire(core, window as u32, context.seat);
                }
            }
        };
        match bug {
            Some(bug) => with_bug(bug, expire),
            None => expire(),
        }
        drop(context);
        store.tables().list()[0].objects == 1
    };
    assert!(stays(None));
    assert!(!stays(Some(Bug::ExpiresUnverified)));
}
