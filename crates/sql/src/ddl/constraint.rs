//! Constraints: primary keys, unique keys, checks and foreign keys.

use sqlparser::ast;

use super::{Definer, index::names_of, sequence::numbered};
use crate::{
    bind::select::refuse,
    catalog::{Action, Check, ForeignKey, Index, Key, Privilege, RelationName, Table, undefined},
    dml::target::{bind_condition, missing_key, referenced_tree},
    error::{Result, SqlError, code, error, fail},
    parse::{folded, relation},
    types::{Type, encode},
};

/// A constraint as a statement defines it.
#[derive(Clone)]
pub(super) enum NewConstraint {
    Key(NewKey),
    Check { name: Option<String>, condition: ast::Expr },
    Foreign { name: Option<String>, key: ast::ForeignKeyConstraint },
}

/// A primary key or a unique constraint as a statement defines it.
#[derive(Clone, Default)]
pub(super) struct NewKey {
    pub(super) name: Option<String>,
    pub(super) columns: Vec<String>,
    pub(super) include: Vec<String>,
    pub(super) is_primary: bool,
    pub(super) has_equal_nulls: bool,
    /// See [`Index::deferral`].
    pub(super) deferral: Option<bool>,
}

/// Returns the deferral of a constraint, as [`Index::deferral`].
fn deferral(of: Option<&ast::ConstraintCharacteristics>) -> Result<Option<bool>> {
    let Some(of) = of else { return Ok(None) };
    refuse(of.enforced.is_some(), "ENFORCED")?;
    let is_deferred = of.initially == Some(ast::DeferrableInitial::Deferred);
    if is_deferred && of.deferrable == Some(false) {
        fail!(SYNTAX_ERROR, "constraint declared INITIALLY DEFERRED must be DEFERRABLE");
    }
    Ok(of.deferrable.unwrap_or(is_deferred).then_some(is_deferred))
}

impl NewKey {
    pub(super) fn of(
        name: Option<String>,
        columns: Vec<String>,
        characteristics: Option<&ast::ConstraintCharacteristics>,
    ) -> Result<Self> {
        Ok(Self { name, columns, deferral: deferral(characteristics)?, ..Self::default() })
    }
}

impl NewConstraint {
    pub(super) fn check(name: Option<String>, check: &ast::CheckConstraint) -> Result<Self> {
        refuse(check.no_inherit || check.enforced.is_some(), "this form of CHECK")?;
        Ok(Self::Check { name, condition: (*check.expr).clone() })
    }

    pub(super) fn of(of: &ast::TableConstraint) -> Result<Self> {
        Ok(match of {
            ast::TableConstraint::PrimaryKey(key) => {
                refuse(!key.index_options.is_empty(), "this primary key")?;
                let columns = names_of(&key.columns)?;
                let made = NewKey::of(key.name.as_ref().map(folded), columns, key.characteristics.as_ref())?;
                let include = key.include.iter().map(folded).collect();
                Self::Key(NewKey { include, is_primary: true, ..made })
            }
            ast::TableConstraint::Unique(key) => {
                refuse(!key.index_options.is_empty(), "this unique constraint")?;
                let columns = names_of(&key.columns)?;
                let made = NewKey::of(key.name.as_ref().map(folded), columns, key.characteristics.as_ref())?;
                let include = key.include.iter().map(folded).collect();
                let has_equal_nulls = key.nulls_distinct == ast::NullsDistinctOption::NotDistinct;
                Self::Key(NewKey { include, has_equal_nulls, ..made })
            }
            ast::TableConstraint::Check(check) => Self::check(check.name.as_ref().map(folded), check)?,
            ast::TableConstraint::ForeignKey(key) => {
                Self::Foreign { name: key.name.as_ref().map(folded), key: key.clone() }
            }
            other => return Err(SqlError::unsupported(format!("the constraint {other}"))),
        })
    }
}

/// Returns true if a constraint of a table has a name.
pub(super) fn has_constraint(table: &Table, name: &str) -> bool {
    table.constraint_names().any(|known| known == name)
}

/// Returns the name of a constraint: the given one, or one of parts that is free.
fn constraint_name(table: &Table, given: Option<String>, parts: &[&str], ending: &str) -> Result<String> {
    if let Some(name) = given {
        if has_constraint(table, &name) {
            fail!(DUPLICATE_OBJECT, "constraint \"{name}\" for relation \"{}\" already exists", table.name);
        }
        return Ok(name);
    }
    Ok(numbered(parts, ending).find(|name| !has_constraint(table, name)).unwrap_or_default())
}

/// Returns the column with a name, behind which the error says where it is named.
pub(super) fn named_column(table: &Table, name: &str, place: &str) -> Result<usize> {
    table.column(name).map_err(|_| error!(UNDEFINED_COLUMN, "column \"{name}\"{place} does not exist"))
}

