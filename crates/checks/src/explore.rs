//! Small scope, all of it: every world that any order of steps leads to.

use std::{
    collections::HashSet,
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
