//! The test of a package: it is installed in an overlay over this system, in namespaces that end
//! with the test, and used there.

use std::{path::Path, process::Command};

use anyhow::{Result, ensure};

use crate::command;

/// The steps, for a shell.
const STEPS: &str = include_str!("check.sh");

/// Installs `package` and uses it; also uses the tar file `archive` from a directory of its own.
pub(super) fn run(package: &Path, archive: &Path) -> Result<()> {
    for program in ["unshare", "chroot", "ip", "dpkg", "cc", "pkg-config"] {
        ensure!(command::found(program), "--check needs `{program}`, which was not found");
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--uts"]);
    unshare.args(["sh", "-euc", STEPS, "check"]);
    command::run(unshare.arg(package).arg(archive))
}
