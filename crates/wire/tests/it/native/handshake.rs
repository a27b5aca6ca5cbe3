//! The handshake. Another program computed `handshake.txt`, from the description in
//! `docs/native-protocol.md`.
//!
//! In version 1 the acceptor of a connection began with a hello that contained the cluster's token,
//! so any program that connected and listened got the token; and a dialler sent it to any program
//! that answered. Now both sides prove that they have it.

use crate::native::hex;
use duramen_base::ids::ClusterId;
use duramen_format::checksum;
use duramen_wire::native::codec::{
    Credentials, Envelope, HANDSHAKE_BYTES_MAX, HEADER_BYTES, Handshake, HelloError, Kind, Nonce,
    OPENING_BYTES, Opening, Progress, Role, Trouble, encode_trouble, fresh_nonce, is_plain_opening,
    parse_opening,
};

const TOKEN: &[u8] = b"a token that nobody guesses, of 44 bytes ...";
const HERE: Credentials<'_> = Credentials {
    cluster: "here",
    token: TOKEN,
    id: ClusterId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
};
const ONES: Nonce = [1; 32];
const TWOS: Nonce = [2; 32];

/// One side, and the bytes it was sent and has not used yet.
struct Side<'c> {
    handshake: Handshake,
    ours: Credentials<'c>,
    input: Vec<u8>,
}

type Step = Result<Option<Role>, HelloError>;

impl<'c> Side<'c> {
    fn dial(role: Role, ours: Credentials<'c>, nonce: Nonce) -> (Side<'c>, Vec<u8>) {
        let mut out = Vec::new();
        let handshake = Handshake::dial(role, nonce, &mut out);
        let input = Vec::new();
        let side = Side {
            handshake,
            ours,
            input,
        };
        (side, out)
    }

