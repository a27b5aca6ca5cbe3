//! Rules, their printed form, and the check.

use crate::{Access, Catalog, Command, Denied, Fault, Request, RuleError, User, Users};
use proptest::prelude::*;

const READ: u32 = 1 << 1;
const WRITE: u32 = 1 << 2;
const ADMIN: u32 = 1 << 13;

fn catalog() -> Catalog {
    let command = |name, categories| Command {
        name,
        categories,
        is_free: name == "auth",
    };
    Catalog::new([
        command("get", READ),
        command("set", WRITE),
        command("auth", 0),
        command("config", 0),
        command("config|get", ADMIN),
        command("config|set", ADMIN),
        command("select", 0),
        command("ping", 0),
    ])
}

struct Asked<'a> {
    command: usize,
    args: Vec<&'a [u8]>,
    access: Access,
    table: &'a str,
}

impl Request for Asked<'_> {
    fn command(&self) -> usize {
        self.command
    }
    fn arg(&self, position: usize) -> Option<&[u8]> {
        self.args.get(position).copied()
    }
    fn each_key(&self, look: &mut dyn FnMut(usize, &[u8], Access) -> bool) {
        if self.command < 2 {
            let mut keys = self.args.iter().enumerate().skip(1);
            let _ = keys.all(|(position, key)| look(position, key, self.access));
        }
    }
    fn each_channel(&self, look: &mut dyn FnMut(usize, &[u8], bool) -> bool) {
        if self.command == 7 {
            look(1, self.arg(1).unwrap_or_default(), false);
        }
    }
    fn each_table(&self, look: &mut dyn FnMut(usize, Option<&str>) -> bool) {
        if self.command < 2 {
            look(0, Some(self.table));
        }
    }
}

fn ask(user: &User, catalog: &Catalog, request: &str) -> Result<(), Denied> {
    let mut args: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
    let name = String::from_utf8_lossy(args[0]).into_owned();
    let command = catalog.find(&name).expect("a command");
    if name.contains('|') {
        args[0] = b"config";
    }
    let request = Asked {
        command,
        access: Access {
            reads: name == "get",
            writes: name == "set",
        },
        args,
        table: "default",
    };
    user.check(&request, catalog)
}

fn user(catalog: &Catalog, rules: &str) -> Result<User, Fault> {
    let mut users = Users::new(catalog);
    users.set(b"u", rules.split(' ').map(str::as_bytes), catalog)?;
    let user = users.get("u").expect("it was made");
    Ok(User::clone(user))
}

#[test]
fn a_request_needs_a_selector_that_allows_all_of_it() {
    let catalog = catalog();
    for (rules, request, expected) in [
        ("~* +@all", "get a", Ok(())),
        ("~*", "get a", Err(Denied::Command)),
        ("+get", "get a", Err(Denied::Key(1))),
        ("+get ~a", "get a a b", Err(Denied::Key(3))),
        ("+get ~a ~b", "get a b", Ok(())),
        ("+@all %R~a", "get a", Ok(())),
        ("+@all %R~a", "set a", Err(Denied::Key(1))),
        ("+@all %R~a %W~a", "set a", Ok(())),
        ("+@all ~* -@write", "set a", Err(Denied::Command)),
        ("+@all ~* -@write +set", "set a", Ok(())),
        ("+config", "config|set x", Ok(())),
        ("+config -config|set", "config|set x", Err(Denied::Command)),
        ("+config|get", "config|get x", Ok(())),
        ("+config|get", "config|set x", Err(Denied::Command)),
        ("+select|0", "select 0", Ok(())),
        ("+select|0", "select 1", Err(Denied::Command)),
        ("+select|0 -select", "select 0", Err(Denied::Command)),
        ("", "auth x", Ok(())),
        ("+get ~a (+set ~b)", "set b", Ok(())),
        ("+get ~a (+set ~b)", "set a", Err(Denied::Key(1))),
        ("+get ~a (+set ~b)", "get b", Err(Denied::Key(1))),
        ("+@all ~* table:default", "get a", Ok(())),
        ("+@all ~* table:other", "get a", Err(Denied::Table(0))),
        ("+@all ~* resettables", "get a", Err(Denied::Table(0))),
        ("+@all ~* table:d* table:x", "get a", Ok(())),
        ("+ping", "ping c", Err(Denied::Channel(1))),
        ("+ping &c*", "ping c", Ok(())),
        ("+ping allchannels", "ping c", Ok(())),
    ] {
        let user = user(&catalog, rules).expect("right rules");
        assert_eq!(
            ask(&user, &catalog, request),
            expected,
            "{rules}: {request}"
        );
    }
}

