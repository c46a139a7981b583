//! Measures how long a cluster takes to a new view after a node is gone, to grant its locks to
//! others, and how long clients of the others wait.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use plexus_admin::{
    control::{Control, ControlError, ControlResponse},
    layout::ClusterDir,
};
use plexus_node::registry::Bytes;

use super::nodes::{Nodes, Spec, TIMEOUT};

/// The nodes of the measured clusters.
const NODES: usize = 3;

/// The locks that are recovered.
const LOCKS: u64 = 1_000_000;

/// A lock held by the node that is killed.
const LAST: &str = "held by the last";

/// The names that the clients use; each node masters some of them.
const NAMES: usize = 32;

/// The rounds through all names before the node is lost.
const ROUNDS_BEFORE: usize = 4;

/// The work of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientWork {
    /// Taking and releasing locks, one after the other.
    Locks,
    /// Setting keys of the registry, one after the other.
    Keys,
}

fn cluster(program: PathBuf, networks: usize, profile: &'static str) -> Result<Nodes, String> {
    Nodes::start(Spec::new(program, NODES, networks, profile))
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Measures the milliseconds from the end of a process to the new view of the others, all on one
/// host.
///
/// # Errors
/// There is no new view.
pub fn death(program: PathBuf) -> Result<f64, String> {
    let mut nodes = cluster(program, 0, "lan")?;
    let epoch = nodes.agreed(&[0, 1, 2], 0)?;
    let start = Instant::now();
    nodes.kill(NODES - 1);
    nodes.agreed(&[0, 1], epoch)?;
    Ok(ms(start))
}

/// Measures the milliseconds from the cut of a host's networks to the new view of the others.
///
/// # Errors
/// There is no new view.
pub fn cut(program: PathBuf, profile: &'static str) -> Result<f64, String> {
    let mut nodes = cluster(program, 2, profile)?;
    let epoch = nodes.agreed(&[0, 1, 2], 0)?;
    let start = Instant::now();
    (0..2).try_for_each(|network| nodes.lan().unplug(NODES - 1, network))?;
    nodes.agreed(&[0, 1], epoch)?;
    Ok(ms(start))
}

/// Measures the longest wait in milliseconds of a client of a node that remains, from the loss of
/// another node on. The node's process is killed, or with `networks` its host is cut off.
///
/// # Errors
/// An operation fails, or the client does not go on.
pub fn client(program: PathBuf, networks: usize, work: ClientWork) -> Result<f64, String> {
    let mut nodes = cluster(program, networks, "lan")?;
    nodes.agreed(&[0, 1, 2], 0)?;
    let dir = nodes.dir();
    let done = Mutex::new(Vec::new());
    let over = AtomicBool::new(false);
    let answered = || done.lock().unwrap_or_else(PoisonError::into_inner).len();
    thread::scope(|scope| {
        let working = scope.spawn(|| -> Result<(), String> {
            for number in (0..NAMES).cycle() {
                if over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                once(&dir, work, number).map_err(|error| error.to_string())?;
                done.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            }
            Ok(())
        });
        let reached = |count: usize| {
            let until = Instant::now() + TIMEOUT;
            while answered() < count && Instant::now() < until && !working.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            answered() >= count
        };
        let mut lose = || -> Result<Instant, String> {
            if !reached(ROUNDS_BEFORE * NAMES) {
                return Err("the client did not begin".into());
            }
            let start = Instant::now();
            match networks {
                0 => nodes.kill(NODES - 1),
                _ => (0..networks).try_for_each(|network| nodes.lan().unplug(NODES - 1, network))?,
            }
            nodes.agreed(&[0, 1], 0)?;
            let rounds = answered() + 2 * NAMES;
            if reached(rounds) { Ok(start) } else { Err("the client does not go on".into()) }
        };
        let lost = lose();
        over.store(true, Ordering::Relaxed);
        working.join().map_err(|_| "the client panicked")??;
        let start = lost?;
        let done = done.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = done.windows(2).filter(|pair| pair[1] > start);
        let longest = waits.map(|pair| pair[1] - pair[0].max(start)).max();
        longest.map(|wait| wait.as_secs_f64() * 1e3).ok_or_else(|| "nothing was answered".into())
    })
}

/// Runs one operation of a client at the first node.
fn once(dir: &ClusterDir, work: ClientWork, number: usize) -> Result<(), ControlError> {
    let mut control = Control::connect_within(dir, &Nodes::name(0), TIMEOUT)?;
    control.set_timeout(TIMEOUT)?;
    let name = format!("name {number}");
    match work {
        ClientWork::Keys => {
            let value = Bytes::Text(number.to_string());
            control.call("registry.set", json!({ "key": name, "value": value }), |_| ()).map(drop)
        }
        ClientWork::Locks => {
            control.ask("lock", json!({ "name": name, "mode": "EX" }))?;
            // The end of the connection releases the lock.
            control.hear().map(drop)
        }
    }
}

/// The process that makes the nodes hold locks; it ends when this is dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // It has ended by itself if the nodes have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures the milliseconds from the death of a node until one of its locks is granted to another.
/// Each of the three nodes holds and masters a third of [`LOCKS`].
///
/// # Errors
/// The locks are not held, or none is granted.
pub fn recovery(program: PathBuf) -> Result<f64, String> {
    let mut nodes = cluster(program.clone(), 0, "lan")?;
    let fails = |error: std::io::Error| error.to_string();
    let refused = |error: ControlError| error.to_string();
    let asked = |node| -> Result<Control, ControlError> {
        let mut control = Control::connect_within(&nodes.dir(), &Nodes::name(node), TIMEOUT)?;
        control.set_timeout(TIMEOUT)?;
        control.ask("lock", json!({ "name": LAST, "mode": "EX" }))?;
        Ok(control)
    };
    let mut last = asked(NODES - 1).map_err(refused)?;
    if !matches!(last.hear().map_err(refused)?, ControlResponse::Progress(_)) {
        return Err("the last node granted no lock".into());
    }
    let mut hold = Command::new(&program);
    hold.args(["bench", "locks", "-C"]).arg(nodes.dir().root()).args([
        "--json",
        "--hold",
        &LOCKS.to_string(),
    ]);
    let mut holder = Holder(hold.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(fails)?);
    let said = holder.0.stdout.take().ok_or("the process that holds the locks has no standard output")?;
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line);
        let _ = tell.send(read.map(|_| line));
    });
    let line = told.recv_timeout(TIMEOUT).map_err(|_| "the locks are not held in time")?.map_err(fails)?;
    let held: Value = serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}"))?;
    if held["held"] != LOCKS {
        return Err(format!("not all locks are held: {held}"));
    }
    let mut first = asked(0).map_err(refused)?;
    first.set_timeout(Duration::from_millis(100)).map_err(refused)?;
    if !matches!(first.hear(), Err(ControlError::Silent { .. })) {
        return Err("two clients have one lock".into());
    }
    first.set_timeout(TIMEOUT).map_err(refused)?;
    let start = Instant::now();
    nodes.kill(NODES - 1);
    match first.hear() {
        Ok(ControlResponse::Progress(_)) => Ok(ms(start)),
        other => Err(format!("the lock of the dead node was not granted: {other:?}")),
    }
}
