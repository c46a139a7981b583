//! COPY of a session: rows from and to the client.

use plexus_store::tree::ScanPlace;
use sqlparser::ast;

use super::{Prepared, Session, locks::TableMode, no_transaction};
use crate::{
    bind::{Parameters, coerce, select::ResultColumn},
    catalog::{Privilege, Table},
    copy::{CopyColumn, CopyReader},
    dml::{Targets, default_of, foreign, insert_rows},
    error::{Result, SqlError, code, error, fail},
    exec::Run,
    expr::Expr,
    parse::{Copy, Statement},
    types::{Type, Value, encode},
    wire::Received,
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
    async fn copy_query(&mut self, query: &ast::Statement, copy: &Copy) -> Result<String> {
        let prepared = Prepared::new(Statement::Sql(Box::new(query.clone())));
        let (plan, _) = self.plan(&prepared).await?;
        let done = self.run(&plan, &[]).await?;
        let Some((columns, rows)) = done.rows else { return Err(SqlError::unsupported("this COPY")) };
        let copied = columns.into_iter().map(|ResultColumn { name, of }| CopyColumn { name, of });
        let columns: Vec<_> = copied.collect();
        let mut line = self.begin_copy(copy, &columns, None)?;
        let mut count = 0u64;
        for row in rows {
            self.put_row(copy, &mut line, row?.iter(), &columns);
            self.connection.flush_if_full().await?;
            count += 1;
        }
        Ok(self.end_copy_out(copy, line, count))
    }

    /// Checks the columns of options, and tells the client of the begin of a copy. Returns the
    /// begin of the first message with rows: clients expect the binary header there.
    fn begin_copy(&mut self, copy: &Copy, columns: &[CopyColumn], table: Option<&Table>) -> Result<Vec<u8>> {
        let options = &copy.options;
        let forced = [
            ("FORCE_QUOTE", &options.force_quote),
            ("FORCE_NOT_NULL", &options.force_not_null),
            ("FORCE_NULL", &options.force_null),
        ];
        for (option, named) in forced {
            for (at, name) in named.named().iter().enumerate() {
                table.map(|table| table.column(name)).transpose()?;
                if named.named()[..at].contains(name) {
                    fail!(DUPLICATE_COLUMN, "column \"{name}\" specified more than once");
                }
                if columns.iter().all(|column| column.name != *name) {
                    let (code, message) = match table {
                        Some(_) => {
                            let message = format!("{option} column \"{name}\" not referenced by COPY");
                            (code::INVALID_COLUMN_REFERENCE, message)
                        }
                        None => (code::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist")),
                    };
                    return Err(SqlError::new(code, message));
                }
            }
        }
        self.connection.out.copy(copy.is_from, columns.len(), options.is_binary());
        let mut line = Vec::new();
        if !copy.is_from {
            options.put_header(&mut line, columns);
        }
        if !options.is_binary() && !line.is_empty() {
            self.connection.out.copy_data(&line);
            line.clear();
        }
        Ok(line)
    }

    fn put_row<'r>(
        &mut self,
        copy: &Copy,
        line: &mut Vec<u8>,
        row: impl Iterator<Item = &'r Value>,
        columns: &[CopyColumn],
    ) {
        copy.options.put_row(line, row, columns);
        self.connection.out.copy_data(line);
        line.clear();
    }

    fn end_copy_out(&mut self, copy: &Copy, mut line: Vec<u8>, count: u64) -> String {
        copy.options.put_end(&mut line);
        if !line.is_empty() {
            self.connection.out.copy_data(&line);
        }
        self.connection.out.empty(b'c');
        format!("COPY {count}")
    }

    /// Runs COPY. Returns the words for its end.
    pub(super) async fn copy(&mut self, copy: &Copy) -> Result<String> {
        let tag = self.copy_rows(copy).await?;
        let (sets, _) = self.context.end_statement();
        self.set_sequences(sets).await?;
        Ok(tag)
    }

    async fn copy_rows(&mut self, copy: &Copy) -> Result<String> {
        if let Some(query) = &copy.query {
            return self.copy_query(query, copy).await;
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
        if let Some(twice) = (1..columns.len()).find(|at| columns[..*at].contains(&columns[*at])) {
            let name = &table.columns[columns[twice]].name;
            fail!(DUPLICATE_COLUMN, "column \"{name}\" specified more than once");
        }
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
        let of = |at: &usize| CopyColumn { name: table.columns[*at].name.clone(), of: table.columns[*at].of };
        let copied: Vec<_> = columns.iter().map(of).collect();
        let mut line = self.begin_copy(copy, &copied, Some(&*table))?;
        if !copy.is_from {
            let mut count = 0u64;
            let mut place = Some(ScanPlace::from(&[]));
            while let Some(from) = place {
                let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
                let (rows, next) = by.scan(table.rows(), &from).await?;
                place = next;
                for (_, bytes) in rows.iter() {
                    let row = encode::read_row(bytes, table.columns.len())?;
                    self.put_row(copy, &mut line, columns.iter().map(|at| &row[*at]), &copied);
                    count += 1;
                }
                self.connection.flush_if_full().await?;
            }
            return Ok(self.end_copy_out(copy, line, count));
        }
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let named = Parameters::default();
        let default = |column: usize| match columns.contains(&column) {
            true => Ok(Expr::Value(Value::Null)),
            false => default_of(&table, column, &named),
        };
        // The values of domains are checked when they are there.
        let given = |at: usize| match table.columns[at].of {
            of @ Type::Domain(_) => coerce((Expr::Column(at), of), of, &named, false).map(Some),
            _ => Ok(None),
        };
        let domains: Vec<_> =
            columns.iter().filter_map(|at| given(*at).transpose()).collect::<Result<_>>()?;
        let defaults: Vec<_> = (0..table.columns.len()).map(default).collect::<Result<_>>()?;
        self.catalog.find_sequences(by, named.sequences.take()).await?;
        let mut run = Run::new(by, &self.context, &self.ranges, &self.temporary);
        let mut reader = CopyReader::new(&copy.options, copied);
        let (mut count, mut is_complete) = (0u64, false);
        // The client sends all the same after an error, up to its end.
        let mut failed: Option<SqlError> = None;
        while !is_complete {
            let added = match self.connection.receive().await? {
                Some(Received::CopyData(data)) if failed.is_none() => reader.add(&data),
                Some(Received::CopyData(_) | Received::Flush | Received::Sync) => continue,
                Some(Received::CopyDone) => {
                    is_complete = true;
                    reader.complete();
                    Ok(())
                }
                Some(Received::CopyFail(why)) => {
                    is_complete = true;
                    Err(error!(QUERY_CANCELED, "COPY from stdin failed: {why}"))
                }
                Some(_) => {
                    fail!(PROTOCOL_VIOLATION, "unexpected message type during COPY from stdin");
                }
                None => return Err(SqlError::new("08006", "the client has ended the connection")),
            };
            if let Err(error) = added {
                failed.get_or_insert(error);
            }
            let (mut rows, mut lines) = (Vec::new(), Vec::new());
            let mut has_more = failed.is_none();
            while has_more {
                let read = async {
                    let Some(values) = reader.next()? else { return Ok(None) };
                    let mut row: Vec<Value> = run.evaluate(&defaults, &[]).await?;
                    columns.iter().zip(values).for_each(|(column, value)| row[*column] = value);
                    run.evaluate(&domains, &row).await?;
                    Ok::<_, SqlError>(Some(row))
                };
                match read.await {
                    Ok(Some(row)) => {
                        rows.push(row);
                        lines.push(reader.lines);
                    }
                    Ok(None) => has_more = false,
                    Err(error) => {
                        failed = Some(at_line(error, &table.name, reader.lines));
                        has_more = false;
                    }
                }
                if rows.len() < MOST_ROWS && has_more {
                    continue;
                }
                count += rows.len() as u64;
                // An earlier line counts, if both fail.
                if let Err((row, error)) = insert_rows(&mut run, &targets, &mut rows).await {
                    failed = Some(at_line(error, &table.name, lines[row]));
                    has_more = false;
                }
                rows.clear();
                lines.clear();
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        foreign::finish(&mut run, &targets).await?;
        Ok(format!("COPY {count}"))
    }
}
