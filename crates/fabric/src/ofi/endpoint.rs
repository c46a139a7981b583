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

use std::{collections::VecDeque, ffi::c_int};

use super::{
    OfiError,
    buffer::{Buffer, Staging},
    device::{Device, Facts, Object, Region},
    long::Longs,
    operations::{OPERATIONS, Operation, Operations, State, What},
    outgoing::Outgoing,
    port::{Completed, Piece, Port},
    sys,
    touched::{Touched, UnderWay, before},
    wire::{self, Decoded, Kind, MAX_MESSAGE, Message, Stamp},
};
use crate::{Lane, MAX_WORDWISE, SendError};

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

/// Puts up to this many bytes travel in the message: copying them costs less than another operation, and the peer's
/// processor can check before it lets them in.
const INLINE: usize = 4096;

/// Longer puts get memory of their own.
const LONG: usize = 256 << 10;

const _: () = {
    assert!(INLINE + MAX_MESSAGE <= 2 * SLOT_LEN && LONG + 2 * MAX_MESSAGE <= STAGED[0]);
    assert!(MAX_WORDWISE + 8 * MAX_MESSAGE <= STAGED[0]);
    assert!(wire::BASE_LEN <= CONTROL_LEN);
};

/// What a call is known by: a buffer below [`SLOTS`], an operation from there on, and the control message behind them all.
const CONTROL: usize = SLOTS + OPERATIONS;
const CONTEXTS: usize = CONTROL + 1;

