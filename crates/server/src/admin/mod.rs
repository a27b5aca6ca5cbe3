//! Admin HTTP: `/metrics` for Prometheus, `/livez` and `/readyz` for the tools that restart
//! servers, `/memory` for people who want to see how memory is used.
//!
//! **Concurrency.** Its own thread with a single-threaded tokio runtime. It reads counters that
//! reactor threads write and never takes a lock that they wait for.
//!
//! It only reads. Its users are those of the RESP port ([`guard`]). On loopback it is plain;
//! elsewhere it speaks TLS, or the operator has said `insecure-bind` (`config::tls::A1`).

mod exposition;
mod guard;
mod http;
mod metrics;
mod process_metrics;

use duramen_config::{ServerConfig, ServerError};
use duramen_redis::state::Shared;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// The running admin thread; dropping it ends it.
pub(crate) struct Admin {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// # Errors
    /// [`ServerError::Listen`] if the address is taken.
    pub(crate) fn bind(config: &ServerConfig) -> Result<TcpListener, ServerError> {
        let address = config.admin_address();
        let bind = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        bind().map_err(|source| ServerError::Listen {
            address,
            purpose: "admin HTTP",
            source,
        })
    }

    /// # Errors
    /// [`ServerError::System`] if the thread or its runtime cannot be made.
    pub(crate) fn start(listener: TcpListener, shared: Arc<Shared>) -> Result<Admin, ServerError> {
        let system = |source| ServerError::System {
            doing: "start the admin thread",
            source,
        };
        let address = listener.local_addr().map_err(system)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(system)?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || runtime.block_on(http::serve(listener, shared, stopped)))
            .map_err(system)?;
        Ok(Admin {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread itself has reported a panic.
            let _ = thread.join();
        }
    }
}
