//! What the registry knows of the stream of this node, of those of others, and of the disks.

use std::{
    sync::{
        Arc,
        atomic::Ordering::{AcqRel, Acquire, Release},
    },
    time::Instant,
};

use plexus_base::{Epoch, Incarnation, NodeId};

use super::{MissingStream, NodeRedo, OPEN_AGAIN, REFUSE_AFTER, Shared};
use crate::{
    recovery::{
        DeadStream, PreparedStream, RedoFileError, StreamToGiveUp, note_closed, older_images, open_disks,
    },
    stream::{driver::RedoStream, protocol::RoomEvent},
};

/// The own stream before it takes changes.
pub(super) enum UnopenedStream {
    Prepared(Box<PreparedStream>),
    /// It is open, and the registry does not know it yet.
    Unknown(RedoStream, String),
}

/// The reason why the stream takes no changes yet.
enum OpenFailure {
    /// A later attempt continues with this state.
    Later(Option<UnopenedStream>, String),
    /// The stream has failed.
    Failed(String),
}

impl NodeRedo {
    /// Returns true if streams and disks are those that the registry knows.
    #[must_use]
    pub fn has_compared(&self) -> bool {
        self.shared.ledger.is_none() || self.shared.has_compared.load(Acquire)
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
    /// Opens the stream. If there is none yet, or the registry cannot note that it is open, this is
    /// tried again.
    pub(super) fn open(self: &Arc<Self>, unopened: &mut Option<UnopenedStream>) {
        let find = || {
            let (me, incarnation) = self.me;
            let found = self.files.prepare_later(me, &self.node_name, incarnation, self.geometry, &|_| false);
            found.map(Box::new).map(UnopenedStream::Prepared)
        };
        let found = unopened.take().map_or_else(find, Ok);
        let found = found.map_err(|why| OpenFailure::Later(None, why.to_string()));
        match found.and_then(|found| self.opened(found)) {
            Ok((stream, name)) => {
                self.durable.fetch_max(stream.durable().0, AcqRel);
                let is_first = self.name.set(name).is_ok() && self.stream.set(stream).is_ok();
                debug_assert!(is_first, "only this thread opens the stream");
                self.room.handle(RoomEvent::Refuse(false), || self.fill());
                self.lock().missing = None;
            }
            Err(OpenFailure::Later(found, why)) => {
                *unopened = found;
                let mut jobs = self.lock();
                let now = Instant::now();
                let since = jobs.missing.as_ref().map(|missing| missing.since);
                if since.is_none() {
                    tracing::warn!("changes wait for a redo stream: {why}");
                }
                let since = since.unwrap_or(now);
                jobs.missing = Some(MissingStream { why, since, at: now + OPEN_AGAIN });
                drop(jobs);
                self.room.handle(RoomEvent::Refuse(since.elapsed() >= REFUSE_AFTER), || None);
            }
            Err(OpenFailure::Failed(why)) => self.fail(&why),
        }
    }

    /// Opens the stream, and notes that in the registry before the first change.
    fn opened(self: &Arc<Self>, unopened: UnopenedStream) -> Result<(RedoStream, String), OpenFailure> {
        let is_void = || self.lock().is_ended;
        let (stream, name) = match unopened {
            UnopenedStream::Unknown(stream, name) => (stream, name),
            UnopenedStream::Prepared(mut prepared) => {
                if let Some(ledger) = &self.ledger {
                    let known = match ledger.read(&is_void) {
                        Ok(known) => known,
                        Err(why) => {
                            return Err(OpenFailure::Later(Some(UnopenedStream::Prepared(prepared)), why));
                        }
                    };
                    let beside = self.files.avoid_lost_place(*prepared, &known);
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
            Some(Err(why)) => {
                Err(OpenFailure::Later(Some(UnopenedStream::Unknown(stream, name)), why.to_string()))
            }
            _ => Ok((stream, name)),
        }
    }

    /// Compares streams and disks with the entries of the registry, unless all members of the last
    /// view in which this was done are still there.
    pub(super) fn compare(
        &self,
        epoch: Epoch,
        members: &[(NodeId, Incarnation)],
        dead: &[DeadStream],
    ) -> Result<(), RedoFileError> {
        let Some(ledger) = &self.ledger else { return Ok(()) };
        if self.lock().must_compare {
            let is_void = || {
                let jobs = self.lock();
                jobs.is_ended || jobs.epoch != epoch
            };
            // First, so that the files are at least as new.
            let known = ledger.read(&is_void).map_err(RedoFileError::Registry)?;
            self.files.compare(&known, members, dead, &**ledger, &is_void)?;
            let has_compared = self.has_compared.load(Acquire);
            let faults = open_disks(&self.group, &**ledger, self.me, members, has_compared, &is_void)?;
            if !faults.is_empty() {
                return Err(RedoFileError::OldImages(older_images(&faults)));
            }
            self.has_compared.store(true, Release);
        }
        Ok(())
    }
}