pub(super) fn columns_of(table: &Table, names: &[String]) -> Result<Vec<usize>> {
    let mut columns: Vec<usize> = Vec::new();
    for name in names {
        let column = named_column(table, name, " named in key")?;
        if columns.contains(&column) {
            fail!(DUPLICATE_COLUMN, "column \"{name}\" appears twice in primary key constraint");
        }
        check_key_type(table.columns[column].of)?;
        columns.push(column);
    }
    Ok(columns)
}

/// Refuses a type whose values have no order in keys.
pub(super) fn check_key_type(of: Type) -> Result<()> {
    refuse(!encode::has_keys(of), &format!("a key of type {}", of.name()))
}

/// Adds a check to a table, whose rows are not looked at.
pub(super) fn add_check(table: &mut Table, name: Option<String>, condition: &ast::Expr) -> Result<()> {
    let condition = unnested(condition).to_string();
    let bound = bind_condition(table, &condition, "CHECK")?;
    let mut columns = Vec::new();
    bound.columns(&mut |column| columns.push(column));
    columns.sort_unstable();
    columns.dedup();
    let name = match columns[..] {
        [column] => constraint_name(table, name, &[&table.name, &table.columns[column].name], "check"),
        _ => constraint_name(table, name, &[&table.name], "check"),
    }?;
    table.checks.push(Check { name, condition, columns, comment: None });
    Ok(())
}

/// Returns an expression without the parentheses around it.
pub(super) fn unnested(expr: &ast::Expr) -> &ast::Expr {
    match expr {
        ast::Expr::Nested(inner) => unnested(inner),
        other => other,
    }
}

fn action(of: Option<ast::ReferentialAction>) -> Action {
    match of {
        None | Some(ast::ReferentialAction::NoAction) => Action::Nothing,
        Some(ast::ReferentialAction::Restrict) => Action::Restrict,
        Some(ast::ReferentialAction::Cascade) => Action::Cascade,
        Some(ast::ReferentialAction::SetNull) => Action::SetNull,
        Some(ast::ReferentialAction::SetDefault) => Action::SetDefault,
    }
}

/// Returns whether values of two types can be compared by their keys.
fn are_comparable(one: Type, other: Type) -> bool {
    let (one, other) = (one.base(), other.base());
    let is_text = |of: Type| matches!(of, Type::Text | Type::Varchar(_) | Type::Name);
    one.is_integer() && other.is_integer()
        || is_text(one) && is_text(other)
        || one.is_float() && other.is_float()
        || std::mem::discriminant(&one) == std::mem::discriminant(&other) && one.named() == other.named()
}

/// Checks that the columns of a foreign key fit to those that they name.
pub(super) fn check_types(table: &Table, key: &ForeignKey, other: &Table) -> Result<()> {
    for (column, referenced) in key.columns.iter().zip(&key.referenced) {
        let (one, two) = (&table.columns[*column], &other.columns[*referenced]);
        if !are_comparable(one.of, two.of) {
            let message = format!("foreign key constraint \"{}\" cannot be implemented", key.name);
            let detail = format!(
                "Key columns \"{}\" and \"{}\" are of incompatible types: {} and {}.",
                one.name,
                two.name,
                one.of.name(),
                two.of.name()
            );
            return Err(SqlError::new(code::DATATYPE_MISMATCH, message).with_detail(detail));
        }
    }
    Ok(())
}

impl Definer<'_, '_> {
    /// Adds a primary key to a table, whose rows must move to its order. Returns the index that
    /// another key needs: rows are in no order that may have two with one place.
    pub(super) async fn add_key(&mut self, table: &mut Table, key: NewKey) -> Result<Option<Index>> {
        let columns = columns_of(table, &key.columns)?;
        let include = key.include.iter().map(|name| named_column(table, name, " named in key"));
        let include = include.collect::<Result<Vec<_>>>()?;
        let (parts, ending) = match key.is_primary {
            true => (Vec::new(), "pkey"),
            false => (table.names(&[&columns[..], &include].concat()), "key"),
        };
        let name = self.index_name(table, key.name, &parts, ending).await?;
        if key.is_primary {
            if table.primary_columns().is_some() {
                fail!(
                    INVALID_TABLE_DEFINITION,
                    "multiple primary keys for table \"{}\" are not allowed",
                    table.name
                );
            }
            columns.iter().for_each(|column| table.columns[*column].not_null = true);
            if key.deferral.is_none() {
                table.primary = Some(Key { name, columns, include, comment: None, constraint_comment: None });
                return Ok(None);
            }
        }
        let NewKey { is_primary, has_equal_nulls, deferral, .. } = key;
        let index = Index { deferral, include, has_equal_nulls, ..Index::new(name, columns, true) };
        Ok(Some(Index { is_constraint: true, is_primary, ..index }))
    }

