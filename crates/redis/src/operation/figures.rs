//! The numbers that a server reports, one row each: its names, its meaning, and how it is read.
//! `INFO`, the metrics page, `/memory` and `/cluster` show them by these tables.

use crate::figures::figure::Value::{Count, Flag, Ratio, Time};
use crate::figures::figure::{Figure, counter, field, gauge};
use crate::membership::status::MemberStatus;
use crate::state::Shared;
use duramen::{DiskState, DurabilityStats};
use duramen_config::Mode;
use duramen_engine::Stats;
use duramen_engine::flash::FlashStats;
use duramen_node::View;
use std::sync::Arc;
use std::time::Duration;

#[rustfmt::skip] // One row, one line: it is a table.
pub static STORE: [Figure<Stats>; 27] = [
    counter("appended_bytes", "duramen_appended_bytes", "Key and value bytes appended by writers.", |s| Count(s.appended_bytes)),
    counter("entries_expired", "expired_keys", "Objects removed because their time was over.", |s| Count(s.entries_expired)),
    counter("entries_evicted", "evicted_keys", "Objects evicted in cache mode.", |s| Count(s.entries_evicted)),
    counter("writer_stalls", "duramen_writer_stalls", "Times a writer had to clean or to wait for memory.", |s| Count(s.writer_stalls)),
    counter("cleaner_passes", "duramen_cleaner_passes", "Passes of the cleaner.", |s| Count(s.cleaner.passes)),
    counter("cleaner_compactions", "duramen_cleaner_compactions", "Segments compacted.", |s| Count(s.cleaner.compactions)),
    counter("cleaner_segments_cleaned", "duramen_cleaner_segments_cleaned", "Segments cleaned.", |s| Count(s.cleaner.segments_cleaned)),
    counter("cleaner_scanned_bytes", "duramen_cleaner_bytes_scanned", "Bytes the cleaner looked at.", |s| Count(s.cleaner.bytes_scanned)),
    counter("cleaner_relocated_bytes", "duramen_cleaner_bytes_relocated", "Live bytes the cleaner moved.", |s| Count(s.cleaner.bytes_relocated)),
    counter("cleaner_freed_bytes", "duramen_cleaner_bytes_freed", "Bytes the cleaner gave back.", |s| Count(s.cleaner.bytes_freed)),
    counter("writer_stall_seconds", "duramen_writer_stall_ms", "Time writers spent cleaning or waiting for memory.", |s| Time(Duration::from_nanos(s.writer_stall_ns))),
    counter("cleaner_busy_seconds", "duramen_cleaner_busy_ms", "Time the cleaner worked, all its threads together.", |s| Time(Duration::from_nanos(s.cleaner.busy_ns))),
    counter("bit_flips", "duramen_flipped_bits", "Bits of objects that memory had changed and that were put back.", |s| Count(s.flipped_bits)),
    counter("damaged_entries", "duramen_damaged_entries", "Entries of the log in which memory had changed more than one bit.", |s| Count(s.damaged_entries)),
    counter("cleaner_given_up", "duramen_cleaner_given_up", "Passes and compactions of the cleaner that could not end: their segments stay on disk until a restart.", |s| Count(s.passes_given_up)),
    gauge("objects", "duramen_objects", "Objects in all tables.", |s| Count(s.objects)),
    gauge("live_bytes", "duramen_live_bytes", "Bytes of live entries, headers and alignment included.", |s| Count(s.live_bytes)),
    gauge("segment_budget_bytes", "duramen_segment_budget_bytes", "Bytes of segments that may hold data.", |s| Count(s.segment_budget_bytes)),
    gauge("live_limit_bytes", "duramen_live_limit_bytes", "Live bytes, those on flash too, beyond which writes are refused, or entries evicted.", |s| Count(s.live_limit_bytes)),
    gauge("utilization_ratio", "duramen_utilization", "Live bytes, those that have expired left out, divided by their limit: at 1 writes are refused.", |s| Ratio(s.fill())),
    gauge("committed_bytes", "duramen_committed_bytes", "Bytes of the budget that are backed by memory.", |s| Count(s.committed_bytes)),
    gauge("excess_bytes", "duramen_excess_bytes", "Bytes in use beyond a budget that was lowered, not given back yet.", |s| Count(s.excess_bytes)),
    gauge("index_bytes", "duramen_index_bytes", "Bytes of the index.", |s| Count(s.index_bytes)),
    gauge("segments_open", "duramen_segments_open", "Segments that are written to.", |s| Count(s.segments_open)),
    gauge("segments_closed", "duramen_segments_closed", "Segments that are full.", |s| Count(s.segments_closed)),
    gauge("segments_free", "duramen_segments_free", "Segments ready for use.", |s| Count(s.segments_free)),
    gauge("page_bytes", "duramen_page_bytes", "Size of the pages that the kernel gave.", |s| Count(s.page_bytes)),
];

