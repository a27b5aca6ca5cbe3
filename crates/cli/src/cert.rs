//! `duramen cert`: an own certificate authority and the certificates of a server or cluster.

use crate::failure::Failure;
use clap::{Args, Subcommand};
use duramen_tls::{Authority, Description, Descriptions, Issued, MakeError, Request};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Validity of a certificate, in days: it is renewed about once a year.
const DAYS_DEFAULT: u32 = 397;
/// Validity of an authority, in days.
const CA_DAYS_DEFAULT: u32 = 3_650;

#[derive(Args)]
#[command(after_help = "\
EXAMPLES
  duramen cert init certs                             an authority, and a certificate for this host
  duramen cert init certs --san db1.example.org --san 10.0.0.5
  duramen serve --tls-port 6379 --port 0 --tls-cert-file certs/server.crt \\
        --tls-key-file certs/server.key --tls-ca-cert-file certs/ca.crt
  duramen cert issue alice --dir certs                a certificate for a client
  redis-cli --tls --cacert certs/ca.crt --cert certs/alice.crt --key certs/alice.key
  duramen cert issue db2 --dir certs --san db2.example.org --san 10.0.0.6
  duramen cert show --dir certs                       subjects, names, days left
  duramen cert rotate server --dir certs              a new certificate, for the same names
  duramen cert rotate --authority --dir certs         a new authority beside the old one
  duramen cert rotate --end-overlap --dir certs       the old authority is not trusted any more

A running server reads its certificate files again within 10 seconds, or at once after SIGHUP.
ca.key signs certificates: keep it away from the servers. Each server needs ca.crt, and its own
.crt and .key. Rotating the authority takes three steps: `rotate --authority`, and give the new
ca.crt to every server and client; `rotate NAME` for each certificate, and give these out; last
`rotate --end-overlap`, and give out ca.crt once more.

Exit codes: 0 done, 2 wrong usage, or a file cannot be read or written.")]
pub(crate) struct CertArgs {
    #[command(subcommand)]
    command: CertCommand,
    /// Print JSON instead.
    #[arg(long, global = true)]
    json: bool,
}

