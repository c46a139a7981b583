//! The receiving side of an endpoint: waiting buffers, the messages in them, and the peer's counts
//! in those.
#![allow(unsafe_code, reason = "hands memory to a C library")]

use std::ffi::c_int;

use super::{Arrival, Endpoint, SLOT_LEN, SLOTS};
use crate::{
    port::{Completed, Piece},
    sys,
    wire::{self, Decoded, Kind},
};

impl Endpoint {
    /// Posts the buffers that are free.
    pub(super) fn post_buffers(&mut self) -> Result<(), c_int> {
        while let Some(slot) = self.unposted.last().copied() {
            let start = self.slots.at(slot * SLOT_LEN);
            let into = Piece { start, len: SLOT_LEN, region: self.slots_region.as_ref() };
            // SAFETY: only the provider uses the buffer until the completion, and it outlives the
            // port.
            match unsafe { self.port.receive(into, slot) } {
                0 => drop(self.unposted.pop()),
                sys::FI_EAGAIN => return Ok(()),
                error => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns true if a buffer received something.
    pub(crate) fn is_arrival(completed: Completed) -> bool {
        completed.index < SLOTS
    }

    /// Takes a message of `len` bytes that has arrived in a buffer.
    ///
    /// # Errors
    /// The reason why the message is invalid.
    pub(crate) fn arrive(&mut self, completed: Completed, len: usize) -> Result<(), &'static str> {
        let slot = completed.index;
        if len > SLOT_LEN {
            return Err("a message that is longer than its buffer");
        }
        // SAFETY: the completion says that the provider is through with this buffer.
        let bytes = unsafe { self.slots.slice(slot * SLOT_LEN, len) };
        let message = match wire::decode(bytes, self.session, self.lane)? {
            Decoded::Unauthenticated => {
                self.unposted.push(slot);
                return Ok(());
            }
            Decoded::Message(message) => message,
        };
        self.heard = true;
        self.signs += 1;
        self.acknowledge(message.taken)?;
        match message.kind {
            Kind::Credit => {
                if message.asks {
                    self.asked = Some(message.sequence);
                }
                self.unposted.push(slot);
            }
            Kind::End => {
                self.arrived.end_at(message.sequence);
                self.unposted.push(slot);
            }
            _ => self.arrived.place(Arrival { slot, message })?,
        }
        Ok(())
    }

    /// Frees a buffer whose message did not fit, and which is ignored: no correct peer sends one
    /// that long.
    pub(crate) fn overlong(&mut self, completed: Completed) {
        self.unposted.push(completed.index);
    }

    fn acknowledge(&mut self, taken: u32) -> Result<(), &'static str> {
        let increase = taken.wrapping_sub(self.acknowledged);
        if increase <= self.posted.wrapping_sub(self.acknowledged) {
            self.acknowledged = taken;
            self.under_way.taken(taken);
            Ok(())
        } else if (increase as i32) < 0 {
            // It was staged before one that overtook it.
            Ok(())
        } else {
            Err("a count of taken messages above those sent")
        }
    }

    /// The next message in the order sent, if it has arrived; [`Endpoint::done`] gives its buffer
    /// back.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        self.arrived.next()
    }

    /// The bytes of a range of the buffer of `arrival`.
    pub(crate) fn bytes(&self, arrival: &Arrival, range: std::ops::Range<usize>) -> &[u8] {
        // SAFETY: the buffer is ours until it is posted again, which `done` does.
        unsafe { self.slots.slice(arrival.slot * SLOT_LEN + range.start, range.len()) }
    }

    /// Gives back the buffer of an arrival that was handed over.
    pub(crate) fn done(&mut self, arrival: &Arrival) {
        self.unposted.push(arrival.slot);
        self.taken = self.taken.wrapping_add(1);
    }

    /// Discards the arrived messages.
    pub(crate) fn forget_arrivals(&mut self) {
        self.arrived.forget();
    }

    /// Returns true if a message waits to be handed over.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.arrived.has_next()
    }

    /// Returns true if all messages that the peer ever sends have arrived.
    pub(crate) fn has_ended(&self) -> bool {
        self.arrived.has_ended()
    }
}
