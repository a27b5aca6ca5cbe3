//! Signals that end a program which runs in a terminal.

/// Signal numbers on Linux, the same on all processors.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// SIGTERM, SIGINT and SIGHUP. Without SIGHUP if it is ignored already: then `nohup` started this
/// process, and it must go on.
pub fn ending() -> Vec<i32> {
    let mut all = vec![SIGTERM, SIGINT];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !is_ignored(SIGHUP, &status) {
        all.push(SIGHUP);
    }
    all
}

/// True if a `/proc/PID/status` has the signal in its mask: bit n - 1 is signal n.
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_mask() {
        let status = "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(SIGHUP, status));
        assert!(!is_ignored(SIGINT, status) && !is_ignored(SIGTERM, status));
        assert!(!is_ignored(SIGHUP, ""));
    }
}
