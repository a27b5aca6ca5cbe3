//! One message of each variant; every optional part occurs once.

use duramen_base::ids::*;
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use duramen_wire::native::codec::{
    Envelope, MultiAnswer, MultiRequest, ObjectsAnswer, encode_coordinator_answer,
    encode_enumerate, encode_enumerate_problem, encode_from_coordinator, encode_logged_in,
    encode_login, encode_outcome, encode_peer, encode_peer_answer, encode_ping, encode_pong,
    encode_server_answer, encode_single, encode_to_coordinator, encode_trouble,
};
use duramen_wire::native::message::*;

use crate::native::balance_samples::{balance, rebalance};
pub use crate::native::client_samples::*;
use crate::native::recovery_samples;
use crate::native::user_samples::{functions, health, users};

pub const LOG: ServerId = ServerId::new(3, 2);
pub const OTHER: ServerId = ServerId::new(4, 1);
const RANGE: KeyRange = KeyRange::new(RouteHash(0x10), RouteHash(0xff00_0000_0000_0000));
pub const CERTIFICATE: Certificate = Certificate {
    length: 4096,
    crc: 0xdead_beef,
};
pub const ENVELOPE: Envelope = Envelope {
    request: 0x0102_0304_0506_0708,
    target: LOG,
    sender: OTHER,
};

fn addresses() -> Addresses {
    Addresses {
        native: "a:1".into(),
        resp: Some("a:2".into()),
        plain: None,
        admin: None,
    }
}

fn server() -> ServerEntry {
    ServerEntry {
        server: LOG,
        addresses: addresses(),
        rack: Some("r".into()),
        roles: Roles {
            master: true,
            backup: false,
        },
        disk: 9,
        read_bytes_per_s: 1 << 30,
        status: ServerStatus::Up,
        draining: true,
        unused: Some(1),
    }
}

fn settings() -> ClusterSettings {
    ClusterSettings {
        replicas: 3,
        segment_bytes: 8 << 20,
        hash_seed: 77,
        ping_interval_ms: 100,
        ping_timeout_ms: 50,
        verdict_timeout_ms: 250,
        read_lease_ms: 500,
        client_lease_ms: 1_800_000,
        partition_bytes: 500 << 20,
        partition_records: 2_000_000,
        rpc_window: 512,
        layout: ReplicaLayout::Scatter,
    }
}

pub fn table() -> TableEntry {
    TableEntry {
        table: TableId(5),
        name: "t".into(),
        level: Some(Level::Buffered),
    }
}

fn route() -> TabletRoute {
    TabletRoute {
        table: TableId(5),
        range: RANGE,
        owner: LOG,
        served: true,
        moving_to: Some(OTHER),
    }
}

pub fn recover_tablet() -> RecoverTablet {
    RecoverTablet {
        table: TableId(5),
        range: RANGE,
        creation: SegmentId(6),
    }
}

pub fn write_replica() -> WriteReplica {
    WriteReplica {
        log: LOG,
        segment: SegmentId(7),
        kind: Kind::Control,
        epoch: 1,
        offset: 64,
        certificate: Some(CERTIFICATE),
        open: true,
        close: true,
        primary: true,
        level: Level::Synced,
        capacity: 8 << 20,
    }
}

fn enlist() -> Enlist {
    Enlist {
        nonce: 300,
        cluster: "c".into(),
        addresses: addresses(),
        rack: None,
        roles: Roles {
            master: true,
            backup: true,
        },
        replaces: Some(OTHER),
        disk: 9,
        read_bytes_per_s: 0,
        segment_bytes: 8 << 20,
    }
}

