//! `duramen key`: makes, replaces and shows the key of an encrypted data directory.

use clap::{Args, Subcommand};
use duramen_backup::disk::{Disk, keyed};
use duramen_backup::os::OsDisk;
use duramen_backup::{Mode, key_of, rotate};
use duramen_base::private::make_new_file;
use duramen_cipher::{KeySource, MasterKey};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const INIT_HELP: &str = "\
The file can be read by its owner alone. Give it to a server by --encryption-key-file or by
`encryption-key-file` in its configuration. Keep a copy in another place: without the key nobody can
read the data.

EXAMPLES
  duramen key init /etc/duramen/key
  duramen serve --encryption-key-file /etc/duramen/key";

const ROTATE_HELP: &str = "\
Encrypts the directory's own key with another master key. The data is not written again, so this takes
a moment, and a server may run meanwhile. Give the server the new key before it starts again and before
its next snapshot. Snapshots have keys of their own: rotate each that shall open with the new key.

An interrupted rotation has changed the key or not; the same command completes it. Keep both keys
until it has ended well.

A person with the old key and a copy of the directory can still read that copy. If others know the
old key, restore a snapshot into a new directory: that has a new key of its own.

EXAMPLES
  duramen key init /etc/duramen/key.new
  duramen key rotate /var/lib/duramen --encryption-key-file /etc/duramen/key \\
          --new-encryption-key-file /etc/duramen/key.new
  mv /etc/duramen/key.new /etc/duramen/key";

#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a file with a new random key.
    #[command(after_help = INIT_HELP)]
    Init {
        /// The new file; it must not exist.
        file: PathBuf,
    },
    /// Replace the key of a data directory or snapshot.
    #[command(after_help = ROTATE_HELP)]
    Rotate {
        /// A data directory or snapshot; with disk-mode raw, a partition or file.
        dir: PathBuf,
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        new_key: NewKeyArgs,
    },
    /// Print the id of a directory's key, and that of a given key. An id does not show the key.
    Show {
        /// A data directory or snapshot; with disk-mode raw, a partition or file.
        dir: Option<PathBuf>,
        #[command(flatten)]
        key: KeyArgs,
    },
}

/// The key of an encrypted data directory.
#[derive(Args)]
pub(crate) struct KeyArgs {
    /// File with the key of an encrypted data directory.
    #[arg(long, value_name = "FILE", env = "DURAMEN_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
    /// Command whose output is that key.
    #[arg(long, value_name = "COMMAND", env = "DURAMEN_ENCRYPTION_KEY_COMMAND")]
    #[arg(conflicts_with = "encryption_key_file")]
    encryption_key_command: Option<String>,
}

/// The key that a data directory gets.
#[derive(Args)]
pub(crate) struct NewKeyArgs {
    /// File with the new key.
    #[arg(long, value_name = "FILE")]
    new_encryption_key_file: Option<PathBuf>,
    /// Command whose output is the new key.
    #[arg(
        long,
        value_name = "COMMAND",
        conflicts_with = "new_encryption_key_file"
    )]
    new_encryption_key_command: Option<String>,
}

impl KeyArgs {
    /// The key, read once.
    pub(super) fn source(&self) -> Result<Option<KeySource>, String> {
        held(
            self.encryption_key_file.as_deref(),
            self.encryption_key_command.as_deref(),
        )
    }
}

impl NewKeyArgs {
    /// As [`KeyArgs::source`].
    pub(super) fn source(&self) -> Result<Option<KeySource>, String> {
        held(
            self.new_encryption_key_file.as_deref(),
            self.new_encryption_key_command.as_deref(),
        )
    }
}

fn held(file: Option<&Path>, command: Option<&str>) -> Result<Option<KeySource>, String> {
    let file = file.map(|file| KeySource::File(file.to_owned()));
    let source = file.or_else(|| command.map(|it| KeySource::Command(it.to_owned())));
    let held = source.map(|source| source.held()).transpose();
    held.map_err(|error| error.to_string())
}

pub(super) fn run(command: &KeyCommand) -> Result<(), String> {
    match command {
        KeyCommand::Init { file } => init(file),
        KeyCommand::Rotate { dir, key, new_key } => {
            let new = new_key.source()?;
            let new = new.ok_or("name the new key: --new-encryption-key-file FILE")?;
            let rotated = rotate(&*store_at(dir, key.source()?)?, &new);
            let rotated = rotated.map_err(|error| error.to_string())?;
            println!(
                "{}: encrypted with the key {} now",
                dir.display(),
                rotated.to
            );
            Ok(())
        }
        KeyCommand::Show { dir, key } => show(dir.as_deref(), key.source()?),
    }
}

fn init(file: &Path) -> Result<(), String> {
    let key = MasterKey::random().map_err(|error| error.to_string())?;
    let made = make_new_file(file).and_then(|mut made| {
        made.write_all(&key.text())?;
        made.sync_all()
    });
    made.map_err(|error| format!("cannot make `{}`: {error}", file.display()))?;
    println!("{}: made, with the key {}", file.display(), key.id());
    println!("keep a copy in another place: without the key nobody can read the data");
    Ok(())
}

fn show(dir: Option<&Path>, key: Option<KeySource>) -> Result<(), String> {
    let text = |error: duramen_backup::Error| error.to_string();
    if dir.is_none() && key.is_none() {
        return Err("name a directory, or a key by --encryption-key-file FILE".to_owned());
    }
    if let Some(dir) = dir {
        match key_of(&*store_at(dir, None)?).map_err(text)? {
            Some(id) => println!("{}: encrypted with the key {id}", dir.display()),
            None => println!("{}: not encrypted", dir.display()),
        }
    }
    if let Some(KeySource::Held(key)) = key {
        println!("the given key: {}", key.id());
    }
    Ok(())
}

/// The store at a path, which a server may have open.
fn store_at(path: &Path, key: Option<KeySource>) -> Result<Arc<dyn Disk>, String> {
    let kind = path.metadata();
    let kind = kind.map_err(|error| format!("{}: {error}", path.display()))?;
    let member = path.join(duramen_server::member::BACKUP_FOLDER);
    let disk = match kind.is_dir() {
        true if member.is_dir() => OsDisk::new(&member, Mode::Buffered),
        true => OsDisk::new(path, Mode::Buffered),
        false => OsDisk::new(path, Mode::Raw),
    };
    Ok(keyed(Arc::new(disk), key))
}
