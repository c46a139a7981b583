//! CREATE INDEX, and the entries of a new index.

use std::rc::Rc;

use plexus_store::tree::ScanPlace;
use sqlparser::ast;

use super::{Definer, constraint::check_key_type, constraint::columns_of, exists, sequence::free_name};
use crate::{
    bind::select::refuse,
    catalog::{Index, IndexOrder, IndexPart, RelationName, Table, duplicate},
    dml::{
        Target, put_entry,
        target::{bind_condition, bind_text, check_immutable},
    },
    error::{Result, SqlError, code},
    parse::{folded, relation},
    spool::{Direction, OrderedRow, Spool},
    types::{Type, Value, encode},
};

/// The most entries that are inserted together.
const MOST_ENTRIES: usize = 256;

/// Returns the columns of a key, without expressions and orders.
pub(super) fn names_of(columns: &[ast::IndexColumn]) -> Result<Vec<String>> {
    let name = |column: &ast::IndexColumn| match &column.column {
        ast::OrderByExpr { expr: ast::Expr::Identifier(name), options, with_fill: None }
            if *options == ast::OrderByOptions::default() && column.operator_class.is_none() =>
        {
            Ok(folded(name))
        }
        _ => Err(SqlError::unsupported(format!("the index column {column}"))),
    };
    columns.iter().map(name).collect()
}

impl Definer<'_, '_> {
    /// Returns the name of an index: the given one, or one of the table's name and of parts.
    pub(super) async fn index_name(
        &mut self,
        table: &Table,
        given: Option<String>,
        parts: &[&str],
        ending: &str,
    ) -> Result<String> {
        if let Some(given) = given {
            return Ok(given);
        }
        let parts = parts.join("_");
        let both = [&*table.name, &parts];
        let parts = if parts.is_empty() { &both[..1] } else { &both };
        let is_taken = |name: &str| {
            let mut indexes = table.indexes.iter().map(|index| &index.name);
            indexes.any(|known| known == name) || table.primary.iter().any(|key| key.name == name)
        };
        free_name(self.run, self.catalog, &table.schema, is_taken, parts, ending).await
    }
}

