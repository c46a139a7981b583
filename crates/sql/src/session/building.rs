//! CREATE INDEX CONCURRENTLY: writers go on while the index gets its entries.
//!
//! One transaction adds the empty index. From its end on, each change of a row makes the entries
//! of the row in the index, too, and no query reads the index. Many short transactions then lock
//! some rows each and make their entries. A row that changes before is complete, and its entry is
//! left as it is; one that changes behind has an entry, which the change removes. None waits for
//! another transaction while it has a lock of a row. The last transaction lets readers use the
//! index. If one fails, the index stays as it is and is not used, like one of PostgreSQL that is
//! not valid: DROP INDEX removes it.

use std::{collections::VecDeque, rc::Rc};

use plexus_store::tree::ScanPlace;
use sqlparser::ast;

use super::{Session, locks::TableMode, modes::Modes, no_transaction};
use crate::{
    catalog::{Index, Table, undefined},
    ddl::{self, Definer},
    dml::{self, Targets},
    error::{Result, error, fail},
    exec::Run,
    parse::relation,
};

/// The rows for which a transaction makes entries, about.
const BATCH: usize = 1000;

impl Session<'_> {
    /// Refuses a statement in a transaction block, or behind changes that are not committed.
    pub(super) fn check_alone(&self, what: &str) -> Result<()> {
        match self.is_explicit || self.transaction.as_ref().is_some_and(|by| !by.is_new()) {
            true => fail!(ACTIVE_TRANSACTION, "{what} cannot run inside a transaction block"),
            false => Ok(()),
        }
    }

    /// Fills an index that a statement has added, and lets readers use it.
    pub(super) async fn build_index(&mut self, create: &ast::CreateIndex, index: &str) -> Result<()> {
        let name = relation(&create.table_name)?;
        let (table, at) = self.building(&name, None, index).await?;
        let (rows, known) = (table.rows(), Some((table.id, table.indexes[at].root)));
        // Another statement may give them other names.
        let (mut name, mut index) = (table.relation().qualified(), table.indexes[at].name.clone());
        self.end(true).await?;
        let mut place = Some(Vec::new());
        let mut keys = VecDeque::new();
        while place.is_some() || !keys.is_empty() {
            // The newest contents of rows are to be locked, whatever the session is set to.
            self.set_modes(Modes::default());
            self.lock_named(std::slice::from_ref(&name), TableMode::Write).await?;
            let (table, at) = self.building(&name, known, &index).await?;
            if table.relation().qualified() != name {
                name = table.relation().qualified();
                self.end(true).await?;
                continue;
            }
            index.clone_from(&table.indexes[at].name);
            let targets = Targets::alone(table)?;
            let mut run = self.statement(&[])?;
            while let Some(from) = place.take_if(|_| keys.len() < BATCH) {
                let (found, next) = run.by.scan(rows, &ScanPlace::from(&from)).await?;
                keys.extend(found.iter().map(|(key, _)| key.to_vec()));
                place = next.map(|next| next.key().to_vec());
            }
            dml::fill_index(&mut run, &targets, at, &mut keys).await.map_err(ddl::cannot_create)?;
            self.end(true).await?;
        }
        self.end(true).await?;
        self.lock_named(std::slice::from_ref(&name), TableMode::Define).await?;
        let (table, at) = self.building(&name, known, &index).await?;
        let index = table.indexes[at].name.clone();
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let mut run = Run::new(by, &self.context, &self.ranges, &self.temporary);
        let mut define = Definer { run: &mut run, catalog: &mut self.catalog, notices: Vec::new() };
        ddl::end_building(&mut define, &table, &index).await
    }

    /// Returns the table of an index that is being built, and the number of the index. If they have
    /// other names by now, the number of the table and the root of the index tell them.
    ///
    /// # Errors
    /// One of them was dropped, or the whole table was written again, which gives the index another
    /// root.
    async fn building(
        &mut self,
        name: &str,
        known: Option<(u64, u64)>,
        index: &str,
    ) -> Result<(Rc<Table>, usize)> {
        let id = known.map(|(id, _)| id);
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let mut table = self.catalog.find(by, name).await?;
        if table.as_ref().is_none_or(|table| id.is_some_and(|id| table.id != id)) {
            let all = self.catalog.tables(by).await?;
            table = all.into_iter().find(|table| Some(table.id) == id).map(Rc::new);
        }
        let table = table.ok_or_else(|| undefined(name))?;
        let is_it = |of: &Index| match known {
            Some((_, root)) => of.root == root,
            None => of.name == index,
        };
        match table.indexes.iter().position(|of| of.is_building && is_it(of)) {
            Some(at) => Ok((table, at)),
            None => {
                let message = format!("the index \"{index}\" was dropped, or its table was written again");
                let hint = "If the index is there and not valid, drop it, and make it again.";
                Err(error!(NOT_IN_STATE, "{message}").with_hint(hint))
            }
        }
    }
}
