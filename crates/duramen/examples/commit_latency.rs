//! Measures a synced write, for 1, 4 and 16 writers, beside the disk's own overwrite and sync of 4
//! KiB.
//!
//! ```text
//! cargo run --release --example commit_latency -- DIR [WRITES]
//! ```

use duramen::{Options, Store, Table};
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("name a directory")?;
    let writes: usize = arguments.next().map_or(Ok(2000), |text| text.parse())?;
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir)?;
    show("the disk alone", disk_alone(&dir.join("raw"), writes)?);
    let store = Store::open(Options::new(dir.join("store"), 64 << 20))?;
    for writers in [1, 4, 16] {
        let started = Instant::now();
        let mut times = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..writers)
                .map(|writer| {
                    let store = &store;
                    scope.spawn(move || write(store, writer, writes / writers))
                })
                .collect();
            for thread in threads {
                times.extend(thread.join().expect("a writer").expect("a write"));
            }
        });
        let per_second = times.len() as f64 / started.elapsed().as_secs_f64();
        show(&format!("{writers} writers, {per_second:.0}/s"), times);
    }
    let stats = store.stats().ok_or("no directory")?;
    println!(
        "{} syncs, p50 {:?}; write amplification {:.1}",
        stats.syncs,
        stats.sync.p50,
        stats.write_amplification()
    );
    store.close()?;
    Ok(())
}

fn write(store: &Arc<Store>, writer: usize, count: usize) -> Result<Vec<Duration>, duramen::Error> {
    let mut session = store.session()?;
    let mut times = Vec::with_capacity(count);
    for n in 0..count {
        let key = format!("{writer}/{}", n % 1000);
        let started = Instant::now();
        session.set(Table::DEFAULT, key.as_bytes(), [b'x'; 100])?;
        times.push(started.elapsed());
    }
    Ok(times)
}

/// Overwrites blocks of a file that was written before.
fn disk_alone(path: &Path, writes: usize) -> std::io::Result<Vec<Duration>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    let blocks = 1024;
    for block in 0..blocks {
        file.write_all_at(&[0; 4096], block * 4096)?;
    }
    file.sync_all()?;
    let mut times = Vec::with_capacity(writes);
    for n in 0..writes as u64 {
        let started = Instant::now();
        file.write_all_at(&[n as u8; 4096], n % blocks * 4096)?;
        file.sync_data()?;
        times.push(started.elapsed());
    }
    Ok(times)
}

fn show(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    println!("{name}: p50 {:?}, p99 {:?}", at(50), at(99));
}
