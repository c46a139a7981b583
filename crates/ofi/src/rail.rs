//! The rail over libfabric: two endpoints and one completion queue, as the interconnect sees them.

use std::{
    ffi::c_int,
    io,
    mem::ManuallyDrop,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Acquire},
    },
};

use plexus_base::{Nanos, clock};
use plexus_fabric::{Frame, Health, LANES, Lane, Lost, MAX_FRAME, Put, Rail, RailKind, SendError};
use rustix::event::epoll;

use crate::{
    endpoint::Endpoint,
    offer::RemoteWindow,
    outgoing::Outgoing,
    parts::Parts,
    quiet::PeerSilence,
    reaper::{self, Ending},
    remains::Remains,
    settle::settle,
};

/// The polls of the queue after the peer is known to be gone: the frames that it sent before lie in
/// this host's memory, and each poll takes some of them.
const LAST_LOOKS: usize = 16;

/// The reason why a rail that cannot do long puts ends.
const NOT_PINNED: &str =
    "libfabric cannot pin memory for a long put: raise the limit of locked memory (ulimit -l)";

/// A rail over libfabric. See the [module documentation](super).
pub struct OfiRail {
    parts: ManuallyDrop<Parts>,
    /// The sessions of this end and of the other.
    sessions: (u64, u64),
    peer_windows: Vec<RemoteWindow>,
    /// The bytes of a put whose last piece is still to come, by lane.
    landed: [u32; LANES],
    gone: Arc<AtomicBool>,
    /// The reason why nothing more can be sent; arrived frames are still to be delivered.
    ending: Option<Lost>,
    lost: Option<Lost>,
    /// True once [`Rail::poll`] has returned why the rail is lost.
    loss_reported: bool,
    /// True if nothing more is to be sent, not even a goodbye.
    abandoned: bool,
    quiet: PeerSilence,
}

impl OfiRail {
    /// Builds the rail over connected endpoints. `sessions` are those of this end and of the other.
    pub(crate) fn new(
        parts: Parts,
        sessions: (u64, u64),
        peer_windows: Vec<RemoteWindow>,
        gone: Arc<AtomicBool>,
    ) -> Self {
        let mut rail = Self {
            parts: ManuallyDrop::new(parts),
            sessions,
            peer_windows,
            landed: [0; LANES],
            gone,
            ending: None,
            lost: None,
            loss_reported: false,
            abandoned: false,
            quiet: PeerSilence::new(clock::now()),
        };
        rail.progress();
        rail
    }

    /// Returns true once the peer was heard on both lanes. Until then the owner must go on polling;
    /// [`Rail::pending`] is true.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.parts.endpoints.iter().all(|endpoint| endpoint.heard)
    }

    /// The provider's full name.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.parts.device.facts.provider
    }

    /// Reads all completions and posts everything that may be sent now.
    fn progress(&mut self) {
        if matches!(self.ending, Some(Lost::Corrupt(_))) {
            return;
        }
        self.read();
        if self.ending.is_none() {
            self.post();
        }
    }

    fn post(&mut self) {
        let Parts { endpoints, device, .. } = &mut *self.parts;
        for endpoint in endpoints {
            if let Err(code) = endpoint.post(&device.facts) {
                self.ending = Some(Lost::Closed(device.explain(code)));
                return;
            }
        }
    }

    fn read(&mut self) {
        match self.parts.read() {
            Ok(()) => {}
            Err(corrupt @ Lost::Corrupt(_)) => self.ending = Some(corrupt),
            Err(lost) => drop(self.ending.get_or_insert(lost)),
        }
    }

    fn fail(&mut self, code: c_int) {
        let lost = self.parts.closed(code);
        self.ending.get_or_insert(lost);
    }

    /// Hands over the frames that have arrived.
    fn deliver(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> usize {
        let mut delivered = 0;
        let chunk = self.chunk();
        let Parts { endpoints, windows, .. } = &mut *self.parts;
        for (lane, endpoint) in Lane::ALL.into_iter().zip(endpoints) {
            let mut most = if lane == Lane::Bulk { chunk } else { usize::MAX };
            for _ in 0..limit {
                if most == 0 {
                    break;
                }
                let Some(arrival) = endpoint.next() else { break };
                if let Err(what) = settle(endpoint, &arrival, windows) {
                    // The frames behind it must not be delivered either.
                    self.parts.endpoints.iter_mut().for_each(Endpoint::forget_arrivals);
                    self.ending = Some(Lost::Corrupt(what));
                    return delivered;
                }
                let here = arrival.message.target.as_ref().map_or(0, |target| target.len);
                let before = &mut self.landed[lane.index()];
                let put = std::mem::take(before).saturating_add(here);
                if arrival.message.more {
                    *before = put;
                } else if !arrival.message.silent {
                    most = most.saturating_sub(arrival.message.frame.len().max(1));
                    let frame = Frame::of(endpoint.bytes(&arrival, arrival.message.frame.clone()));
                    deliver(lane, frame.with_put_len(put));
                    delivered += 1;
                }
                endpoint.done(&arrival);
            }
        }
        delivered
    }

    /// The reason why nothing more will come, if there is one.
    fn end(&self) -> Option<Lost> {
        if let Some(ending) = &self.ending {
            Some(ending.clone())
        } else if self.parts.endpoints.iter().all(Endpoint::has_ended) {
            Some(Lost::Closed("the peer closed the rail".into()))
        } else {
            self.gone.load(Acquire).then_some(Lost::PeerDied)
        }
    }

    fn take(&mut self, lane: Lane, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        if outgoing.head.len() + outgoing.body.len() > MAX_FRAME {
            return Err(SendError::TooLarge);
        }
        if self.ending.is_some() || self.lost.is_some() {
            return Err(SendError::Lost);
        }
        let stage = |rail: &mut Self| {
            let Parts { endpoints, device, .. } = &mut *rail.parts;
            endpoints[lane.index()].stage(device, outgoing)
        };
        let mut staged = stage(self);
        if staged == Err(SendError::Full) {
            // Earlier operations may be complete by now, or may be posted.
            self.progress();
            if self.ending.is_some() {
                return Err(SendError::Lost);
            }
            staged = stage(self);
        }
        if staged == Err(SendError::Lost) {
            self.ending = Some(Lost::Closed(NOT_PINNED.into()));
        }
        staged?;
        let Parts { endpoints, device, .. } = &mut *self.parts;
        if let Err(code) = endpoints[lane.index()].post(&device.facts) {
            self.fail(code);
        }
        Ok(())
    }

    /// The peer's window that accepts `put`.
    fn window(&self, put: &Put<'_>) -> Result<RemoteWindow, SendError> {
        let len = put.data.len() as u64;
        let most = (self.parts.device.facts.max_len as u64).min(u64::from(u32::MAX));
        let window = self.peer_windows.iter().find(|window| window.span.id == put.window);
        let fits = |window: &&RemoteWindow| window.span.holds(put.offset, len) && len <= most;
        window.filter(fits).copied().ok_or(SendError::TooLarge)
    }
}

