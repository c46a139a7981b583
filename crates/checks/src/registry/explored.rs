//! The members of the registry, every order of events in a small scope: two nodes, one command of each, nodes that end and start again, with the
//! views that follow.
//!
//! Steps are: a message arrives, a disk has written, the voting state answers, a client asks, a node is told a view or misses it, a node ends
//! (its last write may have landed, any first part of what it said has left it), a node starts. Seen at every step: contents of one generation are the same,
//! nothing that was shown goes, a command is done once, a comparison holds. Where nothing follows any more: everybody is answered, shows the same and
//! has it on its disk.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_registry::protocol::{
    Act, Change, ClusterName, Command, Contents, Edit, Happened, Key, Message, Opened, Refused, Replica,
    Ticket, View, What,
};

use crate::explore::{Lanes, World, Worlds, explore};

const NODES: usize = 2;
const CLUSTER: ClusterName = ClusterName(7);

/// What is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lie {
    /// Nothing is.
    Nothing,
    /// Disks say that they have written and have not.
    Disks,
    /// The voting state remembers nothing.
    Voting,
}

#[derive(Clone, Hash)]
struct Node {
    incarnation: u64,
    replica: Option<Replica>,
    holds: Arc<Contents>,
    writing: Option<Arc<Contents>>,
    next: Option<Arc<Contents>>,
    /// Views that it was not told yet.
    views: VecDeque<View>,
    shown: u64,
    may_ask: bool,
    is_asking: bool,
}

#[derive(Clone, Hash)]
struct Cluster {
    nodes: Vec<Node>,
    lanes: Lanes<Message>,
    epoch: Epoch,
    /// What the voting state is to remember: who asked, in which incarnation and view, and what.
    votes: Vec<VecDeque<(u64, Epoch, u64)>>,
    remembered: u64,
    shown: BTreeMap<u64, Arc<Contents>>,
    answered: u64,
    /// The version that the value of each node's command got.
    versions: [Option<u64>; NODES],
    refused: bool,
    deaths: u8,
    lie: Lie,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Deliver(usize, usize),
    Written(usize),
    /// The voting state answers, or forgets who has ended.
    Vote(usize, bool),
    Ask(usize),
    Learn(usize),
    Miss(usize),
    /// Its last write has landed; so many of its last messages are lost.
    End(usize, bool, usize),
    Start(usize),
}

fn key() -> Key {
    Key::new("k").expect("a key")
}

/// Node 0 sets the key whatever it has, node 1 makes it if there is none.
fn command(node: usize) -> Command {
    let (expect, value) = ([None, Some(0)][node], vec![node as u8].into());
    Command::Change(Change(vec![Edit { key: key(), expect, what: What::Set(value) }]))
}

impl Cluster {
    fn new(deaths: u8, lie: Lie) -> Self {
        let node = |_| Node {
            incarnation: 0,
            replica: None,
            holds: Arc::new(Contents::new(CLUSTER)),
            writing: None,
            next: None,
            views: VecDeque::new(),
            shown: 0,
            may_ask: true,
            is_asking: false,
        };
        let mut world = Self {
            nodes: (0..NODES).map(node).collect(),
            lanes: Lanes::default(),
            epoch: Epoch(0),
            votes: vec![VecDeque::new(); NODES],
            remembered: 0,
            shown: BTreeMap::new(),
            answered: 0,
            versions: [None; NODES],
            refused: false,
            deaths,
            lie,
        };
        (0..NODES).for_each(|node| world.start(node));
        world.decide();
        world
    }

    fn start(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.incarnation += 1;
        let opened = Opened {
            contents: Contents::clone(&node.holds),
            is_lost: false,
            holds: [None; 2],
            trouble: [None, None],
        };
        node.replica = Some(Replica::new(NodeId(number as u8), Incarnation(node.incarnation), &opened));
        (node.shown, node.is_asking) = (0, false);
    }

