//! Rule: every link in a Markdown file leads to something that exists.

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
    }
    Ok(())
}

/// What is wrong with a link of `file`, if anything. Links to other sites are not followed.
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

/// Resolves `.` and `..` without asking the disk.
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

/// The anchor that a heading gets: lower case, blanks as `-`, punctuation dropped.
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
    fn anchors_follow_headings() {
        assert_eq!(slug("Modules with `unsafe`"), "modules-with-unsafe");
        assert_eq!(
            normal(Path::new("docs/../README.md")),
            Path::new("README.md")
        );
    }
}
