//! The work that clients of PostgreSQL do on a server.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::command::output_within;

/// The programs of PostgreSQL 15, as Debian has them.
pub(super) const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

/// The time limit of one run.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The rows of a COPY.
const ROWS: u32 = 1_000_000;

/// The connections that do nothing.
pub(super) const IDLE: usize = 5000;

/// A server that clients reach.
#[derive(Clone)]
pub(crate) struct Server {
    /// The directory of its Unix socket.
    pub directory: PathBuf,
    pub port: u16,
    pub pid: u32,
    /// The core for its clients, if it has one.
    pub core: Option<u32>,
}

/// The user of all servers.
pub(super) const USER: &str = "bench";

impl Server {
    /// Returns the command of a client.
    pub(super) fn client(&self, program: &str) -> Command {
        let program = Path::new(PROGRAMS).join(program);
        let mut command = match self.core {
            None => Command::new(program),
            Some(core) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &core.to_string()]).arg(program);
                command
            }
        };
        self.tell(&mut command);
        command
    }

    /// Tells a client of PostgreSQL where the server is.
    pub(crate) fn tell(&self, client: &mut Command) {
        client.env("PGHOST", &self.directory).env("PGPORT", self.port.to_string());
        client.env("PGUSER", USER).env("PGDATABASE", "postgres");
    }
}

/// Runs pgbench; returns what it printed.
pub(crate) fn pgbench(server: &Server, options: &str) -> Result<String> {
    output_within(server.client("pgbench").args(options.split(' ')), TIMEOUT)
}

/// Runs a statement; returns what psql printed.
pub(crate) fn psql(server: &Server, text: &str) -> Result<String> {
    output_within(server.client("psql").args(["-X", "-q", "-At", "-c", text]), TIMEOUT)
}

/// A snapshot of repeatable read that is open until this is dropped.
pub(super) struct Snapshot(Child);

impl Snapshot {
    pub(super) fn take(server: &Server) -> Result<Self> {
        let mut psql = server.client("psql").args(["-X", "-q", "-At"]).stdin(Stdio::piped()).spawn()?;
        let text = "begin isolation level repeatable read;\nselect from pgbench_branches;\n";
        psql.stdin.as_mut().context("psql has no input")?.write_all(text.as_bytes())?;
        // It reads before the work begins.
        thread::sleep(Duration::from_millis(200));
        Ok(Self(psql))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the transactions/s of an output of pgbench.
pub(super) fn tps(output: &str) -> Result<f64> {
    let line = output.lines().find_map(|line| line.strip_prefix("tps = "));
    let number = line.and_then(|line| line.split(' ').next()).context("pgbench printed no tps")?;
    Ok(number.parse()?)
}

/// Runs pgbench; returns the transactions/s.
pub(crate) fn rate(server: &Server, options: &str) -> Result<f64> {
    tps(&pgbench(server, options)?)
}

/// Copies rows into a new table; returns the rows/s.
pub(super) fn copied(server: &Server) -> Result<f64> {
    psql(server, "create table copied (a int primary key, b text)")?;
    let file = tempfile::NamedTempFile::new()?;
    let text: String = (0..ROWS).map(|row| format!("{row}\t{row:092}\n")).collect();
    fs::write(file.path(), text)?;
    let begin = Instant::now();
    psql(server, &format!("\\copy copied from {}", file.path().display()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let count = psql(server, "select count(*) from copied")?;
    ensure!(count.trim() == ROWS.to_string(), "{} rows were copied", count.trim());
    Ok(f64::from(ROWS) / seconds)
}

/// Returns the resident memory of a process in KiB.
fn resident_kib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Connects a client that does nothing.
fn idle(server: &Server) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(server.directory.join(format!(".s.PGSQL.{}", server.port)))?;
    let mut start = 196_608u32.to_be_bytes().to_vec();
    start.extend(format!("user\0{USER}\0database\0postgres\0\0").as_bytes());
    stream.write_all(&(start.len() as u32 + 4).to_be_bytes())?;
    stream.write_all(&start)?;
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4];
        stream.read_exact(&mut body)?;
        ensure!(head[0] != b'E', "the server refuses a connection");
        if head[0] == b'Z' {
            return Ok(stream);
        }
    }
}

/// Returns the memory of an idle connection in KiB.
pub(super) fn idle_kib(server: &Server) -> Result<f64> {
    let before = resident_kib(server.pid)?;
    let open = (0..IDLE).map(|_| idle(server)).collect::<Result<Vec<_>>>()?;
    let after = resident_kib(server.pid)?;
    Ok((after - before).max(0.0) / open.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_pgbench_is_found() {
        let output = "latency average = 1.0 ms\ntps = 1234.5 (without initial connection time)\n";
        assert_eq!(tps(output).unwrap(), 1234.5);
        assert!(tps("nothing").is_err());
    }
}
