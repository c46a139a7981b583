//! The rail itself: two endpoints, one queue of completions, and what the interconnect sees of them.

use std::{
    ffi::c_int,
    io,
    mem::{ManuallyDrop, MaybeUninit},
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Acquire},
    },
};

use plexus_base::{Nanos, clock, crc32c_append};
use rustix::event::epoll;

use super::{
    OfiError,
    device::{Device, Region},
    endpoint::{Arrival, Endpoint, SLOTS},
    offer::{MAX_WINDOWS, Offer, RemoteWindow},
    operations::OPERATIONS,
    outgoing::Outgoing,
    port::Completed,
    reaper::{self, Ending},
    sys, twins,
    wire::{Kind, MAX_MESSAGE},
};
use crate::{
    Frame, Health, LANES, Lane, Lost, MAX_FRAME, Put, Rail, RailKind, SendError, Window, Windows,
    put_fields::Target,
};

/// Completions that are read in one call.
const BATCH: usize = 32;

/// Looks at the queue after the peer is known to be gone: what it sent before lies in this host's memory, and each look
/// takes some of it.
const LAST_LOOKS: usize = 16;

/// Why a rail that cannot put what is long ends.
const NOT_PINNED: &str =
    "libfabric cannot pin memory for a long put: raise the limit of locked memory (ulimit -l)";

/// One end of a rail to be: everything is open and receives, and the peer is not known yet.
pub struct OfiEndpoint {
    parts: Parts,
    offer: Offer,
}

/// What is closed when a rail ends, from the top: first of all the windows, so that nothing is written any more.
pub(super) struct Parts {
    window_regions: Vec<Region>,
    endpoints: [Endpoint; LANES],
    device: Device,
    windows: Arc<Windows>,
}

// SAFETY: the pointers in it lead to memory and to objects of libfabric that belong to this rail alone, in a domain of
// its own; libfabric binds none of them to a thread, and `&Parts` gives no access from a second one.
#[allow(unsafe_code, reason = "the objects of a C library move with the rail")]
unsafe impl Send for Parts {}

impl OfiEndpoint {
    /// Opens an end over `provider` (`tcp`, `verbs`, `efa`, `shm`), at `address` of this host where the provider is
    /// named by one, and registers `windows` for the peer to write into.
    ///
    /// # Errors
    /// See [`OfiError`]: there is no libfabric, no such provider, no memory that it could pin.
    pub fn open(provider: &str, address: Option<IpAddr>, windows: Arc<Windows>) -> Result<Self, OfiError> {
        let device = Device::open(provider, address, LANES * (SLOTS + OPERATIONS + 1))?;
        let facts = &device.facts;
        let unfit = |why: &str| OfiError::Provider { wanted: provider.into(), why: why.into() };
        if facts.max_len < MAX_MESSAGE {
            return Err(unfit("its longest message is shorter than a frame"));
        }
        if !Offer::names(&facts.provider) {
            return Err(unfit("its name is too long"));
        }
        let count = windows.spans().count();
        if count > MAX_WINDOWS {
            return Err(OfiError::Windows { windows: count });
        }
        let session = random()?;
        // Keys that are not to be guessed, and that differ.
        let (first_key, mut keys) = (random()?, 0u64);
        let mut key = || {
            keys += 1;
            first_key.wrapping_add(keys)
        };
        let [prompt, bulk] = Lane::ALL.map(|lane| Endpoint::open(&device, lane, session, &mut key));
        let endpoints = [prompt?, bulk?];
        let mut parts = Parts { window_regions: Vec::new(), endpoints, device, windows };
        let remote = parts.register(&mut key)?;
        let [prompt, bulk] = parts.endpoints.each_ref().map(|end| parts.device.name(end.object()));
        let offer = Offer {
            session,
            provider: parts.device.facts.provider.clone(),
            address_format: parts.device.facts.address_format,
            addresses: [prompt?, bulk?],
            windows: remote,
        };
        Ok(Self { parts, offer })
    }

