//! docs/commands.md is what the rows of the command table tell. `DURAMEN_WRITE_PAGES=1` writes it.

use crate::command::doc::Topic;
use crate::command::flag;
use crate::command::spec::Spec;
use crate::table::COMMANDS;
use std::fmt::Write;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");

const HEAD: &str = "# Commands

All commands of a server, by group, as `COMMAND DOCS` and `COMMAND INFO` tell them. A test writes
this page from the command table (`crates/redis/src/executor/tests/page.rs`). *Arguments* counts the
name too, and the words of a subcommand; `-2` stands for two or more. *Since* is the version of
Redis that had the command first; of Duramen, for its own commands. *Differences* are those from
Redis; [compatibility with Redis](compatibility.md) has their reasons, and what differs in general.
";

/// The page.
fn page() -> String {
    let mut page = HEAD.to_owned();
    let offered = || COMMANDS.rows().iter().filter(|spec| !spec.is_refused());
    let mut topics: Vec<Topic> = Vec::new();
    for spec in offered() {
        if !topics.contains(&spec.doc.topic) {
            topics.push(spec.doc.topic);
        }
    }
    for topic in topics {
        let _ = write!(page, "\n## {}\n\n", heading(topic));
        page += "| command | arguments | summary | complexity | flags | since | differences |\n";
        page += "|---|---|---|---|---|---|---|\n";
        let runs = |spec: &&Spec| !spec.has(flag::CONTAINER) || spec.arity == -1;
        let of_topic = offered().filter(|spec| spec.doc.topic == topic);
        for spec in of_topic.filter(runs) {
            page += &line(spec);
        }
    }
    page
}

/// The name of a group, as a heading.
fn heading(topic: Topic) -> String {
    let name = topic.name().replace('-', " ");
    let (first, rest) = name.split_at(1);
    first.to_ascii_uppercase() + rest
}

fn line(spec: &Spec) -> String {
    let name = spec.name.replace('|', " ").to_ascii_uppercase();
    let flags = flag::NAMES.iter().filter(|(bit, _)| spec.has(*bit));
    let flags: Vec<&str> = flags.map(|(_, name)| *name).collect();
    format!(
        "| `{name}` | {} | {} | {} | {} | {} | {} |\n",
        spec.arity,
        spec.doc.summary,
        spec.doc.complexity,
        flags.join(" "),
        spec.doc.since,
        spec.doc.differs
    )
}

#[test]
fn the_page_of_commands_is_what_the_rows_tell() {
    let page = page();
    if std::env::var_os("DURAMEN_WRITE_PAGES").is_some() {
        std::fs::write(PAGE, &page).expect("the page is written");
    }
    let written = std::fs::read_to_string(PAGE).expect("the page");
    let other = written
        .lines()
        .zip(page.lines())
        .find(|(old, new)| old != new);
    assert!(
        written == page,
        "{other:?}: run this test with DURAMEN_WRITE_PAGES=1"
    );
}
