//! Errors that clients get while the data is being loaded; the same connections are served
//! afterwards.

use super::{Executor, ending, run};
use crate::access;
use crate::command::turn::Ending;
use crate::durability::Progress;
use crate::state::Shared;
use crate::state::client::Client;
use crate::threads::clients::ClientRecord;
use duramen_config::{Level, ServerConfig};
use duramen_engine::{Options, Store};
use duramen_wire::native::message::ClusterUsers;
use std::sync::Arc;
use std::time::Duration;

fn loading(requirepass: &str) -> (Arc<Shared>, Executor, Client) {
    loading_with(|config| config.requirepass = requirepass.to_owned())
}

fn loading_with(change: impl FnOnce(&mut ServerConfig)) -> (Arc<Shared>, Executor, Client) {
    let mut config = ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        ..ServerConfig::default()
    };
    change(&mut config);
    let shared = super::shared(config).expect("shared state");
    let executor = Executor::new(Arc::clone(&shared), 0).expect("an executor");
    let address = "127.0.0.1:1".parse().expect("an address");
    let record = Arc::new(ClientRecord::new(1, 0, 0, 3, address, address, 1));
    shared.threads[0].clients.insert(Arc::clone(&record));
    (shared, executor, Client::new(record))
}

fn serve(shared: &Shared) {
    let store = Store::new(Options {
        huge_pages: false,
        heads: 1,
        ..Options::new(64 << 20)
    })
    .expect("a store");
    shared.serve(store, None);
}

/// users::V4: a stranger could stop a member that waited for its coordinator, or read its settings.
#[test]
fn a_member_obeys_no_stranger_before_it_has_heard_who_may_command() {
    // It answered those that are not administrative.
    let commands = b"CONFIG GET port\r\nCONFIG SET maxclients 50\r\nSHUTDOWN\r\n\
        ACL SETUSER u on\r\nMULTI\r\nSUBSCRIBE c\r\nPSUBSCRIBE *\r\nPUBLISH c m\r\n\
        INFO server\r\nECHO e\r\nCLIENT LIST\r\nCOMMAND COUNT\r\nPUBSUB CHANNELS\r\n\
        CLIENT SETNAME me\r\nACL WHOAMI\r\n";
    let member = |requirepass: &str| {
        loading_with(|config| {
            config.coordinator = "127.0.0.1:1".to_owned();
            config.requirepass = requirepass.to_owned();
        })
    };
    let (shared, mut executor, mut client) = member("");
    let text = run(&mut executor, &mut client, commands);
    let waits = text.matches("-LOADING this member has not heard").count();
    assert_eq!((waits, text.lines().count()), (15, 15), "{text}");
    // These give a password, or end the connection.
    let text = run(
        &mut executor,
        &mut client,
        b"HELLO 3\r\nAUTH a b\r\nRESET\r\n",
    );
    let replies: Vec<&str> = text.lines().collect();
    assert!(replies[0].starts_with('%'), "{text}");
    assert!(
        text.contains("-WRONGPASS") && text.contains("+RESET"),
        "{text}"
    );
    // Once it has heard that there are none, its own users decide.
    access::adopt_first_users(&shared, &ClusterUsers::default()).expect("none");
    assert!(!client.login().must_wait(shared.acl()));
    // A password of its own decides before.
    let (shared, mut executor, mut client) = member("secret");
    assert!(!client.login().must_wait(shared.acl()));
    // But nobody changes users that those of the cluster may replace.
    let changes =
        b"AUTH secret\r\nCONFIG GET port\r\nACL SETUSER u on\r\nACL DELUSER u\r\nACL LOAD\r\n";
    let text = run(&mut executor, &mut client, changes);
    let refused = text
        .matches("-LOADING this member serves no data yet")
        .count();
    assert_eq!(refused, 3, "{text}");
    assert!(text.contains("port") && shared.acl().users().get("u").is_none());
}

/// users::V4: another user without a password administrated.
#[test]
fn no_user_without_a_password_commands_before_the_cluster_is_heard() {
    let (_shared, mut executor, mut client) = loading_with(|config| {
        config.coordinator = "127.0.0.1:1".to_owned();
        config.requirepass = "secret".to_owned();
        config.access.users = "user guest on nopass ~* +@all".to_owned();
    });
    let commands = b"AUTH guest any\r\nCONFIG GET port\r\n";
    let text = run(&mut executor, &mut client, commands);
    assert!(
        text.starts_with("+OK\r\n-LOADING this member has not heard"),
        "{text}"
    );
}

