//! Real processes and sockets under real faults. Whatever happens to the paths between two
//! processes, to one of them or at their listeners, every message arrives exactly once and in
//! order, and nothing is left over.
//!
//! Tests that need network namespaces are skipped where they cannot be created, with a line that
//! gives the reason.

mod durability;
mod executive;
mod one_path;
mod relay;
mod restarts;
mod two_paths;

use std::{
    path::PathBuf,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use plexus_checks::faults::{Net, Pair, Spec};
use plexus_fabric::RailKind;

static ALONE: RwLock<()> = RwLock::new(());

/// Allows one test at a time: two busy members fill two cores, and memory is measured.
fn alone() -> RwLockWriteGuard<'static, ()> {
    ALONE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Allows others that call this, too: tests of whole clusters mostly wait for leases and views.
fn beside_clusters() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(PoisonError::into_inner)
}

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_torture").into()
}

fn spec(rail: RailKind, encrypt: bool) -> Spec {
    Spec { program: program(), rail, encrypt }
}

/// Creates two hosts, where that is possible.
fn net(paths: usize) -> Option<Net> {
    let net = Net::new(paths);
    if let Err(why) = &net {
        eprintln!("skipped: {why}");
    }
    net.ok()
}

/// Checks that everything came, no peer counted as gone, and no member holds more than when traffic
/// began to flow.
fn unharmed(pair: Pair) {
    pair.flat().unwrap();
    let reports = pair.finish().unwrap();
    assert!(reports.iter().all(|report| report.ups == 1 && report.gone == 0), "{reports:?}");
}
