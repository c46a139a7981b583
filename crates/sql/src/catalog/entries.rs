//! The descriptions of relations, as the catalog keeps them. A field that a former version did not
//! write has a default; without an attribute that of an `Option` is `None`.

use plexus_base::BlockId;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Result, error},
    sequences::Sequence,
    types::{Type, Value, encode, named::NamedType},
};

/// The schema that each database has.
pub(crate) const PUBLIC: &str = "public";

pub(crate) fn public() -> String {
    PUBLIC.to_owned()
}

/// A relation's schema and name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct RelationName {
    pub(crate) schema: String,
    pub(crate) name: String,
}

impl RelationName {
    pub(crate) fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self { schema: schema.into(), name: name.into() }
    }

    /// Returns the end of its key in the catalog. The default schema is left out: a name has no
    /// byte 0.
    pub(crate) fn key(&self) -> String {
        match self.schema.as_str() {
            PUBLIC => self.name.clone(),
            schema => format!("{schema}\0{}", self.name),
        }
    }

    /// Returns the relation of the end of a key.
    pub(crate) fn of_key(key: &str) -> Self {
        match key.split_once('\0') {
            None => Self::new(PUBLIC, key),
            Some((schema, name)) => Self::new(schema, name),
        }
    }

    /// Returns it as statements name it: with its schema before a byte 0.
    pub(crate) fn qualified(&self) -> String {
        format!("{}\0{}", self.schema, self.name)
    }

    /// Returns it as SQL writes it, with its schema unless that is the default one.
    pub(crate) fn quoted(&self) -> String {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        match self.schema.as_str() {
            PUBLIC => quoted(&self.name),
            schema => format!("{}.{}", quoted(schema), quoted(&self.name)),
        }
    }
}

/// Returns a name as a message shows it: the byte 0 behind its schema is a point.
pub(crate) fn shown(name: &str) -> String {
    name.replace('\0', ".")
}

/// A right to use a relation, a schema or a database.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Privilege {
    Select,
    Insert,
    Update,
    Delete,
    Truncate,
    References,
    Trigger,
    Usage,
    Create,
    Connect,
    Temporary,
}

/// A right that a role has been given.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// The role; `None`: all roles.
    pub(crate) role: Option<String>,
    pub(crate) privilege: Privilege,
    /// The role may give it to others.
    pub(crate) can_grant: bool,
    /// The role that has given it.
    pub(crate) by: String,
}

/// A table as the catalog describes it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) id: u64,
    #[serde(default = "public")]
    pub(crate) schema: String,
    pub(crate) name: String,
    /// The role that may change it, beside superusers.
    pub(crate) owner: String,
    /// The root of the tree with the rows.
    pub(crate) root: u64,
    pub(crate) columns: Vec<Column>,
    /// The primary key, in whose order the rows are; without one each row has a number.
    pub(crate) primary: Option<Key>,
    pub(crate) indexes: Vec<Index>,
    #[serde(default)]
    pub(crate) checks: Vec<Check>,
    #[serde(default)]
    pub(crate) foreign_keys: Vec<ForeignKey>,
    /// The tables whose foreign keys name this one.
    #[serde(default)]
    pub(crate) referenced_by: Vec<RelationName>,
    /// Its rows are those of a query.
    pub(crate) materialized: Option<Materialized>,
    #[serde(default)]
    pub(crate) grants: Vec<Grant>,
    pub(crate) comment: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) of: Type,
    pub(crate) not_null: bool,
    /// The number of its collation, if that is not the one of its type.
    pub(crate) collation: Option<u32>,
    /// The text of the expression.
    pub(crate) default: Option<String>,
    /// The sequences that the expression names, by the ends of their keys.
    #[serde(default)]
    pub(crate) sequences: Vec<String>,
    /// The sequence that is removed with the column, by the end of its key.
    pub(crate) own_sequence: Option<String>,
    /// Its values come from its sequence.
    pub(crate) identity: Option<Identity>,
    /// The text of the expression that computes its values of those of the other columns.
    pub(crate) generated: Option<String>,
    pub(crate) comment: Option<String>,
}

