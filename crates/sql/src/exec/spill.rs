//! Rows that go to a file when they take much memory, in the order of a hash of their keys. Rows
//! with equal keys come back together, so that few are in memory at once.

use std::hash::BuildHasher;

use foldhash::{HashSet, fast::FixedState};

use super::Run;
use crate::{
    error::Result,
    spool::{Direction, OrderedRow, Rows, Spool},
    types::Value,
};

/// Rows on their way to a file.
pub(super) struct Spilled(Spool);

impl Spilled {
    pub(super) fn new(run: &Run<'_>) -> Self {
        Self(Spool::new(run.temporary, [Direction::RISING]))
    }

    /// Adds a row with its key.
    pub(super) fn push(&mut self, key: &[u8], mut row: Vec<Value>) -> Result<()> {
        let hash = Value::Int(FixedState::default().hash_one(key) as i64);
        row.push(hash.clone());
        self.0.push(OrderedRow { order: vec![hash], row })
    }

    pub(super) async fn rows(self) -> Result<SpilledRows> {
        Ok(SpilledRows { rows: self.0.rows().await?, next: None })
    }
}

/// Rows in the order of the hashes of their keys.
pub(super) struct SpilledRows {
    rows: Rows,
    next: Option<(i64, Vec<Value>)>,
}

impl SpilledRows {
    /// Returns the hash of the next row.
    pub(super) fn hash(&mut self) -> Result<Option<i64>> {
        if self.next.is_none()
            && let Some(mut row) = self.rows.next().transpose()?
            && let Some(Value::Int(hash)) = row.pop()
        {
            self.next = Some((hash, row));
        }
        Ok(self.next.as_ref().map(|(hash, _)| *hash))
    }

    /// Returns the next row, if its hash is not greater.
    pub(super) fn next_up_to(&mut self, most: i64) -> Result<Option<Vec<Value>>> {
        let is_next = self.hash()?.is_some_and(|hash| hash <= most);
        Ok(self.next.take_if(|_| is_next).map(|(_, row)| row))
    }
}

/// The keys of rows of which each is given once. Those for which there is no memory wait until the
/// end.
pub(super) struct DistinctKeys {
    seen: HashSet<Vec<u8>>,
    bytes: usize,
    most: usize,
    waiting: Option<Spilled>,
}

impl DistinctKeys {
    pub(super) fn new(run: &Run<'_>) -> Self {
        Self { seen: HashSet::default(), bytes: 0, most: run.work_mem(), waiting: None }
    }

    /// Returns whether a key is new. If that is not known before the end, `row` waits for it.
    pub(super) fn is_new(
        &mut self,
        run: &mut Run<'_>,
        key: Vec<u8>,
        row: impl FnOnce() -> Vec<Value>,
    ) -> Result<bool> {
        if self.bytes >= self.most {
            if !self.seen.contains(&key) {
                let row = [vec![Value::Bytes(key.clone())], row()].concat();
                self.waiting.get_or_insert_with(|| Spilled::new(run)).push(&key, row)?;
            }
            return Ok(false);
        }
        let bytes = size_of::<Vec<u8>>() + key.len();
        let is_new = self.seen.insert(key);
        if is_new {
            self.bytes += bytes;
            run.keep_bytes(bytes)?;
        }
        Ok(is_new)
    }

    /// Ends it. Calls `act` with the first row of each key among those that wait.
    pub(super) async fn end(
        self,
        run: &mut Run<'_>,
        mut act: impl FnMut(Vec<Value>) -> Result<()>,
    ) -> Result<()> {
        run.memory -= self.bytes;
        let Some(waiting) = self.waiting else { return Ok(()) };
        let (mut waiting, mut seen, mut present) = (waiting.rows().await?, HashSet::default(), None);
        while let Some(hash) = waiting.hash()? {
            if present.replace(hash) != Some(hash) {
                seen.clear();
            }
            let Some(mut row) = waiting.next_up_to(hash)? else { break };
            let rest = row.split_off(1);
            if let Some(Value::Bytes(key)) = row.pop()
                && seen.insert(key)
            {
                act(rest)?;
            }
        }
        Ok(())
    }
}
