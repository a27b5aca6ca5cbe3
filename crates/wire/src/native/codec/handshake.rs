//! The handshake: the two sides of a connection prove to each other that they have the cluster's
//! token, without sending it. The dialler opened the connection, the acceptor accepted it.
//!
//! ```text
//! dialler                                acceptor
//!   opening (nonce)             →
//!                               ←        opening (nonce)
//!   proof, without a name       →
//!                               ←        proof, with the cluster's name
//!   proof, with the cluster's name  →
//!   frames                      ↔        frames
//! ```
//!
//! A proof is a frame of kind 5, an answer if the acceptor sends it; request, target and sender are
//! 0. Its body is a tag of 32 bytes, the cluster's id of 16 bytes (big endian, 0 if it is unknown;
//! absent in version 2), and the name up to the end. The tag is HMAC-SHA-256 with the token as its
//! key (empty if the cluster has none) over: a label, one for each of the three proofs; on a TLS
//! channel its binding; both openings, the dialler's first; the bodies of the proofs before it; id
//! and name.
//!
//! **Invariants**
//! - S1: the token is never sent, nor any data from which it could be computed except by guessing.
//!   The nonces are in every tag, so no tag is valid twice. The two sides use different labels, so
//!   no tag can be sent back.
//! - S2: the acceptor sends no proof and no name before the other side's proof was right. Neither
//!   side sends the cluster's name or id to a side that has not proved itself.
//! - S3: [`HANDSHAKE_BYTES_MAX`] bounds the bytes that a side sends before it is authenticated;
//!   tags are compared in constant time.
//! - S4: two sides with different ids exchange no frames, whatever their names are. The dialler
//!   sends its id before it closes the connection: the acceptor may have the wrong id.
//!
//! - S5: on a TLS channel every tag covers the channel's binding: 32 bytes that only the two ends
//!   of the channel can compute (RFC 9266). So an attacker that ends the channel of each side and
//!   forwards the bytes gets no valid tag, and a recorded handshake is valid nowhere else.
//!
//! Without TLS, an attacker between both sides can forward the handshake and then read and change
//! frames.

use super::bodies::{Reply, Trouble, decode_reply};
use super::frame::{Builder, Envelope, Parsed, parse_frame};
use super::hello::{HelloError, Nonce, Opening, Role, parse_opening};
use super::{HEADER_BYTES, OPENING_BYTES, PROTOCOL_MAX};
use duramen_base::ids::ClusterId;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::io::{Read, Write};

const PROOF_KIND: u16 = 5;
const TAG_BYTES: usize = 32;
const ID_BYTES: usize = 16;
/// The first version of the protocol whose proofs have ids.
const WITH_IDS: u16 = 3;
const NAME_BYTES_MAX: usize = 255;
/// Longest frame within a handshake, header excluded: room for the text of a refusal.
const FRAME_BYTES_MAX: usize = 1024;
/// Maximum bytes that a side sends before it is authenticated: an opening, and two frames, one of
/// which is short.
pub const HANDSHAKE_BYTES_MAX: usize =
    OPENING_BYTES + 2 * HEADER_BYTES + TAG_BYTES + ID_BYTES + FRAME_BYTES_MAX;

/// Labels of the three proofs (S1). None is a prefix of another.
const DIALLER: &[u8] = b"DURAMENN proof of who connected";
const ACCEPTOR: &[u8] = b"DURAMENN proof of who accepted";
const CLUSTER: &[u8] = b"DURAMENN name of who connected";

/// Bytes of a channel's binding.
pub const BINDING_BYTES: usize = 32;

/// The value of a TLS channel's exporter with the label `EXPORTER-Channel-Binding` and no context
/// (`tls-exporter` of RFC 9266).
pub type Binding = [u8; BINDING_BYTES];

/// Cluster and token, which both sides must have in common.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// The cluster's name; empty: any cluster (for clients and tools only).
    pub cluster: &'a str,
    /// The cluster's token; empty: the cluster has none.
    pub token: &'a [u8],
    /// The cluster's id; [`ClusterId::NONE`]: any cluster of that name.
    pub id: ClusterId,
}

impl Credentials<'_> {
    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.token)
    }

    /// Whether a side with this role and the cluster name `theirs` is of the same cluster.
    fn agree(&self, role: Role, theirs: &str) -> Result<(), HelloError> {
        let any = self.cluster.is_empty() || (theirs.is_empty() && role == Role::Client);
        if !any && theirs != self.cluster {
            return Err(HelloError::WrongCluster {
                ours: self.cluster.to_owned(),
                theirs: theirs.to_owned(),
            });
        }
        Ok(())
    }

    /// Whether the ids are of the same cluster (S4).
    fn agree_on_id(&self, theirs: ClusterId) -> Result<(), HelloError> {
        if self.id.contradicts(theirs) {
            Err(HelloError::OtherCluster {
                ours: self.id,
                theirs,
            })
        } else {
            Ok(())
        }
    }
}

