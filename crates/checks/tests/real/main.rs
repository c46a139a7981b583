//! Real processes and sockets under real faults. Two processes: whatever happens to the paths between them, to one of them, or at their
//! doors, every message arrives exactly once and in order, and nothing is left over.
//!
//! What needs network namespaces is skipped, with a line that says why, where they cannot be made.

mod executive;
mod lives;
mod one_path;
mod relay;
mod two_paths;

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use plexus_checks::faults::{Net, Pair, Spec};
use plexus_fabric::RailKind;

/// One test at a time: two members that talk without a pause fill two cores, and memory is looked at.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_torture").into()
}

fn spec(rail: RailKind, encrypt: bool) -> Spec {
    Spec { program: program(), rail, encrypt }
}

/// Two hosts, where they can be made.
fn net(paths: usize) -> Option<Net> {
    let net = Net::new(paths);
    if let Err(why) = &net {
        eprintln!("skipped: {why}");
    }
    net.ok()
}

/// Everything came, nobody was taken for gone, and no member holds more than when traffic began to flow.
fn unharmed(pair: Pair) {
    pair.flat().unwrap();
    let reports = pair.finish().unwrap();
    assert!(reports.iter().all(|report| report.ups == 1 && report.gone == 0), "{reports:?}");
}
