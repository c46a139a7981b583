//! Explores the members of the registry, every order of events in a small scope: two nodes with one
//! command each, which end and start again, with the views that follow.
//!
//! Steps are: a message arrives, a disk has written, the voting state answers, a client sends a
//! request, a node receives or misses a view, a node ends, a node starts. When a node ends, its
//! last write may have landed and any first part of its last messages was sent. At every step,
//! contents of one generation are equal, no shown entry disappears, a command is done once, and
//! comparisons are correct. Where no step is left, all requests are answered, and all nodes show
//! the same content and have it on disk.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use plexus_base::Epoch;
use plexus_membership::protocol::partitions::Members;
use plexus_registry::protocol::{
    Act, Change, ClusterName, Command, Contents, Edit, EditKind, Happened, Key, Message, Opened, Refused,
    Replica, Ticket, View,
};

use crate::harness::{
    Instance, Lane,
    explore::{Scope, World, Worlds, explore},
};

const NODES: usize = 2;
const CLUSTER: ClusterName = ClusterName(7);

/// The deliberate fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lie {
    /// No fault.
    Nothing,
    /// Disks report writes that they have not done.
    Disks,
    /// The voting state remembers nothing.
    Voting,
}

#[derive(Clone, Hash)]
struct Node {
    replica: Replica,
    shown: u64,
    is_asking: bool,
}

/// The state of a node that survives its incarnations.
#[derive(Clone, Hash)]
struct Kept {
    holds: Arc<Contents>,
    writing: Option<Arc<Contents>>,
    next: Option<Arc<Contents>>,
    may_ask: bool,
    /// The requests to the voting state: the node, its view and the generation to remember.
    votes: VecDeque<(Instance, Epoch, u64)>,
}

#[derive(Clone, Hash)]
struct Explored {
    scope: Scope<Node, Message>,
    kept: Vec<Kept>,
    remembered: u64,
    shown: BTreeMap<u64, Arc<Contents>>,
    answered: u64,
    /// The version of each node's command.
    versions: [Option<u64>; NODES],
    refused: bool,
    lie: Lie,
}

#[derive(Clone, Copy, Debug)]
enum Own {
    Written(usize),
    /// The voting state answers, or drops the request of an ended node.
    Vote(usize, bool),
    Ask(usize),
}

fn key() -> Key {
    Key::new("k").expect("a key")
}

/// Returns the command of a node: node 0 sets the key in any case, node 1 creates it if it does not
/// exist.
fn command(node: usize) -> Command {
    let (expect, value) = ([None, Some(0)][node], vec![node as u8].into());
    Command::Change(Change(vec![Edit { key: key(), expect, what: EditKind::Set(value) }]))
}

impl Explored {
    fn handle(&mut self, at: usize, happened: Happened) -> Result<(), String> {
        let mut acts = Vec::new();
        let Some(node) = self.scope.cluster.node_mut(at) else { return Ok(()) };
        node.replica.handle(happened, &mut |act| acts.push(act));
        acts.into_iter().try_for_each(|act| self.carry(at, act))
    }

    fn node(&mut self, at: usize) -> &mut Node {
        self.scope.cluster.node_mut(at).expect("it is up")
    }

    fn carry(&mut self, at: usize, act: Act) -> Result<(), String> {
        match act {
            Act::Send(nodes, message) => {
                nodes.iter().for_each(|to| self.scope.send(at, to.index(), message.clone()));
            }
            Act::Save(contents) => {
                let kept = &mut self.kept[at];
                match kept.writing {
                    None => kept.writing = Some(contents),
                    Some(_) => kept.next = Some(contents),
                }
            }
            Act::Remember(epoch, generation) => {
                let asked = self.scope.cluster.instance(at);
                self.kept[at].votes.push_back((asked, epoch, generation));
            }
            Act::Show(changed, contents) => {
                let (generation, shown) = (contents.generation(), &mut self.node(at).shown);
                if changed.generation != generation || generation <= *shown {
                    return Err(format!("{at} shows {generation} after {shown}, as {changed:?}"));
                }
                *shown = generation;
                self.shows(generation, contents)?;
            }
            Act::Done(_, result) => {
                self.node(at).is_asking = false;
                match result {
                    Ok(generation) if generation <= self.node(at).shown => {
                        self.answered = self.answered.max(generation);
                        // The key made by node 1 may have been set again before any client saw it.
                        let newest =
                            self.shown.last_key_value().and_then(|(_, contents)| contents.entry("k"));
                        let is_over = at == 1 && newest.is_some_and(|entry| entry.version > generation);
                        if !is_over && self.versions[at].is_none_or(|version| version > generation) {
                            return Err(format!("the command of {at} was answered but not done"));
                        }
                    }
                    Err(Refused::Version { .. }) if at == 1 && self.versions[0].is_some() => {
                        self.refused = true;
                    }
                    // No node here has the remembered content: the client gets an error and does
                    // not know the outcome.
                    Err(Refused::Closed { .. }) => {}
                    other => return Err(format!("{at} is answered {other:?}")),
                }
            }
            Act::Unwritable(nodes) if nodes.is_empty() => {}
            Act::Unwritable(_) | Act::Leave => return Err(format!("{at}: every copy can be written")),
            Act::Fault(from, what) => return Err(format!("{from} is said to have sent {what}")),
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
            return Err(format!("a shown entry is gone at or after {generation}"));
        }
        if let Some(entry) = contents.entry("k") {
            let of = usize::from(entry.value[0]);
            if *self.versions[of].get_or_insert(entry.version) != entry.version {
                return Err(format!("the command of {of} is done twice"));
            }
            if of == 1 && self.versions[0].is_some_and(|version| version < entry.version) {
                return Err("the key was created although it existed".into());
            }
            if of == 1 && self.refused {
                return Err("a refused command was done".into());
            }
        }
        self.shown.insert(generation, contents);
        Ok(())
    }
}

