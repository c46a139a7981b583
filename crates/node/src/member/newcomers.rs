//! The agreement of all members before a running cluster gets a new voting file or node.
//!
//! All nodes are in one group. The node that adds a file sends its path to the group. Each node
//! that must open the file checks that it can, keeps the path, and answers. A node that starts
//! later has the path from `cluster.toml`.
//!
//! The node that adds a node sends its number and fingerprint. Each member reads its own
//! `cluster.toml` again and answers whether it lists the same. Only when all have agreed are they
//! told to keep the new list ([`promise`]). If one disagrees, no member keeps it, and the user can
//! correct the files. If a node fails in between, repeating the command completes the change.

mod promise;
mod said;

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use plexus_admin::{
    config::{Config, Nodes},
    control::ANSWER_WITHIN,
};
use plexus_base::NodeId;
use plexus_membership::{
    groups::{
        Group, GroupError, Groups,
        protocol::{Happened, Name},
    },
    runtime::{Membership, Status},
    voting::{
        self,
        format::{ClusterId, FileName},
    },
};

pub(crate) use self::said::VotingFileLocation;
pub use self::said::newcomers_any;
use self::{promise::Promise, said::NewcomerMessage};
use crate::{commands::grouping::NEWCOMERS, runtime::NodeRuntime};

/// The pause before a node that could not join the group, or was removed from it, tries again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Starts the thread that opens the files and learns the nodes that others announce.
///
/// # Errors
/// The system cannot start a thread.
pub(crate) fn serve(runtime: &Arc<NodeRuntime>) -> io::Result<()> {
    let (runtime, groups) = (Arc::downgrade(runtime), runtime.groups().clone());
    let run = move || keep_on(AGAIN_AFTER, || obey(&runtime, &groups));
    thread::Builder::new().name("newcomers".into()).spawn(run).map(drop)
}

/// Calls `run` again whenever it fails, until the node has stopped.
fn keep_on(pause: Duration, mut run: impl FnMut() -> Result<(), GroupError>) {
    let mut said = None;
    loop {
        match run() {
            Ok(()) | Err(GroupError::Stopped) => return,
            Err(error) if said != Some(error) => {
                tracing::warn!(%error, "this node cannot receive announcements of new voting files and nodes; trying again");
                said = Some(error);
            }
            Err(_) => {}
        }
        thread::sleep(pause);
    }
}

fn obey(runtime: &Weak<NodeRuntime>, groups: &Groups) -> Result<(), GroupError> {
    let mut group = join(groups)?;
    let mut promise = Promise::default();
    loop {
        let Happened::Message { bytes, .. } = group.next_event()? else { continue };
        let Ok(said) = NewcomerMessage::decode(&bytes) else { continue };
        let Some(asked) = said.asks() else { continue };
        let Some(runtime) = runtime.upgrade() else { return Ok(()) };
        let done = match said {
            NewcomerMessage::Open(place) if place.host.is_some_and(|host| host != runtime.me()) => continue,
            NewcomerMessage::Open(place) => keep(runtime.config(), runtime.membership(), &place),
            NewcomerMessage::Look(node, fingerprint) => {
                promise.look(fingerprint, || listed(&runtime, node, fingerprint))
            }
            NewcomerMessage::Keep(fingerprint) => {
                promise.nodes(fingerprint).and_then(|nodes| runtime.learn(nodes))
            }
            NewcomerMessage::Done(_) | NewcomerMessage::NotDone(..) => continue,
        };
        drop(runtime);
        let answer = match done {
            Ok(()) => NewcomerMessage::Done(asked),
            Err(why) => NewcomerMessage::NotDone(asked, why),
        };
        group.send(&answer.encode())?;
    }
}

fn join(groups: &Groups) -> Result<Group, GroupError> {
    groups.join(Name::new(NEWCOMERS.as_bytes()).expect("it is short"))
}

/// Checks that this node can open a file, and keeps its path.
pub(crate) fn keep(
    config: &Config,
    membership: &Membership,
    place: &VotingFileLocation,
) -> Result<(), String> {
    let path = config.dir.root().join(&place.path);
    let name = FileName { cluster: ClusterId(config.id.0), file: place.file };
    voting::look(&path, name).map_err(|error| error.to_string())?;
    membership.set_file_path(place.file, path);
    Ok(())
}