    /// A view of all who live.
    fn decide(&mut self) {
        self.epoch.0 += 1;
        let lives = |node: &usize| self.nodes[*node].replica.is_some();
        let living: Vec<usize> = (0..NODES).filter(lives).collect();
        let view =
            View { epoch: self.epoch, members: living.iter().map(|node| NodeId(*node as u8)).collect() };
        living.iter().for_each(|node| self.nodes[*node].views.push_back(view));
    }

    fn handle(&mut self, at: usize, happened: Happened) -> Result<(), String> {
        let mut acts = Vec::new();
        let Some(replica) = &mut self.nodes[at].replica else { return Ok(()) };
        replica.handle(happened, &mut |act| acts.push(act));
        for act in acts {
            match act {
                Act::Send(nodes, message) => {
                    for to in nodes.iter().map(NodeId::index) {
                        if self.nodes[to].replica.is_some() {
                            self.lanes.push(at, to, message.clone());
                        }
                    }
                }
                Act::Save(contents) => {
                    let node = &mut self.nodes[at];
                    match node.writing {
                        None => node.writing = Some(contents),
                        Some(_) => node.next = Some(contents),
                    }
                }
                Act::Remember(epoch, generation) => {
                    let incarnation = self.nodes[at].incarnation;
                    self.votes[at].push_back((incarnation, epoch, generation));
                }
                Act::Show(changed, contents) => {
                    let generation = contents.generation();
                    if changed.generation != generation || generation <= self.nodes[at].shown {
                        return Err(format!(
                            "{at} shows {generation} after {}, as {changed:?}",
                            self.nodes[at].shown
                        ));
                    }
                    self.nodes[at].shown = generation;
                    self.shows(generation, contents)?;
                }
                Act::Done(_, result) => {
                    self.nodes[at].is_asking = false;
                    match result {
                        Ok(generation) if generation <= self.nodes[at].shown => {
                            self.answered = self.answered.max(generation);
                            // What node 1 made may have been set anew before anybody was shown it.
                            let newest =
                                self.shown.last_key_value().and_then(|(_, contents)| contents.entry("k"));
                            let is_over = at == 1 && newest.is_some_and(|entry| entry.version > generation);
                            if !is_over && self.versions[at].is_none_or(|version| version > generation) {
                                return Err(format!("the command of {at} is answered and was not done"));
                            }
                        }
                        Err(Refused::Version { .. }) if at == 1 && self.versions[0].is_some() => {
                            self.refused = true;
                        }
                        // Nobody here has what is remembered: who asked is told, and does not know what became of it.
                        Err(Refused::Closed { .. }) => {}
                        other => return Err(format!("{at} is answered {other:?}")),
                    }
                }
                Act::Fault(from, what) => return Err(format!("{from} is said to have sent {what}")),
            }
        }
        Ok(())
    }

    fn shows(&mut self, generation: u64, contents: Arc<Contents>) -> Result<(), String> {
        if let Some(before) = self.shown.get(&generation) {
            let same = *before == contents;
            return if same { Ok(()) } else { Err(format!("two contents of generation {generation}")) };
        }
        let older = self.shown.range(..generation).next_back();
        let newer = self.shown.range(generation..).next();
        let version = |contents: &Contents| contents.entry("k").map_or(0, |entry| entry.version);
        if older.is_some_and(|(_, older)| version(older) > version(&contents))
            || newer.is_some_and(|(_, newer)| version(newer) < version(&contents))
        {
            return Err(format!("what was shown is gone at or after {generation}"));
        }
        if let Some(entry) = contents.entry("k") {
            let of = usize::from(entry.value[0]);
            if *self.versions[of].get_or_insert(entry.version) != entry.version {
                return Err(format!("the command of {of} is done twice"));
            }
            if of == 1 && self.versions[0].is_some_and(|version| version < entry.version) {
                return Err("the key is made though there was one".into());
            }
            if of == 1 && self.refused {
                return Err("what was refused is done".into());
            }
        }
        self.shown.insert(generation, contents);
        Ok(())
    }
}

