//! Locks with the interface of libdlm: status blocks, and routines that run in `plexus_dispatch`.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use plexus_client::{
    Client, Error, EventMark, Grant, LockEventKind, LockKey, LockQueue, LockRefusal, Mode, VALUE_LEN,
    Validity,
};

use crate::{
    bytes,
    error::{IN_PROGRESS, OK, UNLOCKED, argument, code, fail, of, pointer},
    handle::{end, hand_out},
    limit,
};

const NOQUEUE: u32 = 1;
const CANCEL: u32 = 2;
const CONVERT: u32 = 4;
const VALBLK: u32 = 8;
const FORCEUNLOCK: u32 = 16;

const VALNOTVALID: u32 = 1;
const UNWRITTEN: u32 = 2;

/// The C layout of a status block.
#[repr(C)]
pub struct PlexusLksb {
    pub status: i32,
    pub lkid: u32,
    pub flags: u32,
    pub reserved: u32,
    pub token: u64,
    pub lvb: *mut u8,
}

/// A routine of the program.
type Routine = Option<unsafe extern "C" fn(*mut c_void)>;

/// The routines that a program set for a lock, and their argument.
#[derive(Clone, Copy)]
struct Routines {
    completed: Routine,
    blocking: Routine,
    argument: *mut c_void,
}

/// The locks of one session.
pub struct Lockspace {
    queue: LockQueue,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    locks: BTreeMap<u32, Entry>,
    last: u32,
}

/// A lock of a program.
struct Entry {
    key: LockKey,
    held: Option<Mode>,
    pending: PendingOperation,
    lksb: *mut PlexusLksb,
    /// True if a grant fills the value block of the status block.
    fills: bool,
    routines: Routines,
}

/// The operation on a lock that has not ended yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PendingOperation {
    Nothing,
    Request,
    Unlock,
}

// SAFETY: the pointers are the program's, which hands them to whichever of its threads dispatches;
// what they lead to is touched only as the header says, by the thread that handles the event.
unsafe impl Send for Entry {}

impl Lockspace {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Returns a number that no lock has.
    fn number(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.locks.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Records the result of a request, unless an unlock of its lock has begun.
    fn answered(&mut self, lkid: u32, answer: &Result<Grant, Error>) {
        let asked = |entry: &&mut Entry| entry.pending == PendingOperation::Request;
        let Some(entry) = self.locks.get_mut(&lkid).filter(asked) else { return };
        entry.pending = PendingOperation::Nothing;
        entry.held = answer.as_ref().ok().map(|grant| grant.mode).or(entry.held);
        if entry.held.is_none() {
            self.locks.remove(&lkid);
        }
    }
}

/// A lock request of a program.
struct AskedLock {
    mode: Mode,
    flags: u32,
    limit: Option<Duration>,
    lksb: *mut PlexusLksb,
    /// The program's value block, if the request uses it.
    value: Option<*const u8>,
}

impl AskedLock {
    /// Checks the arguments of a request.
    ///
    /// # Safety
    /// `lksb` is a status block, or null.
    unsafe fn of(mode: u32, lksb: *mut PlexusLksb, flags: u32, limit_us: i64) -> Result<Self, c_int> {
        // SAFETY: as the caller says.
        let Some(block) = (unsafe { lksb.as_mut() }) else { return Err(pointer()) };
        let mode = u8::try_from(mode).ok().and_then(Mode::from_wire);
        let Some(mode) = mode else { return Err(argument("unknown lock mode: use PLEXUS_LKM_...")) };
        if flags & !(NOQUEUE | CONVERT | VALBLK) != 0 {
            return Err(argument("unknown flag: a request takes PLEXUS_LKF_NOQUEUE, _CONVERT and _VALBLK"));
        }
        if flags & VALBLK != 0 && block.lvb.is_null() {
            return Err(pointer());
        }
        let value = (flags & VALBLK != 0).then_some(block.lvb.cast_const());
        let limit = if flags & NOQUEUE == 0 { limit(limit_us) } else { Some(Duration::ZERO) };
        Ok(Self { mode, flags, limit, lksb, value })
    }