/// Returns the epoch of the last view, and its members.
fn members(status: Option<Status>) -> Result<(u32, BTreeSet<NodeId>), String> {
    let status = status.ok_or("this node's membership does not answer; try again")?;
    Ok((status.decided, status.members.iter().map(|member| NodeId(member.node)).collect()))
}

/// Returns the nodes that must open a file.
fn openers(
    place: &VotingFileLocation,
    status: impl FnOnce() -> Option<Status>,
) -> Result<BTreeSet<NodeId>, String> {
    match place.host {
        Some(host) => Ok(BTreeSet::from([host])),
        None => Ok(members(status())?.1),
    }
}

/// Returns the list of this node alone, if `cluster.toml` has this fingerprint of it.
fn listed(runtime: &NodeRuntime, node: NodeId, fingerprint: u64) -> Result<Nodes, String> {
    let config = runtime.as_listed()?;
    let path = config.dir.config();
    let Some(one) = config.nodes.get(node.index()) else {
        return Err(format!("{}: there is no node {} yet; copy the file here", path.display(), node.0));
    };
    match config.fingerprint(node, node) == fingerprint {
        true => Ok([one.clone()].into_iter().collect()),
        false => Err(format!("{}: not as elsewhere; copy the file here", path.display())),
    }
}

/// Has every member open a file that it must open.
///
/// # Errors
/// Some members have not opened it; the text names them in one line.
pub(crate) fn tell(config: &Config, runtime: &NodeRuntime, place: &VotingFileLocation) -> Result<(), String> {
    let awaited = openers(place, || runtime.membership().status())?;
    // On another machine the cluster directory may be elsewhere.
    let path = place.path.strip_prefix(config.dir.root()).unwrap_or(&place.path);
    let open = NewcomerMessage::Open(VotingFileLocation { path: path.into(), ..place.clone() });
    in_group(runtime, |group| ask(runtime, group, &open, &awaited))
}

/// Has every member learn of the node called `name`, and returns its number.
///
/// # Errors
/// Some members do not list it alike; the text names them, or says what is wrong here.
pub(crate) fn tell_of_node(runtime: &NodeRuntime, name: &str) -> Result<NodeId, String> {
    let config = runtime.as_listed()?;
    let (node, _) = config.node(name).map_err(|error| error.to_string())?;
    let fingerprint = config.fingerprint(node, node);
    let view = || members(runtime.membership().status());
    let mut told = false;
    in_group(runtime, |group| {
        agree(node, fingerprint, view, |what, of| {
            told |= matches!(what, NewcomerMessage::Keep(_));
            ask(runtime, group, what, of)
        })
    })
    .map_err(|why| match told {
        true => format!("{why}; some may know it by now, so add it again as it is"),
        false => why,
    })?;
    Ok(node)
}

/// Has members compare their lists with this fingerprint, until no member is missing; then has them
/// keep the list.
fn agree(
    node: NodeId,
    fingerprint: u64,
    view: impl Fn() -> Result<(u32, BTreeSet<NodeId>), String>,
    mut ask: impl FnMut(&NewcomerMessage, &BTreeSet<NodeId>) -> Result<(), String>,
) -> Result<(), String> {
    loop {
        let asked = view()?;
        ask(&NewcomerMessage::Look(node, fingerprint), &asked.1)?;
        // A member that joined meanwhile may have another list, so the others must not keep theirs
        // yet.
        if view()? != asked {
            continue;
        }
        ask(&NewcomerMessage::Keep(fingerprint), &asked.1)?;
        if view()? == asked {
            return Ok(());
        }
    }
}

/// Joins the group for one operation and leaves it.
fn in_group<T>(
    runtime: &NodeRuntime,
    act: impl FnOnce(&mut Group) -> Result<T, String>,
) -> Result<T, String> {
    let mut group = join(runtime.groups()).map_err(|error| error.to_string())?;
    let done = act(&mut group);
    group.leave(ANSWER_WITHIN);
    done
}

