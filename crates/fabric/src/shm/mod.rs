//! The rail over shared memory: two endpoints on one host.
//!
//! Each direction is one sealed memory file made by the *receiver*, with a ring for each lane. A
//! put is one copy into the peer's mapped window. Sending, putting and polling allocate nothing and
//! lock nothing; the only system call is the one that wakes a sleeping peer. Gets and atomics are
//! loads and locked instructions on the peer's window, and a written word is one store; the owner's
//! processor takes no part.
//!
//! Set-up: each side creates [`RxRings`] and hands the descriptor to the other, with those of its
//! [`Bell`](crate::Bell) and its windows. It maps the descriptors of the other side
//! ([`TxRings::map`], [`PeerBell::map`], [`PeerWindow::map`]) and builds a [`ShmRail`]. The caller
//! watches the peer's process ([`PeerWatch`]), which sets the flag that the rail was built with.
//!
//! Frames that a peer published before its end are delivered, then the rail is lost. A frame that
//! the peer was writing when it died does not exist, since its header word comes last.

#![allow(unsafe_code, reason = "places rings and control words in shared memory")]

mod passing;
mod path;
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
pub use path::{ShortPath, bind_for_owner};
#[doc(hidden)]
pub use ring::ring_any;
use ring::{Broken, LINE, MAX_LINES, Reader, RingMemory, Room, Writer};
pub use watch::{PeerProcess, PeerWatch, peer_user};

/// The number of lines in the ring of each lane.
///
/// Prompt, 64 KiB: about a thousand small messages. That is more than the credits of all channels
/// allow in flight, and small enough to stay in the second-level cache of both cores. Bulk, 512
/// KiB: 31 of the longest frames, so that a sender of a stream does not stop for each frame that is
/// read. Blocks are put and do not pass through the ring.
const RING_LINES: [u64; LANES] = [(64 << 10) / LINE as u64, (512 << 10) / LINE as u64];

const _: () = {
    let mut lane = 0;
    while lane < LANES {
        assert!(RING_LINES[lane].is_power_of_two());
        // The longest frame must fit into an empty ring, wherever the ring's end is: up to a frame
        // less one line is skipped, and one line stays free.
        assert!(2 * MAX_LINES < RING_LINES[lane]);
        lane += 1;
    }
};

/// The control words, then the rings. The reader's positions lie on lines of their own, two apart
/// because processors fetch neighbouring lines together. The words of the writer share one line,
/// which rarely changes.
const READ_AT: [usize; LANES] = [0, 128];
const STARVED_AT: [usize; LANES] = [256, 264];
const CLOSED_AT: usize = 272;
const RINGS_AT: usize = 4096;
const MEMORY_LEN: usize = RINGS_AT + (RING_LINES[0] + RING_LINES[1]) as usize * LINE;

fn ring_memory(memory: &Memory, lane: Lane) -> RingMemory {
    debug_assert_eq!(memory.len(), MEMORY_LEN);
    let before = match lane {
        Lane::Prompt => 0,
        Lane::Bulk => RING_LINES[Lane::Prompt.index()] as usize * LINE,
    };
    // SAFETY: all of these lie inside `MEMORY_LEN`, and a mapping is aligned to a page.
    unsafe {
        RingMemory {
            data: memory.start().add(RINGS_AT + before),
            lines: RING_LINES[lane.index()],
            read: memory.start().add(READ_AT[lane.index()]).cast(),
            starved: memory.start().add(STARVED_AT[lane.index()]).cast(),
        }
    }
}

/// The word that a writer sets when it closes the rail.
fn closed(memory: &Memory) -> &AtomicU64 {
    let word: NonNull<AtomicU64> =
        // SAFETY: inside the control page.
        unsafe { memory.start().add(CLOSED_AT).cast() };
    // SAFETY: mapped while `memory` is borrowed, aligned, only used as an atomic.
    unsafe { word.as_ref() }
}

/// The rings that this side reads.
pub struct RxRings {
    memory: Memory,
    fd: OwnedFd,
}

/// The rings of the peer, which this side writes.
pub struct TxRings {
    memory: Memory,
}

