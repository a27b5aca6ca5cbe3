//! Objects that are written once and must stay unchanged: they give recoveries work.

use duramen_client::{Table, Write};
use std::ops::Range;

/// Objects per request.
const BATCH: u64 = 100;

fn key(number: u64) -> Vec<u8> {
    format!("fill:{number}").into_bytes()
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    let text = format!("<{number} of {bytes}>");
    text.bytes().cycle().take(bytes).collect()
}

fn batches(numbers: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = numbers.end;
    numbers
        .step_by(BATCH as usize)
        .map(move |first| first..(first + BATCH).min(end))
}

/// Writes the objects of these numbers; returns the first error.
pub(crate) fn write(table: &Table, numbers: Range<u64>, bytes: usize) -> Result<(), String> {
    for batch in batches(numbers) {
        let objects: Vec<_> = batch
            .map(|number| (key(number), value(number, bytes)))
            .collect();
        for result in table.set_many(&objects, Write::default()) {
            result.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Reads them again; returns the number of wrong objects, and some of them in words.
pub(crate) fn check(table: &Table, numbers: Range<u64>, bytes: usize) -> (u64, Vec<String>) {
    let mut wrong = 0;
    let mut examples = Vec::new();
    for batch in batches(numbers) {
        let keys: Vec<_> = batch.clone().map(key).collect();
        for (number, result) in batch.zip(table.get_many(&keys)) {
            let problem = match result {
                Ok(Some(object)) if object.value == value(number, bytes) => continue,
                Ok(Some(object)) => format!("fill:{number} has {} other bytes", object.value.len()),
                Ok(None) => format!("fill:{number} is gone"),
                Err(error) => format!("fill:{number}: {error}"),
            };
            wrong += 1;
            if examples.len() < 5 {
                examples.push(problem);
            }
        }
    }
    (wrong, examples)
}
