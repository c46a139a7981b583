//! CREATE INDEX, and the entries of a new index.

use std::rc::Rc;

use plexus_store::tree::ScanPlace;
use sqlparser::ast;

use super::{
    Definer,
    constraint::{check_key_type, named_column, unnested},
    sequence::free_name,
};
use crate::{
    bind::{operators::collation_of, select::refuse},
    catalog::{Index, IndexOrder, IndexPart, PATTERN_CLASSES, RelationName, Table, duplicate},
    dml::{
        Targets, duplicate_entry, put_entry,
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
    let class = column.operator_class.as_ref().map(|class| {
        let name = class.to_string().to_ascii_lowercase();
        let found =
            PATTERN_CLASSES.iter().find(|(known, _)| *known == name.trim_start_matches("pg_catalog."));
        found
            .map(|(_, number)| *number)
            .ok_or_else(|| SqlError::unsupported(format!("the operator class {class}")))
    });
    let class = class.transpose()?;
    let is_descending = match &options.sort {
        None | Some(ast::OrderBySort::Asc) => false,
        Some(ast::OrderBySort::Desc) => true,
        Some(_) => return Err(SqlError::unsupported("an index with USING")),
    };
    let nulls_first = options.nulls_first.unwrap_or(is_descending);
    let mut order = IndexOrder { is_descending, nulls_first, collation: None, class };
    let (mut plain, mut collation) = (unnested(expr), None);
    while let ast::Expr::Collate { expr, collation: name } = plain {
        (plain, collation) = (unnested(expr), Some(name));
    }
    if let ast::Expr::Identifier(name) = plain {
        let name = folded(name);
        let column = named_column(table, &name, "")?;
        check_key_type(table.columns[column].of)?;
        order.collation = collation.map(|name| collation_of(name, table.columns[column].of)).transpose()?;
        return Ok((IndexPart::Column(column), order, name));
    }
    let text = plain.to_string();
    let (_, of) = bind_text(table, &text)?;
    check_immutable(table, &text, "functions in index expression must be marked IMMUTABLE")?;
    let of = if of == Type::Unknown { Type::Text } else { of };
    check_key_type(of)?;
    order.collation = collation.map(|name| collation_of(name, of)).transpose()?;
    let name = match plain {
        ast::Expr::Function(function) => {
            function.name.0.last().and_then(ast::ObjectNamePart::as_ident).map(folded)
        }
        _ => None,
    };
    Ok((IndexPart::Expression(text, of), order, name.unwrap_or_else(|| "expr".into())))
}

/// Runs CREATE INDEX. Returns the name of the index; `None` if it is there already. With
/// CONCURRENTLY the index is empty, and no query reads it.
pub(crate) async fn create_index(
    define: &mut Definer<'_, '_>,
    create: &ast::CreateIndex,
) -> Result<Option<String>> {
    let is_plain = matches!(create.using, None | Some(ast::IndexType::BTree))
        && create.index_options.is_empty()
        && create.alter_options.is_empty()
        && !create.r#async;
    refuse(!is_plain, "this form of CREATE INDEX")?;
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
    let include = create.include.iter().map(|name| named_column(&table, &folded(name), ""));
    let include = include.collect::<Result<Vec<_>>>()?;
    let mut names: Vec<&str> = parts.iter().map(|(.., name)| name.as_str()).collect();
    names.extend(table.names(&include));
    let name = define.index_name(&table, name, &names, "idx").await?;
    let has_equal_nulls = create.nulls_distinct == Some(false);
    let mut index = Index { include, has_equal_nulls, ..Index::new(name, Vec::new(), create.unique) };
    if define.has(&RelationName::new(&table.schema, &index.name)).await? {
        return define.skip(create.if_not_exists, duplicate(&index.name)).map(|()| None);
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
    let name = index.name.clone();
    match create.concurrently {
        true => add_empty(define, &table, index).await?,
        false => add_index(define, &table, index).await?,
    }
    Ok(Some(name))
}

/// Adds an index that is filled later.
async fn add_empty(define: &mut Definer<'_, '_>, table: &Table, mut index: Index) -> Result<()> {
    index.is_building = true;
    if index.parts.is_empty() {
        index.parts = std::mem::take(&mut index.columns).into_iter().map(IndexPart::Column).collect();
    }
    index.root = define.run.by.create_tree().await?.0;
    let mut new = table.clone();
    new.indexes.push(index);
    define.change(Some(table), Some(&new)).await
}

/// Ends CREATE INDEX CONCURRENTLY: the index has the entries of all rows.
pub(crate) async fn end_building(define: &mut Definer<'_, '_>, table: &Table, name: &str) -> Result<()> {
    let mut new = table.clone();
    for index in new.indexes.iter_mut().filter(|index| index.name == name) {
        index.is_building = false;
        let column = |part: &IndexPart| match part {
            IndexPart::Column(column) => Some(*column),
            IndexPart::Expression(..) => None,
        };
        if let (Some(columns), None) =
            (index.parts.iter().map(column).collect::<Option<Vec<_>>>(), &index.condition)
        {
            (index.columns, index.parts) = (columns, Vec::new());
        }
    }
    define.change(Some(table), Some(&new)).await
}

/// Makes the error of a key that several rows have one about the index that cannot be made.
pub(crate) fn cannot_create(mut error: SqlError) -> SqlError {
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
    let targets = Targets::alone(Rc::new(new))?;
    let target = targets.first();
    let (new, index, tree) = (&target.table, &target.table.indexes[at], target.table.indexes[at].tree());
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
    let mut last = None;
    loop {
        while batch.len() < MOST_ENTRIES
            && let Some(entry) = sorted.next()
        {
            let Ok([Value::Bytes(entry), Value::Bytes(key)]) = <[Value; 2]>::try_from(entry?) else { break };
            let value = index.value_of(&key);
            if index.deferral.is_some() && last.replace(entry.clone()).as_ref() == Some(&entry) {
                let row = run.by.get(table.rows(), &key).await?.unwrap_or_default();
                let row = encode::read_row(&row, table.columns.len())?;
                return Err(cannot_create(duplicate_entry(target, at, &row, run.context)));
            }
            batch.push((entry, value));
        }
        let Some((entry, value)) = batch.first() else { break };
        let rising = batch.windows(2).take_while(|pair| pair[0].0 < pair[1].0).count() + 1;
        let count = match run.by.insert_run(tree, &batch[..rising]).await? {
            0 => {
                let key = index.row_keys(value).into_iter().next().unwrap_or_default();
                let row = run.by.get(table.rows(), key).await?.unwrap_or_default();
                let row = encode::read_row(&row, table.columns.len())?;
                put_entry(run, &targets, (0, at), entry, key, &row).await.map_err(cannot_create)?;
                1
            }
            count => count,
        };
        batch.drain(..count);
    }
    define.change(Some(table), Some(new)).await
}
