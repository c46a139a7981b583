//! How a rail ends: what the provider still holds is waited for, a goodbye is said, and the rest is closed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Acquire},
};

use super::{endpoint::Endpoint, parts::Parts, reaper::Ending, twins};
use crate::LANES;

/// What is left of a rail: endpoints with operations in the provider's hands. Nothing that only waits is posted any more.
pub(super) struct Remains {
    /// Until they are closed.
    parts: Option<Parts>,
    sessions: (u64, u64),
    gone: Arc<AtomicBool>,
    /// Whether nothing is to be said any more, by lane.
    said: [bool; LANES],
}

impl Remains {
    /// What is left of a rail that was dropped, whose peer is told of it or not.
    pub(super) fn new(parts: Parts, sessions: (u64, u64), gone: Arc<AtomicBool>, says_goodbye: bool) -> Self {
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
