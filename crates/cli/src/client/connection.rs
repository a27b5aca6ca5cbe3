//! One blocking connection to a server.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches as _};
use duramen_tls::TlsError;
use duramen_wire::resp::{Reply, ReplyLimits, ReplyParser, RequestEncoder};

use super::stream::{Stream, in_time};
use super::tls::{self, RespTlsArgs};
use crate::config;
use crate::failure::Failure;
use crate::login::LoginArgs;

// The server's address and the user. The same for every command of a server: no doc comment,
// because clap would take it for the description of each of them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// Server's host name or address; of a cluster, any member's: requests are redirected to the
    /// member that has the key.
    #[arg(long, global = true, env = "DURAMEN_HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Server's RESP port.
    #[arg(
        long,
        short = 'p',
        global = true,
        env = "DURAMEN_PORT",
        default_value_t = PORT_DEFAULT,
        value_parser = parse_port
    )]
    pub(crate) port: u16,
    /// Table to work in, by name.
    #[arg(long, global = true, env = "DURAMEN_TABLE")]
    pub(crate) table: Option<String>,
    /// Longest wait for the server, also while it loads or its keys are recovered; 0 = for ever.
    #[arg(long, global = true, default_value = "30s", value_name = "TIME", value_parser = parse_wait)]
    pub(crate) timeout: super::Duration,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
    #[command(flatten)]
    pub(crate) tls: RespTlsArgs,
}

const PORT_DEFAULT: u16 = 6379;

/// A port. A value that Kubernetes has put into the variable counts as none. The same holds for
/// such a value in a flag, as both are parsed here.
fn parse_port(text: &str) -> Result<u16, String> {
    if config::is_service_link("DURAMEN_PORT", OsStr::new(text)) {
        return Ok(PORT_DEFAULT);
    }
    text.parse::<u16>().map_err(|error| error.to_string())
}

/// A time span, or 0.
fn parse_wait(text: &str) -> Result<super::Duration, String> {
    if text == "0" {
        return Ok(super::Duration { ms: 0 });
    }
    text.parse()
}

impl ConnectArgs {
    /// The options among all arguments of a command.
    ///
    /// # Errors
    /// Some options do not fit each other.
    pub(crate) fn of(given: &ArgMatches) -> Result<ConnectArgs, Failure> {
        let parsed = ConnectArgs::from_arg_matches(given);
        let mut args = parsed.map_err(|error| Failure::Usage(error.to_string()))?;
        args.tls.note_flags(given);
        if given.value_source("port") != Some(ValueSource::CommandLine)
            && let Some(port) = args.tls.port()?
        {
            args.port = port;
        }
        Ok(args)
    }

    /// Longest wait for the server; `None` to wait for ever.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        (self.timeout.ms > 0).then(|| Duration::from_millis(self.timeout.ms))
    }
}

/// One request at a time; replies are read into memory whole.
pub(crate) struct Connection {
    stream: Stream,
    /// Longest wait for some bytes; `None` to wait for ever.
    timeout: Option<Duration>,
    address: String,
    parser: ReplyParser,
    request: Vec<u8>,
    input: Box<[u8]>,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 * 1024;

impl Connection {
    /// Connects, authenticates and chooses the table.
    pub(crate) fn open(args: &ConnectArgs) -> Result<Connection, Failure> {
        let address = if args.host.contains(':') {
            format!("[{}]:{}", args.host, args.port)
        } else {
            format!("{}:{}", args.host, args.port)
        };
        let timeout = args.timeout();
        let stream = dial(&args.host, args.port)
            .and_then(|stream| {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)?;
                stream.set_nodelay(true)?;
                Ok(stream)
            })
            .map_err(|reason| Failure::Unreachable {
                address: address.clone(),
                reason,
            })?;
        let mut connection = Connection {
            stream: args.tls.wrap(&args.host, &address, stream)?,
            timeout,
            address,
            parser: ReplyParser::new(ReplyLimits::default()),
            request: Vec::new(),
            input: vec![0; READ_BYTES].into(),
        };
        if let Some(password) = &args.login.secret()? {
            match args.login.user() {
                Some(user) => connection.ask(&["AUTH", user, password])?,
                None => connection.ask(&["AUTH", password])?,
            };
        }
        if let Some(table) = &args.table {
            connection.ask(&["DURAMEN.USE", table])?;
        }
        Ok(connection)
    }

