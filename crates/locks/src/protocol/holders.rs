//! The holders of a resource and their modes: mostly one, sometimes thousands.
//!
//! One holder needs no allocation. Several are a list, and a large list has an index.

use std::collections::BTreeMap;

use super::{
    MODES, Mode, Token,
    resource::{ClusterLockId, Holder},
};

/// Up to this number of holders a linear search is used.
const FEW: usize = 16;

/// The holders of a resource, in no order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Holders {
    #[default]
    None,
    One(Holder),
    Many(Box<Many>),
}

impl Holders {
    pub(super) fn as_slice(&self) -> &[Holder] {
        match self {
            Self::None => &[],
            Self::One(holder) => std::slice::from_ref(holder),
            Self::Many(many) => &many.list,
        }
    }

    pub(super) fn find(&self, who: ClusterLockId) -> Option<&Holder> {
        match self {
            Self::Many(many) => many.place(who).map(|at| &many.list[at]),
            few => few.as_slice().iter().find(|holder| holder.who == who),
        }
    }

    /// Returns a holder to mark as notified. Use [`Holders::change`] to change its mode.
    pub(super) fn find_mut(&mut self, who: ClusterLockId) -> Option<&mut Holder> {
        match self {
            Self::Many(many) => many.place(who).map(|at| &mut many.list[at]),
            few => few.iter_mut().find(|holder| holder.who == who),
        }
    }

    /// Returns all holders to mark as notified.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Holder> {
        let list = match self {
            Self::None => &mut [],
            Self::One(holder) => std::slice::from_mut(holder),
            Self::Many(many) => &mut many.list[..],
        };
        list.iter_mut()
    }

    /// True if `mode` is compatible with all holders, without one holder of mode `except`.
    pub(super) fn go_with(&self, mode: Mode, except: Option<Mode>) -> bool {
        match self {
            Self::None => true,
            Self::One(holder) => except == Some(holder.mode) || mode.is_compatible_with(holder.mode),
            Self::Many(many) => Mode::ALL.into_iter().all(|other| {
                let own = u32::from(except == Some(other));
                many.held[other.index()] == own || mode.is_compatible_with(other)
            }),
        }
    }

    /// Gives a lock another mode and returns the changed holder.
    pub(super) fn change(
        &mut self,
        who: ClusterLockId,
        seq: u32,
        mode: Mode,
        token: Token,
    ) -> Option<Holder> {
        let holder = self.find_mut(who)?;
        let before = holder.mode;
        *holder = Holder { seq, mode, token, told: false, ..*holder };
        let changed = *holder;
        if let Self::Many(many) = self {
            many.held[before.index()] -= 1;
            many.held[mode.index()] += 1;
        }
        Some(changed)
    }

    /// Adds a holder that is not there yet.
    pub(super) fn add(&mut self, holder: Holder) {
        match self {
            Self::None => *self = Self::One(holder),
            Self::One(first) => {
                let (list, index) = (vec![*first, holder], BTreeMap::new());
                let mut held = [0; MODES];
                list.iter().for_each(|holder| held[holder.mode.index()] += 1);
                *self = Self::Many(Box::new(Many { list, index, held }));
            }
            Self::Many(many) => many.add(holder),
        }
    }

    pub(super) fn remove(&mut self, who: ClusterLockId) -> Option<Holder> {
        let holder = match self {
            Self::Many(many) => many.remove(who),
            few => return few.find(who).copied().inspect(|_| *few = Self::None),
        };
        if let [last] = *self.as_slice() {
            *self = Self::One(last);
        }
        holder
    }
}

/// Two holders or more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Many {
    list: Vec<Holder>,
    /// The index of each holder in the list; empty as long as they are few.
    index: BTreeMap<ClusterLockId, usize>,
    /// The number of holders in each mode.
    held: [u32; MODES],
}

impl Many {
    fn place(&self, who: ClusterLockId) -> Option<usize> {
        if self.index.is_empty() {
            self.list.iter().position(|holder| holder.who == who)
        } else {
            self.index.get(&who).copied()
        }
    }

    fn add(&mut self, holder: Holder) {
        self.held[holder.mode.index()] += 1;
        self.list.push(holder);
        if !self.index.is_empty() {
            self.index.insert(holder.who, self.list.len() - 1);
        } else if self.list.len() > FEW {
            self.index = self.list.iter().enumerate().map(|(at, holder)| (holder.who, at)).collect();
        }
    }

    fn remove(&mut self, who: ClusterLockId) -> Option<Holder> {
        let at = self.place(who)?;
        let holder = self.list.swap_remove(at);
        self.held[holder.mode.index()] -= 1;
        self.index.remove(&who);
        if self.list.len() <= FEW / 2 {
            self.index.clear();
        } else if let Some(moved) = self.list.get(at)
            && !self.index.is_empty()
        {
            self.index.insert(moved.who, at);
        }
        Some(holder)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use plexus_base::NodeId;
    use plexus_sim::Random;

    use super::{
        super::{LockId, Mode, Token},
        *,
    };

    fn who(number: u64) -> ClusterLockId {
        ClusterLockId { node: NodeId((number % 3) as u8), lock: LockId(number) }
    }

    #[test]
    fn holders_are_a_set_at_any_size() {
        let mut random = Random::new(7);
        let (mut holders, mut model) = (Holders::default(), BTreeSet::new());
        for round in 0..4_000 {
            // The set grows up to forty holders and shrinks to none, several times.
            let grows = random.percent(if round / 500 % 2 == 0 { 60 } else { 40 });
            let one = who(random.below(40));
            if grows && model.insert(one) {
                let (mode, token, seq) = (*random.pick(&Mode::ALL), Token(1), 1);
                holders.add(Holder { who: one, mode, token, seq, notify: false, told: false });
            } else if grows {
                let (mode, seq) = (*random.pick(&Mode::ALL), round);
                let changed = holders.change(one, seq, mode, Token(2)).expect("it is there");
                assert_eq!((changed.who, changed.mode, changed.seq), (one, mode, seq));
            } else {
                assert_eq!(holders.remove(one).map(|holder| holder.who), model.take(&one));
            }
            assert!((0..40).map(who).all(|who| holders.find(who).is_some() == model.contains(&who)));
            let list: BTreeSet<ClusterLockId> = holders.as_slice().iter().map(|holder| holder.who).collect();
            assert_eq!((list, holders.as_slice().len()), (model.clone(), model.len()));
            assert!(holders.as_slice().iter().all(|holder| holders.find(holder.who) == Some(holder)));
            // Compatible with all holders, and, leaving the first out, with all others.
            let (all, first) = (holders.as_slice(), holders.as_slice().first());
            for mode in Mode::ALL {
                let goes = |with: &[Holder]| with.iter().all(|holder| mode.is_compatible_with(holder.mode));
                assert_eq!(holders.go_with(mode, None), goes(all));
                assert!(first.is_none_or(|first| holders.go_with(mode, Some(first.mode)) == goes(&all[1..])));
            }
        }
    }
}
