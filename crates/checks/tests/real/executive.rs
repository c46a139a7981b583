//! The cluster executive under real faults for half a minute; `cargo xtask torture executive` runs
//! longer.
//!
//! Skipped where network namespaces cannot be created, with a line that gives the reason.

use std::{path::PathBuf, process::Command, time::Duration};

use plexus_checks::executive::campaign;
use plexus_namespaces::{Lan, need};

/// The duration of the campaign.
const TIME: Duration = Duration::from_secs(30);

/// Another seed than that of the command, so that both are covered.
const SEED: u64 = 7;

/// Returns the node's program, which another package builds.
pub(crate) fn plexus() -> PathBuf {
    let torture: PathBuf = env!("CARGO_BIN_EXE_torture").into();
    let mut cargo = Command::new(env!("CARGO"));
    // Built as for the tests of the whole workspace, so that nothing is built twice.
    cargo.args(["build", "--quiet", "--workspace", "--bin", "plexus"]);
    assert!(
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success(),
        "plexus does not build"
    );
    torture.with_file_name("plexus")
}

#[test]
fn locks_and_keys_are_linearizable_under_faults() {
    let _alone = crate::beside_clusters();
    if let Err(why) = need(&[("nft", "nftables")]).and_then(|()| Lan::new(2, 1)) {
        return eprintln!("skipped: {why}");
    }
    let report = campaign::run(plexus(), TIME, SEED, &mut |_| ()).unwrap();
    // Faults were struck, views changed, and clients met.
    let struck: usize = report.healed.values().map(Vec::len).sum();
    assert!(struck > 0 && report.views > struck / 2 && report.held > 100, "{report}");
    assert!(report.keys.reads > 100 && report.keys.changes > 100 && report.keys.refused > 0, "{report}");
}