#[test]
fn a_user_with_all_rights_is_known_as_such() {
    let catalog = catalog();
    for (rules, expected) in [
        ("~* &* +@all", true),
        ("~* &* +@all -get", false),
        ("~* &* +@all -get +get", true),
        ("~* &* +get +set +auth +config +select +ping", false),
        ("~* +@all", false),
        ("&* +@all", false),
        ("~* &* +@all table:x", false),
        ("~* &* +@all table:x alltables", true),
        ("+get (~* &* +@all)", true),
    ] {
        let user = user(&catalog, rules).expect("right rules");
        assert_eq!(user.is_unrestricted(), expected, "{rules}");
        assert_eq!(
            user.has("get", &catalog),
            !rules.ends_with("-get"),
            "{rules}"
        );
    }
}

#[test]
fn wrong_rules_have_redis_s_texts_and_change_nothing() {
    let catalog = catalog();
    let mut users = Users::new(&catalog);
    users
        .set(b"u", [&b"on"[..]], &catalog)
        .expect("right rules");
    let before = users.print();
    for (rule, why) in [
        ("+nosuch", RuleError::Unknown),
        ("+@nosuch", RuleError::Unknown),
        ("+config|nosuch", RuleError::Unknown),
        ("-select|0", RuleError::Unknown),
        ("+config|get|x", RuleError::FirstArgOfSubcommand),
        ("+get|", RuleError::Syntax),
        ("%~x", RuleError::Syntax),
        ("%RR~x", RuleError::Syntax),
        ("table:", RuleError::Syntax),
        ("what", RuleError::Syntax),
        ("(what)", RuleError::Syntax),
        ("<none", RuleError::NoSuchPassword),
        ("#12", RuleError::NotAHash),
    ] {
        let rules = [&b">new"[..], b"+get", rule.as_bytes()];
        let fault = users.set(b"u", rules, &catalog);
        assert!(
            matches!(&fault, Err(Fault::Rule { why: found, .. }) if *found == why),
            "{rule}: {fault:?}"
        );
    }
    let after_all = users.set(b"u", [&b"allkeys"[..], b"~x"], &catalog);
    assert!(matches!(
        after_all,
        Err(Fault::Rule {
            why: RuleError::AfterAllKeys,
            ..
        })
    ));
    assert!(matches!(users.set(b"a b", [], &catalog), Err(Fault::Name)));
    assert!(matches!(
        users.set(b"u", [&b"(~a"[..]], &catalog),
        Err(Fault::Parenthesis(_))
    ));
    let long = format!("~{}", "x".repeat(1025));
    let long = users.set(b"u", [long.as_bytes()], &catalog);
    assert!(matches!(
        long,
        Err(Fault::Rule {
            why: RuleError::LongPattern,
            ..
        })
    ));
    assert_eq!(users.print(), before, "users::A1");
}

