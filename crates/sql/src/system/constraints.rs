//! Rows for constraints, and for what needs other objects: `pg_constraint`, `pg_depend`.

use super::{
    Snapshot, classes,
    rows::{NULL, row},
    snapshot::Relation,
};
use crate::{catalog::Table, functions::Context, types::Value};

/// The numbers of tables of the catalog, by which dependencies name the kinds of objects.
const CLASS: u32 = 1259;
const CONSTRAINT: u32 = 2606;
const DEFAULT: u32 = 2604;
const NAMESPACE: u32 = 2615;

/// A constraint of a table.
pub(crate) struct Constraint<'a> {
    pub(crate) oid: u32,
    pub(crate) name: &'a str,
    pub(crate) schema: u32,
    pub(crate) table_oid: u32,
    pub(crate) table: &'a Table,
    pub(crate) columns: &'a [usize],
    /// The index that it needs, or 0.
    pub(crate) index: u32,
    pub(crate) of: ConstraintOf,
}

/// The kind of a constraint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConstraintOf {
    Primary,
    Unique,
}

/// Returns the constraints of all tables.
pub(crate) fn all(snapshot: &Snapshot) -> Vec<Constraint<'_>> {
    let of_keys = snapshot.keys().filter(|key| key.is_constraint()).map(|key| Constraint {
        oid: snapshot.constraint_oid(key.table_oid, key.name),
        name: key.name,
        schema: snapshot.relation(key.oid).map_or(0, |index| index.schema),
        table_oid: key.table_oid,
        table: key.table,
        columns: key.columns,
        index: key.oid,
        of: if key.is_primary() { ConstraintOf::Primary } else { ConstraintOf::Unique },
    });
    of_keys.collect()
}

fn numbers(columns: &[usize]) -> Vec<usize> {
    columns.iter().map(|at| at + 1).collect()
}

/// Makes the rows of `pg_constraint`.
pub(super) fn constraints(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let row = |of: Constraint<'_>| {
        let kind = match of.of {
            ConstraintOf::Primary => 'p',
            ConstraintOf::Unique => 'u',
        };
        row![
            of.oid, of.name, of.schema, kind, false, false, true, of.table_oid, 0, of.index, 0, 0, ' ', ' ', ' ',
            true, 0, true, numbers(of.columns), NULL, NULL, NULL, NULL, NULL, NULL, NULL
        ]
    };
    all(snapshot).into_iter().map(row).collect()
}

/// An object that needs another one; both with the kind, the number, and the column or 0.
struct Need((u32, u32, usize), (u32, u32, usize), char);

impl Need {
    fn row(self) -> Vec<Value> {
        let Self((class, oid, column), (other_class, other, other_column), kind) = self;
        row![class, oid, column, other_class, other, other_column, kind]
    }
}

/// Makes the rows of `pg_depend` for the objects of the database.
pub(super) fn dependencies(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let mut all_needs = Vec::new();
    let relations = snapshot.relations.iter().filter(|relation| !relation.is_system());
    for relation in relations.filter(|relation| relation.key().is_none()) {
        all_needs.push(Need((CLASS, relation.oid, 0), (NAMESPACE, relation.schema, 0), 'n'));
    }
    for key in snapshot.keys().filter(|key| !key.is_constraint()) {
        all_needs.extend(key.columns.iter().map(|at| Need((CLASS, key.oid, 0), (CLASS, key.table_oid, at + 1), 'a')));
    }
    for of in all(snapshot) {
        let own = (CONSTRAINT, of.oid, 0);
        all_needs.extend(of.columns.iter().map(|at| Need(own, (CLASS, of.table_oid, at + 1), 'a')));
        if matches!(of.of, ConstraintOf::Primary | ConstraintOf::Unique) {
            all_needs.push(Need((CLASS, of.index, 0), own, 'i'));
        }
    }
    for (oid, table) in classes::tables(snapshot) {
        for (column, number) in table.columns.iter().zip(1..) {
            let own = (CLASS, oid, number);
            let sequence = |name: &String| snapshot.sequence(name).map(|sequence: &Relation| (CLASS, sequence.oid, 0));
            if let Some(sequence) = column.own_sequence.as_ref().and_then(sequence) {
                all_needs.push(Need(sequence, own, 'a'));
            }
            if column.default.is_none() {
                continue;
            }
            let default = (DEFAULT, snapshot.default_oid(oid, number), 0);
            all_needs.push(Need(default, own, 'a'));
            all_needs.extend(column.sequences.iter().filter_map(sequence).map(|other| Need(default, other, 'n')));
        }
    }
    all_needs.into_iter().map(Need::row).collect()
}
