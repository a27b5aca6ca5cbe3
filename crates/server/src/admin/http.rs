//! Connections and routes of admin HTTP. Both have limits; connections use TLS if the settings say
//! so. A page is served only to a user who may read it.

use super::exposition::Format;
use super::guard::{Guard, Peer, admit};
use super::metrics;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use duramen_config::certificates::Certificates;
use duramen_config::{process, seldom};
use duramen_engine::Store;
use duramen_redis::operation::Footprint;
use duramen_redis::operation::figures::{self, Member};
use duramen_redis::state::Shared;
use duramen_redis::state::flash_stats;
use duramen_redis::threads::Stop;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Maximum number of connections. One more closes the oldest, so that a probe is answered beside
/// any number of clients that never finish their request.
const CONNECTIONS_MAX: usize = 32;
/// Limits of a request's headers: time until they are complete, and size in bytes.
const HEADERS_WITHIN: Duration = Duration::from_secs(2);
const HEADERS_BYTES_MAX: usize = 16 << 10;
/// Maximum age of a connection, which serves one request. The limit bounds how long a peer that
/// does not read keeps its place.
const CONNECTION_FOR: Duration = Duration::from_secs(5);

const INDEX: &str = "\
duramen admin

/metrics   counters and gauges for Prometheus
/livez     200 while the process works
/readyz    200 while clients are served, 503 while loading, stopping, or waiting for backups
/loading   how far the loading of the data is, as JSON
/cluster   how this member of a cluster is, as JSON
/memory    where the memory is, as JSON; /memory?segments=1 lists every segment

All but /livez and /readyz ask for a login (HTTP Basic) if the default user needs a password; the
user needs the right +info. With TLS they ask for a certificate too, if tls-auth-clients is yes.
";