#[test]
fn passwords_are_kept_as_digests_and_never_shown() {
    let catalog = catalog();
    let mut one = user(&catalog, "on >first >second").expect("right rules");
    assert!(one.accepts(b"first") && one.accepts(b"second") && !one.accepts(b"third"));
    let printed = String::from_utf8(one.print()).expect("text");
    assert!(!printed.contains("first"), "users::A3: {printed}");
    one = user(&catalog, ">first").expect("right rules");
    assert!(!one.accepts(b"first"), "it is off");
    one = user(&catalog, "on nopass").expect("right rules");
    assert!(one.accepts(b"anything") && one.is_open());
    let wrong = user(&catalog, "on <hidden").expect_err("there is no such password");
    assert!(!wrong.to_string().contains("hidden"), "{wrong}");
}

#[test]
fn a_file_is_taken_as_a_whole_and_its_faults_have_lines() {
    let catalog = catalog();
    let mut users = Users::new(&catalog);
    users
        .set(b"old", [&b"on"[..], b"+get"], &catalog)
        .expect("right rules");
    let id = users.get("old").expect("it was made").id();
    let text = b"# users\n\nuser old on +set\n  user new on >p ~a:* +get (~b +set)\n";
    let loaded = users.load(text, "f", &catalog).expect("a right file");
    let names: Vec<&str> = loaded.iter().map(|user| user.name()).collect();
    assert_eq!(names, ["default", "new", "old"]);
    let old = loaded.get("old").expect("it is in the file");
    assert_eq!(old.id(), id, "it keeps its connections");
    assert_eq!(
        old.root().commands(),
        "-@all +set",
        "a line describes the whole user"
    );
    assert!(loaded.default_user().is_open());
    let again = loaded
        .load(&loaded.print(), "f", &catalog)
        .expect("users::A2");
    assert_eq!(again.print(), loaded.print());
    let wrong = b"user a +nosuch\nsomething\nuser b on\nuser b on\nuser\nuser c (~x\n";
    let faults = users
        .load(wrong, "f", &catalog)
        .expect_err("a wrong file")
        .to_string();
    let lines: Vec<&str> = faults
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(lines, ["f:1:", "f:2:", "f:4:", "f:5:", "f:6:"], "{faults}");
    // Redis's words, which its tests look for.
    assert!(faults.contains("f:4: Duplicate user 'b' found"), "{faults}");
}

/// users::A5: one server sees both changes, another only their result.
#[test]
fn a_user_that_was_made_again_is_another_one_everywhere() {
    let catalog = catalog();
    let rules: [&[u8]; 2] = [b"on", b">secret"];
    let mut here = Users::new(&catalog);
    here.set(b"u", rules, &catalog).expect("right rules");
    let load = |before: &Users, text: &[u8]| before.load(text, "f", &catalog).expect("printed");
    let there = load(&Users::new(&catalog), &here.print_with_ids());
    let id = |users: &Users| users.get("u").expect("it is there").id();
    assert_eq!(id(&there), id(&here));
    here.set(b"u", [&b"+get"[..]], &catalog)
        .expect("a right rule");
    assert_eq!(
        id(&load(&there, &here.print_with_ids())),
        id(&there),
        "it was changed"
    );
    assert!(here.remove("u"));
    here.set(b"u", rules, &catalog).expect("right rules");
    let after = load(&there, &here.print_with_ids());
    assert_eq!(id(&after), id(&here));
    assert_ne!(id(&after), id(&there), "its connections are closed");
    assert_eq!(after.print_with_ids(), here.print_with_ids());
    // Without ids, as older programs print it: what is there is the same user.
    assert_eq!(id(&load(&there, &here.print())), id(&there));
}

#[test]
fn the_default_user_stays() {
    let catalog = catalog();
    let mut users = Users::new(&catalog);
    assert!(!users.remove("default") && !users.remove("nobody"));
    users.set(b"u", [], &catalog).expect("right rules");
    let id = users.get("u").expect("it was made").id();
    assert!(users.remove("u") && users.get("u").is_none());
    users.set(b"u", [], &catalog).expect("right rules");
    assert_ne!(
        users.get("u").expect("it was made").id(),
        id,
        "another user of that name"
    );
}

