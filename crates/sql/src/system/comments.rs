//! Comments on objects: `pg_description`.

use super::{
    Snapshot, classes, constraints,
    constraints::{CLASS, CONSTRAINT, NAMESPACE, TYPE},
    rows::row,
    snapshot::{PUBLIC, Relation, RelationOf},
};
use crate::{functions::Context, types::Value};

impl Relation {
    fn comment(&self) -> Option<&str> {
        match &self.of {
            RelationOf::Table(table) => table.comment.as_deref(),
            RelationOf::View(view) => view.comment.as_deref(),
            RelationOf::Sequence(sequence) => sequence.comment.as_deref(),
            RelationOf::Index(.., index) => index.comment.as_deref(),
            RelationOf::System(_) => None,
        }
    }
}

/// Makes the rows of `pg_description`.
pub(super) fn descriptions(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    // An object, the table of the catalog that has it, and the number of a column or 0.
    let row = |oid: u32, class: u32, column: usize, text: Option<&str>| Some(row![oid, class, column, text?]);
    let of_relations = snapshot.relations.iter().filter_map(|one| row(one.oid, CLASS, 0, one.comment()));
    let of_types = snapshot.types.iter().filter_map(|one| row(one.of.oid(), TYPE, 0, one.comment.as_deref()));
    let of_columns = classes::tables(snapshot).flat_map(|(oid, table)| {
        let columns = table.columns.iter().zip(1..);
        columns.filter_map(move |(one, column)| row(oid, CLASS, column, one.comment.as_deref()))
    });
    let constraints = constraints::all(snapshot);
    let of_constraints = constraints.iter().filter_map(|one| row(one.oid, CONSTRAINT, 0, one.comment));
    let of_schemas = snapshot
        .schemas
        .iter()
        .filter_map(|schema| row(schema.oid, NAMESPACE, 0, schema.of.as_ref()?.comment.as_deref()));
    let of_public = row(PUBLIC, NAMESPACE, 0, Some("standard public schema"));
    let of_tables = of_relations.chain(of_types).chain(of_columns);
    of_tables.chain(of_constraints).chain(of_schemas).chain(of_public).collect()
}
