//! Signals that end a command: the first ends it in order, the second ends the process at once.

use std::sync::{Arc, atomic::AtomicBool};

use anyhow::Context;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

/// Returns a flag that the first SIGINT, SIGTERM or SIGHUP sets; the next one ends the process.
pub(crate) fn interrupted() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // This order matters: the handler that ends the process must run before the flag is set.
        flag::register_conditional_default(signal, Arc::clone(&interrupted))
            .and_then(|_| flag::register(signal, Arc::clone(&interrupted)))
            .context("cannot take signals")?;
    }
    Ok(interrupted)
}
