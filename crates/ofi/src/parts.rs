//! The parts of a rail in the order in which they are closed, the windows that the peer's adapter
//! may write, and the completions of both lanes.
#![allow(unsafe_code, reason = "moves, lends and reads what a C library holds")]

use std::{ffi::c_int, mem::MaybeUninit, sync::Arc};

use plexus_fabric::{LANES, Lost, Windows};

use crate::{
    OfiError,
    device::{Device, Region},
    endpoint::Endpoint,
    offer::RemoteWindow,
    port::Completed,
    sys,
};

/// The completions read in one call.
const BATCH: usize = 32;

/// The parts to close when a rail ends, from the top. The windows come first, so that nothing is
/// written any more.
pub(crate) struct Parts {
    pub(crate) window_regions: Vec<Region>,
    pub(crate) endpoints: [Endpoint; LANES],
    pub(crate) device: Device,
    pub(crate) windows: Arc<Windows>,
}

// SAFETY: the pointers in it lead to memory and to objects of libfabric that belong to this rail
// alone, in a domain of its own; libfabric binds none of them to a thread, and `&Parts` gives no
// access from a second one.
unsafe impl Send for Parts {}

impl Parts {
    /// Registers the windows that the peer's adapter may write; returns the description of all
    /// windows for the peer.
    pub(crate) fn register(&mut self, key: &mut impl FnMut() -> u64) -> Result<Vec<RemoteWindow>, OfiError> {
        let mut remote = Vec::new();
        for span in self.windows.spans() {
            if span.wordwise {
                remote.push(RemoteWindow { span, base: 0, keys: [0; LANES] });
                continue;
            }
            let window = self.windows.find(span.id).expect("a window of the table");
            let base =
                if self.device.facts.virtual_addresses() { window.ptr().addr().get() as u64 } else { 0 };
            let mut keys = [0; LANES];
            for (place, endpoint) in keys.iter_mut().zip(&self.endpoints) {
                // SAFETY: the table keeps the window mapped, and it is dropped after the regions
                // and endpoints.
                let region = unsafe {
                    let access = sys::FI_REMOTE_WRITE;
                    self.device.register(endpoint.object(), window.ptr(), window.len(), access, key())?
                };
                *place = region.key();
                self.window_regions.push(region);
            }
            remote.push(RemoteWindow { span, base, keys });
        }
        Ok(remote)
    }

    /// Reads all completions.
    ///
    /// # Errors
    /// The reason why the rail is lost.
    pub(crate) fn read(&mut self) -> Result<(), Lost> {
        let mut entries = [const { MaybeUninit::<sys::CqMsgEntry>::uninit() }; BATCH];
        loop {
            let count = match self.device.read(&mut entries) {
                Ok(count) => count,
                Err(sys::FI_EAGAIN) => return Ok(()),
                Err(sys::FI_EAVAIL) => {
                    self.read_error()?;
                    continue;
                }
                Err(code) => return Err(self.closed(code)),
            };
            for entry in &entries[..count] {
                // SAFETY: the queue wrote so many entries; their contexts are those of the
                // endpoints, which live.
                let (completed, len) = unsafe {
                    let entry = entry.assume_init_ref();
                    (Completed::of(entry.op_context), entry.len)
                };
                let endpoint = &mut self.endpoints[completed.lane];
                if Endpoint::is_arrival(completed) {
                    endpoint.arrive(completed, len).map_err(Lost::Corrupt)?;
                } else {
                    endpoint.complete(completed, &self.device.facts);
                }
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    fn read_error(&mut self) -> Result<(), Lost> {
        let Some((context, code)) = self.device.read_error() else { return Ok(()) };
        if context.is_null() {
            return Err(self.closed(code));
        }
        // SAFETY: the context of an operation of an endpoint that lives.
        let completed = unsafe { Completed::of(context) };
        if !Endpoint::is_arrival(completed) || code != sys::FI_ETRUNC {
            return Err(self.closed(code));
        }
        self.endpoints[completed.lane].overlong(completed);
        Ok(())
    }

    pub(crate) fn closed(&self, code: c_int) -> Lost {
        Lost::Closed(self.device.explain(code))
    }
}