/// Figures of a server with a second tier; `/memory` shows them too.
#[rustfmt::skip] // One row, one line: it is a table.
pub static FLASH: [Figure<FlashStats>; 16] = [
    gauge("flash_bytes", "duramen_flash_bytes", "Bytes of flash that segments can take.", |s| Count(s.bytes)),
    gauge("flash_used_bytes", "duramen_flash_used_bytes", "Bytes of flash that segments take.", |s| Count(s.used_bytes)),
    gauge("flash_live_bytes", "duramen_flash_live_bytes", "Bytes of live entries on flash.", |s| Count(s.live_bytes)),
    gauge("flash_segments", "duramen_flash_segments", "Segments on flash.", |s| Count(s.segments)),
    gauge("flash_promoted_bytes", "duramen_flash_promoted_bytes", "Memory that copies of entries on flash take because they are read often.", |s| Count(s.promoted_bytes)),
    counter("flash_segments_demoted", "duramen_flash_segments_demoted", "Segments that went to flash.", |s| Count(s.segments_demoted)),
    counter("flash_segments_cleaned", "duramen_flash_segments_cleaned", "Segments on flash that were cleaned.", |s| Count(s.segments_cleaned)),
    counter("flash_fetches", "duramen_flash_fetches", "Entries that were read from flash.", |s| Count(s.fetches)),
    counter("flash_fetched_bytes", "duramen_flash_fetched_bytes", "Bytes that were read from flash for them.", |s| Count(s.fetched_bytes)),
    counter("flash_promotions", "duramen_flash_promotions", "Entries on flash that were copied to memory.", |s| Count(s.promotions)),
    counter("flash_promoted_hits", "duramen_flash_promoted_hits", "Reads of entries on flash that were served by such copies.", |s| Count(s.promoted_hits)),
    counter("flash_refilled", "duramen_flash_refilled", "Entries on flash that were copied to memory after a restart, because they were read often before it.", |s| Count(s.refilled)),
    gauge("flash_refill_left", "duramen_flash_refill_left", "Keys that were read often before the restart and may still be copied to memory.", |s| Count(s.refill_left)),
    counter("flash_read_errors", "duramen_flash_read_errors", "Entries that could not be read from flash.", |s| Count(s.read_errors)),
    counter("flash_write_errors", "duramen_flash_write_errors", "Segments that could not be written to flash.", |s| Count(s.write_errors)),
    gauge("flash_ok", "duramen_flash_ok", "1 while flash takes segments, 0 after it has failed to.", |s| Count(u64::from(!s.is_off))),
];

