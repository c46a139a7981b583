//! The end of a cluster without loss: all nodes quiesce, then all hand back, then all exit.
//!
//! The phases must not overlap, because a node that has handed back is still the master of what
//! others hold. So no node records a clean leave before all nodes have handed back.
//!
//! A node that ends alone goes through the same phases and then leaves: the others take over as
//! masters.

use std::{os::fd::OwnedFd, thread, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    admin::commands::Status,
    admin::control::{Control, ControlError, Seen},
    boot::launch,
    boot::layout::ClusterDir,
    lifecycle::Stage,
    records::state::{self, Phase},
};

/// The longest that a process may take to end after it has agreed.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The end of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Ended {
    /// The name of the node.
    pub name: String,
    /// The number of blocks that it wrote for the hand-back.
    pub written: u64,
    /// The number of blocks that it held before.
    pub held: u64,
}

/// The result of taking a cluster down.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Down {
    /// The nodes that ran and have ended.
    pub ended: Vec<Ended>,
    /// True if every node handed back; otherwise `why` has the obstacle.
    pub clean: bool,
    /// The obstacle to a clean end.
    pub why: Option<String>,
    /// The nodes that did not end.
    pub left: Vec<String>,
    /// The reason why a node did not end although all have handed back.
    pub refused: Option<String>,
}

struct Running {
    name: String,
    process: Option<OwnedFd>,
    // A node that still waits for its peers has nothing to hand back.
    serves: bool,
    /// The reason why it does not end.
    refuses: Option<String>,
    written: u64,
    held: u64,
}

/// Takes down the running nodes among `names`. `progress` receives node and phase.
///
/// Never fails: if nodes cannot hand back (a peer has failed, for example), all are told to leave,
/// and the report says so.
pub fn take_down(dir: &ClusterDir, names: &[&str], progress: &(dyn Fn(&str, &str) + Sync)) -> Down {
    let (mut running, mut left, mut why) = (Vec::new(), Vec::new(), None);
    for (name, seen) in launch::look_at_all(dir, names) {
        match seen {
            Seen::Alive(status) => running.push(*status),
            Seen::Down => {}
            Seen::Silent(line) => {
                left.push(name);
                why.get_or_insert(line);
            }
        }
    }
    let mut why = why.or_else(|| obstacle(&running));
    let mut nodes: Vec<_> = running.iter().map(Running::of).collect();
    for (phase, say) in [("quiesce", "quiesces"), ("handback", "hands back")] {
        if why.is_none() {
            let nodes = nodes.iter_mut().filter(|node| node.serves);
            why = all(dir, nodes, phase, json!({}), &|name| progress(name, say)).err();
        }
    }
    let clean = why.is_none();
    let (serving, waiting): (Vec<_>, Vec<_>) = nodes.iter_mut().partition(|node| node.serves);
    let exit = |nodes: Vec<&mut Running>, clean| {
        all(dir, nodes, "exit", json!({ "clean": clean }), &|name| progress(name, "exits"))
    };
    let exits = exit(waiting, false).and(exit(serving, clean));
    left.extend(nodes.iter().filter(|node| !node.has_ended()).map(|node| node.name.clone()));
    let ended = nodes.iter().filter(|node| !left.contains(&node.name)).map(Running::report).collect();
    let refused = nodes.iter().find_map(|node| node.refuses.clone()).filter(|_| clean);
    Down { ended, clean: clean && left.is_empty(), why: why.or(exits.err()), left, refused }
}

/// Ends one node while the others go on: it hands everything back and leaves. `progress` receives
/// node and phase.
///
/// # Errors
/// The node could not hand back: then it goes on and refuses changes, and this may be repeated. Or
/// it did not leave in order. The text is one line for the user.
pub fn stop_node(dir: &ClusterDir, status: &Status, progress: &dyn Fn(&str, &str)) -> Result<Ended, String> {
    let mut node = Running::of(status);
    let name = status.name.as_str();
    if let (Stage::Stopped, why) = (status.state, &status.why) {
        return Err(format!("{name} had stopped: {}", why.as_deref().unwrap_or("it does not say why")));
    }
    if node.serves {
        for (phase, say) in [("quiesce", "quiesces"), ("handback", "hands back")] {
            progress(name, say);
            node.call(dir, phase, json!({})).map_err(|why| {
                format!("{name} did not hand everything back, and goes on without taking changes: {why}")
            })?;
        }
    }
    progress(name, "leaves");
    node.call(dir, "exit", json!({ "clean": false }))?;
    if !node.has_ended() {
        return Err(format!("{name} did not end; see {}", dir.log(name).display()));
    }
    let record = state::record(dir, name).map_err(|error| error.to_string())?;
    match record {
        Some(record) if node.serves && record.phase != Phase::Left => {
            Err(format!("{name} ended and did not leave in order; see {}", dir.log(name).display()))
        }
        _ => Ok(node.report()),
    }
}

/// Returns the obstacle to a clean end: a node that has stopped, or a member that does not answer.
fn obstacle(running: &[Status]) -> Option<String> {
    if let Some(status) = running.iter().find(|status| status.state == Stage::Stopped) {
        return Some(format!(
            "{} had stopped: {}",
            status.name,
            status.why.as_deref().unwrap_or("it does not say why")
        ));
    }
    let answers = |name: &str| running.iter().any(|status| status.name == name);
    let members = running.iter().flat_map(|status| &status.runtime.members);
    let absent = members.into_iter().find(|member| !answers(member));
    absent.map(|member| format!("{member} is a member and cannot be reached from here"))
}

/// Runs `command` on all nodes at the same time; returns the first error.
fn all<'a>(
    dir: &ClusterDir,
    nodes: impl IntoIterator<Item = &'a mut Running>,
    command: &str,
    args: Value,
    started: &(dyn Fn(&str) + Sync),
) -> Result<(), String> {
    thread::scope(|scope| {
        let calls: Vec<_> = nodes
            .into_iter()
            .map(|node| {
                let args = args.clone();
                scope.spawn(move || {
                    started(&node.name);
                    node.call(dir, command, args)
                })
            })
            .collect();
        let results: Vec<_> =
            calls.into_iter().map(|call| call.join().unwrap_or(Err("a bug".into()))).collect();
        results.into_iter().collect()
    })
}

impl Running {
    fn of(status: &Status) -> Self {
        let pid = i32::try_from(status.pid).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self {
            name: status.name.clone(),
            process,
            serves: status.state >= Stage::Running,
            refuses: None,
            written: 0,
            held: 0,
        }
    }

    fn call(&mut self, dir: &ClusterDir, command: &str, args: Value) -> Result<(), String> {
        let result =
            Control::connect(dir, &self.name).and_then(|mut control| control.call(command, args, |_| {}));
        match result {
            Ok(value) => {
                self.written += value["written"].as_u64().unwrap_or(0);
                self.held += value["held"].as_u64().unwrap_or(0);
                Ok(())
            }
            // The process may end before its answer is sent.
            Err(ControlError::Ended { .. } | ControlError::NotRunning { .. }) if command == "exit" => Ok(()),
            Err(error) => {
                self.refuses = (command == "exit").then(|| error.to_string());
                Err(error.to_string())
            }
        }
    }

    fn has_ended(&self) -> bool {
        let Some(process) = &self.process else { return true };
        if self.refuses.is_some() {
            return false;
        }
        let timeout = Timespec { tv_sec: END_WITHIN.as_secs() as i64, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)), Ok(1))
    }

    fn report(&self) -> Ended {
        Ended { name: self.name.clone(), written: self.written, held: self.held }
    }
}
