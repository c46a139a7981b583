//! Rows for relations and their columns: `pg_class`, `pg_attribute`, `pg_attrdef`, `pg_index`,
//! `pg_sequence`.

use super::{
    Snapshot, acl, describe, relations,
    rows::{row, vector},
    snapshot::{Key, Relation, RelationOf},
    types::{self, CatalogType},
};
use crate::{
    catalog::{Column, Grant, Identity, IndexPart, Table, View},
    functions::Context,
    sequences::Sequence,
    types::{Type, Value},
};

/// The access methods of tables and indexes.
const HEAP: u32 = 2;
const BTREE: u32 = 403;
/// The collation of names, and the one of the database.
const C: u32 = 950;
const DEFAULT_COLLATION: u32 = 100;
/// The tablespace of what all databases share.
const GLOBAL: u32 = 1664;

/// The values in which rows of `pg_class` differ.
struct Class {
    kind: char,
    access: u32,
    columns: usize,
    has_index: bool,
    is_shared: bool,
}

impl Class {
    fn of(relation: &Relation) -> Self {
        let class =
            |kind, access, columns| Self { kind, access, columns, has_index: false, is_shared: false };
        match &relation.of {
            RelationOf::Table(table) => {
                let has_index = table.primary.is_some() || !table.indexes.is_empty();
                let kind = if table.materialized.is_some() { 'm' } else { 'r' };
                Self { has_index, ..class(kind, HEAP, table.columns.len()) }
            }
            RelationOf::Index(..) => class('i', BTREE, relation.key().map_or(0, |key| key.parts.len())),
            RelationOf::View(view) => class('v', 0, view.columns.len()),
            RelationOf::Sequence(_) => class('S', 0, SEQUENCE_COLUMNS.len()),
            RelationOf::System(table) => {
                let access = if table.kind() == 'r' { HEAP } else { 0 };
                Self { is_shared: table.is_shared(), ..class(table.kind(), access, table.columns.len()) }
            }
        }
    }
}

/// Makes the rows of `pg_class`.
pub(super) fn classes(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let row = |relation: &Relation| {
        let Class { kind, access, columns, has_index, is_shared } = Class::of(relation);
        let has_rows = kind != 'v';
        // The numbers of rows and pages are those of a table that was never analyzed.
        let rows = if kind == 'r' { -1.0 } else { 0.0 };
        let file = if has_rows && !matches!(relation.of, RelationOf::System(_)) { relation.oid } else { 0 };
        let space = if is_shared { GLOBAL } else { 0 };
        let is_temporary = |relation: &Relation| {
            snapshot.schema_name(relation.schema).is_some_and(|name| name.starts_with("pg_temp_"))
        };
        let is_populated = |relation: &Relation| match &relation.of {
            RelationOf::Table(table) => table.materialized.as_ref().is_none_or(|view| view.is_populated),
            _ => true,
        };
        let identity = match kind {
            'r' | 'm' if !matches!(relation.of, RelationOf::System(_)) => 'd',
            _ => 'n',
        };
        let persistence = if is_temporary(relation) { 't' } else { 'p' };
        let has_rules = matches!(kind, 'v' | 'm');
        row![
            [relation.oid, &relation.name, relation.schema, snapshot.owner_of(relation)],
            [access, file, space, rows, has_index, is_shared, persistence, kind],
            [columns, relation.checks(), has_rules, relation.has_triggers()],
            [is_populated(relation), identity],
            [acl::of(relation.owner().unwrap_or_default(), relation.acl_letter(), relation.grants())],
        ]
    };
    snapshot.relations.iter().map(row).collect()
}

impl Relation {
    /// Returns the number of its checks.
    fn checks(&self) -> usize {
        match &self.of {
            RelationOf::Table(table) => table.checks.len(),
            _ => 0,
        }
    }

    /// Returns whether PostgreSQL has triggers for it: those of foreign keys.
    fn has_triggers(&self) -> bool {
        match &self.of {
            RelationOf::Table(table) => !table.foreign_keys.is_empty() || !table.referenced_by.is_empty(),
            _ => false,
        }
    }

