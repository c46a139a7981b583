//! Locks of programs: each belongs to a session of its program and is released with the program.
//!
//! A program numbers its own locks. It requests a lock or a conversion and gets one answer, and has
//! at most one request for a lock at a time. The release of a lock is answered only on request. If
//! such a release writes the value block, the lock is first converted to NL with that value, and
//! the program is answered when the master has answered. A request that is cancelled by the release
//! is answered at once. Our client library never sends an invalid request (a number in use, a value
//! that it may not write), so a program that does is disconnected. A request beyond the limit of
//! locks is refused.

use std::collections::BTreeMap;

use plexus_base::locks::{Grant, LockRefusal, Mode, VALUE_LEN};
use plexus_client::wire::lock::{self, ConvertRequest, encode_grant, unlock_value};
use plexus_locks::{
    LockError, OF_PROGRAMS, ProgramNotice,
    protocol::{Event, LockId, LockRequest, Name, NewLock, Owner, RequestKind},
};

use super::{
    Checked, ClientId, Head, ProgramCore, ProgramDriver, ProgramMessage, Status, Use, Verb, Violation, limits,
};

/// The program of each lock, for all programs.
#[derive(Default)]
pub(super) struct Locks {
    whose: BTreeMap<LockId, (ClientId, u32)>,
    last: u64,
}

impl Locks {
    pub(super) fn len(&self) -> usize {
        self.whose.len()
    }
}

/// A lock of a program.
pub(super) struct Lock {
    id: LockId,
    held: Option<Mode>,
    /// The pending request: its number and mode.
    asked: Option<(u64, Mode)>,
    /// The release that has begun, if the program waits for it.
    release: Option<Release>,
}

/// A release that writes a value and is then answered.
#[derive(Clone, Copy)]
struct Release {
    id: u64,
    value: [u8; VALUE_LEN],
    /// True if the pending request is the conversion that writes the value, false if it is an
    /// earlier one.
    writes: bool,
}

impl Lock {
    /// Returns true if the program may write the value block, as far as it knows.
    fn may_write(&self) -> bool {
        let asked = self.asked.map(|(_, mode)| mode);
        self.held.is_some_and(|held| held.usable(asked).writes())
    }
}

impl Lock {
    /// Converts the lock to NL with the value of its release.
    fn write_and_release(&mut self, world: &mut impl ProgramDriver) {
        let Some(release) = &mut self.release else { return };
        release.writes = true;
        self.asked = Some((release.id, Mode::NL));
        let kind = RequestKind::Conversion { value: Some(release.value) };
        let timeout = world.timeout(lock::FOREVER);
        world.lock(Event::Request(LockRequest { lock: self.id, mode: Mode::NL, timeout, kind }));
    }
}

/// Returns the lock owner for a session of a program.
fn owner(program: ClientId, session: u32) -> Owner {
    Owner(OF_PROGRAMS | u64::from(program.0) << 31 | u64::from(session))
}

