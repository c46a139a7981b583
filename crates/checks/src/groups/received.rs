//! The properties of the events that clients of groups receive.
//!
//! | property | rule |
//! |---|---|
//! | `order` | members of a group receive the same views, messages and passed barriers, in the same order |
//! | `once` | a message of a member is received once, in the order sent |
//! | `views` | a member's views are numbered consecutively and contain it; senders are in the last view |
//! | `barriers` | a barrier passes when every member of the view has come and they are enough for each, and fails only if a caller wanted that |
//! | `synchrony` | nodes that begin a view of the cluster have the same state |
//! | `bounded` | no node keeps more than the windows allow |
//! | `fault` | no message is reported as a protocol violation |
//! | `ends` | when all is quiet, all nodes have the same state, nothing waits, and no barrier to which all members came still blocks |

use std::collections::{BTreeMap, BTreeSet};

use plexus_membership::groups::protocol::{Deed, GroupMember, Happened, Name};

use super::{Groups, Sabotage};
use crate::failure::Broken;

/// A client with the state that it sees.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) group: Name,
    history: Vec<(u64, Happened)>,
    sent: Vec<Vec<u8>>,
    view: Option<(u64, BTreeSet<GroupMember>)>,
    waits: bool,
    leaves: bool,
    left: Option<u64>,
}

impl Client {
    pub(super) fn new(group: Name) -> Self {
        Self {
            group,
            history: Vec::new(),
            sent: Vec::new(),
            view: None,
            waits: false,
            leaves: false,
            left: None,
        }
    }

    /// Returns true if the client is a member that does not wait.
    pub(super) fn may_act(&self) -> bool {
        self.view.is_some() && !self.waits && !self.leaves
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.is_some()
    }

    pub(super) fn does(&mut self, deed: &Deed) {
        match deed {
            Deed::Join => {}
            Deed::Leave { .. } => self.leaves = true,
            Deed::Send(bytes) => self.sent.push(bytes.to_vec()),
            Deed::Arrive { .. } => self.waits = true,
        }
    }

    /// Returns the events that all members receive.
    fn shared(&self) -> impl Iterator<Item = &(u64, Happened)> {
        let is_shared = |what: &Happened| {
            matches!(what, Happened::View { .. } | Happened::Message { .. } | Happened::Passed(_))
        };
        self.history.iter().filter(move |(_, what)| is_shared(what))
    }
}

/// The arrivals at barriers of all clients of the run.
#[derive(Default)]
pub(super) struct Barriers {
    /// The number of clients that each caller waited for, for each arrival, and the positions in
    /// the order where its waits ended.
    came: BTreeMap<(GroupMember, Name), (Vec<u16>, Vec<u64>)>,
    strict: BTreeSet<(Name, Name)>,
}

impl Barriers {
    pub(super) fn arrives(
        &mut self,
        who: GroupMember,
        group: &Name,
        barrier: &Name,
        least: u16,
        strict: bool,
    ) {
        self.came.entry((who, barrier.clone())).or_default().0.push(least);
        if strict {
            self.strict.insert((group.clone(), barrier.clone()));
        }
    }

    /// Returns true if a client has come more often than it has passed before this position, and
    /// `members` clients are enough for it.
    fn stands(&self, who: GroupMember, barrier: &Name, seq: u64, members: usize) -> bool {
        let Some((came, ended)) = self.came.get(&(who, barrier.clone())) else { return false };
        let gone_on = ended.iter().filter(|at| **at < seq).count();
        came.get(gone_on).is_some_and(|least| usize::from(*least) <= members)
    }

    fn ends(&mut self, who: GroupMember, barrier: &Name, seq: u64) {
        self.came.entry((who, barrier.clone())).or_default().1.push(seq);
    }
}