    /// Returns the value block that a conversion from `held` writes, if it lowers PW or EX.
    ///
    /// # Safety
    /// The value block is as the header asks.
    unsafe fn written(&self, held: Option<Mode>) -> Option<[u8; VALUE_LEN]> {
        let writes = held.is_some_and(|held| held.writes_to(self.mode));
        // SAFETY: as the caller says; it is not null where it is there.
        self.value.filter(|_| writes).and_then(|lvb| unsafe { value_at(lvb) })
    }
}

/// Reads a value block of the program.
///
/// # Safety
/// The pointer leads to one, or is null.
unsafe fn value_at(lvb: *const u8) -> Option<[u8; VALUE_LEN]> {
    // SAFETY: as the caller says.
    unsafe { bytes(lvb, VALUE_LEN) }.and_then(|value| value.try_into().ok())
}

/// Writes the result of a request into its status block and returns its code.
///
/// # Safety
/// It is one that the program has left to the library, with a value block if one is to be filled.
unsafe fn conclude(lksb: *mut PlexusLksb, fills: bool, answer: &Result<Grant, Error>) -> c_int {
    // SAFETY: as the caller says.
    let Some(block) = (unsafe { lksb.as_mut() }) else { return pointer() };
    block.status = match answer {
        Ok(Grant { token, value, .. }) => {
            block.token = token.0;
            block.flags = match value.validity {
                Validity::Valid => 0,
                Validity::Lost => VALNOTVALID,
                Validity::Unwritten => UNWRITTEN,
            };
            if fills && !block.lvb.is_null() {
                // SAFETY: as the caller says, it leads to as many bytes.
                unsafe { block.lvb.copy_from_nonoverlapping(value.bytes.as_ptr(), VALUE_LEN) };
            }
            OK
        }
        Err(error) => code(error),
    };
    block.status
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_lockspace_open(client: *const Client, place: *mut *mut Lockspace) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    let Some(client) = unsafe { client.as_ref() }.filter(|_| !place.is_null()) else { return pointer() };
    let queue = client.lock_session().watching().queue();
    // SAFETY: not null, and the header asks for a place.
    unsafe { hand_out(place, Ok(Lockspace { queue, entries: Mutex::default() })) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_lockspace_close(place: *mut Lockspace) {
    end(place);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_lock(
    place: *const Lockspace,
    mode: u32,
    lksb: *mut PlexusLksb,
    flags: u32,
    name: *const u8,
    name_len: usize,
    limit_us: i64,
    completed: Routine,
    argument: *mut c_void,
    blocking: Routine,
) -> c_int {
    // SAFETY: the header asks for what plexus_lockspace_open gave, for a status block and for that
    // many bytes.
    let checked = unsafe { checked_arguments(place, mode, lksb, flags, (name, name_len), limit_us) };
    let (place, name, ask) = match checked {
        Ok(checked) => checked,
        Err(wrong) => return wrong,
    };
    let AskedLock { mode, limit, .. } = ask;
    let routines = Routines { completed, blocking, argument };
    let lock = |queue: &LockQueue, mark| Ok((queue.lock(mark, name, mode, limit)?, ()));
    let convert = |queue: &LockQueue, key, mark, value| queue.convert(key, mark, mode, limit, value);
    // SAFETY: looked at above; the value block is as the header asks.
    of(unsafe { begin(place, &ask, routines, lock, convert) }.map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_lock_wait(
    place: *const Lockspace,
    mode: u32,
    lksb: *mut PlexusLksb,
    flags: u32,
    name: *const u8,
    name_len: usize,
    limit_us: i64,
    argument: *mut c_void,
    blocking: Routine,
) -> c_int {
    // SAFETY: the header asks for what plexus_lockspace_open gave, for a status block and for that
    // many bytes.
    let checked = unsafe { checked_arguments(place, mode, lksb, flags, (name, name_len), limit_us) };
    let (place, name, ask) = match checked {
        Ok(checked) => checked,
        Err(wrong) => return wrong,
    };
    let AskedLock { mode, limit, .. } = ask;
    let routines = Routines { completed: None, blocking, argument };
    let lock = |queue: &LockQueue, mark| {
        let asked = queue.ask(mark, name, mode, limit)?;
        Ok((asked.key(), asked))
    };
    let convert = |queue: &LockQueue, key, mark, value| queue.ask_convert(key, mark, mode, limit, value);
    // SAFETY: looked at above; the value block is as the header asks.
    let begun = unsafe { begin(place, &ask, routines, lock, convert) };
    let answer = begun.and_then(|(lkid, asked)| {
        let answer = asked.wait();
        place.entries().answered(lkid, &answer);
        answer
    });
    // SAFETY: looked at above, and the program leaves it to the library for the call.
    unsafe { conclude(lksb, ask.value.is_some(), &answer) };
    answer.map_or_else(|error| fail(&error), |_| OK)
}

/// Checks the arguments of a request, or returns the error.
///
/// # Safety
/// The lockspace, the status block and the name are null or as the header asks.
unsafe fn checked_arguments<'a>(
    place: *const Lockspace,
    mode: u32,
    lksb: *mut PlexusLksb,
    flags: u32,
    (name, name_len): (*const u8, usize),
    limit_us: i64,
) -> Result<(&'a Lockspace, &'a [u8], AskedLock), c_int> {
    // SAFETY: as the caller says.
    let (place, name) = unsafe { (place.as_ref(), bytes(name, name_len)) };
    let (Some(place), Some(name)) = (place, name) else { return Err(pointer()) };
    // SAFETY: as the caller says.
    Ok((place, name, unsafe { AskedLock::of(mode, lksb, flags, limit_us) }?))
}

/// Begins a request with `lock` or `convert`; returns the lock's number and the result of the call.
///
/// # Safety
/// The status block and its value block are as the header asks.
unsafe fn begin<R>(
    place: &Lockspace,
    ask: &AskedLock,
    routines: Routines,
    lock: impl FnOnce(&LockQueue, EventMark) -> Result<(LockKey, R), Error>,
    convert: impl FnOnce(&LockQueue, LockKey, EventMark, Option<[u8; VALUE_LEN]>) -> Result<R, Error>,
) -> Result<(u32, R), Error> {
    // Held until the lock is entered: a thread that dispatches its events waits for that.
    let mut entries = place.entries();
    // SAFETY: as the caller says.
    let block = unsafe { &mut *ask.lksb };
    let mark = |lkid: u32| EventMark { cookie: lkid.into(), wanted: routines.blocking.is_some() };
    let (pending, lksb, fills) = (PendingOperation::Request, ask.lksb, ask.value.is_some());
    let begun = if ask.flags & CONVERT == 0 {
        let lkid = entries.number();
        let (key, begun) = lock(&place.queue, mark(lkid))?;
        entries.locks.insert(lkid, Entry { key, held: None, pending, lksb, fills, routines });
        block.lkid = lkid;
        begun
    } else {
        let entry = entries.locks.get_mut(&block.lkid).ok_or(Error::NotLocked(LockRefusal::Unknown))?;
        // SAFETY: as the caller says.
        let written = unsafe { ask.written(entry.held) };
        let begun = convert(&place.queue, entry.key, mark(block.lkid), written)?;
        *entry = Entry { pending, lksb, fills, routines, ..*entry };
        begun
    };
    block.status = IN_PROGRESS;
    Ok((block.lkid, begun))
}

/// Returns the lock to release and the value to write, or the error.
///
/// # Safety
/// `lksb` is a status block, or null.
unsafe fn lock_to_release(
    entries: &Entries,
    lkid: u32,
    flags: u32,
    lksb: *mut PlexusLksb,
) -> Result<(LockKey, Option<[u8; VALUE_LEN]>), c_int> {
    if flags & !(CANCEL | VALBLK | FORCEUNLOCK) != 0 {
        return Err(argument("unknown flag: an unlock takes PLEXUS_LKF_CANCEL, _VALBLK and _FORCEUNLOCK"));
    }
    // SAFETY: as the caller says.
    let Some(block) = (unsafe { lksb.as_ref() }) else { return Err(pointer()) };
    let Some(entry) = entries.locks.get(&lkid) else {
        return Err(fail(&Error::NotLocked(LockRefusal::Unknown)));
    };
    if entry.pending != PendingOperation::Nothing && flags & (CANCEL | FORCEUNLOCK) == 0 {
        return Err(fail(&Error::NotLocked(LockRefusal::Busy)));
    }
    if flags & VALBLK == 0 {
        return Ok((entry.key, None));
    }
    // SAFETY: the header asks for a value block, or null.
    match unsafe { value_at(block.lvb) } {
        Some(value) => Ok((entry.key, Some(value))),
        None => Err(pointer()),
    }
}

/// Cancels the request of a lock if the flags ask for that; else runs `unlock` with the lock and
/// the value to write.
///
/// # Safety
/// As for [`plexus_unlock`].
unsafe fn release(
    place: *const Lockspace,
    lkid: u32,
    flags: u32,
    lksb: *mut PlexusLksb,
    unlock: impl FnOnce(
        &Lockspace,
        MutexGuard<'_, Entries>,
        LockKey,
        Option<[u8; VALUE_LEN]>,
    ) -> Result<(), Error>,
) -> c_int {
    // SAFETY: the header asks for what plexus_lockspace_open gave.
    let Some(place) = (unsafe { place.as_ref() }) else { return pointer() };
    let entries = place.entries();
    // SAFETY: the header asks for a status block.
    match unsafe { lock_to_release(&entries, lkid, flags, lksb) } {
        Ok((key, _)) if flags & CANCEL != 0 => of(place.queue.cancel(key)),
        Ok((key, value)) => of(unlock(place, entries, key, value)),
        Err(wrong) => wrong,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_unlock(
    place: *const Lockspace,
    lkid: u32,
    flags: u32,
    lksb: *mut PlexusLksb,
    argument: *mut c_void,
) -> c_int {
    let unlock = |place: &Lockspace, mut entries: MutexGuard<'_, Entries>, key, value| {
        place.queue.post_unlock(key, value)?;
        if let Some(entry) = entries.locks.get_mut(&lkid) {
            (entry.pending, entry.lksb, entry.routines.argument) = (PendingOperation::Unlock, lksb, argument);
            // SAFETY: `release` has looked at it, and it is the library's from now on.
            unsafe { (*lksb).status = IN_PROGRESS };
        }
        Ok(())
    };
    // SAFETY: as the header asks.
    unsafe { release(place, lkid, flags, lksb, unlock) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_unlock_wait(
    place: *const Lockspace,
    lkid: u32,
    flags: u32,
    lksb: *mut PlexusLksb,
) -> c_int {
    let unlock = |place: &Lockspace, entries: MutexGuard<'_, Entries>, key, value| {
        // Other threads use the lockspace while this one waits for the node.
        drop(entries);
        place.queue.unlock(key, value)?;
        place.entries().locks.remove(&lkid);
        // SAFETY: `release` has looked at it.
        unsafe { (*lksb).status = UNLOCKED };
        Ok(())
    };
    // SAFETY: as the header asks.
    unsafe { release(place, lkid, flags, lksb, unlock) }
}

/// Handles an event and returns the routine to call with its argument.
///
/// # Safety
/// The status blocks of the place are as the header asks.
unsafe fn handle_event(place: &Lockspace, lkid: u32, event: &LockEventKind) -> (Routine, *mut c_void) {
    let nothing = (None, std::ptr::null_mut());
    let mut entries = place.entries();
    let Some(entry) = entries.locks.get(&lkid) else { return nothing };
    let (lksb, fills, Routines { completed, blocking, argument }) = (entry.lksb, entry.fills, entry.routines);
    match event {
        LockEventKind::Unlocked => {
            entries.locks.remove(&lkid);
            // SAFETY: as the caller says.
            unsafe { (*lksb).status = UNLOCKED };
            (completed, argument)
        }
        // The unlock began before this event was taken from the queue.
        _ if entry.pending == PendingOperation::Unlock => nothing,
        LockEventKind::Wanted(_) => (blocking, argument),
        LockEventKind::Answered(answer) => {
            // Recorded before the program can see the result, since it may use the lock at once.
            entries.answered(lkid, answer);
            // SAFETY: as the caller says.
            unsafe { conclude(lksb, fills, answer) };
            (completed, argument)
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_dispatch(place: *const Lockspace) -> c_int {
    // SAFETY: the header asks for what plexus_lockspace_open gave.
    let Some(place) = (unsafe { place.as_ref() }) else { return pointer() };
    let mut called = 0;
    loop {
        let event = match place.queue.wait(Some(Duration::ZERO)) {
            Ok(event) => event,
            Err(Error::TimedOut) => return called,
            Err(_) if called > 0 => return called,
            Err(error) => return fail(&error),
        };
        let lkid = event.cookie as u32;
        // SAFETY: the header asks for it.
        let (routine, argument) = unsafe { handle_event(place, lkid, &event.kind) };
        if let Some(routine) = routine {
            // SAFETY: the program asked for it to be called so; nothing of the place is held
            // meanwhile.
            unsafe { routine(argument) };
            called += 1;
        }
    }
}
