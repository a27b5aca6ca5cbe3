//! `cargo xtask package`: Debian packages of the program to ship: `duramen`, and `duramen-dbgsym`
//! with its debug lines.
//!
//! The files of `packaging/debian` are laid out as they lie on a machine; `dpkg-deb` packs them.
//! Manual pages and completions come from the program itself, the needed version of the C library
//! from its symbols.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{process, release};

/// Where each file of the repository goes, and its mode. A path that ends with `/` keeps the name.
const FILES: [(&str, &str, u32); 13] = [
    ("packaging/debian/duramen.toml", "etc/duramen/", 0o644),
    (
        "packaging/debian/duramen-coordinator.default",
        "etc/default/duramen-coordinator",
        0o644,
    ),
    (
        "packaging/debian/duramen.logrotate",
        "etc/logrotate.d/duramen",
        0o644,
    ),
    ("packaging/debian/duramen.service", UNITS, 0o644),
    ("packaging/debian/duramen@.service", UNITS, 0o644),
    ("packaging/debian/duramen-coordinator.service", UNITS, 0o644),
    (
        "packaging/debian/copyright",
        "usr/share/doc/duramen/",
        0o644,
    ),
    ("README.md", "usr/share/doc/duramen/", 0o644),
    ("docs/install.md", "usr/share/doc/duramen/docs/", 0o644),
    ("docs/operations.md", "usr/share/doc/duramen/docs/", 0o644),
    ("packaging/prometheus/duramen.rules.yml", EXAMPLES, 0o644),
    ("packaging/grafana/duramen.json", EXAMPLES, 0o644),
    (
        "packaging/debian/lintian-overrides",
        "usr/share/lintian/overrides/duramen",
        0o644,
    ),
];
const UNITS: &str = "lib/systemd/system/";
const EXAMPLES: &str = "usr/share/doc/duramen/examples/";

/// Completion scripts, by shell.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/duramen"),
    ("zsh", "usr/share/zsh/vendor-completions/_duramen"),
    ("fish", "usr/share/fish/vendor_completions.d/duramen.fish"),
];

/// Maintainer scripts, and the files that an upgrade must not overwrite if they were changed.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
const CONFFILES: &str = "\
/etc/duramen/duramen.toml
/etc/default/duramen-coordinator
/etc/logrotate.d/duramen
";

const MAINTAINER: &str = "The developers of Duramen <duramen@example.org>";

const USAGE: &str = "\
cargo xtask package [--binary FILE] [--out DIR] [--fast]

  --binary FILE   pack this program, instead of building the one to ship
  --out DIR       where the packages go [target/packages]
  --fast          pack quickly: larger packages, for tests
";

struct Options {
    binary: Option<PathBuf>,
    out: PathBuf,
    fast: bool,
}

/// Builds the packages, and prints their paths.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let options = Options::read(arguments)?;
    let folder = process::target().join("packages");
    let built = match options.binary {
        Some(binary) => binary,
        None => release::build()?,
    };
    let shipped = folder.join("shipped");
    let (program, lines) = release::divide(&built, &shipped)?;
    let packer = Packer {
        version: env!("CARGO_PKG_VERSION"),
        architecture: output("dpkg", &["--print-architecture"])?,
        fast: options.fast,
        out: options.out,
    };
    packer.main(&program, &folder.join("duramen"))?;
    packer.debug(&lines, &folder.join("duramen-dbgsym"))
}

impl Options {
    fn read(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options {
            binary: None,
            out: process::target().join("packages"),
            fast: false,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || {
                let path = words.next().map(PathBuf::from);
                path.ok_or_else(|| format!("`{word}` needs a path\n\n{USAGE}"))
            };
            match word.as_str() {
                "--binary" => options.binary = Some(value()?),
                "--out" => options.out = value()?,
                "--fast" => options.fast = true,
                other => return Err(format!("unknown option `{other}`\n\n{USAGE}")),
            }
        }
        Ok(options)
    }
}

