//! Several threads move money between accounts; each transfer is one atomic, durable step over two
//! keys.
//!
//! ```text
//! cargo run --example transfer -- DIR
//! ```

use duramen::{Error, Options, Store, Table};
use std::sync::Arc;

const ACCOUNTS: u64 = 10;
const START: i64 = 1000;

fn main() -> Result<(), Error> {
    let dir = std::env::args().nth(1).unwrap_or("transfer-data".into());
    let store = Store::open(Options::new(dir, 64 << 20))?;
    println!("{} in all accounts", run(&store, 4, 500)?);
    store.close()
}

/// Makes transfers on some threads; returns the sum of all accounts.
fn run(store: &Arc<Store>, threads: u64, transfers: u64) -> Result<i64, Error> {
    let table = store.table("accounts")?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(store, table, thread, transfers)))
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker"))
    })?;
    // All accounts at one moment.
    let accounts: Vec<_> = (0..ACCOUNTS).map(|n| (table, account(n))).collect();
    store.session()?.transaction(&accounts, |tx| {
        let mut sum = 0;
        for (table, account) in &accounts {
            sum += START + tx.increment(*table, account, 0)?;
        }
        Ok(sum)
    })
}

fn work(store: &Arc<Store>, table: Table, thread: u64, transfers: u64) -> Result<(), Error> {
    let mut session = store.session()?;
    for n in 0..transfers {
        let from = account((n * 7 + thread) % ACCOUNTS);
        let to = account((n * 3 + 1) % ACCOUNTS);
        let moved = session.transaction(&[(table, from), (table, to)], |tx| {
            if tx.increment(table, from, -1)? < -START {
                return Err(Error::Aborted); // there is nothing left
            }
            tx.increment(table, to, 1)
        });
        match moved {
            Ok(_) | Err(Error::Aborted) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// The key of an account. Its value is its gain or loss since the start.
fn account(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

#[test]
fn money_is_neither_made_nor_lost() {
    let dir = tempfile::tempdir().expect("a folder");
    for _ in 0..2 {
        let store = Store::open(Options::new(dir.path(), 64 << 20)).expect("opened");
        let sum = run(&store, 4, 100).expect("transfers");
        assert_eq!(sum, START * ACCOUNTS as i64);
    }
}
