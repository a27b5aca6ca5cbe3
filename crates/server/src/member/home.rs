//! The directory of a member: its replicas for other masters, and the id of its last life.
//!
//! **Layout**
//!
//! ```text
//! DIR/member    cluster and its id, id of the disk, id of the last life
//! DIR/backup/   replicas of other masters' segments
//! ```
//!
//! **Invariants**
//! - Y1: an id is in `member`, synced, before the member sends or does anything under it.
//! - Y2: the directory of a single server, or of another cluster, is left unchanged.

use super::identity::{self, Content, FILE};
use duramen_backup::disk::keyed;
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Error, Expected, Geometry, Identity, Mode};
use duramen_base::ids::{ClusterId, ServerId};
use duramen_base::private::make_dir;
use duramen_base::units::MIB;
use duramen_cipher::KeySource;
use duramen_config::ServerError;
use duramen_wire::native::message::ClusterSettings;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of the replicas for others, in a member's directory.
pub const FOLDER: &str = "backup";
/// Frames beyond the disk's share, for control segments and for replicas that are being replaced.
const FRAMES_EXTRA: u64 = 16;

/// A member's directory and identity.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    dir: PathBuf,
    cluster: String,
    /// Random id of this disk.
    pub disk: u64,
    /// The id of its last life.
    pub last: Option<ServerId>,
    /// The cluster's id; `NONE`: not received yet. It is stored with the member's next id.
    pub id: ClusterId,
}

/// The size of a new backup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub mode: Mode,
    pub wal_bytes: u64,
    /// Disk space for all replicas together.
    pub disk_bytes: u64,
    /// Maximum memory for replica data that is not in frames yet.
    pub copies_bytes: u64,
}

/// Whether this directory belongs to a member.
pub(crate) fn is_home(dir: &Path) -> bool {
    dir.join(FILE).exists()
}

/// The id of the cluster to which the directory's member belongs; `NONE` if it is not known. An
/// unusable directory gives `NONE` too; [`Home::open`] refuses that directory.
pub(crate) fn cluster_id(dir: &Path) -> ClusterId {
    match identity::read(dir) {
        Ok(Content::Slots(identity)) => identity.id,
        _ => ClusterId::NONE,
    }
}

/// The name of the cluster to which the directory's member belongs; `None` if the directory is not
/// a member's, or cannot be used; `Home::open` then refuses it.
pub fn cluster_of(dir: &Path) -> Option<String> {
    match identity::read(dir) {
        Ok(Content::Slots(identity) | Content::Old(identity)) => Some(identity.cluster),
        _ => None,
    }
}

impl Home {
    /// Opens the directory; creates it if it does not exist.
    ///
    /// # Errors
    /// The directory belongs to a single server or another cluster (Y2), or cannot be used.
    pub fn open(dir: &Path, cluster: &str) -> Result<Home, ServerError> {
        let system = |doing| {
            let path = dir.to_owned();
            move |source| ServerError::File {
                doing,
                path,
                source,
            }
        };
        make_dir(dir).map_err(system("make"))?;
        let identity = match identity::read(dir).map_err(system("read"))? {
            Content::Absent => return Home::make(dir, cluster),
            Content::Damaged => {
                return Err(ServerError::Config(format!(
                    "`{}` is damaged, or of a newer version: it should name cluster, disk and id of a member",
                    dir.join(FILE).display()
                )));
            }
            Content::Old(identity) | Content::Slots(identity) if identity.cluster != cluster => {
                return Err(ServerError::Config(format!(
                    "`{}` belongs to a member of the cluster `{}`, not of `{cluster}`: choose another directory, or that cluster",
                    dir.display(),
                    identity.cluster
                )));
            }
            Content::Slots(identity) => identity,
            Content::Old(identity) => {
                if let Err(error) = identity::make(dir, &identity) {
                    tracing::warn!(
                        "`{}` is of an older version and cannot be replaced yet: {error}; this member's next id needs room on the disk",
                        dir.join(FILE).display()
                    );
                }
                identity
            }
        };
        Ok(Home {
            dir: dir.to_owned(),
            cluster: identity.cluster,
            disk: identity.disk,
            last: identity.last,
            id: identity.id,
        })
    }

    fn make(dir: &Path, cluster: &str) -> Result<Home, ServerError> {
        if Backup::exists(&OsDisk::new(dir, Mode::Buffered)).unwrap_or(false) {
            return Err(ServerError::Config(format!(
                "`{}` holds the data of a single server: a member of a cluster needs a directory of its own",
                dir.display()
            )));
        }
        let home = Home {
            dir: dir.to_owned(),
            cluster: cluster.to_owned(),
            disk: random() | 1,
            last: None,
            id: ClusterId::NONE,
        };
        // The disk's id is stored before any data that carries it.
        let made = identity::make(dir, &home.identity(None));
        made.map_err(|source| ServerError::File {
            doing: "write to",
            path: dir.to_owned(),
            source,
        })?;
        Ok(home)
    }

