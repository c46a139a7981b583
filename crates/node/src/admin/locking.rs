//! What the command line asks of the lock manager: a lock for as long as the connection stands, and who has what.
//!
//! `lock` takes `{"name", "mode", "wait_ms"}` (no `wait_ms`: as long as it takes; 0: not at all), says `{"granted":{"mode","token"}}`, and
//! gives the lock up when the connection ends, in whatever way the program at its other end did. It fails when the lock protects nothing any more, and
//! where as many as may wait and hold already. `locks` takes nothing and says [`NodeLocks`].

use std::{collections::BTreeMap, thread, time::Duration};

use plexus_base::NodeId;
use plexus_client::wire::lock::SESSIONS;
use plexus_locks::{
    Ask, Lock, OF_PROGRAMS, Survey, Surveyed,
    protocol::{Mode, Name, Owner, Validity},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::admin::commands::{LOOK_EVERY, On, Progress, Run, args, json_of};

/// How often it is looked whether who holds is still there: for so long others may wait in vain.
const HOLDER_LOOKED_AT_EVERY: Duration = Duration::from_millis(10);

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockArgs {
    /// Of what.
    pub name: String,
    /// NL, CR, CW, PR, PW or EX.
    pub mode: String,
    /// How long it waits; nothing: as long as it takes. 0: not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// What waits and holds.
pub(crate) const COMMANDS: &[(&str, Run)] = &[("lock", lock)];

/// What only looks.
pub(crate) const LOOKS: &[(&str, Run)] = &[("locks", locks)];

fn lock(on: &On, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let LockArgs { name, mode: wanted, wait_ms } = args(asked)?;
    let name = Name::new(name.as_bytes()).map_err(|error| error.to_string())?;
    let ask = Ask { name, mode: mode(&wanted)?, timeout: wait_ms.map(Duration::from_millis) };
    let Some(lock) = wait(on, ask, progress)? else { return Ok(json!({})) };
    // A node that stood still finds answers for its clients when it goes on, and others may have the lock by then.
    let lease = on.body.membership().lease();
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

/// None: nobody is there any more to whom it could be granted.
fn wait(on: &On, ask: Ask, progress: Progress<'_>) -> Result<Option<Lock>, String> {
    let waiting = on.body.locks().session().ask(ask);
    let answer = waiting.wait_while(LOOK_EVERY, || progress(Value::Null));
    answer.transpose().map_err(|error| error.to_string())
}

/// The mode of this name.
///
/// # Errors
/// There is none.
pub fn mode(name: &str) -> Result<Mode, String> {
    let is_it = |mode: &Mode| format!("{mode:?}").eq_ignore_ascii_case(name);
    Mode::ALL
        .into_iter()
        .find(is_it)
        .ok_or_else(|| format!("{name:?} is no mode: use NL, CR, CW, PR, PW or EX"))
}

/// How long the workers may take to say what they know: less than [`ANSWER_WITHIN`](crate::admin::control::ANSWER_WITHIN).
const SURVEY_WITHIN: Duration = Duration::from_secs(3);

/// What a node says of the resources that it masters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeLocks {
    /// Whether it has stopped: it grants nothing any more, and what is held protects nothing.
    pub stopped: bool,
    /// As many as are told of those that somebody has or wants, in the order of their names.
    pub resources: Vec<LockedResource>,
    /// How many holders and waiters there are beside those, at least.
    pub more: usize,
    /// Whose locks of its clients are, by their numbers.
    #[serde(default)]
    pub owners: BTreeMap<u64, String>,
}

/// One resource that a node masters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockedResource {
    /// Its name; what is no text, or steers a terminal, is replaced.
    pub name: String,
    /// The node that masters it.
    pub master: String,
    /// What its value block is: `unwritten`, `valid` or `lost`.
    pub value: String,
    /// Who has it.
    pub granted: Vec<LockHolder>,
    /// Who waits, the first first.
    pub waiting: Vec<LockWaiter>,
}

/// Who has a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockHolder {
    /// The node whose client it is.
    pub node: String,
    /// The number of the lock there.
    pub lock: u64,
    /// Whose it is, if its node has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// How.
    pub mode: String,
    /// The fencing token.
    pub token: u64,
}

/// Who waits for a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWaiter {
    /// The node whose client it is.
    pub node: String,
    /// The number of the lock there.
    pub lock: u64,
    /// Whose it is, if its node has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// How it wants it.
    pub mode: String,
    /// For how long it has waited.
    pub waited_ms: u64,
    /// Whether it has the lock in another mode meanwhile.
    pub converts: bool,
}

fn locks(on: &On, _: Value, _: Progress<'_>) -> Result<Value, String> {
    let locks = on.body.locks();
    let survey = locks.survey(SURVEY_WITHIN).ok_or("a worker does not answer")?;
    json_of(&said(on, locks.is_stopped(), &survey))
}

fn said(on: &On, stopped: bool, survey: &Survey) -> NodeLocks {
    let resources = survey.resources.iter().map(|resource| shown(on, resource)).collect();
    let owners = survey.waiting.iter().chain(&survey.holding);
    let owners = owners.map(|(lock, owner)| (lock.0, words(*owner))).collect();
    NodeLocks { stopped, resources, more: survey.more, owners }
}

fn shown(on: &On, resource: &Surveyed) -> LockedResource {
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
        master: node(on.body.me()),
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

/// Who an owner is.
fn words(Owner(number): Owner) -> String {
    match number.checked_sub(OF_PROGRAMS) {
        None => format!("session {number}"),
        Some(of_program) => {
            let (program, session) = (of_program / u64::from(SESSIONS), of_program % u64::from(SESSIONS));
            format!("program {program}, session {session}")
        }
    }
}

/// A name as it may be shown. None is three times as long for it, so that what a node says fits into a line of the control socket.
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
