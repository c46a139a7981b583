//! A simulated disk: it executes its requests in order, and a write that is executed is durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    super::{super::map::UNIT_BYTES, DiskAnswer, DiskOp},
    STREAM_AT,
};

/// The contents of a block: a version, and the incarnation that has written it. For a stream, the
/// version is its length. The default is a block that was never written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Value {
    pub(super) version: u64,
    pub(super) writer: u64,
}

/// The contents of one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cell {
    Whole(Value),
    Torn,
}

/// The bytes of a request: one block, or the places of a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Data {
    Block(Cell),
    Unit(BTreeMap<u32, Cell>),
}

#[derive(Debug)]
pub(super) struct Job {
    /// The node that executes it, and its incarnation.
    pub(super) at: usize,
    pub(super) by: u64,
    pub(super) ticket: u64,
    pub(super) slot: u32,
    pub(super) op: DiskOp<Data>,
    pub(super) notes: bool,
}

/// The end of an execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Done,
    /// Nothing is done, but the dirty bit may be set.
    Failed,
    /// A write leaves a part of it.
    Torn,
    /// It is done and reported as failed.
    Unsure,
}

#[derive(Default)]
pub(super) struct Disk {
    /// The identifier on its label.
    pub(super) id: u128,
    /// The last two openings on its label.
    pub(super) label: [u64; 2],
    cells: BTreeMap<(u32, u32), Cell>,
    bits: BTreeSet<(u32, u32)>,
    pub(super) queue: VecDeque<Job>,
    /// It executes nothing before.
    pub(super) hangs_until: u64,
}

impl Disk {
    pub(super) fn new(id: u128) -> Self {
        Self { id, ..Self::default() }
    }

    pub(super) fn cell(&self, slot: u32, offset: u32) -> Cell {
        self.cells.get(&(slot, offset)).copied().unwrap_or(Cell::Whole(Value::default()))
    }

    /// Returns all places of a slot that were written.
    pub(super) fn slot(&self, slot: u32) -> BTreeMap<u32, Cell> {
        let cells = self.cells.range((slot, 0)..(slot + 1, 0));
        let written = cells.filter(|(_, cell)| **cell != Cell::Whole(Value::default()));
        written.map(|((_, offset), cell)| (*offset, *cell)).collect()
    }

    pub(super) fn execute(&mut self, job: &Job, outcome: Outcome) -> DiskAnswer<Data> {
        let Job { slot, op, notes, .. } = job;
        let slot = *slot;
        if let DiskOp::Write { offset, .. } | DiskOp::Read { offset, .. } = op
            && *notes
        {
            self.bits.insert((slot, offset / UNIT_BYTES));
        }
        match outcome {
            Outcome::Done => self.done(slot, op),
            Outcome::Unsure => {
                self.done(slot, op);
                DiskAnswer::Failed("unsure".to_owned())
            }
            Outcome::Failed => DiskAnswer::Failed("failed".to_owned()),
            Outcome::Torn => {
                self.tear(slot, op);
                DiskAnswer::Failed("torn".to_owned())
            }
        }
    }

    fn done(&mut self, slot: u32, op: &DiskOp<Data>) -> DiskAnswer<Data> {
        match op {
            DiskOp::Write { offset, data: Data::Block(cell) } => {
                self.cells.insert((slot, *offset), *cell);
                DiskAnswer::Done
            }
            DiskOp::Write { offset, data: Data::Unit(cells) } => {
                self.cells.retain(|(of, at), _| *of != slot || at / UNIT_BYTES != offset / UNIT_BYTES);
                self.cells.extend(cells.iter().map(|(at, cell)| ((slot, *at), *cell)));
                DiskAnswer::Done
            }
            DiskOp::Read { offset, length, .. } if *length == UNIT_BYTES => {
                let cells = self.cells.range((slot, *offset)..(slot, offset + length));
                DiskAnswer::Read(Data::Unit(cells.map(|((_, at), cell)| (*at, *cell)).collect()))
            }
            DiskOp::Read { offset, .. } => DiskAnswer::Read(Data::Block(self.cell(slot, *offset))),
            DiskOp::Dirty => {
                let bits = self.bits.range((slot, 0)..(slot + 1, 0));
                DiskAnswer::Dirty(bits.map(|(_, unit)| *unit).collect())
            }
            DiskOp::Clean { unit } => {
                self.bits.remove(&(slot, *unit));
                DiskAnswer::Done
            }
        }
    }

    /// Leaves a part of a write. A stream keeps what it had: a part of a batch does not count.
    fn tear(&mut self, slot: u32, op: &DiskOp<Data>) {
        let DiskOp::Write { offset, data } = op else { return };
        let places: Vec<_> = match data {
            Data::Block(_) => vec![*offset],
            Data::Unit(cells) => cells.keys().copied().collect(),
        };
        for place in places.into_iter().filter(|place| *place != STREAM_AT) {
            self.cells.insert((slot, place), Cell::Torn);
        }
    }
}
