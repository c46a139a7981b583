//! One lane of a rail: an endpoint, the buffers that wait for messages, and the queue of what goes out.
//!
//! **Receiving.** [`SLOTS`] buffers are posted at all times but for the few whose message is being handed over.
//! [`WINDOW`] of them are the peer's credit: it sends a counted message only while fewer than that are not taken off yet; the rest is
//! for the messages that say so. Nothing is ever dropped or refused by the provider for want of a buffer.
//!
//! **Sending.** What is taken from the caller is copied into a ring that the provider may read, so the caller's memory is
//! free at once. Operations go out in the order in which they were taken. A message that belongs to a write goes out behind
//! it where the provider keeps that order, else when the write is complete at the peer.
//!
//! **Writes that meet.** Data that travel in a message are put in place by the peer's processor when it gets there; a
//! write of the adapter might be faster. So a write that touches bytes of an earlier put waits until the peer has
//! said that it took that one.
//!
//! This module must not know what a window is on this side, or when anybody sleeps.
#![allow(unsafe_code, reason = "hands memory to a C library")]

mod order;
mod post;
mod receive;
mod stage;

use super::{
    OfiError,
    buffer::{Buffer, Staging},
    device::{Device, Object, Region},
    long::Longs,
    operations::{OPERATIONS, Operations, State, What},
    port::Port,
    sys,
    touched::{UnderWay, before},
    wire::{self, MAX_MESSAGE},
};
use crate::{Lane, MAX_WORDWISE};
use order::InOrder;

pub(super) use order::Arrival;

/// Counted messages that may be on their way to one side of a lane. A link's credits let about as many small ones be.
const WINDOW: u32 = 128;

/// Buffers for messages that are not counted. Two credits may be on their way (one for each half window, and the
/// peer sends no further half before it read one), two more that ask or answer, the one at the beginning and the one at the end.
const SPARE: usize = 8;

/// Buffers that wait for messages in each lane.
pub(super) const SLOTS: usize = WINDOW as usize + SPARE;

/// A line more than the longest message, rounded to lines, so that no two buffers share one.
const SLOT_LEN: usize = MAX_MESSAGE.next_multiple_of(64);

/// Bytes that may wait or be on their way, by lane.
const STAGED: [usize; 2] = [512 << 10, 2 << 20];

/// Where a message without a frame lies while it is sent, behind the ring.
const CONTROL_LEN: usize = 64;

const _: () = {
    assert!(stage::INLINE + MAX_MESSAGE <= 2 * SLOT_LEN && stage::LONG + 2 * MAX_MESSAGE <= STAGED[0]);
    assert!(MAX_WORDWISE + 8 * MAX_MESSAGE <= STAGED[0]);
    assert!(wire::BASE_LEN <= CONTROL_LEN);
};

/// What a call is known by: a buffer below [`SLOTS`], an operation from there on, and the control message behind them all.
const CONTROL: usize = SLOTS + OPERATIONS;
const CONTEXTS: usize = CONTROL + 1;

/// See the [module documentation](self). Fields are closed and freed from the top.
pub(super) struct Endpoint {
    port: Port,
    slots_region: Option<Region>,
    staged_region: Option<Region>,
    slots: Buffer,
    staged: Buffer,
    lane: Lane,
    /// What arrivals must carry.
    session: u64,
    /// What departures carry.
    peer_session: u64,

    arrived: InOrder,
    unposted: Vec<usize>,
    /// Counted messages whose buffer was posted again, and how many of them the peer knows of.
    taken: u32,
    said: u32,
    /// The peer waits to hear of so many.
    asked: Option<u32>,

    staging: Staging,
    operations: Operations,
    longs: Longs,
    /// Counted messages: staged, posted, and known to be taken.
    sequence: u32,
    posted: u32,
    acknowledged: u32,
    under_way: UnderWay,
    /// How many were posted when the peer was last asked what it took.
    asks: Option<u32>,
    ask_due: bool,
    control_posted: bool,
    /// The first message to the peer was sent, and something of it came.
    greeted: bool,
    pub(super) heard: bool,
    /// Messages of the peer that have come, and writes that it is known to have.
    pub(super) signs: u64,
    /// The provider had no room for an operation when it was last asked.
    refused: bool,
}

impl Endpoint {
    /// An endpoint that receives.
    pub(super) fn open(
        device: &Device,
        lane: Lane,
        session: u64,
        mut key: impl FnMut() -> u64,
    ) -> Result<Self, OfiError> {
        let endpoint = device.endpoint()?;
        let slots = Buffer::new(SLOTS * SLOT_LEN);
        let staged = Buffer::new(STAGED[lane.index()] + CONTROL_LEN);
        // SAFETY: the buffers are freed after the endpoint and the regions are closed, or never.
        let [slots_region, staged_region] = unsafe {
            let [a, b] = [&slots, &staged]
                .map(|buffer| device.register_local(&endpoint, buffer.at(0), buffer.len(), key()));
            [a?, b?]
        };
        let mut made = Self {
            port: Port::new(endpoint, lane, CONTEXTS),
            slots_region,
            staged_region,
            slots,
            staged,
            lane,
            session,
            peer_session: 0,
            arrived: InOrder::new(),
            unposted: (0..SLOTS).collect(),
            taken: 0,
            said: 0,
            asked: None,
            staging: Staging::new(STAGED[lane.index()]),
            operations: Operations::new(),
            longs: Longs::new(key()),
            sequence: 0,
            posted: 0,
            acknowledged: 0,
            under_way: UnderWay::default(),
            asks: None,
            ask_due: false,
            control_posted: false,
            greeted: false,
            heard: false,
            signs: 0,
            refused: false,
        };
        made.post_buffers()
            .map_err(|code| OfiError::Call { what: "post a buffer", why: device.explain(code) })?;
        Ok(made)
    }

    pub(super) fn object(&self) -> &Object<sys::Ep> {
        self.port.object()
    }

    /// From now on it sends to `peer`, in its `session`.
    pub(super) fn connect(&mut self, peer: u64, session: u64) {
        (self.port.peer, self.peer_session) = (peer, session);
    }

    /// Whether nothing is in the provider's hands.
    pub(super) fn is_quiet(&self) -> bool {
        !self.control_posted && self.operations.iter().all(|operation| operation.state() != State::Posted)
    }

    /// Whether the peer has not said yet that it took all that it gets from here.
    pub(super) fn is_owed(&self) -> bool {
        self.posted != self.acknowledged || !self.operations.are_empty()
    }

    /// Asks the peer what it took, once for each answer. It tells by itself, but not soon.
    pub(super) fn inquire(&mut self) {
        let answered = self.asks.is_none_or(|asked| !before(self.acknowledged, asked));
        self.ask_due |= self.posted != self.acknowledged && answered;
    }

    /// Whether something waits that no completion will announce.
    pub(super) fn wants_another_look(&self) -> bool {
        self.has_arrivals() || !self.heard || !self.greeted || self.refused || !self.unposted.is_empty()
    }

    /// Bytes that wait here.
    pub(super) fn unsent(&self) -> u64 {
        self.operations
            .iter()
            .filter(|operation| operation.state() != State::Done)
            .map(|o| o.len as u64)
            .sum()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.port.close() {
            // The provider may still use the memory.
            [&mut self.slots, &mut self.staged].into_iter().for_each(Buffer::keep);
            for operation in self.operations.iter_mut() {
                if let What::Write { long: Some(long), .. } = &mut operation.what {
                    long.keep();
                }
            }
        }
    }
}