    fn accept(ours: Credentials<'c>, nonce: Nonce) -> Side<'c> {
        Side {
            handshake: Handshake::accept(Role::Server, nonce),
            ours,
            input: Vec::new(),
        }
    }

    /// The side's output for these bytes, and the other side's role once that has proved itself.
    fn hear(&mut self, bytes: &[u8]) -> (Vec<u8>, Step) {
        self.input.extend_from_slice(bytes);
        let mut out = Vec::new();
        let step = self.handshake.advance(self.ours, &self.input, &mut out);
        let step = step.map(|progress| {
            let (used, role) = match progress {
                Progress::Waiting { used } => (used, None),
                Progress::Done { used, role } => (used, Some(role)),
            };
            self.input.drain(..used);
            role
        });
        (out, step)
    }
}

/// Everything that both sides send, in turn, and the results of the dialler and of the acceptor.
fn meet(
    role: Role,
    dialler: Credentials<'_>,
    acceptor: Credentials<'_>,
) -> (Vec<Vec<u8>>, Step, Step) {
    let (mut one, opening) = Side::dial(role, dialler, ONES);
    let mut two = Side::accept(acceptor, TWOS);
    let mut said = vec![opening];
    let (mut first, mut second) = (Ok(None), Ok(None));
    for turn in 0.. {
        let last = said.last().expect("an opening").clone();
        let out = match turn % 2 {
            0 => {
                let (out, step) = two.hear(&last);
                second = step;
                out
            }
            _ => {
                let (out, step) = one.hear(&last);
                first = step;
                out
            }
        };
        if out.is_empty() {
            break;
        }
        said.push(out);
        if first.is_err() || second.is_err() {
            break;
        }
    }
    (said, first, second)
}

#[test]
fn both_sides_prove_themselves_and_the_bytes_are_these() {
    let (said, first, second) = meet(Role::Client, HERE, HERE);
    assert_eq!(
        (first, second),
        (Ok(Some(Role::Server)), Ok(Some(Role::Client)))
    );
    let expected = include_str!("handshake.txt");
    let found: Vec<String> = said.iter().map(|bytes| hex(bytes)).collect();
    assert_eq!(found, expected.lines().collect::<Vec<_>>());
    // None of the messages contains the token or its beginning; the name appears only after the
    // dialler has proved itself.
    let all = said.concat();
    assert!(!all.windows(8).any(|window| window == &TOKEN[..8]));
    let name = |bytes: &Vec<u8>| bytes.windows(4).any(|window| window == b"here");
    let named: Vec<bool> = said.iter().map(name).collect();
    assert_eq!(named, [false, false, false, true, true]);
    // The dialler sends no more bytes than this bound.
    assert!(said[0].len() + said[2].len() + said[4].len() < HANDSHAKE_BYTES_MAX);
}

#[test]
fn it_may_be_cut_anywhere_and_frames_may_follow_at_once() {
    let (said, ..) = meet(Role::Replica, HERE, HERE);
    let mut dialler = said[0].clone();
    dialler.extend(&said[2]);
    dialler.extend(&said[4]);
    dialler.extend(b"frames");
    for cut in 0..=dialler.len() {
        let mut side = Side::accept(HERE, TWOS);
        let (mut out, first) = side.hear(&dialler[..cut]);
        let (more, second) = side.hear(&dialler[cut..]);
        out.extend(more);
        let is_late = cut > dialler.len() - b"frames".len();
        let first = first.expect("nothing wrong");
        assert_eq!(
            first.is_some(),
            cut + b"frames".len() >= dialler.len(),
            "cut at {cut}"
        );
        if !is_late {
            assert_eq!(second, Ok(Some(Role::Replica)));
            assert_eq!(side.input, b"frames");
        }
        assert_eq!(out, [&said[1][..], &said[3][..]].concat());
    }
}

#[test]
fn without_a_token_it_works_as_well_and_clusters_are_told_apart() {
    let of = |cluster| Credentials {
        cluster,
        token: &[],
        id: ClusterId::NONE,
    };
    for (role, dialler) in [
        (Role::Server, "here"),
        (Role::Client, "here"),
        (Role::Client, ""),
    ] {
        let (_, first, second) = meet(role, of(dialler), of("here"));
        assert_eq!((first, second), (Ok(Some(Role::Server)), Ok(Some(role))));
    }
    let (_, first, _) = meet(Role::Server, of("there"), of("here"));
    let text = first.expect_err("two clusters").to_string();
    assert!(
        text.contains("`here`") && text.contains("`there`"),
        "{text}"
    );
    // A server without a cluster name belongs to no cluster; the acceptor refuses it with that
    // reason.
    let (_, first, second) = meet(Role::Server, of(""), of("here"));
    assert_eq!(first, Ok(Some(Role::Server)));
    assert!(matches!(second, Err(HelloError::WrongCluster { .. })));
}

/// Two clusters may have one name and one token, or none.
#[test]
fn sides_with_different_ids_part_and_both_know_why() {
    let of = |id| Credentials {
        id: ClusterId(id),
        ..HERE
    };
    for (dialler, acceptor) in [(7, 7), (0, 7), (7, 0), (0, 0)] {
        let (_, first, second) = meet(Role::Server, of(dialler), of(acceptor));
        assert_eq!(
            (first, second),
            (Ok(Some(Role::Server)), Ok(Some(Role::Server)))
        );
    }
    let (said, first, second) = meet(Role::Server, of(7), of(8));
    let parts = |ours, theirs| {
        Err(HelloError::OtherCluster {
            ours: ClusterId(ours),
            theirs: ClusterId(theirs),
        })
    };
    assert_eq!((first, second), (parts(7, 8), Ok(None)));
    // The dialler closes the connection, and has sent its id before.
    let mut acceptor = Side::accept(of(8), TWOS);
    for n in [0, 2] {
        assert_eq!(acceptor.hear(&said[n]).1, Ok(None));
    }
    assert_eq!(acceptor.hear(&said[4]), (Vec::new(), parts(8, 7)));
    // With a wrong name, no id is sent.
    let named = Credentials {
        cluster: "there",
        ..of(7)
    };
    let (said, first, _) = meet(Role::Server, named, of(8));
    assert!(matches!(first, Err(HelloError::WrongCluster { .. })));
    assert_eq!(said.len(), 4);
}

/// The opening and the proofs of a program of version 2, computed by an independent program from
/// the description. Both sides agree on version 2, which has no ids.
#[test]
fn a_program_of_version_2_is_understood() {
    let expected: Vec<Vec<u8>> = include_str!("handshake_2.txt").lines().map(bytes).collect();
    let mut acceptor = Side::accept(HERE, TWOS);
    let (out, step) = acceptor.hear(&expected[0]);
    assert_eq!((out.len(), step), (OPENING_BYTES, Ok(None)));
    let (out, step) = acceptor.hear(&expected[2]);
    assert_eq!((out, step), (expected[3].clone(), Ok(None)));
    let (out, step) = acceptor.hear(&expected[4]);
    assert_eq!((out, step), (Vec::new(), Ok(Some(Role::Client))));
    assert_eq!(acceptor.handshake.their_id(), ClusterId::NONE);
    // In the other direction.
    let (mut dialler, _) = Side::dial(Role::Client, HERE, ONES);
    let mut old = Vec::new();
    Opening::new(Role::Server, TWOS).encode(&mut old);
    old[10] = 2;
    let (proof, step) = dialler.hear(&old);
    assert_eq!((proof.len(), step), (HEADER_BYTES + 32, Ok(None)));
}

fn bytes(line: &str) -> Vec<u8> {
    let digits: Vec<u32> = line.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|two| (two[0] << 4 | two[1]) as u8)
        .collect()
}

