//! Logins of admin HTTP: the users of the RESP port, by HTTP Basic.
//!
//! **Invariants**
//! - G1: a guarded page is made only after the check: for a user that may run the page's command. A
//!   request without a login has the rights of the default user, if that needs no password, and if
//!   the users of the cluster are known (users::V4). With TLS and `tls-auth-clients yes`, the
//!   client must also have shown a certificate; a probe needs none.
//! - G2: a failed login is slowed, counted and recorded as a failed login at the RESP port is. The
//!   failures of one address at both ports count together.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use duramen_acl::basic::{CHALLENGE, Login, parse};
use duramen_acl::{LoginError, User};
use duramen_config::ClientAuth;
use duramen_config::clock::now_ms;
use duramen_redis::access;
use duramen_redis::access::{Origin, Outcome, Reason, Record};
use duramen_redis::state::Shared;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The name of this port in the logs.
const PORT: &str = "admin-http";

/// The client of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// Whether the client has shown a certificate of a trusted authority; `None` without TLS.
    pub(super) certificate: Option<bool>,
}

/// Guards some pages.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) shared: Arc<Shared>,
    /// The command that a user must be allowed to run.
    pub(super) command: &'static str,
}

/// The login in a request.
enum Given {
    Nothing,
    Malformed,
    Login(Login),
}

impl Given {
    /// The login in the header `Authorization`.
    fn of(value: &[u8]) -> Given {
        parse(value).map_or(Given::Malformed, Given::Login)
    }
}

/// Reason why a page is not served.
enum Refusal {
    /// The client is asked for a login, with this text.
    LogIn(&'static str),
    TooMany,
    /// Its user may not see the page.
    Forbidden(String),
    /// The users of the cluster are not known yet (users::V4).
    NotYet,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Refusal::LogIn(text) => {
                let challenge = [(header::WWW_AUTHENTICATE, CHALLENGE)];
                (StatusCode::UNAUTHORIZED, challenge, text).into_response()
            }
            Refusal::TooMany => {
                let text = "too many failed logins from this address: try again in some seconds\n";
                (StatusCode::TOO_MANY_REQUESTS, text).into_response()
            }
            Refusal::Forbidden(text) => (StatusCode::FORBIDDEN, text).into_response(),
            Refusal::NotYet => {
                let text = "this member has not heard from its coordinator yet, and so does not \
                            know who may see this\n";
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        }
    }
}

/// Serves a request of a user that may run the command, and refuses any other (G1).
pub(super) async fn admit(
    State(guard): State<Guard>,
    Extension(Peer {
        address: peer,
        certificate,
    }): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let must_show = guard.shared.config().tls_auth_clients == ClientAuth::Yes;
    if must_show && certificate == Some(false) {
        return Refusal::Forbidden("show a certificate (tls-auth-clients)\n".to_owned())
            .into_response();
    }
    let value = request.headers().get(header::AUTHORIZATION);
    let given = value.map_or(Given::Nothing, |value| Given::of(value.as_bytes()));
    match guard.user(given, peer) {
        Ok(user)
            if guard
                .shared
                .waits_for_users(Some(&user), guard.shared.acl().generation()) =>
        {
            Refusal::NotYet.into_response()
        }
        Ok(user) => match guard.allows(&user, value.is_some(), peer) {
            Ok(()) => next.run(request).await,
            Err(refusal) => refusal.into_response(),
        },
        Err((refusal, wait)) => {
            tokio::time::sleep(wait).await;
            refusal.into_response()
        }
    }
}

impl Guard {
    /// The user of a request, or the refusal and the time before which it must not be sent.
    fn user(&self, given: Given, peer: SocketAddr) -> Result<Arc<User>, (Refusal, Duration)> {
        let (shared, users) = (&self.shared, self.shared.acl().users());
        let at_once = |text| (Refusal::LogIn(text), Duration::ZERO);
        let Login { user, password } = match given {
            Given::Login(login) => login,
            Given::Malformed => return Err(at_once("this is no login of HTTP Basic\n")),
            Given::Nothing => {
                let default = users.default_user();
                let is_open = default.is_open().then(|| Arc::clone(default));
                return is_open.ok_or(at_once("log in\n"));
            }
        };
        let now_ms = now_ms();
        let known = shared
            .logins()
            .log_in(&users, peer.ip(), (&user, &password), now_ms);
        known.map(Arc::clone).map_err(|error| {
            access::note_failed_login(shared, &origin(peer, ""), PORT.as_bytes(), &user);
            let LoginError::Wrong { until_ms } = error else {
                return (Refusal::TooMany, Duration::ZERO);
            };
            let wait_ms = until_ms.map_or(0, |until_ms| until_ms.saturating_sub(now_ms));
            let refusal = Refusal::LogIn("wrong user or password, or the user is off\n");
            (refusal, Duration::from_millis(wait_ms))
        })
    }

    /// Checks whether a user may run the command; returns the refusal if not. A client that has
    /// given no login is asked for one.
    fn allows(&self, user: &User, has_login: bool, peer: SocketAddr) -> Result<(), Refusal> {
        let Guard { shared, command } = self;
        if user.has(command, shared.acl().catalog()) {
            return Ok(());
        }
        let origin = origin(peer, user.name());
        if shared.audit().is_on() {
            shared.audit().add(&Record {
                user: &origin.user,
                address: &origin.address,
                client: origin.client,
                command,
                class: "other",
                outcome: Outcome::Denied,
                key: None,
                args: &[],
            });
        }
        access::note_denial(
            shared,
            origin,
            Reason::Command,
            command.as_bytes().to_vec(),
            PORT,
        );
        Err(match has_login {
            false => Refusal::LogIn("log in\n"),
            true => {
                Refusal::Forbidden(format!("user {} needs the right +{command}\n", user.name()))
            }
        })
    }
}

fn origin(peer: SocketAddr, user: &str) -> Origin {
    Origin {
        user: user.to_owned(),
        address: peer.to_string(),
        client: 0,
        line: format!("addr={peer} name={PORT} user={user}"),
    }
}
