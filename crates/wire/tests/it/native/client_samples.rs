//! Samples of client messages, and of troubles.

use crate::native::samples::OTHER;
use duramen_base::ids::{ClientId, Level, RpcId, TableId};
use duramen_wire::native::codec::Trouble;
use duramen_wire::native::message::{
    Amount, Condition, Expiry, Login, Object, Operation, Outcome, Problem, Rpc, Single,
};

pub const LOGIN: Login<'static> = Login {
    user: b"ann",
    password: b"open sesame",
};

pub fn singles() -> Vec<Single<'static>> {
    let rpc = Some(Rpc {
        client: ClientId(1),
        id: RpcId(9),
        acknowledged: RpcId(8),
    });
    let single = |operation, level, rpc| Single {
        table: TableId(5),
        key: b"key",
        operation,
        level,
        rpc,
    };
    let write = |condition, expiry| Operation::Write {
        value: b"value",
        condition,
        expiry,
    };
    vec![
        single(Operation::Read, None, None),
        single(write(Condition::Always, Expiry::Never), None, rpc),
        single(
            write(Condition::Absent, Expiry::Keep),
            Some(Level::Memory),
            None,
        ),
        single(
            write(Condition::Version(7), Expiry::At(1000)),
            Some(Level::Synced),
            rpc,
        ),
        single(
            Operation::Remove {
                condition: Condition::Present,
            },
            None,
            rpc,
        ),
        single(
            Operation::Remove {
                condition: Condition::NewerThan(7),
            },
            None,
            None,
        ),
        single(
            Operation::Increment {
                by: Amount::Integer(-1),
            },
            None,
            rpc,
        ),
        single(
            Operation::Increment {
                by: Amount::Float(1.5),
            },
            None,
            None,
        ),
    ]
}

pub fn problems() -> Vec<Problem<'static>> {
    vec![
        Problem::UnknownTablet,
        Problem::UnknownTable,
        Problem::Retry { after_ms: 5 },
        Problem::Stale,
        Problem::LeaseExpired,
        Problem::NotANumber,
        Problem::Overflow,
        Problem::TooLarge,
        Problem::Full { what: "memory" },
        Problem::Failed { reason: "disk" },
        Problem::InProgress { after_ms: 6 },
        Problem::WrongType,
    ]
}

pub fn outcomes() -> Vec<Outcome<'static>> {
    let mut all = vec![
        Outcome::Value {
            version: 7,
            expires_at_ms: None,
            value: b"value",
        },
        Outcome::Value {
            version: 7,
            expires_at_ms: Some(1000),
            value: b"",
        },
        Outcome::Absent,
        Outcome::Written { version: 8 },
        Outcome::Removed { version: 8 },
        Outcome::Number {
            value: Amount::Integer(-1),
            version: 9,
        },
        Outcome::Number {
            value: Amount::Float(1.5),
            version: 9,
        },
        Outcome::ConditionFailed { current: Some(7) },
        Outcome::ConditionFailed { current: None },
    ];
    all.extend(problems().into_iter().map(Outcome::Problem));
    all
}

pub fn objects() -> Vec<Object<'static>> {
    vec![
        Object {
            version: 7,
            expires_at_ms: None,
            key: b"key",
            value: b"value",
        },
        Object {
            version: 8,
            expires_at_ms: Some(1000),
            key: b"",
            value: b"",
        },
    ]
}

pub fn troubles() -> Vec<Trouble<'static>> {
    vec![
        Trouble::Malformed { reason: "no" },
        Trouble::WrongServer { here: OTHER },
        Trouble::WrongCluster { reason: "c" },
        Trouble::WrongProtocol { reason: "1" },
        Trouble::NotServing {
            reason: "coordinator",
        },
        Trouble::Busy { after_ms: 5 },
        Trouble::NotPermitted { reason: "token" },
    ]
}
