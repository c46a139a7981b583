//! The commands on groups; the client is a member for as long as its connection stands.
//!
//! | command | arguments | answer |
//! |---|---|---|
//! | `group.watch` | `group` | [`GroupEvent`]s as progress, until the connection ends |
//! | `group.send` | `group`, `value` | nothing, once the message has its place in the order of the group |
//! | `group.barrier` | `barrier`, `members`, `wait_ms` | the [`GroupEvent::View`]s of those who wait as progress; nothing, when all have come |
//!
//! A client that waits at a barrier is a member of the barrier's own group, whose name no other
//! group can have, so clients that only watch do not count. All clients pass the barrier at one
//! place of the order, or none does. A client that ends before has not arrived. A client that has
//! passed and calls again waits for the full number once more.

use std::time::{Duration, Instant};

use plexus_admin::control::Progress;
use plexus_membership::groups::{
    Group,
    protocol::{GroupMember, Happened, MAX_NAME, Name},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    commands::registry::Bytes,
    commands::{CommandContext, LOOK_EVERY, NodeCommand, args, json_of},
};

/// The longest that a leave may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// The prefix of the name of a barrier's group.
const BARRIER: &str = "barrier:";

/// The prefix of the groups in which nodes exchange messages.
const OF_NODES: &str = "plexus ";

/// The group in which nodes announce voting files and nodes.
pub(crate) const NEWCOMERS: &str = "plexus newcomers";

/// An event of a group, as a member receives it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupEvent {
    /// The new list of members.
    View {
        /// The number of the view, one more than the last.
        number: u64,
        /// Each member as its node and its number there: `n1/7`.
        members: Vec<String>,
    },
    /// A message of a member.
    Message {
        /// The sender, as in `members`.
        from: String,
        /// The content.
        value: Bytes,
    },
}

/// The commands of this module.
pub(crate) const COMMANDS: &[NodeCommand] = &[
    NodeCommand::waiting("group.watch", watch),
    NodeCommand::waiting("group.send", send),
    NodeCommand::waiting("group.barrier", barrier),
];

fn join(on: &CommandContext, name: &Name) -> Result<Group, String> {
    on.runtime().groups().join(name.clone()).map_err(|error| error.to_string())
}

fn name_of(on: &CommandContext, who: GroupMember) -> String {
    format!("{}/{}", on.config.name_of(who.node), who.client)
}

fn view(on: &CommandContext, number: u64, members: &[GroupMember]) -> GroupEvent {
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

/// Checks a name of a user's group. A member of a barrier's or the nodes' group would be waited
/// for, or believed.
fn free_name(text: &str) -> Result<Name, String> {
    match [BARRIER, OF_NODES].into_iter().find(|reserved| text.starts_with(reserved)) {
        Some(reserved) => Err(format!(
            "no group has a name that begins with {reserved:?}: the nodes use such names themselves"
        )),
        None => name(text),
    }
}

/// Returns the next event of a group; `None` after a while without any.
fn next(group: &mut Group) -> Result<Option<Happened>, String> {
    group.next_within(LOOK_EVERY).map_err(|error| error.to_string())
}

fn watch(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
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

fn send(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let SendArgs { group, value } = args(asked)?;
    let mut group = join(on, &free_name(&group)?)?;
    group.send(&value.bytes()?).map_err(|error| error.to_string())?;
    let me = (on.runtime().me(), group.client());
    loop {
        match next(&mut group)? {
            // The sender's own copy shows that the message has its place in the order.
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

fn barrier(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
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
                    return Err("the client that waited at the barrier has gone".into());
                }
            }
            Some(Happened::Passed(passed)) if passed == here => break,
            Some(Happened::Refused(why)) => return Err(why.to_string()),
            Some(_) => {}
            None if until.is_some_and(|until| Instant::now() >= until) => {
                return Err(format!("waited in vain: {come} of {wanted} have come"));
            }
            None if progress(Value::Null) => {}
            None => return Err("the client that waited at the barrier has gone".into()),
        }
    }
    group.leave(LEAVE_WITHIN);
    Ok(json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_barriers_and_nodes_cannot_be_joined() {
        for taken in ["barrier:ready", BARRIER, NEWCOMERS, OF_NODES] {
            assert!(free_name(taken).unwrap_err().contains("begins with"), "{taken}");
        }
        for free in ["barrier", "plexus", "a barrier:", "\u{1f}"] {
            assert_eq!(free_name(free).unwrap().bytes(), free.as_bytes());
        }
    }
}
