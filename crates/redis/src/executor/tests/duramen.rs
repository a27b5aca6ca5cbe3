//! The `DURAMEN.*` commands.

use super::*;

#[test]
fn objects_have_versions_and_conditions() {
    let mut s = Server::session(1);
    s.expect("DURAMEN.READ k", "*-1\r\n");
    let reply = s.ask("DURAMEN.WRITE k one IFABSENT LEVEL memory");
    let version: u64 = reply
        .strip_prefix("*2\r\n:")
        .and_then(|rest| rest.strip_suffix("\r\n$6\r\nmemory\r\n"))
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{reply}"));
    s.expect(
        "DURAMEN.READ k",
        &format!("*2\r\n$3\r\none\r\n:{version}\r\n"),
    );
    s.expect_error(
        "DURAMEN.WRITE k two IFABSENT",
        &format!("WRONGVERSION condition failed: the object's version is {version}"),
    );
    s.expect_error(
        &format!("DURAMEN.WRITE k two IFVERSION {}", version + 1),
        "WRONGVERSION",
    );
    s.expect(
        &format!("DURAMEN.WRITE k two IFVERSION {version}"),
        &format!("*2\r\n:{}\r\n$6\r\nmemory\r\n", version + 1),
    );
    s.expect_error(
        &format!("DURAMEN.WRITE k x IFNEWER {}", version + 1),
        "WRONGVERSION",
    );
    s.expect_error(
        "DURAMEN.WRITE nosuch x IFPRESENT",
        "WRONGVERSION condition failed: the object does not exist",
    );
    s.expect_error(
        "DURAMEN.WRITE k x LEVEL synced",
        "ERR only LEVEL memory is possible",
    );
    s.expect_error("DURAMEN.WRITE k x LEVEL nosuch", "ERR LEVEL is one of");
    s.expect(
        "DURAMEN.WRITE k x IFABSENT IFPRESENT",
        "-ERR syntax error\r\n",
    );
    s.expect_error(
        &format!("DURAMEN.REMOVE k IFVERSION {version}"),
        "WRONGVERSION",
    );
    s.expect(
        "DURAMEN.REMOVE k",
        &format!("*2\r\n:{}\r\n$6\r\nmemory\r\n", version + 1),
    );
    s.expect("DURAMEN.REMOVE k", "*-1\r\n");
    let again = s.ask("DURAMEN.WRITE k three");
    assert!(
        again > format!("*2\r\n:{}", version + 1),
        "versions grow across removal: {again}"
    );
    s.ask("DURAMEN.REMOVE n");
    assert!(s.ask("DURAMEN.INCRBY n 5").starts_with("*2\r\n:5\r\n:"));
    assert!(
        s.ask("DURAMEN.INCRBYFLOAT n 0.5")
            .starts_with("*2\r\n$3\r\n5.5\r\n:")
    );
    assert!(s.ask("DURAMEN.MWRITE a 1 b 2").starts_with("*2\r\n*2\r\n:"));
    assert!(s.ask("DURAMEN.MREAD a nosuch").contains("*-1\r\n"));
    assert!(s.ask("DURAMEN.MREMOVE a nosuch").ends_with("*-1\r\n"));
    assert!(
        s.ask("DURAMEN.SCAN 0 COUNT 100 MATCH b")
            .starts_with("*2\r\n$1\r\n0\r\n*3\r\n$1\r\nb\r\n$1\r\n2\r\n:")
    );
}

