//! CREATE, ALTER and DROP TYPE. Columns have the definitions of their types, so the tables that use
//! a type change with it.

use std::rc::Rc;

use sqlparser::{ast, tokenizer::Token};

use super::{Definer, alter::tokens, needed};
use crate::{
    bind::{select::refuse, undefined_type},
    catalog::{Entry, IndexPart, Relation, RelationName, Table, TypeEntry, View, ViewColumn},
    error::{Result, SqlError, code, error, fail},
    parse::{expression, folded, relation},
    types::{
        Type,
        named::{LABEL_STEP, MOST_LABELS, NamedType},
        text,
    },
};

/// The first number of a type, and their count: below the numbers that are made from names.
const NUMBERS: std::ops::Range<u64> = 16_384..1 << 30;

/// Returns a label as it is written.
fn label(of: &ast::Ident) -> Result<String> {
    if of.quote_style != Some('\'') {
        return Err(SqlError::new(code::SYNTAX_ERROR, format!("syntax error at or near \"{of}\"")));
    }
    match of.value.len() {
        0..=63 => Ok(of.value.clone()),
        _ => Err(SqlError::new("42602", format!("invalid enum label \"{}\"", of.value))
            .with_detail("Labels must be 63 bytes or less.")),
    }
}

fn duplicate_label(code: &'static str, label: &str) -> SqlError {
    SqlError::new(code, format!("enum label \"{label}\" already exists"))
}

fn too_many() -> SqlError {
    SqlError::new(code::PROGRAM_LIMIT, format!("an enumerated type has at most {MOST_LABELS} labels"))
}

/// Runs CREATE TYPE … AS ENUM.
pub(crate) async fn create_type(
    define: &mut Definer<'_, '_>,
    name: &ast::ObjectName,
    of: Option<&ast::UserDefinedTypeRepresentation>,
) -> Result<()> {
    let Some(ast::UserDefinedTypeRepresentation::Enum { labels: given }) = of else {
        return Err(SqlError::unsupported("CREATE TYPE other than AS ENUM"));
    };
    if given.len() > MOST_LABELS {
        return Err(too_many());
    }
    let mut labels: Vec<(i64, String)> = Vec::with_capacity(given.len());
    for given in given {
        let label = label(given)?;
        if labels.iter().any(|(_, known)| *known == label) {
            return Err(duplicate_label(code::UNIQUE_VIOLATION, &label));
        }
        labels.push(((labels.len() as i64 + 1) * LABEL_STEP, label));
    }
    define.add_type(name, |oid, array, name| NamedType::new(oid, array, name, labels, None)).await.map(drop)
}

/// Runs ALTER TYPE.
pub(crate) async fn alter_type(define: &mut Definer<'_, '_>, alter: &ast::AlterType) -> Result<()> {
    use ast::{AlterTypeAddValuePosition as Position, AlterTypeOperation as O};
    let (entry, of) = define.owned_type(&alter.name).await?;
    if of.domain.is_some() && !matches!(alter.operation, O::Rename(_)) {
        fail!(WRONG_OBJECT_TYPE, "{} is not an enum", of.name);
    }
    let mut labels = of.labels.clone();
    let find = |wanted: &ast::Ident| {
        let place = of.labels.iter().position(|(_, known)| *known == wanted.value);
        let message = format!("\"{}\" is not an existing enum label", wanted.value);
        place.ok_or_else(|| SqlError::new(code::INVALID_PARAMETER_VALUE, message))
    };
    match &alter.operation {
        O::Rename(rename) => return define.rename_type(&entry, of, folded(&rename.new_name)).await,
        O::AddValue(add) => {
            let new = label(&add.value)?;
            if labels.iter().any(|(_, known)| *known == new) {
                return define.skip(add.if_not_exists, duplicate_label(code::DUPLICATE_OBJECT, &new));
            }
            if labels.len() >= MOST_LABELS {
                return Err(too_many());
            }
            let at = match &add.position {
                None => labels.len(),
                Some(Position::Before(other)) => find(other)?,
                Some(Position::After(other)) => find(other)? + 1,
            };
            let before = at.checked_sub(1).map(|at| labels[at].0);
            let position = match (before, labels.get(at).map(|(behind, _)| *behind)) {
                (Some(before), Some(behind)) => before + (behind - before) / 2,
                (before, behind) => {
                    before.map_or(behind.unwrap_or(0) - LABEL_STEP, |before| before + LABEL_STEP)
                }
            };
            if before == Some(position) {
                let message = format!("there is no room for another label before \"{}\"", labels[at].1);
                return Err(SqlError::new(code::PROGRAM_LIMIT, message)
                    .with_hint("Make a new type, and change the columns to it."));
            }
            labels.insert(at, (position, new));
        }
        O::RenameValue(rename) => {
            let (at, new) = (find(&rename.from)?, label(&rename.to)?);
            if labels.iter().any(|(_, known)| *known == new) {
                return Err(duplicate_label(code::DUPLICATE_OBJECT, &new));
            }
            let old = Token::SingleQuotedString(rename.from.value.replace('\'', "''"));
            let is_named = |text: &str| tokens(text).is_none_or(|tokens| tokens.contains(&old));
            define
                .check_unnamed(of, is_named, "RENAME of a label that an expression or a view names")
                .await?;
            labels[at].1 = new;
        }
    }
    define.change_type(&entry, of, of.version(&of.relation(), labels, None).made()?).await
}