impl ProgramCore {
    /// Handles a program's request for a lock.
    pub(super) fn lock(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head, payload } = message;
        let lock::NewLockMessage { mode, notify, session, start_time, timeout_ns, name } =
            lock::NewLockMessage::decode(payload).map_err(|_| Violation("a malformed lock request"))?;
        let name = Name::new(name).map_err(|_| Violation("a lock without a name"))?;
        if name.partition().worker(self.place.workers).0 != self.place.worker {
            return Err(Violation("a lock of another worker"));
        }
        let program = self.programs.get_mut(&from).ok_or(Violation("the program is not attached"))?;
        if program.locks.contains_key(&head.port) {
            return Err(Violation("two locks of one number"));
        }
        if program.locks.len() >= limits::MAX_LOCKS {
            world.tell(from, refusal(head, LockRefusal::TooManyLocks), &[]);
            return Ok(());
        }
        self.locks.last += 1;
        let lock = LockId(OF_PROGRAMS | u64::from(self.place.worker) << 56 | self.locks.last);
        let owner = owner(from, session);
        let asked = Some((head.id, mode));
        program.locks.insert(head.port, Lock { id: lock, held: None, asked, release: None });
        self.locks.whose.insert(lock, (from, head.port));
        let timeout = world.timeout(timeout_ns);
        let kind = RequestKind::New(NewLock { owner, start_time, name, notify });
        world.lock(Event::Request(LockRequest { lock, mode, timeout, kind }));
        Ok(())
    }

    /// Handles a program's request to convert a lock.
    pub(super) fn convert(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head, payload } = message;
        let ConvertRequest { mode, timeout_ns, value } =
            ConvertRequest::decode(payload).map_err(|_| Violation("a malformed conversion request"))?;
        let Some(lock) = self.mine(from)?.locks.get_mut(&head.port) else {
            return Err(Violation("a conversion of a lock that it does not have"));
        };
        let Some(held) = lock.held.filter(|_| lock.asked.is_none()) else {
            return Err(Violation("a conversion of a lock that it waits for"));
        };
        if value.is_some() && !held.writes_to(mode) {
            return Err(Violation("a value without the right to write it"));
        }
        lock.asked = Some((head.id, mode));
        let lock = lock.id;
        let timeout = world.timeout(timeout_ns);
        let kind = RequestKind::Conversion { value };
        world.lock(Event::Request(LockRequest { lock, mode, timeout, kind }));
        Ok(())
    }

    /// Releases a lock of a program, or cancels the request for it.
    pub(super) fn unlock(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head, payload } = message;
        let value: Option<[u8; VALUE_LEN]> =
            unlock_value(payload).map_err(|_| Violation("a value of the wrong length"))?;
        // The lock is gone already if its request was refused meanwhile.
        if let Some(lock) = self.mine(from)?.locks.get_mut(&head.port) {
            if lock.release.is_some() {
                return Err(Violation("a second release of a lock"));
            }
            if value.is_some() && !lock.may_write() {
                return Err(Violation("a value without the right to write it"));
            }
            let pending = lock.asked.map(|(id, _)| id);
            if let Some(id) = pending {
                world.tell(from, refusal(Head { id, ..head }, LockRefusal::Cancelled), &[]);
            }
            if let Some(value) = value.filter(|_| head.id != 0) {
                lock.release = Some(Release { id: head.id, value, writes: false });
                match pending {
                    Some(_) => world.lock(Event::Cancel { lock: lock.id }),
                    None => lock.write_and_release(world),
                }
                return Ok(());
            }
            let lock = lock.id;
            self.mine(from)?.locks.remove(&head.port);
            self.locks.whose.remove(&lock);
            world.lock(Event::Unlock { lock, value });
        }
        if head.id != 0 {
            world.tell(from, Head { port: head.port, ..Head::done(Use::Locks, head.id, Status::Ok) }, &[]);
        }
        Ok(())
    }

    /// Cancels a program's request; the program still gets an answer.
    pub(super) fn cancel_lock(
        &mut self,
        world: &mut impl ProgramDriver,
        from: ClientId,
        head: Head,
    ) -> Checked {
        if let Some(lock) = self.mine(from)?.locks.get(&head.port) {
            world.lock(Event::Cancel { lock: lock.id });
        }
        Ok(())
    }

    /// Passes on a notice of the lock manager about one lock of a program, or about all of them.
    pub(crate) fn lock_notice(&mut self, world: &mut impl ProgramDriver, notice: ProgramNotice) {
        match notice {
            ProgramNotice::Answer(lock, answer) => self.lock_answered(world, lock, answer),
            ProgramNotice::Wanted(lock, mode) => {
                if let Some((program, port)) = self.locks.whose.get(&lock) {
                    let head =
                        Head { port: *port, value: mode as u64, ..Head::new(Verb::Wanted, Use::Locks) };
                    world.tell(*program, head, &[]);
                }
            }
            ProgramNotice::Lost => {
                for program in self.programs.keys() {
                    world.tell(*program, Head::new(Verb::Lost, Use::Locks), &[]);
                }
            }
        }
    }

    fn lock_answered(
        &mut self,
        world: &mut impl ProgramDriver,
        id: LockId,
        answer: Result<Grant, LockError>,
    ) {
        // A lock that was released meanwhile got its answer then.
        let Some((program, port)) = self.locks.whose.get(&id).copied() else { return };
        let Some(locks) = self.programs.get_mut(&program).map(|program| &mut program.locks) else { return };
        let Some(lock) = locks.get_mut(&port) else { return };
        let Some((id, _)) = lock.asked.take() else { return };
        if let Some(Release { id, value, writes }) = lock.release {
            let stopped = matches!(answer, Err(LockError::Stopped));
            if !writes && !stopped {
                return lock.write_and_release(world);
            }
            // A conversion that was refused has not written the value, so the release does.
            let value = answer.is_err().then_some(value);
            world.lock(Event::Unlock { lock: lock.id, value });
            let status = if stopped { Status::Stopped } else { Status::Ok };
            world.tell(program, Head { port, ..Head::done(Use::Locks, id, status) }, &[]);
            self.locks.whose.remove(&lock.id);
            locks.remove(&port);
            return;
        }
        let head = Head { port, ..Head::done(Use::Locks, id, Status::Ok) };
        match answer {
            Ok(Grant { mode, token, value }) => {
                lock.held = Some(mode);
                world.tell(program, Head { value: token.0, ..head }, &encode_grant(mode, &value));
            }
            Err(error) => {
                if lock.held.is_none() {
                    self.locks.whose.remove(&lock.id);
                    locks.remove(&port);
                }
                match error {
                    LockError::Refused(why) => world.tell(program, refusal(head, why), &[]),
                    LockError::Stopped => world.tell(program, Head { status: Status::Stopped, ..head }, &[]),
                }
            }
        }
    }

    /// Releases the sessions and locks of a program that is gone.
    pub(super) fn release(&mut self, world: &mut impl ProgramDriver, locks: BTreeMap<u32, Lock>) {
        let locks: Vec<LockId> = locks.into_values().map(|lock| lock.id).collect();
        for lock in &locks {
            self.locks.whose.remove(lock);
        }
        if !locks.is_empty() {
            world.lock(Event::ClientGone { locks });
        }
    }
}

fn refusal(head: Head, why: LockRefusal) -> Head {
    let done = Head::done(Use::Locks, head.id, Status::NotLocked);
    Head { port: head.port, value: why as u64, ..done }
}
