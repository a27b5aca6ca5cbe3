//! Advice about unknown setting names: those of Redis, and misspelled ones.

use super::Setting;

/// Settings of Redis without a counterpart of the same meaning here, each with an alternative.
const REDIS: &[(&[&str], &str)] = &[
    (
        &[
            "appendonly",
            "appendfilename",
            "appenddirname",
            "aof-use-rdb-preamble",
            "no-appendfsync-on-rewrite",
            "auto-aof-rewrite-percentage",
            "auto-aof-rewrite-min-size",
        ],
        "there is always a log; `level` determines when a write is acknowledged: memory, buffered or synced",
    ),
    (
        &["appendfsync"],
        "there is always a log; for everysec set `level` to buffered, for always to synced",
    ),
    (
        &["save", "dbfilename", "rdbcompression", "rdbchecksum"],
        "all data are in the log; `duramen snapshot`, `SAVE` and `BGSAVE` make copies, in `snapshot-dir`",
    ),
    (
        &["maxmemory-samples", "maxmemory-eviction-tenacity"],
        "eviction has no settings; `mode = \"cache\"` turns it on",
    ),
    (
        &["daemonize", "supervised", "pidfile"],
        "the server runs in the foreground: let a supervisor start it",
    ),
    (
        &["syslog-enabled"],
        "the log goes to standard error or to `log-file`: `log-format` and `log-level` say how",
    ),
    (&["loglevel"], "here it is `log-level`"),
    (&["io-threads"], "here it is `threads`: each runs commands"),
    (
        &["protected-mode"],
        "here it is `insecure-bind`: without it, only loopback addresses are listened on",
    ),
    (
        &["client-output-buffer-limit"],
        "here it is `output-limit`, one for all clients",
    ),
    (&["client-query-buffer-limit"], "here it is `request-limit`"),
    (
        &["replicaof", "slaveof", "masterauth", "masteruser"],
        "there are no replicas of single servers: a member of a cluster names its `coordinator`",
    ),
    (
        &[
            "cluster-enabled",
            "cluster-config-file",
            "cluster-node-timeout",
        ],
        "a member of a cluster names its `coordinator`",
    ),
    (
        &[
            "cluster-announce-ip",
            "cluster-announce-hostname",
            "replica-announce-ip",
        ],
        "here it is `announce`",
    ),
    (&["user"], "here it is `users`: each line is one user"),
    (
        &["rename-command"],
        "a command is not renamed but denied: to the users of `aclfile`",
    ),
    (
        &["tls-key-file-pass", "tls-client-key-file-pass"],
        "keys have no password: write one without it by openssl pkey, readable by the server alone, for `tls-key-file`",
    ),
    (
        &["tls-client-cert-file", "tls-client-key-file"],
        "a server shows the certificate in `tls-cert-file`, wherever it connects to",
    ),
    (
        &[
            "tls-ciphers",
            "tls-ciphersuites",
            "tls-prefer-server-ciphers",
            "tls-dh-params-file",
        ],
        "suites and groups are not chosen: all that are offered are safe; `tls-protocols` chooses versions",
    ),
    (
        &["tls-session-cache-size", "tls-session-cache-timeout"],
        "the server keeps no sessions: `tls-session-caching` gives clients tickets, for up to 12 hours",
    ),
    (
        &["tls-replication"],
        "there are no replicas of single servers",
    ),
    (
        &["tls-auth-clients-user"],
        "a certificate admits to the port, and names no user: see `tls-auth-clients`",
    ),
    (
        &["include", "loadmodule"],
        "there is one file, and there are no modules",
    ),
];

/// Advice about a setting of Redis that does not exist here.
pub fn redis_hint(name: &str) -> Option<String> {
    let plain = name.to_ascii_lowercase().replace('_', "-");
    let (_, advice) = REDIS.iter().find(|(names, _)| names.contains(&&*plain))?;
    Some(format!("it is one of Redis: {advice}"))
}

/// Advice about a value of Redis that does not exist here, to be added to the error; empty if there
/// is none.
pub fn value_hint(name: &str, value: &str) -> &'static str {
    if name == "maxmemory-policy" && value.to_ascii_lowercase().starts_with("volatile-") {
        return ": here a server evicts keys with and without an expiry alike, or none";
    }
    ""
}

/// Advice about an unknown setting name.
pub fn hint(name: &str) -> String {
    let known = redis_hint(name);
    let near = || Setting::nearest(name).map(|near| format!("did you mean `{near}`?"));
    known.or_else(near).unwrap_or_else(|| {
        "no setting has a similar name: `duramen serve --help` lists them".to_owned()
    })
}

/// Advice about a line of a file that is not TOML, if it is one of a redis.conf.
pub fn redis_line_hint(line: &str) -> Option<String> {
    let (name, value) = line.trim().split_once(char::is_whitespace)?;
    let value = value.trim();
    let is_name = Setting::find(name).is_some() || redis_hint(name).is_some();
    (is_name && !value.starts_with('=')).then(|| {
        let advice = redis_hint(name).map_or_else(String::new, |hint| format!("; `{name}`: {hint}"));
        format!(
            "this looks like a line of a redis.conf; here a line is NAME = VALUE, as in TOML, with text in quotes: \
             `port = 6379`, `memory = \"1gb\"`. `duramen serve --help` lists the settings{advice}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to `appendonly` was once "did you mean `admin-port`?".
    #[test]
    fn names_of_redis_have_advice_that_names_settings() {
        for (names, advice) in REDIS {
            for name in *names {
                assert!(Setting::find(name).is_none(), "{name} is a setting");
                assert_eq!(hint(name), format!("it is one of Redis: {advice}"));
            }
            // A name in backquotes that looks like a setting must be one.
            for quoted in advice.split('`').skip(1).step_by(2) {
                let name = quoted.split(' ').next().unwrap_or_default();
                let is_setting = Setting::find(name).is_some();
                let is_command = quoted.starts_with("duramen ") || quoted.ends_with("SAVE");
                assert!(is_setting || is_command, "{quoted}");
            }
        }
        assert_eq!(hint("MAXMEMORY_SAMPLES"), hint("maxmemory-samples"));
        assert_eq!(hint("memroy"), "did you mean `memory`?");
        for distant in ["x", "frobnicate", "kubernetes-port-dns-udp", "database"] {
            assert!(
                hint(distant).starts_with("no setting has"),
                "{distant}: {}",
                hint(distant)
            );
        }
        assert!(hint("appendfsync").contains("everysec set `level` to buffered"));
    }

    #[test]
    fn lines_of_a_redis_conf_are_known() {
        for line in [
            "port 6379",
            "maxmemory 1gb",
            "appendonly yes",
            "  save 900 1",
            "bind 127.0.0.1 -::1",
        ] {
            assert!(
                redis_line_hint(line).is_some_and(|hint| hint.contains("redis.conf")),
                "{line}"
            );
        }
        let save = redis_line_hint("save 900 1").unwrap_or_default();
        assert!(save.contains("`save`: it is one of Redis: "), "{save}");
        for line in ["port = = 1", "port =6379", "frobnicate 1", "port", ""] {
            assert_eq!(redis_line_hint(line), None, "{line}");
        }
    }
}
