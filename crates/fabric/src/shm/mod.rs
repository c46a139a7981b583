//! The rail over shared memory: two endpoints on one host.
//!
//! Each direction is one sealed memory file made by the *receiver*, with a ring for each lane; a put is one
//! copy into the peer's mapped window. Sending, putting and polling allocate nothing, lock nothing, and make
//! no system call, except for the one that wakes a peer that sleeps. Gets and atomics are loads and locked
//! instructions on the peer's window, a written word is one store: the owner's processor has no part in them.
//!
//! Set-up: each side creates [`RxRings`], hands the descriptor to the other (with those of its
//! [`Bell`](crate::Bell) and its windows), maps what it was handed ([`TxRings::map`], [`PeerBell::map`],
//! [`PeerWindow::map`]) and builds a [`ShmRail`]. Somebody watches the peer's process ([`PeerWatch`]) and
//! sets the flag that the rail was built with.
//!
//! The end of a peer loses nothing: what it published before is delivered, then the rail is lost. A frame
//! that it was about to write when it died is not there, since its header word comes last.

#![allow(unsafe_code, reason = "places rings and control words in shared memory")]

mod passing;
mod ring;
mod watch;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
            fence,
        },
    },
};

use crate::{
    Access, Frame, LANES, Lane, Lost, MAX_FRAME, PeerBell, PeerWindow, Put, Rail, RailKind, SendError,
    WindowId,
    memory::{Memory, SetupError},
    rail::MOST_SKIPPED,
};
pub use passing::{MAX_DESCRIPTORS, receive_packet, send_packet};
#[doc(hidden)]
pub use ring::ring_any;
use ring::{Broken, LINE, MAX_LINES, Place, Reader, Room, Writer};
pub use watch::{PeerProcess, PeerWatch};

/// Lines in the ring of each lane.
///
/// Prompt, 64 KiB: about a thousand small messages, more than the credits of all channels allow to be on
/// their way, and small enough to stay in the second-level cache of both cores. Bulk, 512 KiB: 31 of the
/// longest frames, so that a sender of a stream does not stop for each one that is read; blocks do not pass
/// here but are put.
const RING_LINES: [u64; LANES] = [(64 << 10) / LINE as u64, (512 << 10) / LINE as u64];

const _: () = {
    let mut lane = 0;
    while lane < LANES {
        assert!(RING_LINES[lane].is_power_of_two());
        // The longest frame must find room in an empty ring, wherever its end is: up to a frame less one line
        // is skipped, and one line stays free.
        assert!(2 * MAX_LINES < RING_LINES[lane]);
        lane += 1;
    }
};

/// The control words, then the rings. The reader's positions have lines of their own, two apart because
/// neighbours are fetched together; what the writer leaves shares one, which hardly ever changes.
const READ_AT: [usize; LANES] = [0, 128];
const STARVED_AT: [usize; LANES] = [256, 264];
const CLOSED_AT: usize = 272;
const RINGS_AT: usize = 4096;
const MEMORY_LEN: usize = RINGS_AT + (RING_LINES[0] + RING_LINES[1]) as usize * LINE;

fn place(memory: &Memory, lane: Lane) -> Place {
    debug_assert_eq!(memory.len(), MEMORY_LEN);
    let before = match lane {
        Lane::Prompt => 0,
        Lane::Bulk => RING_LINES[Lane::Prompt.index()] as usize * LINE,
    };
    // SAFETY: all of these lie inside `MEMORY_LEN`, and a mapping is aligned to a page.
    unsafe {
        Place {
            data: memory.start().add(RINGS_AT + before),
            lines: RING_LINES[lane.index()],
            read: memory.start().add(READ_AT[lane.index()]).cast(),
            starved: memory.start().add(STARVED_AT[lane.index()]).cast(),
        }
    }
}

/// Set by a writer that leaves for good.
fn closed(memory: &Memory) -> &AtomicU64 {
    let word: NonNull<AtomicU64> =
        // SAFETY: inside the control page.
        unsafe { memory.start().add(CLOSED_AT).cast() };
    // SAFETY: mapped while `memory` is borrowed, aligned, only used as an atomic.
    unsafe { word.as_ref() }
}

