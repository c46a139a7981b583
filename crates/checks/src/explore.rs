//! Small scope, all of it: every world that any order of steps leads to.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

/// A state of everything, and what can happen next.
pub trait World: Clone + Hash {
    /// Something that can happen.
    type Step: Copy + Debug;

    /// All that can happen now.
    fn steps(&self) -> Vec<Self::Step>;

    /// Whether nothing follows by itself: these steps come from outside.
    fn is_at_rest(steps: &[Self::Step]) -> bool;

    /// It happens.
    ///
    /// # Errors
    /// What does not hold.
    fn take(&mut self, step: Self::Step) -> Result<(), String>;

    /// What must hold where nothing follows by itself.
    ///
    /// # Errors
    /// What does not hold.
    fn rest(&self) -> Result<(), String>;
}

/// What is under way between nodes: in order from each to each.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lanes<M>(BTreeMap<(usize, usize), VecDeque<M>>);

impl<M> Default for Lanes<M> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<M> Lanes<M> {
    /// A message leaves.
    pub fn push(&mut self, from: usize, to: usize, message: M) {
        self.0.entry((from, to)).or_default().push_back(message);
    }

    /// From whom to whom something is under way.
    pub fn busy(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.keys().copied()
    }

    /// How much is.
    #[must_use]
    pub fn len(&self, from: usize, to: usize) -> usize {
        self.0.get(&(from, to)).map_or(0, VecDeque::len)
    }

    /// The next message arrives.
    ///
    /// # Panics
    /// Nothing is under way.
    pub fn pop(&mut self, from: usize, to: usize) -> M {
        let lane = self.0.get_mut(&(from, to)).expect("a lane with messages");
        let message = lane.pop_front().expect("a message");
        self.tidy();
        message
    }

    /// A node has ended: nothing arrives there, and of what it said last to each node only so much has left it.
    pub fn end(&mut self, node: usize, left: impl Fn(usize) -> usize) {
        self.0.retain(|(_, to), _| *to != node);
        for ((_, to), lane) in self.0.iter_mut().filter(|((from, _), _)| *from == node) {
            lane.truncate(left(*to));
        }
        self.tidy();
    }

    /// Worlds that differ in nothing are the same.
    fn tidy(&mut self) {
        self.0.retain(|_, lane| !lane.is_empty());
    }

    /// Nothing that an incarnation of a node has said is heard any more: its next one begins.
    pub fn silence(&mut self, node: usize) {
        self.0.retain(|(from, _), _| *from != node);
    }
}

/// How many worlds there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Worlds {
    /// In all.
    pub all: usize,
    /// Of them at rest.
    pub at_rest: usize,
}

/// Goes through all that `first` leads to.
///
/// # Errors
/// What does not hold, and the steps that lead to it.
pub fn explore<W: World>(first: W) -> Result<Worlds, String> {
    let mut known = HashSet::from([key(&first)]);
    let mut path = vec![(first.steps(), first)];
    let mut taken = Vec::new();
    let mut at_rest = 0;
    while let Some((steps, world)) = path.last_mut() {
        let Some(step) = steps.pop() else {
            path.pop();
            taken.pop();
            continue;
        };
        let mut next = world.clone();
        taken.push(step);
        next.take(step).map_err(|what| format!("{what}, after {taken:?}"))?;
        if !known.insert(key(&next)) {
            taken.pop();
            continue;
        }
        let steps = next.steps();
        if W::is_at_rest(&steps) {
            at_rest += 1;
            next.rest().map_err(|what| format!("{what}, after {taken:?}"))?;
        }
        path.push((steps, next));
    }
    Ok(Worlds { all: known.len(), at_rest })
}

/// Two hashes of 64 bits: among some ten million worlds no two are taken for one.
fn key(world: &impl Hash) -> (u64, u64) {
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, world).hash(&mut hasher);
        hasher.finish()
    };
    (hash(0), hash(1))
}