impl World for Cluster {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self.lanes.busy().map(|(from, to)| Step::Deliver(from, to)).collect();
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some((incarnation, ..)) = self.votes[at].front() {
                steps.push(Step::Vote(at, true));
                if *incarnation != node.incarnation || node.replica.is_none() {
                    steps.push(Step::Vote(at, false));
                }
            }
            if node.replica.is_none() {
                steps.push(Step::Start(at));
                continue;
            }
            if node.writing.is_some() {
                steps.push(Step::Written(at));
            }
            if node.may_ask {
                steps.push(Step::Ask(at));
            }
            if !node.views.is_empty() {
                steps.push(Step::Learn(at));
            }
            if node.views.len() > 1 {
                steps.push(Step::Miss(at));
            }
            if self.deaths > 0 {
                let said = self.lanes.len(at, 1 - at);
                for lost in 0..=said {
                    steps.push(Step::End(at, false, lost));
                    if node.writing.is_some() {
                        steps.push(Step::End(at, true, lost));
                    }
                }
            }
        }
        steps
    }

    fn is_at_rest(steps: &[Step]) -> bool {
        steps.iter().all(|step| matches!(step, Step::End(..)))
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Deliver(from, to) => {
                let message = self.lanes.pop(from, to);
                self.handle(to, Happened::Message(NodeId(from as u8), message))
            }
            Step::Written(at) => {
                let node = &mut self.nodes[at];
                let written = node.writing.take().expect("it writes");
                let generation = written.generation();
                if self.lie != Lie::Disks {
                    node.holds = written;
                }
                node.writing = node.next.take();
                self.handle(at, Happened::Saved(generation))
            }
            Step::Vote(at, lands) => {
                let (incarnation, epoch, generation) = self.votes[at].pop_front().expect("a vote");
                if !lands {
                    return Ok(());
                }
                let known = self.remembered.max(generation);
                if self.lie != Lie::Voting {
                    self.remembered = known;
                }
                match incarnation == self.nodes[at].incarnation {
                    true => self.handle(at, Happened::Remembered(epoch, known)),
                    false => Ok(()),
                }
            }
            Step::Ask(at) => {
                (self.nodes[at].may_ask, self.nodes[at].is_asking) = (false, true);
                self.handle(at, Happened::Ask(Ticket(at as u64), command(at)))
            }
            Step::Learn(at) => {
                let view = self.nodes[at].views.pop_front().expect("a view");
                self.handle(at, Happened::View(view))
            }
            Step::Miss(at) => {
                self.nodes[at].views.pop_front();
                Ok(())
            }
            Step::End(at, landed, lost) => {
                self.deaths -= 1;
                let node = &mut self.nodes[at];
                (node.replica, node.next) = (None, None);
                node.views.clear();
                node.is_asking = false;
                if let Some(writing) = node.writing.take().filter(|_| landed) {
                    node.holds = writing;
                }
                let left = self.lanes.len(at, 1 - at) - lost;
                self.lanes.end(at, |_| left);
                if self.nodes.iter().any(|node| node.replica.is_some()) {
                    self.decide();
                }
                Ok(())
            }
            Step::Start(at) => {
                self.lanes.silence(at);
                self.start(at);
                self.decide();
                Ok(())
            }
        }
    }

    fn rest(&self) -> Result<(), String> {
        let newest = self.shown.last_key_value();
        for (at, node) in self.nodes.iter().enumerate() {
            let shows = node.replica.as_ref().and_then(Replica::contents);
            let Some((generation, newest)) = newest else { return Err("nothing is shown".into()) };
            if node.is_asking || shows != Some(newest) || node.holds != *newest || self.answered > *generation
            {
                let asking = node.is_asking;
                return Err(format!("{at} rests with {shows:?} of {newest:?}, asking: {asking}"));
            }
        }
        Ok(())
    }
}

/// Every world in which nodes end so many times at most: how many there are, and how many at rest.
///
/// # Errors
/// What does not hold, and the steps that lead to it.
pub fn explored(ends: u8, lie: Lie) -> Result<Worlds, String> {
    explore(Cluster::new(ends, lie))
}
