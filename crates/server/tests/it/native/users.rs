//! Users of native clients: logins, and the rights of each request.

use crate::native::cluster::{Cluster, DEADLINE};
use duramen_base::ids::{MapVersion, ServerId};
use duramen_client::asynchronous::{AsyncClient, wait};
use duramen_client::{Client, Error, Login, Options, Outcome, Table, Write};
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Envelope, Parsed, Reply, Trouble, decode_reply, encode_login,
    encode_ping, encode_single, parse_frame,
};
use duramen_wire::native::message::{self, Answer, Operation, Single};
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

const USERS: &str = "\
user default off
user root on >secret ~* +@all
user ann on >secret ~app:* %R~seen:* +get +set +del +incrby
user reader on >secret %R~* +get +scan
user walker on >secret ~app:* +get +scan
user elsewhere on >secret ~* +@all table:x*
user idle off >secret ~* +@all";

fn start() -> Cluster {
    Cluster::with(None, |config| config.access.users = USERS.to_owned())
}

fn login(user: &str, password: &str) -> Option<Login> {
    Some(Login {
        user: user.to_owned(),
        password: password.to_owned(),
    })
}

fn table_of(options: Options, user: &str) -> Table {
    let login = login(user, "secret");
    let client = Client::connect(Options { login, ..options }).expect("the coordinator");
    client.table("t").expect("table t")
}

/// The text of a refusal.
#[track_caller]
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

fn has_the_rights_of_ann(ann: &Table, root: &Table) {
    ann.set(b"app:1", b"v").expect("written");
    let read = ann.get(b"app:1").expect("read").expect("present");
    assert_eq!(read.value, b"v");
    root.set(b"other", b"v").expect("written");
    root.set(b"seen:1", b"v").expect("written");
    for refused in [
        refusal(ann.get(b"other")),
        refusal(ann.set(b"other", b"w")),
        refusal(ann.remove(b"other")),
        refusal(ann.increment(b"other", 1)),
        refusal(ann.set(b"seen:1", b"w")),
        refusal(ann.remove(b"seen:1")),
        refusal(ann.increment(b"seen:1", 1)),
    ] {
        assert!(refused.contains("no right to this key"), "{refused}");
    }
    assert!(ann.get(b"seen:1").expect("it may read").is_some());
    assert_eq!(ann.increment(b"app:n", 5), Ok(5));
    let refused = refusal(ann.increment_float(b"app:n", 0.5));
    assert!(refused.contains("'incrbyfloat'"), "{refused}");
    let refused = refusal(ann.scan().next().expect("an answer"));
    assert!(refused.contains("'scan'"), "{refused}");
    assert!(ann.remove(b"app:1").expect("it may remove").is_some());
    assert_eq!(
        root.get(b"other").expect("read").expect("there").value,
        b"v"
    );
}

#[test]
fn a_client_has_the_rights_of_its_user_and_no_others() {
    let cluster = start();
    let root = table_of(cluster.options(), "root");
    has_the_rights_of_ann(&table_of(cluster.options(), "ann"), &root);
    let refused = refusal(table_of(cluster.options(), "elsewhere").get(b"k"));
    assert!(refused.contains("no right to this table"), "{refused}");
}

#[test]
fn clients_with_shared_memory_have_users_too() {
    let cluster = start();
    let root = table_of(cluster.local_options(), "root");
    let ann = table_of(cluster.local_options(), "ann");
    has_the_rights_of_ann(&ann, &root);
    assert_eq!(cluster.local_clients(), 2);
    let unknown = Options {
        deadline: Duration::from_secs(5),
        ..cluster.local_options()
    };
    let table = Client::connect(unknown)
        .expect("the coordinator")
        .table("t");
    let refused = refusal(table.expect("table t").get(b"k"));
    assert!(refused.contains("log in"), "{refused}");
}

/// Each of several operations is refused by itself, and the others are done once.
#[test]
fn of_several_operations_those_without_a_right_are_refused() {
    let cluster = start();
    let (root, ann) = (
        table_of(cluster.options(), "root"),
        table_of(cluster.options(), "ann"),
    );
    let keys: Vec<String> = (0..500)
        .map(|n| match n % 3 {
            0 => format!("app:{n}"),
            _ => format!("other:{n}"),
        })
        .collect();
    let pairs: Vec<(&String, &str)> = keys.iter().map(|key| (key, "v")).collect();
    let written = ann.set_many(&pairs, Write::default());
    for (key, written) in keys.iter().zip(written) {
        match key.starts_with("app:") {
            true => assert!(matches!(written, Ok(Outcome::Written { .. })), "{key}"),
            false => assert!(refusal(written).contains("no right to this key")),
        }
    }
    let there = root.get_many(&keys);
    for (key, read) in keys.iter().zip(there) {
        let is_there = read.expect("root reads").is_some();
        assert_eq!(is_there, key.starts_with("app:"), "{key}");
    }
    let others: Vec<&String> = keys.iter().filter(|key| key.starts_with("o")).collect();
    assert!(ann.get_many(&others).into_iter().all(|read| read.is_err()));
}

