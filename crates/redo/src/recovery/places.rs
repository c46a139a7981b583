//! The places of the redo streams of a cluster: files of one directory that every node opens, or
//! chunks of a mirrored disk group.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use plexus_base::{NodeId, durable};
use plexus_disks::{
    Device, DiskError, Extents,
    mirror::{
        Mirror, MirrorStream,
        map::{MapChange, MapRefusal},
        protocol::DiskRefusal,
    },
};

use crate::stream::{
    driver,
    protocol::{Geometry, PAGE, StreamHeader},
    reader::StreamError,
};

/// The places of the streams.
pub(super) enum StreamPlaces {
    /// A directory; each stream is a file.
    Directory(PathBuf),
    /// The group; the name of a stream stands for its path.
    Group(Arc<Mirror>),
}

impl StreamPlaces {
    /// Returns the directory, for messages.
    pub(super) fn directory(&self) -> PathBuf {
        match self {
            Self::Directory(directory) => directory.clone(),
            Self::Group(_) => "the disk group".into(),
        }
    }

    /// Returns the path of a stream by its name, `NODE.PLACE`.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        match self {
            Self::Directory(directory) => directory.join(name),
            Self::Group(_) => name.into(),
        }
    }

    /// Returns the paths of everything that may be a stream.
    pub(super) fn paths(&self) -> io::Result<Vec<PathBuf>> {
        match self {
            Self::Directory(directory) => {
                fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
            }
            Self::Group(mirror) => {
                let map = mirror.wait_for_map().map_err(io::Error::other)?;
                Ok(map.streams().map(PathBuf::from).filter(|path| self.exists(path)).collect())
            }
        }
    }

    /// Returns true if there is a stream. One that was never given a header is none: its creator
    /// died.
    pub(super) fn exists(&self, path: &Path) -> bool {
        match self {
            Self::Directory(_) => path.exists(),
            Self::Group(_) => self.open(path).is_ok_and(|device| {
                let mut headers = vec![0; 2 * PAGE as usize];
                device.read(0, &mut headers).is_err() || headers.iter().any(|byte| *byte != 0)
            }),
        }
    }

    /// Opens the bytes of a stream.
    pub(super) fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DiskError> {
        self.open_copy(path, None)
    }

    /// Opens a stream once for each of its copies, which are read first then. After the death of
    /// its writer they may differ in the last batch.
    pub(super) fn open_copies(&self, path: &Path) -> Result<Vec<Arc<dyn Device>>, DiskError> {
        match self {
            Self::Directory(_) => Ok(vec![self.open(path)?]),
            Self::Group(mirror) => {
                let copies = mirror.wait_for_map()?.copies_of_chunk();
                (0..copies).map(|copy| self.open_copy(path, Some(copy))).collect()
            }
        }
    }

    fn open_copy(&self, path: &Path, copy: Option<usize>) -> Result<Arc<dyn Device>, DiskError> {
        match self {
            Self::Directory(_) => Ok(Arc::new(Extents::of_file(path)?)),
            Self::Group(mirror) => {
                let missing = || DiskError::Io {
                    what: "opening a redo stream",
                    path: path.into(),
                    source: io::ErrorKind::NotFound.into(),
                };
                let stream = MirrorStream::open(mirror, &path.to_string_lossy(), copy)?;
                Ok(Arc::new(stream.ok_or_else(missing)?))
            }
        }
    }

    /// Creates a stream, whose name appears when it is complete.
    pub(super) fn create(
        &self,
        path: &Path,
        cluster: u128,
        node: NodeId,
        geometry: Geometry,
    ) -> Result<(), StreamError> {
        match self {
            Self::Directory(_) => {
                let new = durable::beside(path);
                // A node that died while it created a stream has left this file.
                let _ = fs::remove_file(&new);
                driver::create(&new, cluster, node, geometry)?;
                let named = durable::rename(&new, path);
                let path = path.into();
                Ok(named.map_err(|why| DiskError::Io { what: "naming a redo stream", path, source: why })?)
            }
            Self::Group(mirror) => {
                let chunk_bytes = mirror.wait_for_map().map_err(DiskError::from)?.chunk_bytes();
                let chunks = geometry.length().div_ceil(chunk_bytes) as u32;
                let name = path.to_string_lossy().into_owned();
                match mirror.change(MapChange::Stream { name, node, chunks }) {
                    // It has no header yet.
                    Ok(()) | Err(DiskRefusal::Map(MapRefusal::StreamExists(_))) => {}
                    Err(why) => return Err(DiskError::from(why).into()),
                }
                let device = self.open(path)?;
                let header = StreamHeader::new(cluster, node, geometry);
                device.write(header.offset(), &header.encode())?;
                Ok(device.sync()?)
            }
        }
    }

    /// Gives a stream that cannot be used another name.
    pub(super) fn set_aside(&self, path: &Path) -> Result<(), DiskError> {
        let failed = |source| DiskError::Io { what: "setting it aside", path: path.into(), source };
        match self {
            Self::Directory(_) => {
                let name = |number: u32| PathBuf::from(format!("{}.given-up-{number}", path.display()));
                let aside = (1..).map(name).find(|aside| !aside.exists()).expect("a name that is free");
                fs::rename(path, &aside).and_then(|()| durable::sync_name(path)).map_err(failed)
            }
            Self::Group(_) => {
                Err(failed(io::Error::other("a stream on mirrored disks cannot be set aside yet")))
            }
        }
    }
}
