//! Explores a small cluster exhaustively: every state that any order of events leads to.

use std::{
    collections::{HashSet, VecDeque},
    fmt::Debug,
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
};

use plexus_base::Epoch;
use plexus_membership::protocol::partitions::Members;
use plexus_sim::Digest;

use super::{Cluster, Lane, run::panicked};

/// The maximum number of nodes of an explored cluster.
const MOST: usize = 3;

/// A cluster and the events that are still possible for its members.
#[derive(Clone, Hash)]
pub struct Scope<N, M> {
    /// The nodes.
    pub cluster: Cluster<N, M>,
    /// Views that each node has not received yet, by node.
    views: Vec<VecDeque<Members>>,
    epoch: Epoch,
    /// The number of incarnations that may still end.
    ends: u8,
    /// The number of incarnations that may start after an end. `None`: every ended node starts
    /// again, and the cluster is not at rest before.
    starts: Option<u8>,
    /// The minimum number of nodes that stay up.
    least_up: usize,
}

impl<N, M> Scope<N, M> {
    /// Creates nodes that are down, in a cluster without a view.
    pub fn new(nodes: usize, ends: u8, starts: Option<u8>, least_up: usize) -> Self {
        let (cluster, views) = (Cluster::new(nodes), vec![VecDeque::new(); nodes]);
        Self { cluster, views, epoch: Epoch(0), ends, starts, least_up }
    }

    /// Sends a message to the last incarnation of a node, if it is up.
    pub fn send(&mut self, from: usize, to: usize, message: M) {
        self.send_in(from, to, 0, message);
    }

    /// Sends a message in a class: those of other classes may overtake it.
    pub fn send_in(&mut self, from: usize, to: usize, class: usize, message: M) {
        let lane = Lane { class, ..self.lane(from, to) };
        if self.cluster.is_up(lane.to) {
            self.cluster.send(lane, message, 0, 0);
        }
    }

    /// Decides a view of all nodes that are up.
    pub fn decide(&mut self) {
        let members = self.cluster.members();
        if members.is_empty() {
            return;
        }
        self.epoch.0 += 1;
        let view = Members { epoch: self.epoch, members };
        view.members.iter().for_each(|(node, _)| self.views[node.index()].push_back(view.clone()));
    }

    /// Returns the epoch of the last view that was decided.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn lane(&self, from: usize, to: usize) -> Lane {
        Lane { from: self.cluster.instance(from), to: self.cluster.instance(to), class: 0 }
    }
}

/// An event that is possible in a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<S> {
    /// The first message of a lane arrives.
    Deliver(Lane),
    /// A node receives its next view.
    Learn(usize),
    /// A node misses a view because there is a later one.
    Miss(usize),
    /// An incarnation ends. The array says how many of its last messages to each node were sent.
    /// The last field selects one of several kinds of end.
    End(usize, [usize; MOST], usize),
    /// The next incarnation of a node starts.
    Start(usize),
    /// A step that only this world has.
    Own(S),
}

/// A complete state, and the steps that are possible from it.
pub trait World: Clone + Hash {
    /// The state of a node while it is up.
    type Node: Clone + Hash;
    /// The messages that nodes exchange.
    type Message: Clone + Hash;
    /// The steps besides those of every cluster.
    type Own: Copy + Debug;

    /// True if a node that ends may leave any last part of its messages unsent. If not, all of them
    /// stay under way, and the world drops those that a node must not receive in a later view.
    const UNSENT: bool = true;

    /// Returns the scope with its cluster.
    fn scope(&mut self) -> &mut Scope<Self::Node, Self::Message>;

    /// Returns the scope for reading.
    fn seen(&self) -> &Scope<Self::Node, Self::Message>;

    /// Returns the own steps that are possible now.
    fn own_steps(&self) -> Vec<Self::Own>;

    /// Returns true if an own step comes from outside: the world is at rest without it.
    fn is_outside(_: &Self::Own) -> bool {
        false
    }

    /// Takes an own step.
    ///
    /// # Errors
    /// The property that does not hold.
    fn act(&mut self, step: Self::Own) -> Result<(), String>;

    /// Handles the arrival of a message at its receiver.
    ///
    /// # Errors
    /// The property that does not hold.
    fn hear(&mut self, lane: Lane, message: Self::Message) -> Result<(), String>;

    /// Gives a view to a node.
    ///
    /// # Errors
    /// The property that does not hold.
    fn learn(&mut self, node: usize, view: &Members) -> Result<(), String>;

    /// Starts the next incarnation of a node ([`Cluster::start`]).
    fn start(&mut self, node: usize);

    /// Returns the number of ways in which an incarnation of a node may end now.
    fn ways_to_end(&self, _node: usize) -> usize {
        1
    }

    /// Handles the end of an incarnation, which leaves its last state.
    fn ended(&mut self, _node: usize, _way: usize, _last: Self::Node) {}

    /// Checks the properties of a state in which no further event is pending.
    ///
    /// # Errors
    /// The property that does not hold.
    fn rest(&self) -> Result<(), String>;

    /// Starts all nodes, in one view.
    fn boot(&mut self) {
        self.scope().cluster.nodes().for_each(|node| self.start(node));
        self.scope().decide();
    }
}

