//! Each fault of nodes and disks once under changes of blocks; `cargo xtask torture redo` causes
//! them at random for minutes.
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

#[test]
fn every_acknowledged_change_survives_each_fault_of_nodes_and_disks() {
    let _alone = crate::alone();
    let mounts = || Disks::mount([]).map(drop).map_err(|why| format!("no FUSE: {why}"));
    if let Err(why) = Lan::new(1, 1).map(drop).and_then(|()| with_own_mounts(mounts)?) {
        return eprintln!("skipped: {why}");
    }
    let report = campaign::each(crate::executive::plexus(), Work::Blocks, SEED, &mut |_| ()).unwrap();
    assert_eq!(report.rounds.len(), Fault::ALL.len(), "{report}");
    assert!(report.rounds.values().all(|rounds| rounds.acknowledged > 0), "{report}");
    // Without checkpoints the images of damaged blocks are in the redo.
    assert!(report.damage.damaged > report.damage.refused && report.damage.streams > 0, "{report}");
}
