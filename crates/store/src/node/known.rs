//! What the registry knows of the stream of this node, of those of others, and of the disks.

use std::{
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering::AcqRel},
    time::Instant,
};

use plexus_base::{Epoch, Incarnation, NodeId, WorkerId};

use super::{ATTEMPTS, NodeRedo, OPEN_AGAIN, Shared};
use crate::{
    recovery::{
        DeadStream, PreparedStream, RedoFileError, StreamToGiveUp, note_closed, older_images, open_disks,
    },
    stream::{driver::RedoStream, protocol::RoomEvent},
};

/// The own stream before it takes changes.
pub(super) enum Opening {
    Prepared(Box<PreparedStream>),
    /// It is open, and the registry does not know it yet.
    Unknown(RedoStream, String),
}

/// The reason why the stream takes no changes yet.
enum OpenFailure {
    /// A later attempt continues with this state.
    Later(Option<Opening>, String),
    /// The stream has failed.
    Failed(String),
}

impl NodeRedo {
    /// Returns true if streams and disks are those that the registry knows.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.shared.ledger.is_none() || !self.shared.passed().is_empty()
    }

    /// Notes in the registry that no record of the stream is needed any more. The nodes are still
    /// members, so that the registry can be changed.
    pub fn note_closed(&self, is_void: &dyn Fn() -> bool) {
        let Shared { ledger, name, me, .. } = &*self.shared;
        if let (Some(ledger), Some(name)) = (ledger, name.get())
            && let Err(why) = note_closed(&**ledger, name, me.1, is_void)
        {
            tracing::warn!("{name}: the registry does not know yet that this redo stream is closed: {why}");
        }
    }

    /// Describes a stream that is to be given up, and gives it up if `accepts`.
    ///
    /// # Errors
    /// See [`to_give_up`](crate::recovery::RedoFiles::to_give_up) and
    /// [`give_up`](crate::recovery::RedoFiles::give_up).
    pub fn give_up(&self, name: &str, accepts: bool) -> Result<StreamToGiveUp, RedoFileError> {
        let Shared { ledger, files, .. } = &*self.shared;
        let ledger = ledger.as_ref().ok_or_else(|| RedoFileError::Registry("there is no registry".into()))?;
        let is_void = || self.shared.lock().is_ended;
        let members = self.shared.lock().members.clone();
        let stream = files.to_give_up(name, &**ledger, &members, &is_void)?;
        if accepts && !stream.is_over {
            files.give_up(&stream, &**ledger, &is_void)?;
        }
        Ok(stream)
    }
}

impl Shared {
    fn passed(&self) -> MutexGuard<'_, Vec<(NodeId, Incarnation)>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the stream. If there is none yet, or the registry cannot note that it is open, this is
    /// tried again.
    pub(super) fn open(self: &Arc<Self>) {
        let opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner).take();
        let found = opening.map_or_else(|| (self.find)(&self.files).map(Box::new).map(Opening::Prepared), Ok);
        let found = found.map_err(|why| OpenFailure::Later(None, why.to_string()));
        match found.and_then(|opening| self.opened(opening)) {
            Ok((stream, name)) => {
                self.lock().missing = None;
                self.room.handle(RoomEvent::Refuse(false), || None);
                self.durable.fetch_max(stream.durable().0, AcqRel);
                let is_first = self.name.set(name).is_ok() && self.stream.set(stream).is_ok();
                debug_assert!(is_first, "only this thread opens the stream");
                self.room.handle(RoomEvent::Moved, || self.fill());
                (0..self.workers).for_each(|worker| self.flush(WorkerId(worker)));
            }
            Err(OpenFailure::Later(opening, why)) => {
                *self.opening.lock().unwrap_or_else(PoisonError::into_inner) = opening;
                let mut jobs = self.lock();
                let attempts = jobs.missing.as_ref().map_or(0, |(_, attempts, _)| *attempts) + 1;
                if attempts == 1 {
                    tracing::warn!("changes wait for a redo stream: {why}");
                }
                jobs.missing = Some((why, attempts, Instant::now() + OPEN_AGAIN));
                drop(jobs);
                self.room.handle(RoomEvent::Refuse(attempts >= ATTEMPTS), || None);
            }
            Err(OpenFailure::Failed(why)) => self.fail(&why),
        }
    }

    /// Opens the stream, and notes that in the registry before the first change.
    fn opened(self: &Arc<Self>, opening: Opening) -> Result<(RedoStream, String), OpenFailure> {
        let is_void = || self.lock().is_ended;
        let (stream, name) = match opening {
            Opening::Unknown(stream, name) => (stream, name),
            Opening::Prepared(mut prepared) => {
                if let Some(ledger) = &self.ledger {
                    let known = match ledger.read(&is_void) {
                        Ok(known) => known,
                        Err(why) => return Err(OpenFailure::Later(Some(Opening::Prepared(prepared)), why)),
                    };
                    let beside = self.files.beside_lost(*prepared, &known);
                    *prepared = beside.map_err(|why| OpenFailure::Later(None, why.to_string()))?;
                }
                let (told, name) = (Arc::downgrade(self), prepared.file_name());
                let told = move |progress| {
                    if let Some(shared) = told.upgrade() {
                        shared.progress(progress);
                    }
                };
                (prepared.open(told).map_err(|why| OpenFailure::Failed(why.to_string()))?, name)
            }
        };
        match self.ledger.as_ref().map(|ledger| self.files.note_open(&**ledger, &name, &is_void)) {
            Some(Err(why)) => Err(OpenFailure::Later(Some(Opening::Unknown(stream, name)), why.to_string())),
            _ => Ok((stream, name)),
        }
    }

    /// Compares streams and disks with what the registry knows of them. A view that only has more
    /// members than one in which this was done needs no comparison.
    pub(super) fn compare(
        &self,
        epoch: Epoch,
        members: &[(NodeId, Incarnation)],
        dead: &[DeadStream],
    ) -> Result<(), RedoFileError> {
        let Some(ledger) = &self.ledger else { return Ok(()) };
        let passed = self.passed().clone();
        if passed.is_empty() || passed.iter().any(|member| !members.contains(member)) {
            let is_void = || {
                let jobs = self.lock();
                jobs.is_ended || jobs.epoch != epoch
            };
            // First, so that the files are at least as new.
            let known = ledger.read(&is_void).map_err(RedoFileError::Registry)?;
            self.files.compare(&known, members, dead, &**ledger, &is_void)?;
            let faults = open_disks(&self.group, &**ledger, self.me, members, !passed.is_empty(), &is_void)
                .map_err(RedoFileError::Registry)?;
            if !faults.is_empty() {
                return Err(RedoFileError::OldImages(older_images(&faults)));
            }
        }
        *self.passed() = members.to_vec();
        Ok(())
    }
}
