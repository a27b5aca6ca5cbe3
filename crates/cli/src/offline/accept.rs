//! `duramen accept-loss DIR`: names what a damaged store has lost, and lets the next start go on
//! without it.

use super::{StoreDirectory, cannot_look, key::KeyArgs, text_or_base64};
use clap::Args;
use duramen::internals::{Losses, accept, losses};
use duramen_base::ids::TableId;
use duramen_format::loss::Claim;
use duramen_format::mend::key_text;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Keys that are printed for each range; the rest is counted.
const SHOWN_MAX: usize = 100;

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct AcceptArgs {
    /// A data directory that no server uses.
    #[arg(required_unless_present = "server", conflicts_with = "server")]
    pub(crate) dir: Option<PathBuf>,
    /// The server of a cluster whose recovery waits, as in `duramen status`: 2.1
    #[arg(long, value_name = "SERVER")]
    pub(crate) server: Option<String>,
    /// Accept the loss that was printed with this token, and nothing else.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    key: KeyArgs,
}

const HELP: &str = "\
A server does not start if part of its data is damaged and there is no other copy, and a cluster does
not recover such a part: without it, keys could silently have older values, or be back after their
removal. This command says what is lost. With the token that it prints, it lets the next start, or the
recovery, go on without exactly this; any other damage is refused as before.

First try to get the data back: restore a snapshot (`duramen restore`), or start the members of the
cluster that are down. `duramen fsck --repair` copies all that can be read into a new directory, also
what lies behind damage and is not proved.

A lost key is removed, unless a newer version of it is whole. Its name comes from the damaged bytes: if
these were in the name, another key has its older value, or is back after its removal. For a range of
which no key is known, that can be any key. Keep the printed list: it says what to check, or to restore.

EXAMPLES
  duramen accept-loss /var/lib/duramen                    show what is lost
  duramen accept-loss /var/lib/duramen --token 3f9a01c2   then start the server
  duramen accept-loss --server 2.1                        the same for a recovery that waits
  duramen accept-loss --server 2.1 --token 3f9a01c2

Exit codes: 0 nothing is lost, or it was accepted, 1 something is lost, 2 wrong usage, 3 refused,
4 no coordinator answered, 5 cannot be read (no store, in use, no permission), or cannot be accepted.";

pub(crate) fn run(args: &AcceptArgs, dir: &Path, json: bool) -> ExitCode {
    let place = match StoreDirectory::open(dir, &args.key) {
        Ok((place, _)) => place,
        Err(why) => return cannot_look(&why),
    };
    let found = match losses(&place.disk) {
        Ok(found) => found,
        Err(error) => return cannot_look(&error.to_string()),
    };
    let token = found.token();
    let is_accepted = match &args.token {
        None => false,
        Some(given) if found.losses.is_empty() => {
            return cannot_look(&format!(
                "nothing is lost here, so token {given} has no meaning"
            ));
        }
        Some(given) if *given != token => {
            return cannot_look(&format!(
                "token {given} is not of what is lost here: look again, without --token"
            ));
        }
        Some(_) => true,
    };
    if is_accepted && let Err(error) = accept(&*place.disk, &found.losses) {
        return cannot_look(&format!("{}: {error}", dir.display()));
    }
    if json {
        print_json(&found, &token, is_accepted)
    } else {
        print_lines(&found, dir, &token, is_accepted)
    }
    let is_whole = found.losses.is_empty() && found.others.is_empty();
    let is_settled = is_accepted && found.others.is_empty();
    ExitCode::from(u8::from(!is_whole && !is_settled))
}

fn print_json(found: &Losses, token: &str, is_accepted: bool) {
    let losses = found.losses.iter().map(|loss| {
        let claims = loss.claims.iter().map(|claim| {
            let table = TableId(claim.table).whole().0;
            json!({
                "table": table,
                "table_name": found.tables.get(&table),
                "is_part": TableId(claim.table).is_parts(),
                "key": text_or_base64(&claim.key),
                "version": claim.version,
                "kind": format!("{:?}", claim.kind).to_lowercase(),
                "is_whole": claim.is_whole,
            })
        });
        json!({
            "segment": loss.segment.0,
            "ranges": loss.ranges.iter().map(|range| [range.start, range.end]).collect::<Vec<_>>(),
            "claims": claims.collect::<Vec<_>>(),
        })
    });
    println!(
        "{}",
        json!({
            "losses": losses.collect::<Vec<_>>(),
            "others": found.others,
            "token": (!found.losses.is_empty()).then_some(token),
            "accepted": is_accepted,
        })
    );
}

/// Whether a line shows all of the claim's key.
fn is_shown_whole(claim: &Claim) -> bool {
    let text = std::str::from_utf8(&claim.key);
    TableId(claim.table).is_parts() || text.is_ok_and(|text| text == key_text(&claim.key))
}

fn print_lines(found: &Losses, dir: &Path, token: &str, is_accepted: bool) {
    let lines = found.losses.iter().flat_map(|loss| loss.lines(SHOWN_MAX));
    lines.for_each(|line| println!("{line}"));
    let claims = found.losses.iter().flat_map(|loss| &loss.claims);
    let table_of = |claim: &Claim| TableId(claim.table).whole().0;
    let mut tables: Vec<u32> = claims.clone().map(table_of).collect();
    tables.sort_unstable();
    tables.dedup();
    for table in tables {
        match found.tables.get(&table) {
            Some(name) => println!("table {table} is `{name}`"),
            None => println!("table {table} does not exist any more"),
        }
    }
    found
        .others
        .iter()
        .for_each(|other| println!("not acceptable: {other}"));
    if found.losses.is_empty() {
        if found.others.is_empty() {
            println!("nothing is lost");
        }
        return;
    }
    let is_cut =
        claims.clone().count() > SHOWN_MAX || claims.clone().any(|claim| !is_shown_whole(claim));
    let bytes: u64 = found.losses.iter().map(|loss| loss.bytes()).sum();
    let (segments, keys) = (found.losses.len(), claims.count());
    println!("lost: {bytes} bytes of {segments} segments, {keys} known entries");
    if is_cut {
        println!("not every key is shown, or not all of it: --json has them all");
    }
    match is_accepted {
        true if !found.others.is_empty() => println!(
            "accepted, but the next start is refused all the same, for what is not acceptable"
        ),
        true => println!("accepted: the next start goes on without it"),
        false => println!(
            "to start without exactly this: duramen accept-loss {} --token {token}",
            dir.display()
        ),
    }
}
