//! The kernel's figures of this process, as metrics under the names that all programs use.

use super::exposition::{counter, gauge};
use duramen_config::process::{cpu_time, memory, open_files, open_files_max, start_time, threads};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

/// `process_*`.
#[derive(Debug)]
pub(super) struct Figures;

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        counter(
            &mut encoder,
            "process_cpu_seconds",
            "CPU time, user and system.",
            cpu_time().as_secs_f64(),
        )?;
        let memory = memory();
        let resident = memory.as_ref().map(|memory| memory.resident_bytes as f64);
        let reserved = memory.as_ref().map(|memory| memory.virtual_bytes as f64);
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory.",
                resident,
            ),
            ("process_virtual_memory_bytes", "Address space.", reserved),
            (
                "process_open_fds",
                "Open file descriptors.",
                open_files().map(|files| files as f64),
            ),
            (
                "process_max_fds",
                "File descriptors that may be open.",
                open_files_max().map(|files| files as f64),
            ),
            (
                "process_threads",
                "Threads of the process.",
                threads().map(|threads| threads as f64),
            ),
            (
                "process_start_time_seconds",
                "When the process began, in seconds since 1970.",
                start_time(),
            ),
        ] {
            if let Some(value) = value {
                gauge(&mut encoder, name, help, value)?;
            }
        }
        Ok(())
    }
}