    fn identity(&self, last: Option<ServerId>) -> identity::Identity {
        identity::Identity {
            cluster: self.cluster.clone(),
            disk: self.disk,
            last,
            id: self.id,
        }
    }

    /// Stores the id, synced (Y1).
    ///
    /// # Errors
    /// The id is not stored; the call can be repeated.
    pub fn store_id(&self, server: ServerId) -> std::io::Result<()> {
        identity::store(&self.dir, &self.identity(Some(server)))
    }

    /// Opens the replicas for other masters; creates the backup if there is none yet.
    ///
    /// # Errors
    /// [`ServerError::Backup`]; [`ServerError::Config`] if the backup was created for segments of
    /// another size.
    pub fn open_backup(
        &self,
        settings: &ClusterSettings,
        size: Size,
        key: Option<KeySource>,
    ) -> Result<Arc<Backup>, ServerError> {
        let dir = self.dir.join(FOLDER);
        make_dir(&dir).map_err(|source| ServerError::File {
            doing: "make",
            path: dir.clone(),
            source,
        })?;
        let disk = keyed(Arc::new(OsDisk::new(&dir, size.mode)), key);
        let options = duramen_backup::Options {
            frames_past_cache: true,
            memory_bytes: size.copies_bytes,
            ..duramen_backup::Options::default()
        };
        let expected = Expected {
            cluster: Some(self.cluster.clone()),
            server: Some(self.disk),
        };
        let backup = match Backup::open(disk.clone(), &options, &expected) {
            Ok((backup, _)) => backup,
            Err(Error::Absent { .. }) => {
                let identity = Identity {
                    cluster: self.cluster.clone(),
                    server: self.disk,
                    hash_seed: settings.hash_seed,
                };
                let geometry = geometry(settings.segment_bytes, size);
                Backup::create(disk, &options, &geometry, &identity)?
            }
            Err(error) => return Err(error.into()),
        };
        let here = backup.geometry().segment_bytes;
        if here != settings.segment_bytes {
            return Err(ServerError::Config(format!(
                "`{}` was made for segments of {here} bytes, in this cluster they have {}: choose an empty directory",
                dir.display(),
                settings.segment_bytes
            )));
        }
        Ok(Arc::new(backup))
    }
}

fn geometry(segment_bytes: u32, size: Size) -> Geometry {
    let segments = size.disk_bytes.div_ceil(u64::from(segment_bytes));
    let frames = segments + segments / 8 + FRAMES_EXTRA;
    Geometry {
        segment_bytes,
        wal_bytes: size.wal_bytes.next_multiple_of(MIB),
        frames: u32::try_from(frames).unwrap_or(u32::MAX),
    }
}

/// A random number that cannot be guessed.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_life_is_remembered_and_another_clusters_home_is_refused() {
        let dir = std::env::temp_dir().join(format!("duramen-home-{:016x}", random()));
        assert_eq!(cluster_of(&dir), None);
        let home = Home::open(&dir, "here").expect("a new one");
        assert_eq!(cluster_of(&dir).as_deref(), Some("here"));
        assert_eq!(home.last, None);
        let early = Home::open(&dir, "here").expect("before it ever was a member");
        assert_eq!((early.last, early.disk), (None, home.disk));
        let id = ServerId::new(3, 7);
        home.store_id(id).expect("stored");
        let again = Home::open(&dir, "here").expect("the same one");
        assert_eq!((again.last, again.disk), (Some(id), home.disk));
        assert_eq!(
            (again.id, cluster_id(&dir)),
            (ClusterId::NONE, ClusterId::NONE)
        );
        let (mut known, id) = (again.clone(), ServerId::new(3, 8));
        known.id = ClusterId(77);
        known.store_id(id).expect("stored");
        let again = Home::open(&dir, "here").expect("the same one");
        assert_eq!((again.last, again.id), (Some(id), ClusterId(77)));
        assert_eq!(cluster_id(&dir), ClusterId(77));
        let other = Home::open(&dir, "there").expect_err("another cluster");
        assert!(other.to_string().contains("`here`"), "{other}");
        let path = dir.join(FILE);
        std::fs::write(&path, "1 here 00000000000000ab 3.8\n").expect("writes");
        assert_eq!(cluster_of(&dir).as_deref(), Some("here"));
        let other = Home::open(&dir, "there").expect_err("another cluster, of an older version");
        assert!(other.to_string().contains("`here`"), "{other}");
        assert!(path.metadata().expect("there").len() < 100, "Y2");
        let old = Home::open(&dir, "here").expect("of an older version");
        assert_eq!((old.last, old.disk), (Some(ServerId::new(3, 8)), 0xab));
        assert!(path.metadata().expect("there").len() > 1000, "replaced");
        std::fs::write(&path, "1 here").expect("writes");
        assert!(Home::open(&dir, "here").is_err());
        std::fs::remove_dir_all(&dir).expect("removes");
    }
}
