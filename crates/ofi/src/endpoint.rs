//! One lane of a rail: an endpoint, the buffers that wait for messages, and the queue of outgoing
//! operations.
//!
//! **Receiving.** [`SLOTS`] buffers are posted at all times, except the few whose message is being
//! handed over. [`WINDOW`] of them are the peer's credit: it sends a counted message only while
//! fewer than that are outstanding. The rest is for messages about credit. So the provider never
//! drops or refuses a message for want of a buffer.
//!
//! **Sending.** Data of the caller are copied into a ring that the provider may read, so the
//! caller's memory is free at once. Operations are posted in the order in which they were taken. A
//! message that belongs to a write follows it if the provider keeps that order, else when the write
//! is complete at the peer.
//!
//! **Overlapping writes.** The peer's processor puts data from messages in place when it polls; a
//! write of the adapter might be faster. So a write that touches bytes of an earlier put waits
//! until the peer has reported that it took that put.
//!
//! This module does not know the windows of this side, nor which threads sleep.
#![allow(unsafe_code, reason = "hands memory to a C library")]

mod order;
mod post;
mod receive;
mod stage;

use plexus_fabric::{Lane, MAX_WORDWISE};

use crate::{
    OfiError,
    buffer::{Buffer, Staging},
    device::{Device, Object, Region},
    long::LongPutMemory,
    operations::{OPERATIONS, OperationKind, Operations, State},
    port::EndpointPort,
    sys,
    touched::{PutsInFlight, before},
    wire::{self, MAX_MESSAGE},
};
use order::InOrder;

pub(crate) use order::Arrival;

/// The counted messages that may be in flight to one side of a lane, about as many small ones as a
/// link's credits permit.
const WINDOW: u32 = 128;

/// The buffers for messages that are not counted. Two may carry credit (one for each half window,
/// and the peer sends no further half before it read one), two a question and an answer, one begins
/// and one ends the rail.
const SPARE: usize = 8;

/// The buffers that wait for messages in each lane.
pub(crate) const SLOTS: usize = WINDOW as usize + SPARE;

/// A line more than the longest message, rounded to lines, so that no two buffers share one.
const SLOT_LEN: usize = MAX_MESSAGE.next_multiple_of(64);

/// The bytes that may wait or be in flight, by lane.
const STAGED: [usize; 2] = [512 << 10, 2 << 20];

/// The place of a message without a frame while it is sent, behind the ring.
const CONTROL_LEN: usize = 64;

const _: () = {
    assert!(stage::INLINE + MAX_MESSAGE <= 2 * SLOT_LEN && stage::LONG + 2 * MAX_MESSAGE <= STAGED[0]);
    assert!(MAX_WORDWISE + 8 * MAX_MESSAGE <= STAGED[0]);
    assert!(wire::BASE_LEN <= CONTROL_LEN);
};

/// The identifiers of calls: a buffer below [`SLOTS`], then the operations, and the control message
/// last.
const CONTROL: usize = SLOTS + OPERATIONS;
const CONTEXTS: usize = CONTROL + 1;

/// One lane of a rail, see the [module documentation](self). Fields are closed and freed from the
/// top.
pub(crate) struct Endpoint {
    port: EndpointPort,
    slots_region: Option<Region>,
    staged_region: Option<Region>,
    slots: Buffer,
    staged: Buffer,
    lane: Lane,
    /// The session that arriving messages must carry.
    session: u64,
    /// The session that sent messages carry.
    peer_session: u64,

    arrived: InOrder,
    unposted: Vec<usize>,
    /// The counted messages whose buffer was posted again, and the number of them that was reported
    /// to the peer.
    taken: u32,
    said: u32,
    /// The count for whose report the peer has asked.
    asked: Option<u32>,

    staging: Staging,
    operations: Operations,
    longs: LongPutMemory,
    /// The counted messages: staged, posted, and known to be taken.
    sequence: u32,
    posted: u32,
    acknowledged: u32,
    under_way: PutsInFlight,
    /// The posted messages when the peer was last asked for its count.
    asks: Option<u32>,
    ask_due: bool,
    control_posted: bool,
    /// True once the first message to the peer was sent, and one of its messages came.
    greeted: bool,
    pub(crate) heard: bool,
    /// The messages of the peer that have come, and the writes that it is known to have.
    pub(crate) signs: u64,
    /// True if the provider had no room for an operation at the last attempt.
    refused: bool,
}

impl Endpoint {
    /// Opens an endpoint that receives.
    pub(crate) fn open(
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
            port: EndpointPort::new(endpoint, lane, CONTEXTS),
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
            longs: LongPutMemory::new(key()),
            sequence: 0,
            posted: 0,
            acknowledged: 0,
            under_way: PutsInFlight::default(),
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

    pub(crate) fn object(&self) -> &Object<sys::Ep> {
        self.port.object()
    }

    /// Sets the peer to which it sends from now on, and its `session`.
    pub(crate) fn connect(&mut self, peer: u64, session: u64) {
        (self.port.peer, self.peer_session) = (peer, session);
    }

    /// Returns true if the provider holds no operation.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.control_posted && self.operations.iter().all(|operation| operation.state() != State::Posted)
    }

    /// Returns true if the peer has not yet reported that it took everything sent to it.
    pub(crate) fn is_owed(&self) -> bool {
        self.posted != self.acknowledged || !self.operations.are_empty()
    }

    /// Asks the peer for its count, once for each answer. The peer reports it by itself, but late.
    pub(crate) fn inquire(&mut self) {
        let answered = self.asks.is_none_or(|asked| !before(self.acknowledged, asked));
        self.ask_due |= self.posted != self.acknowledged && answered;
    }

    /// Returns true if something waits that no completion will announce.
    pub(crate) fn wants_another_look(&self) -> bool {
        self.has_arrivals() || !self.heard || !self.greeted || self.refused || !self.unposted.is_empty()
    }

    /// The bytes that wait here.
    pub(crate) fn unsent(&self) -> u64 {
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
                if let OperationKind::Write { long: Some(long), .. } = &mut operation.kind {
                    long.keep();
                }
            }
        }
    }
}
