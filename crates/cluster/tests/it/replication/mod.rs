//! The rules of replication against simulated backups, under random schedules, losses and crashes.
//! `DURAMEN_SEEDS=first..last` runs other seeds.

mod disk;
mod losses;
mod passes;
mod schedules;
mod writer;

fn seeds(count: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("DURAMEN_SEEDS").ok().and_then(|text| {
        let (first, last) = text.split_once("..")?;
        Some(first.parse().ok()?..last.parse().ok()?)
    });
    asked.unwrap_or(0..count)
}