#[rustfmt::skip] // One row, one line: it is a table.
pub static DURABILITY: [Figure<DurabilityStats>; 35] = [
    counter("commits", "duramen_commits", "Groups of writes given to the disk.", |s| Count(s.commits)),
    counter("syncs", "duramen_syncs", "Times the disk was asked to make writes stable.", |s| Count(s.syncs)),
    counter("wal_written_bytes", "duramen_wal_written_bytes", "Bytes written to the write-ahead log.", |s| Count(s.wal_written_bytes)),
    counter("frame_written_bytes", "duramen_frame_written_bytes", "Bytes written to frames.", |s| Count(s.frame_written_bytes)),
    counter("log_appended_bytes", "", "Bytes appended to the durable log.", |s| Count(s.appended_bytes)),
    counter("cleaning_network_bytes", "duramen_cleaning_network_bytes", "Of a member: bytes sent to its backups for cleaning, whole survivors and recipes.", |s| Count(s.cleaning_network_bytes)),
    counter("recipes_sent", "duramen_recipes_sent", "Of a member: replicas of survivors that backups were asked to build.", |s| Count(s.recipes_sent)),
    counter("recipes_refused", "duramen_recipes_refused", "Those of them that a backup could not build: it got the bytes.", |s| Count(s.recipes_refused)),
    counter("damaged_sends", "duramen_damaged_sends", "Of a member: writes that a backup found damaged when they arrived.", |s| Count(s.damaged_sends)),
    counter("scrubbed_frames", "duramen_scrubbed_frames", "Frames that were read and verified.", |s| Count(s.scrubbed_frames)),
    counter("bad_frames", "duramen_bad_frames", "Frames found damaged.", |s| Count(s.bad_frames)),
    counter("scrub_repaired", "duramen_scrub_repaired", "Damaged frames whose data has been written elsewhere.", |s| Count(s.scrub_repaired)),
    gauge("disk_ok", "", "1 while the disk takes writes, 0 if it is full or has failed.", |s| Flag(s.disk == DiskState::Ok)),
    gauge("undurable_bytes", "duramen_undurable_bytes", "Appended, and not on stable storage yet.", |s| Count(s.undurable_bytes)),
    gauge("wal_bytes", "duramen_wal_bytes", "Size of the write-ahead log.", |s| Count(s.wal_bytes)),
    gauge("wal_used_bytes", "duramen_wal_used_bytes", "Bytes of it that are in use.", |s| Count(s.wal_used_bytes)),
    gauge("frames", "duramen_frames", "Places for segments on disk.", |s| Count(s.frames)),
    gauge("frames_used", "duramen_frames_used", "Places that hold a segment.", |s| Count(s.frames_used)),
    gauge("log_segments", "duramen_log_segments", "Segments of the log, of which each takes a place on the disk. 0 of a member of a cluster: its log is on the disks of others, which count it in duramen_frames_used.", |s| Count(s.log_segments)),
    gauge("log_segments_max", "duramen_log_segments_max", "Segments from which on writes are refused: the limit of `disk-size`, or what the disk has space for. 0 of a member of a cluster.", |s| Count(s.log_segments_max)),
    gauge("scrub_pending", "duramen_scrub_pending", "Damaged frames that are not repaired yet: a restart would refuse the data.", |s| Count(s.scrub_pending)),
    gauge("scrub_lost", "duramen_scrub_lost", "Those of them that cannot be repaired.", |s| Count(s.scrub_lost)),
    gauge("quarantined_frames", "duramen_quarantined_frames", "Frames that are not used any more in this run.", |s| Count(s.quarantined_frames)),
    gauge("sync_p50_seconds", "duramen_sync_p50_us", "Time a sync takes: median of the last ones.", |s| Time(s.sync.p50)),
    gauge("sync_p99_seconds", "duramen_sync_p99_us", "Time a sync takes: 99 of 100 of the last ones took less.", |s| Time(s.sync.p99)),
    gauge("load_seconds", "duramen_load_ms", "Time the last loading of the data took.", |s| Time(s.load_duration)),
    field("duramen_sync_last_us", |s| Time(s.sync.last)),
    field("duramen_sync_average_us", |s| Time(s.sync.average)),
    field("duramen_sync_max_us", |s| Time(s.sync.max)),
    field("duramen_segments_listed", |s| Count(s.segments_listed)),
    field("duramen_loaded_bytes", |s| Count(s.loaded_bytes)),
    field("duramen_loaded_entries", |s| Count(s.loaded_entries)),
    field("duramen_clean_start", |s| Flag(s.clean_start)),
    field("duramen_scrub_left", |s| Count(s.scrub.left)),
    field("duramen_scrub_total", |s| Count(s.scrub.total)),
];

/// The state of a member of a cluster at one moment.
pub struct Member {
    pub status: Arc<MemberStatus>,
    pub(crate) view: Arc<View>,
    may_reply: bool,
    replies_held: Duration,
}

impl Member {
    /// Returns `None` if the server is no member of a cluster.
    pub fn of(shared: &Shared) -> Option<Member> {
        let member = shared.membership()?;
        Some(Member {
            status: member.status(),
            view: member.view(),
            may_reply: member.may_reply(),
            replies_held: Duration::from_millis(shared.threads.replies_held_ms()),
        })
    }
}

