//! Disk Paxos alone, every order of events: two nodes that propose different views, three files, writes that are torn, a node that ends and
//! starts again with what it finds.
//!
//! Writes and reads are steps of their own. Whatever happens: of one instance one view is chosen.

use std::{
    collections::{BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use plexus_base::{Epoch, Incarnation, NodeId, NodeSet};
use plexus_membership::protocol::{Ballot, Block, Contents, FileId, Paxos, Progress, Seat, View};

const NODES: usize = 2;
const FILES: usize = 3;

/// What is explored, and what is broken on purpose.
#[derive(Clone, Copy)]
struct Rules {
    /// How often each node may begin to propose, and how many writes are torn and nodes ended in all.
    proposals: u8,
    torn: u8,
    ends: u8,
    /// Ballot blocks that a node writes in turn: two, unless it is broken.
    blocks: usize,
    /// Who has ended may propose once more; a write and the read after it are one step.
    again: bool,
    /// What an earlier incarnation of node 0 has left in the last file, which it has yet to read.
    left: Option<fn() -> Ballot>,
}

const SOUND: Rules = Rules { proposals: 1, torn: 0, ends: 0, blocks: 2, again: false, left: None };

/// A file as one node knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct At {
    /// The ballot that was written, and is to be read back with everything else.
    wrote: Option<u64>,
    /// The ballot that is in force here.
    in_force: u64,
    /// It was not read since the node started: it is, before anything is written there.
    unknown: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Node {
    paxos: Paxos,
    at: [At; FILES],
    proposals: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    nodes: [Node; NODES],
    files: [Contents; FILES],
    torn: u8,
    ends: u8,
    chosen: Option<Arc<View>>,
}

fn first() -> Arc<View> {
    Arc::new(View::first(NodeSet::first(2), (0..FILES as u64).map(|id| (FileId(id), None))))
}

/// What `node` would have.
fn value(node: usize) -> Arc<View> {
    let mut view = View::clone(&first());
    view.epoch = Epoch(1);
    view.seats[node] = Seat::In(Incarnation(1));
    Arc::new(view)
}

impl World {
    fn new(rules: Rules) -> Self {
        let node = |node: usize| Node {
            paxos: Paxos::recovered(NodeId(node as u8), first(), []),
            at: Default::default(),
            proposals: 0,
        };
        let mut world = Self {
            nodes: std::array::from_fn(node),
            files: std::array::from_fn(|_| Contents::default()),
            torn: 0,
            ends: 0,
            chosen: None,
        };
        if let Some(left) = rules.left {
            world.files[FILES - 1].places[0].ballots[0] = Block::Good(Arc::new(left()));
            world.nodes[0].at[FILES - 1].unknown = true;
        }
        world
    }

    /// Every world that one event leads to; an error where two views are chosen.
    fn next(&self, rules: Rules) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        for node in 0..NODES {
            if self.nodes[node].proposals < rules.proposals && !self.nodes[node].paxos.is_proposing() {
                let mut next = self.clone();
                next.nodes[node].proposals += 1;
                next.nodes[node].paxos.propose(value(node));
                all.push(next);
            }
            let files = if self.nodes[node].paxos.is_proposing() { 0..FILES } else { 0..0 };
            for file in files {
                let at = &self.nodes[node].at[file];
                let counter = self.nodes[node].paxos.own().counter;
                if at.unknown {
                    all.push(self.looked(node, file)?);
                    continue;
                }
                if at.wrote.is_none() && at.in_force < counter {
                    let written = self.written(node, file, false, rules);
                    all.push(if rules.again { written.read(node, file)? } else { written });
                    if self.torn < rules.torn {
                        all.push(self.written(node, file, true, rules));
                    }
                }
                if at.wrote.is_some() {
                    all.push(self.read(node, file)?);
                }
            }
            if self.ends < rules.ends && self.nodes[node].proposals > 0 {
                // Which files it reads first makes no difference: until then all are alike.
                all.push(self.ended(node, &[0, 1], rules));
            }
        }
        Ok(all)
    }

    fn written(&self, node: usize, file: usize, torn: bool, rules: Rules) -> Self {
        let mut next = self.clone();
        let place = &mut next.files[file].places[node];
        let slot = place.newest().map_or(0, |slot| (slot + 1) % rules.blocks);
        let own: &Arc<Ballot> = next.nodes[node].paxos.own();
        place.ballots[slot] = if torn { Block::Bad } else { Block::Good(Arc::clone(own)) };
        if torn {
            next.torn += 1;
        } else {
            next.nodes[node].at[file].wrote = Some(own.counter);
        }
        next
    }

    fn read(&self, node: usize, file: usize) -> Result<Self, String> {
        let mut next = self.clone();
        let at = &mut next.nodes[node].at[file];
        at.in_force = at.wrote.take().expect("it was written");
        next.confirm(node, file)?;
        Ok(next)
    }

    /// A file that was not among those that the node started with is read for the first time.
    fn looked(&self, node: usize, file: usize) -> Result<Self, String> {
        let mut next = self.clone();
        let one = &mut next.nodes[node];
        let found = next.files[file].places[node].ballot().map_or(0, |ballot| ballot.counter);
        one.at[file] = At { wrote: None, in_force: found, unknown: false };
        one.paxos.pass(found);
        next.confirm(node, file)?;
        Ok(next)
    }

    fn confirm(&mut self, node: usize, file: usize) -> Result<(), String> {
        let progress = self.nodes[node].paxos.confirmed(FileId(file as u64), &self.files[file]);
        let Progress::Chosen(view) = progress else { return Ok(()) };
        match &self.chosen {
            Some(other) if *other != view => {
                Err(format!("{:?} and {:?} are chosen", other.members(), view.members()))
            }
            _ => {
                self.chosen = Some(view);
                Ok(())
            }
        }
    }

    /// The process ends, and another starts that reads these files.
    fn ended(&self, node: usize, read: &[usize], rules: Rules) -> Self {
        let mut next = self.clone();
        next.ends += 1;
        let found: Vec<Contents> = read.iter().map(|file| next.files[*file].clone()).collect();
        let paxos = Paxos::recovered(NodeId(node as u8), first(), &found);
        let in_force = |file: usize| next.files[file].places[node].ballot().map_or(0, |own| own.counter);
        let at = |file: usize| match read.contains(&file) {
            true => At { wrote: None, in_force: in_force(file), unknown: false },
            false => At { wrote: None, in_force: 0, unknown: true },
        };
        let at = std::array::from_fn(at);
        let proposals = if rules.again { 0 } else { self.nodes[node].proposals };
        next.nodes[node] = Node { paxos, at, proposals };
        next
    }
}

/// How many worlds there are, and how many ended with a view chosen.
fn explore(rules: Rules) -> Result<(usize, usize), String> {
    let mut known = HashSet::new();
    let mut rest = vec![World::new(rules)];
    let mut chosen = BTreeSet::new();
    let mut choices = 0;
    while let Some(world) = rest.pop() {
        for next in world.next(rules)? {
            let hash = hash(&next);
            if known.insert(hash) {
                if let Some(view) = &next.chosen {
                    choices += 1;
                    chosen.insert(view.members().lowest());
                }
                rest.push(next);
            }
        }
    }
    assert_eq!(chosen.len(), NODES, "each node's view is chosen somewhere");
    Ok((known.len(), choices))
}

/// Two hashes of 64 bits: among some hundred thousand worlds no two are taken for one.
fn hash(world: &World) -> (u64, u64) {
    let hash = |what: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        what(&mut hasher);
        hasher.finish()
    };
    let mut key = vec![u64::from(world.torn), u64::from(world.ends), u64::from(world.chosen.is_some())];
    let node = |view: &Arc<View>| view.members().lowest().map_or(9, |node| u64::from(node.0));
    key.push(world.chosen.as_ref().map_or(8, node));
    key.extend(world.nodes.iter().map(|node| hash(&|hasher| node.hash(hasher))));
    for place in world.files.iter().flat_map(|file| &file.places[..NODES]) {
        for block in &place.ballots {
            match block {
                Block::Empty => key.push(0),
                Block::Bad => key.push(1),
                Block::Good(ballot) => {
                    let Ballot { counter, mbal, bal, proposed, .. } = &**ballot;
                    key.extend([2, *counter, *mbal, *bal, proposed.as_ref().map_or(8, node)]);
                }
            }
        }
    }
    (hash(&|hasher| (0, &key).hash(hasher)), hash(&|hasher| (1, &key).hash(hasher)))
}