/// The kind of a column whose values come from its sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Identity {
    /// Statements cannot give other values, unless they override it.
    Always,
    ByDefault,
}

impl Column {
    pub(crate) fn new(name: &str, of: Type) -> Self {
        Self {
            name: name.to_owned(),
            of,
            not_null: false,
            collation: None,
            default: None,
            sequences: Vec::new(),
            own_sequence: None,
            identity: None,
            generated: None,
            comment: None,
        }
    }
}

/// A primary key: its name and its columns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) columns: Vec<usize>,
    /// The columns of INCLUDE.
    #[serde(default)]
    pub(crate) include: Vec<usize>,
    pub(crate) comment: Option<String>,
    pub(crate) constraint_comment: Option<String>,
}

impl Key {
    /// Returns it as the index that it would be.
    pub(crate) fn index(&self) -> Index {
        Index {
            is_constraint: true,
            is_primary: true,
            include: self.include.clone(),
            comment: self.comment.clone(),
            constraint_comment: self.constraint_comment.clone(),
            ..Index::new(self.name.clone(), self.columns.clone(), true)
        }
    }
}

/// An index: a tree with the columns, and the key of the row.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) name: String,
    pub(crate) root: u64,
    /// The columns by which rows can be found. An index with `parts` or a condition has none here.
    pub(crate) columns: Vec<usize>,
    pub(crate) is_unique: bool,
    /// A constraint has made it: UNIQUE, or a primary key that is deferrable.
    #[serde(default)]
    pub(crate) is_constraint: bool,
    #[serde(default)]
    pub(crate) is_primary: bool,
    /// Several rows may have the same values until they are checked: at the end of the statement,
    /// or of the transaction if it is true.
    pub(crate) deferral: Option<bool>,
    /// NULLS NOT DISTINCT: NULL is a value like others.
    #[serde(default)]
    pub(crate) has_equal_nulls: bool,
    /// The columns of INCLUDE: its entries lead to rows, which have all columns.
    #[serde(default)]
    pub(crate) include: Vec<usize>,
    /// Its columns and expressions, if it has an expression or a condition.
    #[serde(default)]
    pub(crate) parts: Vec<IndexPart>,
    /// The text of the condition of the rows that it has.
    pub(crate) condition: Option<String>,
    /// CREATE INDEX CONCURRENTLY fills it: rows that change have their entries, others not yet. Its
    /// columns are among `parts`, so that nothing is looked up in it.
    #[serde(default)]
    pub(crate) is_building: bool,
    /// The order of each column, as the definition says; its entries rise all the same.
    #[serde(default)]
    pub(crate) order: Vec<IndexOrder>,
    pub(crate) comment: Option<String>,
    pub(crate) constraint_comment: Option<String>,
}

/// A part of the key of an index.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum IndexPart {
    Column(usize),
    /// The text of an expression, and the type of its value.
    Expression(String, Type),
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct IndexOrder {
    pub(crate) is_descending: bool,
    pub(crate) nulls_first: bool,
    /// The number of the collation, if the definition has one.
    pub(crate) collation: Option<u32>,
    /// The number of the operator class, if it is one of [`PATTERN_CLASSES`].
    pub(crate) class: Option<u32>,
}

/// The operator classes of patterns with their numbers: the order of texts is that of bytes, so
/// they mean the same as others.
pub(crate) static PATTERN_CLASSES: &[(&str, u32)] =
    &[("text_pattern_ops", 4217), ("varchar_pattern_ops", 4218), ("bpchar_pattern_ops", 4219)];

/// A condition of all rows of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) name: String,
    /// The text of the condition.
    pub(crate) condition: String,
    /// The columns that it names.
    pub(crate) columns: Vec<usize>,
    pub(crate) comment: Option<String>,
}

/// The columns of a table whose values are those of a row of another table, or NULL.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ForeignKey {
    pub(crate) name: String,
    pub(crate) columns: Vec<usize>,
    /// The other table, and its columns, which a primary key or a unique index has.
    pub(crate) table: RelationName,
    pub(crate) referenced: Vec<usize>,
    pub(crate) on_delete: Action,
    pub(crate) on_update: Action,
    /// If one value is NULL, all are.
    pub(crate) is_full: bool,
    pub(crate) is_deferrable: bool,
    /// It is checked at the end of the transaction, unless that says otherwise.
    pub(crate) is_deferred: bool,
    pub(crate) comment: Option<String>,
}

