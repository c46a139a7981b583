//! Definitions that need other rows, or that all rows must meet.

use std::rc::Rc;

use plexus_store::tree::ScanPlace;

use super::{
    Definer,
    index::{add_index, cannot_create},
};
use crate::{
    catalog::{Index, Table},
    dml::{Targets, foreign, insert_rows},
    error::{Result, SqlError, code},
    expr::Expr,
    spool::{Direction, OrderedRow, Spool, bytes_of},
    types::{Value, encode},
};

/// The most rows that are inserted together.
const MOST_ROWS: usize = 256;

/// The bytes of rows that are inserted together.
const MOST_BYTES: usize = 4 << 20;

/// Makes the error of one row that of a definition.
fn of_definition(mut error: SqlError, table: &Table) -> SqlError {
    let fields = error.fields.clone().unwrap_or_default();
    let name = &table.name;
    let message = match (error.code, fields.column, fields.constraint) {
        (code::NOT_NULL_VIOLATION, Some(column), _) => {
            format!("column \"{column}\" of relation \"{name}\" contains null values")
        }
        (code::CHECK_VIOLATION, _, Some(check)) => {
            format!("check constraint \"{check}\" of relation \"{name}\" is violated by some row")
        }
        _ => return cannot_create(error),
    };
    (error.message, error.detail) = (message, None);
    error
}

impl Definer<'_, '_> {
    /// Gives a table rows and indexes of new trees: each row consists of the values of these
    /// expressions over the old one.
    pub(super) async fn rewrite(&mut self, old: &Table, mut new: Table, values: &[Expr]) -> Result<()> {
        new.root = self.run.by.create_tree().await?.0;
        for index in &mut new.indexes {
            index.root = self.run.by.create_tree().await?.0;
        }
        // Those that are deferrable are checked when they have all rows.
        let late: Vec<Index> = new.indexes.extract_if(.., |index| index.deferral.is_some()).collect();
        let targets = Targets::alone(Rc::new(new))?;
        let new = targets.table().clone();
        let run = &mut *self.run;
        // Rows with a primary key come in its order, others as they were.
        let order = new.primary.iter().map(|_| Direction::RISING);
        let mut sorted = Spool::new(run.temporary, order);
        let mut place = Some(ScanPlace::from(&[]));
        while let Some(from) = place {
            let (rows, next) = run.by.scan(old.rows(), &from).await?;
            place = next;
            for (_, bytes) in rows.iter() {
                let row = encode::read_row(bytes, old.columns.len())?;
                let row = run.evaluate(values, &row).await?;
                let order = new.primary_key(&row)?.map(Value::Bytes).into_iter().collect();
                sorted.push(OrderedRow { order, row })?;
            }
        }
        let mut sorted = sorted.rows().await?.fuse();
        loop {
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while rows.len() < MOST_ROWS
                && bytes < MOST_BYTES
                && let Some(row) = sorted.next().transpose()?
            {
                bytes += bytes_of(&row);
                rows.push(row);
            }
            if rows.is_empty() {
                break;
            }
            let inserted = insert_rows(run, &targets, &mut rows).await;
            inserted.map_err(|(_, error)| of_definition(error, &new))?;
        }
        self.change(Some(old), Some(&new)).await?;
        for index in late {
            let table = self.table(&new.relation()).await?;
            add_index(self, &table, index).await?;
        }
        Ok(())
    }

    /// Checks that all rows meet the constraints of a table: NULL and checks.
    pub(super) async fn validate(&mut self, table: &Table) -> Result<()> {
        let targets = Targets::alone(Rc::new(table.clone()))?;
        let run = &mut *self.run;
        let mut place = Some(ScanPlace::from(&[]));
        while let Some(from) = place {
            let (rows, next) = run.by.scan(table.rows(), &from).await?;
            place = next;
            for (_, bytes) in rows.iter() {
                let mut row = encode::read_row(bytes, table.columns.len())?;
                let checked = targets.first().complete(&mut row, run.context);
                checked.map_err(|error| of_definition(error, table))?;
            }
        }
        Ok(())
    }

    /// Evaluates expressions over each row of a table, which may fail.
    pub(super) async fn each_row(&mut self, table: &Table, checked: &[Expr]) -> Result<()> {
        let run = &mut *self.run;
        let mut place = Some(ScanPlace::from(&[]));
        while let Some(from) = place {
            let (rows, next) = run.by.scan(table.rows(), &from).await?;
            place = next;
            for (_, bytes) in rows.iter() {
                let row = encode::read_row(bytes, table.columns.len())?;
                run.evaluate(checked, &row).await?;
            }
        }
        Ok(())
    }

    /// Checks that the rows are there that a foreign key of a table names.
    pub(super) async fn validate_foreign_key(&mut self, table: &Table, number: usize) -> Result<()> {
        let table = self.table(&table.relation()).await?;
        let (catalog, run) = (&mut *self.catalog, &mut *self.run);
        let targets = Targets::of(catalog, run.by, &table).await?;
        let mut place = Some(ScanPlace::from(&[]));
        while let Some(from) = place {
            let (rows, next) = run.by.scan(table.rows(), &from).await?;
            place = next;
            for (_, bytes) in rows.iter() {
                let row = encode::read_row(bytes, table.columns.len())?;
                foreign::check_row(run, &targets, number, &row).await?;
            }
        }
        Ok(())
    }
}
