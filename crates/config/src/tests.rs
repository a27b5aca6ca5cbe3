//! Tests of settings: every default parses, errors name the allowed values, and texts survive a
//! round trip.

use super::memory::FETCH_WORK_BYTES;
use super::*;

#[test]
fn every_default_parses_and_shows_back() {
    let config = ServerConfig::default();
    for setting in SETTINGS {
        let shown = setting.show(&config);
        let mut again = ServerConfig::default();
        setting.apply(&mut again, &shown).expect(setting.name);
        assert_eq!(again, config, "{}", setting.name);
    }
    assert_eq!(config.memory_bytes, 1 << 30);
    assert_eq!(config.port, 6379);
}

/// `CONFIG REWRITE` could not put `log-level` into the file.
#[test]
fn each_value_of_a_setting_can_be_set_in_another_configuration() {
    for setting in SETTINGS {
        let choices = match setting.kind {
            Kind::Choice(names) => names,
            Kind::Flag => &["yes", "no"],
            _ => &[setting.default],
        };
        for choice in choices {
            let (mut from, mut to) = (ServerConfig::default(), ServerConfig::default());
            setting.apply(&mut from, choice).expect(setting.name);
            (setting.set)(&mut to, (setting.get)(&from));
            assert_eq!(to, from, "{} {choice}", setting.name);
        }
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = SETTINGS
        .iter()
        .flat_map(|s| std::iter::once(s.name).chain(s.redis_name))
        .collect();
    names.sort_unstable();
    let total = names.len();
    names.dedup();
    assert_eq!(names.len(), total);
}

#[test]
fn sizes() {
    assert_eq!(parse_size("1gb"), Some(1 << 30));
    assert_eq!(parse_size("512MB"), Some(512 << 20));
    assert_eq!(parse_size("1k"), Some(1000));
    assert_eq!(parse_size("7"), Some(7));
    assert_eq!(parse_size("1.5gb"), Some(1536 << 20));
    assert_eq!(parse_size("0.25mb"), Some(256 << 10));
    assert_eq!(
        parse_size("1.1kb"),
        Some(1126),
        "a part of a byte is left out"
    );
    assert_eq!(parse_size("2.5k"), Some(2500));
    for bad in [
        "",
        "gb",
        "-1",
        "1.5",
        ".5gb",
        "1.gb",
        "1.2.3gb",
        "1.-5gb",
        "16777216.1tb",
        "1 giraffe",
        "99999999999tb",
        "１gb",
    ] {
        assert_eq!(parse_size(bad), None, "{bad}");
    }
    assert_eq!(format_size(1 << 30), "1gb");
    assert_eq!(format_size(1536 << 20), "1536mb");
    assert_eq!(format_size(1001), "1001");
    assert_eq!(format_size(0), "0");
}

#[test]
fn what_lasts_has_a_directory_and_what_does_not_has_none() {
    let here = Some(PathBuf::from("duramen-data"));
    let place = |mode, level, dir: &str| {
        let config = ServerConfig {
            mode,
            level,
            dir: dir.to_owned(),
            ..ServerConfig::default()
        };
        (config.data_dir(), config.write_level())
    };
    use duramen_engine::Mode::{Cache, Store};
    assert_eq!(place(Store, None, ""), (here.clone(), Level::Synced));
    let buffered = Some(Level::Buffered);
    assert_eq!(place(Store, buffered, ""), (here.clone(), Level::Buffered));
    assert_eq!(place(Store, Some(Level::Memory), ""), (None, Level::Memory));
    let there = Some(PathBuf::from("d"));
    let memory = Some(Level::Memory);
    assert_eq!(place(Store, memory, "d"), (there.clone(), Level::Memory));
    assert_eq!(place(Cache, None, ""), (None, Level::Memory));
    assert_eq!(place(Cache, None, "d"), (there, Level::Synced));
    assert_eq!(place(Cache, buffered, ""), (here, Level::Buffered));
}

fn refusal(name: &str, text: &str) -> String {
    let mut config = ServerConfig::default();
    let before = config.clone();
    let error = Setting::find(name)
        .expect(name)
        .apply(&mut config, text)
        .expect_err(text);
    assert_eq!(config, before);
    error.to_string()
}

#[test]
fn refusals_say_what_is_allowed() {
    assert_eq!(
        refusal("memory", "1mb"),
        "memory: 1mb is below the minimum of 64mb"
    );
    assert_eq!(
        refusal("maxmemory", "lots"),
        "memory: `lots` is not a size; write for example 512mb, 1.5gb or 80%"
    );
    assert_eq!(
        refusal("port", "70000"),
        "port: 70000 is out of range; it must be 0 to 65535"
    );
    assert_eq!(
        refusal("timeout", "1h"),
        "timeout: `1h` is not a whole number; it must be 0 to 31536000 seconds"
    );
    assert_eq!(
        refusal("poll", "never"),
        "poll: `never` is not one of adaptive, busy, off"
    );
    assert_eq!(
        refusal("bind", "here"),
        "bind: `here` is not an IP address; write for example 127.0.0.1 or ::1"
    );
    assert_eq!(
        refusal("admin", "maybe"),
        "admin: `maybe` is neither yes nor no"
    );
}

/// A token of one byte, in a file that everybody could change, was accepted.
#[test]
fn a_token_must_be_long_and_may_not_be_changed_by_others() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().expect("a file");
    let read = |text: &str, mode: u32| {
        std::fs::write(file.path(), text).expect("written");
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(file.path(), mode).expect("its mode");
        read_token(file.path()).map_err(|error| error.to_string())
    };
    let token = "0123456789abcdef";
    for mode in [0o600, 0o400, 0o440, 0o644] {
        assert_eq!(read(&format!("{token}\nmore"), mode), Ok(token.into()));
    }
    for mode in [0o666, 0o660, 0o602] {
        let refused = read(token, mode).expect_err("others may change it");
        assert!(refused.contains("chmod go-w"), "{refused}");
    }
    for short in ["", "x", &token[1..]] {
        let refused = read(short, 0o600).expect_err("it is short");
        assert!(refused.contains("16 to 1024 bytes"), "{refused}");
    }
}

