//! What every member must know before the cluster takes in a voting file or a node while it runs.
//!
//! All nodes are in one group. Who has a file added says there where it is; each node that must open it looks whether it can, keeps the path, and
//! says so. A node that starts later has the path from `cluster.toml`. Who has a node added says which; each reads its own `cluster.toml` again, and
//! answers whether it has the same there. Only when all have said so they are told to take note of it ([`promise`]): where one has not, nobody has, and what was
//! wrong can be mended in the files. Where who asks dies on the way, or one of the others, doing the same again does the rest.

mod promise;
mod said;

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
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

pub(crate) use self::said::Place;
pub use self::said::newcomers_any;
use self::{promise::Promise, said::Said};
use crate::{
    admin::control::ANSWER_WITHIN,
    admin::grouping::NEWCOMERS,
    body::Body,
    boot::config::{Config, Nodes},
    records::settle::Settled,
};

/// How long after it was put out of the group, or not let in, a node tries again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Has a node open the files and learn of the nodes that others tell it of, until it stops.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn serve(body: &Arc<Body>) -> io::Result<()> {
    let (body, groups) = (Arc::downgrade(body), body.groups().clone());
    let run = move || keep_on(AGAIN_AFTER, || obey(&body, &groups));
    thread::Builder::new().name("newcomers".into()).spawn(run).map(drop)
}

/// Has `run` begin again whenever it fails, until the node has stopped.
fn keep_on(pause: Duration, mut run: impl FnMut() -> Result<(), GroupError>) {
    let mut said = None;
    loop {
        match run() {
            Ok(()) | Err(GroupError::Stopped) => return,
            Err(error) if said != Some(error) => {
                tracing::warn!(%error, "this node is not told of voting files and nodes that are added, until it can be");
                said = Some(error);
            }
            Err(_) => {}
        }
        thread::sleep(pause);
    }
}

fn obey(body: &Weak<Body>, groups: &Groups) -> Result<(), GroupError> {
    let mut group = join(groups)?;
    let mut promise = Promise::default();
    loop {
        let Happened::Message { bytes, .. } = group.next_event()? else { continue };
        let Ok(said) = Said::decode(&bytes) else { continue };
        let Some(asked) = said.asks() else { continue };
        let Some(body) = body.upgrade() else { return Ok(()) };
        let done = match said {
            Said::Open(place) if place.host.is_some_and(|host| host != body.me()) => continue,
            Said::Open(place) => keep(body.config(), body.membership(), &place),
            Said::Look(node, fingerprint) => promise.look(fingerprint, || listed(&body, node, fingerprint)),
            Said::Keep(fingerprint) => promise.nodes(fingerprint).and_then(|nodes| body.learn(nodes)),
            Said::Done(_) | Said::NotDone(..) => continue,
        };
        drop(body);
        let answer = match done {
            Ok(()) => Said::Done(asked),
            Err(why) => Said::NotDone(asked, why),
        };
        group.send(&answer.encode())?;
    }
}

fn join(groups: &Groups) -> Result<Group, GroupError> {
    groups.join(Name::new(NEWCOMERS.as_bytes()).expect("it is short"))
}

/// Looks whether a node can open a file, and keeps its path.
pub(crate) fn keep(config: &Config, membership: &Membership, place: &Place) -> Result<(), String> {
    let path = config.dir.root().join(&place.path);
    let name = FileName { cluster: ClusterId(config.id.0), file: place.file };
    voting::look(&path, name).map_err(|error| error.to_string())?;
    membership.set_file_path(place.file, path);
    Ok(())
}

/// The members of the view with this number.
fn members(status: Option<Status>) -> Result<(u32, BTreeSet<NodeId>), String> {
    let status = status.ok_or("this node's membership does not answer; try again")?;
    Ok((status.decided, status.members.iter().map(|member| NodeId(member.node)).collect()))
}

/// Who must open a file.
fn openers(place: &Place, status: impl FnOnce() -> Option<Status>) -> Result<BTreeSet<NodeId>, String> {
    match place.host {
        Some(host) => Ok(BTreeSet::from([host])),
        None => Ok(members(status())?.1),
    }
}

/// The nodes up to `node` and those that are known, if `cluster.toml` has them as elsewhere.
fn listed(body: &Body, node: NodeId, fingerprint: u64) -> Result<Nodes, String> {
    let known = body.config().nodes.len();
    let config = body.as_listed()?;
    let path = config.dir.config();
    if config.nodes.get(node.index()).is_none() {
        return Err(format!("{}: there is no node {} yet; copy the file here", path.display(), node.0));
    }
    match Settled::fingerprint(&config, NodeId(0), node) == fingerprint {
        // Of those behind it nobody has said anything.
        true => Ok(config.nodes.iter().take(known.max(node.index() + 1)).cloned().collect()),
        false => Err(format!("{}: not as elsewhere; copy the file here", path.display())),
    }
}

/// Has every member that must open a file do so.
///
/// # Errors
/// One line that names those that have not.
pub(crate) fn tell(config: &Config, body: &Body, place: &Place) -> Result<(), String> {
    let awaited = openers(place, || body.membership().status())?;
    // On another machine the cluster may lie elsewhere.
    let path = place.path.strip_prefix(config.dir.root()).unwrap_or(&place.path);
    let open = Said::Open(Place { path: path.into(), ..place.clone() });
    in_group(body, |group| ask(body, group, &open, &awaited))
}