pub fn to_coordinator() -> Vec<ToCoordinator> {
    let (recovery, migration) = (RecoveryId(11), MigrationId(12));
    let mut all = vec![
        ToCoordinator::Enlist(enlist()),
        ToCoordinator::Suspect {
            server: OTHER,
            list_version: ListVersion(300),
        },
        ToCoordinator::ControlHead {
            server: LOG,
            min_open: SegmentId(7),
        },
        ToCoordinator::PartitionDone(PartitionDone {
            recovery,
            partition: 1,
            server: LOG,
            outcome: PartitionOutcome::Replayed {
                creation: SegmentId(8),
                bytes: 9,
                entries: 10,
            },
        }),
        ToCoordinator::PartitionDone(PartitionDone {
            recovery,
            partition: 1,
            server: LOG,
            outcome: PartitionOutcome::Failed {
                retry_elsewhere: true,
                reason: "full".into(),
            },
        }),
        ToCoordinator::PartitionProgress(PartitionProgress {
            recovery,
            partition: 1,
            server: LOG,
            bytes: 2,
            bytes_total: 3,
            entries: 4,
        }),
        ToCoordinator::MigrationDone(MigrationDone {
            migration,
            server: LOG,
            outcome: MigrationOutcome::Complete {
                creation: SegmentId(8),
            },
        }),
        ToCoordinator::Confirm {
            server: LOG,
            list_version: ListVersion(1),
            tablets_version: TabletsVersion(2),
        },
        ToCoordinator::Loads {
            server: LOG,
            loads: vec![RangeLoad {
                table: TableId(5),
                range: RANGE,
                bytes: 1000,
                records: 10,
            }],
        },
        ToCoordinator::ClientLease {
            client: Some(ClientId(1)),
        },
        ToCoordinator::AreAlive {
            clients: vec![ClientId(1), ClientId(2)],
        },
        ToCoordinator::Map {
            table: None,
            since: MapVersion(4),
        },
        ToCoordinator::Servers,
    ];
    all.extend(admin().into_iter().map(ToCoordinator::Admin));
    all.push(ToCoordinator::MigrationProgress(MigrationProgress {
        migration,
        server: LOG,
        bytes: 2,
        bytes_total: 3,
        entries: 4,
        phase: MigrationPhase::Copying,
    }));
    all.push(ToCoordinator::Room {
        server: LOG,
        room: room(),
    });
    all.push(ToCoordinator::MapChanges {
        since: MapVersion(4),
    });
    all.push(ToCoordinator::ReadSpeed {
        server: LOG,
        bytes_per_s: 1 << 30,
    });
    all.push(ToCoordinator::Users);
    all.push(ToCoordinator::SetUsers(users()));
    all.push(ToCoordinator::Admin(Admin::Members));
    all.push(ToCoordinator::Admin(Admin::Waits));
    all.push(ToCoordinator::Functions);
    all.push(ToCoordinator::SetFunctions(functions()));
    all.push(ToCoordinator::DiskRoom {
        server: LOG,
        free: 3,
        frames: 4,
    });
    all.push(ToCoordinator::Certificate {
        server: LOG,
        expires_s: 1_800_000_000,
    });
    all.extend(rebalance().map(ToCoordinator::Admin));
    all.push(ToCoordinator::PartitionDone(PartitionDone {
        recovery: RecoveryId(11),
        partition: 1,
        server: LOG,
        outcome: PartitionOutcome::Lost {
            losses: recovery_samples::losses(),
        },
    }));
    all.extend(recovery_samples::questions().map(ToCoordinator::Admin));
    all.push(ToCoordinator::Means(Means {
        server: LOG,
        given_bytes: 5,
        segments_short: 6,
    }));
    all.push(ToCoordinator::AreGone {
        logs: vec![LOG, OTHER],
    });
    all
}

fn admin() -> Vec<Admin> {
    vec![
        Admin::CreateTable {
            name: "t".into(),
            servers: 3,
            level: None,
        },
        Admin::DropTable { name: "t".into() },
        Admin::Split {
            table: TableId(5),
            at: RouteHash(1 << 63),
        },
        Admin::Migrate {
            table: TableId(5),
            range: RANGE,
            to: OTHER,
        },
        Admin::AbortMigration {
            migration: MigrationId(12),
        },
        Admin::Drain { server: LOG },
        Admin::Undrain { server: LOG },
        Admin::Status,
        Admin::Recoveries,
        Admin::CrashServer { server: LOG },
        Admin::Overview,
        Admin::Tablets {
            table: Some(TableId(5)),
            from: Some((TableId(5), RANGE.first)),
            most: 7,
        },
        Admin::Settings,
    ]
}

fn room() -> ServerRoom {
    ServerRoom {
        used_bytes: 1,
        limit_bytes: 2,
        replicas: 3,
        segments_sharing_rack: 4,
    }
}

fn recovery() -> RecoveryStatus {
    RecoveryStatus {
        recovery: RecoveryId(11),
        server: LOG,
        phase: RecoveryPhase::Replaying,
        partitions: 3,
        partitions_done: 1,
        bytes: 1,
        bytes_total: 2,
        entries: 3,
        elapsed_ms: 4,
        waits_for: Some("x".into()),
    }
}

fn migration() -> MigrationStatus {
    MigrationStatus {
        migration: MigrationId(12),
        table: TableId(5),
        range: RANGE,
        from: LOG,
        to: OTHER,
        phase: MigrationPhase::GivenUp,
        bytes: 1,
        bytes_total: 2,
        entries: 3,
        elapsed_ms: 4,
        reason: Some("x".into()),
    }
}