#[rustfmt::skip] // One row, one line: it is a table.
pub static MEMBER: [Figure<Member>; 26] = [
    gauge("cluster_coordinator_silent_seconds", "duramen_coordinator_silent_ms", "Time since a leading coordinator last answered a request of this member.", |m| Time(Duration::from_micros(m.status.coordinator_silent_us))),
    gauge("cluster_servers_up", "duramen_servers_up", "Servers of the cluster that are up, as this member knows it.", |m| Count(m.status.servers_up as u64)),
    gauge("cluster_servers_crashed", "duramen_servers_crashed", "Servers that have crashed and are not recovered yet.", |m| Count(m.status.servers_crashed as u64)),
    gauge("cluster_enough_backups", "duramen_enough_backups", "1 while there are enough others for all replicas, else 0: then writes wait.", |m| Flag(m.status.enough_backups)),
    gauge("cluster_segments_sharing_rack", "duramen_segments_sharing_rack", "Segments of this member's log of which two copies lie in one rack: its loss may take them.", |m| Count(m.status.segments_sharing_rack as u64)),
    gauge("cluster_segments_short", "duramen_segments_short", "Segments of this member's log that lack a copy, because no other member takes one: their disks keep the room for recoveries.", |m| Count(m.status.segments_short as u64)),
    gauge("cluster_slow_backups", "duramen_slow_backups", "Other members that store this member's writes much more slowly than the others.", |m| Count(m.status.slow_backups as u64)),
    counter("cluster_damaged_replicas", "duramen_damaged_replicas", "Replicas of other members on this member's disk that were found damaged; their masters replace them.", |m| Count(m.status.damaged_replicas)),
    gauge("cluster_damaged_replicas_left", "duramen_damaged_replicas_left", "Those that are not replaced yet.", |m| Count(m.status.damaged_left as u64)),
    counter("cluster_scrub_rounds", "duramen_scrub_rounds", "Times that all replicas on this member's disk have been verified.", |m| Count(m.status.scrub_rounds)),
    gauge("cluster_backup_full", "duramen_backup_full", "1 while this member's disk has no room for what other members write, else 0: they wait.", |m| Flag(m.status.backup_full)),
    counter("cluster_backup_written_bytes", "duramen_backup_written_bytes", "Bytes written to this member's disk for other members.", |m| Count(m.status.backup_written_bytes)),
    gauge("cluster_backup_frames", "duramen_backup_frames", "Places for segments of other members on this member's disk.", |m| Count(m.status.backup_frames.into())),
    gauge("cluster_backup_frames_free", "duramen_backup_frames_free", "Those that are free; 0 also while the file system has no space for one.", |m| Count(m.status.backup_frames_free.into())),
    field("duramen_replies_held_ms", |m| Time(m.replies_held)),
    gauge("cluster_may_reply", "duramen_may_reply", "1 while this member holds its leases, else 0.", |m| Flag(m.may_reply)),
    gauge("cluster_tablets_served", "duramen_tablets_served", "Tablets that this member serves.", |m| Count(m.view.served().iter().len() as u64)),
    gauge("cluster_list_version", "duramen_list_version", "Version of the server list.", |m| Count(m.status.list_version.0)),
    gauge("cluster_map_version", "duramen_map_version", "Version of the tablet map.", |m| Count(m.view.map_version().0)),
    gauge("cluster_recoveries", "duramen_recoveries", "Partitions of crashed servers that are replayed here.", |m| Count(m.status.recoveries.len() as u64)),
    gauge("cluster_recovery_bytes", "", "Bytes that they have replayed so far.", |m| Count(m.status.recoveries.iter().map(|part| part.bytes).sum())),
    counter("cluster_offences", "duramen_offences", "Hellos and frames on the native port that were refused or invalid.", |m| Count(m.status.offences)),
    counter("cluster_tls_failures", "duramen_cluster_tls_failures", "Native connections that TLS ended: a certificate that is not accepted, or a side without TLS.", |m| Count(m.status.tls_failures)),
    gauge("cluster_slowest_round_seconds", "", "Longest round of the thread that answers pings.", |m| Time(Duration::from_micros(m.status.slowest_round_us))),
    field("duramen_tablets_version", |m| Count(m.view.tablets_version().0)),
    field("duramen_replicas", |m| Count(m.status.replicas.into())),
];

#[rustfmt::skip] // One row, one line: it is a table.
pub static SERVER: [Figure<Shared>; 8] = [
    gauge("connected_clients", "connected_clients", "Clients connected.", |s| Count(s.threads.connected_clients() as u64)),
    gauge("maxclients", "maxclients", "Clients that may be connected.", |s| Count(s.config().maxclients as u64)),
    counter("memory_refusals", "duramen_memory_refusals", "Requests of clients of Redis's protocol that were refused for lack of memory: OOM.", |s| Count(s.figures.refusals().count())),
    gauge("replies_held_seconds", "", "How long the oldest reply has waited for the disk, the backups or the lease, or since when replies were given up in vain; 0: none waits.", |s| Time(Duration::from_millis(s.threads.replies_held_ms()))),
    gauge("evicts", "", "1 for a cache, which evicts objects when memory is full; 0 for a store, which refuses writes.", |s| Flag(s.config().mode == Mode::Cache)),
    gauge("memory_budget_bytes", "", "The setting `memory`.", |s| Count(s.config().memory_bytes)),
    gauge("reactor_threads", "duramen_threads", "Reactor threads.", |s| Count(s.threads.len() as u64)),
    gauge("uptime_seconds", "uptime_in_seconds", "Time since start.", |s| Time(s.figures.started().elapsed())),
];