impl Groups {
    pub(super) fn note_received(&mut self, who: GroupMember, seq: u64, what: Happened) -> Result<(), Broken> {
        self.told += 1;
        self.engine.digest.add(seq);
        let Some(client) = self.clients.get_mut(&who) else { return Ok(()) };
        let what = match (&what, self.sabotage) {
            (Happened::View { .. }, Some(Sabotage::Passed)) if client.view.is_some() => {
                Happened::Passed(super::name("here"))
            }
            _ => what,
        };
        let is_later = matches!(what, Happened::View { .. }) && client.view.is_some();
        if self.sabotage == Some(Sabotage::Unseen) && is_later && self.engine.random.percent(5) {
            return Ok(());
        }
        if client.history.last().is_some_and(|(last, _)| *last > seq) || client.left.is_some() {
            return Err(Broken::general("order", format!("{who:?} received {seq} late: {what:?}")));
        }
        client.history.push((seq, what.clone()));
        if self.sabotage == Some(Sabotage::Swapped)
            && self.engine.random.percent(2)
            && client.history.len() > 2
        {
            let last = client.history.len() - 1;
            let (a, b) = (client.history[last].1.clone(), client.history[last - 1].1.clone());
            (client.history[last].1, client.history[last - 1].1) = (b, a);
        }
        match what {
            Happened::View { number, members } => {
                let members: BTreeSet<GroupMember> = members.iter().copied().collect();
                let follows = client.view.as_ref().is_none_or(|(last, _)| number == last + 1);
                if !follows || !members.contains(&who) {
                    return Err(Broken::general(
                        "views",
                        format!("{who:?} received view {number}: {members:?}"),
                    ));
                }
                client.view = Some((number, members));
            }
            Happened::Message { from, .. } => {
                if client.view.as_ref().is_none_or(|(_, members)| !members.contains(&from)) {
                    return Err(Broken::general(
                        "views",
                        format!("{who:?} received a message of {from:?}, which is not a member"),
                    ));
                }
            }
            Happened::Passed(barrier) => {
                client.waits = false;
                let members = client.view.as_ref().map(|(_, members)| members.clone()).unwrap_or_default();
                let goes =
                    |member: &&GroupMember| self.barriers.stands(**member, &barrier, seq, members.len());
                if let Some(stays) = members.iter().find(|member| !goes(member)) {
                    return Err(Broken::general(
                        "barriers",
                        format!(
                            "{who:?} passes {barrier:?} with {members:?}, without or too few for {stays:?}"
                        ),
                    ));
                }
                self.barriers.ends(who, &barrier, seq);
            }
            Happened::Failed(barrier, died) => {
                client.waits = false;
                let is_strict = self.barriers.strict.contains(&(client.group.clone(), barrier.clone()));
                if !is_strict || client.view.as_ref().is_some_and(|(_, members)| members.contains(&died)) {
                    return Err(Broken::general(
                        "barriers",
                        format!("{barrier:?} fails for {who:?}: {died:?}"),
                    ));
                }
                self.barriers.ends(who, &barrier, seq);
            }
            Happened::Refused(why) => {
                return Err(Broken::general("ends", format!("{who:?}: {why}")));
            }
            Happened::Left => client.left = Some(seq),
        }
        Ok(())
    }

    /// Checks the end of a run, when nothing is under way.
    pub(super) fn at_the_end(&self) -> Result<(), Broken> {
        let known: BTreeSet<_> = self.cluster.up().map(|(_, node)| node.groups.known()).collect();
        if known.len() > 1 {
            return Err(Broken::general("ends", format!("nodes differ at the end: {known:?}")));
        }
        for (who, client) in &self.clients {
            let own = client.history.iter().filter_map(|(_, what)| match what {
                Happened::Message { from, bytes } if from == who => Some(bytes.to_vec()),
                _ => None,
            });
            let own: Vec<Vec<u8>> = own.collect();
            if own != client.sent {
                let what = format!(
                    "{who:?} has sent {} messages and received {} of them",
                    client.sent.len(),
                    own.len()
                );
                return Err(Broken::general("once", what));
            }
            if client.view.is_none() || client.leaves != client.left.is_some() {
                return Err(Broken::general("ends", format!("{who:?} has not joined or left")));
            }
        }
        self.all_wait()?;
        let clients: Vec<_> = self.clients.values().collect();
        for (at, one) in clients.iter().enumerate() {
            for other in clients[at + 1..].iter().filter(|other| other.group == one.group) {
                same(one, other)?;
            }
        }
        Ok(())
    }

    /// Checks that no barrier to which all members came still blocks.
    fn all_wait(&self) -> Result<(), Broken> {
        for client in self.clients.values().filter(|client| client.waits && client.left.is_none()) {
            let Some((_, members)) = &client.view else { continue };
            let stands = |barrier: &str| {
                let barrier = super::name(barrier);
                members.iter().all(|member| self.barriers.stands(*member, &barrier, u64::MAX, members.len()))
            };
            if stands("here") || stands("there") {
                return Err(Broken::general("ends", format!("all of {members:?} wait for each other")));
            }
        }
        Ok(())
    }
}

/// Checks that two members received the same while both were members.
fn same(one: &Client, other: &Client) -> Result<(), Broken> {
    let first = |client: &Client| client.history.first().map_or(u64::MAX, |(seq, _)| *seq);
    let end = |client: &Client| client.left.unwrap_or(u64::MAX);
    let both = first(one).max(first(other))..end(one).min(end(other));
    let of = |client: &Client| -> Vec<(u64, Happened)> {
        client.shared().filter(|(seq, _)| both.contains(seq)).cloned().collect()
    };
    let (a, b) = (of(one), of(other));
    let differs = a.iter().zip(&b).find(|(a, b)| a != b);
    match (differs, a.len() == b.len()) {
        (None, true) => Ok(()),
        _ => Err(Broken::general(
            "order",
            format!(
                "in {:?} one client received {} events and another {}: {differs:?}",
                one.group,
                a.len(),
                b.len()
            ),
        )),
    }
}
