//! Comments on objects: `pg_description`.

use super::{
    Snapshot, classes, constraints,
    constraints::{CLASS, CONSTRAINT, NAMESPACE, TYPE},
    rows::row,
    snapshot::{PUBLIC, Relation, RelationOf},
};
use crate::{functions::Context, types::Value};

/// A comment as `pg_description` shows it.
pub(crate) struct Comment<'a> {
    pub(crate) oid: u32,
    /// The table of the catalog that has the object.
    pub(crate) class: u32,
    /// The number of the column, or 0.
    pub(crate) column: usize,
    pub(crate) text: &'a str,
}

impl Relation {
    fn comment(&self) -> Option<&str> {
        match &self.of {
            RelationOf::Table(table) => table.comment.as_deref(),
            RelationOf::View(view) => view.comment.as_deref(),
            RelationOf::Sequence(sequence) => sequence.comment.as_deref(),
            RelationOf::Index(_, table, Some(at)) => table.indexes.get(*at)?.comment.as_deref(),
            RelationOf::Index(_, table, None) => table.primary.as_ref()?.comment.as_deref(),
            RelationOf::System(_) => None,
        }
    }
}

/// Returns all comments.
pub(crate) fn all(snapshot: &Snapshot) -> Vec<Comment<'_>> {
    let of_relations = snapshot.relations.iter().filter_map(|relation| {
        Some(Comment { oid: relation.oid, class: CLASS, column: 0, text: relation.comment()? })
    });
    let of_columns = classes::tables(snapshot).flat_map(|(oid, table)| {
        let columns = table.columns.iter().zip(1..);
        columns.filter_map(move |(one, column)| {
            Some(Comment { oid, class: CLASS, column, text: one.comment.as_deref()? })
        })
    });
    let of_constraints = constraints::all(snapshot)
        .into_iter()
        .filter_map(|one| Some(Comment { oid: one.oid, class: CONSTRAINT, column: 0, text: one.comment? }));
    let of_schemas = snapshot.schemas.iter().filter_map(|schema| {
        let text = schema.of.as_ref()?.comment.as_deref()?;
        Some(Comment { oid: schema.oid, class: NAMESPACE, column: 0, text })
    });
    let public = Comment { oid: PUBLIC, class: NAMESPACE, column: 0, text: "standard public schema" };
    let of_types = snapshot.types.iter().filter_map(|entry| {
        Some(Comment { oid: entry.of.oid(), class: TYPE, column: 0, text: entry.comment.as_deref()? })
    });
    of_relations
        .chain(of_types)
        .chain(of_columns)
        .chain(of_constraints)
        .chain(of_schemas)
        .chain([public])
        .collect()
}

/// Makes the rows of `pg_description`.
pub(super) fn descriptions(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    all(snapshot).into_iter().map(|one| row![one.oid, one.class, one.column, one.text]).collect()
}
