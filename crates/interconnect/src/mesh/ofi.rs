//! A rail over libfabric between two nodes. The two authenticated TCP connections carry the offers
//! of both ends, and stay open as the sign that the peer lives.
//!
//! libfabric does not report that a peer is gone, but the system closes a dead process's
//! connections: their end is the end of the rail. Opening an endpoint may take a second while
//! libfabric looks for its providers, so a separate thread does it.
//!
//! libfabric encrypts nothing: nodes that must encrypt do not use this rail.

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
use plexus_fabric::{Access, Frame, Health, LANES, Lane, Lost, Put, Rail, RailKind, SendError};
use plexus_ofi::{Offer, OfiEndpoint, OfiError, OfiRail};

use super::common::{ConnectedRail, MeshState};

/// The time for both ends to open their endpoints and to receive each other.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two looks at connections that are being set up.
const PAUSE: Duration = Duration::from_millis(1);

/// The order in which providers are tried if none is configured.
const PROVIDERS: [&str; 3] = ["verbs", "efa", "tcp"];

/// The polls that found nothing, between two looks at the TCP connections; those wake a sleeper by
/// themselves.
const CONNECTIONS_EVERY: u32 = 1024;

/// Replaces the TCP rail of `made` by one over libfabric, and hands that to its worker.
pub(super) fn attach(common: Arc<MeshState>, here: IpAddr, made: ConnectedRail, incarnation: Incarnation) {
    let place = made.place;
    if let Some(pair) = common.pairs().get_mut(&place.peer) {
        pair.delay(place.slot, place.worker, Instant::now() + SETUP_TIMEOUT);
    }
    let shared = common.clone();
    let run = move || {
        let ConnectedRail { place, generation, rail, path } = made;
        match exchange(&common, here, rail) {
            Ok(rail) => {
                let path = format!("{path}, {}", rail.ofi.provider());
                common.attach(ConnectedRail { place, generation, rail: Box::new(rail), path }, incarnation);
            }
            Err(why) => common.failed(place, why),
        }
    };
    if let Err(error) = thread::Builder::new().name("ofi".into()).spawn(run) {
        shared.failed(place, format!("cannot start a thread: {error}"));
    }
}

