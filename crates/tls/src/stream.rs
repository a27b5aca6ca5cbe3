//! One TLS connection over a blocking socket: for tools and blocking clients.

use crate::error::{LoadError, TlsError};
use crate::identity::{Identity, server_name};
use rustls::{ClientConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// A client's connection. Its socket's timeouts apply, also to the handshake.
pub struct Stream {
    inner: StreamOwned<ClientConnection, TcpStream>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Stream").field(&self.inner.sock).finish()
    }
}

impl Stream {
    /// Does the handshake over `socket`; `host` is the name or address that the server's
    /// certificate must have.
    ///
    /// # Errors
    /// An error of the socket as it is; [`TlsError`] and [`LoadError`] as the source of an error of
    /// kind `InvalidData`.
    pub fn connect(identity: &Identity, host: &str, socket: TcpStream) -> io::Result<Stream> {
        let invalid = |error: LoadError| io::Error::new(io::ErrorKind::InvalidInput, error);
        let config = identity.client_config().map_err(invalid)?;
        let name = server_name(host).map_err(invalid)?;
        let connection = ClientConnection::new(config, name)
            .map_err(|error| invalid(LoadError::Refused(error.to_string())))?;
        let mut inner = StreamOwned::new(connection, socket);
        while inner.conn.is_handshaking() {
            inner.conn.complete_io(&mut inner.sock).map_err(plain)?;
        }
        Ok(Stream { inner })
    }

    /// The socket below, for timeouts and addresses.
    pub fn socket(&self) -> &TcpStream {
        &self.inner.sock
    }

    /// As [`Session::channel_binding`](crate::Session::channel_binding).
    pub fn channel_binding(&self) -> Option<[u8; 32]> {
        let label = b"EXPORTER-Channel-Binding";
        self.inner
            .conn
            .export_keying_material([0; 32], label, Some(&[]))
            .ok()
    }
}

/// Gives an error of rustls the text of [`TlsError`].
fn plain(error: io::Error) -> io::Error {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            io::Error::new(io::ErrorKind::InvalidData, TlsError::PlainServer)
        }
        Some(inner) => io::Error::new(io::ErrorKind::InvalidData, TlsError::from(inner.clone())),
        None => error,
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.inner.read(bytes) {
            // The peer has ended without a goodbye. That is no error: the protocols inside know
            // their ends by themselves.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read.map_err(plain),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes).map_err(plain)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush().map_err(plain)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.inner.conn.send_close_notify();
        let _ = self.inner.conn.write_tls(&mut self.inner.sock);
    }
}
