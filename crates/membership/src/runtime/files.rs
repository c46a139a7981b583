//! The voting files that this node opens: its own turns at them, and those it executes for other
//! nodes.
//!
//! Each node has at most one turn under way at a file, and at most one more that waits: the
//! newest. A turn that exceeds its time limit counts as failed at once, but the next turn still
//! waits for its end. Files in the view have turns all the time. A file without a turn for a lease
//! time was removed or set aside, so its thread ends. The next turn opens it again.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use plexus_base::{Incarnation, Nanos, NodeId};

use super::{
    inbox::{Inbox, Input},
    priority,
};
use crate::{
    protocol::FileId,
    voting::{
        FileQueue, TurnJob,
        format::{ClusterId, FileName},
    },
};

/// The owner of a turn, and the number of the turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) turn: u64,
}

/// The turns of one node at a file.
#[derive(Default)]
struct Lane {
    /// The turn under way.
    running: Option<u64>,
    /// The waiting turn.
    waiting: Option<TurnJob>,
    /// The turn whose end is awaited, its owner and its time limit.
    awaited: Option<(u64, Owner, Nanos)>,
}

impl Lane {
    /// Adds a turn. Returns it if it must be submitted now.
    fn begin(&mut self, job: TurnJob, owner: Owner, until: Nanos) -> Option<TurnJob> {
        self.awaited = Some((job.number, owner, until));
        if self.running.is_some() {
            self.waiting = Some(job);
            return None;
        }
        self.running = Some(job.number);
        Some(job)
    }

    /// Ends the turn under way. Returns its owner, if still awaited, and the next turn to submit.
    fn ended(&mut self) -> (Option<Owner>, Option<TurnJob>) {
        let ended = self.running.take();
        let owner = self.awaited.filter(|(number, ..)| Some(*number) == ended).map(|(_, owner, _)| owner);
        if owner.is_some() {
            self.awaited = None;
        }
        let next = self.waiting.take();
        self.running = next.as_ref().map(|job| job.number);
        (owner, next)
    }

    /// Returns the owner of a turn that has exceeded its limit.
    fn give_up(&mut self, now: Nanos) -> Option<Owner> {
        let (number, owner, _) = self.awaited.take_if(|(.., until)| *until <= now)?;
        self.waiting.take_if(|job| job.number == number);
        Some(owner)
    }
}

struct Open {
    queue: FileQueue,
    lanes: BTreeMap<NodeId, Lane>,
    /// The time of the last submitted or ended turn.
    used: Nanos,
}

impl Open {
    fn is_idle(&self) -> bool {
        self.lanes.values().all(|lane| lane.running.is_none())
    }
}

/// The voting files that this node opens.
pub(super) struct Files {
    cluster: ClusterId,
    /// The time limit of a turn; a longer one renews no lease.
    limit: Nanos,
    /// The time without a turn after which a file is closed.
    unused: Nanos,
    inbox: Arc<Inbox>,
    paths: BTreeMap<FileId, PathBuf>,
    open: BTreeMap<FileId, Open>,
    last: u64,
}

impl Files {
    pub(super) fn new(
        cluster: ClusterId,
        [limit, unused]: [Nanos; 2],
        inbox: Arc<Inbox>,
        paths: BTreeMap<FileId, PathBuf>,
    ) -> Self {
        Self { cluster, limit, unused, inbox, paths, open: BTreeMap::new(), last: 0 }
    }

    /// Sets the path of a file unless it is known.
    pub(super) fn set_path(&mut self, file: FileId, path: PathBuf) {
        self.paths.entry(file).or_insert(path);
    }

    pub(super) fn path(&self, file: FileId) -> Option<&Path> {
        self.paths.get(&file).map(PathBuf::as_path)
    }

