//! Statements that make, change and remove tables and indexes.

mod sequence;

use plexus_store::tree::ScanPlace;
use sqlparser::ast;

pub(crate) use self::sequence::create_sequence;
use self::sequence::{drop_sequence, own_sequence, serial_of};
use crate::{
    bind::{self, Parameters, select::refuse},
    catalog::{Catalog, Column, Index, Key, RelationName, Table, undefined},
    dml::{default_of, insert_rows, put_entry},
    error::{Result, SqlError, code},
    exec::Run,
    parse::{folded, relation},
    spool::{Direction, OrderedRow, Spool, bytes_of},
    types::{Type, Value, encode},
};

fn names_of(columns: &[ast::IndexColumn]) -> Result<Vec<String>> {
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

/// A key of a table, as a statement names it.
struct NamedKey {
    name: Option<String>,
    columns: Vec<String>,
    is_primary: bool,
}

fn constraint(of: &ast::TableConstraint) -> Result<NamedKey> {
    match of {
        ast::TableConstraint::PrimaryKey(key) => {
            refuse(!key.include.is_empty() || key.characteristics.is_some(), "this primary key")?;
            let name = key.name.as_ref().map(folded);
            Ok(NamedKey { name, columns: names_of(&key.columns)?, is_primary: true })
        }
        ast::TableConstraint::Unique(key) => {
            refuse(!key.include.is_empty() || key.characteristics.is_some(), "this unique constraint")?;
            refuse(key.nulls_distinct != ast::NullsDistinctOption::None, "NULLS NOT DISTINCT")?;
            let name = key.name.as_ref().map(folded);
            Ok(NamedKey { name, columns: names_of(&key.columns)?, is_primary: false })
        }
        other => Err(SqlError::unsupported(format!("the constraint {other}"))),
    }
}

fn columns_of(table: &Table, names: &[String]) -> Result<Vec<usize>> {
    let column = |name: &String| {
        let message = format!("column \"{name}\" named in key does not exist");
        table.column(name).map_err(|_| SqlError::new(code::UNDEFINED_COLUMN, message))
    };
    let columns: Vec<usize> = names.iter().map(column).collect::<Result<_>>()?;
    for column in &columns {
        let of = table.columns[*column].of;
        refuse(!encode::has_keys(of), &format!("a key of type {}", of.name()))?;
    }
    Ok(columns)
}

/// Returns the notice, or the error, that a relation exists.
fn exists(name: &str, is_allowed: bool) -> Result<Option<String>> {
    let message = format!("relation \"{name}\" already exists");
    match is_allowed {
        true => Ok(Some(format!("{message}, skipping"))),
        false => Err(SqlError::new(code::DUPLICATE_TABLE, message)),
    }
}

/// Runs CREATE TABLE. Returns a notice if there was nothing to do.
pub(crate) async fn create_table(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    create: &ast::CreateTable,
) -> Result<Option<String>> {
    let place = catalog.place_of(run.store, run.by, &relation(&create.name)?).await?;
    let table_name = place.name.clone();
    let mut rest = create.clone();
    rest.columns.clear();
    rest.constraints.clear();
    rest.if_not_exists = false;
    match &create.table_options {
        ast::CreateTableOptions::None => {}
        ast::CreateTableOptions::With(options) => {
            let is_known = |option: &ast::SqlOption| matches!(option, ast::SqlOption::KeyValue { key, .. } if folded(key) == "fillfactor");
            fn folded(key: &ast::ObjectName) -> String {
                key.to_string().to_ascii_lowercase()
            }
            refuse(!options.iter().all(is_known), "a storage parameter")?;
            rest.table_options = ast::CreateTableOptions::None;
        }
        _ => return Err(SqlError::unsupported("this form of CREATE TABLE")),
    }
    let text = rest.to_string();
    let plain = format!("CREATE TABLE {}", create.name);
    refuse(text.trim_end_matches([' ', '(', ')']) != plain, "this form of CREATE TABLE")?;
    if catalog.has(run.store, run.by, &place).await? {
        return exists(&table_name, create.if_not_exists);
    }
    let mut keys = create.constraints.iter().map(constraint).collect::<Result<Vec<_>>>()?;
    let mut columns: Vec<Column> = Vec::new();
    for column in &create.columns {
        let column_name = folded(&column.name);
        if columns.iter().any(|known| known.name == column_name) {
            let message = format!("column \"{column_name}\" specified more than once");
            return Err(SqlError::new(code::DUPLICATE_COLUMN, message));
        }
        let serial = serial_of(&column.data_type);
        let of = serial.map_or_else(|| bind::type_of(&column.data_type), Ok)?;
        let mut made = Column::new(&column_name, of);
        if serial.is_some() {
            own_sequence(run, catalog, &place, &mut made, &[]).await?;
        }
        for ast::ColumnOptionDef { name, option } in &column.options {
            let key = |is_primary| NamedKey {
                name: name.as_ref().map(folded),
                columns: vec![column_name.clone()],
                is_primary,
            };
            match option {
                ast::ColumnOption::Null => {}
                ast::ColumnOption::NotNull => made.not_null = true,
                ast::ColumnOption::Default(_) | ast::ColumnOption::Generated { .. }
                    if made.default.is_some() =>
                {
                    let message = format!(
                        "multiple default values specified for column \"{column_name}\" of table \"{table_name}\""
                    );
                    return Err(SqlError::new(code::SYNTAX_ERROR, message));
                }
                ast::ColumnOption::Default(expr) => made.default = Some(expr.to_string()),
                ast::ColumnOption::PrimaryKey(_) => keys.push(key(true)),
                ast::ColumnOption::Unique(_) => keys.push(key(false)),
                ast::ColumnOption::Generated {
                    generated_as: ast::GeneratedAs::ByDefault,
                    sequence_options,
                    generation_expr: None,
                    ..
                } => {
                    let options = sequence_options.as_deref().unwrap_or_default();
                    own_sequence(run, catalog, &place, &mut made, options).await?;
                }
                other => return Err(SqlError::unsupported(format!("the column option {other}"))),
            }
        }
        columns.push(made);
    }
    let id = run.store.fresh_id().await?;
    let root = run.by.create_tree().await?.0;
    let owner = catalog.place().role.clone();
    let mut table = Table::new(id, &place, &owner, root, columns);
    for column in 0..table.columns.len() {
        let named = Parameters::default();
        default_of(&table, column, &named)?;
        let named = named.sequences.take();
        table.columns[column].sequences = named.iter().map(|(name, _)| name.clone()).collect();
        catalog.find_sequences(run.store, run.by, named).await?;
    }
    for NamedKey { name, columns, is_primary } in keys {
        let columns = columns_of(&table, &columns)?;
        if is_primary {
            if table.primary.is_some() {
                let message = format!("multiple primary keys for table \"{}\" are not allowed", table.name);
                return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message));
            }
            let name = name.unwrap_or_else(|| format!("{}_pkey", table.name));
            columns.iter().for_each(|column| table.columns[*column].not_null = true);
            table.primary = Some(Key { name, columns, comment: None });
        } else {
            let name = name.unwrap_or_else(|| index_name(&table, &columns, "key"));
            let root = run.by.create_tree().await?.0;
            table.indexes.push(Index { root, is_constraint: true, ..Index::new(name, columns, true) });
        }
    }
    catalog.change(run.store, run.by, None, Some(&table)).await?;
    Ok(None)
}