fn status() -> Status {
    Status {
        cluster: "c".into(),
        term: 2,
        leader: "a:1".into(),
        list_version: ListVersion(1),
        map_version: MapVersion(2),
        servers: vec![server()],
        tables: vec![table()],
        tablets: vec![route()],
        recoveries: vec![recovery()],
        migrations: vec![migration()],
        migrations_ended: vec![migration()],
        settings: settings(),
        loads: vec![ServerLoad {
            server: LOG,
            bytes: 5,
            records: 6,
        }],
    }
}

fn overview() -> Overview {
    Overview {
        status: Status {
            tablets: Vec::new(),
            ..status()
        },
        tablets: 9,
        tablets_unserved: 8,
        migrations: 7,
        tables: vec![TableShare {
            table: TableId(5),
            tablets: 9,
            owners: 2,
        }],
        servers: vec![ServerShare {
            server: LOG,
            tablets: 9,
            room: Some(room()),
            waits_for: Some("x".into()),
        }],
    }
}

fn admin_answers() -> Vec<AdminAnswer> {
    vec![
        AdminAnswer::Done,
        AdminAnswer::Table(table()),
        AdminAnswer::Migrating(vec![MigrationId(12)]),
        AdminAnswer::Status(Box::new(status())),
        AdminAnswer::Recoveries(vec![recovery()]),
        AdminAnswer::Overview(Box::new(overview())),
        AdminAnswer::Tablets(TabletPage {
            map_version: MapVersion(2),
            tablets: vec![route()],
            next: Some((TableId(5), RANGE.last)),
        }),
        AdminAnswer::Settings(settings()),
    ]
}

fn refusals() -> Vec<Refusal> {
    vec![
        Refusal::NotLeader {
            leader: Some("a:1".into()),
        },
        Refusal::NotReady {
            after_ms: 5,
            reason: "starting".into(),
        },
        Refusal::NotUp(LOG),
        Refusal::WrongCluster {
            expected: "c".into(),
            found: "d".into(),
        },
        Refusal::WrongProtocol { min: 1, max: 2 },
        Refusal::Invalid("no".into()),
        Refusal::Store("gone".into()),
    ]
}

pub fn coordinator_answers() -> Vec<CoordinatorAnswer> {
    let list = ServerList {
        version: ListVersion(1),
        servers: vec![server()],
    };
    let mut all = vec![
        CoordinatorAnswer::Enlisted(Box::new(Enlisted {
            server: LOG,
            list: list.clone().into(),
            settings: settings(),
        })),
        CoordinatorAnswer::Noted,
        CoordinatorAnswer::Accepted {
            since: TabletsVersion(3),
        },
        CoordinatorAnswer::Stale,
        CoordinatorAnswer::Lease {
            client: ClientId(1),
            ttl_ms: 1_800_000,
        },
        CoordinatorAnswer::ClientsAlive {
            clients: vec![(ClientId(1), 1_800_000)],
        },
        CoordinatorAnswer::Map(TabletMap {
            version: MapVersion(2),
            hash_seed: 77,
            tables: vec![table()],
            tablets: vec![route()],
            servers: vec![(LOG, addresses())],
        }),
        CoordinatorAnswer::MapIsCurrent,
        CoordinatorAnswer::Servers(list.into()),
    ];
    all.extend(admin_answers().into_iter().map(CoordinatorAnswer::Admin));
    all.extend(refusals().into_iter().map(CoordinatorAnswer::Refused));
    let step = MapStep {
        since: MapVersion(4),
        version: MapVersion(6),
        ranges: vec![(TableId(5), RANGE)],
        tablets: vec![route()],
        servers: vec![(LOG, addresses())],
    };
    all.push(CoordinatorAnswer::MapStep(step.into()));
    all.push(CoordinatorAnswer::Users(users().into()));
    all.push(CoordinatorAnswer::Admin(AdminAnswer::Members(health())));
    all.push(CoordinatorAnswer::Functions(functions().into()));
    all.extend(balance().map(CoordinatorAnswer::Admin));
    all.push(CoordinatorAnswer::Admin(recovery_samples::answer()));
    all.push(CoordinatorAnswer::Gone { logs: vec![LOG] });
    all
}

