//! PostgreSQL 15 with its default durability, in a temporary directory on the same file system.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::work::{PROGRAMS, Server, USER};
use crate::command::run;

/// A server that runs until it is dropped.
pub(crate) struct Postgres {
    directory: TempDir,
    pub server: Server,
}

/// Returns a command of an unprivileged user: PostgreSQL refuses root.
fn unprivileged(program: &str) -> Command {
    let program = Path::new(PROGRAMS).join(program);
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
    command
}

impl Postgres {
    /// Starts a server with an empty database.
    ///
    /// # Errors
    /// PostgreSQL 15 is not installed, or does not start.
    pub(crate) fn start() -> Result<Self> {
        ensure!(Path::new(PROGRAMS).join("postgres").exists(), "postgresql-15 is not installed");
        let directory = tempfile::tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777))?;
        let data = directory.path().join("data");
        let mut init = unprivileged("initdb");
        init.arg("-D").arg(&data).args(["-A", "trust", "-U", USER, "--locale=C.UTF-8", "-E", "UTF8"]);
        run(init.stdout(Stdio::null()))?;
        let options = format!("-k {} -c listen_addresses=", directory.path().display());
        let mut start = unprivileged("pg_ctl");
        start.args(["start", "-w", "-o", &options, "-l"]).arg(directory.path().join("log"));
        run(start.arg("-D").arg(&data).stdout(Stdio::null()))?;
        let pid = fs::read_to_string(data.join("postmaster.pid"))?;
        let pid = pid.lines().next().context("no pid")?.parse()?;
        let server = Server { directory: directory.path().into(), port: 5432, pid, core: None };
        Ok(Self { directory, server })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let mut stop = unprivileged("pg_ctl");
        let _ = stop.args(["stop", "-m", "fast", "-D"]).arg(self.directory.path().join("data")).output();
    }
}