impl Rail for OfiRail {
    fn kind(&self) -> RailKind {
        RailKind::Ofi
    }

    fn send(&mut self, lane: Lane, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        self.take(lane, &Outgoing { head, body, put: None, silent: false, more: false })
    }

    fn put(&mut self, lane: Lane, put: Put<'_>, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        let window = self.window(&put)?;
        self.take(lane, &Outgoing { head, body, put: Some((put, window)), silent: false, more: false })
    }

    fn write(&mut self, lane: Lane, put: Put<'_>) -> Result<(), SendError> {
        let window = self.window(&put)?;
        self.take(
            lane,
            &Outgoing { head: &[], body: &[], put: Some((put, window)), silent: true, more: false },
        )
    }

    /// Silence counts from the request for an answer, which the peer's program sends when it next
    /// polls.
    fn health(&mut self) -> Health {
        // Arrivals count however late this program polls.
        self.read();
        let ends = &mut self.parts.endpoints;
        let heard = ends.iter().map(|end| end.signs).sum();
        let under_way = ends.iter().any(Endpoint::is_owed);
        let silent = self.quiet.look(clock::now(), heard, under_way);
        if silent > Nanos(0) {
            ends.iter_mut().for_each(Endpoint::inquire);
        }
        let unsent = ends.iter().map(Endpoint::unsent).sum();
        self.progress();
        Health { unsent, silent: Some(silent), ..Health::default() }
    }

    fn abandon(&mut self) {
        self.abandoned = true;
    }

    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost> {
        if let Some(lost) = &self.lost {
            self.loss_reported = true;
            return Err(lost.clone());
        }
        self.progress();
        let mut delivered = self.deliver(limit, deliver);
        if let Some(lost) = self.end() {
            for _ in 0..LAST_LOOKS {
                if delivered > 0 || limit == 0 || self.parts.endpoints.iter().any(Endpoint::has_arrivals) {
                    break;
                }
                self.progress();
                delivered = self.deliver(limit, deliver);
            }
            if delivered == 0 && limit > 0 && !self.parts.endpoints.iter().any(Endpoint::has_arrivals) {
                self.loss_reported = true;
                self.lost = Some(lost.clone());
                return Err(lost);
            }
        } else if delivered > 0 {
            // The buffers are posted again at once; the peer is told when that is due.
            self.post();
        }
        Ok(delivered)
    }

    fn flush(&mut self) -> Result<(), Lost> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        self.progress();
        Ok(())
    }

    fn pending(&mut self) -> bool {
        if self.lost.is_some() {
            return !self.loss_reported;
        }
        self.end().is_some()
            || self.parts.endpoints.iter().any(Endpoint::wants_another_look)
            || self.parts.device.fd.is_none()
            || !self.parts.device.may_sleep()
    }

    #[allow(unsafe_code, reason = "the descriptor is the library's")]
    fn register(&self, epoll: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let Some(fd) = self.parts.device.fd else { return Ok(()) };
        // SAFETY: the queue that it belongs to lives as long as the rail.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(token), flags)?)
    }
}

impl Drop for OfiRail {
    #[allow(unsafe_code, reason = "takes the parts out of what is dropped")]
    fn drop(&mut self) {
        // Nothing is written into the windows any more, whatever happens below.
        self.parts.window_regions.iter_mut().for_each(|region| {
            region.close();
        });
        // Nothing is sent to a peer that is gone: some providers touch its memory.
        let says_goodbye = !self.abandoned && self.end().is_none();
        // SAFETY: taken once, and the rail is not used afterwards.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        let mut remains = Remains::new(parts, self.sessions, self.gone.clone(), says_goodbye);
        if !remains.look() {
            reaper::close(remains);
        }
    }
}
