//! How two sides of a connection prove to each other that they know the cluster's token, without
//! saying it.
//!
//! ```text
//! who connected                          who accepted
//!   opening (nonce)             →
//!                               ←        opening (nonce)
//!   proof, without a name       →
//!                               ←        proof, with the cluster's name
//!   proof, with the cluster's name  →
//!   frames                      ↔        frames
//! ```
//!
//! A proof is a frame of kind 5, an answer where who accepted sends it; request, target and sender
//! are 0. Its body is a tag of 32 bytes, the cluster's id of 16 bytes (big endian, 0 if it is not
//! known; absent in version 2), and the name up to the end. The tag is HMAC-SHA-256 with the token
//! as its key (empty if the cluster has none) over: a label, one for each of the three proofs; both
//! openings, that of who connected first; the bodies of the proofs before it; id and name.
//!
//! **Invariants**
//! - S1: the token is never sent, nor anything from which it could be computed but by guessing it.
//!   The nonces are in every tag, so no tag serves twice, and no label is used by both sides, so no
//!   tag can be sent back.
//! - S2: who accepted sends no proof and no name before the other side's proof was right. Nobody
//!   says the cluster's name or id to somebody who has not proved itself.
//! - S3: [`HANDSHAKE_BYTES_MAX`] bounds what a side sends before it is known; tags are compared in
//!   constant time.
//! - S4: two sides that know different ids do not talk to each other, whatever their names are. The
//!   dialler says its id before it goes: the acceptor may have the wrong one.
//!
//! Not a goal: whoever sits between both sides passes the handshake on and then reads and changes
//! frames. That takes encryption.

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
/// Most bytes that a side sends before it is known: an opening, and two frames, of which one is
/// short.
pub const HANDSHAKE_BYTES_MAX: usize =
    OPENING_BYTES + 2 * HEADER_BYTES + TAG_BYTES + ID_BYTES + FRAME_BYTES_MAX;

/// Labels of the three proofs (S1). None is the beginning of another.
const DIALLER: &[u8] = b"DURAMENN proof of who connected";
const ACCEPTOR: &[u8] = b"DURAMENN proof of who accepted";
const CLUSTER: &[u8] = b"DURAMENN name of who connected";

/// What both sides must have in common.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// Empty: any cluster (clients and tools only).
    pub cluster: &'a str,
    /// Empty: the cluster has none.
    pub token: &'a [u8],
    /// [`ClusterId::NONE`]: any cluster of that name.
    pub id: ClusterId,
}

impl Credentials<'_> {
    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.token)
    }

    /// Whether a side of this role that names `theirs` is of the same cluster.
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

    /// S4.
    fn agree_on_id(&self, theirs: ClusterId) -> Result<(), HelloError> {
        match self.id.contradicts(theirs) {
            true => Err(HelloError::OtherCluster {
                ours: self.id,
                theirs,
            }),
            false => Ok(()),
        }
    }
}

/// What this side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    Proof,
    Name,
    Done,
}

/// One side of it. See the file's head.
#[derive(Debug)]
pub struct Handshake {
    is_dialler: bool,
    ours: Opening,
    /// The other side's, once its opening is there.
    role: Option<Role>,
    /// The version that both speak, once that is known.
    version: u16,
    /// As the other side says it.
    id: ClusterId,
    /// As this side has said it.
    told: ClusterId,
    stage: Stage,
    /// Openings, and bodies of the proofs: what the next tag is over.
    said: Vec<u8>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many bytes of the input are used up, and more has to come.
    Waiting { used: usize },
    /// The other side has proved itself. What follows the used bytes are frames.
    Done { used: usize, role: Role },
}

/// A new nonce from the system.
///
/// # Errors
/// It has none: [`HelloError::NoRandomness`].
pub fn fresh_nonce() -> Result<Nonce, HelloError> {
    let mut nonce = Nonce::default();
    let filled = SystemRandom::new().fill(&mut nonce);
    filled.map_err(|_| HelloError::NoRandomness)?;
    Ok(nonce)
}

impl Handshake {
    /// Of who connected: appends its opening to `out`.
    pub fn dial(role: Role, nonce: Nonce, out: &mut Vec<u8>) -> Handshake {
        let mut handshake = Handshake::accept(role, nonce);
        handshake.is_dialler = true;
        handshake.ours.encode(out);
        handshake
    }

    /// Of who accepted: says nothing yet.
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

    /// The other side's, once its opening is there.
    pub fn role(&self) -> Option<Role> {
        self.role
    }

    /// The cluster's id, as the other side knows it. To be asked when it has proved itself.
    pub fn their_id(&self) -> ClusterId {
        self.id
    }

    /// And as this side has said it.
    pub fn told_id(&self) -> ClusterId {
        self.told
    }

    /// Goes on with untrusted `input`, which begins where the last call stopped using it; appends
    /// to `out` what is to be sent.
    ///
    /// # Errors
    /// The other side is not to be talked to. `out` is sent all the same, by who accepted with a
    /// frame behind it that says why.
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
            self.ours.encode(out); // also before a refusal: the other side expects it
        }
        let Some(theirs) = parsed? else {
            return Ok(None);
        };
        let (first, second) = match self.is_dialler {
            true => (&self.ours, &theirs),
            false => (&theirs, &self.ours),
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
    /// If the name is longer than 255 bytes: configuration is checked when it is read.
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

    /// Id and name in the proof at the beginning of `input`, and the proof's length.
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
        let (id, name) = match self.version >= WITH_IDS {
            true => {
                let parts = said.split_first_chunk::<ID_BYTES>();
                let (id, name) = parts.ok_or(HelloError::Proof)?;
                (ClusterId(u128::from_be_bytes(*id)), name)
            }
            false => (ClusterId::NONE, said),
        };
        let name = std::str::from_utf8(name).map_err(|_| HelloError::Name)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(HelloError::Name);
        }
        hmac::verify(&ours.key(), &self.tagged(label, said), tag).map_err(|_| HelloError::Token)?;
        self.said.extend_from_slice(frame.body);
        Ok(Some((id, name, bytes)))
    }

    /// Goes through it on a stream that blocks, after `out` was sent: the other side's role, and
    /// what it sent behind the handshake.
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
