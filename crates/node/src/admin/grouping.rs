//! What the command line asks of groups: to be a member for as long as the connection stands.
//!
//! | command | arguments | what it says |
//! |---|---|---|
//! | `group.watch` | `group` | [`GroupEvent`]s as progress, until the connection ends |
//! | `group.send` | `group`, `value` | nothing, when it has its place in the order of what all members are told |
//! | `group.barrier` | `barrier`, `members`, `wait_ms` | the [`GroupEvent::View`]s of those who wait as progress; nothing, when all have come |
//!
//! Who waits at a barrier is a member of a group of the barrier's own, whose name no other group has, so nobody is waited for who only watches. All who
//! are there go on at one place of the order, or none does: who ends before has not come, and who has gone on and calls again waits for as many anew.

use std::time::{Duration, Instant};

use plexus_membership::groups::{
    Group,
    protocol::{GroupMember, Happened, MAX_NAME, Name},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    admin::commands::{LOOK_EVERY, On, Progress, Run, args, json_of},
    admin::registry::Bytes,
};

/// How long leaving may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// What a barrier's group is called: this and the barrier's name.
const BARRIER: &str = "barrier:";

/// How the groups are called in which nodes speak to each other.
const OF_NODES: &str = "plexus ";

/// The one in which they tell each other of voting files and nodes.
pub(crate) const NEWCOMERS: &str = "plexus newcomers";

/// What a member is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupEvent {
    /// These are the members from now on.
    View {
        /// One more than the last.
        number: u64,
        /// Each as its node and its number there: `n1/7`.
        members: Vec<String>,
    },
    /// A member says something.
    Message {
        /// Which.
        from: String,
        /// What.
        value: Bytes,
    },
}

/// See the module.
pub(crate) const COMMANDS: &[(&str, Run)] =
    &[("group.watch", watch), ("group.send", send), ("group.barrier", barrier)];

fn join(on: &On, name: &Name) -> Result<Group, String> {
    on.body.groups().join(name.clone()).map_err(|error| error.to_string())
}

fn name_of(on: &On, who: GroupMember) -> String {
    format!("{}/{}", on.config.name_of(who.node), who.client)
}

fn view(on: &On, number: u64, members: &[GroupMember]) -> GroupEvent {
    GroupEvent::View { number, members: members.iter().map(|who| name_of(on, *who)).collect() }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchArgs {
    group: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendArgs {
    group: String,
    value: Bytes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BarrierArgs {
    barrier: String,
    members: u16,
    #[serde(default)]
    wait_ms: Option<u64>,
}

fn name(text: &str) -> Result<Name, String> {
    Name::new(text.as_bytes()).map_err(|error| error.to_string())
}

/// The name of a group that is not one of a barrier, nor of the nodes: who was in such a one would be waited for, or believed.
fn free_name(text: &str) -> Result<Name, String> {
    match [BARRIER, OF_NODES].into_iter().find(|reserved| text.starts_with(reserved)) {
        Some(reserved) => Err(format!(
            "no group has a name that begins with {reserved:?}: the nodes use such names themselves"
        )),
        None => name(text),
    }
}

/// What a member is told next; none after a while.
fn next(group: &mut Group) -> Result<Option<Happened>, String> {
    group.next_within(LOOK_EVERY).map_err(|error| error.to_string())
}

fn watch(on: &On, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let WatchArgs { group } = args(asked)?;
    let mut group = join(on, &free_name(&group)?)?;
    let mut is_there = true;
    while is_there {
        let event = match next(&mut group)? {
            Some(Happened::View { number, members }) => view(on, number, &members),
            Some(Happened::Message { from, bytes }) => {
                GroupEvent::Message { from: name_of(on, from), value: Bytes::of(&bytes) }
            }
            Some(_) => continue,
            None => {
                is_there = progress(Value::Null);
                continue;
            }
        };
        is_there = progress(json_of(&event)?);
    }
    group.leave(LEAVE_WITHIN);
    Ok(json!({}))
}

fn send(on: &On, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let SendArgs { group, value } = args(asked)?;
    let mut group = join(on, &free_name(&group)?)?;
    group.send(&value.bytes()?).map_err(|error| error.to_string())?;
    let me = (on.body.me(), group.client());
    loop {
        match next(&mut group)? {
            // What it is told itself has its place in what all are told.
            Some(Happened::Message { from, .. }) if (from.node, from.client) == me => break,
            Some(Happened::Refused(why)) => return Err(why.to_string()),
            Some(_) => {}
            None if progress(Value::Null) => {}
            None => break,
        }
    }
    group.leave(LEAVE_WITHIN);
    Ok(json!({}))
}

fn barrier(on: &On, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let BarrierArgs { barrier, members: wanted, wait_ms } = args(asked)?;
    let until = wait_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
    let longest = MAX_NAME - BARRIER.len();
    if !(1..=longest).contains(&barrier.len()) {
        return Err(format!(
            "the name of a barrier has 1 to {longest} bytes; this one has {}",
            barrier.len()
        ));
    }
    let here = name(&format!("{BARRIER}{barrier}"))?;
    let mut group = join(on, &here)?;
    group.arrive(here.clone(), wanted, false).map_err(|error| error.to_string())?;
    let mut come = 0;
    loop {
        match next(&mut group)? {
            Some(Happened::View { number, members }) => {
                come = members.len();
                if !progress(json_of(&view(on, number, &members))?) {
                    return Err("nobody waits at the barrier any more".into());
                }
            }
            Some(Happened::Passed(passed)) if passed == here => break,
            Some(Happened::Refused(why)) => return Err(why.to_string()),
            Some(_) => {}
            None if until.is_some_and(|until| Instant::now() >= until) => {
                return Err(format!("waited in vain: {come} of {wanted} have come"));
            }
            None if progress(Value::Null) => {}
            None => return Err("nobody waits at the barrier any more".into()),
        }
    }
    group.leave(LEAVE_WITHIN);
    Ok(json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_joins_groups_of_barriers_and_nodes() {
        for taken in ["barrier:ready", BARRIER, NEWCOMERS, OF_NODES] {
            assert!(free_name(taken).unwrap_err().contains("begins with"), "{taken}");
        }
        for free in ["barrier", "plexus", "a barrier:", "\u{1f}"] {
            assert_eq!(free_name(free).unwrap().bytes(), free.as_bytes());
        }
    }
}