/// The directory of the authority.
#[derive(Args)]
struct Dir {
    /// Directory of the authority, as `init` made it.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

#[derive(Subcommand)]
enum CertCommand {
    /// Make an authority in a directory, and a certificate for this host.
    Init {
        /// Directory for all files; it is made if it is not there.
        dir: PathBuf,
        /// A further host name or IP address of the server; may be given several times. This
        /// host's name, localhost, 127.0.0.1 and ::1 are always there.
        #[arg(long, value_name = "NAME|ADDR")]
        san: Vec<String>,
        /// Name of the server's certificate and its files.
        #[arg(long, value_name = "NAME", default_value = "server")]
        name: String,
        /// Days for which the certificate is valid.
        #[arg(long, value_name = "N", default_value_t = DAYS_DEFAULT)]
        days: u32,
        /// Days for which the authority is valid.
        #[arg(long, value_name = "N", default_value_t = CA_DAYS_DEFAULT)]
        authority_days: u32,
        /// Name of the authority.
        #[arg(long, value_name = "TEXT", default_value = "Duramen authority")]
        authority_name: String,
    },
    /// Make a certificate for another server or for a client.
    Issue {
        /// Common name of the certificate, and the name of its files.
        name: String,
        /// A host name or IP address of the server; may be given several times. A client needs
        /// none.
        #[arg(long, value_name = "NAME|ADDR")]
        san: Vec<String>,
        #[arg(long, value_name = "N", default_value_t = DAYS_DEFAULT)]
        /// Days for which the certificate is valid.
        days: u32,
        #[command(flatten)]
        dir: Dir,
    },
    /// Replace a certificate before its end, or the authority.
    Rotate(RotateArgs),
    /// Print subject, names and days left of certificates.
    Show {
        /// Files of certificates; without, all in the directory.
        files: Vec<PathBuf>,
        #[command(flatten)]
        dir: Dir,
    },
}

#[derive(Args)]
#[group(id = "subject", required = true, multiple = false)]
struct Subject {
    /// Name of the certificate to be replaced, with a new key.
    name: Option<String>,
    /// Replace the authority; the old one stays trusted beside it.
    #[arg(long)]
    authority: bool,
    /// End the trust in the old authority; refused while the directory has a certificate of it.
    #[arg(long)]
    end_overlap: bool,
}

#[derive(Args)]
struct RotateArgs {
    #[command(flatten)]
    subject: Subject,
    /// New host names and addresses; without, those of the old certificate.
    #[arg(long, value_name = "NAME|ADDR", requires = "name")]
    san: Vec<String>,
    /// Days for which the new certificate is valid [default 397; of an authority 3650].
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    #[command(flatten)]
    dir: Dir,
}

pub(crate) fn run(args: &CertArgs) -> Result<(), Failure> {
    let (text, value) = match &args.command {
        CertCommand::Init {
            dir,
            san,
            name,
            days,
            authority_days,
            authority_name,
        } => {
            let request = Request {
                name: name.clone(),
                sans: own_names(san),
                days: *days,
            };
            init(dir, &request, authority_name, *authority_days).map_err(failure)?
        }
        CertCommand::Issue {
            name,
            san,
            days,
            dir,
        } => {
            let authority = Authority::open(&dir.dir).map_err(failure)?;
            let issued = authority.issue(&Request {
                name: name.clone(),
                sans: san.clone(),
                days: *days,
            });
            told("made", &issued.map_err(failure)?)
        }
        CertCommand::Rotate(args) => rotate(args).map_err(failure)?,
        CertCommand::Show { files, dir } => show(files, &dir.dir)?,
    };
    if args.json {
        println!("{value}")
    } else {
        crate::say::out(format_args!("{text}"))
    }
    Ok(())
}

fn failure(error: MakeError) -> Failure {
    Failure::Usage(error.to_string())
}

/// The names of a server on this host, and `more`.
fn own_names(more: &[String]) -> Vec<String> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let mut names = Vec::new();
    let usual = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let all = more.iter().cloned().chain([host]).chain(usual);
    for name in all.filter(|name| !name.is_empty()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn init(
    dir: &Path,
    request: &Request,
    authority_name: &str,
    authority_days: u32,
) -> Result<(String, Value), MakeError> {
    let authority = Authority::create(dir, authority_name, authority_days)?;
    let issued = authority.issue(request)?;
    let ca = authority.certificate_file();
    let (mut text, value) = told("made", &issued);
    let Issued {
        certificate, key, ..
    } = &issued;
    let (ca, certificate, key) = (ca.display(), certificate.display(), key.display());
    let _ = write!(
        text,
        "\
made the authority {ca}; keep {}/ca.key away from servers

serve     duramen serve --tls-port 6379 --port 0 --tls-cert-file {certificate} \\
            --tls-key-file {key} --tls-ca-cert-file {ca}
clients   duramen cert issue NAME --dir {}
          redis-cli --tls --cacert {ca} --cert NAME.crt --key NAME.key
",
        dir.display(),
        dir.display()
    );
    let value = json!({ "authority": ca.to_string(), "certificate": value });
    Ok((text, value))
}

fn rotate(args: &RotateArgs) -> Result<(String, Value), MakeError> {
    let RotateArgs {
        subject,
        san,
        days,
        dir,
    } = args;
    let mut authority = Authority::open(&dir.dir)?;
    let file = authority.certificate_file();
    let ca = file.display();
    if let Some(name) = &subject.name {
        let request = Request {
            name: name.clone(),
            sans: san.clone(),
            days: days.unwrap_or(DAYS_DEFAULT),
        };
        return Ok(told("replaced", &authority.renew(&request)?));
    }
    if subject.authority {
        let name = Descriptions::read(&file)?.0.into_iter().next();
        let name = name.map(|first| first.common_name).unwrap_or_default();
        authority.rotate(&name, days.unwrap_or(CA_DAYS_DEFAULT))?;
        let text = format!(
            "replaced the authority: {ca} has the new one and the old one; give it to every server \
             and client, then rotate their certificates\n"
        );
        let value = json!({ "authority": ca.to_string(), "overlap": true });
        return Ok((text, value));
    }
    authority.check_last_unused()?;
    authority.forget_last()?;
    let text = format!("{ca} has the newest authority alone; give it to every server and client\n");
    let value = json!({ "authority": ca.to_string(), "overlap": false });
    Ok((text, value))
}

/// The report about a certificate that was made, as text and as JSON.
fn told(done: &str, issued: &Issued) -> (String, Value) {
    let (certificate, key) = (issued.certificate.display(), issued.key.display());
    let text = format!(
        "{done} {certificate} and {key}: {}, valid for {} days\n",
        names(&issued.description),
        issued.description.days_left()
    );
    let value = json!({
        "file": certificate.to_string(),
        "key": key.to_string(),
        "certificate": described(&issued.description),
    });
    (text, value)
}

fn names(certificate: &Description) -> String {
    if certificate.names.is_empty() {
        format!("{}, for a client", certificate.subject)
    } else {
        format!(
            "{} for {}",
            certificate.subject,
            certificate.names.join(", ")
        )
    }
}

fn described(certificate: &Description) -> Value {
    json!({
        "subject": certificate.subject,
        "issuer": certificate.issuer,
        "names": certificate.names,
        "serial": certificate.serial,
        "not_before": certificate.not_before,
        "not_after": certificate.not_after,
        "days_left": certificate.days_left(),
        "is_authority": certificate.is_authority,
    })
}

fn show(files: &[PathBuf], dir: &Path) -> Result<(String, Value), Failure> {
    let found;
    let files = if files.is_empty() {
        found = certificates_of(dir)?;
        &found
    } else {
        files
    };
    let (mut text, mut values) = (String::new(), Vec::new());
    for file in files {
        let read = Descriptions::read(file);
        for one in read.map_err(|error| Failure::Usage(error.to_string()))?.0 {
            let kind = match (one.is_authority, one.names.is_empty()) {
                (true, _) => "authority".to_owned(),
                (false, true) => "client".to_owned(),
                (false, false) => one.names.join(", "),
            };
            let days = match one.days_left() {
                days @ 0.. => format!("{days} days left"),
                days => format!("EXPIRED {} days ago", -days),
            };
            let (path, subject) = (file.display(), &one.subject);
            let _ = writeln!(text, "{path}  {subject}  {days}  {kind}");
            let mut value = described(&one);
            value["file"] = file.display().to_string().into();
            values.push(value);
        }
    }
    Ok((text, values.into()))
}

/// The `.crt` files of a directory, by name.
fn certificates_of(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |reason| Failure::Input {
        what: dir.display().to_string(),
        reason,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|end| end == "crt") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        Err(Failure::Usage(format!(
            "{} has no .crt files: name the directory by --dir, or files",
            dir.display()
        )))
    } else {
        Ok(files)
    }
}
