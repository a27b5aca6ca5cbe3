//! Sources, precedence and errors of settings.

use super::*;
use duramen_config::Mode;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), text).expect("writes");
    file
}

fn environment(pairs: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
    pairs
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect::<Vec<_>>()
        .into_iter()
}

fn problems(text: &str) -> String {
    let file = file(text);
    let problems = Loaded::new(Some(file.path()), std::iter::empty(), &Given::new());
    let problems = problems.expect_err("problems").to_string();
    problems.replace(&file.path().display().to_string(), "FILE")
}

#[test]
fn flags_beat_environment_beats_file_beats_defaults() {
    let file = file(
        "port = 1\nthreads = 1\nmemory = \"128mb\"\nadmin = false\nbind = [\"127.0.0.1\", \"::1\"]\n",
    );
    let flags = Given::from([("port", "3".to_owned())]);
    let environment = environment(&[
        ("DURAMEN_PORT", "2"),
        ("DURAMEN_THREADS", "2"),
        ("HOME", "/"),
    ]);
    let loaded = Loaded::new(Some(file.path()), environment, &flags).expect("loads");
    assert_eq!(loaded.config.port, 3);
    assert_eq!(loaded.config.threads, 2);
    assert_eq!(loaded.config.memory_bytes, 128 << 20);
    assert_eq!(loaded.config.maxclients, 10_000);
    assert!(!loaded.config.admin);
    assert_eq!(loaded.config.bind.len(), 2);
    let origin = |name: &str| {
        let n = SETTINGS.iter().position(|s| s.name == name).expect(name);
        loaded.origins[n].describe(&SETTINGS[n])
    };
    assert_eq!(origin("port"), "flag --port");
    assert_eq!(origin("threads"), "environment DURAMEN_THREADS");
    assert_eq!(origin("memory"), format!("{}:3", file.path().display()));
    assert_eq!(origin("maxclients"), "default");
}

/// Beside a Service named `duramen`, Kubernetes set `DURAMEN_PORT=tcp://…` in each container, and
/// no server started again.
#[test]
fn variables_of_a_service_of_kubernetes_are_no_settings() {
    let links = environment(&[
        ("DURAMEN_PORT", "tcp://10.0.0.1:6379"),
        ("DURAMEN_ADMIN_PORT", "tcp://10.0.0.1:8379"),
        ("DURAMEN_PORT_6379_TCP", "tcp://10.0.0.1:6379"),
        ("DURAMEN_PORT_6379_TCP_PROTO", "tcp"),
        ("DURAMEN_SERVICE_HOST", "10.0.0.1"),
        ("DURAMEN_SERVICE_PORT_RESP", "6379"),
        ("DURAMEN_THREADS", "3"),
    ]);
    let loaded = Loaded::new(None, links, &Given::new()).expect("loads");
    assert_eq!((loaded.config.port, loaded.config.threads), (6379, 3));
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert!(!is_service_link("DURAMEN_PORT", OsStr::new("7000")));
    for setting in SETTINGS {
        for name in setting.env_names() {
            assert!(!is_service_link(&name, OsStr::new("1")), "{name}");
        }
    }
}