impl RxRings {
    /// Creates empty rings.
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
    /// The rings have the wrong size, are not sealed, or a system call fails.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, SetupError> {
        Ok(Self { memory: Memory::map("ring", fd, MEMORY_LEN as u64)? })
    }
}

/// The parts of which a rail over shared memory is built.
pub struct ShmParts {
    /// The peer's rings, which this side writes.
    pub tx: TxRings,
    /// The rings of this side, which the peer writes.
    pub rx: RxRings,
    /// The bell of the worker at the other end.
    pub bell: PeerBell,
    /// The peer's windows.
    pub windows: Arc<[PeerWindow]>,
    /// Set by the watcher of the peer's process when that has ended.
    pub gone: Arc<AtomicBool>,
}

/// A rail over shared memory. See the [module documentation](self).
pub struct ShmRail {
    writers: [Writer; LANES],
    readers: [Reader; LANES],
    /// True if something was sent since the last flush.
    unflushed: bool,
    /// The number of polls since the last one that looked at the bulk lane.
    bulk_skipped: u32,
    lost: Option<Lost>,
    /// True once [`Rail::poll`] has returned why the rail is lost.
    loss_reported: bool,
    bell: PeerBell,
    gone: Arc<AtomicBool>,
    windows: Arc<[PeerWindow]>,
    /// The memory into which the ends above point.
    tx: Memory,
    rx: Memory,
}

// SAFETY: the pointers in the ends go into `tx` and `rx`, which move with them; one thread at a
// time uses a rail.
unsafe impl Send for ShmRail {}

impl ShmRail {
    /// Builds a rail over parts that were mapped and verified before.
    #[must_use]
    pub fn new(parts: ShmParts) -> Self {
        let ShmParts { tx: TxRings { memory: tx }, rx: RxRings { memory: rx, .. }, bell, windows, gone } =
            parts;
        Self {
            writers: Lane::ALL.map(|lane| Writer::new(ring_memory(&tx, lane))),
            readers: Lane::ALL.map(|lane| Reader::new(ring_memory(&rx, lane))),
            unflushed: false,
            bulk_skipped: 0,
            lost: None,
            loss_reported: false,
            bell,
            gone,
            windows,
            tx,
            rx,
        }
    }

    /// Finds room for a frame.
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

    /// The peer's window with that identifier, while the rail lives.
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
        let mut wakes = false;
        for lane in Lane::ALL {
            let most = if lane == Lane::Bulk { self.chunk() } else { usize::MAX };
            if lane == Lane::Bulk && delivered > 0 && self.bulk_skipped < MOST_SKIPPED {
                self.bulk_skipped += 1;
                break;
            }
            let reader = &mut self.readers[lane.index()];
            if reader.is_idle() {
                wakes |= reader.wakes_starved();
                continue;
            }
            if lane == Lane::Bulk {
                self.bulk_skipped = 0;
            }
            let (count, result) = reader.poll(limit, most, |frame| deliver(lane, frame));
            delivered += count;
            wakes |= reader.wakes_starved();
            if let Err(broken) = result {
                self.lost = Some(broken.into());
                break;
            }
        }
        if wakes {
            self.bell.ring_if_armed();
        }
        delivered
    }

    /// The reason why no further frame will come, if there is one. Called when no frame was there.
    #[inline]
    fn peer_ended(&self) -> Option<Lost> {
        if self.gone.load(Acquire) {
            Some(Lost::PeerDied)
        } else if closed(&self.rx).load(Acquire) != 0 {
            Some(Lost::Closed("the peer closed the rail".into()))
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
                // Everything that the peer wrote before its end is visible now, so look once more.
                let delivered = self.read(limit, deliver);
                if delivered > 0 || limit == 0 {
                    return Ok(delivered);
                }
                self.lost.get_or_insert(lost);
            }
        }
        self.loss_reported = true;
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
            return !self.loss_reported;
        }
        // The peer may wait for the room that the last polls made. Either it sees the room, or this
        // side sees that it waits, as with the bell.
        let moved = self.readers.iter_mut().fold(false, |moved, reader| reader.publish() | moved);
        if moved {
            fence(SeqCst);
        }
        let mut wakes = false;
        for reader in &mut self.readers {
            wakes |= reader.wakes_starved();
        }
        if wakes {
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
