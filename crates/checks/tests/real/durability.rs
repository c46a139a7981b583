//! Each fault of nodes and disks once under changes of blocks, and under transactions of SQL;
//! `cargo xtask torture redo` and `torture sql` cause them at random for minutes.
//!
//! Skipped where namespaces or FUSE cannot be used, with a line that gives the reason.

use plexus_checks::{
    durability::{
        campaign::{self, Work},
        faults::Fault,
    },
    executive::disks::Disks,
};
use plexus_namespaces::{Lan, with_own_mounts};

/// Another seed than that of the command, so that both are covered.
const SEED: u64 = 7;

fn can_run() -> bool {
    let mounts = || Disks::mount([]).map(drop).map_err(|why| format!("no FUSE: {why}"));
    let can = Lan::new(1, 1).map(drop).and_then(|()| with_own_mounts(mounts)?);
    can.as_ref().err().into_iter().for_each(|why| eprintln!("skipped: {why}"));
    can.is_ok()
}

#[test]
fn every_acknowledged_change_survives_each_fault_of_nodes_and_disks() {
    let _alone = crate::beside_clusters();
    if !can_run() {
        return;
    }
    let report = campaign::each(crate::executive::plexus(), Work::Blocks, SEED, &mut |_| ()).unwrap();
    assert_eq!(report.rounds.len(), Fault::without_copies().len(), "{report}");
    assert!(report.rounds.values().all(|rounds| rounds.acknowledged > 0), "{report}");
    // Without checkpoints the images of damaged blocks are in the redo.
    assert!(report.damage.damaged > report.damage.refused && report.damage.streams > 0, "{report}");
}

/// Sums, acknowledged transfers, the history of lists and the whole store are right after each.
#[test]
fn transactions_of_sql_survive_each_fault_of_nodes_and_disks() {
    let _alone = crate::beside_clusters();
    if !can_run() {
        return;
    }
    let report = campaign::each(crate::executive::plexus(), Work::Sql, SEED, &mut |_| ()).unwrap();
    assert_eq!(report.rounds.len(), Fault::without_copies().len(), "{report}");
    assert!(report.rounds.values().all(|rounds| rounds.acknowledged > 0), "{report}");
}