/// The next part that this side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    Proof,
    Name,
    Done,
}

/// One side of a handshake.
#[derive(Debug)]
pub struct Handshake {
    is_dialler: bool,
    ours: Opening,
    /// The other side's role, known after its opening.
    role: Option<Role>,
    /// The version of the protocol that both sides use, once it is known.
    version: u16,
    /// The cluster's id that the other side sent.
    id: ClusterId,
    /// The cluster's id that this side sent.
    told: ClusterId,
    stage: Stage,
    /// The channel's binding, openings, and bodies of the proofs: the input of the next tag.
    said: Vec<u8>,
}

/// Progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This many bytes of the input are used, and more must come.
    Waiting { used: usize },
    /// The other side has proved itself. The bytes after the used ones are frames.
    Done { used: usize, role: Role },
}

/// A new nonce from the system.
///
/// # Errors
/// The system has no random numbers: [`HelloError::NoRandomness`].
pub fn fresh_nonce() -> Result<Nonce, HelloError> {
    let mut nonce = Nonce::default();
    let filled = SystemRandom::new().fill(&mut nonce);
    filled.map_err(|_| HelloError::NoRandomness)?;
    Ok(nonce)
}

impl Handshake {
    /// Begins the dialler's side: appends its opening to `out`.
    pub fn dial(role: Role, nonce: Nonce, out: &mut Vec<u8>) -> Handshake {
        let mut handshake = Handshake::accept(role, nonce);
        handshake.is_dialler = true;
        handshake.ours.encode(out);
        handshake
    }

    /// Begins the acceptor's side: sends nothing yet.
    pub fn accept(role: Role, nonce: Nonce) -> Handshake {
        Handshake {
            is_dialler: false,
            ours: Opening::new(role, nonce),
            role: None,
            version: PROTOCOL_MAX,
            id: ClusterId::NONE,
            told: ClusterId::NONE,
            stage: Stage::Opening,
            said: Vec::new(),
        }
    }

    /// Binds the handshake to the TLS channel that carries it (S5). To be called once, before the
    /// first [`advance`](Self::advance).
    ///
    /// # Panics
    /// If the handshake has begun: its first tag would lack the binding.
    pub fn bind(&mut self, binding: &Binding) {
        assert!(
            self.said.is_empty(),
            "a handshake is bound before it begins"
        );
        self.said.extend_from_slice(binding);
    }

    /// The other side's role, once its opening has arrived.
    pub fn role(&self) -> Option<Role> {
        self.role
    }

    /// The cluster's id on the other side. Valid when that side has proved itself.
    pub fn their_id(&self) -> ClusterId {
        self.id
    }

    /// The cluster's id that this side has sent.
    pub fn told_id(&self) -> ClusterId {
        self.told
    }

    /// Whether the other side's version of the protocol has ids of clusters.
    pub fn has_ids(&self) -> bool {
        self.version >= WITH_IDS
    }

