//! `duramen fsck --repair`: copies the provable part of a damaged store into a new directory, and
//! lists the rest.

use super::StoreDirectory;
use duramen::internals::{Lost, Salvaged};
use duramen_base::private::make_new_file;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Lost parts that are printed; the rest is counted.
const SHOWN_MAX: usize = 100;

pub(super) fn run(place: &StoreDirectory, out: &Path, json: bool) -> ExitCode {
    let mut list = List::beside(out);
    if list.path.exists() {
        let path = list.path.display();
        return super::cannot_look(&format!(
            "`{path}` exists already: move it away, or choose another NEW"
        ));
    }
    let done =
        duramen::internals::salvage(&place.disk, out, &mut |table, key| list.add(table, key));
    let done = match done {
        Ok(done) => done,
        Err(error) => return super::cannot_look(&error.to_string()),
    };
    if let Err(why) = list.end() {
        return super::cannot_look(&why);
    }
    if json {
        print_json(&done, &list.path);
    } else {
        print_lines(&done, &list.path);
    }
    let is_whole = done.lost.is_empty() && done.unproved == 0;
    let is_whole = is_whole && done.control_damage.is_none() && done.wal_damage.is_none();
    ExitCode::from(u8::from(!is_whole))
}

/// The file of unproved keys; created with the first one.
struct List {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    failed: Option<std::io::Error>,
}

impl List {
    fn beside(out: &Path) -> List {
        // A `/` at the end of the path is dropped: it would put the list inside the directory.
        let mut path = out.components().as_path().as_os_str().to_owned();
        path.push(".unproved");
        List {
            path: path.into(),
            file: None,
            failed: None,
        }
    }

    fn add(&mut self, table: &str, key: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.write(table, key).err();
        }
    }

    fn write(&mut self, table: &str, key: &[u8]) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(BufWriter::new(make_new_file(&self.path)?)),
        };
        writeln!(file, "{table} {}", key.escape_ascii())
    }

    fn end(&mut self) -> Result<(), String> {
        if let (None, Some(file)) = (&self.failed, &mut self.file) {
            self.failed = file.flush().err();
        }
        match &self.failed {
            Some(error) => Err(format!("{}: {error}", self.path.display())),
            None => Ok(()),
        }
    }
}

fn describe(lost: &Lost) -> String {
    let (segment, kind) = (lost.segment, lost.kind.name());
    match &lost.bytes {
        Some(bytes) => format!(
            "segment {segment} ({kind}): bytes {}..{}",
            bytes.start, bytes.end
        ),
        None => format!("segment {segment} ({kind}): the last bytes that were written to it"),
    }
}

/// The flipped bits that were put back.
fn mended(done: &Salvaged) -> impl Iterator<Item = String> {
    let mended = done.mended.iter();
    mended.map(|(segment, bit)| format!("segment {segment}, {bit}"))
}

fn print_json(done: &Salvaged, list: &Path) {
    let lost: Vec<String> = done.lost.iter().map(describe).collect();
    println!(
        "{}",
        json!({
            "keys": done.keys,
            "unproved": done.unproved,
            "unproved_list": (done.unproved > 0).then(|| list.display().to_string()),
            "lost": lost,
            "mended": mended(done).collect::<Vec<_>>(),
            "control_damage": done.control_damage,
            "wal_damage": done.wal_damage,
        })
    );
}

fn print_lines(done: &Salvaged, list: &Path) {
    if let Some(why) = &done.control_damage {
        println!(
            "lost: the end of the list of segments ({why}): what was deleted or replaced may be back"
        );
    }
    if let Some(why) = &done.wal_damage {
        println!("lost: commits of the write-ahead log ({why})");
    }
    for lost in done.lost.iter().take(SHOWN_MAX) {
        println!("lost: {}", describe(lost));
    }
    if done.lost.len() > SHOWN_MAX {
        println!(
            "… and {} more; --json has them all",
            done.lost.len() - SHOWN_MAX
        );
    }
    for bit in mended(done).take(SHOWN_MAX) {
        println!("corrected: {bit}");
    }
    println!("copied: {} keys", done.keys);
    match done.unproved {
        0 => println!("proved: none of them can have had a newer value, or have been deleted"),
        n => println!(
            "not proved: {n} of them may have had a newer value, or have been deleted; they are listed in {}",
            list.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `fsck --repair --out NEW/` wrote its list into the new directory, which then was no valid
    /// store.
    #[test]
    fn the_list_lies_beside_the_new_directory() {
        for (out, list) in [
            ("new", "new.unproved"),
            ("/a/new//", "/a/new.unproved"),
            ("./new/", "./new.unproved"),
            ("/a/new/.", "/a/new.unproved"),
        ] {
            assert_eq!(List::beside(Path::new(out)).path, Path::new(list), "{out}");
        }
    }
}
