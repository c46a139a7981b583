//! Rows for constraints, and for what needs other objects: `pg_constraint`, `pg_depend`.

use super::{
    Snapshot, classes,
    rows::{list, row},
    snapshot::RelationOf,
};
use crate::{
    catalog::{Action, Check, ForeignKey, Index, IndexPart, Table},
    functions::Context,
    types::{Value, named::NamedType},
};

/// The numbers of tables of the catalog, by which dependencies name the kinds of objects.
pub(super) const CLASS: u32 = 1259;
pub(super) const CONSTRAINT: u32 = 2606;
const DEFAULT: u32 = 2604;
pub(super) const TYPE: u32 = 1247;
pub(super) const NAMESPACE: u32 = 2615;

/// A constraint of a table.
pub(crate) struct Constraint<'a> {
    pub(crate) oid: u32,
    pub(crate) name: &'a str,
    pub(crate) schema: u32,
    pub(crate) table_oid: u32,
    pub(crate) table: &'a Table,
    pub(crate) columns: Vec<usize>,
    /// The columns of INCLUDE.
    pub(crate) include: Vec<usize>,
    pub(crate) deferral: Option<bool>,
    pub(crate) has_equal_nulls: bool,
    /// The index that it needs, or 0.
    pub(crate) index: u32,
    pub(crate) of: ConstraintOf<'a>,
    pub(crate) comment: Option<&'a str>,
}

/// The kind of a constraint.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConstraintOf<'a> {
    Primary,
    Unique,
    Check(&'a Check),
    /// A foreign key, the number of the other table, and that table.
    Foreign(&'a ForeignKey, u32, &'a Table),
}

/// Returns the constraints of all tables.
pub(crate) fn all(snapshot: &Snapshot) -> Vec<Constraint<'_>> {
    classes::tables(snapshot).flat_map(|(oid, table)| of_table(snapshot, oid, table)).collect()
}

/// Returns the constraint with a number.
pub(crate) fn find(snapshot: &Snapshot, oid: u32) -> Option<Constraint<'_>> {
    let relation = snapshot.relation(snapshot.table_of_constraint(oid)?)?;
    let RelationOf::Table(table) = &relation.of else { return None };
    of_table(snapshot, relation.oid, table).into_iter().find(|of| of.oid == oid)
}

fn of_table<'a>(snapshot: &'a Snapshot, oid: u32, table: &'a Table) -> Vec<Constraint<'a>> {
    let mut found = Vec::new();
    let schema = snapshot.relation(oid).map_or(0, |table| table.schema);
    let constraint = |name, columns: Vec<usize>, index, of, comment| {
        let oid_of_constraint = snapshot.constraint_oid(oid, name);
        Constraint {
            oid: oid_of_constraint,
            name,
            schema,
            table_oid: oid,
            table,
            columns,
            include: Vec::new(),
            deferral: None,
            has_equal_nulls: false,
            index,
            of,
            comment,
        }
    };
    for key in snapshot.keys_of(oid).into_iter().filter(|key| key.index.is_constraint) {
        let Index { is_primary, deferral, has_equal_nulls, constraint_comment, .. } = key.index;
        let of = if *is_primary { ConstraintOf::Primary } else { ConstraintOf::Unique };
        let mut columns: Vec<_> = key.parts.iter().filter_map(|part| part.number().checked_sub(1)).collect();
        let include = columns.split_off(key.count);
        let made = constraint(key.name, columns, key.oid, of, constraint_comment.as_deref());
        let (deferral, has_equal_nulls) = (*deferral, *has_equal_nulls);
        found.push(Constraint { include, deferral, has_equal_nulls, ..made });
    }
    for check in &table.checks {
        let of = ConstraintOf::Check(check);
        found.push(constraint(&check.name, check.columns.clone(), 0, of, check.comment.as_deref()));
    }
    for key in &table.foreign_keys {
        let Some((other_oid, other)) = snapshot.table(&key.table) else { continue };
        let index = snapshot.unique_key(other_oid, &key.referenced);
        let of = ConstraintOf::Foreign(key, other_oid, other);
        let made = constraint(&key.name, key.columns.clone(), index, of, key.comment.as_deref());
        found.push(Constraint { deferral: key.deferral(), ..made });
    }
    found
}

fn numbers(columns: &[usize]) -> Value {
    list(columns.iter().map(|at| at + 1).collect(), 1)
}

/// Returns the letter of an action of a foreign key.
fn letter(action: Action) -> char {
    match action {
        Action::Nothing => 'a',
        Action::Restrict => 'r',
        Action::Cascade => 'c',
        Action::SetNull => 'n',
        Action::SetDefault => 'd',
    }
}

