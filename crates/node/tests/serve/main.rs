//! What native clients ask of a master, against a model; and the same with one rule broken, which
//! must be noticed.

mod cold;
mod enumerate;
mod history;
mod once;
#[cfg(feature = "planted")]
mod planted;
mod world;

/// Conditions, versions, expiry, numbers, copies, late copies, and what was replayed.
#[test]
fn histories_are_those_of_the_model() {
    for seed in 0..400 {
        if let Err(why) = history::run(seed, None) {
            panic!("seed {seed}: {why}");
        }
    }
}
