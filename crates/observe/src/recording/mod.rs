//! Recordings: intervals in a file, written for days and readable after a crash of the writer.
//!
//! A file is a head, which gives the meaning of its numbers, and one record per interval. Records
//! are only appended, each with one write, so a killed writer leaves at most one incomplete record.
//! Readers ignore it, and the next writer cuts it off. Nothing else is ever cut off. A recorder
//! refuses a file that is damaged, belongs to another cluster, or has other nodes. One recorder at
//! a time writes a file.

mod format;
mod read;
mod varint;

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

pub use format::{Entry, Head, NodeRecord, NodeState, Record};
pub use read::{Recording, Source, Tail, Unreadable};

use crate::cluster::Reading;

/// The reason why a recording cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The system refused an operation.
    #[error("{path}: {source}")]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is no recording of this cluster.
    #[error("{path}: {what}; name another file")]
    Foreign {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        what: &'static str,
    },
    /// Bytes of the file were changed.
    #[error(
        "{path}: damaged at byte {at}, and the {bytes} bytes from there on may hold more; it stays as it is: name another file"
    )]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The offset of the end of the last valid record.
        at: u64,
        /// The number of bytes after it.
        bytes: u64,
    },
    /// Another recorder writes the file.
    #[error("{0}: another recorder writes this file; end it first, or name another file")]
    Busy(PathBuf),
}

/// A recording that is being written.
pub struct Recorder {
    path: PathBuf,
    file: File,
    head: Head,
    records: u64,
}

impl Recorder {
    /// Creates the file, or continues a recording of the same cluster.
    ///
    /// # Errors
    /// The file cannot be written, has another writer, is damaged, or is no recording of this
    /// cluster.
    pub fn open(path: &Path, head: Head) -> Result<Self, RecordingError> {
        let failed = |source| RecordingError::Io { path: path.into(), source };
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(RecordingError::Busy(path.into())),
            other => other.map_err(|error| failed(error.into()))?,
        }
        let fresh = head.encode();
        if is_begun(&file, &fresh).map_err(failed)? {
            file.set_len(0).and_then(|()| file.write_all(&fresh)).map_err(failed)?;
            return Ok(Self { path: path.into(), file, head, records: 0 });
        }
        let recording = Recording::of(file.try_clone().map_err(failed)?).map_err(|why| why.at(path))?;
        if !recording.head.goes_on_with(&head) {
            let what = "it is of another cluster, or its nodes have changed since";
            return Err(RecordingError::Foreign { path: path.into(), what });
        }
        let (records, end) = (recording.count(), recording.end());
        match recording.tail() {
            Tail::None => {}
            Tail::Torn(_) => file.set_len(end).map_err(failed)?,
            Tail::Damaged(bytes) => {
                return Err(RecordingError::Damaged { path: path.into(), at: end, bytes });
            }
        }
        Ok(Self { path: path.into(), file, head, records })
    }

    /// Appends an interval. After an error, open the file again: that cuts off the incomplete
    /// record.
    ///
    /// # Errors
    /// A system call failed.
    pub fn append(&mut self, interval: &Reading) -> Result<(), RecordingError> {
        let bytes = Record::of(interval, &self.head).encode();
        let failed = |source| RecordingError::Io { path: self.path.clone(), source };
        self.file.write_all(&bytes).map_err(failed)?;
        self.records += 1;
        Ok(())
    }

    /// Returns the number of intervals in the file.
    pub fn records(&self) -> u64 {
        self.records
    }
}

/// Returns true if the file is empty or holds only a part of its head: its first writer was killed
/// before the first record.
fn is_begun(file: &File, head: &[u8]) -> io::Result<bool> {
    let length = file.metadata()?.len();
    if length >= head.len() as u64 {
        return Ok(false);
    }
    let mut begun = vec![0; length as usize];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut begun, 0)?;
    Ok(head.starts_with(&begun))
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
        assert_eq!((&recording.head, recording.tail()), (&head(), Tail::None));
        let records: Vec<_> = recording.records().map(Result::unwrap).collect();
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
            assert_eq!((recording.count(), recording.tail()), (left + 1, Tail::None), "{length}");
        }
    }

    #[test]
    fn going_on_with_a_damaged_file_is_refused_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let one = written(&path, 1).len();
        let all = written(&path, 2);
        assert_eq!(Recording::of(all.clone()).unwrap().count(), 3);
        // Changes every bit of the second of three records, including its length, checksum and
        // counts.
        let third = one + format::BEFORE_BODY + usize::from(all[one]);
        for at in one..third {
            for bit in 0..8 {
                let mut bytes = all.clone();
                bytes[at] ^= 1 << bit;
                std::fs::write(&path, &bytes).unwrap();
                let error = Recorder::open(&path, head()).err().unwrap().to_string();
                assert!(error.contains(&format!("damaged at byte {one},")), "{at}.{bit}: {error}");
                assert!(std::fs::read(&path).unwrap() == bytes, "{at}.{bit}");
            }
        }
        // The last record also, if it claims to be longer than it is.
        let mut bytes = all[..one].to_vec();
        bytes.extend_from_slice(&all[one..third]);
        bytes[one] += 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(Recorder::open(&path, head()), Err(RecordingError::Damaged { .. })));
        // Zeros, as some file systems leave after a lost write.
        let zeros = [&all[..], &[0; 64]].concat();
        std::fs::write(&path, &zeros).unwrap();
        assert!(matches!(Recorder::open(&path, head()), Err(RecordingError::Damaged { bytes: 64, .. })));
        assert_eq!(Recording::read(&path).unwrap().count(), 3, "it can still be read up to there");
    }

    #[test]
    fn two_recorders_do_not_write_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let first = Recorder::open(&path, head()).unwrap();
        assert!(matches!(Recorder::open(&path, head()), Err(RecordingError::Busy(_))));
        drop(first);
        assert!(Recorder::open(&path, head()).is_ok());
    }

    #[test]
    fn no_bytes_make_it_fall_over_and_a_flipped_bit_ends_the_recording() {
        let directory = tempfile::tempdir().unwrap();
        let all = written(&directory.path().join("r"), 2);
        for at in 0..all.len() {
            let mut bytes = all.clone();
            bytes[at] ^= 1 << (at % 8);
            if let Ok(recording) = Recording::of(bytes) {
                assert!(recording.count() < 2, "a flipped bit in byte {at} was taken");
            }
        }
        // Lengths and counts that announce missing data, under valid checksums.
        let head = head();
        for body in [
            &[0xff; 40][..],
            &[0x80; 11],
            &[1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f],
            &[0, 0, 1, 0, 0, 0xff, 0x7f],
            &[],
        ] {
            let bytes = [head.encode(), format::sealed(body)].concat();
            let recording = Recording::of(bytes).unwrap();
            let left = (format::BEFORE_BODY + body.len()) as u64;
            assert_eq!((recording.count(), recording.tail()), (0, Tail::Damaged(left)), "{body:?}");
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
        std::fs::write(&path, "another file of the user").unwrap();
        refused("not a recording");
        std::fs::write(&path, "short").unwrap();
        refused("not a recording");
        std::fs::write(&path, Head::new("c1", "00ff", &["n1".into()], 1000).encode()).unwrap();
        refused("another cluster");
    }
}
