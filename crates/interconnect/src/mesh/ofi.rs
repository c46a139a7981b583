//! A rail over libfabric between two nodes: the two TCP connections that proved who they are carry the offers of both
//! ends, and stay open as the sign that the peer lives.
//!
//! libfabric does not tell that a peer is gone, but the system closes a dead process's connections: the end of these
//! is the end of the rail. Opening an end may take a second where libfabric looks for its providers first, so it is
//! done on a thread of its own.
//!
//! libfabric encrypts nothing: between nodes that must encrypt this kind is left out.

use std::{
    io,
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Release},
    },
    thread,
    time::{Duration, Instant},
};

use plexus_base::{Incarnation, Nanos};
use plexus_fabric::{
    Access, Frame, Health, LANES, Lane, Lost, Put, Rail, RailKind, SendError,
    ofi::{Offer, OfiEndpoint, OfiError, OfiRail},
};

use super::common::{Common, Made};

/// For both ends to open what they need and to hear each other.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// Between two looks at connections that are being set up.
const PAUSE: Duration = Duration::from_millis(1);

/// Providers in the order in which they are tried where none is asked for.
const PROVIDERS: [&str; 3] = ["verbs", "efa", "tcp"];

/// Polls that found nothing, between two looks at the sign of incarnation; who sleeps is woken by it.
const INCARNATION_EVERY: u32 = 1024;

/// Makes the rail of `made`, which runs over TCP, one over libfabric, and hands it to its worker.
pub(super) fn attach(common: Arc<Common>, here: IpAddr, made: Made, incarnation: Incarnation) {
    let place = made.place;
    if let Some(pair) = common.pairs().get_mut(&place.peer) {
        pair.hold(place.slot, place.worker, Instant::now() + LIMIT);
    }
    let shared = common.clone();
    let run = move || {
        let Made { place, generation, rail, path } = made;
        match exchange(&common, here, rail) {
            Ok(rail) => {
                let path = format!("{path}, {}", rail.ofi.provider());
                common.attach(Made { place, generation, rail: Box::new(rail), path }, incarnation);
            }
            Err(why) => common.failed(place, why),
        }
    };
    if let Err(error) = thread::Builder::new().name("ofi".into()).spawn(run) {
        shared.failed(place, format!("start a thread: {error}"));
    }
}

/// An end over the provider that is asked for, else over the first that this host has.
fn open(common: &Common, here: IpAddr) -> Result<OfiEndpoint, String> {
    let mut refused = String::new();
    let wanted = common.config.ofi_provider.as_deref();
    for provider in wanted.map_or(&PROVIDERS[..], |_| &[]).iter().copied().chain(wanted) {
        match OfiEndpoint::open(provider, Some(here), common.windows.clone()) {
            Ok(end) => return Ok(end),
            Err(why @ (OfiError::Absent { .. } | OfiError::Version { .. })) => return Err(why.to_string()),
            Err(why) => refused = why.to_string(),
        }
    }
    Err(refused)
}

/// Tells the peer what this end offers, hears what it does, and goes on until both hear each other.
fn exchange(common: &Common, here: IpAddr, mut incarnation: Box<dyn Rail>) -> Result<Guarded, String> {
    let end = open(common, here)?;
    incarnation.send(Lane::Prompt, &end.offer().encode(), &[]).map_err(|error| error.to_string())?;
    let until = Instant::now() + LIMIT;
    let mut theirs = Vec::new();
    let lost = |lost: Lost| {
        format!("libfabric: {lost} while the ends were set up; the other node's log and status may say why")
    };
    while theirs.is_empty() {
        incarnation.flush().map_err(lost)?;
        incarnation
            .poll(1, &mut |_, frame| {
                theirs.resize(frame.len(), 0);
                frame.copy(0, &mut theirs);
            })
            .map_err(lost)?;
        pause(common, until)?;
    }
    let offer = Offer::decode(&theirs).map_err(|bad| bad.to_string())?;
    let gone = Arc::new(AtomicBool::new(false));
    let mut ofi = end.connect(offer, gone.clone()).map_err(|why| why.to_string())?;
    while !ofi.is_connected() {
        ofi.flush().map_err(lost)?;
        incarnation.poll(1, &mut |_, _| {}).map_err(lost)?;
        pause(common, until)?;
    }
    Ok(Guarded { ofi, incarnation, gone, quiet: 0, witness: Witness::default() })
}

fn pause(common: &Common, until: Instant) -> Result<(), String> {
    if common.is_stopping() || Instant::now() > until {
        return Err("the other end was not heard over libfabric in time".into());
    }
    thread::sleep(PAUSE);
    Ok(())
}