#[test]
fn an_enumeration_needs_the_right_to_read_all_keys() {
    let cluster = start();
    let root = table_of(cluster.options(), "root");
    for n in 0..20 {
        root.set(format!("app:{n}").as_bytes(), b"v")
            .expect("written");
    }
    let reader = table_of(cluster.options(), "reader");
    assert_eq!(reader.scan().filter(Result::is_ok).count(), 20);
    let walker = table_of(cluster.options(), "walker");
    let refused = refusal(walker.scan().next().expect("an answer"));
    assert!(refused.contains("all keys of the table"), "{refused}");
}

#[test]
fn a_wrong_login_is_refused_at_once_and_no_more_often_than_it_must() {
    let cluster = start();
    for wrong in [
        login("ann", "guess"),
        login("eve", "secret"),
        login("idle", "secret"),
        None,
    ] {
        let options = Options {
            login: wrong.clone(),
            ..cluster.options()
        };
        let client = Client::connect(options).expect("the coordinator");
        let table = client.table("t").expect("table t");
        let began = Instant::now();
        let why = refusal(table.get(b"app:1"));
        let expected = match wrong {
            Some(_) => "invalid username-password pair",
            None => "log in",
        };
        assert!(why.contains(expected), "{why}");
        assert!(
            began.elapsed() < DEADLINE / 2,
            "it was not tried until the deadline"
        );
    }
    // A thousand calls are no thousand logins.
    let options = Options {
        login: login("ann", "guess"),
        ..cluster.options()
    };
    let client = Client::connect(options).expect("the coordinator");
    let table = client.table("t").expect("table t");
    for _ in 0..1_000 {
        refusal(table.get(b"app:1"));
    }
    table_of(cluster.options(), "ann")
        .set(b"app:1", b"v")
        .expect("its address may log in");
}

#[test]
fn an_asynchronous_client_logs_in() {
    let cluster = start();
    let options = |password| Options {
        login: login("ann", password),
        ..cluster.options()
    };
    let client = AsyncClient::new(options("secret")).expect("the coordinator");
    let table = wait(client.table("t")).expect("table t");
    wait(table.set(b"app:1", b"v")).expect("written");
    let refused = refusal(wait(table.set(b"other", b"v")));
    assert!(refused.contains("no right to this key"), "{refused}");
    let client = AsyncClient::new(options("guess")).expect("the coordinator");
    let table = wait(client.table("t")).expect("table t");
    let refused = refusal(wait(table.get(b"app:1")));
    assert!(
        refused.contains("invalid username-password pair"),
        "{refused}"
    );
}

/// A login and requests behind it in one piece; a ping needs no user.
#[test]
fn a_login_holds_from_the_next_request_on() {
    let cluster = start();
    let mut stream = cluster.raw();
    let envelope = |request| Envelope::of_client(request, ServerId::NONE, MapVersion(7));
    let mut bytes = Vec::new();
    let read = |key, request, out: &mut Vec<u8>| {
        let single = Single {
            table: cluster.table,
            key,
            operation: Operation::Read,
            level: None,
            rpc: None,
        };
        encode_single(out, &envelope(request), &single);
    };
    encode_ping(&mut bytes, &envelope(1));
    read(b"app:1", 2, &mut bytes);
    let login = message::Login {
        user: b"ann",
        password: b"secret",
    };
    encode_login(&mut bytes, &envelope(3), &login);
    read(b"app:1", 4, &mut bytes);
    read(b"other", 5, &mut bytes);
    stream.write_all(&bytes).expect("sent");
    let mut input = Vec::new();
    let mut answers = Vec::new();
    while answers.len() < 5 {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).expect("answers");
        assert_ne!(read, 0, "{answers:?}");
        input.extend_from_slice(&piece[..read]);
        while let Parsed::Frame { frame, bytes } =
            parse_frame(&input, CLIENT_FRAME_BYTES_MAX).expect("frames")
        {
            answers.push(match decode_reply(&frame).expect("an answer") {
                Reply::Client(Answer::Pong) => "pong",
                Reply::Client(Answer::Single(_)) => "outcome",
                Reply::LoggedIn => "logged in",
                Reply::Trouble(Trouble::NotPermitted { .. }) => "not permitted",
                other => panic!("{other:?}"),
            });
            input.drain(..bytes);
        }
    }
    let expected = [
        "pong",
        "not permitted",
        "logged in",
        "outcome",
        "not permitted",
    ];
    assert_eq!(answers, expected);
}
