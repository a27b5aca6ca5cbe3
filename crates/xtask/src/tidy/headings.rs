//! Rule: a comment that cites a rule of docs/protocols.md names a heading that the page has, and a
//! number that stands below it.
//!
//! Comments cite as `docs/protocols.md, "Swapping" 3` or without the quotes, the page itself as
//! `("Swapping", 3)` or `*Swapping*, 3`.

use std::collections::BTreeMap;

use super::labels::{Text, texts};
use super::{House, read};

const PAGE: &str = "docs/protocols.md";

/// For each heading, the numbers of its rules.
type Headings<'a> = BTreeMap<&'a str, Vec<&'a str>>;

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    let page = read(&house.root.join(PAGE))?;
    let headings = headings(&page);
    for text in texts(house)? {
        check_text(&text, &headings, complaints);
    }
    Ok(())
}

fn headings(page: &str) -> Headings<'_> {
    let mut headings = Headings::new();
    let mut heading = "";
    for line in page.lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim();
            headings.entry(heading).or_default();
        } else if let Some((number, _)) = line.split_once(". ")
            && number.parse::<u32>().is_ok()
        {
            headings.entry(heading).or_default().push(number);
        }
    }
    headings
}

fn check_text(text: &Text, headings: &Headings<'_>, complaints: &mut Vec<String>) {
    let starts: &[&str] = if text.file == PAGE {
        &["(\"", "*"]
    } else {
        &["docs/protocols.md, "]
    };
    for paragraph in text.lines.split(|(_, line)| line.is_empty()) {
        for (index, (number, line)) in paragraph.iter().enumerate() {
            let rest = paragraph[index..].iter().map(|(_, line)| line.as_str());
            let rest = rest.collect::<Vec<_>>().join(" ");
            let found = starts.iter().flat_map(|start| rest.match_indices(start));
            for (at, start) in found.filter(|(at, _)| *at < line.len()) {
                let cited = rest[at + start.len()..].trim_start_matches('"');
                // Else the sentence goes on after the page's name.
                let is_citation = cited.starts_with(|c: char| c.is_ascii_uppercase())
                    && (start != "*" || is_numbered(cited));
                let problem = is_citation.then(|| problem(cited, headings)).flatten();
                complaints
                    .extend(problem.map(|problem| format!("{}:{number}: {problem}", text.file)));
            }
        }
    }
}

/// Whether emphasised text has a number behind it: `Swapping*, 3`.
fn is_numbered(cited: &str) -> bool {
    let rest = cited
        .split_once('*')
        .and_then(|(_, rest)| rest.strip_prefix(", "));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The fault of a citation that begins with a heading.
fn problem(cited: &str, headings: &Headings<'_>) -> Option<String> {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
    let heading = headings
        .keys()
        .filter(|heading| cited.strip_prefix(**heading).is_some_and(ends))
        .max_by_key(|heading| heading.len());
    let Some(heading) = heading else {
        let shown: String = cited.chars().take(30).collect();
        return Some(format!("{PAGE} has no heading `{shown}…`"));
    };
    let rest = cited[heading.len()..].trim_start_matches(['"', '*', ',']);
    let number = rest.strip_prefix(' ')?;
    let end = number.find(|c: char| !c.is_ascii_digit());
    let number = &number[..end.unwrap_or(number.len())];
    let is_there = number.is_empty() || headings[heading].contains(&number);
    (!is_there).then(|| format!("{PAGE}, {heading}: there is no rule {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const RULES: &str = "# Protocols\n\n## A member\n\n1. One.\n2. Two.\n## Leases\n1. One.\n";

    fn complaints(source: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        let text = Text::of_source(Path::new("a.rs"), source);
        check_text(&text, &headings(RULES), &mut complaints);
        complaints
    }

    #[test]
    fn headings_and_numbers_exist() {
        for cited in [
            "docs/protocols.md, A member",
            "docs/protocols.md, A member, 2",
            "docs/protocols.md,\n// \"A member\" 2",
            "docs/protocols.md, Leases of a member",
            "docs/protocols.md, which says",
            "docs/protocols.md",
        ] {
            assert_eq!(complaints(&format!("// ({cited}).")), [""; 0], "{cited}");
        }
        for (cited, problem) in [
            (
                "docs/protocols.md, A member, 3",
                "A member: there is no rule 3",
            ),
            (
                "docs/protocols.md, \"Leases\" 2",
                "Leases: there is no rule 2",
            ),
            ("docs/protocols.md,\n// Members", "no heading `Members)"),
            ("docs/protocols.md, Leasess", "no heading `Leasess"),
        ] {
            let found = complaints(&format!("// A\n// ({cited})."));
            assert!(found.len() == 1 && found[0].contains(problem), "{found:?}");
            assert!(found[0].starts_with("a.rs:2: "), "{found:?}");
        }
    }

    #[test]
    fn the_page_cites_itself() {
        let mut found = Vec::new();
        let page = Text::of_page(
            Path::new(PAGE),
            "1. As (\"Leases\", 1), *Leases*, 1, *No*, *A* b.\n2. (\"Loans\").\n*Leases*, 2",
        );
        check_text(&page, &headings(RULES), &mut found);
        assert_eq!(found.len(), 2);
        assert!(found[0].contains(":2: ") && found[0].contains("`Loans"));
        assert!(found[1].contains(":3: ") && found[1].contains("rule 2"));
    }
}
