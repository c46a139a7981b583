//! The end of a cluster without loss: all nodes quiesce, then all hand back, then all exit.
//!
//! The phases must not overlap, because a node that has handed back is still the master of what
//! others hold. So no node records that it left before all nodes have handed back.
//!
//! A node that ends alone goes through the same phases and then leaves: the others take over as
//! masters. So do the nodes of one host, one after the other, while nodes of other hosts go on.
//!
//! Nodes of other hosts are told through nodes of this one. They exit first, because the nodes of
//! this host pass on what they are told. Voting files that they serve go with them. If that costs
//! the majority, the membership lets the nodes of this host leave at the same time.

use std::{
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    config::{Config, this_host},
    control::Forwarded,
    control::{ANSWER_WITHIN, Control, ControlError, Seen, forward},
    launch,
    layout::ClusterDir,
    records::durable::{Lock, Look},
    records::state::{self, Phase},
    status::Stage,
    status::Status,
};

/// The longest that a process may take to end after it has agreed.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The longest that a node of another host may take for one phase: longer than a hand-back.
const PHASE_WITHIN: Duration = Duration::from_secs(620);

/// The longest wait until a node of another host has left, and the polling interval.
const LEFT_WITHIN: Duration = Duration::from_secs(40);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// The longest wait until the members have noticed that a node of this host has left.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

/// The nodes that are to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DownScope {
    /// The nodes of this host. The others go on.
    Host,
    /// The nodes of all hosts.
    All,
}

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
    /// The reason why not all nodes handed back and left.
    pub why: Option<String>,
    /// The reason why changes are not on disk, if any may not be: they are in redo that could not
    /// be recovered, or a disk was removed.
    pub unrecovered: Option<String>,
    /// The nodes that did not end.
    pub left: Vec<String>,
    /// The reason why a node did not end although all have handed back.
    pub refused: Option<String>,
    /// The members of other hosts that go on.
    pub go_on: Vec<String>,
    /// The members of other hosts that end too, because no majority of the voting files is left.
    pub end_too: Vec<String>,
}

/// The ways to the nodes of a cluster.
struct Ways<'a> {
    dir: &'a ClusterDir,
    /// The nodes of this host, which reach the others.
    gateways: Vec<String>,
}

struct Running {
    name: String,
    /// True if its control socket is on this host.
    is_here: bool,
    /// `None` if it has ended, or its process number has no meaning here.
    process: Option<OwnedFd>,
    // A node that still waits for its peers has nothing to hand back.
    serves: bool,
    /// The reason why it does not end.
    refuses: Option<String>,
    /// As in [`Down`].
    unrecovered: Option<String>,
    written: u64,
    held: u64,
}

/// Takes down the running nodes in `scope`. `progress` receives node and phase.
///
/// Never fails: if nodes cannot hand back (a peer has failed, for example), all are told to leave,
/// and the report says so.
pub fn take_down(config: &Config, scope: DownScope, progress: &(dyn Fn(&str, &str) + Sync)) -> Down {
    let host = this_host();
    let in_scope = config.nodes.iter().filter(|node| scope == DownScope::All || node.host == host);
    let names: Vec<_> = in_scope.map(|node| node.name.as_str()).collect();
    let look = || launch::look_at_all(&config.dir, &names);
    let mut seen = look();
    let start = Instant::now();
    while a_node_has_just_left(config, &seen) && start.elapsed() < NOTICED_WITHIN {
        thread::sleep(ASK_EVERY);
        seen = look();
    }
    let gateways = seen.iter().filter(|(_, seen)| seen.alive().is_some()).map(|(name, _)| name.clone());
    let ways = Ways { dir: &config.dir, gateways: gateways.collect() };
    if scope == DownScope::All {
        seen = Seen::elsewhere(config, seen, "status", ANSWER_WITHIN);
    }
    let (mut running, mut left, mut why) = (Vec::new(), Vec::new(), None);
    for (name, seen) in seen {
        match seen {
            Seen::Alive(status) => running.push(*status),
            Seen::Down | Seen::Removed => {}
            Seen::Silent(line) | Seen::Unreachable(line) => {
                left.push(name);
                why.get_or_insert(line);
            }
        }
    }
    let nodes: Vec<_> = running
        .iter()
        .map(|status| Running::of(&ways, status, ways.gateways.contains(&status.name)))
        .collect();
    let others = config.nodes.iter().filter(|node| {
        let is_member = |status: &Status| status.runtime.members.contains(&node.name);
        !names.contains(&node.name.as_str()) && running.iter().any(is_member)
    });
    let others: Vec<_> = others.map(|node| node.name.clone()).collect();
    let Outcome { ended, clean, why, refused, unrecovered } = match others.is_empty() {
        true => {
            let why = why.or_else(|| obstacle(&running));
            all_together(&ways, nodes, why, &mut left, progress)
        }
        false => one_by_one(&ways, nodes, &running, why, &mut left, progress),
    };
    let leavers: Vec<u8> = names.iter().filter_map(|name| Some(config.node(name).ok()?.0.0)).collect();
    let (go_on, end_too) = match running.iter().any(|status| costs_majority(status, &leavers)) {
        false => (others, Vec::new()),
        true => (Vec::new(), others),
    };
    Down { ended, clean, why, unrecovered, left, refused, go_on, end_too }
}