    /// Returns the rights that roles have been given.
    pub(crate) fn grants(&self) -> &[Grant] {
        match &self.of {
            RelationOf::Table(table) => &table.grants,
            RelationOf::View(view) => &view.grants,
            RelationOf::Sequence(sequence) => &sequence.grants,
            _ => &[],
        }
    }

    /// Returns its letter as in `acldefault`.
    fn acl_letter(&self) -> &'static str {
        if matches!(self.of, RelationOf::Sequence(_)) { "s" } else { "r" }
    }
}

/// The columns of a sequence when a query reads it like a table.
pub(crate) const SEQUENCE_COLUMNS: [(&str, Type); 3] =
    [("last_value", Type::Int8), ("log_cnt", Type::Int8), ("is_called", Type::Bool)];

/// The values in which rows of `pg_attribute` differ.
struct Attribute<'a> {
    name: &'a str,
    of: Type,
    not_null: bool,
    column: Option<&'a Column>,
}

impl<'a> Attribute<'a> {
    /// Returns the columns of a relation.
    fn all(relation: &'a Relation) -> Vec<Self> {
        let plain = |(name, of, not_null): (&'a str, Type, bool)| Self { name, of, not_null, column: None };
        match &relation.of {
            RelationOf::Table(table) => table.columns.iter().map(Self::of_column).collect(),
            RelationOf::Index(_, table, _) => {
                let parts = relation.key().map_or_else(Vec::new, |key| key.parts);
                let part = |part: IndexPart| match part {
                    IndexPart::Column(at) => plain((&table.columns[at].name, table.columns[at].of, false)),
                    IndexPart::Expression(_, of) => plain(("expr", of, false)),
                };
                parts.into_iter().map(part).collect()
            }
            RelationOf::View(view) => {
                view.columns.iter().map(|column| plain((&column.name, column.of, false))).collect()
            }
            RelationOf::Sequence(_) => {
                SEQUENCE_COLUMNS.iter().map(|(name, of)| plain((name, *of, true))).collect()
            }
            RelationOf::System(table) => {
                let columns = table.columns.iter().zip(&table.required);
                columns.map(|((name, of), not_null)| plain((name, *of, *not_null))).collect()
            }
        }
    }

    fn of_column(column: &'a Column) -> Self {
        Self { name: &column.name, of: column.of, not_null: column.not_null, column: Some(column) }
    }

    fn row(&self, oid: u32, number: usize) -> Vec<Value> {
        let of = self.of.oid();
        let dimensions = i32::from(matches!(self.of, Type::Array(_)));
        let own = self.of.named().filter(|own| own.oid == of).map(CatalogType::of_named);
        let plain = types::plain(of).or(own.as_ref());
        let is_by_value = plain.is_some_and(|plain| plain.is_by_value);
        let alignment = plain.map_or("i", |plain| plain.alignment);
        let storage = plain.map_or("x", |plain| plain.storage);
        let has_default = self.column.is_some_and(|one| one.default.is_some() || one.generated.is_some());
        let has_default = has_default && self.identity().is_empty();
        let generated = if self.column.is_some_and(|column| column.generated.is_some()) { "s" } else { "" };
        let collation = self.column.and_then(|column| column.collation);
        row![
            [oid, self.name, of, self.of.size(), number, dimensions, self.of.modifier()],
            [is_by_value, alignment, storage, "", self.not_null, has_default, self.identity(), generated],
            [collation.unwrap_or_else(|| collation_of(self.of))],
        ]
    }

    fn identity(&self) -> &'static str {
        match self.column.and_then(|column| column.identity) {
            None => "",
            Some(Identity::Always) => "a",
            Some(Identity::ByDefault) => "d",
        }
    }
}

/// Returns the collation of the values of a type, 0 if they have none.
pub(super) fn collation_of(of: Type) -> u32 {
    match of.base() {
        Type::Name => C,
        Type::Array(of) => collation_of(*of),
        of if of.is_text() => DEFAULT_COLLATION,
        _ => 0,
    }
}

/// Makes the rows of `pg_attribute`.
pub(super) fn attributes(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let rows = |relation: &Relation| {
        let all = Attribute::all(relation);
        all.iter().zip(1..).map(|(one, number)| one.row(relation.oid, number)).collect::<Vec<_>>()
    };
    snapshot.relations.iter().flat_map(rows).collect()
}