fn steps<W: World>(world: &W) -> Vec<Step<W::Own>> {
    let scope = world.seen();
    let cluster = &scope.cluster;
    let mut steps: Vec<_> = cluster.busy().map(Step::Deliver).collect();
    for node in cluster.nodes() {
        if cluster.node(node).is_none() {
            steps.extend((scope.starts != Some(0)).then_some(Step::Start(node)));
            continue;
        }
        let views = scope.views[node].len();
        steps.extend((views > 0).then_some(Step::Learn(node)));
        steps.extend((views > 1).then_some(Step::Miss(node)));
        if scope.ends > 0 && cluster.up().count() > scope.least_up {
            let left = |to| {
                if !W::UNSENT {
                    return 0..=0;
                }
                let said = if to < scope.views.len() { cluster.under_way(scope.lane(node, to)) } else { 0 };
                0..=said
            };
            for way in 0..world.ways_to_end(node) {
                for (a, b) in left(0).flat_map(|a| left(1).map(move |b| (a, b))) {
                    steps.extend(left(2).map(|c| Step::End(node, [a, b, c], way)));
                }
            }
        }
    }
    steps.extend(world.own_steps().into_iter().map(Step::Own));
    steps
}

fn is_at_rest<W: World>(world: &W, steps: &[Step<W::Own>]) -> bool {
    let starts_follow = world.seen().starts.is_none();
    steps.iter().all(|step| match step {
        Step::End(..) => true,
        Step::Start(_) => !starts_follow,
        Step::Own(own) => W::is_outside(own),
        _ => false,
    })
}

fn take<W: World>(world: &mut W, step: Step<W::Own>) -> Result<(), String> {
    match step {
        Step::Deliver(lane) => match world.scope().cluster.receive(lane) {
            Some(message) => {
                world.scope().cluster.tidy();
                world.hear(lane, message)
            }
            None => Ok(()),
        },
        Step::Learn(node) => match world.scope().views[node].pop_front() {
            Some(view) => world.learn(node, &view),
            None => Ok(()),
        },
        Step::Miss(node) => {
            world.scope().views[node].pop_front();
            Ok(())
        }
        Step::End(node, left, way) => {
            let scope = world.scope();
            scope.ends -= 1;
            scope.views[node].clear();
            let sent = |lane: &Lane, said| if W::UNSENT { left[lane.to.node] } else { said };
            let last = scope.cluster.kill(node, sent).expect("it was up");
            scope.cluster.silence(|lane| lane.to.node == node);
            scope.cluster.tidy();
            world.ended(node, way, last);
            world.scope().decide();
            Ok(())
        }
        Step::Start(node) => {
            let scope = world.scope();
            scope.starts = scope.starts.map(|starts| starts - 1);
            // No message of the previous incarnation arrives any more.
            scope.cluster.silence(|lane| lane.from.node == node);
            world.start(node);
            world.scope().decide();
            Ok(())
        }
        Step::Own(own) => world.act(own),
    }
}

/// Takes a step; a panic is an error too.
fn attempt<W: World>(world: &mut W, step: Step<W::Own>) -> Result<(), String> {
    let result = catch_unwind(AssertUnwindSafe(|| take(world, step)));
    result.unwrap_or_else(|panic| Err(panicked(&*panic, None).what))
}

/// Takes the steps that are possible without events from outside, in one order, until the world is
/// at rest.
///
/// # Errors
/// The property that does not hold.
pub fn settle<W: World>(world: &mut W) -> Result<(), String> {
    loop {
        let open = steps(world);
        let inside = |step: &&Step<W::Own>| match step {
            Step::Deliver(_) | Step::Learn(_) => true,
            Step::Own(own) => !W::is_outside(own),
            Step::Miss(_) | Step::End(..) | Step::Start(_) => false,
        };
        let Some(step) = open.iter().find(inside) else { return Ok(()) };
        attempt(world, *step)?;
    }
}

/// The number of worlds that an exploration visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Worlds {
    /// All worlds.
    pub all: usize,
    /// The worlds at rest.
    pub at_rest: usize,
}

/// Visits every state that `first` leads to.
///
/// # Errors
/// The property that does not hold, and the steps that lead there.
pub fn explore<W: World>(first: W) -> Result<Worlds, String> {
    let mut known = HashSet::from([key(&first)]);
    let mut path = vec![(steps(&first), first)];
    let mut taken = Vec::new();
    let mut at_rest = 0;
    while let Some((open, world)) = path.last_mut() {
        let Some(step) = open.pop() else {
            path.pop();
            taken.pop();
            continue;
        };
        let mut next = world.clone();
        taken.push(step);
        attempt(&mut next, step).map_err(|what| format!("{what}, after {taken:?}"))?;
        if !known.insert(key(&next)) {
            taken.pop();
            continue;
        }
        let open = steps(&next);
        if is_at_rest(&next, &open) {
            at_rest += 1;
            next.rest().map_err(|what| format!("{what}, after {taken:?}"))?;
        }
        path.push((open, next));
    }
    Ok(Worlds { all: known.len(), at_rest })
}

/// Returns two 64-bit hashes: a collision among some ten million worlds is improbable.
fn key(world: &impl Hash) -> (u64, u64) {
    let mut hasher = Wide([1, 0x9e37_79b9_7f4a_7c15].map(Digest::new));
    world.hash(&mut hasher);
    hasher.0.map(Digest::value).into()
}

/// A hasher that computes two digests at once.
struct Wide([Digest; 2]);

impl Hasher for Wide {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(eight));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0.iter_mut().for_each(|digest| digest.add(number));
    }

    fn finish(&self) -> u64 {
        self.0[0].value()
    }
}
