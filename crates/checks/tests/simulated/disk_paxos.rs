//! Disk Paxos alone, in every order of events: two nodes that propose different views, three files,
//! torn writes, and a node that ends and starts again with the contents that it finds.
//!
//! Writes and reads are separate steps. In every order, at most one view of an instance is chosen.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    hash::{Hash, Hasher},
    rc::Rc,
    sync::Arc,
};

use plexus_base::{Epoch, Incarnation, NodeId, NodeSet};
use plexus_checks::harness::{
    Lane,
    explore::{self, Scope},
};
use plexus_membership::protocol::{
    Ballot, Block, Contents, FileId, NodeBlocks, Paxos, PaxosProgress, Seat, View, partitions::Members,
};

const NODES: usize = 2;
const FILES: usize = 3;

/// The scope of an exploration, and its deliberate faults.
#[derive(Clone, Copy)]
struct Rules {
    /// The number of proposals of each node, of torn writes and of ended nodes.
    proposals: u8,
    torn: u8,
    ends: u8,
    /// The ballot block that a node writes next.
    slot: fn(&NodeBlocks) -> u8,
    /// True if an ended node may propose once more; a write and the read after it are one step
    /// then.
    again: bool,
    /// The ballot that an earlier incarnation of node 0 has left in the last file, which the node
    /// has yet to read.
    left: Option<fn() -> Ballot>,
}

const SOUND: Rules =
    Rules { proposals: 1, torn: 0, ends: 0, slot: NodeBlocks::next_slot, again: false, left: None };

/// The state of a file as one node knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct At {
    /// The ballot that was written, and must be read back with everything else.
    wrote: Option<u64>,
    /// The ballot that is in force here.
    in_force: u64,
    /// True if it was not read since the node started: it must be read before a write.
    unknown: bool,
}

#[derive(Clone, Hash)]
struct Node {
    incarnation: u64,
    paxos: Paxos,
    at: [At; FILES],
    proposals: u8,
}

#[derive(Clone)]
struct PaxosWorld {
    rules: Rules,
    /// Nodes exchange no messages here.
    scope: Scope<(), ()>,
    nodes: [Node; NODES],
    files: [Contents; FILES],
    torn: u8,
    ends: u8,
    chosen: Option<Arc<View>>,
    /// The proposers of the views chosen in any world, and the number of worlds with a chosen view.
    found: Rc<RefCell<(BTreeSet<NodeId>, usize)>>,
}

/// A step of a node.
#[derive(Clone, Copy, Debug)]
enum Own {
    Propose(usize),
    /// A file outside those that the node started with is read for the first time.
    Look(usize, usize),
    Write(usize, usize, bool),
    Read(usize, usize),
    End(usize),
}

fn first() -> Arc<View> {
    Arc::new(View::first(NodeSet::first(2), (0..FILES as u64).map(|id| (FileId(id), None))))
}

/// Returns the view that an incarnation of `node` proposes. It differs from the one before, so that
/// a ballot used by both is detected.
fn value(node: usize, incarnation: u64) -> Arc<View> {
    let mut view = View::clone(&first());
    view.epoch = Epoch(1);
    view.seats[node] = Seat::In(Incarnation(incarnation));
    Arc::new(view)
}

impl PaxosWorld {
    fn new(rules: Rules) -> Self {
        let node = |node: usize| Node {
            incarnation: 1,
            paxos: Paxos::recovered(NodeId(node as u8), first(), []),
            at: Default::default(),
            proposals: 0,
        };
        let mut world = Self {
            rules,
            scope: Scope::new(0, 0, Some(0), 0),
            nodes: std::array::from_fn(node),
            files: std::array::from_fn(|_| Contents::default()),
            torn: 0,
            ends: 0,
            chosen: None,
            found: Rc::default(),
        };
        if let Some(left) = rules.left {
            world.files[FILES - 1].nodes[0].ballots[0] = Block::Good(Arc::new(left()));
            world.nodes[0].at[FILES - 1].unknown = true;
        }
        world
    }

    fn write(&mut self, node: usize, file: usize, torn: bool) {
        let place = &mut self.files[file].nodes[node];
        let slot = usize::from((self.rules.slot)(place));
        let own: &Arc<Ballot> = self.nodes[node].paxos.own();
        place.ballots[slot] = if torn { Block::Bad } else { Block::Good(Arc::clone(own)) };
        if torn {
            self.torn += 1;
        } else {
            self.nodes[node].at[file].wrote = Some(own.counter);
        }
    }

    fn read(&mut self, node: usize, file: usize) -> Result<(), String> {
        let at = &mut self.nodes[node].at[file];
        at.in_force = at.wrote.take().expect("it was written");
        self.confirm(node, file)
    }

    fn look(&mut self, node: usize, file: usize) -> Result<(), String> {
        let one = &mut self.nodes[node];
        let found = self.files[file].nodes[node].ballot().map_or(0, |ballot| ballot.counter);
        one.at[file] = At { wrote: None, in_force: found, unknown: false };
        one.paxos.pass(found);
        self.confirm(node, file)
    }