    /// Adds a foreign key to a table, whose rows are not looked at.
    pub(super) async fn add_foreign_key(
        &mut self,
        table: &mut Table,
        name: Option<String>,
        key: &ast::ForeignKeyConstraint,
    ) -> Result<()> {
        refuse(key.index_name.is_some(), "this form of FOREIGN KEY")?;
        refuse(key.match_kind == Some(ast::ConstraintReferenceMatchKind::Partial), "MATCH PARTIAL")?;
        let columns_of_key = |table: &Table, names: &[ast::Ident]| -> Result<Vec<usize>> {
            let column = |name| named_column(table, &folded(name), " referenced in foreign key constraint");
            names.iter().map(column).collect()
        };
        let columns = columns_of_key(table, &key.columns)?;
        let given = relation(&key.foreign_table)?;
        let own = table.relation();
        let is_own =
            given == own.name && self.catalog.whole_path().contains(&own.schema) || given == own.qualified();
        let found = match is_own {
            true => None,
            false => {
                let found = self.catalog.find(self.run.by, &given).await?;
                Some(found.ok_or_else(|| undefined(&given))?)
            }
        };
        let other = match &found {
            None => &*table,
            Some(found) => {
                let place = self.catalog.place();
                place.check(&found.owner, &found.grants, Privilege::References, "table", &found.name)?;
                found
            }
        };
        if other.materialized.is_some() {
            fail!(WRONG_OBJECT_TYPE, "referenced relation \"{}\" is not a table", other.name);
        }
        let is_temporary = self.catalog.is_temporary(&table.schema);
        if is_temporary != self.catalog.is_temporary(&other.schema) {
            let kind = if is_temporary { "temporary" } else { "permanent" };
            fail!(INVALID_TABLE_DEFINITION, "constraints on {kind} tables may reference only {kind} tables");
        }
        let mut referenced = columns_of_key(other, &key.referred_columns)?;
        let deferrable = |what: &str| {
            error!(NOT_IN_STATE, "cannot use a deferrable {what} for referenced table \"{}\"", other.name)
        };
        if key.referred_columns.is_empty() {
            let Some(primary) = &other.primary else {
                if other.primary_columns().is_some() {
                    return Err(deferrable("primary key"));
                }
                fail!(UNDEFINED_OBJECT, "there is no primary key for referenced table \"{}\"", other.name);
            };
            referenced.clone_from(&primary.columns);
        }
        if referenced_tree(other, &referenced).is_none() {
            let is_it = |index: &Index| {
                index.deferral.is_some()
                    && index.columns.len() == referenced.len()
                    && index.columns.iter().all(|column| referenced.contains(column))
            };
            return Err(match other.indexes.iter().any(is_it) {
                true => deferrable("unique constraint"),
                false => missing_key(&other.name),
            });
        }
        if referenced.len() != columns.len() {
            fail!(
                INVALID_FOREIGN_KEY,
                "number of referencing and referenced columns for foreign key disagree"
            );
        }
        let names = table.names(&columns).join("_");
        let name = constraint_name(table, name, &[&table.name, &names], "fkey")?;
        let deferral = deferral(key.characteristics.as_ref())?;
        let made = ForeignKey {
            name,
            columns,
            table: other.relation(),
            referenced,
            on_delete: action(key.on_delete),
            on_update: action(key.on_update),
            is_full: key.match_kind == Some(ast::ConstraintReferenceMatchKind::Full),
            is_deferrable: deferral.is_some(),
            is_deferred: deferral == Some(true),
            comment: None,
        };
        check_types(table, &made, other)?;
        table.foreign_keys.push(made);
        Ok(())
    }

    /// Returns the foreign keys of other tables that need the key of a table with these columns, or
    /// any of its keys: their tables and names.
    pub(super) async fn foreign_keys_to(
        &mut self,
        table: &Table,
        needs: impl Fn(&ForeignKey) -> bool,
    ) -> Result<Vec<(RelationName, String)>> {
        let mut found = Vec::new();
        for name in table.referenced_by.iter().filter(|name| **name != table.relation()) {
            let other = self.table(name).await?;
            let keys = other.foreign_keys.iter().filter(|key| key.table == table.relation() && needs(key));
            found.extend(keys.map(|key| (name.clone(), key.name.clone())));
        }
        Ok(found)
    }

    /// Removes foreign keys of tables.
    pub(super) async fn drop_foreign_keys(&mut self, keys: &[(RelationName, String)]) -> Result<()> {
        for (name, key) in keys {
            let table = self.table(name).await?;
            self.check_pending(&table, "ALTER TABLE")?;
            self.edit(&table, |new| new.foreign_keys.retain(|known| known.name != *key)).await?;
        }
        Ok(())
    }
}
