//! What the registry knows of the streams and disks of a group, so that one that is missing, old or
//! foreign is noticed.
//!
//! The entries of a group are `stream/NODE.PLACE`, one for each stream that was ever opened, and
//! `group` ([`opening`](super::opening)). Their values have a fixed length: the registry changes
//! them also when the disk of a node is full.
//!
//! A stream is noted as open after its header says so and before it takes a change. It is noted as
//! closed when no block needs its records. Where a crash comes between the header and the entry,
//! the header is newer than the entry, or the stream has no record that is needed: neither is taken
//! for a loss, and the next step of a stream corrects its entry.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use plexus_base::{BlockId, Incarnation, NodeId};

use super::files::{DeadStream, RedoFileError, RedoFiles, StreamFile, stream as of_stream};
use crate::stream::protocol::StreamHeader;

/// The entries of a group in the registry, with their versions.
pub type LedgerEntries = BTreeMap<String, (u64, String)>;

/// The part of the registry that belongs to a disk group.
pub trait Ledger: Send + Sync {
    /// Returns all entries, at least as new as every change before. Gives up when `is_void`.
    ///
    /// # Errors
    /// The registry cannot be asked now; the text is one line.
    fn read(&self, is_void: &dyn Fn() -> bool) -> Result<LedgerEntries, String>;

    /// Sets an entry that has this version; 0: it does not exist. Returns false if it has another.
    ///
    /// # Errors
    /// The registry cannot be changed now. The change may be made later.
    fn set(&self, key: &str, version: u64, value: &str, is_void: &dyn Fn() -> bool) -> Result<bool, String>;
}

/// The state of a stream in the registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownStream {
    /// The node that writes it.
    pub node: NodeId,
    /// The incarnation that opened it last.
    pub incarnation: Incarnation,
    /// The number of its header when it was opened.
    pub opening: u64,
    /// True if no block needs its records.
    pub is_closed: bool,
}

/// The reason why a stream is not the one that the registry knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostStream {
    path: PathBuf,
    known: KnownStream,
    /// The header that is there instead.
    found: Option<StreamHeader>,
}

/// The name of the entry of a stream.
fn key(name: &str) -> String {
    format!("stream/{name}")
}

/// Returns the number behind `name=` in a value.
pub(super) fn number(text: &str, name: &str) -> Option<u64> {
    text.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?.parse().ok()
}

impl KnownStream {
    fn of(header: &StreamHeader) -> Self {
        let StreamHeader { node, incarnation, number, is_closed, .. } = *header;
        Self { node, incarnation, opening: number, is_closed }
    }

    /// Returns the value of the entry.
    #[must_use]
    pub fn encode(&self) -> String {
        let Self { node, incarnation, opening, is_closed } = self;
        let closed = u8::from(*is_closed);
        format!("node={:03} incarnation={:020} opening={opening:020} closed={closed}", node.0, incarnation.0)
    }

    /// Reads the value of an entry.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        Some(Self {
            node: NodeId(number(text, "node")?.try_into().ok()?),
            incarnation: Incarnation(number(text, "incarnation")?),
            opening: number(text, "opening")?,
            is_closed: number(text, "closed")? == 1,
        })
    }

    /// Returns true if a header is that of this opening of the stream or of a later one.
    fn is_reached_by(&self, found: &StreamHeader) -> bool {
        found.node == self.node && (found.incarnation, found.number) >= (self.incarnation, self.opening)
    }
}

impl LostStream {
    /// Returns true if there is no file.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.found.is_none()
    }
}

impl fmt::Display for LostStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, known: KnownStream { node, incarnation, opening, .. }, found } = self;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        write!(f, "{}: ", path.display())?;
        match found {
            // A new stream, which no incarnation has opened.
            None | Some(StreamHeader { incarnation: Incarnation(0), .. }) => {
                write!(f, "the redo stream of {node} is missing, and it was not closed")?;
            }
            Some(found) if found.node != *node => {
                write!(f, "this is a redo stream of {}, in the place of one of {node}", found.node)?;
            }
            Some(found) => write!(
                f,
                "this is an older copy of the redo stream of {node}: of incarnation {} with header {}, where the \
                 registry knows incarnation {} with header {opening}",
                found.incarnation.0, found.number, incarnation.0
            )?,
        }
        write!(
            f,
            "; put the newest file back, or accept that changes are lost with `plexus redo give-up {name} \
             --lose-newer`"
        )
    }
}

/// Returns the streams that the registry knows.
fn known_streams(entries: &LedgerEntries) -> Result<Vec<(&str, KnownStream)>, RedoFileError> {
    let streams = entries.iter().filter_map(|(key, (_, text))| Some((key.strip_prefix("stream/")?, text)));
    let decoded = streams.map(|(name, text)| {
        let unknown = || RedoFileError::Entry(format!("{}: malformed value {text}", key(name)));
        Ok((name, KnownStream::decode(text).ok_or_else(unknown)?))
    });
    decoded.collect()
}

