//! Opens a durable store, writes, closes, and finds everything again.
//!
//! ```text
//! cargo run --example quickstart -- DIR
//! ```

use duramen::{Condition, Error, Options, Store, Table};
use std::time::Duration;

fn main() -> Result<(), Error> {
    let dir = std::env::args().nth(1).unwrap_or("quickstart-data".into());
    quickstart(&dir)
}

fn quickstart(dir: &str) -> Result<(), Error> {
    let options = Options::new(dir, 64 << 20);
    let store = Store::open(options.clone())?;
    let users = store.table("users")?;
    let mut session = store.session()?;

    // When `set` returns, the value is on the disk.
    session.set(users, "alice", "admin")?;
    session.set_for(users, "token", "secret", Duration::from_secs(60))?;
    let starts = session.increment(Table::DEFAULT, "starts", 1)?;
    println!("opened {} times", starts.value);

    // Written only if it was not changed since it was read.
    let alice = session.get(users, "alice")?.expect("just written");
    session.set_if(users, "alice", "guest", Condition::Version(alice.version))?;

    // Two keys in one step: all of it or nothing.
    session.transaction(&[(users, "alice"), (users, "bob")], |tx| {
        let role = tx.get(users, "alice")?.unwrap_or_default();
        tx.remove(users, "alice")?;
        tx.set(users, "bob", role)
    })?;
    store.close()?;

    let store = Store::open(options)?;
    let users = store.table("users")?;
    let mut session = store.session()?;
    for object in session.scan(users) {
        let (key, value) = object?;
        let (key, text) = (
            String::from_utf8_lossy(&key),
            String::from_utf8_lossy(&value),
        );
        println!("{key} = {text}");
    }
    let bob = session.get(users, "bob")?;
    assert_eq!(bob.map(|value| value.bytes), Some(b"guest".to_vec()));
    store.close()
}

#[test]
fn it_runs_twice() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().to_str().expect("a path in UTF-8");
    quickstart(dir).expect("the first time");
    quickstart(dir).expect("and again");
}
