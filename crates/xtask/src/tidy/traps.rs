//! Rule: the reasons that comments and pages cite are in this repository.
//!
//! A citation of a design note elsewhere (two digits, a name, `.md`) is a complaint. A citation of
//! the page of traps names a heading of it in quotation marks, a trap or a scenario. Each trap and
//! each scenario that is cited by a number is on that page, once.

use std::collections::BTreeSet;
use std::fmt;

use super::{House, read};

const PAGE: &str = "docs/traps.md";
/// The folder of the notes from which the page was made.
const NOTES: &str = concat!("shared", "/design");
/// Words between two numbers.
const JOINTS: [&str; 3] = ["and", "or", "to"];
/// Files with comments, or with nothing else.
const EXTENSIONS: [&str; 9] = ["rs", "md", "py", "toml", "sh", "yml", "c", "h", "go"];

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    let page = Page::new(&read(&house.root.join(PAGE))?, complaints);
    for extension in EXTENSIONS {
        for file in house.with_extension(extension) {
            let text = read(&house.root.join(file))?;
            for (number, paragraph) in paragraphs(&text, extension == "rs") {
                let found = page.problems(&paragraph);
                let place = format!("{}:{number}", file.display());
                complaints.extend(found.iter().map(|problem| format!("{place}: {problem}")));
            }
        }
    }
    Ok(())
}

/// A numbered item of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Trap(u32),
    Scenario(u32),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Trap(number) => write!(f, "trap {number}"),
            Item::Scenario(number) => write!(f, "scenario {number}"),
        }
    }
}

/// Everything that can be cited.
struct Page {
    headings: BTreeSet<String>,
    items: BTreeSet<Item>,
}

impl Page {
    /// A trap opens its paragraph with `**Trap 3. `; a scenario is a row with its number in front.
    fn new(text: &str, complaints: &mut Vec<String>) -> Page {
        let mut page = Page {
            headings: BTreeSet::new(),
            items: BTreeSet::new(),
        };
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                page.headings.insert(heading.to_owned());
            }
            let Some(item) = defined(line) else { continue };
            if !page.items.insert(item) {
                complaints.push(format!("{PAGE}: {item} is there twice"));
            }
        }
        page
    }

    fn problems(&self, paragraph: &str) -> Vec<String> {
        let mut problems = Vec::new();
        for note in notes(paragraph) {
            problems.push(format!("`{note}` is not in the repository: cite {PAGE}"));
        }
        let (items, bare) = cited(paragraph);
        for item in items.iter().filter(|item| !self.items.contains(item)) {
            problems.push(format!("{PAGE} has no {item}"));
        }
        for after in bare {
            let heading = after
                .strip_prefix(", \"")
                .and_then(|rest| rest.split_once('"'));
            match heading {
                Some((heading, _)) if self.headings.contains(heading) => {}
                Some((heading, _)) => problems.push(format!("{PAGE} has no heading {heading:?}")),
                None => problems.push(format!(
                    "name the trap, scenario or heading: `{PAGE}, trap 3`"
                )),
            }
        }
        problems
    }
}

fn defined(line: &str) -> Option<Item> {
    if let Some(rest) = line.strip_prefix("**Trap ") {
        return Some(Item::Trap(rest.split_once('.')?.0.parse().ok()?));
    }
    let (number, _) = line.strip_prefix("| ")?.split_once(" |")?;
    Some(Item::Scenario(number.parse().ok()?))
}

