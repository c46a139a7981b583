//! COPY of a session: rows from and to the client.

use plexus_store::tree::ScanPlace;
use sqlparser::ast;

use super::{Prepared, Session, locks::TableMode, no_transaction};
use crate::{
    bind::Parameters,
    catalog::Privilege,
    copy::{put_line, read_line},
    dml::{Targets, default_of, foreign, insert_rows},
    error::{Result, SqlError, code},
    exec::Run,
    expr::Expr,
    parse::{Copy, Statement},
    types::{Value, encode},
    wire::{MOST_BYTES, Received},
};

/// The most rows that are inserted together.
const MOST_ROWS: usize = 256;

/// Adds to an error which line of the data it is about.
fn at_line(error: SqlError, table: &str, line: u64) -> SqlError {
    match error.detail {
        None => error.with_detail(format!("COPY {table}, line {line}")),
        Some(_) => error,
    }
}

impl Session<'_> {
    /// Copies the rows of a query to the client.
    async fn copy_query(&mut self, query: &ast::Statement) -> Result<()> {
        let prepared = Prepared::new(Statement::Sql(Box::new(query.clone())));
        let (plan, _) = self.plan(&prepared).await?;
        let done = self.run(&plan, &[]).await?;
        let Some((columns, rows)) = done.rows else { return Err(SqlError::unsupported("this COPY")) };
        self.connection.out.copy(false, columns.len());
        let mut count = 0u64;
        for row in rows {
            let mut line = Vec::new();
            put_line(&mut line, row?.iter().zip(columns.iter().map(|column| column.of)));
            self.connection.out.copy_data(&line);
            self.connection.flush_if_full().await?;
            count += 1;
        }
        self.connection.out.empty(b'c');
        self.connection.out.complete(&format!("COPY {count}"));
        Ok(())
    }

    pub(super) async fn copy(&mut self, copy: &Copy) -> Result<()> {
        self.copy_rows(copy).await?;
        let (sets, _) = self.context.end_statement();
        self.set_sequences(sets).await
    }

    async fn copy_rows(&mut self, copy: &Copy) -> Result<()> {
        if let Some(query) = &copy.query {
            return self.copy_query(query).await;
        }
        if copy.is_from {
            self.modes.check_write("COPY FROM")?;
        }
        let mode = if copy.is_from { TableMode::Write } else { TableMode::Read };
        self.lock_named(std::slice::from_ref(&copy.table), mode).await?;
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let right = if copy.is_from { Privilege::Insert } else { Privilege::Select };
        let table = self.catalog.table_for(by, &copy.table, right).await?;
        if copy.is_from {
            table.check_changeable("copy to")?;
        }
        let is_given = |column: &usize| table.columns[*column].generated.is_none();
        let columns: Vec<usize> = match copy.columns.is_empty() {
            true => (0..table.columns.len()).filter(is_given).collect(),
            false => copy.columns.iter().map(|name| table.column(name)).collect::<Result<_>>()?,
        };
        if let Some(generated) = columns.iter().find(|column| !is_given(column)) {
            let message = format!("column \"{}\" is a generated column", table.columns[*generated].name);
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message)
                .with_detail("Generated columns cannot be used in COPY."));
        }
        let targets = Targets::of(&mut self.catalog, by, &table).await?;
        // Rows that are named stay, so their tables do.
        let (changed, read) = targets.others(false);
        let changed = changed.into_iter().map(|table| (table, TableMode::Write));
        let others: Vec<_> = changed.chain(read.into_iter().map(|table| (table, TableMode::Read))).collect();
        self.lock(&others).await?;
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        self.connection.out.copy(copy.is_from, columns.len());
        if !copy.is_from {
            let mut count = 0u64;
            let mut place = Some(ScanPlace::from(&[]));
            while let Some(from) = place {
                let (rows, next) = by.scan(table.rows(), &from).await?;
                place = next;
                for (_, bytes) in rows.iter() {
                    let row = encode::read_row(bytes, table.columns.len())?;
                    let mut line = Vec::new();
                    put_line(&mut line, columns.iter().map(|at| (&row[*at], table.columns[*at].of)));
                    self.connection.out.copy_data(&line);
                    count += 1;
                }
                self.connection.flush_if_full().await?;
            }
            self.connection.out.empty(b'c');
            self.connection.out.complete(&format!("COPY {count}"));
            return Ok(());
        }
        let named = Parameters::default();
        let default = |column: usize| match columns.contains(&column) {
            true => Ok(Expr::Value(Value::Null)),
            false => default_of(&table, column, &named),
        };
        let defaults: Vec<_> = (0..table.columns.len()).map(default).collect::<Result<_>>()?;
        self.catalog.find_sequences(by, named.sequences.take()).await?;
        let mut run = Run::new(by, &self.context, &self.ranges, &self.temporary);
        // The begin of a line whose end has not come yet.
        let mut rest: Vec<u8> = Vec::new();
        let (mut count, mut is_over) = (0u64, false);
        // The client sends all the same after an error, up to its end.
        let mut failed: Option<SqlError> = None;
        loop {
            let message = self.connection.receive().await?;
            let data = match message {
                Some(Received::CopyData(data)) => data,
                Some(Received::CopyDone) => break,
                Some(Received::CopyFail(why)) => {
                    let message = format!("COPY from stdin failed: {why}");
                    failed.get_or_insert(SqlError::new(code::QUERY_CANCELED, message));
                    break;
                }
                Some(Received::Flush | Received::Sync) => continue,
                Some(_) => {
                    let message = "unexpected message type during COPY from stdin";
                    return Err(SqlError::new(code::PROTOCOL_VIOLATION, message));
                }
                None => return Err(SqlError::new("08006", "the client has ended the connection")),
            };
            if failed.is_some() || is_over {
                continue;
            }
            rest.extend(data);
            if rest.len() > 2 * MOST_BYTES {
                let message = "a line of COPY is longer than 64 MiB";
                failed = Some(SqlError::new(code::PROGRAM_LIMIT, message));
                continue;
            }
            let mut at = 0;
            let mut rows: Vec<Vec<Value>> = Vec::new();
            while let Some(end) = rest[at..].iter().position(|byte| *byte == b'\n') {
                let line = &rest[at..at + end];
                at += end + 1;
                if line.strip_suffix(b"\r").unwrap_or(line) == b"\\." {
                    is_over = true;
                    break;
                }
                let read = async {
                    let mut row = run.evaluate(&defaults, &[]).await?;
                    for (column, value) in read_line(line, &table, &columns)? {
                        row[column] = value;
                    }
                    Ok::<_, SqlError>(row)
                };
                match read.await {
                    Ok(row) => rows.push(row),
                    Err(error) => {
                        failed = Some(at_line(error, &table.name, count + rows.len() as u64 + 1));
                        break;
                    }
                }
                if rows.len() >= MOST_ROWS {
                    let inserted = insert_rows(&mut run, &targets, &mut rows).await;
                    if let Err((row, error)) = inserted {
                        failed = Some(at_line(error, &table.name, count + row as u64 + 1));
                    }
                    count += rows.len() as u64;
                    rows.clear();
                    if failed.is_some() {
                        break;
                    }
                }
            }
            // An earlier line counts, if both fail.
            if let Err((row, error)) = insert_rows(&mut run, &targets, &mut rows).await {
                failed = Some(at_line(error, &table.name, count + row as u64 + 1));
            }
            count += rows.len() as u64;
            rest.drain(..at);
        }
        match failed {
            Some(error) => Err(error),
            None if !rest.is_empty() && !is_over => {
                Err(SqlError::new(code::BAD_COPY, "the last line of COPY has no end"))
            }
            None => {
                foreign::finish(&mut run, &targets).await?;
                self.connection.out.complete(&format!("COPY {count}"));
                Ok(())
            }
        }
    }
}