/// `${DURAMEN_PORT:-}` of a compose file: no port was an error, and no password one.
#[test]
fn an_empty_variable_is_as_none() {
    let file = file("port = 7\nrequirepass = \"secret\"\n");
    let empty = environment(&[
        ("DURAMEN_CONFIG", ""),
        ("DURAMEN_PORT", ""),
        ("DURAMEN_REQUIREPASS", ""),
        ("DURAMEN_MAXMEMORY", ""),
        ("DURAMEN_MEMORY", "96mb"),
        ("DURAMEN_MEMROY", ""),
    ]);
    let loaded = Loaded::new(Some(file.path()), empty, &Given::new()).expect("loads");
    assert_eq!(loaded.config.port, 7);
    assert_eq!(loaded.config.memory_bytes, 96 << 20);
    assert_eq!(loaded.config.requirepass, "secret");
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

#[test]
fn every_problem_of_a_file_is_named_with_its_line() {
    assert_eq!(
        problems("memroy = \"1gb\"\n\nport = 70000\n"),
        "FILE:1: unknown setting `memroy`; did you mean `memory`?\n\
         port: 70000 is out of range; it must be 0 to 65535 (FILE:3)"
    );
    assert!(problems("port = = 1\n").starts_with("FILE:1: not TOML: "));
    assert!(problems("[port]\na = 1\n").starts_with("FILE:1: port must be text, a number"));
    assert!(problems("level = \"sync\"\n").contains("auto, memory, buffered, synced"));
    let missing = Loaded::new(
        Some(Path::new("/no/such/file")),
        std::iter::empty(),
        &Given::new(),
    );
    assert!(
        missing
            .expect_err("missing")
            .to_string()
            .starts_with("cannot read /no/such/file: ")
    );
}

#[test]
fn strange_variables_are_worth_a_warning() {
    let file = file("");
    let environment = environment(&[("DURAMEN_MEMROY", "1gb"), ("DURAMEN_HOST", "x")]);
    let loaded = Loaded::new(Some(file.path()), environment, &Given::new()).expect("loads");
    assert_eq!(
        loaded.warnings,
        ["environment variable DURAMEN_MEMROY is not a setting; did you mean DURAMEN_MEMORY?"]
    );
}

#[test]
fn what_is_printed_can_be_read_again() {
    let empty = file("");
    let flags = Given::from([("poll", "off".to_owned()), ("memory", "96mb".to_owned())]);
    let loaded = Loaded::new(Some(empty.path()), std::iter::empty(), &flags).expect("loads");
    for show_origin in [false, true] {
        let printed = file(&print_toml(&loaded, show_origin));
        let again = Loaded::new(Some(printed.path()), std::iter::empty(), &Given::new());
        assert_eq!(again.expect("loads").config, loaded.config);
    }
}

#[test]
fn secrets_are_not_printed() {
    let empty = file("");
    let flags = Given::from([("requirepass", "hush".to_owned())]);
    let loaded = Loaded::new(Some(empty.path()), std::iter::empty(), &flags).expect("loads");
    for text in [print_toml(&loaded, true), print_json(&loaded)] {
        assert!(!text.contains("hush"));
    }
    let printed = file(&print_toml(&loaded, false));
    let again =
        Loaded::new(Some(printed.path()), std::iter::empty(), &Given::new()).expect("loads");
    assert_eq!(again.config.requirepass, "");
}

/// `maxmemory` was shown as Redis's name of `memory`, and refused in files, flags and variables.
/// For sections the error was that they must be text, and the advice for `appendonly` was
/// `admin-port`.
#[test]
fn names_of_redis_are_understood_or_have_advice() {
    let by_file = file("maxmemory = \"1.5gb\"\n");
    let loaded = Loaded::new(Some(by_file.path()), std::iter::empty(), &Given::new());
    assert_eq!(loaded.expect("loads").config.memory_bytes, 3 << 29);
    let empty = file("");
    let variables = environment(&[("DURAMEN_MAXMEMORY", "96mb")]);
    let loaded = Loaded::new(Some(empty.path()), variables, &Given::new()).expect("loads");
    assert_eq!(loaded.config.memory_bytes, 96 << 20);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let matches = clap::Command::new("test")
        .args(setting_args())
        .try_get_matches_from(["test", "--maxmemory", "80mb"]);
    let flags = given(&matches.expect("a flag"));
    assert_eq!(flags.get("memory").map(String::as_str), Some("80mb"));

    assert_eq!(
        problems("memory = \"1gb\"\nmaxmemory = \"2gb\"\n"),
        "FILE:2: `memory` and `maxmemory` are the same setting, which is set in line 1 already"
    );
    let variables = environment(&[("DURAMEN_MAXMEMORY", "1gb"), ("DURAMEN_MEMORY", "1gb")]);
    let refused = Loaded::new(Some(empty.path()), variables, &Given::new()).expect_err("twice");
    assert_eq!(
        refused.to_string(),
        "DURAMEN_MEMORY and DURAMEN_MAXMEMORY are the same setting: use one of them"
    );
    let policy = file("maxmemory-policy = \"allkeys-lru\"\n");
    let loaded = Loaded::new(Some(policy.path()), std::iter::empty(), &Given::new());
    assert_eq!(loaded.expect("loads").config.mode, Mode::Cache);
    let said = problems("appendonly = true\n");
    assert!(
        said.contains("FILE:1: unknown setting `appendonly`; it is one of Redis: "),
        "{said}"
    );
    assert!(
        said.contains("`level` determines when a write is acknowledged"),
        "{said}"
    );
    assert_eq!(
        problems("[server]\nport = 1\n"),
        "FILE:1: there are no sections, and `server` is not a setting: write the settings without `[server]`"
    );
}
