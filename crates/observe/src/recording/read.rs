//! Reads a recording from start to end, as often as wanted, with one record in memory at a time.
//!
//! The bytes after the last valid record are classified: an incomplete record of a stopped writer,
//! or damage. Only the first may be cut off by the next writer.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use super::{
    RecordingError,
    format::{BEFORE_BODY, BEFORE_TEXT, Head, Record},
};

/// The number of bytes read from the system at once.
const BUFFER: usize = 64 << 10;

/// Bytes that can be read from any offset.
pub trait Source {
    /// Reads up to `into.len()` bytes from offset `at`; returns 0 at the end.
    ///
    /// # Errors
    /// A system call failed.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
}

impl Source for File {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, into, at)
    }
}

impl Source for Vec<u8> {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        io::Read::read(&mut &*from, into)
    }
}

/// The bytes after the last valid record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tail {
    /// There are none.
    None,
    /// This many bytes are an incomplete record: the writer was stopped.
    Torn(u64),
    /// This many bytes are no record: they were changed, and valid records may follow them.
    Damaged(u64),
}

/// A recording that was checked once.
pub struct Recording {
    /// The meaning of its numbers.
    pub head: Head,
    source: Box<dyn Source>,
    first: u64,
    whole: u64,
    count: u64,
    tail: Tail,
}

impl Recording {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or is no recording.
    pub fn read(path: &Path) -> Result<Self, RecordingError> {
        let file = File::open(path).map_err(|source| RecordingError::Io { path: path.into(), source })?;
        Self::of(file).map_err(|why| why.at(path))
    }

    /// Opens a source.
    ///
    /// # Errors
    /// It cannot be read, or is no recording.
    pub fn of(source: impl Source + 'static) -> Result<Self, Unreadable> {
        let mut head = Bytes::new(&source, 0);
        let mut bytes = head.upto(BEFORE_TEXT)?;
        let length = Head::text_length(&bytes).map_err(Unreadable::Foreign)?;
        bytes.extend(head.upto(length)?);
        let first = bytes.len() as u64;
        let head = Head::decode(&bytes).map_err(Unreadable::Foreign)?;
        let mut records = Records { bytes: Bytes::new(&source, first), head: &head, end: u64::MAX };
        let (mut count, mut whole) = (0, first);
        let tail = loop {
            match records.next_record()? {
                Step::Record(_) => (count, whole) = (count + 1, records.bytes.at),
                Step::End(tail) => break tail,
            }
        };
        Ok(Self { head, source: Box::new(source), first, whole, count, tail })
    }

    /// Returns the number of intervals.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the intervals in the order of writing, without those that were added after it was
    /// opened.
    pub fn records(&self) -> impl Iterator<Item = io::Result<Record>> + '_ {
        let bytes = Bytes::new(&*self.source, self.first);
        let mut records = Records { bytes, head: &self.head, end: self.whole };
        std::iter::from_fn(move || match records.next_record() {
            Ok(Step::Record(record)) => Some(Ok(record)),
            Ok(Step::End(_)) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// Returns the offset of the end of the last valid record.
    pub fn end(&self) -> u64 {
        self.whole
    }

    /// Returns the kind of bytes after the last valid record.
    pub fn tail(&self) -> Tail {
        self.tail
    }
}

/// The reason why a source cannot be read as a recording.
#[derive(Debug)]
pub enum Unreadable {
    /// The system refused an operation.
    Io(io::Error),
    /// The source is no recording, for the given reason.
    Foreign(&'static str),
}

impl Unreadable {
    pub(super) fn at(self, path: &Path) -> RecordingError {
        let path = path.into();
        match self {
            Self::Io(source) => RecordingError::Io { path, source },
            Self::Foreign(what) => RecordingError::Foreign { path, what },
        }
    }
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

enum Step {
    Record(Record),
    End(Tail),
}

/// An iterator over records.
struct Records<'a> {
    bytes: Bytes<'a>,
    head: &'a Head,
    end: u64,
}

impl Records<'_> {
    fn next_record(&mut self) -> io::Result<Step> {
        if self.bytes.at >= self.end {
            return Ok(Step::End(Tail::None));
        }
        let begin = self.bytes.at;
        let front = self.bytes.upto(BEFORE_BODY)?;
        let Some(front) = front.first_chunk() else {
            return Ok(Step::End(if front.is_empty() { Tail::None } else { Tail::Torn(front.len() as u64) }));
        };
        let Some(length) = Record::body_length(front) else { return self.damaged(begin) };
        let body = self.bytes.upto(length)?;
        if body.len() < length && Record::is_begun(&body, self.head) {
            return Ok(Step::End(Tail::Torn(self.bytes.at - begin)));
        }
        match Record::decode(front, &body, self.head) {
            Some(record) => Ok(Step::Record(record)),
            None => self.damaged(begin),
        }
    }

    fn damaged(&mut self, begin: u64) -> io::Result<Step> {
        while !self.bytes.upto(BUFFER)?.is_empty() {}
        Ok(Step::End(Tail::Damaged(self.bytes.at - begin)))
    }
}

/// The bytes of a source, read in large pieces.
struct Bytes<'a> {
    source: &'a dyn Source,
    /// The offset of the next byte to return.
    at: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl<'a> Bytes<'a> {
    fn new(source: &'a dyn Source, at: u64) -> Self {
        Self { source, at, buffer: Vec::new(), used: 0 }
    }

    /// Returns the next `count` bytes; fewer only at the end. Memory grows with the available
    /// bytes, not with `count`.
    fn upto(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            if self.used == self.buffer.len() {
                self.buffer.resize(BUFFER, 0);
                let read = read_once(self.source, &mut self.buffer, self.at);
                // After an error the buffer holds no bytes that were not read.
                self.buffer.truncate(*read.as_ref().unwrap_or(&0));
                self.used = 0;
                if read? == 0 {
                    break;
                }
            }
            let piece = &self.buffer[self.used..];
            let piece = &piece[..piece.len().min(count - bytes.len())];
            bytes.extend_from_slice(piece);
            self.used += piece.len();
            self.at += piece.len() as u64;
        }
        Ok(bytes)
    }
}

fn read_once(source: &dyn Source, into: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match source.read_at(into, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