    /// What to send to the peer.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The rail to the peer that sent `offer`. Whoever calls this sets `gone` when it learns that the peer is gone, and
    /// rings the worker's bell.
    ///
    /// # Errors
    /// The peer uses another provider, or its addresses are refused.
    pub fn connect(self, offer: Offer, gone: Arc<AtomicBool>) -> Result<OfiRail, OfiError> {
        let Self { mut parts, offer: ours } = self;
        if (&offer.provider, offer.address_format) != (&ours.provider, ours.address_format) {
            return Err(OfiError::Differs { ours: ours.provider, theirs: offer.provider });
        }
        for (endpoint, address) in parts.endpoints.iter_mut().zip(&offer.addresses) {
            endpoint.connect(parts.device.insert(address)?, offer.session);
        }
        twins::begin(&ours.provider, ours.session);
        let mut rail = OfiRail {
            parts: ManuallyDrop::new(parts),
            sessions: (ours.session, offer.session),
            peer_windows: offer.windows,
            landed: [0; LANES],
            gone,
            ending: None,
            lost: None,
            said: false,
            abandoned: false,
            quiet: Quiet { heard: 0, since: clock::now(), under_way: false },
        };
        rail.progress();
        Ok(rail)
    }
}

fn random() -> Result<u64, OfiError> {
    getrandom::u64().map_err(|error| OfiError::Call { what: "get random numbers", why: error.to_string() })
}

impl Parts {
    /// Registers the windows that the peer's adapter may write; what the peer must know of all of them.
    #[allow(unsafe_code, reason = "hands memory to a C library")]
    fn register(&mut self, key: &mut impl FnMut() -> u64) -> Result<Vec<RemoteWindow>, OfiError> {
        let mut remote = Vec::new();
        for span in self.windows.spans() {
            if span.wordwise {
                remote.push(RemoteWindow { span, base: 0, keys: [0; LANES] });
                continue;
            }
            let window = self.windows.find(span.id).expect("a window of the table");
            let base =
                if self.device.facts.virtual_addresses() { window.ptr().addr().get() as u64 } else { 0 };
            let mut keys = [0; LANES];
            for (place, endpoint) in keys.iter_mut().zip(&self.endpoints) {
                // SAFETY: the table keeps the window mapped, and it is dropped after the regions and endpoints.
                let region = unsafe {
                    let access = sys::FI_REMOTE_WRITE;
                    self.device.register(endpoint.object(), window.ptr(), window.len(), access, key())?
                };
                *place = region.key();
                self.window_regions.push(region);
            }
            remote.push(RemoteWindow { span, base, keys });
        }
        Ok(remote)
    }
}