/// Returns the name of an index that the statement does not name.
fn index_name(table: &Table, columns: &[usize], ending: &str) -> String {
    let columns: Vec<&str> = columns.iter().map(|column| table.columns[*column].name.as_str()).collect();
    let base = format!("{}_{}_{ending}", table.name, columns.join("_"));
    let is_taken = |name: &str| table.indexes.iter().any(|index| index.name == name);
    let numbered = (1..).map(|number| format!("{base}{number}"));
    std::iter::once(base.clone()).chain(numbered).find(|name| !is_taken(name)).unwrap_or(base)
}

/// Runs DROP TABLE or DROP INDEX. Returns notices about what was not there.
pub(crate) async fn drop_all(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    kind: ast::ObjectType,
    names: &[ast::ObjectName],
    if_exists: bool,
) -> Result<Vec<String>> {
    let mut notices = Vec::new();
    for name in names {
        let mut name = relation(name)?;
        let what = if kind == ast::ObjectType::Table { "table" } else { "index" };
        let found = match kind {
            ast::ObjectType::Table => catalog.owned(run.store, run.by, &name).await?,
            ast::ObjectType::Index => {
                let found = catalog.table_of_index(run.store, run.by, &name).await?;
                found.map(|(table, index)| {
                    name = index;
                    table
                })
            }
            ast::ObjectType::Sequence => {
                match catalog.sequence(run.store, run.by, &name).await? {
                    Some(found) => drop_sequence(run, catalog, &found.relation()).await?,
                    None if if_exists => {
                        notices.push(format!("sequence \"{name}\" does not exist, skipping"));
                    }
                    None => {
                        let message = format!("sequence \"{name}\" does not exist");
                        return Err(SqlError::new(code::UNDEFINED_TABLE, message));
                    }
                }
                continue;
            }
            other => return Err(SqlError::unsupported(format!("DROP {other}"))),
        };
        let Some(table) = found else {
            if !if_exists {
                let message = format!("{what} \"{name}\" does not exist");
                let code = if what == "table" { code::UNDEFINED_TABLE } else { code::UNDEFINED_OBJECT };
                return Err(SqlError::new(code, message));
            }
            notices.push(format!("{what} \"{name}\" does not exist, skipping"));
            continue;
        };
        if kind == ast::ObjectType::Table {
            catalog.change(run.store, run.by, Some(&table), None).await?;
            for sequence in table.columns.iter().filter_map(|column| column.own_sequence.as_ref()) {
                drop_sequence(run, catalog, &RelationName::of_key(sequence)).await?;
            }
        } else {
            let mut new = (*table).clone();
            new.indexes.retain(|index| index.name != name);
            refuse(new.indexes.len() == table.indexes.len(), "DROP INDEX of a primary key")?;
            catalog.change(run.store, run.by, Some(&table), Some(&new)).await?;
        }
    }
    Ok(notices)
}