#[test]
fn unknown_names_have_a_nearest_known_one() {
    assert!(Setting::find("memroy").is_none());
    assert_eq!(Setting::nearest("memroy"), Some("memory"));
    assert_eq!(Setting::nearest("max_clients"), Some("maxclients"));
    assert_eq!(Setting::nearest("thread"), Some("threads"));
}

#[test]
fn combinations_that_do_not_fit_are_refused() {
    let refusal = |change: fn(&mut ServerConfig)| {
        let mut config = ServerConfig::default();
        change(&mut config);
        config.check().expect_err("refused").to_string()
    };
    ServerConfig::default()
        .check()
        .expect("defaults fit together");
    let open = refusal(|c| c.bind = vec!["0.0.0.0".parse().expect("address")]);
    assert!(
        open.contains("--insecure-bind") && open.contains("--requirepass"),
        "{open}"
    );
    let open = refusal(|c| {
        c.bind = vec!["0.0.0.0".parse().expect("address")];
        c.insecure_bind = true;
    });
    assert!(open.contains("without a password"), "{open}");
    let open = refusal(|c| c.admin_bind = vec!["0.0.0.0".parse().expect("address")]);
    assert!(open.contains("admin HTTP"), "{open}");
    assert!(refusal(|c| c.output_limit_bytes = 1).contains("output-pause"));
}