struct Packer {
    version: &'static str,
    architecture: String,
    fast: bool,
    out: PathBuf,
}

impl Packer {
    /// The package `duramen`, laid out in `root`.
    fn main(&self, program: &Path, root: &Path) -> Result<(), String> {
        anew(root)?;
        let bin = root.join("usr/bin/duramen");
        copy(program, &bin, 0o755)?;
        for (from, to, mode) in FILES {
            let from = process::root().join(from);
            let to = match to.strip_suffix('/') {
                Some(folder) => root.join(folder).join(name_of(&from)),
                None => root.join(to),
            };
            copy(&from, &to, mode)?;
        }
        for (shell, to) in COMPLETIONS {
            let script = process::output(Command::new(&bin).args(["completions", shell]))?;
            write(&root.join(to), &script)?;
        }
        let pages = root.join("usr/share/man/man1");
        make(&pages)?;
        process::run(Command::new(&bin).args(["man", "--out"]).arg(&pages))?;
        let mut files = list(&pages)?;
        let log = root.join("usr/share/doc/duramen/changelog");
        write(&log, &self.changelog()?)?;
        files.push(log);
        process::run(Command::new("gzip").args(["-9n"]).args(files))?;
        let control = root.join("DEBIAN");
        let scripts = process::root().join("packaging/debian");
        for script in SCRIPTS {
            copy(&scripts.join(script), &control.join(script), 0o755)?;
        }
        write(&control.join("conffiles"), CONFFILES)?;
        let needed = libc_needed(&bin)?;
        self.pack(
            root,
            "duramen",
            &format!(
                "Depends: libc6 (>= {needed}), libgcc-s1, adduser, init-system-helpers (>= 1.52)\n\
                 Recommends: logrotate\n\
                 Suggests: redis-tools\n\
                 Section: database\n\
                 Priority: optional\n\
                 Description: durable, distributed key-value store in memory\n \
                 Duramen keeps its data in memory and on disk as one log. It speaks the\n \
                 protocol of Redis, acknowledges a write when it is on stable storage, and\n \
                 recovers the data of a dead server of a cluster within seconds.\n"
            ),
        )
    }

    /// The package of the debug lines: debuggers and backtraces find the file by the program's
    /// path.
    fn debug(&self, lines: &Path, root: &Path) -> Result<(), String> {
        anew(root)?;
        let to = root.join("usr/lib/debug/usr/bin").join(name_of(lines));
        copy(lines, &to, 0o644)?;
        let doc = root.join("usr/share/doc/duramen-dbgsym");
        make(doc.parent().unwrap_or(root))?;
        std::os::unix::fs::symlink("duramen", &doc)
            .map_err(|error| format!("cannot link {}: {error}", doc.display()))?;
        self.pack(
            root,
            "duramen-dbgsym",
            &format!(
                "Depends: duramen (= {})\n\
                 Section: debug\n\
                 Priority: optional\n\
                 Description: debug symbols for duramen\n \
                 With them a backtrace has files and lines, and a debugger has sources.\n",
                self.version
            ),
        )
    }

    /// Writes the control files of a laid-out package, and packs it.
    fn pack(&self, root: &Path, name: &str, fields: &str) -> Result<(), String> {
        // A package has the same modes whatever the umask of its maker is.
        let modes = ["-R", "u=rwX,go=rX"];
        process::run(Command::new("chmod").args(modes).arg(root))?;
        let size = output("du", &["-sk", "--apparent-size", text_of(root)?])?;
        let kib = size.split_whitespace().next().unwrap_or_default();
        let (version, architecture) = (self.version, &self.architecture);
        write(
            &root.join("DEBIAN/control"),
            &format!(
                "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n\
                 Maintainer: {MAINTAINER}\nInstalled-Size: {kib}\n{fields}"
            ),
        )?;
        let sums =
            "find * -path DEBIAN -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
        let mut sum = Command::new("sh");
        let sums = process::output(sum.args(["-c", sums]).current_dir(root))?;
        write(&root.join("DEBIAN/md5sums"), &sums)?;
        make(&self.out)?;
        let package = self
            .out
            .join(format!("{name}_{version}_{architecture}.deb"));
        let mut build = Command::new("dpkg-deb");
        build.arg("--root-owner-group");
        if self.fast {
            build.args(["-Zgzip", "-z1"]);
        }
        build.env("SOURCE_DATE_EPOCH", commit_time("%ct")?);
        process::run(build.arg("--build").args([root, &package]))?;
        println!("{}", package.display());
        Ok(())
    }