#[test]
fn who_has_not_the_token_learns_nothing() {
    let tokens: [&[u8]; 4] = [
        b"",
        b"guess",
        &TOKEN[..43],
        b"a token that nobody guesses, of 44 bytes ..,",
    ];
    for token in tokens {
        let guess = Credentials { token, ..HERE };
        // The dialler is refused, and has received only an opening.
        let (said, first, second) = meet(Role::Server, guess, HERE);
        assert_eq!((first, second), (Ok(None), Err(HelloError::Token)));
        assert_eq!((said.len(), said[1].len()), (3, OPENING_BYTES));
        // The same the other way round: a token on one side only is a wrong token.
        let (_, _, second) = meet(Role::Server, HERE, guess);
        assert_eq!(second, Err(HelloError::Token));
    }
    // An acceptor without the token ignores the proof, and cannot produce one: the proof it sends
    // is not valid.
    let (mut dialler, _) = Side::dial(Role::Server, HERE, ONES);
    let mut opening = Vec::new();
    Opening::new(Role::Server, TWOS).encode(&mut opening);
    let (proof, step) = dialler.hear(&opening);
    assert_eq!(step, Ok(None));
    let guess = Credentials { token: b"", ..HERE };
    let (said, ..) = meet(Role::Server, guess, guess);
    assert_eq!(dialler.hear(&said[3]), (Vec::new(), Err(HelloError::Token)));
    // The dialler's own proof, sent back, is not valid either: it has the other direction, and
    // another label.
    for flags in [0, 1] {
        let (mut dialler, _) = Side::dial(Role::Server, HERE, ONES);
        assert_eq!(dialler.hear(&opening).1, Ok(None));
        let mut reflected = proof.clone();
        reflected[6] = flags;
        seal(&mut reflected);
        let expected = [HelloError::Proof, HelloError::Token][usize::from(flags)].clone();
        assert_eq!(dialler.hear(&reflected), (Vec::new(), Err(expected)));
    }
}

