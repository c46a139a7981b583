//! PostgreSQL, which gives the expected results.

use super::*;

/// A server of PostgreSQL in a directory, until it is dropped.
pub(super) struct Oracle {
    directory: tempfile::TempDir,
    pg_ctl: PathBuf,
}

/// Returns a command that runs as an unprivileged user: PostgreSQL refuses root.
fn unprivileged(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
    command
}

impl Oracle {
    /// Starts a server, or prints why there is none.
    pub(super) fn start() -> Option<Self> {
        let (initdb, pg_ctl) = (postgresql("initdb")?, postgresql("pg_ctl")?);
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let data = directory.path().join("data");
        let mut init = unprivileged(&initdb);
        init.arg("-D").arg(&data).args(["-A", "trust", "-U", USER, "-N", "--locale=C.UTF-8", "-E", "UTF8"]);
        said(init);
        let mut start = unprivileged(&pg_ctl);
        let options =
            format!("-k {} -c listen_addresses= -c timezone=UTC -c fsync=off", directory.path().display());
        start
            .args(["start", "-w", "-o", &options, "-l"])
            .arg(directory.path().join("log"))
            .arg("-D")
            .arg(&data);
        assert!(start.stdout(Stdio::null()).status().unwrap().success());
        Some(Self { directory, pg_ctl })
    }

    /// Returns the command of a client of the server.
    pub(super) fn client(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("PGHOST", self.directory.path()).env("PGPORT", "5432").env("PGUSER", USER);
        command.env("PGDATABASE", "postgres").stdin(Stdio::null());
        command
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let mut stop = unprivileged(&self.pg_ctl);
        let _ = stop.args(["stop", "-m", "immediate", "-D"]).arg(self.directory.path().join("data")).output();
    }
}
