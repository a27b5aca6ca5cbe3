//! Both sides in one process: streams of random pieces, and a hostile other side.

use duramen_shm::{
    Corrupt, RING_BYTES_MIN, Rings, bells, receive_with_fd, ring_bell, send_with_fd,
};
use proptest::prelude::*;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

const SIZE: usize = RING_BYTES_MIN;

fn pair() -> (Rings, Rings, OwnedFd) {
    let (server, fd) = Rings::make(SIZE).expect("memory");
    let client = Rings::adopt(&fd, SIZE).expect("the same memory");
    (server, client, fd)
}

#[test]
fn a_descriptor_travels_over_a_socket_and_bells_follow() {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let (mut server, fd) = Rings::make(SIZE).expect("memory");
    send_with_fd(&ours, b"rings", fd.as_fd()).expect("sent");
    let mut bytes = [0; 16];
    let (count, fd) = receive_with_fd(&theirs, &mut bytes).expect("received");
    assert_eq!(&bytes[..count], b"rings");
    let mut client = Rings::adopt(&fd.expect("a descriptor"), SIZE).expect("the same memory");
    assert_eq!(client.write(b"question").expect("valid").bytes, 8);
    let mut out = [0; 16];
    assert_eq!(server.read(&mut out).expect("valid").bytes, 8);
    assert_eq!(&out[..8], b"question");
    assert!(bells(&theirs), "open and quiet");
    ring_bell(&ours);
    ring_bell(&ours);
    assert!(bells(&theirs));
    drop(ours);
    assert!(!bells(&theirs), "its end is seen");
    ring_bell(&theirs); // no signal, no error
}

#[test]
fn the_memory_cannot_change_its_size_and_wrong_memory_is_refused() {
    let (_server, _client, fd) = pair();
    let file = File::from(fd.try_clone().expect("a descriptor"));
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 20).is_err());
    assert!(Rings::adopt(&fd, 2 * SIZE).is_err(), "another size");
    for wrong in [0, 1, SIZE - 1, 3 * SIZE, usize::MAX] {
        assert!(Rings::make(wrong).is_err(), "{wrong}");
        assert!(Rings::adopt(&fd, wrong).is_err(), "{wrong}");
    }
    let unsealed = tempfile::tempfile().expect("a file");
    unsealed.set_len(4096 + 2 * SIZE as u64).expect("a length");
    assert!(Rings::adopt(&unsealed.into(), SIZE).is_err(), "not sealed");
}

#[test]
fn a_sleeper_is_woken_once_and_a_full_ring_at_its_half() {
    let (mut server, mut client, _fd) = pair();
    assert!(server.may_sleep_for_bytes().expect("valid"));
    assert!(client.write(b"a").expect("valid").wakes);
    assert!(!client.write(b"b").expect("valid").wakes, "once per sleep");
    assert!(
        !server.may_sleep_for_bytes().expect("valid"),
        "there are bytes"
    );
    let filled = client.write(&[0; 2 * SIZE]).expect("valid").bytes;
    assert_eq!(filled, SIZE - 2);
    assert!(client.may_sleep_for_room().expect("valid"));
    let mut out = vec![0; SIZE / 2 - 1];
    assert!(
        !server.read(&mut out).expect("valid").wakes,
        "more than half is left"
    );
    assert!(
        client.may_sleep_for_room().expect("valid"),
        "a writer waits for half, else a reader of single bytes keeps it busy"
    );
    assert!(server.read(&mut [0]).expect("valid").wakes);
    assert!(!client.may_sleep_for_room().expect("valid"), "half is free");
}

/// Overwrites a word of the shared memory, as a hostile side can.
fn poke(fd: &OwnedFd, at: u64, value: u64) {
    let file = File::from(fd.try_clone().expect("a descriptor"));
    file.write_all_at(&value.to_ne_bytes(), at)
        .expect("written");
}

const CLIENT_WRITTEN: u64 = 0;
const CLIENT_READ_OF_SERVER: u64 = 512 + 128;

#[test]
fn impossible_counters_are_refused() {
    for value in [SIZE as u64 + 1, 1 << 40, u64::MAX, u64::MAX - SIZE as u64] {
        let (mut server, _client, fd) = pair();
        poke(&fd, CLIENT_WRITTEN, value);
        assert_eq!(server.readable(), Err(Corrupt), "{value}");
        assert_eq!(server.read(&mut [0; 8]), Err(Corrupt));
        assert_eq!(server.may_sleep_for_bytes(), Err(Corrupt));
    }
    for value in [1, SIZE as u64 + 1, 1 << 40, u64::MAX] {
        let (mut server, _client, fd) = pair();
        poke(&fd, CLIENT_READ_OF_SERVER, value);
        assert_eq!(server.write(&[0; 2 * SIZE]), Err(Corrupt), "{value}");
    }
    // A counter that falls.
    let (mut server, mut client, fd) = pair();
    let _ = client.write(b"four").expect("valid");
    assert_eq!(server.readable(), Ok(4));
    poke(&fd, CLIENT_WRITTEN, 3);
    assert_eq!(server.readable(), Err(Corrupt));
}

proptest! {
    /// Each direction is a stream: pieces of any size come out in order, whatever is read when.
    #[test]
    fn bytes_come_out_as_they_went_in(
        steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0..2 * SIZE), 1..200)
    ) {
        let (mut server, mut client, _fd) = pair();
        let mut sent = [0u64; 2];
        let mut received = [0u64; 2];
        for (of_server, writes, bytes) in steps {
            let way = usize::from(of_server);
            let side = if of_server == writes { &mut server } else { &mut client };
            if writes {
                let piece: Vec<u8> =
                    (0..bytes as u64).map(|n| ((sent[way] + n) * 7 / 5) as u8).collect();
                let moved = side.write(&piece).expect("valid");
                let room = SIZE as u64 - (sent[way] - received[way]);
                prop_assert_eq!(moved.bytes as u64, room.min(bytes as u64));
                sent[way] += moved.bytes as u64;
            } else {
                let mut out = vec![0; bytes];
                let moved = side.read(&mut out).expect("valid");
                prop_assert_eq!(moved.bytes as u64, (sent[way] - received[way]).min(bytes as u64));
                for (n, byte) in out[..moved.bytes].iter().enumerate() {
                    prop_assert_eq!(*byte, ((received[way] + n as u64) * 7 / 5) as u8);
                }
                received[way] += moved.bytes as u64;
            }
        }
    }

    /// Any content of the shared words: no panic, and never more bytes than a ring has.
    #[test]
    fn any_shared_words_do_no_harm(
        pokes in prop::collection::vec((0..128u64, any::<u64>(), 0..3u8), 1..100)
    ) {
        let (mut server, _client, fd) = pair();
        let mut out = vec![0; 2 * SIZE];
        for (word, value, small) in pokes {
            poke(&fd, 8 * word, if small > 0 { value % (2 * SIZE as u64) } else { value });
            if let Ok(moved) = server.read(&mut out) {
                prop_assert!(moved.bytes <= SIZE);
            }
            if let Ok(moved) = server.write(&out) {
                prop_assert!(moved.bytes <= SIZE);
            }
            let _ = (server.may_sleep_for_bytes(), server.may_sleep_for_room());
        }
    }
}