/// Returns the text of a default that is a literal.
fn literal(default: &str) -> Option<String> {
    match expression(default) {
        Ok(ast::Expr::Value(value)) => value.value.into_string(),
        _ => None,
    }
}

/// Returns the texts of a table's expressions, without defaults that are literals.
fn texts(table: &Table) -> impl Iterator<Item = &str> {
    let columns = table.columns.iter().flat_map(|column| {
        let default = column.default.as_ref().filter(|default| literal(default).is_none());
        default.into_iter().chain(&column.generated)
    });
    let parts = table.indexes.iter().flat_map(|index| &index.parts).filter_map(|part| match part {
        IndexPart::Expression(text, _) => Some(text),
        IndexPart::Column(_) => None,
    });
    let conditions = table.indexes.iter().filter_map(|index| index.condition.as_ref());
    let checks = table.checks.iter().map(|check| &check.condition);
    columns.chain(parts).chain(conditions).chain(checks).map(String::as_str)
}

impl Definer<'_, '_> {
    /// Adds a type with new numbers, and returns it.
    pub(super) async fn add_type(
        &mut self,
        name: &ast::ObjectName,
        make: impl FnOnce(u32, u32, &RelationName) -> NamedType,
    ) -> Result<Type> {
        let place = self.place_of(name, false).await?;
        let store = self.run.by.store().clone();
        let number = async || -> Result<u32> {
            Ok((NUMBERS.start + store.fresh_id().await? % (NUMBERS.end - NUMBERS.start)) as u32)
        };
        let (oid, array) = (number().await?, number().await?);
        let of = make(oid, array, &place).made()?;
        self.check_free(&place).await?;
        let owner = self.catalog.place().role.clone();
        let entry = Entry::Type(TypeEntry { owner, of: of.of(), comment: None });
        self.catalog.change_entry(self.run.by, &place, Some(&entry)).await?;
        Ok(of.of())
    }

    async fn check_free(&mut self, name: &RelationName) -> Result<()> {
        self.catalog.hold(self.run.by).await?;
        match self.has(name).await? {
            false => Ok(()),
            true => Err(error!(DUPLICATE_OBJECT, "type \"{}\" already exists", name.name)),
        }
    }

    /// Returns a type that the role may change.
    pub(super) async fn owned_type(
        &mut self,
        name: &ast::ObjectName,
    ) -> Result<(Rc<TypeEntry>, &'static NamedType)> {
        let name = relation(name)?;
        match self.catalog.relation(self.run.by, &name).await? {
            Some((_, Relation::Type(entry))) if let Some(of) = entry.of.named() => {
                self.catalog.place().check_owner(&entry.owner, "type", &of.name)?;
                Ok((entry, of))
            }
            _ => Err(undefined_type(&name)),
        }
    }

    /// Refuses the change of a name that the expressions of tables with a type have, or those of
    /// views of such tables: they are stored as texts.
    async fn check_unnamed(
        &mut self,
        of: &'static NamedType,
        is_named: impl Fn(&str) -> bool,
        what: &str,
    ) -> Result<()> {
        let all = self.catalog.relations(self.run.by).await?;
        let tables: Vec<&Table> = all.tables.iter().filter(|table| table.uses(of)).collect();
        let uses = |name: &RelationName| {
            *name == of.relation() || tables.iter().any(|table| table.relation() == *name)
        };
        let views = all.views.iter().cloned().chain(all.tables.iter().filter_map(Table::view));
        let mut views = views.filter(|view| view.uses.iter().any(uses));
        let is_found =
            tables.iter().any(|table| texts(table).any(&is_named)) || views.any(|view| is_named(&view.text));
        refuse(is_found, what)
    }

