//! Two ends of one rail in one process, over a provider that fails if one of them closes first.
//!
//! libfabric's `shm` gives both ends the same mapping of an endpoint, and unmaps it when its owner
//! closes it, whatever the other still does there. So an end whose twin lives in this process is
//! only closed together with it. Ends in two processes have separate mappings and close alone.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use crate::parts::Parts;

/// By session: ends that live, and those that have ended and wait for their twin.
static ENDS: Mutex<BTreeMap<u64, Option<Parts>>> = Mutex::new(BTreeMap::new());

/// Returns true if ends over `provider` must close together.
fn concerns(provider: &str) -> bool {
    provider == "shm"
}

/// Records that an end begins.
pub(crate) fn begin(provider: &str, session: u64) {
    if concerns(provider) {
        ENDS.lock().unwrap_or_else(PoisonError::into_inner).insert(session, None);
    }
}

/// Closes an end, now or together with its twin.
pub(crate) fn end(provider: &str, session: u64, twin: u64, parts: Parts) {
    if !concerns(provider) {
        return;
    }
    let mut ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    let closing = match ends.get(&twin) {
        Some(None) => {
            ends.insert(session, Some(parts));
            return;
        }
        Some(Some(_)) => (ends.remove(&twin), ends.remove(&session), parts),
        None => (None, ends.remove(&session), parts),
    };
    drop(ends);
    drop(closing);
}
