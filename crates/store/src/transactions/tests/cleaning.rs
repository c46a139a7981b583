//! Cleaning in the simulation: rows are cleaned at any moment, and status blocks become free.

use super::*;

/// A pass over all rows.
pub(super) struct Pass {
    by: Incarnation,
    epoch: Epoch,
    /// The first status block that was not taken at its begin.
    next: u32,
    answers: [BTreeMap<Incarnation, u32>; 2],
    /// The next row to clean.
    row: usize,
}

/// The value of a row before a node cleaned it, which is lost with the node.
pub(super) type BeforeCleaning = (Incarnation, Vec<u8>);

impl World {
    /// Gives a node a status block.
    pub(super) fn take_block(&mut self, at: usize, since: Epoch) {
        let block = self.next_block;
        self.next_block += 1;
        let node = self.nodes[at].as_mut().unwrap();
        let home = Home { node: NodeId(at as u8), incarnation: node.incarnation, since };
        node.core.learn_home(block, home);
        (node.block, node.next_slot) = (block, 1);
        self.homes.insert(block, home);
    }

    /// Cleans a row. Returns false if something about it must be found out first.
    pub(super) fn clean(&mut self, at: usize, row: usize, final_before: u32) -> bool {
        let core = &self.nodes[at].as_ref().unwrap().core;
        let (horizon, mut unknown) = (core.horizon(), Vec::new());
        let status = |id, snapshot| core.status(id, snapshot);
        let change =
            rows::clean(&self.rows[row], &horizon, core.clock(), final_before, status, &mut unknown).unwrap();
        for Unknown { id, snapshot, way } in &unknown {
            match way {
                StatusPath::FindHome => {
                    let home = self.homes.get(&id.status_block()).copied();
                    let home = home.expect("T7: a row names a transaction of a block that is free");
                    self.node(at).core.learn_home(id.status_block(), home);
                }
                StatusPath::ReadSlot => {
                    let status =
                        self.slots.get(id).map_or(Status::Aborted, |slot| Status::Committed(slot.number));
                    self.node(at).core.learn(*id, status);
                }
                StatusPath::Ask => {
                    let token = self.token(at);
                    self.node(at).core.ask(*id, *snapshot, None, token);
                    self.settle(at);
                }
                StatusPath::Known(_) => {}
            }
        }
        let before = match change {
            EntryChange::Keep => return unknown.is_empty(),
            EntryChange::Set(new) => std::mem::replace(&mut self.rows[row], new),
            EntryChange::Remove => std::mem::take(&mut self.rows[row]),
        };
        self.granted(at, row);
        let by = self.nodes[at].as_ref().unwrap().incarnation;
        // What an earlier node has cleaned comes with its redo.
        self.before_cleaning[row] = Some((by, before));
        self.cleaned += 1;
        unknown.is_empty()
    }

    /// Makes durable what a node has cleaned.
    pub(super) fn flush_cleaning(&mut self, at: usize) {
        let by = self.nodes[at].as_ref().unwrap().incarnation;
        for before in &mut self.before_cleaning {
            before.take_if(|(cleaner, _)| *cleaner == by);
        }
    }

    /// Loses what a node has cleaned, perhaps.
    pub(super) fn lose_cleaning(&mut self, dead: Incarnation) {
        for row in 0..ROWS {
            if let Some((_, before)) = self.before_cleaning[row].take_if(|(cleaner, _)| *cleaner == dead)
                && self.chance(70)
            {
                self.rows[row] = before;
            }
        }
    }

    fn answer(&mut self, at: usize, round: usize) {
        self.flush_cleaning(at);
        let incarnation = self.nodes[at].as_ref().unwrap().incarnation;
        let oldest = self.node(at).core.oldest().unwrap_or(u32::MAX);
        if let Some(pass) = &mut self.pass {
            pass.answers[round].insert(incarnation, oldest);
        }
        let since = self.homes[&self.nodes[at].as_ref().unwrap().block].since;
        self.take_block(at, since);
    }

    /// Lets a node do the next step of a pass: begin one, answer, clean a row, or end it.
    pub(super) fn pass(&mut self, at: usize) {
        if !self.may_work(at) {
            return;
        }
        let Node { core, incarnation, .. } = self.nodes[at].as_ref().unwrap();
        let (me, is_first) = (*incarnation, core.is_first());
        self.pass.take_if(|pass| pass.epoch != self.epoch);
        let open: Vec<Incarnation> =
            self.nodes.iter().flatten().filter(|node| node.is_open).map(|node| node.incarnation).collect();
        let Some(pass) = &mut self.pass else {
            if is_first {
                let (epoch, next) = (self.epoch, self.next_block);
                self.pass = Some(Pass { by: me, epoch, next, answers: Default::default(), row: 0 });
            }
            return;
        };
        let round = usize::from(pass.row == ROWS);
        if !pass.answers[round].contains_key(&me) {
            return self.answer(at, round);
        }
        let is_complete = open.iter().all(|node| pass.answers[round].contains_key(node));
        if pass.by != me || !is_complete {
            return;
        }
        let first = pass.answers[0].values().copied().fold(pass.next, u32::min);
        if round == 0 {
            let row = pass.row;
            if self.clean(at, row, first) {
                let writers = rows::writers(&self.rows[row]).unwrap();
                assert!(
                    writers.iter().all(|id| id.status_block() >= first),
                    "a row names an old transaction"
                );
                self.pass.as_mut().unwrap().row += 1;
            }
            return;
        }
        self.pass = None;
        self.first_block = first;
        self.slots.retain(|id, _| id.status_block() >= first);
        self.homes.retain(|block, _| *block >= first);
        for node in self.nodes.iter_mut().flatten() {
            if self.random.percent(50) {
                node.core.forget_homes(first);
            }
        }
    }
}
