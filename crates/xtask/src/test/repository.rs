//! The git repository of the sources, if they are in one.

use std::path::PathBuf;
use std::process::Command;

use crate::process;

/// The state of the repository when a run begins. Its results are of this state alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begin {
    /// The whole id of the commit; nothing without git.
    pub(super) commit: Option<String>,
    /// Nothing differs from the commit.
    pub(super) is_clean: bool,
}

impl Begin {
    pub(super) fn now() -> Begin {
        let commit = git(&["rev-parse", "HEAD"], &[]);
        let status = git(&["status", "--porcelain", "--untracked-files=all"], &[]);
        Begin {
            commit: commit.map(|commit| commit.trim().to_owned()),
            is_clean: status.is_some_and(|changes| changes.is_empty()),
        }
    }

    /// True if the repository is as it was, without a change.
    pub(super) fn holds(&self) -> bool {
        self.commit.is_some() && self.is_clean && *self == Begin::now()
    }
}

/// The output of a git command in the root of the repository; nothing if it fails.
pub(super) fn git(arguments: &[&str], paths: &[PathBuf]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(arguments).args(paths);
    let output = command.current_dir(process::root()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_without_git_holds_for_nothing() {
        let begin = Begin {
            commit: None,
            is_clean: true,
        };
        assert!(!begin.holds());
        assert_eq!(git(&["no-such-command"], &[]), None);
    }
}
