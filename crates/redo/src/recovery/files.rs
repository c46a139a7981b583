//! The files of the streams of all nodes: `<node name>.<place>` in one directory.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{
    Buffer, Device, DiskError, Version,
    mirror::{Mirror, protocol::DiskRefusal},
};

use super::{known::LostStream, places::StreamPlaces};
use crate::stream::{
    driver::{OpenError, RedoProgress, RedoStream},
    protocol::{Batch, Geometry, StreamHeader, StreamTail, replay::StreamName},
    reader::{StreamError, StreamReader, StreamScan},
};

/// The most streams of a node. Each is left by an incarnation whose recovery has not ended.
pub const PLACES: u8 = 8;

/// The redo streams of a cluster.
pub struct RedoFiles {
    pub(super) places: StreamPlaces,
    cluster: u128,
    guard: Guard,
}

/// Returns false if this node may write no more: then others may have recovered its stream.
type Guard = Arc<dyn Fn() -> bool + Send + Sync>;

/// A stream's file that is written only as long as the guard allows it.
struct GuardedFile {
    file: Arc<dyn Device>,
    path: PathBuf,
    guard: Guard,
}

impl Device for GuardedFile {
    fn length(&self) -> u64 {
        self.file.length()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        self.file.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DiskError> {
        match (self.guard)() {
            true => self.file.write(offset, from),
            false => Err(DiskError::NoMember { path: self.path.clone() }),
        }
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync()
    }
}

/// A redo stream in its file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamFile {
    /// The file.
    pub path: PathBuf,
    /// The number of the stream among those of its node.
    pub place: u8,
    /// The header as it was found.
    pub header: StreamHeader,
}

/// A stream that a new incarnation can open.
pub struct PreparedStream {
    device: GuardedFile,
    tail: StreamTail,
    incarnation: Incarnation,
}

/// A stream that is not closed and whose incarnation is not a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadStream {
    pub(super) file: StreamFile,
    /// The batches of the last segment if the scan has read them.
    pub(super) read: Vec<Batch>,
}

/// The reason why streams cannot be used. It names the file.
#[derive(Debug, thiserror::Error)]
pub enum RedoFileError {
    /// The directory cannot be read.
    #[error(
        "{}: the directory of the redo streams cannot be read: {why}; if no node ever wrote redo, create it, else \
         mount or restore it", path.display()
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        why: io::Error,
    },
    /// A stream cannot be used.
    #[error("{}: {why}{}", path.display(), advice(path, why))]
    Stream {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: Box<StreamError>,
    },
    /// The own stream cannot be opened.
    #[error("{}: {why}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: Box<OpenError>,
    },
    /// The stream of the dead incarnation was opened again.
    #[error("{}: {node} has begun again after this stream was recovered; look for unfinished streams again", path.display())]
    Reopened {
        /// The file.
        path: PathBuf,
        /// The node.
        node: NodeId,
    },
    /// Open streams are missing, old or foreign.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Lost(Vec<LostStream>),
    /// The registry cannot be asked which streams there are.
    #[error("{0}")]
    Registry(String),
    /// An image of a disk is older than the registry knows.
    #[error("{0}")]
    OldImages(String),
    /// The label of a disk cannot be read or written.
    #[error(transparent)]
    Disks(DiskError),
    /// An entry of the registry has a malformed value.
    #[error("registry entry {0}")]
    Entry(String),
    /// There is no such stream.
    #[error("{}: no such redo stream; see `plexus redo`", path.display())]
    NoStream {
        /// The file.
        path: PathBuf,
    },
    /// A member writes the stream.
    #[error("{}: a running node writes this stream; end the node first, with `plexus node stop`", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// All streams of the node wait for recovery.
    #[error(
        "{}: {name} has {PLACES} redo streams, and each waits for recovery: {why}; then start again", path.display()
    )]
    NoPlace {
        /// The directory.
        path: PathBuf,
        /// The node.
        name: String,
        /// What prevents the recovery, and what to do.
        why: String,
    },
    /// There is no room for another stream of the node.
    #[error(
        "{}: {bytes} bytes are needed for a redo stream, and its file system has less; make room there (streams of \
         the node that can be used again when they are recovered: {waiting})", path.display()
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The bytes of the stream.
        bytes: u64,
        /// The streams of the node that wait for recovery.
        waiting: usize,
    },
}