/// Returns true if a node has ended in order, and others still count it among the members: their
/// view without it follows at once.
fn a_node_has_just_left(config: &Config, seen: &[(String, Seen<Status>)]) -> bool {
    let is_member = |name: &String| {
        let mut alive = seen.iter().filter_map(|(_, seen)| seen.alive());
        alive.any(|status| status.runtime.members.contains(name))
    };
    let has_left =
        |name| matches!(state::record(&config.dir, name), Ok(Some(record)) if record.phase == Phase::Left);
    seen.iter().any(|(name, seen)| matches!(seen, Seen::Down) && is_member(name) && has_left(name))
}

/// Returns true if these nodes serve so many voting files that the others have no majority.
fn costs_majority(status: &Status, leavers: &[u8]) -> bool {
    status.runtime.membership.as_ref().is_some_and(|membership| {
        let is_member = |host| membership.members.iter().any(|member| member.node == host);
        let stays = |host: Option<u8>| host.is_none_or(|host| is_member(host) && !leavers.contains(&host));
        let stay = membership.files.iter().filter(|file| file.votes && stays(file.host)).count();
        stay < membership.quorum.needed
    })
}

/// The fields of [`Down`] about the nodes that were told to end.
struct Outcome {
    ended: Vec<Ended>,
    clean: bool,
    why: Option<String>,
    refused: Option<String>,
    unrecovered: Option<String>,
}

/// Ends all members of a cluster.
fn all_together(
    ways: &Ways<'_>,
    mut nodes: Vec<Running>,
    mut why: Option<String>,
    left: &mut Vec<String>,
    progress: &(dyn Fn(&str, &str) + Sync),
) -> Outcome {
    for (phase, say) in [("quiesce", "quiesces"), ("handback", "hands back")] {
        if why.is_none() {
            let nodes = nodes.iter_mut().filter(|node| node.serves);
            why = all(ways, nodes, phase, json!({}), &|name| progress(name, say)).err();
        }
    }
    let clean = why.is_none();
    let (serving, waiting): (Vec<_>, Vec<_>) = nodes.iter_mut().partition(|node| node.serves);
    let (here, elsewhere): (Vec<_>, Vec<_>) = serving.into_iter().partition(|node| node.is_here);
    let mut exits = Ok(());
    for (mut nodes, clean) in [(waiting, false), (elsewhere, clean), (here, clean)] {
        let nodes_again = nodes.iter_mut().map(|node| &mut **node);
        let exit = all(ways, nodes_again, "exit", json!({ "clean": clean }), &|name| progress(name, "exits"));
        exits = exits.and(exit);
        let stay = nodes.iter().filter(|node| !node.has_ended(ways));
        left.extend(stay.map(|node| node.name.clone()));
    }
    let ended = nodes.iter().filter(|node| !left.contains(&node.name)).map(Running::report).collect();
    let refused = nodes.iter().find_map(|node| node.refuses.clone()).filter(|_| clean);
    let unrecovered =
        nodes.iter().find_map(|node| node.unrecovered.as_ref().map(|why| format!("{}: {why}", node.name)));
    Outcome { ended, clean: clean && left.is_empty(), why: why.or(exits.err()), refused, unrecovered }
}

