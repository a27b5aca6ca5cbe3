//! Checks whether the file system for a new data directory is missing. Without this check a store
//! would begin empty on the system's disk, and nobody would notice.

use crate::unescaped;
use std::path::{Path, PathBuf};

/// The mount point above `dir` that `/etc/fstab` has, and that is not mounted.
pub fn missing_above(dir: &Path) -> Option<PathBuf> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let dir = std::path::absolute(dir).ok()?;
    missing_in(&dir, &read("/etc/fstab"), &read("/proc/self/mounts"))
}

/// As [`missing_above`], by the texts of the two files.
fn missing_in(dir: &Path, planned: &str, mounted: &str) -> Option<PathBuf> {
    let mounted: Vec<PathBuf> = mount_points(mounted).collect();
    let above = mount_points(planned).filter(|point| dir.starts_with(point));
    let nearest = above.max_by_key(|point| point.components().count())?;
    (!mounted.contains(&nearest)).then_some(nearest)
}

/// The mount points in a table: the second fields of its lines. Those of swap space are no paths,
/// and are left out.
fn mount_points(table: &str) -> impl Iterator<Item = PathBuf> {
    let lines = table
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let points = lines.filter_map(|line| line.split_whitespace().nth(1));
    points.filter(|point| point.starts_with('/')).map(unescaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planned_mount_that_is_missing_is_named() {
        let planned = "# <file system> <mount point>\nUUID=1 / ext4 defaults 0 1\nUUID=2 none swap sw 0 0\n\
             #UUID=3 /srv/old ext4 defaults 0 2\nUUID=4 /var/lib/duramen xfs nofail 0 2\nUUID=5 /srv/a\\040b ext4 nofail 0 2\n";
        let without = "/dev/sda1 / ext4 rw 0 0\nproc /proc proc rw 0 0\n";
        let with = format!("{without}/dev/sdb1 /var/lib/duramen xfs rw 0 0\n");
        let missing = |dir: &str, mounted: &str| missing_in(Path::new(dir), planned, mounted);
        let point = Some(PathBuf::from("/var/lib/duramen"));
        assert_eq!(missing("/var/lib/duramen/data", without), point);
        assert_eq!(missing("/var/lib/duramen", without), point);
        assert_eq!(missing("/var/lib/duramen/data", &with), None);
        assert_eq!(missing("/var/lib/other", without), None);
        assert_eq!(missing("/srv/old/data", without), None);
        assert_eq!(missing("/srv/a b/data", without), Some("/srv/a b".into()));
        assert_eq!(missing_in(Path::new("/data"), "", ""), None);
    }
}