/// Names of design notes in a text.
fn notes(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || "-._/".contains(c);
    text.split(move |c| !is_part(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|path| {
            let name = path.rsplit('/').next().unwrap_or_default();
            let is_note = name.strip_suffix(".md").is_some_and(|stem| {
                let (number, rest) = stem.split_once('-').unwrap_or_default();
                number.len() == 2
                    && number.chars().all(|c| c.is_ascii_digit())
                    && rest.starts_with(|c: char| c.is_ascii_lowercase())
            });
            is_note || path.contains(NOTES)
        })
}

/// The items that a paragraph cites, and the text behind each mention of the page that is followed
/// by no item. Links are left out: another rule checks them.
fn cited(paragraph: &str) -> (Vec<Item>, Vec<&str>) {
    let mut items = Vec::new();
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    for at in 0..words.len() {
        items.extend(numbered(&words[at..]));
    }
    let mut bare = Vec::new();
    for (at, _) in paragraph.match_indices(PAGE) {
        let after = paragraph[at + PAGE.len()..].trim_start_matches('`');
        let next = after.strip_prefix(", ").unwrap_or_default();
        let next: Vec<&str> = next.split_whitespace().take(2).collect();
        if !paragraph[..at].ends_with("](") && numbered(&next).is_empty() {
            bare.push(after);
        }
    }
    (items, bare)
}

/// The items that a text names in its first words: `trap 3`, `Scenarios 29 to 31`.
fn numbered(words: &[&str]) -> Vec<Item> {
    let bare = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned();
    let Some((first, rest)) = words.split_first() else {
        return Vec::new();
    };
    let item = match bare(first).to_ascii_lowercase().as_str() {
        "trap" | "traps" => Item::Trap,
        "scenario" | "scenarios" => Item::Scenario,
        _ => return Vec::new(),
    };
    let mut items = Vec::new();
    let mut words = rest.iter().copied().peekable();
    while let Some(word) = words.next() {
        let Ok(number) = bare(word).parse() else {
            break;
        };
        items.push(item(number));
        let is_joined = words.next_if(|word| JOINTS.contains(word)).is_some();
        if !is_joined && !word.ends_with(',') {
            break;
        }
    }
    items
}

/// Paragraphs, each on one line, with the numbers of their first lines. Of Rust its comments alone.
fn paragraphs(text: &str, comments_only: bool) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let comment = line.strip_prefix("//");
        let (text, is_whole) = match comment {
            _ if !comments_only => (line, !line.starts_with('|')),
            Some(text) => (text, true),
            None => (line.split_once(" // ").map_or("", |(_, text)| text), false),
        };
        let text = text
            .trim_start_matches(['/', '!', '#', '*', ' '])
            .trim_end();
        match found.last_mut() {
            Some((_, paragraph)) if goes_on && is_whole && !text.is_empty() => {
                paragraph.push(' ');
                paragraph.push_str(text);
            }
            _ if !text.is_empty() => found.push((index + 1, text.to_owned())),
            _ => {}
        }
        goes_on = is_whole && !text.is_empty();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAPS: &str = "## Logs and disks\n\n**Trap 3. Dead.** Why.\n\n## Scenarios\n\n\
                         | scenario | must hold |\n|---|---|\n| 34 | one owner |\n| 35 | none |\n";

    fn complaints(source: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        let page = Page::new(TRAPS, &mut complaints);
        for (_, paragraph) in paragraphs(source, true) {
            complaints.extend(page.problems(&paragraph));
        }
        complaints
    }

    #[test]
    fn citations_that_resolve_are_no_complaint() {
        let good = [
            "//! R1: why (docs/traps.md, trap 3).",
            "//! R1: why (docs/traps.md,\n//!   trap 3).",
            "call(); // docs/traps.md, scenario 34",
            "/// docs/traps.md, scenarios 34 and 35: none.",
            "/// Scenarios 34 to 35, by docs/traps.md, \"Logs and\n/// disks\".",
            "/// [Traps](docs/traps.md), trap 3; a trap door, 3 of them.",
            "let trap = \"trap 4\";",
        ];
        for source in good {
            assert_eq!(complaints(source), [""; 0], "{source}");
        }
    }

    #[test]
    fn a_note_that_is_not_in_the_repository_is_found() {
        let name = ["90", "traps.md"].join("-");
        for text in [
            format!("//! Why: {name} §B."),
            format!("f(); // ({NOTES}/{name})"),
        ] {
            let found = complaints(&text);
            assert!(found.len() == 1 && found[0].contains(&name), "{found:?}");
        }
        assert_eq!(complaints(&format!("// see {NOTES}")).len(), 1);
    }

    #[test]
    fn a_citation_of_nothing_is_found() {
        let bad = [
            "//! R1: why (docs/traps.md, trap\n//! 4).",
            "/// Trap 4: why.",
            "/// docs/traps.md, scenarios 34 to 36.",
            "/// docs/traps.md, \"Flash\".",
            "/// See docs/traps.md.",
            "call();\n// see `docs/traps.md`, too",
            "/// Scenario 3.",
        ];
        for source in bad {
            let found = complaints(source);
            assert_eq!(found.len(), 1, "{source}: {found:?}");
        }
    }

    #[test]
    fn a_number_that_is_given_twice_is_found() {
        let mut complaints = Vec::new();
        Page::new(
            &format!("{TRAPS}\n**Trap 3. Again.** Why.\n"),
            &mut complaints,
        );
        assert_eq!(complaints, [format!("{PAGE}: trap 3 is there twice")]);
    }
}
