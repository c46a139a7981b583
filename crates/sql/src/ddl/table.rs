//! CREATE TABLE, also of a query.

use std::rc::Rc;

use sqlparser::ast;

use super::{
    Definer,
    constraint::{NewConstraint, add_check},
    refuse_rest,
};
use crate::{
    bind::select::{ResultColumn, refuse},
    catalog::{Column, RelationName, Table, duplicate},
    dml::{Targets, insert_rows},
    error::{Result, SqlError, code, fail},
    parse::{NO_DATA, folded, relation},
    spool::Rows,
    types::Type,
};

/// The most rows that are inserted together.
const MOST_ROWS: usize = 256;

/// Checks the clauses of CREATE TABLE that are not read.
fn check_clauses(create: &ast::CreateTable) -> Result<()> {
    let mut rest = create.clone();
    rest.columns.clear();
    rest.constraints.clear();
    rest.if_not_exists = false;
    if rest.query.take().is_some() && !has_rows(create) {
        rest.comment = None;
    }
    rest.like = None;
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
    rest.temporary = false;
    rest.on_commit = None;
    refuse_rest(&rest, &format!("CREATE TABLE {}", create.name), "this form of CREATE TABLE")
}

/// Runs CREATE TABLE.
pub(crate) async fn create_table(define: &mut Definer<'_, '_>, create: &ast::CreateTable) -> Result<()> {
    check_clauses(create)?;
    let place = define.place_of(&create.name, create.temporary).await?;
    if define.has(&place).await? {
        return define.skip(create.if_not_exists, duplicate(&place.name));
    }
    let mut constraints = Vec::new();
    let mut columns: Vec<Column> = match &create.like {
        None => Vec::new(),
        Some(like) => define.columns_like(like).await?,
    };
    for column in &create.columns {
        let name = folded(&column.name);
        if columns.iter().any(|known| known.name == name) {
            fail!(DUPLICATE_COLUMN, "column \"{name}\" specified more than once");
        }
        columns.push(define.column(&place, column, &mut constraints).await?);
    }
    for constraint in &create.constraints {
        constraints.push(NewConstraint::of(constraint)?);
    }
    let mut table = define.new_table(&place, columns).await?;
    for column in 0..table.columns.len() {
        define.bind_column(&mut table, column).await?;
    }
    for constraint in &constraints {
        match constraint {
            NewConstraint::Check { name, condition } => add_check(&mut table, name.clone(), condition)?,
            NewConstraint::Key(key) => {
                if let Some(mut index) = define.add_key(&mut table, key.clone()).await? {
                    index.root = define.run.by.create_tree().await?.0;
                    table.indexes.push(index);
                }
            }
            NewConstraint::Foreign { .. } => {}
        }
    }
    for constraint in constraints {
        if let NewConstraint::Foreign { name, key } = constraint {
            define.add_foreign_key(&mut table, name, &key).await?;
        }
    }
    define.change(None, Some(&table)).await
}

/// Returns false for CREATE TABLE AS without the rows of the query.
pub(crate) fn has_rows(create: &ast::CreateTable) -> bool {
    !matches!(&create.comment, Some(ast::CommentDef::WithoutEq(comment)) if comment == NO_DATA)
}

/// Runs CREATE TABLE AS and SELECT INTO, with the rows of the query. Returns their number.
pub(crate) async fn create_table_as(
    define: &mut Definer<'_, '_>,
    create: &ast::CreateTable,
    columns: &[ResultColumn],
    rows: Rows,
) -> Result<u64> {
    check_clauses(create)?;
    refuse(!create.constraints.is_empty() || create.like.is_some(), "constraints in CREATE TABLE AS")?;
    let place = define.place_of(&create.name, create.temporary).await?;
    if create.columns.len() > columns.len() {
        return Err(SqlError::new(code::SYNTAX_ERROR, "too many column names were specified"));
    }
    let mut made: Vec<Column> = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let name = match create.columns.get(at) {
            Some(given) => {
                let is_plain = given.options.is_empty() && given.data_type == ast::DataType::Unspecified;
                refuse(!is_plain, "a column definition in CREATE TABLE AS")?;
                folded(&given.name)
            }
            None => column.name.clone(),
        };
        if made.iter().any(|known| known.name == name) {
            fail!(DUPLICATE_COLUMN, "column \"{name}\" specified more than once");
        }
        made.push(Column::new(&name, if column.of == Type::Unknown { Type::Text } else { column.of }));
    }
    let table = define.new_table(&place, made).await?;
    define.change(None, Some(&table)).await?;
    insert_all(define, Rc::new(table), rows).await
}

/// Inserts rows into a table of the transaction. Returns their number.
pub(super) async fn insert_all(define: &mut Definer<'_, '_>, table: Rc<Table>, rows: Rows) -> Result<u64> {
    let targets = Targets::alone(table)?;
    let (mut rows, mut count) = (rows.fuse(), 0);
    loop {
        let mut batch = rows.by_ref().take(MOST_ROWS).collect::<Result<Vec<_>>>()?;
        if batch.is_empty() {
            return Ok(count);
        }
        count += batch.len() as u64;
        insert_rows(define.run, &targets, &mut batch).await.map_err(|(_, error)| error)?;
    }
}

impl Definer<'_, '_> {
    async fn new_table(&mut self, place: &RelationName, mut columns: Vec<Column>) -> Result<Table> {
        self.refresh_types(&mut columns).await?;
        let id = self.run.by.store().fresh_id().await?;
        let root = self.run.by.create_tree().await?.0;
        let owner = self.catalog.place().role.clone();
        Ok(Table::new(id, place, &owner, root, columns))
    }

    /// Returns the columns of a table as those of another one: names, types and NOT NULL.
    async fn columns_like(&mut self, like: &ast::CreateTableLikeKind) -> Result<Vec<Column>> {
        let (ast::CreateTableLikeKind::Parenthesized(like) | ast::CreateTableLikeKind::Plain(like)) = like;
        let table = self.catalog.table(self.run.by, &relation(&like.name)?).await?;
        let with_defaults = like.defaults == Some(ast::CreateTableLikeDefaults::Including);
        let column = |column: &Column| Column {
            not_null: column.not_null,
            collation: column.collation,
            default: column.default.clone().filter(|_| with_defaults && column.identity.is_none()),
            ..Column::new(&column.name, column.of)
        };
        Ok(table.columns.iter().map(column).collect())
    }
}