/// The rail, and the connections whose end is its end.
struct Guarded {
    ofi: OfiRail,
    incarnation: Box<dyn Rail>,
    gone: Arc<AtomicBool>,
    quiet: u32,
    witness: Witness,
}

impl Guarded {
    fn look_at_incarnation(&mut self) {
        match self.incarnation.poll(64, &mut |_, _| {}) {
            Ok(frames) => self.witness.heard(frames),
            Err(_) => self.gone.store(true, Release),
        }
    }
}

/// Tells a fabric that is dead from a peer whose program has no time: over the connections it is heard with every tick of
/// its own, and with each it looks at the fabric, too.
#[derive(Default)]
struct Witness {
    /// Ticks of the peer since the fabric became silent.
    ticks: usize,
}

impl Witness {
    /// The first may have been on its way before it was asked over the fabric, or be the one after which it looks there.
    const ENOUGH: usize = 2;

    fn heard(&mut self, frames: usize) {
        self.ticks = self.ticks.saturating_add(frames);
    }

    /// How long the path is silent, when nothing came for so long over the `fabric`, and the peer's host was heard by
    /// the `system`.
    fn silent(&mut self, fabric: Nanos, system: Option<Nanos>) -> Nanos {
        if fabric == Nanos(0) {
            self.ticks = 0;
        }
        if self.ticks >= Self::ENOUGH { fabric } else { system.map_or(fabric, |system| system.min(fabric)) }
    }
}

impl Rail for Guarded {
    fn kind(&self) -> RailKind {
        self.ofi.kind()
    }

    fn send(&mut self, lane: Lane, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        self.ofi.send(lane, head, body)
    }

    fn put(&mut self, lane: Lane, put: Put<'_>, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        self.ofi.put(lane, put, head, body)
    }

    fn write(&mut self, lane: Lane, put: Put<'_>) -> Result<(), SendError> {
        self.ofi.write(lane, put)
    }

    fn direct(&mut self, access: Access<'_>) -> Option<Result<u64, SendError>> {
        self.ofi.direct(access)
    }

    /// The connection carries an empty frame, the sign that this program looks at the fabric. Its system acknowledges it
    /// however busy the peer's processes are: while those do not show themselves, the system speaks for the host.
    fn health(&mut self) -> Health {
        self.look_at_incarnation();
        let _ = self.incarnation.send(Lane::Prompt, &[], &[]);
        let _ = self.incarnation.flush();
        let Health { unsent, bulk, silent, .. } = self.ofi.health();
        let incarnation = self.incarnation.health();
        let silent = silent.map(|fabric| self.witness.silent(fabric, incarnation.silent));
        let lane_silent = [None; LANES];
        Health { unsent, bulk, silent, lane_silent, encrypted: false, mtu: 0, ..incarnation }
    }

    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost> {
        let delivered = self.ofi.poll(limit, deliver)?;
        if delivered == 0 {
            self.quiet += 1;
            if self.quiet.is_multiple_of(INCARNATION_EVERY) {
                self.quiet = 0;
                self.look_at_incarnation();
            }
        }
        Ok(delivered)
    }

    fn abandon(&mut self) {
        self.ofi.abandon();
    }

    fn flush(&mut self) -> Result<(), Lost> {
        self.ofi.flush()
    }

    fn pending(&mut self) -> bool {
        // Drains it, so that its end will be announced.
        self.look_at_incarnation();
        self.ofi.pending()
    }

    fn register(&self, epoll: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.ofi.register(epoll, token)?;
        self.incarnation.register(epoll, token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_ms;

    #[test]
    fn a_dead_fabric_is_silent_though_the_connection_lives() {
        let mut witness = Witness::default();
        assert_eq!(witness.silent(MS(0), Some(MS(0))), MS(0));
        witness.heard(1);
        assert_eq!(witness.silent(MS(10), Some(MS(0))), MS(0), "that tick may be older than the question");
        witness.heard(1);
        assert_eq!(witness.silent(MS(20), Some(MS(0))), MS(20), "it looked and did not answer");
        assert_eq!(witness.silent(MS(30), Some(MS(10))), MS(30));
        assert_eq!(witness.silent(MS(0), Some(MS(0))), MS(0), "the fabric was heard");
        witness.heard(1);
        assert_eq!(witness.silent(MS(10), Some(MS(0))), MS(0), "and the count begins anew");
    }

    #[test]
    fn a_busy_peer_is_not_silent_and_a_dead_host_is() {
        let mut witness = Witness::default();
        assert_eq!(witness.silent(MS(500), Some(MS(5))), MS(5), "its system answers, its program does not");
        assert_eq!(witness.silent(MS(500), Some(MS(400))), MS(400), "its system does not answer either");
        assert_eq!(witness.silent(MS(2), Some(MS(400))), MS(2), "the fabric lives without the connection");
    }
}
