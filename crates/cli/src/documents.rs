//! Descriptions of the command line for other programs: shell completions and manual pages.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;

pub(crate) const COMPLETIONS_HELP: &str = "\
EXAMPLES
  duramen completions bash > /etc/bash_completion.d/duramen
  duramen completions zsh  > ~/.zfunc/_duramen
  duramen completions fish > ~/.config/fish/completions/duramen.fish";

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Write duramen.1 and one page per command into this directory, instead of printing the main
    /// page.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints the completion script.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "duramen", &mut script);
    io::stdout().write_all(&script).map_err(Failure::stdout)
}

/// Prints or writes manual pages (roff).
pub(crate) fn man(args: &ManArgs, mut command: Command) -> Result<(), Failure> {
    command.build();
    match &args.out {
        None => io::stdout()
            .write_all(&page(command)?)
            .map_err(Failure::stdout),
        Some(folder) => pages(&command, "duramen", folder),
    }
}

fn pages(command: &Command, name: &str, folder: &Path) -> Result<(), Failure> {
    for sub in command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
    {
        pages(sub, &format!("{name}-{}", sub.get_name()), folder)?;
    }
    let path = folder.join(format!("{name}.1"));
    // Pages are named once per process: a leak of a few hundred bytes, because clap requires
    // `'static` names.
    let titled = command
        .clone()
        .name(&*Box::leak(name.to_owned().into_boxed_str()));
    std::fs::write(&path, page(titled)?).map_err(|reason| Failure::Output {
        what: path.display().to_string(),
        reason,
    })
}

fn page(command: Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(Failure::stdout)?;
    Ok(text)
}