/// Returns a part of an index: a column, or an expression with its type.
fn part_of(table: &Table, column: &ast::IndexColumn) -> Result<(IndexPart, IndexOrder, String)> {
    let ast::OrderByExpr { expr, options, with_fill: None } = &column.column else {
        return Err(SqlError::unsupported(format!("the index column {column}")));
    };
    // The collation is C, so the order of patterns is that of texts.
    let is_plain = |class: &ast::ObjectName| {
        let name = class.to_string().to_ascii_lowercase();
        matches!(name.as_str(), "text_pattern_ops" | "varchar_pattern_ops" | "bpchar_pattern_ops")
    };
    refuse(column.operator_class.as_ref().is_some_and(|class| !is_plain(class)), "an operator class")?;
    let is_descending = match &options.sort {
        None | Some(ast::OrderBySort::Asc) => false,
        Some(ast::OrderBySort::Desc) => true,
        Some(_) => return Err(SqlError::unsupported("an index with USING")),
    };
    let nulls_first = options.nulls_first.unwrap_or(is_descending);
    let order = IndexOrder { is_descending, nulls_first };
    let mut plain = expr;
    while let ast::Expr::Nested(inner) = plain {
        plain = inner;
    }
    if let ast::Expr::Identifier(name) = plain {
        let name = folded(name);
        let column = table.column(&name).map_err(|_| {
            SqlError::new(code::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist"))
        })?;
        check_key_type(table.columns[column].of)?;
        return Ok((IndexPart::Column(column), order, name));
    }
    let text = plain.to_string();
    let (_, of) = bind_text(table, &text)?;
    check_immutable(table, &text, "functions in index expression must be marked IMMUTABLE")?;
    let of = if of == Type::Unknown { Type::Text } else { of };
    check_key_type(of)?;
    let name = match plain {
        ast::Expr::Function(function) => {
            function.name.0.last().and_then(ast::ObjectNamePart::as_ident).map(folded)
        }
        _ => None,
    };
    Ok((IndexPart::Expression(text, of), order, name.unwrap_or_else(|| "expr".into())))
}

/// Runs CREATE INDEX.
pub(crate) async fn create_index(define: &mut Definer<'_, '_>, create: &ast::CreateIndex) -> Result<()> {
    let is_plain = matches!(create.using, None | Some(ast::IndexType::BTree))
        && create.nulls_distinct.is_none()
        && create.index_options.is_empty()
        && create.alter_options.is_empty()
        && !create.r#async;
    refuse(!is_plain, "this form of CREATE INDEX")?;
    refuse(!create.include.is_empty(), "INCLUDE")?;
    let is_known = |option: &ast::Expr| option.to_string().to_ascii_lowercase().starts_with("fillfactor");
    refuse(!create.with.iter().all(is_known), "a storage parameter")?;
    let table = define.owned(&relation(&create.table_name)?).await?;
    define.check_pending(&table, "CREATE INDEX")?;
    let parts = create.columns.iter().map(|column| part_of(&table, column)).collect::<Result<Vec<_>>>()?;
    let name = match &create.name {
        Some(name) => {
            let name = relation(name)?;
            refuse(name.contains('\0'), "an index with a schema")?;
            Some(name)
        }
        None => None,
    };
    let names: Vec<&str> = parts.iter().map(|(.., name)| name.as_str()).collect();
    let name = define.index_name(&table, name, &names, "idx").await?;
    let mut index = Index::new(name, Vec::new(), create.unique);
    if define.has(&RelationName::new(&table.schema, &index.name)).await? {
        let notice = exists(&index.name, create.if_not_exists)?;
        define.notices.push(notice);
        return Ok(());
    }
    if parts.iter().any(|(_, order, _)| *order != IndexOrder::default()) {
        index.order = parts.iter().map(|(_, order, _)| *order).collect();
    }
    if let Some(condition) = &create.predicate {
        let text = condition.to_string();
        bind_condition(&table, &text, "WHERE")?;
        check_immutable(&table, &text, "functions in index predicate must be marked IMMUTABLE")?;
        index.condition = Some(text);
    }
    let columns = parts.iter().map(|(part, ..)| match part {
        IndexPart::Column(column) => Some(*column),
        IndexPart::Expression(..) => None,
    });
    match columns.collect::<Option<Vec<usize>>>().filter(|_| index.condition.is_none()) {
        Some(columns) => index.columns = columns,
        None => index.parts = parts.into_iter().map(|(part, ..)| part).collect(),
    }
    add_index(define, &table, index).await
}

/// Makes the error of a key that several rows have one about the index that cannot be made.
pub(super) fn cannot_create(mut error: SqlError) -> SqlError {
    let name = error.fields.as_ref().and_then(|fields| fields.constraint.clone());
    if let (code::UNIQUE_VIOLATION, Some(name)) = (error.code, name) {
        error.message = format!("could not create unique index \"{name}\"");
        error.detail =
            error.detail.take().map(|detail| detail.replace(" already exists.", " is duplicated."));
    }
    error
}

/// Adds an index, with the entries of all rows in their order.
pub(super) async fn add_index(define: &mut Definer<'_, '_>, table: &Table, mut index: Index) -> Result<()> {
    if define.has(&RelationName::new(&table.schema, &index.name)).await? {
        return Err(duplicate(&index.name));
    }
    index.root = define.run.by.create_tree().await?.0;
    let mut new = table.clone();
    new.indexes.push(index);
    let at = new.indexes.len() - 1;
    let target = Target::of(Rc::new(new))?;
    let (new, tree) = (&target.table, target.table.indexes[at].tree());
    let run = &mut *define.run;
    let mut entries = Spool::new(run.temporary, [Direction::RISING]);
    let mut place = Some(ScanPlace::from(&[]));
    while let Some(from) = place {
        let (rows, next) = run.by.scan(table.rows(), &from).await?;
        place = next;
        for (key, bytes) in rows.iter() {
            let row = encode::read_row(bytes, table.columns.len())?;
            let Some((entry, _)) = target.entry(at, key, &row, run.context)? else { continue };
            let entry = Value::Bytes(entry);
            let row = vec![entry.clone(), Value::Bytes(key.to_vec())];
            entries.push(OrderedRow { order: vec![entry], row })?;
        }
    }
    let mut sorted = entries.rows().await?.fuse();
    let mut batch: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    loop {
        while batch.len() < MOST_ENTRIES
            && let Some(entry) = sorted.next()
        {
            let Ok([Value::Bytes(entry), Value::Bytes(key)]) = <[Value; 2]>::try_from(entry?) else { break };
            batch.push((entry, key));
        }
        let Some((entry, key)) = batch.first() else { break };
        let rising = batch.windows(2).take_while(|pair| pair[0].0 < pair[1].0).count() + 1;
        let count = match run.by.insert_run(tree, &batch[..rising]).await? {
            0 => {
                let row = run.by.get(table.rows(), key).await?.unwrap_or_default();
                let row = encode::read_row(&row, table.columns.len())?;
                put_entry(run, &target, at, entry, key, &row).await.map_err(cannot_create)?;
                1
            }
            count => count,
        };
        batch.drain(..count);
    }
    define.change(Some(table), Some(new)).await
}

/// Adds the index of a unique constraint.
pub(super) async fn add_unique(
    define: &mut Definer<'_, '_>,
    table: &Table,
    name: Option<String>,
    columns: &[String],
) -> Result<()> {
    let columns = columns_of(table, columns)?;
    let name = define.index_name(table, name, &table.names(&columns), "key").await?;
    let index = super::constraint::unique_index(name, columns);
    add_index(define, table, index).await
}