fn rule() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "on",
        "off",
        "nopass",
        "resetpass",
        ">a",
        ">b",
        "<a",
        "allkeys",
        "resetkeys",
        "allchannels",
        "resetchannels",
        "+@all",
        "-@all",
        "+get",
        "-get",
        "+set",
        "-@write",
        "+@read",
        "+config",
        "-config|set",
        "+config|get",
        "+select|0",
        "+select|1",
        "-select",
        "table:a",
        "table:b*",
        "alltables",
        "resettables",
        "(~a +get)",
        "(%R~b +@all -set)",
        "clearselectors",
        "reset",
        "skip-sanitize-payload",
        "&c",
        "&d*",
        "~k",
        "%R~k",
        "%W~l",
        "%RW~m",
    ]);
    fixed.prop_map(str::to_owned)
}

fn hostile() -> impl Strategy<Value = String> {
    let pieces = [
        "(",
        ")",
        " ",
        "\n",
        "~a",
        "~*",
        "&c",
        "+get",
        "+select|0",
        "+get|",
        "x",
        "+@all",
        "user v",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 1..8)
        .prop_map(|rule| rule.concat())
}

#[test]
fn a_rule_cannot_end_its_user_or_its_selector() {
    let catalog = catalog();
    for rule in [
        "+get|a b",
        "+get|x\nuser eve on nopass ~* +@all",
        "(~a) +get)",
        "(~a +get|x))",
        "((~a)",
    ] {
        let mut users = Users::new(&catalog);
        let set = users.set(b"u", [rule.as_bytes()], &catalog);
        assert!(set.is_err(), "{rule}");
        assert!(users.get("u").is_none());
    }
}

proptest! {
    /// users::A2. Rules that do not fit the user (a pattern after `*`) are left out.
    #[test]
    fn printed_rules_make_an_equal_user(rules in prop::collection::vec(rule(), 0..30)) {
        let catalog = catalog();
        let mut users = Users::new(&catalog);
        for rule in &rules {
            let _ = users.set(b"u", [rule.as_bytes()], &catalog);
        }
        let loaded = users.load(&users.print(), "f", &catalog).expect("printed users are right");
        prop_assert_eq!(loaded.print(), users.print());
        let (Some(one), Some(other)) = (users.get("u"), loaded.get("u")) else {
            return Ok(());
        };
        prop_assert_eq!(one.is_unrestricted(), other.is_unrestricted());
        for request in ["get k", "set k", "set l", "get b", "config|set x", "config|get x",
            "select 0", "select 1", "ping c", "ping d1", "auth x"] {
            prop_assert_eq!(
                ask(one, &catalog, request),
                ask(other, &catalog, request),
                "{}: {}", String::from_utf8_lossy(&one.print()), request
            );
        }
    }

    /// users::A2 for rules that are made to break it: with parentheses, spaces and ends of lines.
    #[test]
    fn no_rule_is_printed_as_something_else(rules in prop::collection::vec(hostile(), 1..4)) {
        let catalog = catalog();
        let mut users = Users::new(&catalog);
        for rule in &rules {
            let _ = users.set(b"u", [rule.as_bytes()], &catalog);
        }
        let loaded = users.load(&users.print(), "f", &catalog).expect("printed users are right");
        prop_assert_eq!(loaded.print(), users.print());
        prop_assert_eq!(
            loaded.get("u").is_some_and(|user| user.is_unrestricted()),
            users.get("u").is_some_and(|user| user.is_unrestricted())
        );
    }

    /// No bytes of a file lead to a panic.
    #[test]
    fn any_file_is_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..300)) {
        let catalog = catalog();
        let users = Users::new(&catalog);
        let line = [b"user u ", &text[..]].concat();
        for text in [text, line] {
            if let Ok(loaded) = users.load(&text, "f", &catalog) {
                let again = loaded.load(&loaded.print(), "f", &catalog).expect("users::A2");
                prop_assert_eq!(again.print(), loaded.print());
            }
        }
    }
}
