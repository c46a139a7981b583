//! The commands on locks: `lock` holds one while its connection stands, `locks` lists them.
//!
//! `lock` takes `{"name", "mode", "wait_ms"}` (without `wait_ms` it waits forever; 0 fails at once
//! if the lock is not free). It reports `{"granted":{"mode","token"}}` and releases the lock when
//! the connection ends. It fails when the lock has lost its protection, and when too many clients
//! wait or hold already. `locks` takes nothing and returns [`NodeLocks`].

use std::{collections::BTreeMap, thread, time::Duration};

use plexus_admin::control::Progress;
use plexus_base::NodeId;
use plexus_client::wire::lock::SESSIONS;
use plexus_locks::{
    LockSurvey, NodeLock, OF_PROGRAMS, PendingNodeLock, SurveyedResource,
    protocol::{Mode, Name, Owner, Validity},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::commands::{CommandContext, LOOK_EVERY, NodeCommand, args, json_of};

/// The interval at which the connection of a holder is checked; waiting clients are delayed by it.
const HOLDER_LOOKED_AT_EVERY: Duration = Duration::from_millis(10);

/// The arguments of `lock`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockArgs {
    /// The name of the resource.
    pub name: String,
    /// The mode: NL, CR, CW, PR, PW or EX.
    pub mode: String,
    /// The longest wait; `None` waits forever, 0 fails at once if the lock is not free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// The commands that wait and hold.
pub(crate) const COMMANDS: &[NodeCommand] =
    &[NodeCommand::waiting("lock", lock), NodeCommand::prompt("locks", locks)];

fn lock(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let LockArgs { name, mode: wanted, wait_ms } = args(asked)?;
    let name = Name::new(name.as_bytes()).map_err(|error| error.to_string())?;
    let timeout = wait_ms.map(Duration::from_millis);
    let pending = on.runtime().locks().session().ask(name, mode(&wanted)?, timeout);
    let Some(lock) = wait(pending, progress)? else { return Ok(json!({})) };
    // After a pause of the node there may be late answers for its clients, and other holders by
    // then.
    let lease = on.runtime().membership().lease();
    let protects = || match lease.is_held() && !lock.is_lost() {
        true => Ok(()),
        false => Err("the cluster has stopped: the lock protects nothing any more"),
    };
    protects()?;
    let grant = lock.grant();
    let granted = json!({ "granted": { "mode": format!("{:?}", grant.mode), "token": grant.token.0 } });
    let mut is_there = progress(granted);
    while is_there {
        protects()?;
        thread::sleep(HOLDER_LOOKED_AT_EVERY);
        is_there = progress(Value::Null);
    }
    Ok(json!({}))
}

/// Waits for the lock. Returns `None` if the connection has ended, which cancels the request.
fn wait(pending: PendingNodeLock, progress: Progress<'_>) -> Result<Option<NodeLock>, String> {
    let answer = pending.wait_while(LOOK_EVERY, || progress(Value::Null));
    answer.transpose().map_err(|error| error.to_string())
}

/// Returns the mode with this name.
///
/// # Errors
/// There is no such mode.
pub fn mode(name: &str) -> Result<Mode, String> {
    let is_it = |mode: &Mode| format!("{mode:?}").eq_ignore_ascii_case(name);
    Mode::ALL
        .into_iter()
        .find(is_it)
        .ok_or_else(|| format!("{name:?} is no mode: use NL, CR, CW, PR, PW or EX"))
}

/// The longest that the workers may take to report: less than
/// [`ANSWER_WITHIN`](plexus_admin::control::ANSWER_WITHIN).
const SURVEY_WITHIN: Duration = Duration::from_secs(3);

/// The locks on the resources of which a node is the master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeLocks {
    /// True once the node has stopped: it grants nothing more, and its locks have no effect.
    pub stopped: bool,
    /// The resources with locks or requests, by name, up to a limit.
    pub resources: Vec<LockedResource>,
    /// The least number of holders and waiters on further resources.
    pub more: usize,
    /// The owners of the locks of this node's clients, by lock number.
    #[serde(default)]
    pub owners: BTreeMap<u64, String>,
}

