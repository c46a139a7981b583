//! Posts to the provider: operations in their order, and messages about credit.
#![allow(unsafe_code, reason = "hands memory to a C library")]

use std::ffi::c_int;

use super::{CONTROL, CONTROL_LEN, Endpoint, SLOTS, WINDOW};
use crate::{
    device::ProviderProperties,
    operations::{Operation, OperationKind, State},
    port::{Completed, Piece},
    sys,
    touched::before,
    wire::{self, Kind, Stamp},
};

impl Endpoint {
    /// Records the count of taken messages that the peer will get.
    fn say(&mut self, taken: u32) {
        if before(self.said, taken) {
            self.said = taken;
        }
    }

    /// Posts everything that may go out now.
    ///
    /// # Errors
    /// The error of libfabric.
    pub(crate) fn post(&mut self, facts: &ProviderProperties) -> Result<(), c_int> {
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

    fn post_operations(&mut self, facts: &ProviderProperties) -> Result<(), c_int> {
        // Behind a message that has to wait, or a write in flight if order is not kept, writes may
        // still go, messages not.
        let mut held = false;
        let mut writes = self.operations.have_writes_before() && !facts.orders_sends_after_writes;
        for place in self.operations.places() {
            let operation = self.operations.at(place);
            let code = match (&operation.kind, operation.state()) {
                (_, State::Done) | (OperationKind::Message { .. }, State::Posted) => continue,
                (OperationKind::Write { .. }, State::Posted) => {
                    writes |= !facts.orders_sends_after_writes;
                    continue;
                }
                (OperationKind::Message { taken }, State::Waits) => {
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
                (OperationKind::Write { touches, .. }, State::Waits) => {
                    let touches = *touches;
                    if let Some(number) = self.under_way.overlapped(&touches) {
                        // The peer can only be asked about sent messages.
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

    fn post_message(&mut self, place: usize, facts: &ProviderProperties) -> c_int {
        let &Operation { at, len, .. } = self.operations.at(place);
        let message = Piece { start: self.staged.at(at), len, region: self.staged_region.as_ref() };
        let injects = len <= facts.inject_len;
        let code = if injects {
            self.port.inject(message)
        } else {
            // SAFETY: the piece of the ring is not written to before the completion, and outlives
            // the port.
            unsafe { self.port.send(message, self.name_of(place)) }
        };
        if code == 0 {
            self.posted = self.posted.wrapping_add(1);
            self.operations.posted(place, injects);
        }
        code
    }

    fn post_write(&mut self, place: usize, facts: &ProviderProperties) -> c_int {
        let operation = self.operations.at(place);
        let OperationKind::Write { address, key, long, .. } = &operation.kind else {
            unreachable!("a write")
        };
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

    /// The identifier of the call for an operation of the queue.
    fn name_of(&self, place: usize) -> usize {
        SLOTS + self.operations.name_of(place)
    }

    /// Reports the count of taken messages when that is due, and asks for the peer's count when
    /// that is.
    fn post_control(&mut self, facts: &ProviderProperties) -> Result<(), c_int> {
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

    fn send_control(&mut self, facts: &ProviderProperties, kind: Kind, asks: bool) -> c_int {
        let stamp = Stamp { sequence: self.posted, asks, ..self.stamp() };
        let at = self.staged.len() - CONTROL_LEN;
        self.staged.write(at, &wire::encode(stamp, kind, &[], &[], None)[..wire::BASE_LEN]);
        let region = self.staged_region.as_ref();
        let message = Piece { start: self.staged.at(at), len: wire::BASE_LEN, region };
        let injects = wire::BASE_LEN <= facts.inject_len;
        let code = if injects {
            self.port.inject(message)
        } else {
            // SAFETY: this place is written to only while nothing is posted from it, and outlives
            // the port.
            unsafe { self.port.send(message, CONTROL) }
        };
        self.control_posted = code == 0 && !injects;
        code
    }

    /// Tells the peer that nothing follows; returns true if the provider took that message.
    pub(crate) fn end(&mut self, facts: &ProviderProperties) -> bool {
        !self.control_posted && self.send_control(facts, Kind::End, false) == 0
    }

    /// Records that the provider has completed an operation.
    pub(crate) fn complete(&mut self, completed: Completed, facts: &ProviderProperties) {
        if completed.index == CONTROL {
            self.control_posted = false;
            return;
        }
        if self.operations.complete(completed.index - SLOTS) {
            self.signs += u64::from(!facts.orders_sends_after_writes);
        }
        self.operations.retire(&mut self.staging, &mut self.longs);
    }
}
