//! Tests of a rewrite: its changes, the parts that stay, and the files that it refuses.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

/// Edits `text` as a rewrite after `CONFIG SET`s of `pairs` does.
fn rewritten(text: &str, pairs: &[(&str, &str)]) -> Result<String, String> {
    let mut running = settings(&read(text).map_err(|e| e.to_string())?)?;
    let mut changed = BTreeSet::new();
    for (name, value) in pairs {
        let setting = Setting::find(name).expect("a setting");
        setting.apply(&mut running, value).expect("a correct value");
        changed.insert(setting.name);
    }
    edit(text, &running, &changed)
}

const FILE: &str = "\
# The house's server.
memory   = \"128mb\"   # small

  maxclients=50 # people
\"timeout\" = '7'
output-limit = \"\"\"64mb\"\"\"  # ü
requirepass = \"hush\"
";

#[test]
fn only_values_that_differ_are_replaced_where_they_stand() {
    let edited = rewritten(
        FILE,
        &[
            ("maxclients", "7"),
            ("timeout", "0"),
            ("output-limit", "100mb"),
            ("slowlog-max-len", "128"),
        ],
    );
    let expected = FILE
        .replace("=50 #", "=7 #")
        .replace("'7'", "0")
        .replace("\"\"\"64mb\"\"\"", "\"100mb\"");
    assert_eq!(edited.unwrap(), expected);
}

#[test]
fn absent_settings_are_added_at_the_end_under_one_headline() {
    let once = rewritten("port = 1", &[("poll", "off")]).unwrap();
    assert_eq!(once, format!("port = 1\n\n{ADDED}\npoll = \"off\"\n"));
    let twice = rewritten(&once, &[("timeout", "9")]).unwrap();
    assert_eq!(twice, format!("{once}timeout = 9\n"));
    assert_eq!(
        rewritten("", &[("timeout", "9")]).unwrap(),
        format!("{ADDED}\ntimeout = 9\n")
    );
    let windows = rewritten("port = 1\r\n", &[("timeout", "9")]).unwrap();
    assert_eq!(
        windows,
        format!("port = 1\r\n\r\n{ADDED}\r\ntimeout = 9\r\n")
    );
}

#[test]
fn secrets_stay_as_they_are() {
    for text in [FILE, "port = 1\n"] {
        assert_eq!(rewritten(text, &[("requirepass", "new")]).unwrap(), text);
    }
}

#[test]
fn what_was_not_set_at_run_time_is_not_written() {
    let running = ServerConfig {
        port: 5,
        timeout_s: 5,
        ..ServerConfig::default()
    };
    assert_eq!(edit(FILE, &running, &BTreeSet::new()).unwrap(), FILE);
}

#[test]
fn a_file_that_became_wrong_is_refused_with_the_line() {
    let refused =
        |text: &str| edit(text, &ServerConfig::default(), &BTreeSet::new()).expect_err("a refusal");
    assert!(refused("\nport = = 1").starts_with("line 2: not TOML: "));
    assert!(refused("memroy = 1").starts_with("line 1: `memroy` is not a correct setting"));
    assert!(refused("timeout = 1\n[port]\na = 1").starts_with("line 2: `port`"));
    assert!(refused("port = 70000").starts_with("line 1: port: 70000 is out of range"));
}

/// A folder of one test; removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("duramen-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }

    fn names(&self) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(&self.0).expect("a folder");
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn with_timeout_9(path: &Path) -> Result<(), ServerError> {
    let file = ConfigFile::new(path);
    file.note(Setting::find("timeout").unwrap());
    file.rewrite(|| {
        Arc::new(ServerConfig {
            timeout_s: 9,
            ..ServerConfig::default()
        })
    })
}

#[test]
fn the_file_keeps_its_permissions_and_a_link_stays_one() {
    let folder = Folder::new("rewrite-permissions");
    let (path, link) = (folder.0.join("duramen.toml"), folder.0.join("link.toml"));
    std::fs::write(&path, "timeout = 1 # s\n").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    with_timeout_9(&link).expect("rewrites");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "timeout = 9 # s\n");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    assert!(link.is_symlink());
    assert_eq!(folder.names().len(), 2);
}

#[test]
fn an_error_leaves_the_file_and_nothing_else() {
    let folder = Folder::new("rewrite-error");
    // The temporary file's name, longer than the file's own, is too long for the file system.
    let path = folder.0.join(format!("{}.toml", "d".repeat(245)));
    std::fs::write(&path, "timeout = 1\n").unwrap();
    let error = with_timeout_9(&path).expect_err("no place for a new file");
    assert!(
        error
            .to_string()
            .starts_with("cannot write a new file beside "),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "timeout = 1\n");
    assert_eq!(folder.names().len(), 1);
    let gone = with_timeout_9(&folder.0.join("none.toml")).expect_err("no file");
    assert!(gone.to_string().starts_with("cannot find "), "{gone}");
    let other = with_timeout_9(&folder.0).expect_err("a folder");
    assert!(other.to_string().contains("not a regular file"), "{other}");
}