/// Has every member learn of the node called `name`; which one that is.
///
/// # Errors
/// One line that names those that have not, or says why this one has not.
pub(crate) fn tell_of_node(body: &Body, name: &str) -> Result<NodeId, String> {
    let config = body.as_listed()?;
    let (node, _) = config.node(name).map_err(|error| error.to_string())?;
    let fingerprint = Settled::fingerprint(&config, NodeId(0), node);
    let view = || members(body.membership().status());
    let mut told = false;
    in_group(body, |group| {
        agree(node, fingerprint, view, |what, of| {
            told |= matches!(what, Said::Keep(_));
            ask(body, group, what, of)
        })
    })
    .map_err(|why| match told {
        true => format!("{why}; some may know it by now, so add it again as it is"),
        false => why,
    })?;
    Ok(node)
}

/// Has members look whether they list a node as this fingerprint says, and then keep it, until those that do are all that there are.
fn agree(
    node: NodeId,
    fingerprint: u64,
    view: impl Fn() -> Result<(u32, BTreeSet<NodeId>), String>,
    mut ask: impl FnMut(&Said, &BTreeSet<NodeId>) -> Result<(), String>,
) -> Result<(), String> {
    loop {
        let asked = view()?;
        ask(&Said::Look(node, fingerprint), &asked.1)?;
        // Who came meanwhile may list another, so nobody keeps it yet.
        if view()? != asked {
            continue;
        }
        ask(&Said::Keep(fingerprint), &asked.1)?;
        if view()? == asked {
            return Ok(());
        }
    }
}

/// Does something as one of the group, and leaves it.
fn in_group<T>(body: &Body, act: impl FnOnce(&mut Group) -> Result<T, String>) -> Result<T, String> {
    let mut group = join(body.groups()).map_err(|error| error.to_string())?;
    let done = act(&mut group);
    group.leave(ANSWER_WITHIN);
    done
}

/// Asks all members for something, and waits for those that must do it.
fn ask(body: &Body, group: &mut Group, what: &Said, of: &BTreeSet<NodeId>) -> Result<(), String> {
    let asked = what.asks().expect("no answer");
    let silent = match what {
        Said::Look(..) => "does not say that it is listed there",
        Said::Keep(_) => "does not say that it knows it",
        _ => "does not say that it can open it",
    };
    let mut awaited = of.clone();
    group.send(&what.encode()).map_err(|error| error.to_string())?;
    let until = Instant::now() + ANSWER_WITHIN;
    let mut refused = Vec::new();
    let name = |node: NodeId| body.config().name_of(node);
    while !awaited.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        match group.next_within(left).map_err(|error| error.to_string())? {
            Some(Happened::Message { from, bytes }) => match Said::decode(&bytes) {
                Ok(Said::Done(done)) if done == asked => drop(awaited.remove(&from.node)),
                Ok(Said::NotDone(done, why)) if done == asked && awaited.remove(&from.node) => {
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
    fn a_file_for_everybody_is_not_opened_by_nobody_where_members_are_not_known() {
        let place = |host| Place { file: FileId(7), host, path: "votes".into() };
        assert!(openers(&place(None), || None).unwrap_err().contains("does not answer"));
        assert_eq!(openers(&place(Some(NodeId(2))), || None), Ok(BTreeSet::from([NodeId(2)])));
    }

    /// Members of which one comes when so many questions were put; it lists what is asked for, or does not.
    struct Comes {
        after: usize,
        lists: bool,
    }

    /// Two members and the one that comes are told of a node: what came of it, how many questions were put, and which members keep it.
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
                    Said::Look(_, list) => {
                        promise.look(*list, || lists.then(Nodes::default).ok_or("not as elsewhere".into()))
                    }
                    Said::Keep(list) => promise.nodes(*list).map(|_| *keeps = true),
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
    fn who_comes_while_others_are_told_of_a_node_is_told_before_it_is_let_in() {
        let told = |after| told(&Comes { after, lists: true });
        assert_eq!(told(0), (Ok(()), 2, vec![true; 2]), "nobody comes");
        assert_eq!(told(1), (Ok(()), 3, vec![true; 3]), "while the others look");
        assert_eq!(told(2), (Ok(()), 4, vec![true; 3]), "while the others keep it");
    }

    #[test]
    fn nobody_keeps_what_one_that_comes_while_the_others_look_lists_otherwise() {
        let (done, _, keep) = told(&Comes { after: 1, lists: false });
        assert_eq!((done, keep), (Err("not as elsewhere".into()), vec![false; 3]));
    }

    #[test]
    fn a_removed_or_refused_member_joins_again_until_the_node_has_stopped() {
        let (full, late) = (GroupError::Impossible(GroupRefusal::Groups), GroupError::Removed);
        let mut ends = [full, full, late, full, GroupError::Stopped].into_iter();
        keep_on(Duration::ZERO, || Err(ends.next().expect("not begun again once it has stopped")));
        assert_eq!(ends.len(), 0, "begun again each time");
    }
}