/// The way of a change of a row that other rows need.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) enum Action {
    /// It fails, if they need it when it is checked.
    #[default]
    Nothing,
    /// It fails.
    Restrict,
    /// The other rows are changed, too.
    Cascade,
    SetNull,
    SetDefault,
}

/// A query under a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct View {
    pub(crate) id: u64,
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) owner: String,
    /// The text of the query.
    pub(crate) text: String,
    /// The schemas in which its names without schema were looked for.
    pub(crate) path: Vec<String>,
    pub(crate) columns: Vec<ViewColumn>,
    /// The relations that the query names.
    pub(crate) uses: Vec<RelationName>,
    /// It is a table with the rows of a query.
    #[serde(skip)]
    pub(crate) is_materialized: bool,
    #[serde(default)]
    pub(crate) grants: Vec<Grant>,
    pub(crate) comment: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ViewColumn {
    pub(crate) name: String,
    pub(crate) of: Type,
}

/// A schema other than those that each database has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Schema {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) owner: String,
    #[serde(default)]
    pub(crate) grants: Vec<Grant>,
    pub(crate) comment: Option<String>,
}

/// A type that a statement has made. Types and relations have different names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TypeEntry {
    pub(crate) owner: String,
    pub(crate) of: Type,
    pub(crate) comment: Option<String>,
}

/// The relation or type with a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Entry {
    Table(Box<Table>),
    /// The index of this table, by the end of the table's key.
    IndexOf(String),
    Sequence(Sequence),
    View(View),
    Type(TypeEntry),
}

/// The query of a materialized view, as [`View`] has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Materialized {
    pub(crate) text: String,
    pub(crate) path: Vec<String>,
    pub(crate) uses: Vec<RelationName>,
    /// It has had rows.
    pub(crate) is_populated: bool,
}

impl Table {
    pub(crate) fn new(id: u64, name: &RelationName, owner: &str, root: u64, columns: Vec<Column>) -> Self {
        Self {
            id,
            schema: name.schema.clone(),
            name: name.name.clone(),
            owner: owner.to_owned(),
            root,
            columns,
            ..Self::default()
        }
    }

    /// Returns whether values of a type that a statement has made are in it.
    pub(crate) fn uses(&self, of: &'static NamedType) -> bool {
        self.columns.iter().any(|column| column.of.named() == Some(of))
    }

    /// Returns the view that a materialized one would be.
    pub(crate) fn view(&self) -> Option<View> {
        let Materialized { text, path, uses, .. } = self.materialized.clone()?;
        let column = |column: &Column| ViewColumn { name: column.name.clone(), of: column.of };
        Some(View {
            id: self.id,
            schema: self.schema.clone(),
            name: self.name.clone(),
            owner: self.owner.clone(),
            text,
            path,
            columns: self.columns.iter().map(column).collect(),
            uses,
            is_materialized: true,
            grants: self.grants.clone(),
            comment: self.comment.clone(),
        })
    }

    /// Refuses a change of the rows of a materialized view.
    pub(crate) fn check_changeable(&self, verb: &str) -> Result<()> {
        match self.materialized {
            None => Ok(()),
            Some(_) => Err(error!(WRONG_OBJECT_TYPE, "cannot {verb} materialized view \"{}\"", self.name)),
        }
    }

    pub(crate) fn rows(&self) -> BlockId {
        BlockId(self.root)
    }

    pub(crate) fn relation(&self) -> RelationName {
        RelationName::new(&self.schema, &self.name)
    }