/// Ends nodes of this host while others go on.
fn one_by_one(
    ways: &Ways<'_>,
    nodes: Vec<Running>,
    running: &[Status],
    mut why: Option<String>,
    left: &mut Vec<String>,
    progress: &dyn Fn(&str, &str),
) -> Outcome {
    let mut ended = Vec::new();
    for (mut node, status) in nodes.into_iter().zip(running) {
        let obstacle = stop(ways, &mut node, status, progress).err();
        if obstacle.is_some() {
            // It may be leaving already, with nodes that ended before it. Else it ends as it is.
            let _ = node.call(ways, "exit", json!({ "clean": false }));
        }
        let has_left =
            || matches!(state::record(ways.dir, &node.name), Ok(Some(record)) if record.phase == Phase::Left);
        match obstacle {
            Some(line) if !node.has_ended(ways) => {
                left.push(node.name.clone());
                why.get_or_insert(line);
                continue;
            }
            Some(line) if !has_left() => drop(why.get_or_insert(line)),
            _ => {}
        }
        ended.push(node.report());
    }
    // The members that go on recover it.
    Outcome { ended, clean: why.is_none(), why, refused: None, unrecovered: None }
}

/// Ends one node while the others go on: it hands everything back and leaves. `progress` receives
/// node and phase.
///
/// # Errors
/// The node could not hand back: then it goes on and refuses changes, and this may be repeated. Or
/// it did not leave in order. The text is one line for the user.
pub fn stop_node(dir: &ClusterDir, status: &Status, progress: &dyn Fn(&str, &str)) -> Result<Ended, String> {
    let ways = Ways { dir, gateways: Vec::new() };
    let mut node = Running::of(&ways, status, true);
    stop(&ways, &mut node, status, progress).map(|()| node.report())
}

fn stop(
    ways: &Ways<'_>,
    node: &mut Running,
    status: &Status,
    progress: &dyn Fn(&str, &str),
) -> Result<(), String> {
    let (dir, name) = (ways.dir, status.name.as_str());
    if let (Stage::Stopped, why) = (status.state, &status.why) {
        return Err(format!("{name} had stopped: {}", why.as_deref().unwrap_or("it does not say why")));
    }
    if node.serves {
        for (phase, say) in [("quiesce", "quiesces"), ("handback", "hands back")] {
            progress(name, say);
            node.call(ways, phase, json!({})).map_err(|why| {
                format!("{name} did not hand everything back, and goes on without taking changes: {why}")
            })?;
        }
    }
    progress(name, "leaves");
    node.call(ways, "exit", json!({ "clean": false }))?;
    if !node.has_ended(ways) {
        return Err(format!("{name} did not end; see {}", dir.log(name).display()));
    }
    let record = state::record(dir, name).map_err(|error| error.to_string())?;
    match record {
        Some(record) if node.serves && record.phase != Phase::Left => {
            Err(format!("{name} ended and did not leave in order; see {}", dir.log(name).display()))
        }
        _ => Ok(()),
    }
}

/// Returns the reason why not all nodes can hand back: a node that has stopped, or a member that
/// does not answer.
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
    ways: &Ways<'_>,
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
                    node.call(ways, command, args)
                })
            })
            .collect();
        let results: Vec<_> =
            calls.into_iter().map(|call| call.join().unwrap_or(Err("a bug".into()))).collect();
        results.into_iter().collect()
    })
}