pub fn from_coordinator() -> Vec<FromCoordinator> {
    let states = [
        TabletState::Normal {
            creation: SegmentId(1),
        },
        TabletState::Recovering,
        TabletState::Incoming {
            migration: MigrationId(12),
            from: OTHER,
        },
        TabletState::Outgoing {
            creation: SegmentId(1),
            migration: MigrationId(12),
            to: OTHER,
        },
    ];
    let tablets = states.map(|state| TabletEntry {
        table: TableId(5),
        range: RANGE,
        state,
    });
    vec![
        FromCoordinator::Ping { nonce: 1 },
        FromCoordinator::Servers(ServerListUpdate::Full(SharedList::from(ServerList {
            version: ListVersion(1),
            servers: vec![server()],
        }))),
        FromCoordinator::Servers(ServerListUpdate::Step {
            version: ListVersion(2),
            changes: vec![
                ServerChange::Added(server()),
                ServerChange::Crashed(LOG),
                ServerChange::Removed(LOG),
                ServerChange::Changed(server()),
            ],
        }),
        FromCoordinator::Tablets(Tablets {
            version: TabletsVersion(3),
            tables: vec![table()],
            tablets: tablets.to_vec(),
        }),
        FromCoordinator::Settings(settings()),
        FromCoordinator::StartRead {
            recovery: RecoveryId(11),
            log: LOG,
            min_open: SegmentId(7),
        },
        FromCoordinator::Recover(Box::new(recovery_samples::recover())),
        FromCoordinator::AbortRecovery {
            recovery: RecoveryId(11),
            partition: 1,
        },
        FromCoordinator::Users(users().into()),
        FromCoordinator::Functions(functions().into()),
        FromCoordinator::Recover(Box::new(Recover {
            accepted: vec![7, 8],
            ..recovery_samples::recover()
        })),
    ]
}

pub fn peer() -> Vec<(Peer, &'static [u8])> {
    let bare = WriteReplica {
        certificate: None,
        open: false,
        close: false,
        primary: false,
        level: Level::Buffered,
        ..write_replica()
    };
    let read = ReadReplica {
        recovery: RecoveryId(11),
        partition: 1,
        log: LOG,
        segment: SegmentId(7),
        certificate: CERTIFICATE,
        tablets: vec![recover_tablet()],
        offset: 64,
        bytes_max: 1 << 20,
    };
    let migrate = MigrateEntries {
        migration: MigrationId(12),
        sequence: 3,
        safe_version: 1000,
        last: true,
        bytes_total: 5000,
    };
    vec![
        (Peer::Ping { nonce: 1 }, b""),
        (Peer::WriteReplica(write_replica()), b"segment"),
        (Peer::WriteReplica(bare), b""),
        (Peer::SyncReplicas { log: LOG }, b""),
        (
            Peer::FreeReplicas {
                log: LOG,
                segments: vec![SegmentId(7)],
            },
            b"",
        ),
        (Peer::ReadReplica(read), b""),
        (
            Peer::Needed {
                log: LOG,
                replicas: vec![ReplicaEntry {
                    segment: SegmentId(7),
                    kind: Kind::Head,
                    epoch: 3,
                    certificate: CERTIFICATE,
                    closed: true,
                    primary: false,
                }],
            },
            b"",
        ),
        (Peer::MigrateEntries(migrate), b"entries"),
        (
            Peer::RenewLease {
                log: LOG,
                control: SegmentId(8),
            },
            b"",
        ),
        (
            Peer::ReadSegment {
                log: LOG,
                segment: SegmentId(7),
                certificate: CERTIFICATE,
            },
            b"",
        ),
        (Peer::PutHeat, b"blocks"),
        (Peer::GetHeat { server: LOG }, b""),
        (Peer::BuildReplica(write_replica()), b"recipe"),
        (
            Peer::Damaged {
                log: LOG,
                segments: vec![SegmentId(7)],
            },
            b"",
        ),
        (Peer::Publish { number: 9 }, b"messages"),
        (recovery_samples::peer(), b""),
    ]
}