#[test]
fn tables_are_made_used_and_dropped() {
    let mut s = Server::session(1);
    s.expect_error("DURAMEN.USE people", "ERR no table is called `people`");
    let id = s.number("DURAMEN.TABLE CREATE people");
    s.expect("DURAMEN.TABLE ID people", &format!(":{id}\r\n"));
    s.expect_error(
        "DURAMEN.TABLE CREATE people",
        "ERR a table called `people` exists already",
    );
    s.expect("SET k zero", "+OK\r\n");
    s.expect("DURAMEN.USE people", "+OK\r\n");
    s.expect("GET k", "$-1\r\n");
    s.expect("SET k people", "+OK\r\n");
    assert!(s.ask("DURAMEN.TABLE LIST").contains("people"));
    s.expect("DURAMEN.TABLE DROP people", "+OK\r\n");
    s.expect_error("GET k", &format!("ERR table {id} does not exist any more"));
    s.expect("SELECT 0", "+OK\r\n");
    s.expect("GET k", "$4\r\nzero\r\n");
    s.expect("SELECT 5", "+OK\r\n");
    s.expect("SET k five", "+OK\r\n");
    s.expect("DURAMEN.TABLE DROP db5", "+OK\r\n");
    s.expect_error(
        "GET k",
        "ERR the table of this database does not exist any more",
    );
    s.expect("SELECT 5", "+OK\r\n");
    s.expect("GET k", "$-1\r\n");
    s.expect_error(
        "DURAMEN.TABLE DROP default",
        "ERR the default table cannot be dropped",
    );
    s.expect_error(
        "DURAMEN.TABLET LIST",
        "ERR DURAMEN.TABLET is not supported: tablets",
    );
}

/// A dropped table's id was once given to the next table: a client that still used the dropped
/// table wrote into the new one.
#[test]
fn who_uses_a_dropped_table_does_not_write_to_another() {
    let mut s = Server::session(2);
    let (mut executor, mut other) = (s.server.executor(1), s.server.client(1));
    let mut meddle = |request: &str| run(&mut executor, &mut other, request.as_bytes());
    meddle("DURAMEN.TABLE CREATE old\r\n");
    s.expect("DURAMEN.USE old", "+OK\r\n");
    s.expect("SET k 1", "+OK\r\n");
    assert_eq!(meddle("DURAMEN.TABLE DROP old\r\n"), "+OK\r\n");
    meddle("DURAMEN.TABLE CREATE new\r\n");
    s.expect_error("SET k 2", "ERR table");
    s.expect_error("GET k", "ERR table");
    assert_eq!(meddle("DURAMEN.USE new\r\nDBSIZE\r\n"), "+OK\r\n:0\r\n");
}

/// The first SELECT of a database once created its table while SWAPDB exchanged the database with
/// another: both had the new table then, and the other database's data could not be reached.
#[test]
fn a_table_is_behind_one_database_at_most() {
    let mut s = Server::session(1);
    s.expect("SELECT 4", "+OK\r\n");
    s.expect("SET k 4", "+OK\r\n");
    s.expect("SELECT 3", "+OK\r\n");
    let made = s.server.shared.commands.table(3).unwrap();
    s.expect("SWAPDB 3 4", "+OK\r\n");
    // The slower SELECT 3 reaches its last step.
    let found = crate::command::databases::put_behind(&s.server.shared, 3, made).ok();
    assert_eq!(found, s.server.shared.commands.table(3));
    assert_ne!(found, Some(made));
    s.expect("GET k", "$1\r\n4\r\n");
    // A database does not take a table with its own name that is behind another database.
    s.expect("DURAMEN.TABLE DROP db4", "+OK\r\n");
    s.expect_error("SELECT 3", "ERR database 3 has no table");
    s.expect("SWAPDB 4 5", "+OK\r\n");
    s.expect_error("SELECT 3", "ERR database 3 has no table");
    s.expect("SELECT 4", "+OK\r\n");
}

/// SELECT once assigned a table to its database just after another client had dropped the table:
/// the database could not be used again.
#[test]
fn a_database_whose_table_is_gone_gets_another() {
    let mut s = Server::session(1);
    s.expect("SELECT 5", "+OK\r\n");
    s.expect("SET k 1", "+OK\r\n");
    let dropped = s.server.shared.commands.table(5);
    s.expect("DURAMEN.TABLE DROP db5", "+OK\r\n");
    s.expect_error(
        "GET k",
        "ERR the table of this database does not exist any more",
    );
    s.server.shared.commands.set_table(5, dropped); // as the slower SELECT did
    s.expect("SELECT 5", "+OK\r\n");
    s.expect("GET k", "$-1\r\n");
    s.expect("SET k 2", "+OK\r\n");
    s.expect("MULTI", "+OK\r\n");
    s.ask("MOVE k 0");
    s.expect("EXEC", "*1\r\n:1\r\n");
}