    /// Returns the roots of its trees.
    pub(crate) fn trees(&self) -> impl Iterator<Item = u64> + '_ {
        [self.root].into_iter().chain(self.indexes.iter().map(|index| index.root))
    }

    pub(crate) fn column(&self, name: &str) -> Result<usize> {
        self.columns.iter().position(|column| column.name == name).ok_or_else(|| {
            error!(UNDEFINED_COLUMN, "column \"{name}\" of relation \"{}\" does not exist", self.name)
        })
    }

    /// Returns the key of a row by its primary key; `None` if the table has none.
    pub(crate) fn primary_key(&self, values: &[Value]) -> Result<Option<Vec<u8>>> {
        let Some(primary) = &self.primary else { return Ok(None) };
        self.key(&primary.columns, values).map(Some)
    }

    /// Returns the columns of the primary key, also if it is deferrable.
    pub(crate) fn primary_columns(&self) -> Option<&[usize]> {
        let deferrable = self.indexes.iter().find(|index| index.is_primary).map(|index| &index.columns);
        self.primary.as_ref().map(|key| &key.columns).or(deferrable).map(|columns| &columns[..])
    }

    pub(crate) fn key(&self, columns: &[usize], values: &[Value]) -> Result<Vec<u8>> {
        let mut key = Vec::new();
        for column in columns {
            encode::put_key(&mut key, &values[*column], self.columns[*column].of)?;
        }
        Ok(key)
    }

    /// Returns the names of its constraints.
    pub(crate) fn constraint_names(&self) -> impl Iterator<Item = &str> {
        let primary = self.primary.iter().map(|key| key.name.as_str());
        let unique = self.indexes.iter().filter(|index| index.is_constraint).map(|index| index.name.as_str());
        let checks = self.checks.iter().map(|check| check.name.as_str());
        let foreign = self.foreign_keys.iter().map(|key| key.name.as_str());
        primary.chain(unique).chain(checks).chain(foreign)
    }

    /// Returns the names of columns.
    pub(crate) fn names(&self, columns: &[usize]) -> Vec<&str> {
        columns.iter().map(|column| self.columns[*column].name.as_str()).collect()
    }
}

impl ForeignKey {
    /// Returns its deferral as [`Index::deferral`].
    pub(crate) fn deferral(&self) -> Option<bool> {
        self.is_deferrable.then_some(self.is_deferred)
    }
}

impl View {
    /// Returns the kind of the view for messages.
    pub(crate) fn kind(&self) -> &'static str {
        if self.is_materialized { "materialized view" } else { "view" }
    }

    pub(crate) fn relation(&self) -> RelationName {
        RelationName::new(&self.schema, &self.name)
    }
}

/// The number of a row of a table without primary key, as its key.
pub(crate) fn number_key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl Index {
    pub(crate) fn new(name: String, columns: Vec<usize>, is_unique: bool) -> Self {
        Self { name, columns, is_unique, ..Self::default() }
    }

    pub(crate) fn tree(&self) -> BlockId {
        BlockId(self.root)
    }

    /// Returns the value of the entry of a row. That of a deferrable index may be one of several
    /// rows, so it is behind its length.
    pub(crate) fn value_of(&self, row_key: &[u8]) -> Vec<u8> {
        match self.deferral {
            None => row_key.to_vec(),
            Some(_) => [&(row_key.len() as u16).to_le_bytes(), row_key].concat(),
        }
    }

    /// Returns the keys of the rows of an entry.
    pub(crate) fn row_keys<'v>(&self, mut value: &'v [u8]) -> Vec<&'v [u8]> {
        if self.deferral.is_none() {
            return vec![value];
        }
        let mut keys = Vec::with_capacity(1);
        while let Some((length, rest)) = value.split_first_chunk() {
            let Some((key, rest)) = rest.split_at_checked(u16::from_le_bytes(*length).into()) else { break };
            keys.push(key);
            value = rest;
        }
        keys
    }

    /// Returns true if it has each row, by columns alone.
    pub(crate) fn is_plain(&self) -> bool {
        self.parts.is_empty() && self.condition.is_none()
    }

    /// Returns the key of a row in the index, which is plain, and whether other rows may not have
    /// the same values.
    pub(crate) fn key(&self, table: &Table, row_key: &[u8], values: &[Value]) -> Result<(Vec<u8>, bool)> {
        let mut key = table.key(&self.columns, values)?;
        let is_value = |column: &usize| self.has_equal_nulls || !values[*column].is_null();
        let is_alone = self.is_unique && self.columns.iter().all(is_value);
        if !is_alone {
            key.extend(row_key);
        }
        Ok((key, is_alone))
    }
}