impl RedoFiles {
    /// Names the streams of a cluster. No file is touched.
    pub fn new(directory: impl Into<PathBuf>, cluster: u128) -> Self {
        let places = StreamPlaces::Directory(directory.into());
        Self { places, cluster, guard: Arc::new(|| true) }
    }

    /// Names the streams of a cluster on mirrored disks.
    pub fn in_group(mirror: Arc<Mirror>, cluster: u128) -> Self {
        Self { places: StreamPlaces::Group(mirror), cluster, guard: Arc::new(|| true) }
    }

    /// Asks `guard` before each write to a stream: a node that is no member must not write.
    #[must_use]
    pub fn guarded(self, guard: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { guard: Arc::new(guard), ..self }
    }

    /// Finds a stream for a new incarnation of a node: a closed one, one in which an earlier
    /// incarnation has written nothing, or a new one with this geometry. A part of a new one is
    /// written, so a node does this before it is a member.
    ///
    /// # Errors
    /// All places are taken, a file of the node cannot be used, or there is no room for another.
    pub fn prepare(
        &self,
        node: NodeId,
        name: &str,
        incarnation: Incarnation,
        geometry: Geometry,
    ) -> Result<PreparedStream, RedoFileError> {
        self.find((node, name, incarnation), geometry, &|_| false, |file| self.close_unused(file, node))
    }