impl Parts {
    /// Reads all completions.
    ///
    /// # Errors
    /// Why the rail is lost.
    #[allow(unsafe_code, reason = "reads what a C library wrote")]
    fn read(&mut self) -> Result<(), Lost> {
        let mut entries = [const { MaybeUninit::<sys::CqMsgEntry>::uninit() }; BATCH];
        loop {
            let count = match self.device.read(&mut entries) {
                Ok(count) => count,
                Err(sys::FI_EAGAIN) => return Ok(()),
                Err(sys::FI_EAVAIL) => {
                    self.read_error()?;
                    continue;
                }
                Err(code) => return Err(self.closed(code)),
            };
            for entry in &entries[..count] {
                // SAFETY: the queue wrote so many entries; their contexts are those of the endpoints, which live.
                let (completed, len) = unsafe {
                    let entry = entry.assume_init_ref();
                    (Completed::of(entry.op_context), entry.len)
                };
                let endpoint = &mut self.endpoints[completed.lane];
                if Endpoint::is_arrival(completed) {
                    endpoint.arrive(completed, len).map_err(Lost::Corrupt)?;
                } else {
                    endpoint.complete(completed, &self.device.facts);
                }
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    #[allow(unsafe_code, reason = "reads what a C library wrote")]
    fn read_error(&mut self) -> Result<(), Lost> {
        let Some((context, code)) = self.device.read_error() else { return Ok(()) };
        if context.is_null() {
            return Err(self.closed(code));
        }
        // SAFETY: the context of an operation of an endpoint that lives.
        let completed = unsafe { Completed::of(context) };
        if !Endpoint::is_arrival(completed) || code != sys::FI_ETRUNC {
            return Err(self.closed(code));
        }
        self.endpoints[completed.lane].overlong(completed);
        Ok(())
    }

    fn closed(&self, code: c_int) -> Lost {
        Lost::Closed(self.device.explain(code))
    }
}

/// A rail over libfabric. See the [module documentation](super).
pub struct OfiRail {
    parts: ManuallyDrop<Parts>,
    /// Of this end and of the other.
    sessions: (u64, u64),
    peer_windows: Vec<RemoteWindow>,
    /// Bytes of a put whose last piece is still to come, by lane.
    landed: [u32; LANES],
    gone: Arc<AtomicBool>,
    /// Why nothing more can be sent; what has arrived is still to be delivered.
    ending: Option<Lost>,
    lost: Option<Lost>,
    /// Whether [`Rail::poll`] has said why it is lost.
    said: bool,
    /// Nothing more is to be sent, not even a goodbye.
    abandoned: bool,
    quiet: Quiet,
}

/// How long nothing has come though something was to come, as far as looks tell.
struct Quiet {
    /// Signs of the peer that had come at the last look.
    heard: u64,
    since: Nanos,
    under_way: bool,
}

impl Quiet {
    /// `heard` signs have come, and the peer owes an answer while something is `under_way`.
    fn look(&mut self, now: Nanos, heard: u64, under_way: bool) -> Nanos {
        if self.heard != heard || !self.under_way || !under_way {
            self.since = now;
        }
        (self.heard, self.under_way) = (heard, under_way);
        now.since(self.since)
    }
}

impl OfiRail {
    /// Whether the peer was heard on both lanes. Until then someone must go on polling; [`Rail::pending`] says so.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.parts.endpoints.iter().all(|endpoint| endpoint.heard)
    }

    /// The provider's full name.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.parts.device.facts.provider
    }

    /// Reads all completions and sends what may be sent now.
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

    /// Hands over what has arrived.
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
                    // Nothing of what stands behind it is to be seen either.
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
                    deliver(lane, frame.behind(put));
                    delivered += 1;
                }
                endpoint.done(&arrival);
            }
        }
        delivered
    }

    /// Why nothing more will come, if that is so.
    fn end(&self) -> Option<Lost> {
        if let Some(ending) = &self.ending {
            Some(ending.clone())
        } else if self.parts.endpoints.iter().all(Endpoint::has_ended) {
            Some(Lost::Closed("the peer ended the rail".into()))
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
            // What was sent before may be through by now, or may go out.
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

    /// The peer's window that takes `put`.
    fn window(&self, put: &Put<'_>) -> Result<RemoteWindow, SendError> {
        let len = put.data.len() as u64;
        let most = (self.parts.device.facts.max_len as u64).min(u64::from(u32::MAX));
        let window = self.peer_windows.iter().find(|window| window.span.id == put.window);
        let fits = |window: &&RemoteWindow| window.span.holds(put.offset, len) && len <= most;
        window.filter(fits).copied().ok_or(SendError::TooLarge)
    }
}

/// Before a message is handed over: puts the data that came with it in place, or compares what was written before it.
fn settle(endpoint: &Endpoint, arrival: &Arrival, windows: &Windows) -> Result<(), &'static str> {
    const LATE: &str = "a put that is not expected";
    let Some(target) = &arrival.message.target else { return Ok(()) };
    let window = windows.find(target.window).ok_or("a put into a window that does not exist")?;
    let Target { offset, len, generation, crc, .. } = *target;
    if !window.span().holds(offset, u64::from(len)) {
        return Err("a put outside its window");
    }
    let expected = window.accepts(offset, u64::from(len), generation);
    let sum = match arrival.message.kind {
        Kind::Inline => {
            let from = arrival.message.frame.end;
            let data = endpoint.bytes(arrival, from..from + len as usize);
            let sum = plexus_base::crc32c(data);
            if expected && sum == crc {
                window.write(offset, data);
            }
            sum
        }
        // Whoever writes without a frame may write there again at any time.
        _ if arrival.message.silent => crc,
        _ => checksum(window, offset as usize, len as usize),
    };
    match (expected, sum == crc) {
        (true, true) => Ok(()),
        (false, _) => Err(LATE),
        (true, false) => Err("data of a put whose checksum does not match"),
    }
}

