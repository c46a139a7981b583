//! What an endpoint hands the provider, and when: operations in their order, and messages about what was taken.
#![allow(unsafe_code, reason = "hands memory to a C library")]

use std::ffi::c_int;

use super::{CONTROL, CONTROL_LEN, Endpoint, SLOTS, WINDOW};
use crate::ofi::{
    device::Facts,
    operations::{Operation, State, What},
    port::{Completed, Piece},
    sys,
    touched::before,
    wire::{self, Kind, Stamp},
};

impl Endpoint {
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
    pub(in crate::ofi) fn post(&mut self, facts: &Facts) -> Result<(), c_int> {
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
    pub(in crate::ofi) fn end(&mut self, facts: &Facts) -> bool {
        !self.control_posted && self.send_control(facts, Kind::End, false) == 0
    }

    /// The provider is through with an operation.
    pub(in crate::ofi) fn complete(&mut self, completed: Completed, facts: &Facts) {
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