    /// Finds a stream as [`prepare`](Self::prepare), when the node is a member: recovery has closed
    /// one since, or there is room. It is in none of the places that `avoids` names.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_later(
        &self,
        node: NodeId,
        name: &str,
        incarnation: Incarnation,
        geometry: Geometry,
        avoids: &dyn Fn(&str) -> bool,
    ) -> Result<PreparedStream, RedoFileError> {
        self.find((node, name, incarnation), geometry, avoids, |_| false)
    }

    /// Finds a stream. `closes` closes an open one if it may be used at once.
    fn find(
        &self,
        (node, name, incarnation): (NodeId, &str, Incarnation),
        geometry: Geometry,
        avoids: &dyn Fn(&str) -> bool,
        closes: impl Fn(&StreamFile) -> bool,
    ) -> Result<PreparedStream, RedoFileError> {
        let (mut free, mut waiting) = (None, 0);
        for place in 0..PLACES {
            if avoids(&format!("{name}.{place}")) {
                continue;
            }
            let path = self.path(name, place);
            if !self.places.exists(&path) {
                free = free.or(Some((path, place)));
                continue;
            }
            // A file that is no stream of this node stays, and the scan names it.
            let Some(file) = self.look(path, place).ok().filter(|file| file.header.node == node) else {
                continue;
            };
            let is_older = file.header.incarnation < incarnation;
            if !is_older || !file.header.is_closed && !closes(&file) {
                waiting += usize::from(!file.header.is_closed);
                continue;
            }
            match self.prepared(&file, incarnation) {
                Ok(prepared) => return Ok(prepared),
                // No block needs the records of a closed stream, but nothing is known of its end.
                Err(StreamError::Corrupt { .. }) => {}
                Err(why) => return Err(stream(&file.path)(why)),
            }
        }
        let no_place = || {
            let why = self.obstacle();
            RedoFileError::NoPlace { path: self.places.directory(), name: name.into(), why }
        };
        let (path, place) = free.ok_or_else(no_place)?;
        self.places.create(&path, self.cluster, node, geometry).map_err(|why| {
            let is_full = match &why {
                StreamError::Disk(DiskError::NoRoom { .. } | DiskError::Mirror(DiskRefusal::Map(_))) => true,
                StreamError::Disk(DiskError::Io { source, .. }) => {
                    source.kind() == io::ErrorKind::StorageFull
                }
                _ => false,
            };
            match is_full {
                true => RedoFileError::NoRoom { path: path.clone(), bytes: geometry.length(), waiting },
                false => stream(&path)(why),
            }
        })?;
        let file = self.look(path, place)?;
        self.prepared(&file, incarnation).map_err(stream(&file.path))
    }

    /// Returns all streams, in the order of their names, each with its header or the reason why it
    /// cannot be used.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Vec<Result<StreamFile, RedoFileError>>, RedoFileError> {
        let failed = |why| RedoFileError::Directory { path: self.places.directory(), why };
        let mut files = Vec::new();
        for path in self.places.paths().map_err(failed)? {
            let place = path.extension().and_then(place_of);
            files.extend(place.map(|place| (path, place)));
        }
        files.sort();
        Ok(files.into_iter().map(|(path, place)| self.look(path, place)).collect())
    }

    /// Returns the streams of the dead: all that are not closed, without those of the members
    /// `live`.
    ///
    /// # Errors
    /// A stream cannot be used: it may have blocks that need recovery.
    pub fn unfinished(&self, live: &[(NodeId, Incarnation)]) -> Result<Vec<DeadStream>, RedoFileError> {
        let open = self.open_streams()?;
        let is_live = |file: &StreamFile| live.contains(&(file.header.node, file.header.incarnation));
        let dead = open.into_iter().filter(|file| !is_live(file));
        Ok(dead.map(|file| DeadStream { file, read: Vec::new() }).collect())
    }

    /// Returns the streams of the members `live`.
    ///
    /// # Errors
    /// As [`RedoFiles::unfinished`].
    pub fn living(&self, live: &[(NodeId, Incarnation)]) -> Result<Vec<StreamFile>, RedoFileError> {
        let mut open = self.open_streams()?;
        open.retain(|file| live.contains(&(file.header.node, file.header.incarnation)));
        Ok(open)
    }

    /// Seals the stream of a dead incarnation, and finds the blocks that it changed with their
    /// highest versions. The seal is a sync: the end that is found is there after every later
    /// crash. `dead` keeps what was read for a [replay](Self::replay).
    ///
    /// # Errors
    /// The stream cannot be read, or was opened again.
    pub fn scan(&self, dead: &mut DeadStream) -> Result<BTreeMap<BlockId, Version>, RedoFileError> {
        let DeadStream { file: StreamFile { path, header, .. }, read } = dead;
        let scan = || {
            let copies = self.places.open_copies(path)?;
            let mut found: Option<(StreamScan, &Arc<dyn Device>)> = None;
            let mut failed = None;
            let scan_copy = |device: &Arc<dyn Device>| {
                device.sync()?;
                let reader = StreamReader::open(&**device)?.of(self.cluster, header.node)?;
                // Only closed streams are opened again.
                reader.of_last_incarnation().scan()
            };
            // A sound copy is used rather than a damaged one, then the longest. A copy that the
            // last opening has not reached has nothing of it.
            let rank = |scan: &StreamScan| {
                let is_open = scan.tail.header.incarnation == header.incarnation;
                (is_open, scan.damage.is_none(), scan.tail.end)
            };
            for device in &copies {
                match scan_copy(device) {
                    Ok(scan) if found.as_ref().is_none_or(|(best, _)| rank(best) < rank(&scan)) => {
                        found = Some((scan, device));
                    }
                    Ok(_) => {}
                    Err(why) => failed = Some(why),
                }
            }
            let Some((scan, device)) = found else { return Err(failed.expect("a copy was scanned")) };
            if copies.len() > 1 {
                self.complete_copies(path, &scan, &**device)?;
            }
            Ok(scan)
        };
        let scan = scan().map_err(stream(path))?;
        if scan.tail.header.incarnation != header.incarnation {
            return Err(RedoFileError::Reopened { path: path.clone(), node: header.node });
        }
        *read = scan.batches;
        Ok(scan.highest)
    }

    /// Writes the last batch, which one copy of a stream may not have, to all of them. So the end
    /// that was found stays where it is. A copy that has the batch gets the same bytes again.
    fn complete_copies(&self, path: &Path, scan: &StreamScan, from: &dyn Device) -> Result<(), StreamError> {
        let Some(last) = scan.batches.last().map(|batch| batch.head().lsn) else { return Ok(()) };
        let geometry = scan.tail.header.geometry;
        let (start, end) = (geometry.offset(last), geometry.offset(scan.tail.end));
        // A batch is in one segment; behind the last one of the device the next one is at its
        // start.
        let end = if end > start { end } else { geometry.length() };
        let mut bytes = Buffer::zeroed((end - start) as usize);
        let bytes = &mut bytes[..(end - start) as usize];
        from.read(start, bytes)?;
        let device =
            GuardedFile { file: self.places.open(path)?, path: path.into(), guard: Arc::clone(&self.guard) };
        device.write(start, bytes)?;
        Ok(device.sync()?)
    }

    /// Closes the stream of a dead incarnation: no block needs its records. A stream that was
    /// closed, and perhaps opened again since, stays as it is.
    ///
    /// # Errors
    /// The stream cannot be written.
    pub fn close(&self, dead: &DeadStream) -> Result<(), RedoFileError> {
        let StreamFile { path, header, .. } = &dead.file;
        let close = || {
            let (path, guard) = (path.clone(), Arc::clone(&self.guard));
            let device = GuardedFile { file: self.places.open(&path)?, path, guard };
            let found = *StreamReader::open(&device)?.of(self.cluster, header.node)?.header();
            if found.is_closed || found.incarnation != header.incarnation {
                return Ok(());
            }
            write_closed(&device, found)
        };
        close().map_err(stream(path))
    }

    /// Closes the stream of an earlier incarnation of this node that has written nothing in it. It
    /// is not a member, and no view has this incarnation yet: until one has, every member ends what
    /// it does with the stream.
    fn close_unused(&self, file: &StreamFile, node: NodeId) -> bool {
        let close = || {
            let device = self.places.open(&file.path)?;
            let StreamScan { tail, damage, .. } =
                StreamReader::open(&*device)?.of(self.cluster, node)?.scan()?;
            if damage.is_some() || tail.end != tail.header.begin {
                return Ok(false);
            }
            write_closed(&*device, tail.header).map(|()| true)
        };
        // Recovery reports the fault of such a stream.
        close().unwrap_or(false)
    }

    /// Describes what prevents the recovery of streams, and what to do.
    fn obstacle(&self) -> String {
        let damage = |file: StreamFile| {
            let scan = || {
                let device = self.places.open(&file.path)?;
                StreamReader::open(&*device)?.of_running().scan()
            };
            let is_open = !file.header.is_closed;
            is_open.then(scan)?.map_or_else(Some, |scan| scan.damage).map(stream(&file.path))
        };
        let damaged =
            self.list().map(|files| files.into_iter().find_map(|file| file.map_or_else(Some, damage)));
        match damaged {
            Ok(None) => "start the other nodes, which recover their blocks (`plexus redo` shows them)".into(),
            Ok(Some(why)) | Err(why) => why.to_string(),
        }
    }

    fn path(&self, name: &str, place: u8) -> PathBuf {
        self.path_of(&format!("{name}.{place}"))
    }

    /// Returns the path of a stream by its name, `NODE.PLACE`.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.places.path_of(name)
    }

    /// Returns true if a file of this name is a stream.
    pub(super) fn is_name(name: &str) -> bool {
        !name.contains('/') && Path::new(name).extension().is_some_and(|place| place_of(place).is_some())
    }

    /// Reads the header of the stream of this name.
    pub(super) fn header_of(&self, name: &str) -> Result<StreamFile, RedoFileError> {
        let path = self.path_of(name);
        let place = path.extension().and_then(place_of).unwrap_or_default();
        self.look(path, place)
    }

    fn open_streams(&self) -> Result<Vec<StreamFile>, RedoFileError> {
        let mut files: Vec<_> = self.list()?.into_iter().collect::<Result<_, _>>()?;
        files.retain(|file: &StreamFile| !file.header.is_closed);
        Ok(files)
    }

    /// Reads the header of a stream, and refuses that of another cluster.
    fn look(&self, path: PathBuf, place: u8) -> Result<StreamFile, RedoFileError> {
        let header = || {
            let device = self.places.open(&path)?;
            let reader = StreamReader::open(&*device)?;
            let node = reader.header().node;
            reader.of(self.cluster, node).map(|reader| *reader.header())
        };
        match header() {
            Ok(header) => Ok(StreamFile { path, place, header }),
            Err(why) => Err(stream(&path)(why)),
        }
    }

    fn prepared(&self, file: &StreamFile, incarnation: Incarnation) -> Result<PreparedStream, StreamError> {
        let path = file.path.clone();
        let device = self.places.open(&path)?;
        let StreamScan { tail, damage, .. } =
            StreamReader::open(&*device)?.of(self.cluster, file.header.node)?.scan()?;
        if let Some(damage) = damage {
            return Err(damage);
        }
        let device = GuardedFile { file: device, path, guard: Arc::clone(&self.guard) };
        Ok(PreparedStream { device, tail, incarnation })
    }
}