/// A message that has arrived.
pub(super) struct Arrival {
    slot: usize,
    pub(super) message: Message,
}

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

    /// From number `next` on, in the order sent: a long message may be complete after a short one that was sent later.
    arrived: VecDeque<Option<Arrival>>,
    next: u32,
    /// How many the peer says it has sent in all.
    end: Option<u32>,
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
            arrived: VecDeque::with_capacity(SLOTS),
            next: 0,
            end: None,
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

    /// Posts the buffers that are free.
    fn post_buffers(&mut self) -> Result<(), c_int> {
        while let Some(slot) = self.unposted.last().copied() {
            let start = self.slots.at(slot * SLOT_LEN);
            let into = Piece { start, len: SLOT_LEN, region: self.slots_region.as_ref() };
            // SAFETY: the buffer is nobody else's until the completion, and outlives the port.
            match unsafe { self.port.receive(into, slot) } {
                0 => drop(self.unposted.pop()),
                sys::FI_EAGAIN => return Ok(()),
                error => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether a buffer received something.
    pub(super) fn is_arrival(completed: Completed) -> bool {
        completed.index < SLOTS
    }

    /// Takes a message of `len` bytes that has arrived in a buffer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn arrive(&mut self, completed: Completed, len: usize) -> Result<(), &'static str> {
        let slot = completed.index;
        if len > SLOT_LEN {
            return Err("a message that is longer than its buffer");
        }
        // SAFETY: the completion says that the provider is through with this buffer.
        let bytes = unsafe { self.slots.slice(slot * SLOT_LEN, len) };
        let message = match wire::decode(bytes, self.session, self.lane)? {
            Decoded::Stranger => {
                self.unposted.push(slot);
                return Ok(());
            }
            Decoded::Message(message) => message,
        };
        self.heard = true;
        self.signs += 1;
        self.acknowledge(message.taken)?;
        let ahead = message.sequence.wrapping_sub(self.next) as usize;
        match message.kind {
            Kind::Credit => {
                if message.asks {
                    self.asked = Some(message.sequence);
                }
                self.unposted.push(slot);
            }
            Kind::End => {
                self.end = Some(message.sequence);
                self.unposted.push(slot);
            }
            _ if ahead >= WINDOW as usize => return Err("a message out of turn or without credit"),
            _ => {
                if self.arrived.len() <= ahead {
                    self.arrived.resize_with(ahead + 1, || None);
                }
                let place = &mut self.arrived[ahead];
                if place.is_some() {
                    return Err("a message that came before");
                }
                *place = Some(Arrival { slot, message });
            }
        }
        Ok(())
    }

    /// A buffer got what did not fit: no message of the peer's is that long.
    pub(super) fn overlong(&mut self, completed: Completed) {
        self.unposted.push(completed.index);
    }

    fn acknowledge(&mut self, taken: u32) -> Result<(), &'static str> {
        let news = taken.wrapping_sub(self.acknowledged);
        if news <= self.posted.wrapping_sub(self.acknowledged) {
            self.acknowledged = taken;
            self.under_way.taken(taken);
            Ok(())
        } else if (news as i32) < 0 {
            // Staged before one that overtook it.
            Ok(())
        } else {
            Err("a message that takes what was never sent")
        }
    }

    /// The next message in the order sent, if it is here; [`Endpoint::done`] gives its buffer back.
    pub(super) fn next(&mut self) -> Option<Arrival> {
        let arrival = self.arrived.front_mut()?.take()?;
        self.arrived.pop_front();
        self.next = self.next.wrapping_add(1);
        Some(arrival)
    }

    /// Where in the buffer of `arrival` something lies.
    pub(super) fn bytes(&self, arrival: &Arrival, range: std::ops::Range<usize>) -> &[u8] {
        // SAFETY: the buffer is ours until it is posted again, which `done` does.
        unsafe { self.slots.slice(arrival.slot * SLOT_LEN + range.start, range.len()) }
    }

    /// The arrival was handed over.
    pub(super) fn done(&mut self, arrival: &Arrival) {
        self.unposted.push(arrival.slot);
        self.taken = self.taken.wrapping_add(1);
    }

    /// Takes what the caller wants to send, whole or not at all.
    pub(super) fn stage(&mut self, device: &Device, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        if outgoing.wordwise().is_none() {
            return self.stage_one(device, outgoing);
        }
        let mut pieces = outgoing.pieces();
        let mut staging = self.staging.clone();
        for piece in pieces.clone() {
            staging.take(wire::MAX_HEADER + piece.len()).ok_or(SendError::Full)?;
        }
        // One to spare, as for a put with its message.
        if !self.operations.have_room_for(pieces.clone().count() + 1) {
            return Err(SendError::Full);
        }
        pieces.try_for_each(|piece| self.stage_one(device, &piece))
    }

    fn stage_one(&mut self, device: &Device, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        let Outgoing { head, body, put, silent, more } = *outgoing;
        let frame = head.len() + body.len();
        let data = put.map_or(&[][..], |(put, _)| put.data);
        let kind = match put {
            None => Kind::Frame,
            Some((_, window)) => {
                let fits = data.len() <= INLINE && wire::MAX_HEADER + frame + data.len() <= MAX_MESSAGE;
                if fits || window.span.wordwise { Kind::Inline } else { Kind::Behind }
            }
        };
        let inline = if kind == Kind::Inline { data } else { &[] };
        let header = wire::header_len(kind);
        let len = header + frame + inline.len();
        if !self.operations.have_room_for(2) {
            return Err(SendError::Full);
        }
        // Both pieces or none.
        let mut staging = self.staging.clone();
        let written = match (kind, data.len()) {
            (Kind::Behind, ..=LONG) => Some(staging.take(data.len()).ok_or(SendError::Full)?),
            _ => None,
        };
        let piece = staging.take(len).ok_or(SendError::Full)?;
        if let (Kind::Behind, Some((put, window))) = (kind, put) {
            let long = match written {
                Some(piece) => {
                    self.staged.write(piece.at, put.data);
                    None
                }
                None => Some(self.longs.give(device, self.port.object(), put.data)?),
            };
            let what = What::Write {
                address: window.base + put.offset,
                key: window.keys[self.lane.index()],
                touches: Touched::by(self.sequence, &put),
                long,
            };
            let (at, upto) = written.map_or((0, self.staging.taken()), |piece| (piece.at, piece.upto));
            self.operations.push(what, at, put.data.len(), upto);
        }
        self.staging = staging;
        let stamp = Stamp { silent, more, ..self.stamp() };
        let put = put.map(|(put, _)| put);
        let encoded = wire::encode(stamp, kind, head, body, put.as_ref());
        let mut at = piece.at;
        for part in [&encoded[..header], head, body, inline] {
            self.staged.write(at, part);
            at += part.len();
        }
        // Data that the peer's processor puts in place or looks at: nothing may overtake that.
        if let Some(put) = put.filter(|_| !silent || kind == Kind::Inline) {
            self.under_way.push(Touched::by(self.sequence, &put));
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.operations.push(What::Message { taken: stamp.taken }, piece.at, len, piece.upto);
        Ok(())
    }

    /// What stands in front of the next message.
    fn stamp(&self) -> Stamp {
        let Self { peer_session: session, lane, sequence, taken, .. } = *self;
        Stamp { session, lane, sequence, taken, silent: false, more: false, asks: false }
    }

    /// The peer will hear that so many were taken.
    fn say(&mut self, taken: u32) {
        if before(self.said, taken) {
            self.said = taken;
        }
    }

    /// Hands the provider what may go out now.
    ///
    /// # Errors
    /// libfabric's.
    pub(super) fn post(&mut self, facts: &Facts) -> Result<(), c_int> {
        self.refused = false;
        self.post_buffers()?;
        self.post_control(facts)?;
        if self.operations.wait() {
            let result = self.post_operations(facts);
            self.operations.pass_posted();
            self.operations.retire(&mut self.staging, &mut self.longs);
            result?;
        }
        Ok(())
    }

    fn post_operations(&mut self, facts: &Facts) -> Result<(), c_int> {
        // Behind a message that has to wait, or a write that is under way where order is not kept, writes may
        // still go, messages not.
        let mut held = false;
        let mut writes = self.operations.have_writes_before() && !facts.orders_sends_after_writes;
        for place in self.operations.places() {
            let operation = self.operations.at(place);
            let code = match (&operation.what, operation.state()) {
                (_, State::Done) | (What::Message { .. }, State::Posted) => continue,
                (What::Write { .. }, State::Posted) => {
                    writes |= !facts.orders_sends_after_writes;
                    continue;
                }
                (What::Message { taken }, State::Waits) => {
                    let taken = *taken;
                    held |= writes || self.posted.wrapping_sub(self.acknowledged) >= WINDOW;
                    if held && facts.orders_sends_after_writes {
                        return Ok(());
                    } else if held {
                        continue;
                    }
                    let code = self.post_message(place, facts);
                    if code == 0 {
                        self.say(taken);
                    }
                    code
                }
                (What::Write { touches, .. }, State::Waits) => {
                    let touches = *touches;
                    if let Some(number) = self.under_way.overlapped(&touches) {
                        // Only what was sent can be asked for.
                        self.ask_due |= before(number, self.posted)
                            && self.asks.is_none_or(|asked| !before(number, asked));
                        return self.post_control(facts);
                    }
                    writes |= !facts.orders_sends_after_writes;
                    self.post_write(place, facts)
                }
            };
            match code {
                0 => {}
                sys::FI_EAGAIN => {
                    self.refused = true;
                    return Ok(());
                }
                error => return Err(error),
            }
        }
        Ok(())
    }

    fn post_message(&mut self, place: usize, facts: &Facts) -> c_int {
        let &Operation { at, len, .. } = self.operations.at(place);
        let message = Piece { start: self.staged.at(at), len, region: self.staged_region.as_ref() };
        let injects = len <= facts.inject_len;
        let code = if injects {
            self.port.inject(message)
        } else {
            // SAFETY: the piece of the ring is not written to before the completion, and outlives the port.
            unsafe { self.port.send(message, self.name_of(place)) }
        };
        if code == 0 {
            self.posted = self.posted.wrapping_add(1);
            self.operations.posted(place, injects);
        }
        code
    }

    fn post_write(&mut self, place: usize, facts: &Facts) -> c_int {
        let operation = self.operations.at(place);
        let What::Write { address, key, long, .. } = &operation.what else { unreachable!("a write") };
        let (start, region) = match long {
            Some(long) => (long.start(), long.region()),
            None => (self.staged.at(operation.at), self.staged_region.as_ref()),
        };
        let data = Piece { start, len: operation.len, region };
        let delivered = !facts.orders_sends_after_writes;
        // SAFETY: the data are not written to before the completion, and outlive the port.
        let code = unsafe { self.port.write(data, (*address, *key), delivered, self.name_of(place)) };
        if code == 0 {
            self.operations.posted(place, false);
        }
        code
    }

    /// What the call for an operation of the queue is known by.
    fn name_of(&self, place: usize) -> usize {
        SLOTS + self.operations.name_of(place)
    }

    /// Says what was taken when that is due, and asks when that is.
    fn post_control(&mut self, facts: &Facts) -> Result<(), c_int> {
        let unsaid = self.taken.wrapping_sub(self.said);
        let heard_of = |asked: u32| !before(self.taken, asked) && before(self.said, asked);
        let due = !self.greeted || unsaid >= WINDOW / 2 || self.asked.is_some_and(heard_of) || self.ask_due;
        if !due || self.control_posted {
            return Ok(());
        }
        match self.send_control(facts, Kind::Credit, self.ask_due) {
            0 => {
                self.greeted = true;
                self.say(self.taken);
                self.asked = self.asked.filter(|asked| before(self.taken, *asked));
                if self.ask_due {
                    (self.ask_due, self.asks) = (false, Some(self.posted));
                }
                Ok(())
            }
            code => {
                self.refused = code == sys::FI_EAGAIN;
                if self.refused { Ok(()) } else { Err(code) }
            }
        }
    }

    fn send_control(&mut self, facts: &Facts, kind: Kind, asks: bool) -> c_int {
        let stamp = Stamp { sequence: self.posted, asks, ..self.stamp() };
        let at = self.staged.len() - CONTROL_LEN;
        self.staged.write(at, &wire::encode(stamp, kind, &[], &[], None)[..wire::BASE_LEN]);
        let region = self.staged_region.as_ref();
        let message = Piece { start: self.staged.at(at), len: wire::BASE_LEN, region };
        let injects = wire::BASE_LEN <= facts.inject_len;
        let code = if injects {
            self.port.inject(message)
        } else {
            // SAFETY: this place is written to only while nothing is posted from it, and outlives the port.
            unsafe { self.port.send(message, CONTROL) }
        };
        self.control_posted = code == 0 && !injects;
        code
    }

    /// Says that nothing comes after what was sent; whether the provider took that.
    pub(super) fn end(&mut self, facts: &Facts) -> bool {
        !self.control_posted && self.send_control(facts, Kind::End, false) == 0
    }

    /// The provider is through with an operation.
    pub(super) fn complete(&mut self, completed: Completed, facts: &Facts) {
        if completed.index == CONTROL {
            self.control_posted = false;
            return;
        }
        if self.operations.complete(completed.index - SLOTS) {
            self.signs += u64::from(!facts.orders_sends_after_writes);
        }
        self.operations.retire(&mut self.staging, &mut self.longs);
    }

    /// What has arrived is not to be handed over.
    pub(super) fn forget_arrivals(&mut self) {
        self.arrived.clear();
    }

    /// Whether something waits to be handed over.
    pub(super) fn has_arrivals(&self) -> bool {
        self.arrived.front().is_some_and(Option::is_some)
    }

    /// Whether all is here that the peer has ever sent.
    pub(super) fn has_ended(&self) -> bool {
        self.end == Some(self.next)
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
