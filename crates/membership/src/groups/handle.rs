//! The handle through which threads of a node use groups.

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
use plexus_interconnect::{Answer, Reply};

use super::{
    GroupService,
    clients::{GroupTask, MOST_UNREAD},
    protocol::{Deed, GroupMember, GroupRefusal, Happened, Name, Refused},
};
use crate::subsystem::WorkerPort;

/// The worker that runs the groups of a node.
const WORKER: WorkerId = WorkerId(0);

/// The reason why a group operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GroupError {
    /// The request was not accepted.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The request was accepted and is not possible.
    #[error(transparent)]
    Impossible(#[from] GroupRefusal),
    /// A member died before all members had come to the barrier.
    #[error("a client of {} died before all had come to the barrier", .0.node)]
    Failed(GroupMember),
    /// The node has stopped, and all its groups with it.
    #[error("the client is no longer a member: the node has stopped")]
    Stopped,
    /// This member was removed because it did not read its events; it can join again.
    #[error("the client is no longer a member: it did not read {MOST_UNREAD} events; join the group again")]
    Removed,
}

/// The groups of a node. It is cheap to clone.
#[derive(Clone)]
pub struct Groups(Arc<Inner>);

struct Inner {
    port: Arc<dyn WorkerPort<GroupService>>,
    /// The next client number; each is used once.
    next: AtomicU64,
}

impl Groups {
    /// Creates the handle for the groups that the service behind `port` runs.
    #[must_use]
    pub fn new(port: Arc<dyn WorkerPort<GroupService>>) -> Self {
        Self(Arc::new(Inner { port, next: AtomicU64::new(1) }))
    }

    /// Joins a group and waits until the join has its place in the order of the group.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn join(&self, name: Name) -> Result<Group, GroupError> {
        let client = self.0.next.fetch_add(1, Relaxed);
        let (tell, told) = mpsc::sync_channel(MOST_UNREAD);
        let removed = Arc::new(AtomicBool::new(false));
        let mut group = Group {
            groups: self.clone(),
            client,
            name,
            told,
            removed: Arc::clone(&removed),
            unread: VecDeque::new(),
            is_member: true,
        };
        let tell = Box::new(move |what| tell.try_send(what).is_ok());
        group.asks(|group, taken| GroupTask::Join { client, group, tell, removed, taken })?;
        let first = group.told.recv().map_err(|_| group.over())?;
        if let Happened::Refused(why) = first {
            group.is_member = false;
            return Err(why.into());
        }
        group.unread.push_back(first);
        Ok(group)
    }

    /// Joins a group and waits until the join has its place in the order of the group. `act` gets
    /// all later events, on the worker: it must be quick. It is dropped when no more events come.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn join_with(
        &self,
        name: Name,
        mut act: impl FnMut(Happened) + Send + 'static,
    ) -> Result<GroupSender, GroupError> {
        let client = self.0.next.fetch_add(1, Relaxed);
        let ((taken, is_taken), (joined, first)) = (Reply::new(), Reply::new());
        let mut joined = Some(joined);
        let tell = Box::new(move |what| {
            match joined.take() {
                Some(joined) => joined.send(what),
                None => act(what),
            }
            true
        });
        let (group, removed) = (name.clone(), Arc::default());
        self.0.port.submit(WORKER, GroupTask::Join { client, group, tell, removed, taken });
        is_taken.wait().ok_or(GroupError::Stopped)??;
        let sender = GroupSender { groups: self.clone(), client, name };
        match first.wait().ok_or(GroupError::Stopped)? {
            Happened::Refused(why) => Err(why.into()),
            _ => Ok(sender),
        }
    }
}

/// A membership in a group whose events go to a function. Dropping it counts as the death of the
/// member.
pub struct GroupSender {
    groups: Groups,
    client: u64,
    name: Name,
}

impl GroupSender {
    /// Sends a message to all members, including this one, which get it later. The answer says
    /// whether it was accepted; there is none when the node has stopped.
    #[must_use]
    pub fn send(&self, bytes: &[u8]) -> Answer<Result<(), Refused>> {
        let (taken, answer) = Reply::new();
        let (client, group, deed) = (self.client, self.name.clone(), Deed::Send(bytes.into()));
        self.groups.0.port.submit(WORKER, GroupTask::Do { client, group, deed, taken });
        answer
    }
}

impl Drop for GroupSender {
    fn drop(&mut self) {
        let (client, group) = (self.client, self.name.clone());
        self.groups.0.port.submit(WORKER, GroupTask::Leave { client, group, died: true });
    }
}

/// A membership in a group. Dropping it counts as the death of the member.
pub struct Group {
    groups: Groups,
    client: u64,
    name: Name,
    told: mpsc::Receiver<Happened>,
    /// The reason why no more events come: true if the member did not read, false if the node has
    /// stopped.
    removed: Arc<AtomicBool>,
    /// Events that came while it waited for another one.
    unread: VecDeque<Happened>,
    is_member: bool,
}

impl Group {
    /// Returns the number of the client on its node.
    #[must_use]
    pub fn client(&self) -> u64 {
        self.client
    }

    /// Sends a message to all members, including this one, which get it later.
    ///
    /// # Errors
    /// The message was not accepted.
    pub fn send(&self, bytes: &[u8]) -> Result<(), GroupError> {
        self.does(Deed::Send(bytes.into()))
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// The client is no longer a member.
    pub fn next_event(&mut self) -> Result<Happened, GroupError> {
        match self.unread.pop_front() {
            Some(what) => Ok(what),
            None => self.told.recv().map_err(|_| self.over()),
        }
    }

    /// Waits for the next event for at most `limit`.
    ///
    /// # Errors
    /// The client is no longer a member.
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

    /// Arrives at a barrier without waiting. [`Happened::Passed`] follows when all members, and at
    /// least `least`, have arrived. [`Happened::Refused`] follows if waiting members require
    /// another number. If a waiting member is `strict`, the barrier fails when a member dies
    /// before.
    ///
    /// # Errors
    /// The request was not accepted.
    pub fn arrive(&self, barrier: Name, least: u16, strict: bool) -> Result<(), GroupError> {
        self.does(Deed::Arrive { barrier, least, strict })
    }

    /// Waits until all members have arrived at the barrier. A `strict` barrier fails if a member
    /// dies first. Other events of that time can be read afterwards.
    ///
    /// # Errors
    /// The barrier failed, or was not possible.
    pub fn barrier(&mut self, barrier: Name, strict: bool) -> Result<(), GroupError> {
        self.arrive(barrier.clone(), 1, strict)?;
        loop {
            match self.told.recv().map_err(|_| self.over())? {
                Happened::Passed(passed) if passed == barrier => return Ok(()),
                Happened::Failed(failed, who) if failed == barrier => return Err(GroupError::Failed(who)),
                Happened::Refused(why) => return Err(why.into()),
                other if self.unread.len() < MOST_UNREAD => self.unread.push_back(other),
                _ => {
                    // The member has too many unread events, like one that does not read.
                    self.removed.store(true, Release);
                    self.goes(true);
                    return Err(self.over());
                }
            }
        }
    }

    /// Leaves the group and waits until that has its place in the order of the group, for at most
    /// `limit`.
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
        let (taken, answer) = Reply::new();
        self.groups.0.port.submit(WORKER, task(self.name.clone(), taken));
        Ok(answer.wait().ok_or_else(|| self.over())??)
    }

    /// Returns the reason why no more events come and no request is accepted.
    fn over(&self) -> GroupError {
        match self.removed.load(Acquire) {
            true => GroupError::Removed,
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