/// users::V4: a connection from before the cluster's users had the rights of the one of the same
/// name, until it was closed.
#[test]
fn nobody_from_before_the_clusters_users_is_one_of_them() {
    for (first, is_user) in [
        ("PING\r\n", false),
        ("AUTH default any\r\n", true),
        ("AUTH ann own\r\n", true),
    ] {
        let (shared, mut executor, mut client) = loading_with(|config| {
            config.coordinator = "127.0.0.1:1".to_owned();
            config.access.users = "user ann on >own ~* +@all".to_owned();
        });
        run(&mut executor, &mut client, first.as_bytes());
        let rules = shared.acl().users().print_with_ids();
        let rules = String::from_utf8(rules).expect("text");
        let rules = rules
            .replace("nopass", &format!("#{}", "0".repeat(64)))
            .into_bytes();
        access::adopt_first_users(&shared, &ClusterUsers { rules, revision: 1 })
            .expect("right users");
        let text = run(&mut executor, &mut client, b"CONFIG GET port\r\n");
        if !is_user {
            // It was told to wait before it was the default user.
            assert!(text.starts_with("-NOAUTH"), "{text}");
            continue;
        }
        assert_eq!(text, "", "after {first}");
        assert_eq!(ending(&client), Ending::CloseNow);
    }
}

#[test]
fn data_has_to_wait_and_then_the_same_connection_is_served() {
    let (shared, mut executor, mut client) = loading("");
    let refused = run(
        &mut executor,
        &mut client,
        b"SET k v\r\nGET k\r\nDBSIZE\r\nPING\r\nECHO hello\r\nEXEC\r\n",
    );
    let replies: Vec<&str> = refused.split_terminator("\r\n").collect();
    assert_eq!(replies.len(), 7, "{refused}");
    for reply in &replies[..4] {
        assert!(
            reply.starts_with("-LOADING Duramen is loading the dataset in memory: "),
            "{reply}"
        );
    }
    assert_eq!(replies[4..6], ["$5", "hello"]);
    assert!(replies[6].starts_with("-EXECABORT"), "{refused}");
    serve(&shared);
    assert_eq!(
        run(&mut executor, &mut client, b"SET k v\r\nGET k\r\n"),
        "+OK\r\n$1\r\nv\r\n"
    );
}

#[test]
fn info_tells_how_far_it_is() {
    let (shared, mut executor, mut client) = loading("");
    shared.storage.set_progress(Progress {
        now: Some(duramen::Progress {
            phase: duramen::Phase::Segments,
            bytes_done: 25 << 20,
            bytes_total: 100 << 20,
            entries_done: 1234,
            entries_total: 0,
            elapsed: Duration::from_secs(2),
        }),
    });
    let info = run(&mut executor, &mut client, b"INFO everything\r\n");
    for line in [
        "loading:1",
        "loading_total_bytes:104857600",
        "loading_loaded_perc:25.00",
        "loading_eta_seconds:6",
        "duramen_loading_entries:1234",
    ] {
        assert!(info.contains(&format!("{line}\r\n")), "{line} in {info}");
    }
    let refused = run(&mut executor, &mut client, b"GET k\r\n");
    assert!(
        refused.contains("25 % of 100 MB, about 7 s left"),
        "{refused}"
    );
    serve(&shared);
    let info = run(&mut executor, &mut client, b"INFO persistence\r\n");
    assert!(info.contains("loading:0\r\n"), "{info}");
}

/// The first start in a large directory once reported "loading: 0 entries so far" as long as its
/// files were written.
#[test]
fn a_new_directory_is_told_apart_from_one_that_is_loaded() {
    let (shared, mut executor, mut client) = loading("");
    shared.storage.set_progress(Progress {
        now: Some(duramen::Progress {
            phase: duramen::Phase::Making,
            bytes_done: 0,
            bytes_total: 0,
            entries_done: 0,
            entries_total: 0,
            elapsed: Duration::from_secs(2),
        }),
    });
    let refused = run(&mut executor, &mut client, b"GET k\r\n");
    assert!(
        refused.contains("the files of a new directory are laid out"),
        "{refused}"
    );
    assert!(!refused.contains("entries"), "{refused}");
}

#[test]
fn strangers_learn_nothing_while_it_loads() {
    let (_shared, mut executor, mut client) = loading("secret");
    let replies = run(
        &mut executor,
        &mut client,
        b"GET k\r\nINFO\r\nAUTH wrong\r\nAUTH secret\r\nGET k\r\n",
    );
    let replies: Vec<&str> = replies.split_terminator("\r\n").collect();
    assert_eq!(replies[0], "-NOAUTH Authentication required.");
    assert_eq!(replies[1], "-NOAUTH Authentication required.");
    assert!(replies[2].starts_with("-WRONGPASS"), "{replies:?}");
    assert_eq!(replies[3], "+OK");
    assert!(replies[4].starts_with("-LOADING"), "{replies:?}");
}

#[test]
fn a_transaction_that_begins_while_it_loads_is_refused_as_a_whole() {
    let (shared, mut executor, mut client) = loading("");
    let replies = run(&mut executor, &mut client, b"MULTI\r\nSET k v\r\n");
    assert!(replies.starts_with("+OK\r\n-LOADING"), "{replies}");
    serve(&shared);
    let replies = run(&mut executor, &mut client, b"EXEC\r\nGET k\r\n");
    assert!(replies.starts_with("-EXECABORT"), "{replies}");
    assert!(replies.ends_with("$-1\r\n"), "{replies}");
}
