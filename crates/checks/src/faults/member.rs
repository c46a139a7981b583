//! The process of one member: a mesh with one worker, its [`Traffic`], and commands on standard
//! input.
//!
//! `report` prints a [`Report`] on a line. `bulk` keeps more bulk under way from now on and prints
//! a report. `stop` ends the traffic, waits until nothing is under way, and prints a report. The
//! process ends with its standard input. It also ends with the thread that started it, because a
//! stopped process does not see the end of its input.

use std::{
    io::{BufRead, Write},
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use plexus_base::{Incarnation, NodeId, Waiting};
use plexus_fabric::{RailKind, Window};
use plexus_interconnect::mesh::{Admission, Config, Key, Mesh, Peer};
use rustix::process::Signal;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{
    Observed, Report, Seen, Task, Traffic,
    traffic::{WINDOW, WINDOW_BYTES},
};

/// The time within which messages under way must be acknowledged.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The interval at which a wait checks its condition.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The parameters of a member.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The number of the member, 0 or 1.
    pub me: u8,
    /// The number of the pair, unique on the machine.
    pub cluster: u64,
    /// The incarnation of this member.
    pub incarnation: u64,
    /// The kind of rail to its peer.
    #[serde(serialize_with = "to_name", deserialize_with = "from_name")]
    pub rail: RailKind,
    /// True if the rail is encrypted.
    pub encrypt: bool,
    /// The addresses to listen on, one for each path.
    pub listen: Vec<SocketAddr>,
    /// The addresses of the other member.
    pub peer: Vec<SocketAddr>,
    /// The network namespace of the member.
    pub namespace: Option<PathBuf>,
}

fn to_name<S: Serializer>(rail: &RailKind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(rail.name())
}

fn from_name<'a, D: Deserializer<'a>>(from: D) -> Result<RailKind, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

impl Member {
    /// Returns the member as the argument of its program.
    ///
    /// # Errors
    /// The path of its namespace is no text.
    pub fn to_argument(&self) -> Result<String, String> {
        serde_json::to_string(self).map_err(|error| error.to_string())
    }

    /// Parses the argument of a member.
    ///
    /// # Errors
    /// It is not the argument of any member.
    pub fn from_argument(argument: &str) -> Result<Self, String> {
        serde_json::from_str(argument).map_err(|error| format!("no member: {argument:?}: {error}"))
    }

    /// Runs the member until its standard input ends.
    ///
    /// # Errors
    /// One line that names the resource that could not be created.
    pub fn run(self) -> Result<(), String> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| format!("cannot end with the parent process: {error}"))?;
        // Must precede all other threads: a thread enters a namespace, and the threads that it
        // starts inherit it.
        if let Some(path) = &self.namespace {
            plexus_namespaces::enter(path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let window = Window::create(WINDOW, WINDOW_BYTES, 0).map_err(|error| error.to_string())?;
        let window = Arc::new(window);
        let observed = Arc::<Observed>::default();
        let traffic = Traffic::new(NodeId(1 - self.me), window.clone(), observed.clone());
        let mesh =
            Mesh::start(self.config(window), vec![traffic], |_| ()).map_err(|error| error.to_string())?;
        for line in std::io::stdin().lock().lines() {
            match line.map_err(|error| error.to_string())?.as_str() {
                "report" => {}
                "bulk" => mesh.workers()[0].submit(Task::Bulk),
                "stop" => {
                    mesh.workers()[0].submit(Task::Stop);
                    let end = Instant::now() + TIMEOUT;
                    while !observed.is_idle() && Instant::now() < end {
                        thread::sleep(LOOK_EVERY);
                    }
                }
                other => return Err(format!("no command: {other}")),
            }
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", report(&mesh, &observed)).map_err(|error| error.to_string())?;
        }
        mesh.stop();
        Ok(())
    }

    pub(super) fn config(&self, window: Arc<Window>) -> Config {
        let mut cluster = [0; 16];
        cluster[..8].copy_from_slice(&self.cluster.to_le_bytes());
        let peer = Peer {
            id: NodeId(1 - self.me),
            addresses: self.peer.clone(),
            rails: vec![self.rail],
            encrypt: self.encrypt,
            fingerprint: 5,
        };
        Config {
            me: NodeId(self.me),
            incarnation: Incarnation(self.incarnation),
            cluster,
            admission: Admission::First,
            keys: Arc::new(vec![Key::new([7; 32])]),
            listen: self.listen.clone(),
            local: None,
            peers: vec![peer],
            windows: vec![window],
            waiting: Waiting::Event,
            timeout: Duration::from_secs(1),
            probe: Duration::from_millis(20),
            ofi_provider: None,
        }
    }
}

fn report(mesh: &Mesh<Traffic>, observed: &Observed) -> Report {
    let rails = mesh.rails().into_iter();
    Report {
        ups: observed.ups.load(Relaxed),
        gone: observed.gone.load(Relaxed),
        sent: observed.sent.load(Relaxed),
        received: observed.received.load(Relaxed),
        least: observed.least.load(Relaxed),
        stall_us: observed.take_stall().0 / 1000,
        unauthenticated: mesh.unauthenticated(),
        idle: observed.is_idle(),
        rails: rails
            .map(|rail| Seen {
                state: format!("{} {}", rail.state.name(), rail.reason.name()),
                path: rail.path,
                generation: rail.generation,
                bytes_out: rail.bytes_out,
            })
            .collect(),
        problem: mesh.problems().into_values().next(),
        wrong: observed.first_wrong(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_survives_a_round_trip_through_its_argument() {
        let member = Member {
            me: 1,
            cluster: 99,
            incarnation: 3,
            rail: RailKind::Tcp,
            encrypt: true,
            listen: vec!["10.0.0.1:7000".parse().unwrap(), "10.0.1.1:7000".parse().unwrap()],
            peer: vec!["10.0.0.2:7000".parse().unwrap()],
            namespace: Some("/proc/1/ns/net".into()),
        };
        let argument = member.to_argument().unwrap();
        assert_eq!(Member::from_argument(&argument), Ok(member));
        assert!(Member::from_argument(&argument[..60]).is_err());
    }
}
