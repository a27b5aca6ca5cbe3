//! The drawing of LATENCY GRAPH: one column for each sample, and its age below, as in Redis.

use crate::figures::latency::Series;

/// Columns of a line; further samples follow below.
const COLUMNS: usize = 80;
const ROWS: usize = 4;
/// Characters for a part of a line's height, lowest first. A column that is higher continues above.
const FILLINGS: [u8; 3] = *b"_o#";
const FULL: u8 = b'|';
const STEPS: u64 = (ROWS * FILLINGS.len()) as u64;

/// One column.
struct Column {
    /// The height in steps: 0 to [`STEPS`] - 1.
    step: usize,
    age: String,
}

/// The samples of an event that has some, at this time.
pub(crate) fn draw(name: &str, series: &Series, now_s: u64) -> String {
    let all = series.samples().iter().map(|sample| sample.ms);
    let (low, high) = all.fold((u64::MAX, 0), |(low, high), ms| (low.min(ms), high.max(ms)));
    let longest = series.longest_ms();
    let mut text = format!(
        "{name} - high {high} ms, low {low} ms (all time high {longest} ms)\n{}\n",
        "-".repeat(COLUMNS)
    );
    let column = |(unix_s, ms): (u64, u64)| Column {
        step: ((ms - low) * STEPS / (high - low).max(1)).min(STEPS - 1) as usize,
        age: age(now_s.saturating_sub(unix_s)),
    };
    let samples = series.samples().iter();
    let samples = samples.map(|sample| (sample.unix_s, sample.ms));
    let columns: Vec<Column> = samples.map(column).collect();
    for (n, part) in columns.chunks(COLUMNS).enumerate() {
        if n > 0 {
            text.push('\n');
        }
        draw_part(&mut text, part);
    }
    text
}

fn draw_part(text: &mut String, columns: &[Column]) {
    let mut line = |character: &dyn Fn(&Column) -> u8| {
        text.extend(columns.iter().map(|column| char::from(character(column))));
        text.push('\n');
    };
    for row in 0..ROWS {
        let below = (ROWS - row - 1) * FILLINGS.len();
        line(&|column| match column.step.checked_sub(below) {
            None => b' ',
            Some(filling) => FILLINGS.get(filling).copied().unwrap_or(FULL),
        });
    }
    line(&|_| b' ');
    let longest = columns.iter().map(|column| column.age.len()).max();
    for n in 0..longest.unwrap_or(0) {
        line(&|column| column.age.as_bytes().get(n).copied().unwrap_or(b' '));
    }
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::latency::Sample;

    #[test]
    fn columns_grow_with_the_time_and_tell_their_age() {
        let mut series = Series::default();
        for (unix_s, ms) in [(100, 10), (9_000, 34), (9_990, 16), (9_999, 28)] {
            series.add(Sample { unix_s, ms });
        }
        let drawn = draw("command", &series, 10_000);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(
            lines[0],
            "command - high 34 ms, low 10 ms (all time high 34 ms)"
        );
        assert_eq!(lines[1].len(), COLUMNS);
        assert_eq!(
            lines[2..],
            [
                " # _", " | |", " |_|", "_|||", "    ", "2111", "h60s", " ms "
            ]
        );
    }
}