    /// The package's own log of changes, which Debian's tools require.
    fn changelog(&self) -> Result<String, String> {
        Ok(format!(
            "duramen ({}) unstable; urgency=medium\n\n  * The changes are in CHANGELOG.md.\n\n \
             -- {MAINTAINER}  {}\n",
            self.version,
            commit_time("%cD")?
        ))
    }
}

/// The time of the last commit: the same sources give the same package, byte for byte.
fn commit_time(format: &str) -> Result<String, String> {
    let format = format!("--format={format}");
    let mut log = Command::new("git");
    log.args(["log", "-1", &format])
        .current_dir(process::root());
    Ok(process::output(&mut log)?.trim().to_owned())
}

/// The newest version of the C library whose symbols the program uses.
fn libc_needed(program: &Path) -> Result<String, String> {
    let symbols = output("objdump", &["-T", text_of(program)?])?;
    newest_libc(&symbols).ok_or_else(|| format!("{} uses no C library", program.display()))
}

fn newest_libc(symbols: &str) -> Option<String> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|text| {
        let end = text.find(|c: char| c != '.' && !c.is_ascii_digit())?;
        let numbers: Option<Vec<u32>> = text[..end].split('.').map(|n| n.parse().ok()).collect();
        numbers
    });
    let newest = versions.max()?;
    let words: Vec<String> = newest.iter().map(u32::to_string).collect();
    Some(words.join("."))
}

fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let text = process::output(Command::new(program).args(arguments))?;
    Ok(text.trim().to_owned())
}

fn text_of(path: &Path) -> Result<&str, String> {
    path.to_str()
        .ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

fn name_of(path: &Path) -> &std::ffi::OsStr {
    path.file_name().unwrap_or(path.as_os_str())
}

/// An empty folder, with the mode that folders have on a machine.
fn anew(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .map_err(|error| format!("cannot remove {}: {error}", folder.display()))?;
    }
    make(folder)
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder)
        .map_err(|error| format!("cannot create {}: {error}", folder.display()))
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let cannot = |error| format!("cannot list {}: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(cannot)?;
    let paths = entries.map(|entry| Ok(entry.map_err(cannot)?.path()));
    let mut paths = paths.collect::<Result<Vec<PathBuf>, String>>()?;
    paths.sort();
    Ok(paths)
}

fn write(to: &Path, text: &str) -> Result<(), String> {
    make(to.parent().unwrap_or(to))?;
    fs::write(to, text).map_err(|error| format!("cannot write {}: {error}", to.display()))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    make(to.parent().unwrap_or(to))?;
    fs::copy(from, to)
        .and_then(|_| fs::set_permissions(to, fs::Permissions::from_mode(mode)))
        .map_err(|error| format!("cannot copy {}: {error}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::newest_libc;

    #[test]
    fn versions_of_the_c_library_are_compared_as_numbers() {
        let symbols = "DF *UND* (GLIBC_2.9) a\nDF *UND* (GLIBC_2.34) b\nDF (GLIBC_2.2.5) c\n";
        assert_eq!(newest_libc(symbols).as_deref(), Some("2.34"));
        assert_eq!(newest_libc("nothing"), None);
    }
}
