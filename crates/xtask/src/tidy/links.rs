//! Rules for Markdown files: each link has a target that exists, and so does each path and each
//! item of our source that a page names.

use std::path::{Component, Path, PathBuf};

use super::{House, read};

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    for file in house.with_extension("md") {
        let text = read(&house.root.join(file))?;
        for (number, link) in links(&text) {
            if let Some(problem) = problem(house, file, &text, &link)? {
                complaints.push(format!(
                    "{}:{number}: link `{link}`: {problem}",
                    file.display()
                ));
            }
        }
        for problem in sources(house, &text)? {
            complaints.push(format!("{}: {problem}", file.display()));
        }
    }
    Ok(())
}

/// Folders of our source, as pages name them.
const SOURCES: [&str; 5] = ["crates/", "bench/", "heap/", "tests/", "fuzz/"];

/// Paths in backquotes that do not exist, and items that are missing in the file of `name` in
/// `path`.
fn sources(house: &House, text: &str) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    for (name, path) in named_sources(text) {
        let absolute = house.root.join(path);
        if !absolute.exists() {
            problems.push(format!("`{path}` does not exist"));
            continue;
        }
        let Some(name) = name.filter(|_| path.ends_with(".rs")) else {
            continue;
        };
        let source = read(&absolute)?;
        let has = |kind: &&str| source.contains(&format!("{kind} {name}"));
        if !["fn", "const", "struct", "enum"].iter().any(has) {
            problems.push(format!("`{path}` has no `{name}`"));
        }
    }
    Ok(problems)
}

/// Each path of our source in backquotes, with the item that the text names in it.
fn named_sources(text: &str) -> Vec<(Option<&str>, &str)> {
    // Between backquotes every second piece is code, if fences are left out.
    let mut found = Vec::new();
    let mut start = 0;
    let mut code = false;
    let mut paragraphs = Vec::new();
    for line in text.split_inclusive('\n') {
        let end = start + line.len();
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        match paragraphs.last_mut() {
            Some((_, until)) if !code && !fence && *until == start => *until = end,
            _ if !code && !fence => paragraphs.push((start, end)),
            _ => {}
        }
        start = end;
    }
    for (from, until) in paragraphs {
        let pieces: Vec<&str> = text[from..until].split('`').collect();
        for place in (1..pieces.len()).step_by(2) {
            let path = pieces[place];
            let is_path = SOURCES.iter().any(|folder| path.starts_with(folder));
            if !is_path || path.contains(['*', '{', ' ', '\n']) {
                continue;
            }
            let is_in = place >= 3 && pieces[place - 1].trim() == "in";
            found.push((is_in.then(|| pieces[place - 2]), path));
        }
    }
    found
}

/// The error of a link of `file`, if any. Links to other sites are not followed.
fn problem(house: &House, file: &Path, text: &str, link: &str) -> Result<Option<String>, String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(None);
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = normal(&file.parent().unwrap_or(Path::new("")).join(path));
    let other;
    let destination = if path.is_empty() {
        text
    } else {
        let absolute = house.root.join(&target);
        if !absolute.exists() {
            return Ok(Some(format!("{} does not exist", target.display())));
        }
        if anchor.is_empty() || target.extension().is_none_or(|found| found != "md") {
            return Ok(None);
        }
        other = read(&absolute)?;
        &other
    };
    if anchor.is_empty() || headings(destination).any(|heading| slug(heading) == anchor) {
        return Ok(None);
    }
    Ok(Some(format!(
        "no heading there gives the anchor `#{anchor}`"
    )))
}

/// Resolves `.` and `..` without reading the disk.
fn normal(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

/// Lines outside of code blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((index + 1, line))
    })
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    prose(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| line.trim_start_matches('#').trim())
}

/// The anchor of a heading: lower case, blanks as `-`, punctuation dropped.
fn slug(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then_some(c),
        })
        .collect()
}

/// Targets of `[text](target)`, with their line numbers; inline code is left out.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let outside: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let mut rest = outside.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, tail)) = after.split_once(')') else {
                break;
            };
            let target = target.split_whitespace().next().unwrap_or_default();
            found.push((number, target.to_owned()));
            rest = tail;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "see [a](x.md) and [`b`](y.md#z)\n```\n[no](no.md)\n```\n`[no](no.md)` [c](<)";
        let found = links(text);
        assert_eq!(
            found[..2],
            [(1, "x.md".to_owned()), (1, "y.md#z".to_owned())]
        );
        assert!(found.iter().all(|(_, link)| link != "no.md"));
    }

    #[test]
    fn sources_are_found_with_the_function_that_is_said_to_be_there() {
        let text = "`hold` in\n`crates/a/b.rs` and `crates/c`, `tests/*.py`\n```\n`crates/no`\n```\nin `fuzz/x`";
        let wanted = [
            (Some("hold"), "crates/a/b.rs"),
            (None, "crates/c"),
            (None, "fuzz/x"),
        ];
        assert_eq!(named_sources(text), wanted);
    }

    #[test]
    fn anchors_follow_headings() {
        assert_eq!(slug("Modules with `unsafe`"), "modules-with-unsafe");
        assert_eq!(
            normal(Path::new("docs/../README.md")),
            Path::new("README.md")
        );
    }
}