/// Runs TRUNCATE: the tables get new trees.
pub(crate) async fn truncate(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    truncate: &ast::Truncate,
) -> Result<()> {
    let is_plain = truncate.partitions.is_none()
        && truncate.identity.is_none()
        && !truncate.if_exists
        && truncate.cascade != Some(ast::CascadeOption::Cascade);
    refuse(!is_plain, "this form of TRUNCATE")?;
    for target in &truncate.table_names {
        let table = catalog.table(run.store, run.by, &relation(&target.name)?).await?;
        let mut new = (*table).clone();
        new.root = run.by.create_tree().await?.0;
        for index in &mut new.indexes {
            index.root = run.by.create_tree().await?.0;
        }
        catalog.change(run.store, run.by, Some(&table), Some(&new)).await?;
    }
    Ok(())
}

/// Runs CREATE INDEX. Returns a notice if there was nothing to do.
pub(crate) async fn create_index(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    create: &ast::CreateIndex,
) -> Result<Option<String>> {
    let is_plain = matches!(create.using, None | Some(ast::IndexType::BTree))
        && create.include.is_empty()
        && create.nulls_distinct.is_none()
        && create.with.is_empty()
        && create.predicate.is_none()
        && create.index_options.is_empty()
        && create.alter_options.is_empty()
        && !create.r#async;
    refuse(!is_plain, "this form of CREATE INDEX")?;
    let table = catalog.table(run.store, run.by, &relation(&create.table_name)?).await?;
    let columns = columns_of(&table, &names_of(&create.columns)?)?;
    let name = match &create.name {
        Some(name) => RelationName::new(&table.schema, relation(name)?),
        None => RelationName::new(&table.schema, index_name(&table, &columns, "idx")),
    };
    if catalog.has(run.store, run.by, &name).await? {
        return exists(&name.name, create.if_not_exists);
    }
    add_index(run, catalog, &table, Index::new(name.name, columns, create.unique)).await?;
    Ok(None)
}

/// The most entries that are inserted together.
const MOST_ENTRIES: usize = 256;

