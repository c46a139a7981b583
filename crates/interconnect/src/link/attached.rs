//! The rails of a link and their reports.

use std::sync::{Arc, Mutex, MutexGuard};

use plexus_base::{Incarnation, Nanos, NodeId, WorkerId};
use plexus_fabric::{Health, Rail, RailKind};

use super::{
    LinkCounters,
    protocol::{LinkCore, Rank},
};
use crate::{RailReport, RailState, Reason, sync::lock};

/// A rail of a link.
pub(super) struct AttachedRail {
    pub(super) slot: u8,
    pub(super) generation: u32,
    pub(super) rail: Box<dyn Rail>,
    /// The `retains` of its [`Rank`].
    pub(super) retains: bool,
    /// True if something was sent since the last flush.
    pub(super) unflushed: bool,
    pub(super) health: Health,
    pub(super) bytes_out: u64,
    pub(super) bytes_in: u64,
}

/// The rail in a slot.
#[inline]
pub(super) fn at(rails: &mut [AttachedRail], slot: u8) -> Option<&mut AttachedRail> {
    rails.iter_mut().find(|attached| attached.slot == slot)
}

/// A connected rail, on its way to its link.
pub(crate) struct NewRail {
    pub(crate) slot: u8,
    pub(crate) generation: u32,
    pub(crate) rail: Box<dyn Rail>,
    /// The health of the rail when it was connected.
    pub(crate) health: Health,
    /// Both ends of the path, for reports.
    pub(crate) path: String,
}

/// The rank of a kind of rail: memory is faster than a fabric, and that faster than sockets. Over
/// memory nothing is lost while the peer lives.
pub(super) fn rank(kind: RailKind) -> Rank {
    let class = match kind {
        RailKind::Shm => 0,
        RailKind::Ofi => 1,
        RailKind::Tcp => 2,
    };
    Rank { class, retains: kind != RailKind::Shm }
}

/// The public view of a link. Its rails are as they were at the last tick or change.
#[derive(Clone, Debug)]
pub struct LinkInfo {
    /// The node at the other end.
    pub peer: NodeId,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
    /// The worker that owns the link.
    pub worker: WorkerId,
    /// The counters of its channels.
    pub counters: Arc<LinkCounters>,
    rails: Arc<Mutex<Vec<RailReport>>>,
}

impl LinkInfo {
    pub(crate) fn new(peer: NodeId, incarnation: Incarnation, worker: WorkerId) -> Self {
        Self { peer, incarnation, worker, counters: Arc::default(), rails: Arc::default() }
    }

    /// The view of a link to another incarnation of the peer, which goes on counting.
    pub(crate) fn with_incarnation(&self, incarnation: Incarnation) -> Self {
        Self { incarnation, rails: Arc::default(), ..self.clone() }
    }

    /// Every rail that the link has or had.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        let mut rails = self.lock().clone();
        for rail in rails.iter_mut().filter(|rail| rail.kind == RailKind::Shm) {
            // Nothing ticks for memory, and it carries everything.
            let total = |sides: fn(&crate::ChannelCounts) -> [u64; 2]| -> u64 {
                self.counters.iter().flat_map(|channel| sides(&channel.snapshot())).sum()
            };
            rail.bytes_out = total(|c| [c.client_out.total_bytes(), c.server_out.total_bytes()]);
            rail.bytes_in = total(|c| [c.client_in.total_bytes(), c.server_in.total_bytes()]);
        }
        rails
    }

    /// The kind of rail that carries prompt messages, if any.
    #[must_use]
    pub fn best(&self) -> Option<RailKind> {
        self.lock().iter().find(|rail| rail.reason == Reason::Best).map(|rail| rail.kind)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RailReport>> {
        lock(&self.rails)
    }

    /// Adds a rail, or renews the entry of its slot.
    pub(crate) fn connected(&self, new: &NewRail) {
        let mut rails = self.lock();
        let index = rails.iter().position(|rail| rail.slot == new.slot).unwrap_or_else(|| {
            let index = rails.iter().take_while(|rail| rail.slot < new.slot).count();
            let (kind, path) = (new.rail.kind(), new.path.clone());
            rails.insert(index, RailReport::never_connected(self.peer, self.worker, new.slot, kind, path));
            index
        });
        let rail = &mut rails[index];
        (rail.kind, rail.generation, rail.path) = (new.rail.kind(), new.generation, new.path.clone());
        rail.encrypted = new.health.encrypted;
    }

    /// Updates every entry.
    pub(super) fn refresh<F>(&self, core: &LinkCore<F>, rails: &mut [AttachedRail], now: Nanos) {
        for report in &mut *self.lock() {
            (report.state, report.reason) = core.state(report.slot, now);
            (report.failures, report.frames_resent) = core.failures(report.slot);
            let Some(attached) = rails.iter_mut().find(|attached| attached.slot == report.slot) else {
                continue;
            };
            let Health { mtu, rtt, segments, retransmits, encrypted, .. } = attached.health;
            (report.mtu, report.rtt, report.encrypted) = (mtu, rtt, encrypted);
            (report.segments, report.retransmits) = (segments, retransmits);
            report.bytes_out += std::mem::take(&mut attached.bytes_out);
            report.bytes_in += std::mem::take(&mut attached.bytes_in);
        }
    }

    /// Records that the whole link is gone.
    pub(super) fn gone(&self, why: Reason) {
        for report in &mut *self.lock() {
            (report.state, report.reason) = (RailState::Down, why);
        }
    }
}