impl PreparedStream {
    /// Returns the name of the file: the node's name and the place.
    #[must_use]
    pub fn file_name(&self) -> String {
        self.device.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the header that was found.
    #[must_use]
    pub fn header(&self) -> &StreamHeader {
        &self.tail.header
    }

    /// Returns the incarnation that is to open the stream.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the geometry of the stream.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.tail.header.geometry
    }

    /// Opens the stream. `told` is that of [`RedoStream::open`]. The incarnation must be a member
    /// of the view: other members recover and close the stream of an incarnation that is not.
    ///
    /// # Errors
    /// The file cannot be written, or the system refuses a thread.
    pub fn open(
        self,
        told: impl Fn(RedoProgress) + Send + Sync + 'static,
    ) -> Result<RedoStream, RedoFileError> {
        let path = self.device.path.clone();
        RedoStream::open(Arc::new(self.device), self.tail, self.incarnation, told)
            .map_err(|why| RedoFileError::Open { path, why: Box::new(why) })
    }
}

impl StreamFile {
    /// Returns the name of the file: the node's name and the place.
    #[must_use]
    pub fn file_name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the identity of the stream in messages about records.
    pub(super) fn name(&self) -> StreamName {
        StreamName { node: self.header.node, place: self.place }
    }
}

impl DeadStream {
    /// Returns the file of the stream.
    #[must_use]
    pub fn file(&self) -> &StreamFile {
        &self.file
    }
}

/// Writes the next header of a stream, which closes it.
fn write_closed(device: &dyn Device, found: StreamHeader) -> Result<(), StreamError> {
    let closed = StreamHeader { is_closed: true, number: found.number + 1, ..found };
    device.write(closed.offset(), &closed.encode())?;
    Ok(device.sync()?)
}

/// Returns the advice for a stream whose contents cannot be used.
fn advice(path: &Path, why: &StreamError) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match why {
        StreamError::Disk(_) => String::new(),
        _ => format!(", or accept that changes are lost with `plexus redo give-up {name} --lose-newer`"),
    }
}

/// Returns the place that the extension of a stream's file names.
fn place_of(extension: &OsStr) -> Option<u8> {
    extension.to_str()?.parse().ok()
}

pub(super) fn stream(path: &Path) -> impl FnOnce(StreamError) -> RedoFileError {
    move |why| RedoFileError::Stream { path: path.into(), why: Box::new(why) }
}