/// The rings that we read.
pub struct RxRings {
    memory: Memory,
    fd: OwnedFd,
}

/// The rings of the peer that we write.
pub struct TxRings {
    memory: Memory,
}

impl RxRings {
    /// New, empty rings.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn create() -> Result<Self, SetupError> {
        let (memory, fd) = Memory::create("ring", MEMORY_LEN)?;
        Ok(Self { memory, fd })
    }

    /// The descriptor to hand to the peer. It is not needed once the rail is built.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl TxRings {
    /// Maps the rings that a peer created.
    ///
    /// # Errors
    /// They are not of the size that rings have, could change it, or the system refuses.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, SetupError> {
        Ok(Self { memory: Memory::map("ring", fd, MEMORY_LEN as u64)? })
    }
}

/// What a rail over shared memory is built from.
pub struct ShmParts {
    /// The peer's rings, which we write.
    pub tx: TxRings,
    /// Our rings, which the peer writes.
    pub rx: RxRings,
    /// The bell of the worker at the other end.
    pub bell: PeerBell,
    /// The peer's windows.
    pub windows: Arc<[PeerWindow]>,
    /// Set by whoever watches the peer's process, when it has ended.
    pub gone: Arc<AtomicBool>,
}

/// A rail over shared memory. See the [module documentation](self).
pub struct ShmRail {
    writers: [Writer; LANES],
    readers: [Reader; LANES],
    /// Something was sent since the last flush.
    unflushed: bool,
    /// Polls since the last one that looked at the bulk lane.
    bulk_skipped: u32,
    lost: Option<Lost>,
    /// Whether [`Rail::poll`] has said why it is lost.
    said: bool,
    bell: PeerBell,
    gone: Arc<AtomicBool>,
    windows: Arc<[PeerWindow]>,
    /// What the ends above point into.
    tx: Memory,
    rx: Memory,
}

// SAFETY: the pointers in the ends go into `tx` and `rx`, which move with them; one thread at a time uses a
// rail.
unsafe impl Send for ShmRail {}

impl ShmRail {
    /// A rail over parts that were mapped and verified before.
    #[must_use]
    pub fn new(parts: ShmParts) -> Self {
        let ShmParts { tx: TxRings { memory: tx }, rx: RxRings { memory: rx, .. }, bell, windows, gone } =
            parts;
        Self {
            writers: Lane::ALL.map(|lane| Writer::new(place(&tx, lane))),
            readers: Lane::ALL.map(|lane| Reader::new(place(&rx, lane))),
            unflushed: false,
            bulk_skipped: 0,
            lost: None,
            said: false,
            bell,
            gone,
            windows,
            tx,
            rx,
        }
    }

    /// Room for a frame, or why there is none.
    #[inline]
    fn room(&mut self, lane: Lane, len: usize) -> Result<Room, SendError> {
        if len > MAX_FRAME {
            return Err(SendError::TooLarge);
        }
        if self.lost.is_some() {
            return Err(SendError::Lost);
        }
        match self.writers[lane.index()].room(len) {
            Ok(Some(room)) => Ok(room),
            Ok(None) => Err(SendError::Full),
            Err(broken) => {
                self.lost = Some(broken.into());
                Err(SendError::Lost)
            }
        }
    }

    /// The peer's window of that name, while the rail lives.
    #[inline]
    fn window(&self, id: WindowId) -> Result<&PeerWindow, SendError> {
        if self.lost.is_some() {
            return Err(SendError::Lost);
        }
        let named = |window: &&PeerWindow| window.span().id == id;
        let window = self.windows.get(usize::from(id.0)).filter(named);
        window.or_else(|| self.windows.iter().find(named)).ok_or(SendError::TooLarge)
    }