/// Returns the tables of the database with their numbers.
pub(super) fn tables(snapshot: &Snapshot) -> impl Iterator<Item = (u32, &Table)> {
    snapshot.relations.iter().filter_map(|relation| match &relation.of {
        RelationOf::Table(table) => Some((relation.oid, &**table)),
        _ => None,
    })
}

/// Returns the views of the database with their numbers.
pub(super) fn views(snapshot: &Snapshot) -> impl Iterator<Item = (u32, View)> {
    snapshot.relations.iter().filter_map(|relation| match &relation.of {
        RelationOf::View(view) => Some((relation.oid, view.clone())),
        RelationOf::Table(table) => Some((relation.oid, table.view()?)),
        _ => None,
    })
}

/// Makes the rows of `pg_rewrite`.
pub(super) fn rules(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    views(snapshot).map(|(oid, view)| row![snapshot.rule_oid(oid), oid, &view.text]).collect()
}

/// Makes the rows of `pg_attrdef`.
pub(super) fn defaults(snapshot: &Snapshot, context: &Context) -> Vec<Vec<Value>> {
    let path = snapshot.path(context);
    let rows = |(oid, table): (u32, &Table)| {
        let columns = table.columns.iter().zip(1..);
        let defaults = columns.filter_map(|(column, number)| {
            column.default.as_ref().or(column.generated.as_ref())?;
            let text = describe::default_of(snapshot, &path, table, number - 1)?;
            Some(row![snapshot.default_oid(oid, number), oid, number, text])
        });
        defaults.collect::<Vec<_>>()
    };
    tables(snapshot).flat_map(rows).collect()
}

/// Returns the operator class of an index column: the default one of the type.
pub(super) fn class_of(of: Type) -> u32 {
    let wanted = match of.base() {
        Type::Array(_) | Type::Int2Vector => 2277,
        Type::Varchar(_) => Type::Text.oid(),
        Type::Cidr => Type::Inet.oid(),
        Type::Enum(_) => 3500,
        of if of.is_reg() => Type::Oid.oid(),
        of => of.oid(),
    };
    let is_it = |row: &&Vec<Value>| row[6] == wanted.into() && row[7] == true.into();
    match relations::fixed("pg_opclass").iter().find(is_it).map(|row| &row[0]) {
        Some(Value::Int(oid)) => *oid as u32,
        _ => 0,
    }
}

/// Makes the rows of `pg_index`.
pub(super) fn indexes(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let row = |key: Key<'_>| {
        let types: Vec<Type> = key.parts[..key.count].iter().map(|part| part.type_in(key.table)).collect();
        let columns = vector(key.parts.iter().map(|part| part.number()).collect());
        let collations = key.parts[..key.count].iter().enumerate();
        let collations = collations
            .map(|(at, part)| key.order(at).collation.unwrap_or_else(|| part.collation_in(key.table)));
        let collations = vector(collations.collect());
        let classes = types.iter().enumerate();
        let classes = classes.map(|(at, of)| key.order(at).class.unwrap_or_else(|| class_of(*of)));
        let classes = vector(classes.collect());
        let options = (0..types.len()).map(|at| {
            let order = key.order(at);
            i32::from(order.is_descending) | i32::from(order.nulls_first) << 1
        });
        let (count, options, index) = (types.len(), vector(options.collect()), key.index);
        let expressions: Vec<&str> = key.parts.iter().filter_map(|part| part.expression()).collect();
        let expressions = (!expressions.is_empty()).then(|| expressions.join(", "));
        row![
            [key.oid, key.table_oid, key.parts.len(), count, index.is_unique, index.has_equal_nulls],
            [index.is_primary, index.deferral.is_none(), !index.is_building],
            [columns, collations, classes, options],
            [expressions, index.condition.as_deref()],
        ]
    };
    snapshot.keys().map(row).collect()
}

/// Makes the rows of `pg_sequence`.
pub(super) fn sequences(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let row = |relation: &Relation| {
        let RelationOf::Sequence(sequence) = &relation.of else { return None };
        let Sequence { of, start, increment, most, least, cache, cycles, .. } = sequence;
        Some(row![relation.oid, of.oid(), *start, *increment, *most, *least, *cache, *cycles])
    };
    snapshot.relations.iter().filter_map(row).collect()
}
