//! A thread for each voting file that this node opens: a disk that hangs holds up nobody but who needs that file.
//!
//! Turns are taken in the order in which they came. Those that came while the thread was at the disk, of several nodes where the file is
//! served, are taken together: all that they write, made durable once where it must be, read once. That is each of them in its order, for what
//! each reads was read after what it wrote was written.

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
pub(crate) struct Job {
    /// Comes back with what became of it.
    pub(crate) number: u64,
    /// By number of the block.
    pub(crate) writes: Vec<(usize, Vec<u8>)>,
    /// Whether another node has asked for it.
    pub(crate) is_served: bool,
}

/// What a turn has read.
pub(crate) enum Found {
    /// For this node.
    Contents(Box<Contents>),
    /// For another.
    Packed(Arc<[u8]>),
}

/// A turn that is over.
pub(crate) struct Done {
    pub(crate) number: u64,
    pub(crate) result: Result<Found, Arc<FileError>>,
}

pub(crate) struct Desk {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

impl Desk {
    /// Opens the file when the first turn comes, and again when one has failed. `urgent` is called once on the thread, `done` for each turn.
    pub(crate) fn start(
        path: PathBuf,
        name: FileName,
        urgent: impl FnOnce() + Send + 'static,
        done: impl Fn(Done) + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let thread = thread::Builder::new().name(format!("plexus-vote-{:04x}", name.file.0 as u16));
        let thread = thread.spawn(move || {
            urgent();
            serve(&path, name, &queue, done);
        })?;
        Ok(Self { jobs, thread })
    }

    pub(crate) fn submit(&self, job: Job) {
        self.jobs.send(job).expect("the thread goes on until the desk is closed");
    }

    /// No more turns; what to wait for until those that came are over.
    pub(crate) fn close(self) -> JoinHandle<()> {
        self.thread
    }
}

fn serve(path: &std::path::Path, name: FileName, queue: &mpsc::Receiver<Job>, done: impl Fn(Done)) {
    let mut disk: Option<Disk> = None;
    while let Ok(first) = queue.recv() {
        let jobs: Vec<Job> = std::iter::once(first).chain(queue.try_iter()).collect();
        disk = disk.filter(Disk::is_in_place);
        let opened = match disk.take() {
            Some(open) => Ok(open),
            None => Disk::open(path),
        };
        let result = opened.and_then(|mut open| {
            let bytes = open.turn(jobs.iter().flat_map(|job| &job.writes))?;
            let block = |source| FileError::Block { path: path.into(), source };
            let contents = format::contents(name, bytes).map_err(block)?;
            let packed = jobs.iter().any(|job| job.is_served).then(|| Arc::from(packed::packed(bytes)));
            disk = Some(open);
            Ok((contents, packed))
        });
        match result {
            Ok((contents, packed)) => {
                let mut contents = Some(contents);
                for Job { number, is_served, .. } in jobs {
                    let found = match (&packed, is_served) {
                        (Some(packed), true) => Found::Packed(Arc::clone(packed)),
                        _ => {
                            Found::Contents(Box::new(contents.take().expect("a node has one turn at a time")))
                        }
                    };
                    done(Done { number, result: Ok(found) });
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                jobs.iter()
                    .for_each(|job| done(Done { number: job.number, result: Err(Arc::clone(&error)) }));
            }
        }
    }
}

#[cfg(test)]
mod tests;
