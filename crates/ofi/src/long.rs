//! Separate memory for long puts that do not fit into the ring, one put of a lane at once.
//!
//! A provider that cannot pin memory now may pin it later, when another user has released some. If
//! it still cannot after [`TIMEOUT`], that put and all operations behind it can never go, so the
//! rail is lost.
#![allow(unsafe_code, reason = "hands memory to a C library")]

use std::ptr::NonNull;

use plexus_base::{Nanos, clock};
use plexus_fabric::SendError;

use crate::{
    buffer::Buffer,
    device::{Device, Object, Region},
    sys,
};

/// The time for which memory may be refused.
const TIMEOUT: Nanos = Nanos::from_ms(1_000);

/// The memory of one long put. The region is closed before the buffer is freed.
pub(crate) struct LongPut {
    region: Option<Region>,
    buffer: Buffer,
}

impl LongPut {
    /// The start of the data.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.buffer.at(0)
    }

    pub(crate) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Never gives the memory back.
    pub(crate) fn keep(&mut self) {
        self.buffer.keep();
    }
}

/// The allocator of that memory in one lane.
pub(crate) struct LongPutMemory {
    /// The key of the memory in its domain, different for each lane.
    key: u64,
    given: bool,
    refused_since: Option<Nanos>,
}

impl LongPutMemory {
    pub(crate) fn new(key: u64) -> Self {
        Self { key, given: false, refused_since: None }
    }

    /// Takes memory with `data` in it, for a put by `endpoint`.
    ///
    /// # Errors
    /// [`SendError::Full`]: not now. [`SendError::Lost`]: never.
    pub(crate) fn give(
        &mut self,
        device: &Device,
        endpoint: &Object<sys::Ep>,
        data: &[u8],
    ) -> Result<Box<LongPut>, SendError> {
        if self.given {
            return Err(SendError::Full);
        }
        let mut buffer = Buffer::new(data.len());
        buffer.write(0, data);
        // SAFETY: freed after the region is closed, or after the endpoint, or never.
        let region = unsafe { device.register_local(endpoint, buffer.at(0), buffer.len(), self.key) };
        let region = region.map_err(|_| self.refuse(clock::now()))?;
        (self.given, self.refused_since) = (true, None);
        Ok(Box::new(LongPut { region, buffer }))
    }

    /// Records that the put is complete.
    pub(crate) fn taken_back(&mut self) {
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
    fn waiting_for_refused_memory_has_a_timeout() {
        let mut longs = LongPutMemory::new(1);
        let start = Nanos::from_ms(10);
        assert_eq!([longs.refuse(start), longs.refuse(start)], [SendError::Full; 2]);
        assert_eq!(longs.refuse(start + TIMEOUT), SendError::Lost);
        longs.refused_since = None;
        assert_eq!(longs.refuse(start + TIMEOUT), SendError::Full, "memory was granted in between");
    }
}
