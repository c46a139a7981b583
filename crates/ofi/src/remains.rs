//! The end of a rail: waits for the operations that the provider holds, sends a goodbye, and closes
//! the rest.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Acquire},
};

use plexus_fabric::LANES;

use crate::{endpoint::Endpoint, parts::Parts, reaper::Ending, twins};

/// The remains of a rail: endpoints with operations that the provider holds. Waiting operations are
/// not posted any more.
pub(crate) struct Remains {
    /// The parts until they are closed.
    parts: Option<Parts>,
    sessions: (u64, u64),
    gone: Arc<AtomicBool>,
    /// By lane: true if nothing more is to be sent.
    said: [bool; LANES],
}

impl Remains {
    /// The remains of a dropped rail, with or without a goodbye to the peer.
    pub(crate) fn new(parts: Parts, sessions: (u64, u64), gone: Arc<AtomicBool>, says_goodbye: bool) -> Self {
        Self { parts: Some(parts), sessions, gone, said: [!says_goodbye; LANES] }
    }
}

impl Ending for Remains {
    fn look(&mut self) -> bool {
        let Some(parts) = &mut self.parts else { return true };
        if parts.read().is_err() || self.gone.load(Acquire) || parts.endpoints.iter().all(Endpoint::has_ended)
        {
            return true;
        }
        let Parts { endpoints, device, .. } = parts;
        for (said, endpoint) in self.said.iter_mut().zip(endpoints.iter_mut()) {
            *said = *said || endpoint.is_quiet() && endpoint.end(&device.facts);
        }
        self.said == [true; LANES] && endpoints.iter().all(Endpoint::is_quiet)
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            let provider = parts.device.facts.provider.clone();
            let (session, twin) = self.sessions;
            twins::end(&provider, session, twin, parts);
        }
    }
}
