//! Arguments that commands of several kinds take.

/// A time span in the usual notation, kept in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Duration {
    pub(crate) ms: u64,
}

impl std::str::FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Duration, String> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit_ms = match unit {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => {
                return Err(format!(
                    "`{unit}` is not a unit of time: write ms, s, m, h or d, as in 90s"
                ));
            }
        };
        let number: u64 = number
            .parse()
            .map_err(|_| "write a whole number and a unit, as in 90s".to_owned())?;
        let ms = number
            .checked_mul(unit_ms)
            .filter(|&ms| ms > 0 && ms < 1 << 53);
        Ok(Duration {
            ms: ms.ok_or("is not between 1ms and 100 million days")?,
        })
    }
}

/// Parses the interval of a view that is shown again and again.
pub(crate) fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("is not a number of seconds from 0.1 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::Duration;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("1", 1000),
            ("500ms", 500),
            ("30s", 30_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(text.parse(), Ok(Duration { ms }), "{text}");
        }
        for text in [
            "",
            "s",
            "-1s",
            "1w",
            "1.5s",
            "0",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }
}