/// Corrects the checksum of a frame.
fn seal(frame: &mut [u8]) {
    let crc = checksum::crc32c_append(checksum::crc32c(&frame[..36]), &frame[HEADER_BYTES..]);
    frame[36..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn what_was_heard_before_proves_nothing_later() {
    let (said, ..) = meet(Role::Server, HERE, HERE);
    // To the acceptor, with another nonce: the opening and the proof of the earlier handshake.
    let mut acceptor = Side::accept(HERE, [3; 32]);
    let (_, step) = acceptor.hear(&[&said[0][..], &said[2][..]].concat());
    assert_eq!(step, Err(HelloError::Token));
    // To the dialler.
    let (mut dialler, _) = Side::dial(Role::Server, HERE, [3; 32]);
    let (_, step) = dialler.hear(&[&said[1][..], &said[3][..]].concat());
    assert_eq!(step, Err(HelloError::Token));
    // A name that the proved side did not send, and a repeated proof.
    for third in [&said[2], &said[3]] {
        let mut acceptor = Side::accept(HERE, TWOS);
        let (_, step) = acceptor.hear(&[&said[0][..], &said[2][..]].concat());
        assert_eq!(step, Ok(None));
        assert!(acceptor.hear(third).1.is_err());
    }
    assert_ne!(fresh_nonce(), fresh_nonce());
}

/// An attacker between both sides ends the TLS channel of each, with a certificate that it has
/// stolen, and forwards the bytes: each side's proofs are for its own channel.
#[test]
fn a_forwarded_or_recorded_handshake_of_another_channel_proves_nothing() {
    let bindings = [Some([7; 32]), Some([8; 32]), None];
    for dialler in bindings {
        for acceptor in bindings {
            let (mut one, opening) = Side::dial(Role::Server, HERE, ONES);
            let mut two = Side::accept(HERE, TWOS);
            for (side, binding) in [(&mut one, dialler), (&mut two, acceptor)] {
                if let Some(binding) = binding {
                    side.handshake.bind(&binding);
                }
            }
            let (said, _) = two.hear(&opening);
            let (proof, step) = one.hear(&said);
            assert_eq!(step, Ok(None));
            let (said, step) = two.hear(&proof);
            if dialler != acceptor {
                assert_eq!((said, step), (Vec::new(), Err(HelloError::Token)), "S5");
                continue;
            }
            assert_eq!(step, Ok(None));
            let (name, step) = one.hear(&said);
            assert_eq!(step, Ok(Some(Role::Server)));
            assert_eq!(two.hear(&name).1, Ok(Some(Role::Server)));
        }
    }
}

/// The tag covers role and versions too: an attacker between both sides cannot change them
/// unnoticed.
#[test]
fn every_flipped_bit_is_seen() {
    let (said, ..) = meet(Role::Server, HERE, HERE);
    let dialler = [&said[0][..], &said[2][..], &said[4][..]].concat();
    for at in 0..dialler.len() {
        for mask in [1, 0x80, 0xff] {
            let mut bytes = dialler.clone();
            bytes[at] ^= mask;
            let (_, step) = Side::accept(HERE, TWOS).hear(&bytes);
            assert!(!matches!(step, Ok(Some(_))), "byte {at}");
        }
    }
}

#[test]
fn an_old_program_and_a_new_one_tell_each_other_the_versions() {
    // A hello of version 1: versions 1 to 1, a server, a name of 4 bytes, a token of 6.
    let old = b"DURAMENN\x01\0\x01\0\x02\x04\x06\0heresecret";
    let mut acceptor = Side::accept(HERE, TWOS);
    let (out, step) = acceptor.hear(old);
    let text = step.expect_err("no common version").to_string();
    assert!(
        text.contains("1 to 1") && text.contains("update the older program"),
        "{text}"
    );
    // The old parser expects a known role and two lengths, and then reads these versions.
    assert_eq!(out[8..16], [2, 0, 3, 0, 2, 0, 0, 0]);
    let (mut dialler, _) = Side::dial(Role::Client, HERE, ONES);
    let (out, step) = dialler.hear(&old[..12]);
    assert!(out.is_empty() && matches!(step, Err(HelloError::NoCommonVersion { min: 1, max: 1 })));
    let (mut dialler, mut later) = Side::dial(Role::Client, HERE, ONES);
    later[10] = 9;
    let (_, step) = Side::accept(HERE, TWOS).hear(&later);
    assert_eq!(
        step,
        Ok(None),
        "a later program that speaks this version, too"
    );
    // The dialler is sent the reason for the refusal.
    let mut refusal = said_before_refusal();
    let trouble = Trouble::NotPermitted { reason: "x" };
    encode_trouble(
        &mut refusal,
        &Envelope::default(),
        Kind::Ping as u16,
        &trouble,
    );
    assert_eq!(dialler.hear(&refusal).1, Err(HelloError::Token));
}

fn said_before_refusal() -> Vec<u8> {
    let mut opening = Vec::new();
    Opening::new(Role::Server, TWOS).encode(&mut opening);
    opening
}

#[test]
fn what_is_no_opening_is_refused_at_once() {
    assert_eq!(parse_opening(b"*1\r\n$4\r\nPING"), Err(HelloError::Magic));
    assert_eq!(parse_opening(b"D U"), Err(HelloError::Magic));
    assert_eq!(parse_opening(b"\x16\x03\x01"), Err(HelloError::Encrypted));
    assert!(is_plain_opening(b"D") && is_plain_opening(b"DURAMENN\x02"));
    assert!(!is_plain_opening(b"") && !is_plain_opening(b"\x16\x03\x01"));
    let opening = said_before_refusal();
    for cut in 0..OPENING_BYTES {
        assert_eq!(parse_opening(&opening[..cut]), Ok(None));
    }
    for (at, value, error) in [
        (12, 7, HelloError::Role { found: 7 }),
        (8, 0, HelloError::Versions { min: 0, max: 3 }),
        (8, 4, HelloError::Versions { min: 4, max: 3 }),
        (15, 5, HelloError::Reserved),
    ] {
        let mut wrong = opening.clone();
        wrong[at] = value;
        assert_eq!(parse_opening(&wrong), Err(error));
    }
    // The acceptor does not wait for a long frame in place of a proof.
    let mut acceptor = Side::accept(HERE, TWOS);
    assert_eq!(acceptor.hear(&opening).1, Ok(None));
    let (_, step) = acceptor.hear(&[0, 0, 1, 0]);
    assert!(matches!(step, Err(HelloError::Frame(_))), "{step:?}");
    assert!(acceptor.input.len() < HEADER_BYTES);
}
