//! The peers: etcd, Redis and `flock`. The report lists peers that are not installed.
//!
//! Each server has one member on loopback and its files in a temporary folder, which is its fastest
//! configuration. Clients keep their connections. The JSON gateway of etcd is slower than its own
//! protocol.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine};
use rustix::fs::{FlockOperation, flock};
use serde_json::json;
use tempfile::TempDir;

use super::{
    http::Http,
    timed::{Timed, timed},
};
use crate::{
    command::{ChildGuard, found},
    compare::ports::free_ports,
};

/// The time limit for a server to listen and for each response.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A server process that ends when this value is dropped.
struct Server {
    address: SocketAddr,
    // Declared before the folder, so that it ends before the folder is removed.
    _server: ChildGuard,
    _folder: TempDir,
}

impl Server {
    /// Starts `program` in a folder of its own and waits until it listens.
    ///
    /// The words PORT and OTHER in its arguments stand for the port for clients and a second port.
    fn start(program: &str, package: &str, arguments: &str) -> Result<Self> {
        ensure!(found(program), "{program} is not installed (package {package})");
        let folder = tempfile::tempdir()?;
        let [port, other] = free_ports()?;
        let arguments = arguments.replace("PORT", &port.to_string()).replace("OTHER", &other.to_string());
        let mut command = Command::new(program);
        command.args(arguments.split(' ')).current_dir(folder.path());
        let log = File::create(folder.path().join("log"))?;
        let server = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let (mut server, started) = (ChildGuard(server), Instant::now());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        while TcpStream::connect(address).is_err() {
            let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            ensure!(server.0.try_wait()?.is_none(), "{program} ended: {}", log().trim());
            ensure!(started.elapsed() < TIMEOUT, "{program} does not listen: {}", log().trim());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { address, _server: server, _folder: folder })
    }
}

/// An etcd server with one member.
pub(super) struct Etcd(Server);

impl Etcd {
    pub(super) fn start() -> Result<Self> {
        let arguments = "--data-dir data --listen-client-urls http://127.0.0.1:PORT \
            --advertise-client-urls http://127.0.0.1:PORT --listen-peer-urls http://127.0.0.1:OTHER \
            --initial-advertise-peer-urls http://127.0.0.1:OTHER \
            --initial-cluster default=http://127.0.0.1:OTHER --log-level error";
        let etcd = Self(Server::start("etcd", "etcd-server", arguments)?);
        let started = Instant::now();
        // etcd listens before it has elected a leader.
        while let Err(error) = etcd.lease(&mut etcd.client()?) {
            ensure!(started.elapsed() < TIMEOUT, "etcd does not serve: {error:#}");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(etcd)
    }

    fn client(&self) -> Result<Http> {
        Http::connect(self.0.address, TIMEOUT)
    }

    fn lease(&self, client: &mut Http) -> Result<String> {
        let lease = client.post("/v3/lease/grant", &json!({ "TTL": 600 }))?;
        Ok(lease["ID"].as_str().context("etcd gave no lease")?.to_owned())
    }

    /// Measures lock and unlock; all clients share one name, or each has its own.
    pub(super) fn lock(&self, clients: usize, shared: bool, time: Duration) -> Result<Timed> {
        timed(clients, time, |number| {
            let mut client = self.client()?;
            let lease = self.lease(&mut client)?;
            let name = BASE64_STANDARD.encode(format!("lock-{}", if shared { 0 } else { number }));
            Ok(move || {
                let held = client.post("/v3/lock/lock", &json!({ "name": name, "lease": lease }))?;
                let key = held["key"].as_str().context("etcd granted no lock")?;
                client.post("/v3/lock/unlock", &json!({ "key": key })).map(drop)
            })
        })
    }

    /// Measures a transaction that creates an absent key, followed by its deletion.
    pub(super) fn transaction(&self, time: Duration) -> Result<Timed> {
        timed(1, time, |_| {
            let mut client = self.client()?;
            let [key, value] = ["txn", "me"].map(|text| BASE64_STANDARD.encode(text));
            Ok(move || {
                let absent = json!([{ "target": "CREATE", "key": key, "create_revision": "0" }]);
                let put = json!([{ "requestPut": { "key": key, "value": value } }]);
                let made = client.post("/v3/kv/txn", &json!({ "compare": absent, "success": put }))?;
                ensure!(made["succeeded"] == true, "etcd did not create the key: {made}");
                client.post("/v3/kv/deleterange", &json!({ "key": key })).map(drop)
            })
        })
    }
}

/// A Redis server that writes nothing to disk.
pub(super) struct Redis(Server);

impl Redis {
    pub(super) fn start() -> Result<Self> {
        // The last argument is empty: nothing is saved.
        let arguments = "--port PORT --bind 127.0.0.1 --appendonly no --save ";
        Ok(Self(Server::start("redis-server", "redis-server", arguments)?))
    }

    /// Measures `SET name token NX PX 30000` followed by `DEL name`.
    pub(super) fn lock(&self, clients: usize, time: Duration) -> Result<Timed> {
        timed(clients, time, |number| {
            let stream = TcpStream::connect(self.0.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut stream = BufReader::new(stream);
            let name = format!("lock-{number}");
            let set = resp(&["SET", &name, "token", "NX", "PX", "30000"]);
            let delete = resp(&["DEL", &name]);
            let mut line = String::new();
            Ok(move || {
                for (command, good) in [(&set, "+OK"), (&delete, ":1")] {
                    stream.get_mut().write_all(command)?;
                    line.clear();
                    stream.read_line(&mut line)?;
                    ensure!(line.trim_end() == good, "redis answered {line:?} instead of {good}");
                }
                Ok(())
            })
        })
    }
}

/// Encodes a command in the protocol of Redis.
fn resp(words: &[&str]) -> Vec<u8> {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>()).into_bytes()
}

/// Measures `flock` and its release on a local file.
pub(super) fn file(time: Duration) -> Result<Timed> {
    let file = tempfile::tempfile()?;
    timed(1, time, |_| {
        let file = file.try_clone()?;
        Ok(move || {
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(flock(&file, FlockOperation::Unlock)?)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_encoded_with_lengths() {
        assert_eq!(resp(&["DEL", "a-b"]), b"*2\r\n$3\r\nDEL\r\n$3\r\na-b\r\n");
    }
}
