//! Intervals in a file, for days: written as they come, read again whatever happened to who wrote them.
//!
//! A file is a head, which says what its numbers mean, and records, one for each interval. Records are only ever appended,
//! each with one write, so whoever is killed leaves at most one that is not whole; it is left out when the file is read and cut
//! off when it is written on. A file of another cluster, or of one whose nodes have changed, is not written on.

mod format;
mod varint;

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

pub use format::{Entry, Head, NodeRecord, NodeState, Record};

use crate::cluster::Reading;

/// Why a recording cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The system.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It is something else.
    #[error("{path}: {what}; name another file")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: String,
    },
}

/// A recording that is being written.
pub struct Recorder {
    path: PathBuf,
    file: File,
    head: Head,
    records: u64,
}

impl Recorder {
    /// Begins the file, or goes on with one of the same cluster.
    ///
    /// # Errors
    /// It cannot be written, or holds something else.
    pub fn open(path: &Path, head: Head) -> Result<Self, RecordingError> {
        let failed = |source| RecordingError::Io { path: path.into(), source };
        let foreign = |what: String| RecordingError::Foreign { path: path.into(), what };
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        // A head that is not whole belongs to who was killed before the first record.
        let records = if bytes.len() < head.encode().len() && head.encode().starts_with(&bytes) {
            file.set_len(0).map_err(failed)?;
            file.write_all(&head.encode()).map_err(failed)?;
            0
        } else {
            let recording = Recording::decode(bytes).map_err(foreign)?;
            if !recording.head.goes_on_with(&head) {
                return Err(foreign("it is of another cluster, or its nodes have changed since".into()));
            }
            if recording.torn() > 0 {
                file.set_len(recording.whole as u64).map_err(failed)?;
            }
            recording.records().count() as u64
        };
        Ok(Self { path: path.into(), file, head, records })
    }

    /// Appends an interval.
    ///
    /// # Errors
    /// The system's.
    pub fn append(&mut self, interval: &Reading) -> Result<(), RecordingError> {
        let bytes = Record::of(interval, &self.head).encode();
        self.file
            .write_all(&bytes)
            .map_err(|source| RecordingError::Io { path: self.path.clone(), source })?;
        self.records += 1;
        Ok(())
    }

    /// How many intervals the file holds.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }
}

/// A recording that was read.
pub struct Recording {
    /// What its numbers mean.
    pub head: Head,
    bytes: Vec<u8>,
    first: usize,
    whole: usize,
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is something else.
    pub fn read(path: &Path) -> Result<Self, RecordingError> {
        let bytes = std::fs::read(path).map_err(|source| RecordingError::Io { path: path.into(), source })?;
        Self::decode(bytes).map_err(|what| RecordingError::Foreign { path: path.into(), what })
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// What they are instead.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, String> {
        let (head, first) = Head::decode(&bytes).map_err(str::to_owned)?;
        let mut whole = first;
        while let Some((_, length)) = Record::decode(&bytes[whole..], &head) {
            whole += length;
        }
        Ok(Self { head, bytes, first, whole })
    }

    /// The intervals, in the order of their writing.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let (record, length) = Record::decode(&self.bytes[at..self.whole], &self.head)?;
            at += length;
            Some(record)
        })
    }

    /// Bytes at the end that are no whole record: who wrote was killed, or something else wrote there.
    #[must_use]
    pub fn torn(&self) -> usize {
        self.bytes.len() - self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{
            Seen,
            tests::{alive, reading},
        },
        snapshot::tests::snapshot,
    };

    fn head() -> Head {
        Head::new("c1", "00ff", &["n1".into(), "n2".into()], 1000)
    }

    fn interval(at: u64, messages: usize) -> Reading {
        let n1 = snapshot("n1", 1, &[("n2", "cache-blocks", &vec![16384; messages]), ("n2", "locks", &[64])]);
        let mut interval = reading(at, vec![("n1", alive(n1)), ("n2", Seen::Down)]);
        interval.seconds = Some(1.25);
        interval
    }

    fn written(path: &Path, count: u64) -> Vec<u8> {
        let mut recorder = Recorder::open(path, head()).unwrap();
        (0..count).for_each(|n| recorder.append(&interval(1_795_266_479_000 + n, 3 + n as usize)).unwrap());
        std::fs::read(path).unwrap()
    }

    #[test]
    fn what_is_recorded_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        written(&path, 2);
        let recording = Recording::read(&path).unwrap();
        assert_eq!((&recording.head, recording.torn()), (&head(), 0));
        let records: Vec<_> = recording.records().collect();
        assert_eq!(records.len(), 2);
        assert_eq!((records[1].unix_ms, records[1].interval_ms), (1_795_266_479_001, 1250));
        assert_eq!(records[0].nodes[1], NodeRecord { node: 1, state: NodeState::Down, entries: Vec::new() });
        let blocks =
            Entry { peer: 1, worker: 0, channel: 3, direction: 0, class: 11, messages: 4, bytes: 65536 };
        assert!(records[1].nodes[0].entries.contains(&blocks), "{:?}", records[1].nodes[0]);
        let mut again = Recorder::open(&path, Head { interval_ms: 500, ..head() }).unwrap();
        again.append(&interval(0, 0)).unwrap();
        assert_eq!(again.records(), 3);
        assert_eq!(Recording::read(&path).unwrap().records().count(), 3);
    }

    #[test]
    fn wherever_the_writer_was_killed_the_whole_records_are_read_and_written_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let one = written(&path, 1).len();
        let all = written(&path, 1);
        for length in 0..all.len() {
            std::fs::write(&path, &all[..length]).unwrap();
            let mut recorder = Recorder::open(&path, head()).unwrap();
            let left = u64::from(length >= one);
            assert_eq!(recorder.records(), left, "{length}");
            recorder.append(&interval(9, 1)).unwrap();
            let recording = Recording::read(&path).unwrap();
            assert_eq!((recording.records().count() as u64, recording.torn()), (left + 1, 0), "{length}");
        }
    }

    #[test]
    fn no_bytes_make_it_fall_over_and_a_flipped_bit_ends_the_recording() {
        let directory = tempfile::tempdir().unwrap();
        let all = written(&directory.path().join("r"), 2);
        for at in 0..all.len() {
            let mut bytes = all.clone();
            bytes[at] ^= 1 << (at % 8);
            if let Ok(recording) = Recording::decode(bytes) {
                assert!(recording.records().count() < 2, "a flipped bit in byte {at} was taken");
            }
        }
        // Lengths and counts that promise what is not there, under checksums that are right.
        let head = head();
        for body in [
            &[0xff; 40][..],
            &[0x80; 11],
            &[1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f],
            &[0, 0, 1, 0, 0, 0xff, 0x7f],
            &[],
        ] {
            assert!(Record::decode(&format::sealed(body), &head).is_none(), "{body:?}");
        }
    }

    #[test]
    fn a_file_of_something_else_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let refused = |what: &str| {
            let before = std::fs::read(&path).unwrap();
            let error = Recorder::open(&path, head()).err().unwrap().to_string();
            assert!(error.contains(what) && error.contains("name another file"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), before);
        };
        std::fs::write(&path, "something else that matters to somebody").unwrap();
        refused("not a recording");
        std::fs::write(&path, "short").unwrap();
        refused("not a recording");
        std::fs::write(&path, Head::new("c1", "00ff", &["n1".into()], 1000).encode()).unwrap();
        refused("another cluster");
    }
}