    /// The server's address, for messages.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends one request and waits for its reply.
    ///
    /// # Errors
    /// [`Failure::Server`] if the reply is an error, else the connection is broken.
    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Reply, Failure> {
        self.request.clear();
        RequestEncoder::new(&mut self.request).request(args);
        self.send()?;
        loop {
            let reply = self
                .parser
                .next_reply()
                .map_err(|reason| Failure::NotResp {
                    address: self.address.clone(),
                    reason,
                })?;
            match reply {
                Some(Reply::Error(text)) => return Err(Failure::Server(with_advice(text))),
                // This program makes no subscriptions.
                Some(Reply::Push(_)) => {}
                Some(reply) => return Ok(reply),
                None => self.receive()?,
            }
        }
    }

    fn send(&mut self) -> Result<(), Failure> {
        let sent = self.stream.write_all(&self.request);
        let Err(reason) = sent.and_then(|()| self.stream.flush()) else {
            return Ok(());
        };
        if self.stream.is_tls() {
            // A server that refuses this side's certificate says so after the handshake, and
            // closes.
            self.receive()?;
        }
        Err(self.broken(reason))
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let read = loop {
            match self.stream.read(&mut self.input) {
                // A stop signal (SIGSTOP) interrupts the wait at the socket (signal(7)). The wait
                // begins anew, but ends at the timeout.
                Err(reason) if reason.kind() == io::ErrorKind::Interrupted => {
                    if self.timeout.is_some_and(|most| began.elapsed() >= most) {
                        break Err(io::ErrorKind::TimedOut.into());
                    }
                }
                read => break read,
            }
        };
        match read {
            Ok(0) => {
                let reason = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed it");
                Err(self.broken(reason))
            }
            Ok(bytes) => {
                self.parser
                    .feed(self.input.get(..bytes).unwrap_or_default());
                Ok(())
            }
            Err(reason) => Err(self.broken(reason)),
        }
    }

    fn broken(&self, reason: io::Error) -> Failure {
        let is_of_tls = |inner: &(dyn std::error::Error + 'static)| inner.is::<TlsError>();
        if reason.get_ref().is_some_and(|inner| is_of_tls(inner)) {
            return tls::failed(&self.address, reason);
        }
        Failure::Broken {
            address: self.address.clone(),
            reason: in_time(reason),
        }
    }
}

fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Adds the remedy to errors that the user can fix.
fn with_advice(mut text: String) -> String {
    let advice = match text.split(' ').next() {
        Some("NOAUTH") => {
            "Set DURAMEN_PASSWORD, or name a file by --password-file; --user names the user."
        }
        Some("CROSSSLOT") => {
            "In a cluster, keys of one request have one slot: ask for them one by one, or give them a hash tag, as in {user:7}:name."
        }
        Some("TRYAGAIN" | "CLUSTERDOWN") => {
            "See `duramen status`; a longer --timeout waits for longer."
        }
        Some("WRONGPASS") => {
            "Check --user, and --password or --password-file (or DURAMEN_USER, DURAMEN_PASSWORD)."
        }
        Some("NOPERM") => "See `ACL GETUSER` for the rights of the user; --user names another.",
        Some("ERR") if text.contains("this port speaks TLS") => {
            "Add --tls, and name the authority of the server's certificate by --tls-ca-cert-file."
        }
        Some("OOM") => {
            "Delete something, give the server more --memory, or start it with --mode cache."
        }
        _ => return text,
    };
    // Writing to a String cannot fail.
    let _ = write!(text, "\n{advice}");
    text
}
