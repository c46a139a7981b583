//! How threads of a node use groups.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc,
    },
    time::{Duration, Instant},
};

use plexus_base::WorkerId;
use plexus_interconnect::Reply;

use super::{
    GroupService,
    desk::{GroupTask, MOST_UNREAD},
    protocol::{Deed, Happened, Name, Refused, Who, Why},
};
use crate::subsystem::WorkerPort;

/// The worker that runs the groups of a node.
const WORKER: WorkerId = WorkerId(0);

/// Why something with a group came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GroupError {
    /// It was not taken.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It was taken, and is not possible.
    #[error(transparent)]
    Impossible(#[from] Why),
    /// A member died before all had come to the barrier.
    #[error("a client of {} died before all had come to the barrier", .0.node)]
    Failed(Who),
    /// The node has stopped, and all its groups with it.
    #[error("it is no member any more: the node has stopped")]
    Stopped,
    /// This member did not read what it was told; it can join again.
    #[error("it is no member any more: {MOST_UNREAD} things that it was told were not read")]
    PutOut,
}

/// The groups of a node. Cheap to clone.
#[derive(Clone)]
pub struct Groups(Arc<Inner>);

struct Inner {
    port: Arc<dyn WorkerPort<GroupService>>,
    /// Numbers for clients, none given twice.
    next: AtomicU64,
}

impl Groups {
    /// The groups that the service behind `port` runs.
    #[must_use]
    pub fn new(port: Arc<dyn WorkerPort<GroupService>>) -> Self {
        Self(Arc::new(Inner { port, next: AtomicU64::new(1) }))
    }

    /// Joins a group, and waits until that has its place in the order of the group.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn join(&self, name: Name) -> Result<Group, GroupError> {
        let client = self.0.next.fetch_add(1, Relaxed);
        let (tell, told) = mpsc::sync_channel(MOST_UNREAD);
        let put_out = Arc::new(AtomicBool::new(false));
        let mut group = Group {
            groups: self.clone(),
            client,
            name,
            told,
            put_out: Arc::clone(&put_out),
            unread: VecDeque::new(),
            is_member: true,
        };
        group.asks(|group, taken| GroupTask::Join { client, group, tell, put_out, taken })?;
        let first = group.told.recv().map_err(|_| group.over())?;
        if let Happened::Refused(why) = first {
            group.is_member = false;
            return Err(why.into());
        }
        group.unread.push_back(first);
        Ok(group)
    }
}

/// A member of a group; dropped, it dies as one that failed.
pub struct Group {
    groups: Groups,
    client: u64,
    name: Name,
    told: mpsc::Receiver<Happened>,
    /// Why nothing more comes: it did not read, or else the node has stopped.
    put_out: Arc<AtomicBool>,
    /// What came while it waited for something else.
    unread: VecDeque<Happened>,
    is_member: bool,
}

impl Group {
    /// Its number at its node.
    #[must_use]
    pub fn client(&self) -> u64 {
        self.client
    }

    /// Says something to all members, itself among them; they are told some time later.
    ///
    /// # Errors
    /// It was not taken.
    pub fn send(&self, bytes: &[u8]) -> Result<(), GroupError> {
        self.does(Deed::Send(bytes.into()))
    }

    /// Waits for the next thing that it is told.
    ///
    /// # Errors
    /// It is no member any more.
    pub fn next_event(&mut self) -> Result<Happened, GroupError> {
        match self.unread.pop_front() {
            Some(what) => Ok(what),
            None => self.told.recv().map_err(|_| self.over()),
        }
    }

    /// Waits for the next thing that it is told, for no longer than `limit`.
    ///
    /// # Errors
    /// It is no member any more.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Happened>, GroupError> {
        if let Some(what) = self.unread.pop_front() {
            return Ok(Some(what));
        }
        match self.told.recv_timeout(limit) {
            Ok(what) => Ok(Some(what)),
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.over()),
        }
    }

    /// Has come to a barrier, without waiting: it is told when all members have and are `least` or more ([`Happened::Passed`]), or, where one who
    /// waits is `strict`, when a member has died before.
    ///
    /// # Errors
    /// It was not taken.
    pub fn arrive(&self, barrier: Name, least: u16, strict: bool) -> Result<(), GroupError> {
        self.does(Deed::Arrive { barrier, least, strict })
    }

    /// Waits until all members have come here. `strict`: it fails if one of them dies first. What comes in between can be read afterwards.
    ///
    /// # Errors
    /// It failed, or was not possible.
    pub fn barrier(&mut self, barrier: Name, strict: bool) -> Result<(), GroupError> {
        self.arrive(barrier.clone(), 1, strict)?;
        loop {
            match self.told.recv().map_err(|_| self.over())? {
                Happened::Passed(passed) if passed == barrier => return Ok(()),
                Happened::Failed(failed, who) if failed == barrier => return Err(GroupError::Failed(who)),
                Happened::Refused(why) => return Err(why.into()),
                other if self.unread.len() < MOST_UNREAD => self.unread.push_back(other),
                _ => {
                    // As one that is put out for what it has not read.
                    self.put_out.store(true, Release);
                    self.goes(true);
                    return Err(self.over());
                }
            }
        }
    }

    /// Leaves in peace, and waits until that has its place in the order of the group, for no longer than `limit`.
    pub fn leave(mut self, limit: Duration) {
        self.goes(false);
        let until = Instant::now() + limit;
        while let Ok(what) = self.told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if what == Happened::Left {
                return;
            }
        }
    }

    fn does(&self, deed: Deed) -> Result<(), GroupError> {
        if !self.is_member {
            return Err(self.over());
        }
        let client = self.client;
        self.asks(|group, taken| GroupTask::Do { client, group, deed, taken })
    }

    fn asks(
        &self,
        task: impl FnOnce(Name, Reply<Result<(), Refused>>) -> GroupTask,
    ) -> Result<(), GroupError> {
        let (taken, answer) = Reply::channel();
        self.groups.0.port.submit(WORKER, task(self.name.clone(), taken));
        Ok(answer.recv().map_err(|_| self.over())??)
    }

    /// Why it is told nothing more, and nothing that it does is taken.
    fn over(&self) -> GroupError {
        match self.put_out.load(Acquire) {
            true => GroupError::PutOut,
            false => GroupError::Stopped,
        }
    }

    fn goes(&mut self, died: bool) {
        if std::mem::take(&mut self.is_member) {
            let (client, group) = (self.client, self.name.clone());
            self.groups.0.port.submit(WORKER, GroupTask::Leave { client, group, died });
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.goes(true);
    }
}
