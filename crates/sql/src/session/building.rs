//! CREATE INDEX CONCURRENTLY: writers go on while the index gets its entries.
//!
//! One transaction adds the empty index. From its end on, each change of a row makes the entries of
//! the row in the index, too, and nobody looks anything up in it. Many short transactions then lock
//! some rows each and make their entries. A row that changes before is complete, and its entry is
//! left as it is; one that changes behind has an entry, which the change removes. The last
//! transaction lets readers use the index. If one fails, the index stays as it is and is not used,
//! like one of PostgreSQL that is not valid: DROP INDEX removes it.

use std::rc::Rc;

use plexus_store::tree::ScanPlace;
use sqlparser::ast;

use super::{Session, locks::TableMode, no_transaction};
use crate::{
    catalog::{Table, undefined},
    ddl::{self, Definer},
    dml::{self, Targets},
    error::{Result, fail},
    exec::Run,
    parse::relation,
};

/// The rows for which a transaction makes entries, about.
const BATCH: usize = 1000;

impl Session<'_> {
    /// Refuses CREATE INDEX CONCURRENTLY in a transaction block.
    pub(super) fn check_building(&self, statement: &ast::Statement) -> Result<()> {
        match statement {
            ast::Statement::CreateIndex(create) if create.concurrently && self.is_explicit => {
                fail!(ACTIVE_TRANSACTION, "CREATE INDEX CONCURRENTLY cannot run inside a transaction block")
            }
            _ => Ok(()),
        }
    }

    /// Fills an index that a statement has added, and lets readers use it.
    pub(super) async fn build_index(&mut self, create: &ast::CreateIndex, index: &str) -> Result<()> {
        let table = relation(&create.table_name)?;
        self.end(true).await?;
        let mut place = Some(ScanPlace::from(&[]));
        while place.is_some() {
            self.lock_named(std::slice::from_ref(&table), TableMode::Write).await?;
            let (found, at) = self.building(&table, index).await?;
            let targets = Targets::alone(found)?;
            let mut run = self.statement(&[])?;
            let mut keys = Vec::new();
            while let Some(from) = place.take_if(|_| keys.len() < BATCH) {
                let (rows, next) = run.by.scan(targets.table().rows(), &from).await?;
                keys.extend(rows.iter().map(|(key, _)| key.to_vec()));
                place = next;
            }
            let filled = dml::fill_index(&mut run, &targets, at, keys).await;
            filled.map_err(ddl::cannot_create)?;
            self.end(true).await?;
        }
        self.lock_named(std::slice::from_ref(&table), TableMode::Define).await?;
        let (table, _) = self.building(&table, index).await?;
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let mut run = Run::new(by, &self.context, &self.ranges, &self.temporary);
        let mut define = Definer { run: &mut run, catalog: &mut self.catalog, notices: Vec::new() };
        ddl::end_building(&mut define, &table, index).await
    }

    /// Returns the table of an index that is being built, and the number of the index.
    async fn building(&mut self, table: &str, index: &str) -> Result<(Rc<Table>, usize)> {
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let table = self.catalog.find(by, table).await?.ok_or_else(|| undefined(table))?;
        let at = table.indexes.iter().position(|known| known.name == index && known.is_building);
        Ok((table, at.ok_or_else(|| undefined(index))?))
    }
}
