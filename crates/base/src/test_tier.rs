//! How much the randomised tests do. The quick tier guards each change; the full tier has the
//! numbers of runs at which a test proves what it promises.

/// The variable that names the tier. `quick` if it is missing.
const VARIABLE: &str = "DURAMEN_TEST_TIER";

/// True in a run of the full tier.
///
/// # Panics
/// If the variable has another value than `quick` or `full`.
pub fn is_full() -> bool {
    match std::env::var(VARIABLE).as_deref() {
        Ok("full") => true,
        Ok("quick") | Err(_) => false,
        Ok(other) => panic!("{VARIABLE} is `{other}`, but must be `quick` or `full`"),
    }
}

/// The number of runs of a test: `quick`, or `full` in the full tier.
pub fn runs(quick: u64, full: u64) -> u64 {
    if is_full() { full } else { quick }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tier_has_its_number() {
        let expected = if is_full() { 9 } else { 2 };
        assert_eq!(runs(2, 9), expected);
    }
}
