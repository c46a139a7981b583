//! The rights to tables and views in `information_schema`.

use super::{
    Snapshot, acl,
    rows::row,
    snapshot::{Relation, RelationOf},
};
use crate::{catalog::Grant, functions::Context, types::Value};

/// A right to a table, with the names of the roles; `None` is all roles.
struct Right<'a> {
    by: &'a str,
    role: Option<&'a str>,
    word: &'static str,
    can_grant: bool,
}

/// Returns the rights to a table or view.
fn rights(relation: &Relation) -> Vec<Right<'_>> {
    let owner = relation.owner().unwrap_or_default();
    let own = acl::OF_TABLES.iter();
    let own = own.map(|word| Right { by: owner, role: Some(owner), word, can_grant: true });
    let given = relation.grants().iter().filter_map(|grant: &Grant| {
        let (by, role) = (grant.by.as_str(), grant.role.as_deref());
        Some(Right { by, role, word: acl::word(grant.privilege)?, can_grant: grant.can_grant })
    });
    own.chain(given).collect()
}

fn rows(
    snapshot: &Snapshot,
    row: impl Fn(&Relation, &str, &Right<'_>) -> Vec<Vec<Value>>,
) -> Vec<Vec<Value>> {
    let relations = snapshot.relations.iter();
    let relations = relations.filter(|one| matches!(one.of, RelationOf::Table(_) | RelationOf::View(_)));
    let of_relation = |relation: &Relation| {
        let schema = snapshot.schema_name(relation.schema).unwrap_or_default();
        rights(relation).iter().flat_map(|right| row(relation, schema, right)).collect::<Vec<_>>()
    };
    relations.flat_map(of_relation).collect()
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "YES" } else { "NO" }
}

/// Makes the rows of `table_privileges`.
pub(super) fn of_tables(snapshot: &Snapshot, context: &Context) -> Vec<Vec<Value>> {
    rows(snapshot, |relation, schema, Right { by, role, word, can_grant }| {
        let role = role.unwrap_or("PUBLIC");
        vec![row![
            *by,
            role,
            &context.database,
            schema,
            &relation.name,
            *word,
            yes(*can_grant),
            yes(*word == "SELECT")
        ]]
    })
}

/// Makes the rows of `column_privileges`.
pub(super) fn of_columns(snapshot: &Snapshot, context: &Context) -> Vec<Vec<Value>> {
    rows(snapshot, |relation, schema, Right { by, role, word, can_grant }| {
        if !matches!(*word, "SELECT" | "INSERT" | "UPDATE" | "REFERENCES") {
            return Vec::new();
        }
        let role = role.unwrap_or("PUBLIC");
        let row = |column: &String| {
            row![*by, role, &context.database, schema, &relation.name, column, *word, yes(*can_grant)]
        };
        match &relation.of {
            RelationOf::Table(table) => table.columns.iter().map(|column| row(&column.name)).collect(),
            RelationOf::View(view) => view.columns.iter().map(|column| row(&column.name)).collect(),
            _ => Vec::new(),
        }
    })
}