/// Sends a request to all members and waits for the answers of `of`.
fn ask(
    runtime: &NodeRuntime,
    group: &mut Group,
    what: &NewcomerMessage,
    of: &BTreeSet<NodeId>,
) -> Result<(), String> {
    let asked = what.asks().expect("no answer");
    let silent = match what {
        NewcomerMessage::Look(..) => "does not say that it is listed there",
        NewcomerMessage::Keep(_) => "does not say that it knows it",
        _ => "does not say that it can open it",
    };
    let mut awaited = of.clone();
    group.send(&what.encode()).map_err(|error| error.to_string())?;
    let until = Instant::now() + ANSWER_WITHIN;
    let mut refused = Vec::new();
    let name = |node: NodeId| runtime.config().name_of(node);
    while !awaited.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        match group.next_within(left).map_err(|error| error.to_string())? {
            Some(Happened::Message { from, bytes }) => match NewcomerMessage::decode(&bytes) {
                Ok(NewcomerMessage::Done(done)) if done == asked => drop(awaited.remove(&from.node)),
                Ok(NewcomerMessage::NotDone(done, why)) if done == asked && awaited.remove(&from.node) => {
                    refused.push(format!("{}: {why}", name(from.node)));
                }
                _ => {}
            },
            Some(_) => {}
            None => break,
        }
    }
    refused.extend(awaited.into_iter().map(|node| format!("{} {silent}", name(node))));
    match refused.is_empty() {
        true => Ok(()),
        false => Err(refused.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use plexus_membership::{groups::protocol::GroupRefusal, protocol::FileId};

    use super::*;

    #[test]
    fn unknown_members_are_an_error_for_a_file_that_every_node_opens() {
        let place = |host| VotingFileLocation { file: FileId(7), host, path: "votes".into() };
        assert!(openers(&place(None), || None).unwrap_err().contains("does not answer"));
        assert_eq!(openers(&place(Some(NodeId(2))), || None), Ok(BTreeSet::from([NodeId(2)])));
    }

    /// A member that joins after a number of requests, and whether its list agrees.
    struct Comes {
        after: usize,
        lists: bool,
    }

    /// Runs the agreement on a node between two members and one that joins. Returns the result, the
    /// number of requests, and the members that keep the list.
    fn told(comes: &Comes) -> (Result<(), String>, usize, Vec<bool>) {
        let there = RefCell::new(vec![(Promise::default(), true, false), (Promise::default(), true, false)]);
        let view = || {
            let members = there.borrow().len() as u8;
            Ok((u32::from(members), (0..members).map(NodeId).collect()))
        };
        let mut questions = 0;
        let done = agree(NodeId(3), 7, view, |what, of| {
            questions += 1;
            let mut there = there.borrow_mut();
            let mut refused = Ok(());
            for node in of {
                let (promise, lists, keeps) = &mut there[node.index()];
                let answer = match what {
                    NewcomerMessage::Look(_, list) => {
                        promise.look(*list, || lists.then(Nodes::default).ok_or("not as elsewhere".into()))
                    }
                    NewcomerMessage::Keep(list) => promise.nodes(*list).map(|_| *keeps = true),
                    _ => unreachable!("no question of a node"),
                };
                refused = refused.and(answer);
            }
            if questions == comes.after {
                there.push((Promise::default(), comes.lists, false));
            }
            refused
        });
        (done, questions, there.into_inner().into_iter().map(|(_, _, keeps)| keeps).collect())
    }

    #[test]
    fn node_that_joins_during_an_agreement_takes_part_before_the_new_node_is_admitted() {
        let told = |after| told(&Comes { after, lists: true });
        assert_eq!(told(0), (Ok(()), 2, vec![true; 2]), "no node joins");
        assert_eq!(told(1), (Ok(()), 3, vec![true; 3]), "while the others look");
        assert_eq!(told(2), (Ok(()), 4, vec![true; 3]), "while the others keep it");
    }

    #[test]
    fn no_member_keeps_a_list_that_a_joining_member_does_not_have() {
        let (done, _, keep) = told(&Comes { after: 1, lists: false });
        assert_eq!((done, keep), (Err("not as elsewhere".into()), vec![false; 3]));
    }

    #[test]
    fn a_removed_or_refused_member_joins_again_until_the_node_has_stopped() {
        let (full, late) = (GroupError::Impossible(GroupRefusal::Groups), GroupError::Removed);
        let mut ends = [full, full, late, full, GroupError::Stopped].into_iter();
        keep_on(Duration::ZERO, || Err(ends.next().expect("a stopped node does not try again")));
        assert_eq!(ends.len(), 0, "each failure leads to another try");
    }
}
