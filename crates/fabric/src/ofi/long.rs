//! Memory of their own for long puts, one of a lane at once: what does not fit into the ring of what goes out.
//!
//! Memory that a provider cannot pin now it may pin later, when somebody else has let go of some. Where it still cannot
//! after [`TIMEOUT`] nothing will come of that put, nor of what waits behind it: the rail is of no use and says so.
#![allow(unsafe_code, reason = "hands memory to a C library")]

use std::ptr::NonNull;

use plexus_base::{Nanos, clock};

use super::{
    buffer::Buffer,
    device::{Device, Object, Region},
    sys,
};
use crate::SendError;

/// How long memory may be refused.
const TIMEOUT: Nanos = Nanos::from_ms(1_000);

/// Memory for one long put. The region is closed before the buffer is freed.
pub(super) struct Long {
    region: Option<Region>,
    buffer: Buffer,
}

impl Long {
    /// Where the data lie.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.buffer.at(0)
    }

    pub(super) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Never gives the memory back.
    pub(super) fn keep(&mut self) {
        self.buffer.keep();
    }
}

/// Who gives that memory out in one lane.
pub(super) struct Longs {
    /// What the memory is known by in its domain; no other lane's.
    key: u64,
    given: bool,
    refused_since: Option<Nanos>,
}

impl Longs {
    pub(super) fn new(key: u64) -> Self {
        Self { key, given: false, refused_since: None }
    }

    /// Memory with `data` in it, for a put by `endpoint`.
    ///
    /// # Errors
    /// [`SendError::Full`]: not now. [`SendError::Lost`]: never.
    pub(super) fn give(
        &mut self,
        device: &Device,
        endpoint: &Object<sys::Ep>,
        data: &[u8],
    ) -> Result<Box<Long>, SendError> {
        if self.given {
            return Err(SendError::Full);
        }
        let mut buffer = Buffer::new(data.len());
        buffer.write(0, data);
        // SAFETY: freed after the region is closed, or after the endpoint, or never.
        let region = unsafe { device.register_local(endpoint, buffer.at(0), buffer.len(), self.key) };
        let region = region.map_err(|_| self.refuse(clock::now()))?;
        (self.given, self.refused_since) = (true, None);
        Ok(Box::new(Long { region, buffer }))
    }

    /// The put is through.
    pub(super) fn taken_back(&mut self) {
        self.given = false;
    }

    fn refuse(&mut self, now: Nanos) -> SendError {
        let since = *self.refused_since.get_or_insert(now);
        if now.since(since) < TIMEOUT { SendError::Full } else { SendError::Lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_always_refused_is_not_waited_for_without_end() {
        let mut longs = Longs::new(1);
        let start = Nanos::from_ms(10);
        assert_eq!([longs.refuse(start), longs.refuse(start)], [SendError::Full; 2]);
        assert_eq!(longs.refuse(start + TIMEOUT), SendError::Lost);
        longs.refused_since = None;
        assert_eq!(longs.refuse(start + TIMEOUT), SendError::Full, "there was some in between");
    }
}
