//! Ctrl-C while something temporary is there: the first ends what is being done in order, the second at once.

use std::sync::{Arc, atomic::AtomicBool};

use anyhow::Context;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

/// A flag that the first such signal sets; another signal ends the process.
pub(crate) fn interrupted() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the one that ends the process must not see what the same signal sets.
        flag::register_conditional_default(signal, Arc::clone(&interrupted))
            .and_then(|_| flag::register(signal, Arc::clone(&interrupted)))
            .context("cannot take signals")?;
    }
    Ok(interrupted)
}