/// Opens an endpoint over the configured provider, else over the first that this host has.
fn open(common: &MeshState, here: IpAddr) -> Result<OfiEndpoint, String> {
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

/// Sends this end's offer, receives the peer's, and goes on until both ends receive each other.
fn exchange(common: &MeshState, here: IpAddr, mut connections: Box<dyn Rail>) -> Result<GuardedRail, String> {
    let end = open(common, here)?;
    connections.send(Lane::Prompt, &end.offer().encode(), &[]).map_err(|error| error.to_string())?;
    let until = Instant::now() + SETUP_TIMEOUT;
    let mut theirs = Vec::new();
    let lost = |lost: Lost| {
        format!("libfabric: {lost} while the rail was set up; see the log and status of the other node")
    };
    while theirs.is_empty() {
        connections.flush().map_err(lost)?;
        connections
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
        connections.poll(1, &mut |_, _| {}).map_err(lost)?;
        pause(common, until)?;
    }
    Ok(GuardedRail { ofi, connections, gone, idle_polls: 0, judge: SilenceJudge::default() })
}

fn pause(common: &MeshState, until: Instant) -> Result<(), String> {
    if common.is_stopping() || Instant::now() > until {
        return Err("the other end did not answer over libfabric in time".into());
    }
    thread::sleep(PAUSE);
    Ok(())
}

/// The rail, and the connections whose end is its end.
struct GuardedRail {
    ofi: OfiRail,
    connections: Box<dyn Rail>,
    gone: Arc<AtomicBool>,
    idle_polls: u32,
    judge: SilenceJudge,
}

impl GuardedRail {
    fn look_at_connections(&mut self) {
        match self.connections.poll(64, &mut |_, _| {}) {
            Ok(frames) => self.judge.heard(frames),
            Err(_) => self.gone.store(true, Release),
        }
    }
}

/// Distinguishes a dead fabric from a peer that is too busy. A peer sends with every tick over the
/// TCP connections, and looks at the fabric with each tick, too.
#[derive(Default)]
struct SilenceJudge {
    /// The ticks of the peer since the fabric became silent.
    ticks: usize,
}

impl SilenceJudge {
    /// The number of ticks that shows a dead fabric. The first may have been sent before the probe
    /// over the fabric, or be the one after which the peer looks there.
    const TICKS_OF_A_DEAD_FABRIC: usize = 2;

    fn heard(&mut self, frames: usize) {
        self.ticks = self.ticks.saturating_add(frames);
    }

    /// The silence of the path, given how long nothing came over the `fabric` and over the
    /// `system`'s connections.
    fn silent(&mut self, fabric: Nanos, system: Option<Nanos>) -> Nanos {
        if fabric == Nanos(0) {
            self.ticks = 0;
        }
        if self.ticks >= Self::TICKS_OF_A_DEAD_FABRIC {
            fabric
        } else {
            system.map_or(fabric, |system| system.min(fabric))
        }
    }
}

impl Rail for GuardedRail {
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

    /// The connection carries an empty frame, the sign that this program looks at the fabric. The
    /// peer's system acknowledges it however busy its processes are; while those send nothing, the
    /// system speaks for the host.
    fn health(&mut self) -> Health {
        self.look_at_connections();
        let _ = self.connections.send(Lane::Prompt, &[], &[]);
        let _ = self.connections.flush();
        let Health { unsent, bulk, silent, .. } = self.ofi.health();
        let connections = self.connections.health();
        let silent = silent.map(|fabric| self.judge.silent(fabric, connections.silent));
        let lane_silent = [None; LANES];
        Health { unsent, bulk, silent, lane_silent, encrypted: false, mtu: 0, ..connections }
    }

    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost> {
        let delivered = self.ofi.poll(limit, deliver)?;
        if delivered == 0 {
            self.idle_polls += 1;
            if self.idle_polls.is_multiple_of(CONNECTIONS_EVERY) {
                self.idle_polls = 0;
                self.look_at_connections();
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
        // Drains the connection, so that its end will be announced.
        self.look_at_connections();
        self.ofi.pending()
    }

    fn register(&self, epoll: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.ofi.register(epoll, token)?;
        self.connections.register(epoll, token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_ms;

    #[test]
    fn a_dead_fabric_is_silent_though_the_connection_is_open() {
        let mut judge = SilenceJudge::default();
        assert_eq!(judge.silent(MS(0), Some(MS(0))), MS(0));
        judge.heard(1);
        assert_eq!(judge.silent(MS(10), Some(MS(0))), MS(0), "that tick may be older than the probe");
        judge.heard(1);
        assert_eq!(
            judge.silent(MS(20), Some(MS(0))),
            MS(20),
            "the peer looked at the fabric and did not answer"
        );
        assert_eq!(judge.silent(MS(30), Some(MS(10))), MS(30));
        assert_eq!(judge.silent(MS(0), Some(MS(0))), MS(0), "something came over the fabric");
        judge.heard(1);
        assert_eq!(judge.silent(MS(10), Some(MS(0))), MS(0), "the count starts again");
    }

    #[test]
    fn a_busy_peer_is_not_silent_and_a_dead_host_is() {
        let mut judge = SilenceJudge::default();
        assert_eq!(judge.silent(MS(500), Some(MS(5))), MS(5), "the system answers, the program does not");
        assert_eq!(judge.silent(MS(500), Some(MS(400))), MS(400), "the system does not answer either");
        assert_eq!(judge.silent(MS(2), Some(MS(400))), MS(2), "the fabric lives without the connection");
    }
}
