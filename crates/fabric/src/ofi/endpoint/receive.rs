//! What an endpoint receives: buffers that wait, messages in them, and what those say of our own.
#![allow(unsafe_code, reason = "hands memory to a C library")]

use std::ffi::c_int;

use super::{Arrival, Endpoint, SLOT_LEN, SLOTS};
use crate::ofi::{
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
    pub(in crate::ofi) fn is_arrival(completed: Completed) -> bool {
        completed.index < SLOTS
    }

    /// Takes a message of `len` bytes that has arrived in a buffer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(in crate::ofi) fn arrive(&mut self, completed: Completed, len: usize) -> Result<(), &'static str> {
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

    /// A buffer got what did not fit: no message of the peer's is that long.
    pub(in crate::ofi) fn overlong(&mut self, completed: Completed) {
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
    pub(in crate::ofi) fn next(&mut self) -> Option<Arrival> {
        self.arrived.next()
    }

    /// Where in the buffer of `arrival` something lies.
    pub(in crate::ofi) fn bytes(&self, arrival: &Arrival, range: std::ops::Range<usize>) -> &[u8] {
        // SAFETY: the buffer is ours until it is posted again, which `done` does.
        unsafe { self.slots.slice(arrival.slot * SLOT_LEN + range.start, range.len()) }
    }

    /// The arrival was handed over.
    pub(in crate::ofi) fn done(&mut self, arrival: &Arrival) {
        self.unposted.push(arrival.slot);
        self.taken = self.taken.wrapping_add(1);
    }

    /// What has arrived is not to be handed over.
    pub(in crate::ofi) fn forget_arrivals(&mut self) {
        self.arrived.forget();
    }

    /// Whether something waits to be handed over.
    pub(in crate::ofi) fn has_arrivals(&self) -> bool {
        self.arrived.has_next()
    }

    /// Whether all is here that the peer has ever sent.
    pub(in crate::ofi) fn has_ended(&self) -> bool {
        self.arrived.has_ended()
    }
}
