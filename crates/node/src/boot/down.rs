//! Ending a cluster without loss: all quiesce, then all hand back, then all exit.
//!
//! The phases must not overlap: who has handed back still masters what others hold. So none records that it has left, with which nothing is
//! lost, before every one has handed back.

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
};

/// How long a process may take to end after it has agreed to.
const END_WITHIN: Duration = Duration::from_secs(10);

/// How a node ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Ended {
    /// The node.
    pub name: String,
    /// Blocks that it wrote to hand them back.
    pub written: u64,
    /// Blocks that it held until then.
    pub held: u64,
}

/// What became of a cluster that was taken down.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Down {
    /// The nodes that ran, and ended.
    pub ended: Vec<Ended>,
    /// Whether every one handed back; otherwise `why` says what was in the way.
    pub clean: bool,
    /// What was in the way of a clean end.
    pub why: Option<String>,
    /// Nodes that did not end.
    pub left: Vec<String>,
}

struct Running {
    name: String,
    process: Option<OwnedFd>,
    // A node that still waits for its peers has nothing to hand back.
    serves: bool,
    written: u64,
    held: u64,
}

/// Takes down those of the nodes `names` that run. `progress` is told node and phase.
///
/// Never fails: when nodes cannot hand back (a peer is dead, say), all are told to leave, and the report says so.
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
    Down { ended, clean: clean && left.is_empty(), why: why.or(exits.err()), left }
}

/// What stands in the way of a clean end of all: a node that has stopped, or a member that does not answer.
fn obstacle(running: &[Status]) -> Option<String> {
    if let Some(status) = running.iter().find(|status| status.state == Stage::Stopped) {
        return Some(format!(
            "{} had stopped: {}",
            status.name,
            status.why.as_deref().unwrap_or("it does not say why")
        ));
    }
    let answers = |name: &str| running.iter().any(|status| status.name == name);
    let members = running.iter().flat_map(|status| &status.body.members);
    let absent = members.into_iter().find(|member| !answers(member));
    absent.map(|member| format!("{member} is a member and cannot be reached from here"))
}

/// Has all nodes do `command` at the same time; the first complaint.
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
            // The process may be gone before its answer is out.
            Err(ControlError::Ended { .. } | ControlError::NotRunning { .. }) if command == "exit" => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn has_ended(&self) -> bool {
        let Some(process) = &self.process else { return true };
        let timeout = Timespec { tv_sec: END_WITHIN.as_secs() as i64, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)), Ok(1))
    }

    fn report(&self) -> Ended {
        Ended { name: self.name.clone(), written: self.written, held: self.held }
    }
}
