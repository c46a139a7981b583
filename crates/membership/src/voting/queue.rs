//! The queue and thread of each voting file that this node opens. A disk that hangs delays only the
//! turns of its file.
//!
//! Turns are executed in the order of arrival. A served file receives turns of several nodes, and
//! those that arrive during disk I/O are executed together: all writes, one sync if needed, one
//! read. This is equivalent to executing them in order, because each turn reads after it wrote.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use super::{
    file::{Disk, FileError},
    format::{self, FileName},
    packed,
};
use crate::protocol::Contents;

/// A turn of one node.
pub(crate) struct TurnJob {
    /// The number of the turn, returned with its result.
    pub(crate) number: u64,
    /// The block numbers and blocks to write.
    pub(crate) writes: Vec<(usize, Vec<u8>)>,
    /// True if another node requested the turn.
    pub(crate) is_served: bool,
}

/// The content that a turn has read.
pub(crate) enum TurnContents {
    /// The content for this node.
    Contents(Box<Contents>),
    /// The packed blocks for another node.
    Packed(Arc<[u8]>),
}

/// A turn that has ended.
pub(crate) struct FinishedTurn {
    pub(crate) number: u64,
    pub(crate) result: Result<TurnContents, Arc<FileError>>,
}

pub(crate) struct FileQueue {
    jobs: mpsc::Sender<TurnJob>,
    thread: JoinHandle<()>,
}

impl FileQueue {
    /// Starts the thread. It opens the file at the first turn, and again after a failure. It calls
    /// `urgent` once and `done` after each turn.
    pub(crate) fn start(
        path: PathBuf,
        name: FileName,
        urgent: impl FnOnce() + Send + 'static,
        done: impl Fn(FinishedTurn) + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let thread = thread::Builder::new().name(format!("plexus-vote-{:04x}", name.file.0 as u16));
        let thread = thread.spawn(move || {
            urgent();
            serve(&path, name, &queue, done);
        })?;
        Ok(Self { jobs, thread })
    }

    pub(crate) fn submit(&self, job: TurnJob) {
        self.jobs.send(job).expect("the thread runs until the queue is closed");
    }

    /// Accepts no more turns, and returns the thread, which ends after the queued ones.
    pub(crate) fn close(self) -> JoinHandle<()> {
        self.thread
    }
}

fn serve(
    path: &std::path::Path,
    name: FileName,
    queue: &mpsc::Receiver<TurnJob>,
    done: impl Fn(FinishedTurn),
) {
    let mut disk: Option<Disk> = None;
    while let Ok(first) = queue.recv() {
        let jobs: Vec<TurnJob> = std::iter::once(first).chain(queue.try_iter()).collect();
        disk = disk.filter(Disk::is_in_place);
        let opened = match disk.take() {
            Some(open) => Ok(open),
            None => Disk::open(path),
        };
        let result = opened.and_then(|mut open| {
            let bytes = open.turn(jobs.iter().map(|job| &job.writes[..]))?;
            let block = |source| FileError::Block { path: path.into(), source };
            let contents = format::contents(name, bytes).map_err(block)?;
            let packed = jobs.iter().any(|job| job.is_served).then(|| Arc::from(packed::packed(bytes)));
            disk = Some(open);
            Ok((contents, packed))
        });
        match result {
            Ok((contents, packed)) => {
                let mut contents = Some(contents);
                for TurnJob { number, is_served, .. } in jobs {
                    let found = match (&packed, is_served) {
                        (Some(packed), true) => TurnContents::Packed(Arc::clone(packed)),
                        _ => TurnContents::Contents(Box::new(
                            contents.take().expect("a node has one turn at a time"),
                        )),
                    };
                    done(FinishedTurn { number, result: Ok(found) });
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                jobs.iter().for_each(|job| {
                    done(FinishedTurn { number: job.number, result: Err(Arc::clone(&error)) })
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