pub fn peer_answers() -> Vec<(PeerAnswer, &'static [u8])> {
    vec![
        (
            PeerAnswer::Pong {
                nonce: 1,
                list_version: ListVersion(2),
                tablets_version: TabletsVersion(3),
            },
            b"",
        ),
        (
            PeerAnswer::Stored {
                level: Level::Synced,
                leased: true,
            },
            b"",
        ),
        (PeerAnswer::Synced, b""),
        (PeerAnswer::Freed, b""),
        (PeerAnswer::Fenced, b""),
        (PeerAnswer::OldEpoch { has: 2 }, b""),
        (PeerAnswer::Full, b""),
        (PeerAnswer::Busy, b""),
        (PeerAnswer::Unknown, b""),
        (
            PeerAnswer::Entries {
                next: Some(4096),
                entries: 2,
            },
            b"entries",
        ),
        (PeerAnswer::NotYet { after_ms: 5 }, b""),
        (
            PeerAnswer::Bad {
                reason: "damaged".into(),
            },
            b"",
        ),
        (
            PeerAnswer::NotNeeded {
                segments: vec![SegmentId(7)],
                counted: vec![SegmentId(8)],
            },
            b"",
        ),
        (PeerAnswer::Migrated { sequence: 3 }, b""),
        (
            PeerAnswer::MigrationRefused {
                reason: "full".into(),
            },
            b"",
        ),
        (PeerAnswer::Leased, b""),
        (PeerAnswer::Refused(Refusal::NotUp(LOG)), b""),
        (PeerAnswer::Segment, b"segment"),
        (PeerAnswer::Heat, b"blocks"),
        (PeerAnswer::Heard, b""),
        (recovery_samples::peer_answer(), b"bytes"),
    ]
}

/// Name and bytes.
type NamedFrame = (String, Vec<u8>);

fn framed<M>(name: &str, samples: Vec<M>, encode: impl Fn(&mut Vec<u8>, &M)) -> Vec<NamedFrame> {
    let frames = samples.iter().enumerate().map(|(n, sample)| {
        let mut frame = Vec::new();
        encode(&mut frame, sample);
        (format!("{name}-{n:02}"), frame)
    });
    frames.collect()
}

/// The frames of every sample.
pub fn frames() -> Vec<NamedFrame> {
    let envelope = &ENVELOPE;
    [
        framed("to-coordinator", to_coordinator(), |out, m| {
            encode_to_coordinator(out, envelope, m);
        }),
        framed("coordinator-answer", coordinator_answers(), |out, m| {
            encode_coordinator_answer(out, envelope, m);
        }),
        framed("from-coordinator", from_coordinator(), |out, m| {
            encode_from_coordinator(out, envelope, m);
        }),
        framed(
            "server-answer",
            recovery_samples::server_answers(),
            |out, (m, payload)| {
                encode_server_answer(out, envelope, m, payload.len());
                out.extend_from_slice(payload);
            },
        ),
        framed("peer", peer(), |out, (m, payload)| {
            encode_peer(out, envelope, m, payload.len());
            out.extend_from_slice(payload);
        }),
        framed("peer-answer", peer_answers(), |out, (m, payload)| {
            encode_peer_answer(out, envelope, m, payload.len());
            out.extend_from_slice(payload);
        }),
        client_frames(),
    ]
    .concat()
}

fn client_frames() -> Vec<NamedFrame> {
    let envelope = &ENVELOPE;
    let kind = duramen_wire::native::codec::Kind::Single as u16;
    [
        framed("trouble", troubles(), |out, trouble| {
            encode_trouble(out, envelope, kind, trouble);
        }),
        framed("single", singles(), |out, single| {
            encode_single(out, envelope, single);
        }),
        framed("outcome", outcomes(), |out, outcome| {
            encode_outcome(out, envelope, outcome);
        }),
        framed("enumerate-problem", problems(), |out, problem| {
            encode_enumerate_problem(out, envelope, problem);
        }),
        framed("ping", vec![()], |out, ()| encode_ping(out, envelope)),
        framed("pong", vec![()], |out, ()| encode_pong(out, envelope)),
        framed("multi", vec![singles()], |out, singles| {
            let mut multi = MultiRequest::new(out, envelope);
            singles.iter().for_each(|single| multi.push(single));
            multi.finish();
        }),
        framed("multi-answer", vec![outcomes()], |out, outcomes| {
            let mut multi = MultiAnswer::new(out, envelope);
            outcomes.iter().for_each(|outcome| multi.push(outcome));
            multi.finish();
        }),
        framed("enumerate", vec![RANGE], |out, range| {
            encode_enumerate(out, envelope, TableId(5), *range, 9, 1 << 20);
        }),
        framed("objects", vec![None, Some(77)], |out, cursor| {
            let mut answer = ObjectsAnswer::new(out, envelope);
            objects().iter().for_each(|object| answer.push(object));
            answer.finish(RouteHash(99), *cursor);
        }),
        framed("login", vec![LOGIN], |out, login| {
            encode_login(out, envelope, login);
        }),
        framed("logged-in", vec![()], |out, ()| {
            encode_logged_in(out, envelope)
        }),
    ]
    .concat()
}