impl Running {
    fn of(ways: &Ways<'_>, status: &Status, is_here: bool) -> Self {
        let can_name = is_here
            && matches!(Lock::look(&ways.dir.lock(&status.name)),
                Ok(Look::Held(Some(holder))) if holder.obstacle().is_none() && holder.pid == status.pid);
        let pid = i32::try_from(status.pid).ok().filter(|_| can_name).and_then(Pid::from_raw);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self {
            name: status.name.clone(),
            is_here,
            process,
            serves: status.state >= Stage::Running,
            refuses: None,
            unrecovered: None,
            written: 0,
            held: 0,
        }
    }

    fn call(&mut self, ways: &Ways<'_>, command: &str, args: Value) -> Result<(), String> {
        let result = match self.is_here {
            true => self.ask_here(ways, command, args),
            false => self.ask_elsewhere(ways, command, &args),
        };
        result.map(|value| {
            self.written += value["written"].as_u64().unwrap_or(0);
            self.held += value["held"].as_u64().unwrap_or(0);
            if let Some(why) = value["unrecovered"].as_str() {
                self.unrecovered = Some(why.into());
            }
        })
    }

    fn ask_here(&mut self, ways: &Ways<'_>, command: &str, args: Value) -> Result<Value, String> {
        let control = Control::connect(ways.dir, &self.name);
        match control.and_then(|mut control| control.call(command, args, |_| {})) {
            // The process may end before its answer is sent.
            Err(
                ControlError::Ended { .. }
                | ControlError::Dropped { .. }
                | ControlError::Closed { .. }
                | ControlError::NotRunning { .. },
            ) if command == "exit" => Ok(Value::Null),
            Err(error) => {
                self.refuses = (command == "exit").then(|| error.to_string());
                Err(error.to_string())
            }
            Ok(value) => Ok(value),
        }
    }

    fn ask_elsewhere(&self, ways: &Ways<'_>, command: &str, args: &Value) -> Result<Value, String> {
        let name = &self.name;
        match self.forward(ways, (command, args), PHASE_WITHIN) {
            Some(Forwarded::Ok(value)) => Ok(value),
            Some(Forwarded::Error(why)) => Err(format!("{name}: {why}")),
            // The node may end before its answer is sent.
            Some(_) if command == "exit" => Ok(Value::Null),
            Some(Forwarded::Unreachable(why)) => Err(format!("{name}: not reachable from here: {why}")),
            Some(Forwarded::Down | Forwarded::Removed) => Err(format!("{name} is no longer a member")),
            None => Err(format!("{name}: no node of this machine forwards `{command}` to it")),
        }
    }

    fn forward(
        &self,
        ways: &Ways<'_>,
        (command, args): (&str, &Value),
        within: Duration,
    ) -> Option<Forwarded> {
        let gateways = ways.gateways.iter().map(String::as_str);
        forward(ways.dir, gateways, (&self.name, command, args), within)
    }

    fn has_ended(&self, ways: &Ways<'_>) -> bool {
        if !self.is_here {
            return self.has_left(ways);
        }
        if self.refuses.is_some() {
            return false;
        }
        let Some(process) = &self.process else { return self.has_released(ways) };
        let timeout = Timespec { tv_sec: END_WITHIN.as_secs() as i64, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)), Ok(1))
    }

    /// Waits until a node of this host, perhaps of another PID namespace, has released its lock.
    fn has_released(&self, ways: &Ways<'_>) -> bool {
        let (start, path) = (Instant::now(), ways.dir.lock(&self.name));
        while matches!(Lock::look(&path), Ok(Look::Held(_))) {
            if start.elapsed() >= END_WITHIN {
                return false;
            }
            thread::sleep(ASK_EVERY);
        }
        true
    }

    /// Waits until a node of another host is no member any more.
    fn has_left(&self, ways: &Ways<'_>) -> bool {
        let start = Instant::now();
        while start.elapsed() < LEFT_WITHIN {
            match self.forward(ways, ("status", &Value::Null), ANSWER_WITHIN) {
                Some(Forwarded::Down | Forwarded::Removed) => return true,
                // The nodes of this host have left with it, as no majority was left.
                None => return true,
                Some(_) => thread::sleep(ASK_EVERY),
            }
        }
        false
    }

    fn report(&self) -> Ended {
        Ended { name: self.name.clone(), written: self.written, held: self.held }
    }
}