/// Over bytes of a window, copied out piece by piece.
fn checksum(window: &Window, offset: usize, len: usize) -> u32 {
    let mut piece = [0; 4096];
    (0..len).step_by(piece.len()).fold(0, |crc, at| {
        let piece = &mut piece[..(len - at).min(4096)];
        window.read(offset + at, piece);
        crc32c_append(crc, piece)
    })
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

    /// Silent is what nothing came from since the peer was asked to answer; it does so when its program next looks.
    fn health(&mut self) -> Health {
        // What has come counts, however late this program is to look.
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
            self.said = true;
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
                self.said = true;
                self.lost = Some(lost.clone());
                return Err(lost);
            }
        } else if delivered > 0 {
            // The buffers go back at once, and the peer hears of it when that is due.
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
            return !self.said;
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
        // Nothing lands any more, whatever happens below.
        self.parts.window_regions.iter_mut().for_each(|region| {
            region.close();
        });
        // To a peer that is gone nothing is sent: some providers touch its memory.
        let says_goodbye = !self.abandoned && self.end().is_none();
        // SAFETY: taken once, and the rail is not used afterwards.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        let mut remains = Remains {
            parts: Some(parts),
            sessions: self.sessions,
            gone: self.gone.clone(),
            said: [!says_goodbye; LANES],
        };
        if !remains.look() {
            reaper::close(remains);
        }
    }
}

/// What is left of a rail: endpoints with operations in the provider's hands. Nothing that only waits is posted any more.
pub(super) struct Remains {
    /// Until they are closed.
    parts: Option<Parts>,
    sessions: (u64, u64),
    gone: Arc<AtomicBool>,
    /// Whether nothing is to be said any more, by lane.
    said: [bool; LANES],
}

impl Ending for Remains {
    fn look(&mut self) -> bool {
        let Some(parts) = &mut self.parts else { return true };
        if parts.read().is_err() || self.gone.load(Acquire) || parts.endpoints.iter().all(Endpoint::has_ended)
        {
            return true;
        }
        let Parts { endpoints, device, .. } = parts;
        for (said, endpoint) in self.said.iter_mut().zip(endpoints.iter_mut()) {
            *said = *said || endpoint.is_quiet() && endpoint.end(&device.facts);
        }
        self.said == [true; LANES] && endpoints.iter().all(Endpoint::is_quiet)
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            let provider = parts.device.facts.provider.clone();
            let (session, twin) = self.sessions;
            twins::end(&provider, session, twin, parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_owed_makes_silence() {
        let ms = Nanos::from_ms;
        let mut quiet = Quiet { heard: 0, since: ms(0), under_way: false };
        assert_eq!(quiet.look(ms(100), 0, false), Nanos(0), "nobody was asked anything");
        assert_eq!(quiet.look(ms(200), 0, true), Nanos(0), "it went out since the last look");
        assert_eq!(quiet.look(ms(210), 0, true), ms(10));
        assert_eq!(quiet.look(ms(260), 0, true), ms(60));
        assert_eq!(quiet.look(ms(270), 1, true), Nanos(0), "something came");
        assert_eq!(quiet.look(ms(280), 1, true), ms(10));
        assert_eq!(quiet.look(ms(290), 1, false), Nanos(0), "all is answered");
    }
}