    #[inline]
    fn read(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> usize {
        let mut delivered = 0;
        let mut feeds = false;
        for lane in Lane::ALL {
            let most = if lane == Lane::Bulk { self.chunk() } else { usize::MAX };
            if lane == Lane::Bulk && delivered > 0 && self.bulk_skipped < MOST_SKIPPED {
                self.bulk_skipped += 1;
                break;
            }
            let reader = &mut self.readers[lane.index()];
            if reader.is_idle() {
                feeds |= reader.feeds_starved();
                continue;
            }
            if lane == Lane::Bulk {
                self.bulk_skipped = 0;
            }
            let (count, result) = reader.poll(limit, most, |frame| deliver(lane, frame));
            delivered += count;
            feeds |= reader.feeds_starved();
            if let Err(broken) = result {
                self.lost = Some(broken.into());
                break;
            }
        }
        if feeds {
            self.bell.ring_if_armed();
        }
        delivered
    }

    /// Nothing was there: whether anything will ever come.
    #[inline]
    fn peer_ended(&self) -> Option<Lost> {
        if self.gone.load(Acquire) {
            Some(Lost::PeerDied)
        } else if closed(&self.rx).load(Acquire) != 0 {
            Some(Lost::Closed("the peer ended the rail".into()))
        } else {
            None
        }
    }
}

impl From<Broken> for Lost {
    fn from(Broken(what): Broken) -> Self {
        Self::Corrupt(what)
    }
}

impl Rail for ShmRail {
    fn kind(&self) -> RailKind {
        RailKind::Shm
    }

    #[inline]
    fn send(&mut self, lane: Lane, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        let room = self.room(lane, head.len() + body.len())?;
        self.writers[lane.index()].publish(&room, head, body, 0);
        self.unflushed = true;
        Ok(())
    }

    #[inline]
    fn put(&mut self, lane: Lane, put: Put<'_>, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        let room = self.room(lane, head.len() + body.len())?;
        if !self.window(put.window)?.write(&put) {
            return Err(SendError::TooLarge);
        }
        // The release of the header word orders the data before the frame.
        self.writers[lane.index()].publish(&room, head, body, put.data.len());
        self.unflushed = true;
        Ok(())
    }

    #[inline]
    fn write(&mut self, _lane: Lane, put: Put<'_>) -> Result<(), SendError> {
        if !self.window(put.window)?.write(&put) {
            return Err(SendError::TooLarge);
        }
        self.unflushed = true;
        Ok(())
    }

    #[inline]
    fn direct(&mut self, access: Access<'_>) -> Option<Result<u64, SendError>> {
        let (Access::Get { window, .. }
        | Access::FetchAdd { window, .. }
        | Access::CompareSwap { window, .. }) = access;
        let changes = !matches!(access, Access::Get { .. });
        let done = self.window(window).and_then(|window| window.execute(access).ok_or(SendError::TooLarge));
        self.unflushed |= changes && done.is_ok();
        Some(done)
    }

    #[inline]
    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost> {
        if self.lost.is_none() {
            let delivered = self.read(limit, deliver);
            if delivered > 0 {
                return Ok(delivered);
            }
            if self.lost.is_none() {
                let Some(lost) = self.peer_ended() else { return Ok(0) };
                // What it wrote before its end is visible now: look once more.
                let delivered = self.read(limit, deliver);
                if delivered > 0 || limit == 0 {
                    return Ok(delivered);
                }
                self.lost.get_or_insert(lost);
            }
        }
        self.said = true;
        self.lost.clone().map_or(Ok(0), Err)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), Lost> {
        if self.unflushed {
            self.unflushed = false;
            self.bell.ring_if_armed();
        }
        self.lost.clone().map_or(Ok(()), Err)
    }

    fn pending(&mut self) -> bool {
        if self.lost.is_some() {
            return !self.said;
        }
        // The peer may wait for room that our last polls made: it sees the room, or we see that it waits, as
        // with the bell.
        let news = self.readers.iter_mut().fold(false, |news, reader| reader.publish() | news);
        if news {
            fence(SeqCst);
        }
        let mut feeds = false;
        for reader in &mut self.readers {
            feeds |= reader.feeds_starved();
        }
        if feeds {
            self.bell.ring_if_armed();
        }
        self.unflushed
            || self.readers.iter().any(Reader::has_arrived)
            || self.writers.iter().any(Writer::may_have_room)
            || self.gone.load(Relaxed)
            || closed(&self.rx).load(Relaxed) != 0
    }

    fn register(&self, _epoll: BorrowedFd<'_>, _token: u64) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ShmRail {
    fn drop(&mut self) {
        closed(&self.tx).store(1, Release);
        self.bell.ring_if_armed();
    }
}