/// One resource of which a node is the master.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockedResource {
    /// The name; bytes that are no text, or control a terminal, are replaced.
    pub name: String,
    /// The name of the master node.
    pub master: String,
    /// The state of its value block: `unwritten`, `valid` or `lost`.
    pub value: String,
    /// The holders.
    pub granted: Vec<LockHolder>,
    /// The waiters in the order of the queue.
    pub waiting: Vec<LockWaiter>,
}

/// A holder of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockHolder {
    /// The node of the client.
    pub node: String,
    /// The number of the lock there.
    pub lock: u64,
    /// The owner, if its node has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The granted mode.
    pub mode: String,
    /// The fencing token.
    pub token: u64,
}

/// A waiter for a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWaiter {
    /// The node of the client.
    pub node: String,
    /// The number of the lock there.
    pub lock: u64,
    /// The owner, if its node has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The requested mode.
    pub mode: String,
    /// The time in milliseconds that it has waited.
    pub waited_ms: u64,
    /// True if it has the lock in another mode meanwhile.
    pub converts: bool,
}

fn locks(on: &CommandContext, _: Value, _: Progress<'_>) -> Result<Value, String> {
    let locks = on.runtime().locks();
    let survey = locks.survey(SURVEY_WITHIN).ok_or("a worker does not answer")?;
    json_of(&said(on, locks.is_stopped(), &survey))
}

fn said(on: &CommandContext, stopped: bool, survey: &LockSurvey) -> NodeLocks {
    let resources = survey.resources.iter().map(|resource| shown(on, resource)).collect();
    let owners = survey.waiting.iter().chain(&survey.holding);
    let owners = owners.map(|(lock, owner)| (lock.0, words(*owner))).collect();
    NodeLocks { stopped, resources, more: survey.more, owners }
}

fn shown(on: &CommandContext, resource: &SurveyedResource) -> LockedResource {
    let node = |id: NodeId| on.config.name_of(id);
    let granted = resource.granted.iter().map(|held| LockHolder {
        node: node(held.node),
        lock: held.lock,
        owner: None,
        mode: format!("{:?}", held.mode),
        token: held.token.0,
    });
    let waiting = resource.waiting.iter().map(|wanted| LockWaiter {
        node: node(wanted.node),
        lock: wanted.lock,
        owner: None,
        mode: format!("{:?}", wanted.mode),
        waited_ms: wanted.waited.0 / 1_000_000,
        converts: wanted.converts,
    });
    LockedResource {
        name: readable(resource.name.bytes()),
        master: node(on.runtime().me()),
        value: match resource.value {
            Validity::Unwritten => "unwritten",
            Validity::Valid => "valid",
            Validity::Lost => "lost",
        }
        .into(),
        granted: granted.collect(),
        waiting: waiting.collect(),
    }
}

/// Returns the text for an owner.
fn words(Owner(number): Owner) -> String {
    match number.checked_sub(OF_PROGRAMS) {
        None => format!("session {number}"),
        Some(of_program) => {
            let (program, session) = (of_program / u64::from(SESSIONS), of_program % u64::from(SESSIONS));
            format!("program {program}, session {session}")
        }
    }
}

/// Returns a name in printable form. It is at most three times as long, so that the answer of a
/// node fits into a line of the control socket.
fn readable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_sessions_of_the_node_or_of_programs() {
        assert_eq!(words(Owner(5)), "session 5");
        assert_eq!(words(Owner(OF_PROGRAMS | 3 << 31 | 7)), "program 3, session 7");
    }

    #[test]
    fn names_of_any_bytes_are_shown_and_steer_no_terminal() {
        assert_eq!(readable("a größere \"name\"".as_bytes()), "a größere \"name\"");
        assert_eq!(readable(b"\x1b[2J\xff\n"), "\u{fffd}[2J\u{fffd}\u{fffd}");
        let worst = (0..=255).map(|byte| serde_json::to_string(&readable(&[byte; 255])).unwrap().len()).max();
        assert!(worst.unwrap() <= 3 * 255 + 2, "{worst:?}");
    }
}