/// tls::A1, for each port and each way out.
#[test]
fn open_addresses_need_encryption_and_proof() {
    let check = |words: &str| {
        let mut config = ServerConfig::default();
        for word in words.split(' ') {
            let (name, value) = word.split_once('=').expect("name=value");
            let setting = Setting::find(name).expect(name);
            setting.apply(&mut config, value).expect(word);
        }
        config.check().map_err(|error| error.to_string())
    };
    let refused = |words: &str| check(words).expect_err(words);
    let files = "tls-cert-file=c tls-key-file=k tls-ca-cert-file=a";
    let open = "bind=10.0.0.1";
    check(&format!("{open} tls-port=1 port=0 {files}")).expect("a certificate is proof");
    let words = format!("{open} tls-port=1 port=0 {files} tls-auth-clients=optional");
    assert!(refused(&words).contains("without a password"));
    check(&format!("{words} requirepass=x")).expect("a password is proof");
    let both = format!("{open} tls-port=1 {files} requirepass=x");
    assert!(
        refused(&both).contains("not encrypted"),
        "the plain port is on"
    );
    check(&format!("{both} insecure-bind=yes")).expect("it was accepted");
    let member = format!("{open} tls-port=1 port=0 {files} coordinator=10.0.0.2:7400");
    assert!(refused(&member).contains("the native protocol"));
    check(&format!("{member} tls-cluster=yes")).expect("every peer shows a certificate");
    let cluster = "coordinator=127.0.0.1:7400 tls-cluster=yes";
    assert!(refused(cluster).contains("tls-cluster needs a certificate"));
    let half = format!("{cluster} tls-cert-file=c tls-key-file=k");
    assert!(refused(&half).contains("tls-ca-cert-file"));
    check(&format!("{cluster} {files}")).expect("all files are there");
    assert!(refused(&format!("admin-bind=10.0.0.1 admin-tls=no {files}")).contains("admin HTTP"));
    check(&format!("admin-bind=10.0.0.1 {files}")).expect("it speaks TLS by itself");
    assert!(refused("tls-port=1").contains("duramen cert init"));
    assert!(refused("admin-tls=yes").contains("admin-tls needs a certificate"));
    let alone = "tls-port=1 tls-cert-file=c tls-key-file=k";
    assert!(refused(alone).contains("tls-ca-cert-file"));
    check(&format!("{alone} tls-auth-clients=no")).expect("no authority is needed");
    assert!(refused(&format!("port=1 tls-port=1 {files}")).contains("are the same"));
}

/// With 16 threads a server of 64 MiB took 57 % more than its bound: each thread may fetch the
/// longest entries.
#[test]
fn threads_with_flash_stay_within_memory() {
    for memory_mib in [64, 96, 128, 256, 1024] {
        let config = |threads| ServerConfig {
            memory_bytes: memory_mib << 20,
            dir: "d".to_owned(),
            threads,
            ..ServerConfig::default()
        };
        let most = config(0).threads_with_flash();
        assert!(memory_mib > 64 || most == 2);
        for threads in 1..=256 {
            let config = config(threads);
            let fetched = (FETCH_BYTES_MIN * threads) as u64;
            let work = FETCH_WORK_BYTES * (threads as u64).saturating_sub(2);
            let sum = config.engine_bytes(FETCH_BYTES_MIN)
                + fetched
                + work
                + config.bytes_beside(config.memory_bytes, config.memory_bytes);
            let is_within = sum <= config.memory_bytes;
            assert_eq!(
                is_within,
                threads <= most,
                "{memory_mib} MiB, {threads} threads"
            );
        }
    }
}

/// The log buffer keeps its size while `memory` changes, so less of a lower one is left.
#[test]
fn a_changed_memory_leaves_room_for_the_buffers_of_the_start() {
    let mut config = ServerConfig {
        memory_bytes: 4 << 30,
        dir: "d".to_owned(),
        ..ServerConfig::default()
    };
    assert_eq!(config.engine_bytes(0), 4 << 30, "a tenth holds the buffers");
    let lowered = config.engine_bytes_of(1 << 30, 4 << 30, 0);
    config.memory_bytes = 1 << 30;
    assert_eq!(config.engine_bytes(0), 1 << 30);
    assert_eq!(
        lowered,
        (1 << 30) - ((128 << 20) + (8 << 20) - (1 << 30) / 10)
    );
    // Back at the start's value, or above.
    assert_eq!(config.engine_bytes_of(4 << 30, 4 << 30, 0), 4 << 30);
    config.memory_bytes_max = 8 << 30;
    assert_eq!(config.engine_bytes_max(0), 8 << 30);
}

#[test]
fn memory_stays_below_its_maximum() {
    let mut config = ServerConfig::default();
    assert!(!config.settle_memory_max());
    assert_eq!(config.memory_bytes_max, 1 << 30);
    config.memory_bytes += 1;
    let text = config.check().expect_err("refused").to_string();
    assert!(text.contains("memory-max (1gb)"), "{text}");
    assert!(!config.clone().cap_memory_share(), "it was given as bytes");
    // The limit of a container was raised.
    let mut share = ServerConfig {
        memory_percent: 70,
        ..config.clone()
    };
    assert!(share.cap_memory_share());
    assert_eq!(share.memory_bytes, 1 << 30);
    share.check().expect("correct");
    assert!(!share.cap_memory_share());
    config.memory_bytes_max = 64 << 30;
    config.check().expect("correct");
    assert!(config.settle_memory_max(), "more than 16 times as much");
    assert_eq!(config.memory_bytes_max, 16 * ((1 << 30) + 1));
}