impl World for Explored {
    type Node = Node;
    type Message = Message;
    type Own = Own;

    fn scope(&mut self) -> &mut Scope<Node, Message> {
        &mut self.scope
    }

    fn seen(&self) -> &Scope<Node, Message> {
        &self.scope
    }

    fn own_steps(&self) -> Vec<Own> {
        let mut steps = Vec::new();
        for (at, kept) in self.kept.iter().enumerate() {
            let is_up = self.scope.cluster.node(at).is_some();
            if let Some((asked, ..)) = kept.votes.front() {
                steps.push(Own::Vote(at, true));
                steps.extend((!self.scope.cluster.is_up(*asked)).then_some(Own::Vote(at, false)));
            }
            steps.extend(kept.writing.is_some().then_some(Own::Written(at)));
            steps.extend((is_up && kept.may_ask).then_some(Own::Ask(at)));
        }
        steps
    }

    fn act(&mut self, own: Own) -> Result<(), String> {
        match own {
            Own::Written(at) => {
                let kept = &mut self.kept[at];
                let written = kept.writing.take().expect("it writes");
                let generation = written.generation();
                if self.lie != Lie::Disks {
                    kept.holds = written;
                }
                kept.writing = kept.next.take();
                self.handle(at, Happened::Saved(generation))
            }
            Own::Vote(at, lands) => {
                let (asked, epoch, generation) = self.kept[at].votes.pop_front().expect("a vote");
                if !lands {
                    return Ok(());
                }
                let known = self.remembered.max(generation);
                if self.lie != Lie::Voting {
                    self.remembered = known;
                }
                match asked == self.scope.cluster.instance(at) {
                    true => self.handle(at, Happened::Remembered(epoch, known)),
                    false => Ok(()),
                }
            }
            Own::Ask(at) => {
                (self.kept[at].may_ask, self.node(at).is_asking) = (false, true);
                self.handle(at, Happened::Ask(Ticket(at as u64), command(at)))
            }
        }
    }

    fn hear(&mut self, lane: Lane, message: Message) -> Result<(), String> {
        let (from, _) = lane.from.member();
        self.handle(lane.to.node, Happened::Message(from, message))
    }

    fn learn(&mut self, node: usize, view: &Members) -> Result<(), String> {
        let members = view.members.iter().map(|(node, _)| *node).collect();
        self.handle(node, Happened::View(View { epoch: view.epoch, members }))
    }

    fn start(&mut self, node: usize) {
        let contents = Contents::clone(&self.kept[node].holds);
        let opened = Opened { contents, is_lost: false, holds: [None; 2], trouble: [None, None] };
        self.scope.cluster.start(node, |instance| {
            let (me, incarnation) = instance.member();
            Node { replica: Replica::new(me, incarnation, &opened), shown: 0, is_asking: false }
        });
    }

    /// Its last write has landed or not.
    fn ways_to_end(&self, node: usize) -> usize {
        1 + usize::from(self.kept[node].writing.is_some())
    }

    fn ended(&mut self, node: usize, way: usize, _last: Node) {
        let kept = &mut self.kept[node];
        kept.next = None;
        if let Some(writing) = kept.writing.take().filter(|_| way == 1) {
            kept.holds = writing;
        }
    }

    fn rest(&self) -> Result<(), String> {
        let newest = self.shown.last_key_value();
        for (at, node) in self.scope.cluster.up() {
            let (shows, holds) = (node.replica.contents(), &self.kept[at].holds);
            let Some((generation, newest)) = newest else { return Err("nothing is shown".into()) };
            if node.is_asking || shows != Some(newest) || holds != newest || self.answered > *generation {
                let asking = node.is_asking;
                return Err(format!("{at} rests with {shows:?} of {newest:?}, asking: {asking}"));
            }
        }
        Ok(())
    }
}

/// Explores every world with at most `ends` ends of nodes; returns the number of worlds, and of
/// those at rest.
///
/// # Errors
/// The property that does not hold, and the steps that lead there.
pub fn explored(ends: u8, lie: Lie) -> Result<Worlds, String> {
    let kept = Kept {
        holds: Arc::new(Contents::new(CLUSTER)),
        writing: None,
        next: None,
        may_ask: true,
        votes: VecDeque::new(),
    };
    let mut first = Explored {
        scope: Scope::new(NODES, ends, None, 0),
        kept: vec![kept; NODES],
        remembered: 0,
        shown: BTreeMap::new(),
        answered: 0,
        versions: [None; NODES],
        refused: false,
        lie,
    };
    first.boot();
    explore(first)
}