/// Returns true if the registry knows a stream.
pub(super) fn has_streams(entries: &LedgerEntries) -> bool {
    entries.keys().any(|key| key.starts_with("stream/"))
}

/// Returns true if the registry knows no stream that is not closed.
pub(super) fn are_closed(entries: &LedgerEntries) -> bool {
    known_streams(entries).is_ok_and(|streams| streams.iter().all(|(_, known)| known.is_closed))
}

/// Replaces the entry of a stream by what `change` returns for the present entry.
fn note(
    ledger: &dyn Ledger,
    name: &str,
    is_void: &dyn Fn() -> bool,
    change: impl Fn(Option<KnownStream>) -> Option<KnownStream>,
) -> Result<(), String> {
    loop {
        let entries = ledger.read(is_void)?;
        let (version, now) = match entries.get(&key(name)) {
            Some((version, text)) => (*version, KnownStream::decode(text)),
            None => (0, None),
        };
        let Some(new) = change(now).filter(|new| Some(*new) != now) else { return Ok(()) };
        if ledger.set(&key(name), version, &new.encode(), is_void)? {
            return Ok(());
        }
    }
}

/// Notes that no block needs the records of an incarnation in a stream.
///
/// # Errors
/// The registry cannot be changed now. Its entry is corrected later.
pub fn note_closed(
    ledger: &dyn Ledger,
    name: &str,
    incarnation: Incarnation,
    is_void: &dyn Fn() -> bool,
) -> Result<(), String> {
    note(ledger, name, is_void, |known| {
        let known = known.filter(|known| known.incarnation == incarnation)?;
        Some(KnownStream { is_closed: true, ..known })
    })
}

/// A stream that is given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamToGiveUp {
    /// The file.
    pub path: PathBuf,
    /// The state of the file.
    pub state: String,
    /// The blocks with records in it, as far as they are known.
    pub blocks: Vec<BlockId>,
    /// True if nothing has to be given up.
    pub is_over: bool,
    file: Option<StreamFile>,
    exists: bool,
}

impl RedoFiles {
    /// Notes that a stream, which was opened just now, is open.
    ///
    /// # Errors
    /// The registry cannot be changed now, or the header cannot be read.
    pub fn note_open(
        &self,
        ledger: &dyn Ledger,
        name: &str,
        is_void: &dyn Fn() -> bool,
    ) -> Result<(), RedoFileError> {
        let known = KnownStream::of(&self.header_of(name)?.header);
        note(ledger, name, is_void, |_| Some(KnownStream { is_closed: false, ..known }))
            .map_err(RedoFileError::Registry)
    }

    /// Compares the streams with those that the registry knew before, after the streams `dead` of
    /// nodes that are not `members` were found. Corrects entries of streams that are closed.
    ///
    /// # Errors
    /// A stream that is not closed is missing, old, or that of another node; or a stream cannot be
    /// read.
    pub fn compare(
        &self,
        entries: &LedgerEntries,
        members: &[(NodeId, Incarnation)],
        dead: &[DeadStream],
        ledger: &dyn Ledger,
        is_void: &dyn Fn() -> bool,
    ) -> Result<(), RedoFileError> {
        let lost = self.lost(entries)?;
        if !lost.is_empty() {
            return Err(RedoFileError::Lost(lost));
        }
        for (name, known) in known_streams(entries)? {
            let path = self.path_of(name);
            let Ok(StreamFile { header: found, .. }) = self.header_of(name) else { continue };
            let is_live = members.contains(&(found.node, found.incarnation));
            if !found.is_closed && !is_live && dead.iter().all(|dead| dead.file().path != path) {
                return Err(RedoFileError::Reopened { path, node: found.node });
            }
            if found.is_closed && !known.is_closed && found.incarnation == known.incarnation {
                note_closed(ledger, name, known.incarnation, is_void).map_err(RedoFileError::Registry)?;
            }
        }
        Ok(())
    }

    /// Returns the streams that are not closed and are missing, old, or those of another node.
    ///
    /// # Errors
    /// An entry cannot be read.
    pub fn lost(&self, entries: &LedgerEntries) -> Result<Vec<LostStream>, RedoFileError> {
        let mut lost = Vec::new();
        for (name, known) in known_streams(entries)? {
            let path = self.path_of(name);
            let found = match self.header_of(name) {
                Ok(file) => Some(file.header),
                // The search for streams that are not closed names it.
                Err(_) if self.places.exists(&path) => continue,
                Err(_) => None,
            };
            let is_lost = match &found {
                None => !known.is_closed,
                Some(found) if found.node != known.node => !known.is_closed || !found.is_closed,
                Some(found) => !known.is_closed && !known.is_reached_by(found),
            };
            if is_lost {
                lost.push(LostStream { path, known, found });
            }
        }
        Ok(lost)
    }

