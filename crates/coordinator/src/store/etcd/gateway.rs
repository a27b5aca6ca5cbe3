//! The gateway: sends requests to etcd's endpoints, one at a time. When an endpoint does not
//! answer, the next request goes to another one.
//!
//! **Concurrency** one owner. A leader has two gateways: one for its state, one for its signs of
//! life.

use super::http::{Answer, Connection, decode, encode, number};
use crate::store::unavailable;
use duramen_cluster::coordinator::store::Error;
use duramen_tls::Identity;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Pause between two tries.
const REST: Duration = Duration::from_millis(50);

/// The gateway; see the module.
pub(super) struct Gateway {
    endpoints: Vec<String>,
    /// The endpoint that answered last.
    endpoint: usize,
    connection: Option<Connection>,
    /// Longest wait for the answer to one request; beyond it the connection is dropped.
    timeout: Duration,
    prefix: String,
    access: Access,
    /// The token that the login gave.
    token: Option<String>,
}

/// How a coordinator may use etcd.
#[derive(Clone, Default)]
pub struct Access {
    /// TLS, with the authority of etcd's certificates, and a certificate of its own if etcd asks
    /// for one.
    pub identity: Option<Arc<Identity>>,
    /// A user of etcd, and the password.
    pub login: Option<(String, String)>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.login.as_ref().map(|(user, _)| user);
        f.debug_struct("Access")
            .field("tls", &self.identity.is_some())
            .field("user", &user)
            .finish_non_exhaustive()
    }
}

/// A key that was read.
pub(super) struct Row {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub revision: i64,
}

impl Gateway {
    pub fn new(endpoints: &[String], prefix: String, timeout: Duration) -> Gateway {
        assert!(!endpoints.is_empty(), "etcd has an address");
        Gateway {
            endpoints: endpoints.to_vec(),
            endpoint: 0,
            connection: None,
            timeout,
            prefix,
            access: Access::default(),
            token: None,
        }
    }

    pub fn set_access(&mut self, access: Access) {
        (self.access, self.token, self.connection) = (access, None, None);
    }

    /// A gateway to the same endpoints and keys, with a connection of its own.
    pub fn twin(&self, timeout: Duration) -> Gateway {
        Gateway {
            endpoint: self.endpoint,
            access: self.access.clone(),
            ..Gateway::new(&self.endpoints, self.prefix.clone(), timeout)
        }
    }

    pub fn key(&self, rest: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), rest].concat()
    }

    /// Sends the request to one endpoint; if it does not answer, the next request goes to another.
    pub fn ask(&mut self, path: &str, body: &Value) -> Result<Value, Error> {
        let endpoint = &self.endpoints[self.endpoint % self.endpoints.len()];
        let answer = match self.connection.take() {
            Some(connection) => Ok(connection),
            None => Connection::open(endpoint, self.access.identity.as_deref(), self.timeout),
        }
        .and_then(|mut connection| {
            if let (None, Some(login)) = (&self.token, &self.access.login) {
                let (answer, token) = log_in(&mut connection, login)?;
                if token.is_none() {
                    return Ok((connection, answer));
                }
                self.token = token;
            }
            let answer = connection.post(path, body, self.token.as_deref())?;
            Ok((connection, answer))
        });
        match answer {
            Ok((connection, answer)) if answer.status == 200 => {
                self.connection = Some(connection);
                Ok(answer.body)
            }
            Ok((_, answer)) => {
                // The token may be too old: the next request logs in again.
                self.token = None;
                let text = answer.body["error"].as_str().unwrap_or("no reason given");
                let reason = format!("etcd at {endpoint}: {text}");
                self.endpoint += 1;
                Err(unavailable(reason))
            }
            Err(error) => {
                let reason = format!("etcd at {endpoint}: {error}");
                self.endpoint += 1;
                Err(unavailable(reason))
            }
        }
    }

    /// Sends the request until an endpoint answers or the time is over. Only for requests that may
    /// be sent twice.
    pub fn ask_until(&mut self, until: Instant, path: &str, body: &Value) -> Result<Value, Error> {
        loop {
            match self.ask(path, body) {
                Err(Error::Unavailable { .. }) if Instant::now() < until => {
                    std::thread::sleep(REST);
                }
                other => return other,
            }
        }
    }

    pub fn is_at(&self, key: &[u8], revision: i64) -> Value {
        json!({
            "key": encode(&self.key(key)),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": revision.to_string(),
        })
    }

    pub fn put(&self, key: &[u8], value: &[u8]) -> Value {
        json!({ "request_put": { "key": encode(&self.key(key)), "value": encode(value) } })
    }

    pub fn delete(&self, key: &[u8]) -> Value {
        json!({ "request_delete_range": { "key": encode(&self.key(key)) } })
    }

    /// Deletes all keys with the prefix `letter/`.
    pub fn delete_all(&self, letter: u8) -> Value {
        let (from, end) = (self.key(&[letter, b'/']), self.key(&[letter, b'/' + 1]));
        json!({ "request_delete_range": { "key": encode(&from), "range_end": encode(&end) } })
    }

    pub fn get(&self, key: &[u8]) -> Value {
        json!({ "request_range": { "key": encode(&self.key(key)) } })
    }
}

/// Logs in; `None`: it is refused, by this answer.
fn log_in(
    connection: &mut Connection,
    (name, password): &(String, String),
) -> Result<(Answer, Option<String>), io::Error> {
    let body = json!({ "name": name, "password": password });
    let answer = connection.post("/v3/auth/authenticate", &body, None)?;
    let token = answer.body["token"].as_str().map(str::to_owned);
    let token = token.filter(|_| answer.status == 200);
    match (&token, answer.status) {
        (None, 200) => Err(io::Error::other("its login gave no token")),
        _ => Ok((answer, token)),
    }
}

/// A transaction: its comparisons, the operations if they hold, and those if they do not.
pub(super) fn transaction(compare: &Value, operations: &[Value], otherwise: &[Value]) -> Value {
    json!({ "compare": compare, "success": operations, "failure": otherwise })
}

/// Whether the comparisons of a transaction held.
pub(super) fn has_held(answer: &Value) -> bool {
    answer["succeeded"].as_bool() == Some(true)
}

/// The store's revision after a request.
pub(super) fn revision(answer: &Value) -> Result<i64, Error> {
    number(&answer["header"]["revision"]).ok_or_else(|| unavailable("etcd gave no revision"))
}

pub(super) fn rows(answer: &Value) -> Result<Vec<Row>, Error> {
    let kvs = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice);
    let row = |kv: &Value| {
        Some(Row {
            key: decode(&kv["key"])?,
            value: decode(&kv["value"])?,
            revision: number(&kv["mod_revision"])?,
        })
    };
    kvs.iter()
        .map(|kv| row(kv).ok_or_else(|| unavailable("etcd's answer makes no sense")))
        .collect()
}