    /// Continues with untrusted `input`, which begins after the bytes used so far; appends the
    /// bytes to be sent to `out`.
    ///
    /// # Errors
    /// The other side must not be served. The acceptor sends `out` nevertheless, followed by a
    /// frame with the reason.
    pub fn advance(
        &mut self,
        ours: Credentials<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Progress, HelloError> {
        let mut used = 0;
        while self.stage != Stage::Done {
            let rest = input.get(used..).unwrap_or_default();
            let taken = match self.stage {
                Stage::Opening => self.hear_opening(ours, rest, out)?,
                _ => self.hear_proof(ours, rest, out)?,
            };
            match taken {
                Some(bytes) => used += bytes,
                None => return Ok(Progress::Waiting { used }),
            }
        }
        let role = self.role.ok_or(HelloError::Proof)?;
        Ok(Progress::Done { used, role })
    }

    fn hear_opening(
        &mut self,
        ours: Credentials<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>, HelloError> {
        let parsed = parse_opening(input);
        if !self.is_dialler && !matches!(parsed, Ok(None)) {
            self.ours.encode(out); // the other side expects it before a refusal too
        }
        let Some(theirs) = parsed? else {
            return Ok(None);
        };
        let (first, second) = if self.is_dialler {
            (&self.ours, &theirs)
        } else {
            (&theirs, &self.ours)
        };
        first.encode(&mut self.said);
        second.encode(&mut self.said);
        self.role = Some(theirs.role);
        self.version = PROTOCOL_MAX.min(theirs.max);
        self.stage = Stage::Proof;
        if self.is_dialler {
            self.prove(DIALLER, ours, ClusterId::NONE, "", out);
        }
        Ok(Some(OPENING_BYTES))
    }

    fn hear_proof(
        &mut self,
        ours: Credentials<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>, HelloError> {
        let label = match (self.is_dialler, self.stage) {
            (true, _) => ACCEPTOR,
            (false, Stage::Proof) => DIALLER,
            (false, _) => CLUSTER,
        };
        let Some((id, name, bytes)) = self.verify(label, ours, input)? else {
            return Ok(None);
        };
        let role = self.role.ok_or(HelloError::Proof)?;
        if label == DIALLER {
            if !name.is_empty() || id != ClusterId::NONE {
                return Err(HelloError::Proof);
            }
            self.prove(ACCEPTOR, ours, ours.id, ours.cluster, out);
            self.stage = Stage::Name;
            return Ok(Some(bytes));
        }
        ours.agree(role, name)?;
        if self.is_dialler {
            self.prove(CLUSTER, ours, ours.id, ours.cluster, out);
        }
        ours.agree_on_id(id)?;
        self.id = id;
        self.stage = Stage::Done;
        Ok(Some(bytes))
    }

    fn tagged(&self, label: &[u8], said: &[u8]) -> Vec<u8> {
        [label, &self.said, said].concat()
    }

    /// Appends a proof of this side.
    ///
    /// # Panics
    /// If the name is longer than 255 bytes: it is checked when the configuration is read.
    fn prove(
        &mut self,
        label: &[u8],
        ours: Credentials<'_>,
        id: ClusterId,
        name: &str,
        out: &mut Vec<u8>,
    ) {
        assert!(name.len() <= NAME_BYTES_MAX, "a cluster's name is short");
        self.told = id;
        let id = id.0.to_be_bytes();
        let id: &[u8] = if self.version >= WITH_IDS { &id } else { &[] };
        let said = [id, name.as_bytes()].concat();
        let tag = hmac::sign(&ours.key(), &self.tagged(label, &said));
        let body = [tag.as_ref(), &said].concat();
        let builder = Builder::proof(out, PROOF_KIND, !self.is_dialler);
        builder.out.extend_from_slice(&body);
        builder.finish(0);
        self.said.extend_from_slice(&body);
    }

    /// Verifies the proof at the beginning of `input`; returns its id, its name and its length.
    fn verify<'i>(
        &mut self,
        label: &[u8],
        ours: Credentials<'_>,
        input: &'i [u8],
    ) -> Result<Option<(ClusterId, &'i str, usize)>, HelloError> {
        let Parsed::Frame { frame, bytes } = parse_frame(input, FRAME_BYTES_MAX)? else {
            return Ok(None);
        };
        if frame.header.error {
            return Err(match decode_reply(&frame) {
                Ok(Reply::Trouble(Trouble::NotPermitted { .. })) => HelloError::Token,
                Ok(Reply::Trouble(trouble)) => HelloError::Refused(trouble.to_string()),
                _ => HelloError::Proof,
            });
        }
        let is_proof = frame.header.kind == PROOF_KIND
            && frame.header.reply == self.is_dialler
            && frame.header.envelope == Envelope::default()
            && frame.payload.is_empty();
        let Some((tag, said)) = frame.body.split_first_chunk::<TAG_BYTES>() else {
            return Err(HelloError::Proof);
        };
        if !is_proof {
            return Err(HelloError::Proof);
        }
        let (id, name) = if self.version >= WITH_IDS {
            let parts = said.split_first_chunk::<ID_BYTES>();
            let (id, name) = parts.ok_or(HelloError::Proof)?;
            (ClusterId(u128::from_be_bytes(*id)), name)
        } else {
            (ClusterId::NONE, said)
        };
        let name = std::str::from_utf8(name).map_err(|_| HelloError::Name)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(HelloError::Name);
        }
        hmac::verify(&ours.key(), &self.tagged(label, said), tag).map_err(|_| HelloError::Token)?;
        self.said.extend_from_slice(frame.body);
        Ok(Some((id, name, bytes)))
    }

    /// Performs the handshake on a blocking stream, after sending `out`. Returns the other side's
    /// role, and the bytes received after the handshake.
    ///
    /// # Errors
    /// Those of the stream; [`HelloError`] as invalid data.
    pub fn run(
        mut self,
        ours: Credentials<'_>,
        mut out: Vec<u8>,
        stream: &mut (impl Read + Write),
    ) -> std::io::Result<(Role, Vec<u8>)> {
        let mut input = Vec::new();
        loop {
            stream.write_all(&out)?;
            out.clear();
            let mut chunk = [0; 512];
            let read = stream.read(&mut chunk)?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            input.extend_from_slice(chunk.get(..read).unwrap_or_default());
            let progress = self.advance(ours, &input, &mut out);
            let progress = progress
                .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
            match progress {
                Progress::Waiting { used } => drop(input.drain(..used)),
                Progress::Done { used, role } => {
                    stream.write_all(&out)?;
                    return Ok((role, input.split_off(used)));
                }
            }
        }
    }
}