/// Makes the rows of `pg_constraint`.
pub(super) fn constraints(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let row = |of: Constraint<'_>| {
        let (mut other, mut rules, mut referenced, mut condition) = (0, [' '; 3], None, None);
        let kind = match of.of {
            ConstraintOf::Primary => 'p',
            ConstraintOf::Unique => 'u',
            ConstraintOf::Check(check) => {
                condition = Some(&check.condition);
                'c'
            }
            ConstraintOf::Foreign(key, table, _) => {
                let matching = if key.is_full { 'f' } else { 's' };
                (other, rules) = (table, [letter(key.on_update), letter(key.on_delete), matching]);
                referenced = Some(numbers(&key.referenced));
                'f'
            }
        };
        row![
            [of.oid, of.name, of.schema, kind, of.deferral.is_some(), of.deferral == Some(true)],
            [of.table_oid, 0, of.index, other, rules[0], rules[1], rules[2], kind != 'c'],
            [numbers(&of.columns), referenced, condition],
        ]
    };
    let of_domain = |(oid, of, name, condition): (u32, &NamedType, &str, &str)| {
        let schema = snapshot.schema_oid(&of.schema).unwrap_or_default();
        row![
            [oid, name, schema, 'c', false, false],
            [0, of.oid, 0, 0, ' ', ' ', ' ', false],
            [Value::Null, Value::Null, condition],
        ]
    };
    all(snapshot).into_iter().map(row).chain(snapshot.domain_checks().map(of_domain)).collect()
}

/// An object that another one needs or that needs one: the kind, the number, and the column or 0.
type Object = (u32, u32, usize);

fn need((class, oid, column): Object, (other_class, other, other_column): Object, kind: char) -> Vec<Value> {
    row![class, oid, column, other_class, other, other_column, kind]
}

/// Makes the rows of `pg_depend` for the objects of the database.
pub(super) fn dependencies(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    let relations = snapshot.relations.iter().filter(|relation| !relation.is_system());
    for relation in relations.filter(|relation| relation.key().is_none()) {
        rows.push(need((CLASS, relation.oid, 0), (NAMESPACE, relation.schema, 0), 'n'));
    }
    for key in snapshot.keys().filter(|key| !key.index.is_constraint) {
        let on_column =
            |part: &IndexPart| need((CLASS, key.oid, 0), (CLASS, key.table_oid, part.number()), 'a');
        rows.extend(key.parts.iter().map(on_column));
    }
    for of in all(snapshot) {
        let own = (CONSTRAINT, of.oid, 0);
        rows.extend(of.columns.iter().map(|at| need(own, (CLASS, of.table_oid, at + 1), 'a')));
        match of.of {
            ConstraintOf::Primary | ConstraintOf::Unique => rows.push(need((CLASS, of.index, 0), own, 'i')),
            ConstraintOf::Foreign(key, table, _) => {
                rows.extend(key.referenced.iter().map(|at| need(own, (CLASS, table, at + 1), 'n')));
                rows.push(need(own, (CLASS, of.index, 0), 'n'));
            }
            ConstraintOf::Check(_) => {}
        }
    }
    for (oid, table) in classes::tables(snapshot) {
        for (column, number) in table.columns.iter().zip(1..) {
            let own = (CLASS, oid, number);
            rows.extend(column.of.named().map(|of| need(own, (TYPE, of.oid, 0), 'n')));
            let sequence = |name: &String| snapshot.sequence(name).map(|found| (CLASS, found.oid, 0));
            if let Some(sequence) = column.own_sequence.as_ref().and_then(sequence) {
                rows.push(need(sequence, own, if column.identity.is_some() { 'i' } else { 'a' }));
            }
            let default = (DEFAULT, snapshot.default_oid(oid, number), 0);
            if default.1 != 0 {
                rows.push(need(default, own, 'a'));
                let others = column.sequences.iter().filter_map(sequence);
                rows.extend(others.map(|other| need(default, other, 'n')));
            }
        }
    }
    let checks = snapshot.domain_checks();
    rows.extend(checks.map(|(oid, of, ..)| need((CONSTRAINT, oid, 0), (TYPE, of.oid, 0), 'a')));
    for of in snapshot.named_types() {
        rows.push(need((TYPE, of.oid, 0), (NAMESPACE, snapshot.schema_oid(&of.schema).unwrap_or(0), 0), 'n'));
    }
    rows.extend(of_views(snapshot));
    rows
}

/// Returns the dependencies of views: in PostgreSQL their rules have them.
fn of_views(snapshot: &Snapshot) -> Vec<Vec<Value>> {
    classes::views(snapshot)
        .flat_map(|(oid, view)| {
            let rule = (REWRITE, snapshot.rule_oid(oid), 0);
            let uses = view.uses.iter().filter_map(|name| snapshot.named(name));
            let on_uses: Vec<_> = uses.map(|used| need(rule, (CLASS, used.oid, 0), 'n')).collect();
            [need(rule, (CLASS, oid, 0), 'i'), need(rule, (CLASS, oid, 0), 'n')].into_iter().chain(on_uses)
        })
        .collect()
}

/// The table of the catalog with the queries of views.
const REWRITE: u32 = 2618;