    /// Describes a stream that is to be given up: the state of its file and the blocks in it.
    ///
    /// # Errors
    /// There is no such stream, or it is in use by a member.
    pub fn to_give_up(
        &self,
        name: &str,
        ledger: &dyn Ledger,
        members: &[(NodeId, Incarnation)],
        is_void: &dyn Fn() -> bool,
    ) -> Result<StreamToGiveUp, RedoFileError> {
        let entries = ledger.read(is_void).map_err(RedoFileError::Registry)?;
        let known = known_streams(&entries)?.into_iter().find(|(known, _)| *known == name).map(|(_, it)| it);
        let path = self.path_of(name);
        let exists = self.places.exists(&path);
        if known.is_none() && (!exists || !Self::is_name(name)) {
            return Err(RedoFileError::NoStream { path });
        }
        let found = self.header_of(name);
        let is_live = |node, incarnation| members.contains(&(node, incarnation));
        // A member has opened its stream before the registry knows it.
        let is_open = |found: &StreamFile| {
            !found.header.is_closed && is_live(found.header.node, found.header.incarnation)
        };
        if known.is_some_and(|known| !known.is_closed && is_live(known.node, known.incarnation))
            || found.as_ref().is_ok_and(is_open)
        {
            return Err(RedoFileError::InUse { path });
        }
        let (mut state, mut blocks, mut file) = (String::new(), Vec::new(), None);
        match found {
            _ if !exists => state += "it is missing",
            Err(why) => state += &why.to_string(),
            Ok(found) if known.is_some_and(|known| known.node != found.header.node) => {
                state += &format!("it is a stream of {}", found.header.node);
            }
            Ok(found) => {
                if !found.header.is_closed {
                    let mut dead = DeadStream { file: found.clone(), read: Vec::new() };
                    match self.scan(&mut dead) {
                        Ok(highest) => blocks = highest.into_keys().collect(),
                        Err(why) => state = why.to_string(),
                    }
                }
                file = Some(found);
            }
        }
        let is_closed = file.as_ref().is_some_and(|file| file.header.is_closed);
        let is_over = known.is_none_or(|known| known.is_closed) && (is_closed || !exists);
        Ok(StreamToGiveUp { path, state, blocks, is_over, file, exists })
    }

    /// Gives up a stream: no recovery reads it or waits for it any more. A stream of its node is
    /// closed by a header, which keeps its positions and its incarnation; any other file gets
    /// another name. Then the registry notes that it is closed.
    ///
    /// # Errors
    /// The file or the registry cannot be changed. This can be repeated.
    pub fn give_up(
        &self,
        stream: &StreamToGiveUp,
        ledger: &dyn Ledger,
        is_void: &dyn Fn() -> bool,
    ) -> Result<(), RedoFileError> {
        let path = &stream.path;
        if let Some(file) = &stream.file {
            self.close(&DeadStream { file: file.clone(), read: Vec::new() })?;
        } else if stream.exists {
            self.places.set_aside(path).map_err(|why| of_stream(path)(why.into()))?;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        note(ledger, &name, is_void, |known| Some(KnownStream { is_closed: true, ..known? }))
            .map_err(RedoFileError::Registry)
    }

    /// Returns the stream that was prepared, or another one if it is in the place of a stream that
    /// is lost: that place stays as it is, so that the loss is noticed.
    ///
    /// # Errors
    /// As [`RedoFiles::prepare`].
    pub fn avoid_lost_place(
        &self,
        prepared: super::PreparedStream,
        entries: &LedgerEntries,
    ) -> Result<super::PreparedStream, RedoFileError> {
        let is_lost = |name: &str, header: Option<&StreamHeader>| {
            let known = entries.get(&key(name)).and_then(|(_, text)| KnownStream::decode(text));
            known.is_some_and(|known| {
                !known.is_closed && !header.is_some_and(|found| known.is_reached_by(found))
            })
        };
        let (name, header) = (prepared.file_name(), *prepared.header());
        if !is_lost(&name, Some(&header)) {
            return Ok(prepared);
        }
        let node = name.rsplit_once('.').map_or(&*name, |(node, _)| node);
        let (incarnation, geometry) = (prepared.incarnation(), prepared.geometry());
        self.prepare_later(header.node, node, incarnation, geometry, &|name| {
            // A header that is there was not read yet; one that is lost has an earlier opening.
            let header = self.header_of(name).ok().map(|file| file.header);
            is_lost(name, header.as_ref())
        })
    }
}

#[cfg(test)]
mod tests;