    /// Begins a turn, whose end arrives as [`Input::Turned`].
    pub(super) fn begin(
        &mut self,
        file: FileId,
        owner: Owner,
        is_served: bool,
        writes: Vec<(usize, Vec<u8>)>,
        now: Nanos,
    ) -> Result<(), String> {
        let open = match self.open.entry(file) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let path = self.paths.get(&file).ok_or("this node has no path for it")?;
                let (inbox, name) = (Arc::clone(&self.inbox), FileName { cluster: self.cluster, file });
                let urgent = || {
                    priority::raise();
                };
                let done = move |done| inbox.post(Input::Turned(file, done));
                let queue = FileQueue::start(path.clone(), name, urgent, done);
                let queue = queue.map_err(|error| format!("the system refuses a thread: {error}"))?;
                entry.insert(Open { queue, lanes: BTreeMap::new(), used: now })
            }
        };
        open.used = now;
        self.last += 1;
        let job = TurnJob { number: self.last, writes, is_served };
        let lane = open.lanes.entry(owner.node).or_default();
        if let Some(job) = lane.begin(job, owner, now + self.limit) {
            open.queue.submit(job);
        }
        Ok(())
    }

    /// Handles the end of a turn. Returns its owner unless it was given up.
    pub(super) fn ended(&mut self, file: FileId, number: u64, now: Nanos) -> Option<Owner> {
        let open = self.open.get_mut(&file)?;
        open.used = now;
        let lane = open.lanes.values_mut().find(|lane| lane.running == Some(number))?;
        let (owner, next) = lane.ended();
        if let Some(next) = next {
            open.queue.submit(next);
        }
        owner
    }

    /// Returns the turns that have exceeded their limit, and closes unused files.
    pub(super) fn give_up(&mut self, now: Nanos) -> Vec<(FileId, Owner)> {
        self.open.retain(|_, open| !open.is_idle() || now <= open.used + self.unused);
        let lanes = self
            .open
            .iter_mut()
            .flat_map(|(file, open)| open.lanes.values_mut().map(move |lane| (*file, lane)));
        lanes.filter_map(|(file, lane)| Some((file, lane.give_up(now)?))).collect()
    }

    /// Returns the time of the next [`Files::give_up`].
    pub(super) fn wake(&self) -> Option<Nanos> {
        let lanes = self.open.values().flat_map(|open| open.lanes.values());
        lanes.filter_map(|lane| lane.awaited.map(|(.., until)| until)).min()
    }

    /// Drops all waiting turns, and waits for the others at most until this time.
    pub(super) fn stop(&mut self, at_most: Nanos) {
        for lane in self.open.values_mut().flat_map(|open| open.lanes.values_mut()) {
            lane.waiting = None;
            lane.awaited.take_if(|(number, ..)| Some(*number) != lane.running);
            if let Some((.., until)) = &mut lane.awaited {
                *until = (*until).min(at_most);
            }
        }
    }

    /// Accepts no more turns. Returns the threads that can be joined, because their turns end in
    /// time.
    pub(super) fn close(self) -> Vec<JoinHandle<()>> {
        let stuck =
            |open: &Open| open.lanes.values().any(|lane| lane.running.is_some() && lane.awaited.is_none());
        let (_, sound): (Vec<Open>, Vec<Open>) = self.open.into_values().partition(stuck);
        sound.into_iter().map(|open| open.queue.close()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Nanos = Nanos(50);

    const LIMIT: Nanos = Nanos(30);

    fn owner(turn: u64) -> Owner {
        Owner { node: NodeId(1), incarnation: Incarnation(3), turn }
    }

    fn begin(lane: &mut Lane, number: u64) -> Option<u64> {
        let job = TurnJob { number, writes: Vec::new(), is_served: false };
        lane.begin(job, owner(number), Nanos(number * 10)).map(|job| job.number)
    }

    #[test]
    fn a_turn_that_is_given_up_is_still_ended_before_the_next() {
        let mut lane = Lane::default();
        assert_eq!(begin(&mut lane, 1), Some(1));
        assert_eq!(lane.give_up(Nanos(9)), None);
        assert_eq!(lane.give_up(Nanos(10)), Some(owner(1)));
        assert_eq!(begin(&mut lane, 2), None, "the first is at the disk");
        let (whose, next) = lane.ended();
        assert_eq!((whose, next.map(|job| job.number)), (None, Some(2)));
        let (whose, next) = lane.ended();
        assert!(whose == Some(owner(2)) && next.is_none() && lane.running.is_none());
    }

    #[test]
    fn a_waiting_turn_that_is_given_up_is_dropped() {
        let mut lane = Lane::default();
        assert_eq!(begin(&mut lane, 1), Some(1));
        assert_eq!(lane.give_up(LATE), Some(owner(1)));
        assert_eq!(begin(&mut lane, 2), None);
        assert_eq!(lane.give_up(LATE), Some(owner(2)));
        let (whose, next) = lane.ended();
        assert!(whose.is_none() && next.is_none(), "both were given up");
        assert_eq!(begin(&mut lane, 3), Some(3));
    }

    #[test]
    fn the_newest_waiting_turn_is_next() {
        let mut lane = Lane::default();
        begin(&mut lane, 1);
        begin(&mut lane, 2);
        begin(&mut lane, 3);
        let (whose, next) = lane.ended();
        assert_eq!((whose, next.map(|job| job.number)), (None, Some(3)));
    }

    /// Handles the end of the next turn, as the loop does.
    fn end(files: &mut Files, inbox: &Inbox, now: Nanos) -> Option<Owner> {
        loop {
            let input = inbox.take().pop_front();
            let Some(Input::Turned(file, done)) = input else {
                std::thread::yield_now();
                continue;
            };
            return files.ended(file, done.number, now);
        }
    }

    #[test]
    fn an_unused_file_is_closed_unless_a_turn_is_under_way() {
        let inbox = Arc::new(Inbox::create().unwrap());
        let file = FileId(7);
        let paths = BTreeMap::from([(file, PathBuf::from("/nowhere/at/all"))]);
        let mut files = Files::new(ClusterId(1), [LIMIT, LIMIT], Arc::clone(&inbox), paths);
        for (turn, began) in [(1, Nanos(0)), (2, Nanos(100))] {
            files.begin(file, owner(turn), false, Vec::new(), began).unwrap();
            assert_eq!(files.give_up(began + LIMIT + Nanos(1)), [(file, owner(turn))]);
            assert_eq!(files.open.len(), 1, "the turn may not have ended");
            let ended = began + LIMIT + Nanos(5);
            assert_eq!(end(&mut files, &inbox, ended), None);
            assert!(files.give_up(ended + LIMIT).is_empty() && files.open.len() == 1, "another may come");
            assert!(files.give_up(ended + LIMIT + Nanos(1)).is_empty() && files.open.is_empty());
        }
        assert!(files.close().is_empty());
    }
}
