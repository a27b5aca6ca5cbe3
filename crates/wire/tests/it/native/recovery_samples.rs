//! Samples of messages of recoveries.

use super::samples::{CERTIFICATE, LOG, OTHER, recover_tablet, table};
use duramen_base::ids::{ListVersion, RecoveryId, SegmentId, ServerId, TableId, TabletsVersion};
use duramen_format::segment::Kind;
use duramen_wire::native::message::{
    Admin, AdminAnswer, CleaningPass, Peer, PeerAnswer, Recover, RecoverSegment, Refusal,
    ReplicaEntry, Replicas, SegmentLoss, ServerAnswer,
};

const SERVER: ServerId = ServerId::new(3, 2);

pub fn losses() -> Vec<SegmentLoss> {
    vec![SegmentLoss {
        segment: SegmentId(514),
        token: 0x3f9a_01c2,
        lines: vec!["segment 514, bytes 64..128 held:".to_owned()],
    }]
}

pub fn questions() -> [Admin; 2] {
    let token = 0x3f9a_01c2;
    [
        Admin::Losses { server: SERVER },
        Admin::AcceptLoss {
            server: SERVER,
            token,
        },
    ]
}

pub fn answer() -> AdminAnswer {
    AdminAnswer::Losses {
        losses: losses(),
        token: 5,
    }
}

pub fn peer() -> Peer {
    Peer::ReadRaw {
        log: SERVER,
        segment: SegmentId(514),
        offset: 1 << 20,
    }
}

pub fn peer_answer() -> PeerAnswer {
    PeerAnswer::Raw {
        length: 2 << 20,
        lacks_end: true,
    }
}

pub fn recover() -> Recover {
    Recover {
        recovery: RecoveryId(11),
        partition: 1,
        log: LOG,
        tablets: vec![recover_tablet()],
        floors: vec![(TableId(5), 100)],
        safe_version: 1000,
        tables: vec![table()],
        segments: vec![RecoverSegment {
            segment: SegmentId(7),
            kind: Kind::Head,
            epoch: 1,
            certificate: CERTIFICATE,
            closed: true,
            sources: vec![OTHER],
        }]
        .into(),
        passes: vec![CleaningPass {
            first: SegmentId(9),
            count: 2,
            victims: vec![SegmentId(1)],
        }],
        accepted: Vec::new(),
    }
}

fn replica_entry() -> ReplicaEntry {
    ReplicaEntry {
        segment: SegmentId(7),
        kind: Kind::Survivor,
        epoch: 0,
        certificate: CERTIFICATE,
        closed: false,
        primary: true,
    }
}

pub fn server_answers() -> Vec<(ServerAnswer, &'static [u8])> {
    let replicas = Replicas {
        log: LOG,
        recovery: RecoveryId(11),
        segments: vec![replica_entry()],
        control: Some(SegmentId(8)),
        lease_left_ms: 500,
        inherited: vec![SegmentId(7)],
        damaged: Vec::new(),
    };
    vec![
        (
            ServerAnswer::Pong {
                nonce: 1,
                list_version: ListVersion(2),
            },
            b"",
        ),
        (
            ServerAnswer::Confirmed {
                list_version: ListVersion(2),
                tablets_version: TabletsVersion(3),
            },
            b"",
        ),
        (
            ServerAnswer::Replicas(Box::new(replicas.clone())),
            b"control",
        ),
        (ServerAnswer::Started, b""),
        (ServerAnswer::Busy, b""),
        (ServerAnswer::Refused(Refusal::NotUp(LOG)), b""),
        (
            ServerAnswer::Replicas(Box::new(Replicas {
                damaged: vec![replica_entry()],
                ..replicas
            })),
            b"control",
        ),
    ]
}