/// The bytes of rows that are inserted together.
const MOST_BYTES: usize = 4 << 20;

/// Adds an index, with the entries of all rows in their order.
async fn add_index(run: &mut Run<'_>, catalog: &mut Catalog, table: &Table, mut index: Index) -> Result<()> {
    index.root = run.by.create_tree().await?.0;
    let mut entries = Spool::new(run.temporary, [Direction::RISING]);
    let mut place = Some(ScanPlace::from(&[]));
    while let Some(from) = place {
        let (rows, next) = run.by.scan(table.rows(), &from).await?;
        place = next;
        for (key, bytes) in rows {
            let (entry, _) = index.key(table, &key, &encode::read_row(&bytes, table.columns.len())?)?;
            let entry = Value::Bytes(entry);
            entries.push(OrderedRow { order: vec![entry.clone()], row: vec![entry, Value::Bytes(key)] })?;
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
        let count = match run.by.insert_run(index.tree(), &batch[..rising]).await? {
            0 => {
                let row = run.by.get(table.rows(), key).await?.unwrap_or_default();
                let row = encode::read_row(&row, table.columns.len())?;
                put_entry(run, table, &index, entry, key, &row).await?;
                1
            }
            count => count,
        };
        batch.drain(..count);
    }
    let mut new = table.clone();
    new.indexes.push(index);
    catalog.change(run.store, run.by, Some(table), Some(&new)).await
}

/// Runs ALTER TABLE … ADD of a key.
pub(crate) async fn alter_table(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    alter: &ast::AlterTable,
) -> Result<()> {
    refuse(alter.location.is_some() || alter.on_cluster.is_some(), "this form of ALTER TABLE")?;
    let name = relation(&alter.name)?;
    for operation in &alter.operations {
        let Some(table) = catalog.find(run.store, run.by, &name).await? else {
            return if alter.if_exists { Ok(()) } else { Err(undefined(&name)) };
        };
        let ast::AlterTableOperation::AddConstraint { constraint: added, not_valid: false } = operation
        else {
            return Err(SqlError::unsupported(format!("ALTER TABLE {operation}")));
        };
        let NamedKey { name, columns, is_primary } = constraint(added)?;
        let columns = columns_of(&table, &columns)?;
        if !is_primary {
            let name = name.unwrap_or_else(|| index_name(&table, &columns, "key"));
            add_index(run, catalog, &table, Index { is_constraint: true, ..Index::new(name, columns, true) })
                .await?;
            continue;
        }
        if table.primary.is_some() {
            let message = format!("multiple primary keys for table \"{}\" are not allowed", table.name);
            return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message));
        }
        // The rows move to a tree in the order of the key.
        let mut new = (*table).clone();
        columns.iter().for_each(|column| new.columns[*column].not_null = true);
        let name = name.unwrap_or_else(|| format!("{}_pkey", table.name));
        new.primary = Some(Key { name, columns, comment: None });
        new.root = run.by.create_tree().await?.0;
        for index in &mut new.indexes {
            index.root = run.by.create_tree().await?.0;
        }
        let mut sorted = Spool::new(run.temporary, [Direction::RISING]);
        let mut place = Some(ScanPlace::from(&[]));
        while let Some(from) = place {
            let (rows, next) = run.by.scan(table.rows(), &from).await?;
            place = next;
            for (_, bytes) in rows {
                let row = encode::read_row(&bytes, new.columns.len())?;
                let key = new.primary_key(&row)?.unwrap_or_default();
                sorted.push(OrderedRow { order: vec![Value::Bytes(key)], row })?;
            }
        }
        let mut sorted = sorted.rows().await?.fuse();
        loop {
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while rows.len() < MOST_ENTRIES
                && bytes < MOST_BYTES
                && let Some(row) = sorted.next().transpose()?
            {
                bytes += bytes_of(&row);
                rows.push(row);
            }
            if rows.is_empty() {
                break;
            }
            insert_rows(run, &new, &rows).await.map_err(|(_, error)| error)?;
        }
        catalog.change(run.store, run.by, Some(&table), Some(&new)).await?;
    }
    Ok(())
}