    /// Gives a type another definition, and the tables and views that use it.
    pub(super) async fn change_type(
        &mut self,
        entry: &TypeEntry,
        old: &NamedType,
        of: &'static NamedType,
    ) -> Result<()> {
        let all = self.catalog.relations(self.run.by).await?;
        for table in all.tables.iter().filter(|table| table.uses(of)) {
            let mut new = table.clone();
            for column in &mut new.columns {
                let new = column.of.with(of);
                if column.of.named() == Some(of)
                    && let Some(text) = column.default.as_deref().and_then(literal)
                {
                    let value = text::print(&text::parse(&text, column.of)?, new);
                    column.default = Some(ast::Value::SingleQuotedString(value).to_string());
                }
                column.of = new;
            }
            for part in new.indexes.iter_mut().flat_map(|index| &mut index.parts) {
                if let IndexPart::Expression(_, part) = part {
                    *part = part.with(of);
                }
            }
            self.catalog.change(self.run.by, Some(table), Some(&new)).await?;
        }
        let is_of = |column: &ViewColumn| column.of.named() == Some(of);
        for mut view in all.views.into_iter().filter(|view| view.columns.iter().any(is_of)) {
            view.columns.iter_mut().for_each(|column| column.of = column.of.with(of));
            self.catalog.change_entry(self.run.by, &view.relation(), Some(&Entry::View(view))).await?;
        }
        if old.relation() != of.relation() {
            self.catalog.change_entry(self.run.by, &old.relation(), None).await?;
        }
        let entry = Entry::Type(TypeEntry { of: of.of(), ..entry.clone() });
        self.catalog.change_entry(self.run.by, &of.relation(), Some(&entry)).await
    }

    pub(super) async fn rename_type(
        &mut self,
        entry: &TypeEntry,
        of: &'static NamedType,
        name: String,
    ) -> Result<()> {
        let new = RelationName::new(&of.schema, name);
        self.check_free(&new).await?;
        let is_named = |text: &str| super::alter::names(text, &of.name);
        self.check_unnamed(of, is_named, "RENAME of a type that an expression or a view names").await?;
        let new = of.version(&new, of.labels.clone(), of.domain.clone()).made()?;
        self.change_type(entry, of, new).await
    }

    /// Removes a type; if it cascades, with the columns and views that use it.
    pub(super) async fn drop_type(&mut self, entry: &TypeEntry, cascade: bool) -> Result<()> {
        let Some(of) = entry.of.named() else { return Ok(()) };
        let mut tables = self.catalog.tables(self.run.by).await?;
        tables.sort_by_key(|table| table.id);
        let columns = tables.iter().flat_map(|table| {
            let columns = table.columns.iter().filter(|column| column.of.named() == Some(of));
            columns.map(|column| (table.relation(), column.name.clone(), column.of))
        });
        let mut columns: Vec<(RelationName, String, Type)> = columns.collect();
        // PostgreSQL looks for arrays first.
        columns.sort_by_key(|(.., of)| of.element().is_none());
        let views: Vec<View> = self.views_of(&of.relation()).await?;
        let shown = |(table, column, _): &(RelationName, String, Type)| {
            format!("column {column} of table {}", table.name)
        };
        let is_free = columns.is_empty() && views.is_empty();
        if !cascade && !is_free {
            let own = of.of().name();
            let views =
                views.iter().map(|view| format!("{} {} depends on type {own}", view.kind(), view.name));
            let line =
                |column: &(_, _, Type)| format!("{} depends on type {}", shown(column), column.2.name());
            let lines: Vec<String> = columns.iter().map(line).chain(views).collect();
            return Err(needed(&format!("type {own}"), &lines));
        }
        self.cascades(columns.iter().map(shown).collect(), &views).await?;
        for (table, column, _) in columns {
            let table = self.table(&table).await?;
            Box::pin(self.drop_column(&table, &column, true, true)).await?;
        }
        self.catalog.change_entry(self.run.by, &of.relation(), None).await
    }
}