#[test]
fn one_view_is_chosen_whatever_the_order() {
    let (worlds, choices) = explore(SOUND).expect("one view");
    println!("{worlds} worlds, in {choices} of them a view is chosen");
    assert!(worlds > 1000 && choices > 100);
}

#[test]
fn one_view_is_chosen_though_a_node_ends_and_starts_again() {
    for again in [false, true] {
        let (worlds, _) = explore(Rules { ends: 1, again, ..SOUND }).expect("one view");
        println!("{worlds} worlds");
        assert!(worlds > 10_000);
    }
}

#[test]
fn a_ballot_of_an_earlier_incarnation_is_not_taken_for_the_newest() {
    // It has proposed often, and reached one file only; then others have yet to promise anything.
    let often = || Ballot { counter: 9, mbal: 16, bal: 0, proposed: None, decided: first() };
    let (worlds, _) = explore(Rules { left: Some(often), ..SOUND }).expect("one view");
    println!("{worlds} worlds");
    assert!(worlds > 1000);
}

#[test]
fn one_view_is_chosen_though_a_write_is_torn_and_its_node_ends() {
    let (worlds, _) = explore(Rules { ends: 1, torn: 1, ..SOUND }).expect("one view");
    println!("{worlds} worlds");
    assert!(worlds > 10_000);
}

#[test]
fn a_single_ballot_block_that_is_torn_loses_a_promise() {
    assert!(explore(Rules { ends: 1, torn: 1, blocks: 1, ..SOUND }).is_err());
}
