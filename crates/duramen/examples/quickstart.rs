//! Opens a durable store, writes, closes, and finds everything again.
//!
//! ```text
//! cargo run --example quickstart -- DIR
//! ```

use duramen::engine::TableId;
use duramen::{Error, Options, Store};

fn main() -> Result<(), Error> {
    let dir = std::env::args().nth(1).unwrap_or("quickstart-data".into());
    quickstart(&dir)
}

fn quickstart(dir: &str) -> Result<(), Error> {
    let options = Options::new(dir, 64 << 20);
    let store = Store::open(options.clone(), |progress| println!("{progress:?}"))?;
    let mut session = store.session()?;
    // When `set` returns, the value is on the disk.
    session.set(TableId::DEFAULT, b"greeting", b"hello")?;
    let starts = session.increment(TableId::DEFAULT, b"starts", 1)?;
    println!("opened {} times", starts.value);
    drop(session);
    store.close()?;
    drop(store);

    let store = Store::open(options, |_| {})?;
    let mut session = store.session()?;
    let greeting = session.get(TableId::DEFAULT, b"greeting")?;
    assert_eq!(greeting.map(|value| value.bytes), Some(b"hello".to_vec()));
    drop(session);
    store.close()
}

#[test]
fn it_runs_twice() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().to_str().expect("a path in UTF-8");
    quickstart(dir).expect("the first time");
    quickstart(dir).expect("and again");
}
