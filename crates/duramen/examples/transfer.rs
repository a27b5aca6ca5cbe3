//! Several threads move money between accounts; each transfer is one atomic, durable step over two keys.
//!
//! ```text
//! cargo run --example transfer -- DIR
//! ```

use duramen::engine::{Guard, TableId};
use duramen::{Error, Level, Options, Store};
use std::sync::Arc;

const ACCOUNTS: u64 = 10;
const START: i64 = 1000;

fn main() -> Result<(), Error> {
    let dir = std::env::args().nth(1).unwrap_or("transfer-data".into());
    let store = Store::open(Options::new(dir, 64 << 20), |_| {})?;
    println!("{} in all accounts", run(&store, 4, 500)?);
    store.close()
}

/// Makes transfers on some threads; returns what all accounts have together.
fn run(store: &Arc<Store>, threads: u64, transfers: u64) -> Result<i64, Error> {
    // Every write to this table is on the disk before its call returns, whatever the store's default.
    let table = match store.engine().table_id("accounts") {
        Some(table) => table,
        None => store.create_table("accounts", Some(Level::Synced))?,
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(store, table, thread, transfers)))
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker"))
    })?;
    let mut session = store.session()?;
    session.batch(|guard| {
        let mut sum = 0;
        for account in 0..ACCOUNTS {
            sum += START + balance(guard, table, account)?;
        }
        Ok(sum)
    })
}

fn work(store: &Arc<Store>, table: TableId, thread: u64, transfers: u64) -> Result<(), Error> {
    let mut session = store.session()?;
    for n in 0..transfers {
        let (from, to) = ((n * 7 + thread) % ACCOUNTS, (n * 3 + 1) % ACCOUNTS);
        session.batch(|guard| {
            let keys = [from, to].map(|account| (table, guard.hash(&account.to_le_bytes())));
            guard.lock_keys(&keys)?;
            add(guard, table, from, -1)?;
            add(guard, table, to, 1)
        })?;
    }
    Ok(())
}

fn add(
    guard: &mut Guard<'_>,
    table: TableId,
    account: u64,
    by: i64,
) -> Result<(), duramen::engine::Error> {
    let key = account.to_le_bytes();
    let hash = guard.hash(&key);
    guard.increment(table, hash, &key, by).map(drop)
}

/// What an account has gained or lost since the start.
fn balance(guard: &Guard<'_>, table: TableId, account: u64) -> Result<i64, duramen::engine::Error> {
    let key = account.to_le_bytes();
    let object = guard.read(table, guard.hash(&key), &key)?;
    let text = object.map(|object| String::from_utf8_lossy(object.value).into_owned());
    Ok(text.map_or(0, |text| text.parse().expect("a number")))
}

#[test]
fn money_is_neither_made_nor_lost() {
    let dir = tempfile::tempdir().expect("a folder");
    for _ in 0..2 {
        let store = Store::open(Options::new(dir.path(), 64 << 20), |_| {}).expect("opened");
        let sum = run(&store, 4, 100).expect("transfers");
        assert_eq!(sum, START * ACCOUNTS as i64);
    }
}