/// Serves until `stopped` resolves or its sender is dropped.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("admin HTTP does not work: {error}");
            return;
        }
    };
    let encrypts = shared.config().admin_wants_tls();
    let certificates = encrypts.then(|| Arc::clone(shared.settings.certificates()));
    let router = router(shared);
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                seldom!(warn, "admin HTTP cannot accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let router = router.clone();
        let certificates = certificates.clone();
        let connection = async move {
            let of = |certificate| {
                router.layer(Extension(Peer {
                    address: peer,
                    certificate,
                }))
            };
            match certificates {
                None => serve_one(stream, of(None)).await,
                Some(certificates) => {
                    if let Some(stream) = encrypted(stream, &certificates).await {
                        let shown = stream.get_ref().1.peer_certificates();
                        let has_shown = shown.is_some_and(|shown| !shown.is_empty());
                        serve_one(stream, of(Some(has_shown))).await;
                    }
                }
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() == CONNECTIONS_MAX {
            connections.pop_front().inspect(AbortHandle::abort);
        }
        let task = tokio::spawn(async move {
            // A client that breaks off or takes too long is no error.
            let _ = tokio::time::timeout(CONNECTION_FOR, connection).await;
        });
        connections.push_back(task.abort_handle());
    }
}

/// All pages. Those that tell of the server's work need the right to `INFO`; probes need no login.
fn router(shared: Arc<Shared>) -> Router {
    let guard = Guard {
        shared: Arc::clone(&shared),
        command: "info",
    };
    Router::new()
        .route("/metrics", get(metrics_page))
        .route("/loading", get(loading))
        .route("/cluster", get(cluster))
        .route("/memory", get(memory))
        .route_layer(from_fn_with_state(guard, admit))
        .route("/", get(async || INDEX))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .with_state(shared)
}

/// One connection, which serves one request.
async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .keep_alive(false)
        .max_buf_size(HEADERS_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client that breaks off is no error.
    let _ = connection.await;
}

/// Returns the connection after the handshake; `None` if the handshake failed.
async fn encrypted(stream: TcpStream, certificates: &Certificates) -> Option<TlsStream<TcpStream>> {
    let peer = stream.peer_addr().ok()?;
    let config = match certificates.config() {
        Ok(config) => config,
        Err(error) => {
            seldom!(error, "no TLS for admin HTTP: {error}");
            return None;
        }
    };
    match TlsAcceptor::from(config).accept(stream).await {
        Ok(stream) => Some(stream),
        Err(error) => {
            seldom!(info, %peer, "admin HTTP: no handshake of TLS: {error}");
            None
        }
    }
}

async fn metrics_page(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
    let format = Format::wanted(&accept.join(","));
    match metrics::text(&shared, format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// A server that has stopped answering is not alive, although this thread is.
async fn live(State(shared): State<Arc<Shared>>) -> Response {
    if shared.is_stuck() {
        return (StatusCode::SERVICE_UNAVAILABLE, shared.table_of_waits()).into_response();
    }
    "ok\n".into_response()
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let text = match shared.watch.stopping() {
        Stop::No if shared.data().is_none() => format!("loading: {}\n", shared.storage.progress()),
        Stop::No => match shared.why_not_ready() {
            Some(why) => format!("{why}\n"),
            None => return "ok\n".into_response(),
        },
        _ => "stopping\n".to_owned(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

async fn loading(State(shared): State<Arc<Shared>>) -> axum::Json<Value> {
    let progress = shared.storage.progress();
    let now = progress.now.as_ref();
    axum::Json(json!({
        "loading": shared.data().is_none(),
        "percent": progress.percent(),
        "bytes_done": now.map(|now| now.bytes_done),
        "bytes_total": now.map(|now| now.bytes_total),
        "entries_done": now.map(|now| now.entries_done),
        "elapsed_ms": now.map(|now| now.elapsed.as_millis() as u64),
        "eta_seconds": now.and_then(|now| now.eta()).map(|left| left.as_secs()),
    }))
}

async fn cluster(State(shared): State<Arc<Shared>>) -> Response {
    let Some(member) = Member::of(&shared) else {
        return (
            StatusCode::NOT_FOUND,
            "this server is no member of a cluster\n",
        )
            .into_response();
    };
    let status = &member.status;
    let recoveries = status.recoveries.iter().map(|part| {
        json!({
            "log": part.log.to_string(),
            "recovery": part.recovery.0,
            "partition": part.partition,
            "bytes": part.bytes,
            "bytes_total": part.bytes_total,
            "entries": part.entries,
        })
    });
    let hints = status.hints.iter().map(|hint| {
        json!({
            "server": hint.server.to_string(),
            "bytes": hint.bytes,
            "age_ms": hint.age_ms,
        })
    });
    let mut page = json!({
        "cluster": status.cluster,
        "server": status.server.to_string(),
        "native": status.addresses.native,
        "resp": status.addresses.resp,
        "plain": status.addresses.plain,
        "coordinator": status.coordinator,
    });
    for figure in &figures::MEMBER {
        if let Some(name) = figure.info.strip_prefix("duramen_") {
            page[name] = (figure.read)(&member).as_json(figure.info);
        }
    }
    page["tablets_version"] = status.tablets_version.0.into();
    page["slowest_round_us"] = status.slowest_round_us.into();
    page["recoveries"] = recoveries.collect();
    page["hints"] = hints.collect();
    axum::Json(page).into_response()
}

async fn memory(
    State(shared): State<Arc<Shared>>,
    axum::extract::RawQuery(query): axum::extract::RawQuery,
) -> Response {
    let Some(store) = shared.data() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "loading\n").into_response();
    };
    let list = query.is_some_and(|query| query.split('&').any(|part| part == "segments=1"));
    axum::Json(memory_json(&shared, store, list)).into_response()
}

fn memory_json(shared: &Shared, store: &Store, list: bool) -> Value {
    let footprint = Footprint::of(shared, store);
    let report = &footprint.report;
    let stats = store.stats();
    let mut page = json!({
        "budget_bytes": report.budget_bytes,
        "budget_used_bytes": report.total_bytes,
        "total_bytes": footprint.total_bytes(),
        "parts": footprint
            .parts()
            .into_iter()
            .map(|(name, bytes)| (format!("{name}_bytes"), Value::from(bytes)))
            .collect::<Value>(),
        "log_buffer_bytes_max": footprint.log_buffer_bytes_max,
        "objects": report.objects,
        "index_slots": report.index_slots,
        "utilization": stats.fill(),
        "page_bytes": stats.page_bytes,
        "segment_count": report.segments.len(),
        "connections": {
            "clients": shared.threads.connected_clients(),
            "query_buffer_bytes": footprint.query_bytes,
            "output_buffer_bytes": footprint.output_bytes,
        },
        "process": {
            "resident_bytes": process::memory().map(|memory| memory.resident_bytes),
            "virtual_bytes": process::memory().map(|memory| memory.virtual_bytes),
        },
    });
    if shared.tier().is_some() {
        let flash = flash_stats(store, &shared.threads);
        page["flash"] = figures::FLASH
            .iter()
            .map(|figure| {
                let name = figure.metric.trim_start_matches("flash_").to_owned();
                (name, (figure.read)(&flash).as_json(figure.info))
            })
            .collect();
        page["flash"]["waiting_clients"] = shared.threads.sum(|c| &c.flash_parked).into();
    }
    if list {
        page["segments"] = report
            .segments
            .iter()
            .map(|segment| {
                json!({
                    "window": segment.window,
                    "state": format!("{:?}", segment.state).to_lowercase(),
                    "committed_bytes": segment.committed_bytes,
                    "appended_bytes": segment.appended_bytes,
                    "live_bytes": segment.live_bytes,
                    "age_ms": segment.age_ms,
                })
            })
            .collect();
    }
    page
}
