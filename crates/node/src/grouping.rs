//! What the command line asks of groups: to be a member for as long as the connection stands.
//!
//! | command | arguments | what it says |
//! |---|---|---|
//! | `group.watch` | `group` | [`GroupEvent`]s as progress, until the connection ends |
//! | `group.send` | `group`, `value` | nothing, when every member is told it |
//! | `group.barrier` | `barrier`, `members`, `wait_ms` | the [`GroupEvent::View`]s of those who wait as progress; nothing, when all have come |
//!
//! Who waits at a barrier is a member of a group of the barrier's own, so whoever watches or speaks in a group of that name is not waited for. A
//! connection that ends there is a death: the others that wait are told.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_membership::groups::{
    Group,
    protocol::{Happened, MAX_NAME, Name, Who},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    body::Body,
    config::Config,
    control::{Command, Places},
    registry::Bytes,
};

/// How often it is looked whether the connection stands.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long leaving may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// What a barrier's group is called: this and the barrier's name.
const BARRIER: &str = "barrier:";

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
pub(crate) fn commands(
    config: &Arc<Config>,
    body: &Arc<Body>,
    places: &Arc<Places>,
) -> Vec<Arc<dyn Command>> {
    let does = |name, run| {
        let (config, body, places) = (Arc::clone(config), Arc::clone(body), Arc::clone(places));
        Arc::new(Does { name, run, config, body, places }) as Arc<dyn Command>
    };
    vec![does("group.watch", watch), does("group.send", send), does("group.barrier", barrier)]
}

type Progress<'a> = &'a mut dyn FnMut(Value) -> bool;

struct Does {
    name: &'static str,
    run: fn(&Self, Value, Progress<'_>) -> Result<Value, String>,
    config: Arc<Config>,
    body: Arc<Body>,
    places: Arc<Places>,
}

impl Command for Does {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&self, args: Value, progress: Progress<'_>) -> Result<Value, String> {
        let _place = self.places.take()?;
        (self.run)(self, args, progress)
    }
}

impl Does {
    fn join(&self, name: &Name) -> Result<Group, String> {
        self.body.groups().join(name.clone()).map_err(|error| error.to_string())
    }

    fn name_of(&self, who: Who) -> String {
        format!("{}/{}", self.config.nodes[who.node.index()].name, who.client)
    }

    fn view(&self, number: u64, members: &[Who]) -> GroupEvent {
        GroupEvent::View { number, members: members.iter().map(|who| self.name_of(*who)).collect() }
    }
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
    members: usize,
    #[serde(default)]
    wait_ms: Option<u64>,
}

fn args<T: DeserializeOwned>(args: Value) -> Result<T, String> {
    serde_json::from_value(args)
        .map_err(|error| format!("a group is asked for what it does not know: {error}"))
}

fn name(text: &str) -> Result<Name, String> {
    Name::new(text.as_bytes()).map_err(|error| error.to_string())
}

fn json_of(event: &GroupEvent) -> Result<Value, String> {
    serde_json::to_value(event).map_err(|error| error.to_string())
}

/// What a member is told next; none after a while.
fn next(group: &mut Group) -> Result<Option<Happened>, String> {
    group.next_within(LOOK_EVERY).map_err(|error| error.to_string())
}

fn watch(does: &Does, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let WatchArgs { group } = args(asked)?;
    let mut group = does.join(&name(&group)?)?;
    let mut is_there = true;
    while is_there {
        let event = match next(&mut group)? {
            Some(Happened::View { number, members }) => does.view(number, &members),
            Some(Happened::Message { from, bytes }) => {
                GroupEvent::Message { from: does.name_of(from), value: Bytes::of(&bytes) }
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

fn send(does: &Does, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let SendArgs { group, value } = args(asked)?;
    let mut group = does.join(&name(&group)?)?;
    group.send(&value.bytes()?).map_err(|error| error.to_string())?;
    let me = (does.body.me(), group.client());
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

fn barrier(does: &Does, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
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
    let mut group = does.join(&here)?;
    let (mut come, mut has_arrived) = (0, false);
    loop {
        match next(&mut group)? {
            Some(Happened::View { number, members }) => {
                come = members.len();
                if !progress(json_of(&does.view(number, &members))?) {
                    return Err("nobody waits at the barrier any more".into());
                }
                if come >= wanted && !has_arrived {
                    has_arrived = true;
                    group.arrive(here.clone(), true).map_err(|error| error.to_string())?;
                }
            }
            Some(Happened::Passed(passed)) if passed == here => break,
            Some(Happened::Failed(_, who)) => {
                return Err(format!("{} ended before all had passed the barrier", does.name_of(who)));
            }
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