    fn confirm(&mut self, node: usize, file: usize) -> Result<(), String> {
        let progress = self.nodes[node].paxos.confirmed(FileId(file as u64), &self.files[file]);
        let PaxosProgress::Chosen(view) = progress else { return Ok(()) };
        if let Some(other) = self.chosen.as_ref().filter(|other| **other != view) {
            return Err(format!("{:?} and {:?} are chosen", other.seats, view.seats));
        }
        let mut found = self.found.borrow_mut();
        found.0.extend(view.members().lowest());
        found.1 += 1;
        self.chosen = Some(view);
        Ok(())
    }

    /// Ends the process; another starts and reads the first files. Their order does not matter,
    /// since all are alike until then.
    fn end(&mut self, node: usize) {
        self.ends += 1;
        let paxos = Paxos::recovered(NodeId(node as u8), first(), &self.files[..2]);
        let in_force = |file: usize| self.files[file].nodes[node].ballot().map_or(0, |own| own.counter);
        let at = |file: usize| At {
            wrote: None,
            in_force: if file < 2 { in_force(file) } else { 0 },
            unknown: file >= 2,
        };
        let Node { incarnation, proposals, .. } = self.nodes[node];
        let proposals = if self.rules.again { 0 } else { proposals };
        self.nodes[node] =
            Node { incarnation: incarnation + 1, paxos, at: std::array::from_fn(at), proposals };
    }
}

impl explore::World for PaxosWorld {
    type Node = ();
    type Message = ();
    type Own = Own;

    fn scope(&mut self) -> &mut Scope<(), ()> {
        &mut self.scope
    }

    fn seen(&self) -> &Scope<(), ()> {
        &self.scope
    }

    fn own_steps(&self) -> Vec<Own> {
        let mut steps = Vec::new();
        for (node, Node { paxos, at, proposals, .. }) in self.nodes.iter().enumerate() {
            if *proposals < self.rules.proposals && !paxos.is_proposing() {
                steps.push(Own::Propose(node));
            }
            for (file, at) in at.iter().enumerate().filter(|_| paxos.is_proposing()) {
                if at.unknown {
                    steps.push(Own::Look(node, file));
                    continue;
                }
                if at.wrote.is_none() && at.in_force < paxos.own().counter {
                    steps.push(Own::Write(node, file, false));
                    steps.extend((self.torn < self.rules.torn).then_some(Own::Write(node, file, true)));
                }
                steps.extend(at.wrote.is_some().then_some(Own::Read(node, file)));
            }
            if self.ends < self.rules.ends && *proposals > 0 {
                steps.push(Own::End(node));
            }
        }
        steps
    }

    fn act(&mut self, own: Own) -> Result<(), String> {
        match own {
            Own::Propose(node) => {
                let one = &mut self.nodes[node];
                one.proposals += 1;
                one.paxos.propose(value(node, one.incarnation));
            }
            Own::Look(node, file) => self.look(node, file)?,
            Own::Write(node, file, torn) => {
                self.write(node, file, torn);
                if self.rules.again && !torn {
                    self.read(node, file)?;
                }
            }
            Own::Read(node, file) => self.read(node, file)?,
            Own::End(node) => self.end(node),
        }
        Ok(())
    }

    fn hear(&mut self, _: Lane, (): ()) -> Result<(), String> {
        Ok(())
    }

    fn learn(&mut self, _: usize, _: &Members) -> Result<(), String> {
        Ok(())
    }

    fn start(&mut self, _: usize) {}

    fn rest(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Hashes the distinguishing state of a world, without the parts that are equal in every ballot.
impl Hash for PaxosWorld {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let brief = |view: &Arc<View>| (view.seats[0].last(), view.seats[1].last());
        (self.torn, self.ends, self.chosen.as_ref().map(brief), &self.nodes).hash(hasher);
        for block in self.files.iter().flat_map(|file| &file.nodes[..NODES]).flat_map(|place| &place.ballots)
        {
            match block {
                Block::Empty => 0.hash(hasher),
                Block::Bad => 1.hash(hasher),
                Block::Good(ballot) => {
                    let Ballot { counter, mbal, bal, proposed, .. } = &**ballot;
                    (2, counter, mbal, bal, proposed.as_ref().map(brief)).hash(hasher);
                }
            }
        }
    }
}

/// Returns the number of worlds, and the number of steps between them in which a view was chosen.
fn explore(rules: Rules) -> Result<(usize, usize), String> {
    let first = PaxosWorld::new(rules);
    let found = Rc::clone(&first.found);
    let worlds = explore::explore(first)?.all;
    let (chosen, choices) = &*found.borrow();
    assert_eq!(chosen.len(), NODES, "each node's view is chosen somewhere");
    Ok((worlds, *choices))
}

#[test]
fn one_view_is_chosen_in_every_order_of_events() {
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
    // It has proposed often and reached one file only; then the others have yet to promise
    // anything.
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
    assert!(explore(Rules { ends: 1, torn: 1, slot: |_| 0, ..SOUND }).is_err());
}
