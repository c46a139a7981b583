//! The catalog: relations and schemas, as rows of a tree of the store.
//!
//! | key | value |
//! |---|---|
//! | `v` | a number that each change of the catalog replaces by one that never was |
//! | `r`, a database and a name | the table, view, sequence or type of this name, or the table whose index has it; before a name that is not in the schema `public`: its schema and a byte 0 |
//! | `n`, a database and a name | a schema |
//! | `s` and a number | the state of a sequence |
//! | `u` and a name | a role |
//! | `d` and a name | the number of a database |
//!
//! A change of the catalog is part of its transaction, like all other changes of rows.

mod entries;

use std::{collections::HashMap, rc::Rc};

use plexus_base::BlockId;
use plexus_cache::Cache;
use plexus_interconnect::executor;
use plexus_store::{RowChange, tree::ScanPlace};
use serde::{Serialize, de::DeserializeOwned};
use sqlparser::ast;

pub(crate) use self::entries::{
    Action, Check, Column, Entry, ForeignKey, Grant, Identity, Index, IndexOrder, IndexPart, Key,
    Materialized, PATTERN_CLASSES, PUBLIC, Privilege, RelationName, Schema, Table, TypeEntry, View,
    ViewColumn, number_key, public, shown,
};
use crate::{
    bind::{Parameters, type_of},
    error::{Result, SqlError, code, fail},
    sequences::{Sequence, SequenceSlot},
    types::{Type, named::NamedType},
};

/// The transaction of a session.
pub(crate) type Transaction = plexus_store::Transaction<Cache>;

const VERSION_KEY: &[u8] = b"v";

/// The kinds of the rows of relations and of schemas.
const RELATION: u8 = b'r';
const SCHEMA: u8 = b'n';

/// A relation or type that a name means.
#[derive(Clone, Debug)]
pub(crate) enum Relation {
    Table(Rc<Table>),
    View(Rc<View>),
    Sequence(Rc<Sequence>),
    /// An index of this table.
    Index(RelationName),
    Type(Rc<TypeEntry>),
}

/// The relations and types of a database.
#[derive(Default, Debug)]
pub(crate) struct Relations {
    pub(crate) tables: Vec<Table>,
    pub(crate) views: Vec<View>,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) types: Vec<TypeEntry>,
}

/// The catalog as a session knows it.
pub(crate) struct Catalog {
    place: SessionPlace,
    /// The schemas in which a name without schema is looked for.
    path: Vec<String>,
    /// The schema of the session for temporary relations, which is looked at first.
    temporary: Option<String>,
    /// The version at which the relations were read, and the path behind it.
    version: Option<Vec<u8>>,
    known: HashMap<String, Option<(RelationName, Relation)>>,
}

/// The database of a session, and the role that uses it.
#[derive(Clone, Debug)]
pub(crate) struct SessionPlace {
    pub(crate) database: u32,
    pub(crate) role: String,
    pub(crate) is_superuser: bool,
}

impl SessionPlace {
    /// Returns the first part of the keys of the database's relations or schemas.
    fn prefix(&self, kind: u8) -> Vec<u8> {
        [&[kind][..], &self.database.to_be_bytes()].concat()
    }

    fn key_of(&self, name: &RelationName) -> Vec<u8> {
        [&self.prefix(RELATION)[..], name.key().as_bytes()].concat()
    }

    fn schema_key(&self, name: &str) -> Vec<u8> {
        [&self.prefix(SCHEMA)[..], name.as_bytes()].concat()
    }

    /// Returns whether the session has the rights of an owner.
    pub(crate) fn is(&self, owner: &str) -> bool {
        self.is_superuser || self.role == owner
    }

    /// Refuses a change of a definition that belongs to another role.
    pub(crate) fn check_owner(&self, owner: &str, what: &str, name: &str) -> Result<()> {
        if self.is(owner) {
            return Ok(());
        }
        Err(SqlError::new(code::INSUFFICIENT_PRIVILEGE, format!("must be owner of {what} {name}")))
    }

    /// Refuses a use for which the role has no right.
    pub(crate) fn check(
        &self,
        owner: &str,
        grants: &[Grant],
        privilege: Privilege,
        what: &str,
        name: &str,
    ) -> Result<()> {
        let is_given = |grant: &Grant| {
            grant.privilege == privilege && grant.role.as_ref().is_none_or(|role| *role == self.role)
        };
        if self.is(owner) || grants.iter().any(is_given) {
            return Ok(());
        }
        Err(SqlError::new(code::INSUFFICIENT_PRIVILEGE, format!("permission denied for {what} {name}")))
    }

    /// Refuses calls with a sequence for which the role has no right.
    pub(crate) fn check_sequence(&self, sequence: &Sequence) -> Result<()> {
        let Sequence { owner, grants, name, .. } = sequence;
        let may = |privilege| self.check(owner, grants, privilege, "sequence", name);
        may(Privilege::Usage).or_else(|_| may(Privilege::Update))
    }
}

fn damaged(name: &str) -> SqlError {
    SqlError::new(code::DATA_CORRUPTED, format!("the catalog entry of \"{}\" is malformed", shown(name)))
}

/// The error for a relation that does not exist.
pub(crate) fn undefined(name: &str) -> SqlError {
    SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{}\" does not exist", shown(name)))
}

/// Returns the schemas of the setting `search_path` for a role.
pub(crate) fn path_of(setting: &str, role: &str) -> Vec<String> {
    let name = |part: &str| match part.strip_prefix('"').and_then(|part| part.strip_suffix('"')) {
        Some("$user") => role.to_owned(),
        Some(quoted) => quoted.replace("\"\"", "\""),
        None if part == "$user" => role.to_owned(),
        None => part.to_ascii_lowercase(),
    };
    setting.split(',').map(str::trim).filter(|part| !part.is_empty()).map(name).collect()
}

/// The error for a name that is in use.
pub(crate) fn duplicate(name: &str) -> SqlError {
    SqlError::new(code::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"))
}

impl Catalog {
    pub(crate) fn new(place: SessionPlace) -> Self {
        let path = vec![place.role.clone(), public()];
        Self { place, path, temporary: None, version: None, known: HashMap::new() }
    }

    /// Returns the database, and the role of the session.
    pub(crate) fn place(&self) -> &SessionPlace {
        &self.place
    }

    /// Returns the schemas in which a name without schema is looked for.
    pub(crate) fn path(&self) -> &[String] {
        &self.path
    }

    /// Sets the schemas in which names without schema are looked for, by the setting `search_path`.
    pub(crate) fn set_path(&mut self, setting: &str) {
        self.path = path_of(setting, &self.place.role);
        self.forget();
    }

    pub(crate) fn set_temporary(&mut self, schema: Option<String>) {
        self.temporary = schema;
        self.forget();
    }

    /// Returns whether a schema is that of the session for temporary relations.
    pub(crate) fn is_temporary(&self, schema: &str) -> bool {
        self.temporary.as_deref() == Some(schema)
    }

    /// Returns the schemas in which a relation is looked for, with that of temporary ones.
    pub(crate) fn whole_path(&self) -> Vec<String> {
        self.temporary.iter().chain(&self.path).cloned().collect()
    }

    /// Forgets all relations: a change of them may be undone.
    pub(crate) fn forget(&mut self) {
        self.version = None;
        self.known.clear();
    }

    /// Forgets the relations of another version of the catalog. Returns the version of the
    /// statement: plans of one version and path fit.
    pub(crate) async fn refresh(&mut self, by: &mut Transaction) -> Result<&[u8]> {
        let mut version = Self::version(by).await?;
        self.whole_path().iter().for_each(|schema| version.extend(schema.bytes().chain([0])));
        if self.version.as_ref() != Some(&version) {
            self.known.clear();
        }
        Ok(self.version.insert(version))
    }

    /// Returns the version of the catalog.
    pub(crate) async fn version(by: &mut Transaction) -> Result<Vec<u8>> {
        Ok(by.get(by.store().catalog(), VERSION_KEY).await?.unwrap_or_default())
    }

    /// Fails if the definition of a table has changed since the snapshot of a transaction that has
    /// one for all statements.
    pub(crate) async fn check_newest(&self, by: &mut Transaction, table: u64) -> Result<()> {
        let is_it = |relation: &Relation| matches!(relation, Relation::Table(known) if known.id == table);
        let name = self.known.values().flatten().find(|(_, relation)| is_it(relation));
        let key = name.map_or(VERSION_KEY.to_vec(), |(name, _)| self.place.key_of(name));
        Ok(by.change(by.store().catalog(), &key, &mut |_| RowChange::Keep).await?)
    }

    async fn row<T: DeserializeOwned>(by: &mut Transaction, key: &[u8], name: &str) -> Result<Option<T>> {
        let found = by.get(by.store().catalog(), key).await?;
        found.map(|bytes| serde_json::from_slice(&bytes).map_err(|_| damaged(name))).transpose()
    }

    /// Returns the relation that a name means, in the form of
    /// [`relation`](crate::parse::relation).
    pub(crate) async fn relation(
        &mut self,
        by: &mut Transaction,
        name: &str,
    ) -> Result<Option<(RelationName, Relation)>> {
        if let Some(known) = self.known.get(name) {
            return Ok(known.clone());
        }
        let places = match name.split_once('\0') {
            Some(("pg_temp", name)) => {
                self.temporary.iter().map(|schema| RelationName::new(schema, name)).collect()
            }
            Some((schema, name)) => vec![RelationName::new(schema, name)],
            None => self.whole_path().iter().map(|schema| RelationName::new(schema, name)).collect(),
        };
        let mut found = None;
        for place in places {
            if let Some(entry) = Self::row(by, &self.place.key_of(&place), name).await? {
                self.check_schema(by, &place.schema, Privilege::Usage).await?;
                let relation = match entry {
                    Entry::Table(table) => Relation::Table(table.into()),
                    Entry::View(view) => Relation::View(Rc::new(view)),
                    Entry::Sequence(sequence) => Relation::Sequence(Rc::new(sequence)),
                    Entry::IndexOf(table) => Relation::Index(RelationName::of_key(&table)),
                    Entry::Type(of) => Relation::Type(Rc::new(of)),
                };
                found = Some((place, relation));
                break;
            }
        }
        self.known.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    /// Returns the type that a name of SQL means.
    pub(crate) async fn type_of(&mut self, by: &mut Transaction, of: &ast::DataType) -> Result<Type> {
        let parameters = Parameters::default();
        loop {
            let found = type_of(of, &parameters);
            let Some(missing) = parameters.missing.take() else { return found };
            let known = self.relation(by, &missing).await?;
            parameters.relations.borrow_mut().insert(missing, known);
        }
    }

    /// Returns the type with a number as it is now.
    pub(crate) async fn type_of_oid(&mut self, by: &mut Transaction, oid: u32) -> Result<Type> {
        let is_it = |of: &NamedType| of.oid == oid || of.array == oid;
        let name = NamedType::of_oid(oid).map(|of| of.relation().qualified()).unwrap_or_default();
        let mut found = match self.relation(by, &name).await? {
            Some((_, Relation::Type(entry))) => entry.of.named().filter(|of| is_it(of)),
            _ => None,
        };
        if found.is_none() {
            let all = self.relations(by).await?.types;
            found = all.iter().filter_map(|entry| entry.of.named()).find(|of| is_it(of));
        }
        let undefined =
            || SqlError::new(code::UNDEFINED_OBJECT, format!("type with OID {oid} does not exist"));
        let of = found.ok_or_else(undefined)?;
        if of.oid == oid { Ok(of.of()) } else { of.of().array().ok_or_else(undefined) }
    }

    /// Waits for other changes of definitions, and keeps them away to the end of the transaction:
    /// what is read then stays.
    pub(crate) async fn hold(&mut self, by: &mut Transaction) -> Result<()> {
        Self::change_version(by).await?;
        by.begin_statement();
        self.known.clear();
        Ok(())
    }

    /// Returns the table with a name.
    pub(crate) async fn find(&mut self, by: &mut Transaction, name: &str) -> Result<Option<Rc<Table>>> {
        Ok(match self.relation(by, name).await? {
            Some((_, Relation::Table(table))) => Some(table),
            _ => None,
        })
    }

    /// Returns the table with a name, which the role may read.
    pub(crate) async fn table(&mut self, by: &mut Transaction, name: &str) -> Result<Rc<Table>> {
        self.table_for(by, name, Privilege::Select).await
    }

    /// Returns the table with a name, for which the role has a right.
    pub(crate) async fn table_for(
        &mut self,
        by: &mut Transaction,
        name: &str,
        privilege: Privilege,
    ) -> Result<Rc<Table>> {
        let table = self.find(by, name).await?.ok_or_else(|| undefined(name))?;
        self.place.check(&table.owner, &table.grants, privilege, "table", &table.name)?;
        Ok(table)
    }

    /// Returns the table with a name, which the role may change.
    pub(crate) async fn owned(&mut self, by: &mut Transaction, name: &str) -> Result<Option<Rc<Table>>> {
        let found = self.find(by, name).await?;
        if let Some(table) = &found {
            self.place.check_owner(&table.owner, "table", &table.name)?;
        }
        Ok(found)
    }

    /// Returns the table that has an index of this name, and the name of the index in its schema.
    pub(crate) async fn table_of_index(
        &mut self,
        by: &mut Transaction,
        index: &str,
    ) -> Result<Option<(Rc<Table>, String)>> {
        match self.relation(by, index).await? {
            Some((name, Relation::Index(table))) => {
                let table = self.owned(by, &table.qualified()).await?;
                Ok(table.map(|table| (table, name.name)))
            }
            _ => Ok(None),
        }
    }

    /// Returns whether a relation has this name.
    pub(crate) async fn has(&self, by: &mut Transaction, name: &RelationName) -> Result<bool> {
        Ok(by.get(by.store().catalog(), &self.place.key_of(name)).await?.is_some())
    }

    /// Returns the schema and name of a relation that a statement makes.
    pub(crate) async fn place_of(
        &mut self,
        by: &mut Transaction,
        name: &str,
        is_temporary: bool,
    ) -> Result<RelationName> {
        match (name.split_once('\0'), &self.temporary) {
            (Some(("pg_temp", name)), Some(schema)) => return Ok(RelationName::new(schema, name)),
            (Some(_), _) if is_temporary => {
                fail!(INVALID_TABLE_DEFINITION, "cannot create temporary relation in non-temporary schema");
            }
            (None, Some(schema)) if is_temporary => return Ok(RelationName::new(schema, name)),
            _ => {}
        }
        if let Some((schema, name)) = name.split_once('\0') {
            self.check_schema(by, schema, Privilege::Create).await?;
            return Ok(RelationName::new(schema, name));
        }
        for schema in self.path.clone() {
            if schema == PUBLIC || self.schema(by, &schema).await?.is_some() {
                self.check_schema(by, &schema, Privilege::Create).await?;
                return Ok(RelationName::new(schema, name));
            }
        }
        Err(SqlError::new(code::INVALID_SCHEMA_NAME, "no schema has been selected to create in"))
    }

    /// Returns a schema other than those that each database has.
    pub(crate) async fn schema(&self, by: &mut Transaction, name: &str) -> Result<Option<Schema>> {
        Self::row(by, &self.place.schema_key(name), name).await
    }

    /// Refuses the use of a schema for which the role has no right. Each role may use `public`.
    async fn check_schema(&self, by: &mut Transaction, name: &str, privilege: Privilege) -> Result<()> {
        if name == PUBLIC {
            return Ok(());
        }
        if matches!(name, "pg_catalog" | "information_schema") {
            fail!(INSUFFICIENT_PRIVILEGE, "permission denied for schema {name}");
        }
        let schema = self.schema(by, name).await?.ok_or_else(|| undefined_schema(name))?;
        self.place.check(&schema.owner, &schema.grants, privilege, "schema", name)
    }

    /// Makes, changes or removes a schema.
    pub(crate) async fn change_schema(
        &mut self,
        by: &mut Transaction,
        name: &str,
        new: Option<&Schema>,
    ) -> Result<()> {
        Self::change_version(by).await?;
        self.known.clear();
        Self::put(by, &self.place.schema_key(name), new).await
    }

    async fn put<T: Serialize>(by: &mut Transaction, key: &[u8], entry: Option<&T>) -> Result<()> {
        let change = match entry {
            None => RowChange::Remove,
            Some(entry) => RowChange::Set(serde_json::to_vec(entry).map_err(|_| damaged("a row"))?),
        };
        Ok(by.change(by.store().catalog(), key, &mut |_| change.clone()).await?)
    }

    /// The first step of each change, so that two at the same time wait for each other. The version
    /// is one that never was: plans of a change that is rolled back must not fit to a later one.
    async fn change_version(by: &mut Transaction) -> Result<()> {
        let version = by.store().fresh_id().await?.to_le_bytes();
        let mut set = |_: Option<&[u8]>| RowChange::Set(version.to_vec());
        Ok(by.change(by.store().catalog(), VERSION_KEY, &mut set).await?)
    }

    /// Returns the sequence with a name.
    pub(crate) async fn sequence(
        &mut self,
        by: &mut Transaction,
        name: &str,
    ) -> Result<Option<Rc<Sequence>>> {
        Ok(match self.relation(by, name).await? {
            Some((_, Relation::Sequence(sequence))) => Some(sequence),
            _ => None,
        })
    }

    /// Finds the sequences that a statement names. A default of a column that the role may set
    /// draws numbers without a right to the sequence only if the sequence belongs to the column.
    pub(crate) async fn find_sequences(
        &mut self,
        by: &mut Transaction,
        named: Vec<(String, SequenceSlot)>,
    ) -> Result<()> {
        for (name, slot) in named {
            let sequence = self.sequence(by, &name).await?.ok_or_else(|| undefined(&name))?;
            self.place.check_sequence(&sequence)?;
            slot.get_or_init(|| sequence.clone());
        }
        Ok(())
    }

    /// Calls `act` with the key and the content of each row whose key begins with a prefix, until
    /// it returns true.
    async fn any<T: DeserializeOwned>(
        by: &mut Transaction,
        prefix: &[u8],
        mut act: impl FnMut(&[u8], T) -> bool,
    ) -> Result<bool> {
        let mut place = Some(ScanPlace::from(prefix));
        while let Some(from) = place {
            let (rows, next) = by.scan(by.store().catalog(), &from).await?;
            for (key, bytes) in rows.iter().filter(|(key, _)| key.starts_with(prefix)) {
                let failed = |_| damaged(&String::from_utf8_lossy(key));
                if act(key, serde_json::from_slice(bytes).map_err(failed)?) {
                    return Ok(true);
                }
            }
            place = next.filter(|_| rows.iter().next_back().is_none_or(|(key, _)| key.starts_with(prefix)));
            // A large catalog takes long to read.
            executor::yield_now().await;
        }
        Ok(false)
    }

    /// Returns the keys and the contents of all rows whose keys begin with a prefix.
    async fn all<T: DeserializeOwned>(by: &mut Transaction, prefix: &[u8]) -> Result<Vec<(Vec<u8>, T)>> {
        let mut all = Vec::new();
        Self::any(by, prefix, |key, row| {
            all.push((key.to_vec(), row));
            false
        })
        .await?;
        Ok(all)
    }

    /// Returns the tables of all databases.
    pub(crate) async fn all_tables(by: &mut Transaction) -> Result<Vec<Table>> {
        Ok(Self::relations_of(by, &[RELATION]).await?.tables)
    }

    /// Returns the tables of the database.
    pub(crate) async fn tables(&self, by: &mut Transaction) -> Result<Vec<Table>> {
        Ok(self.relations(by).await?.tables)
    }

    /// Returns the relations of the database.
    pub(crate) async fn relations(&self, by: &mut Transaction) -> Result<Relations> {
        Self::relations_of(by, &self.place.prefix(RELATION)).await
    }

    async fn relations_of(by: &mut Transaction, prefix: &[u8]) -> Result<Relations> {
        let mut found = Relations::default();
        for (_, entry) in Self::all(by, prefix).await? {
            match entry {
                Entry::Table(table) => found.tables.push(*table),
                Entry::View(view) => found.views.push(view),
                Entry::Sequence(sequence) => found.sequences.push(sequence),
                Entry::Type(of) => found.types.push(of),
                Entry::IndexOf(_) => {}
            }
        }
        Ok(found)
    }

    /// Returns the schemas of the database, without those that each database has.
    pub(crate) async fn schemas(&self, by: &mut Transaction) -> Result<Vec<Schema>> {
        let found = Self::all(by, &self.place.prefix(SCHEMA)).await?;
        Ok(found.into_iter().map(|(_, schema)| schema).collect())
    }

    /// Returns the columns whose defaults name a sequence: their tables and names.
    pub(crate) async fn users_of_sequence(
        &self,
        by: &mut Transaction,
        name: &RelationName,
    ) -> Result<Vec<(RelationName, String)>> {
        let (key, mut users) = (name.key(), Vec::new());
        for table in self.tables(by).await? {
            let columns = table.columns.iter().filter(|column| column.sequences.contains(&key));
            users.extend(columns.map(|column| (table.relation(), column.name.clone())));
        }
        Ok(users)
    }

    /// Returns the views whose queries name a relation.
    pub(crate) async fn views_of(&self, by: &mut Transaction, name: &RelationName) -> Result<Vec<View>> {
        let Relations { mut views, tables, .. } = self.relations(by).await?;
        views.extend(tables.iter().filter_map(Table::view));
        views.retain(|view| view.uses.contains(name));
        // In the order in which they were made.
        views.sort_by_key(|view| view.id);
        Ok(views)
    }

    /// Returns whether a role owns something of any database, or has been given a right.
    pub(crate) async fn owns(by: &mut Transaction, role: &str) -> Result<bool> {
        let is_of = |owner: &str, grants: &[Grant]| {
            owner == role
                || grants.iter().any(|grant| grant.role.as_deref() == Some(role) || grant.by == role)
        };
        let is_owned = |_: &[u8], entry: Entry| match entry {
            Entry::Table(table) => is_of(&table.owner, &table.grants),
            Entry::View(view) => is_of(&view.owner, &view.grants),
            Entry::Sequence(sequence) => is_of(&sequence.owner, &sequence.grants),
            Entry::Type(of) => of.owner == role,
            Entry::IndexOf(_) => false,
        };
        let is_owned_schema = |_: &[u8], schema: Schema| is_of(&schema.owner, &schema.grants);
        Ok(Self::any(by, &[RELATION], is_owned).await? || Self::any(by, &[SCHEMA], is_owned_schema).await?)
    }

    /// Reads a row of the catalog that is no relation.
    pub(crate) async fn read<T: DeserializeOwned>(
        by: &mut Transaction,
        kind: u8,
        name: &str,
    ) -> Result<Option<T>> {
        Self::row(by, &[&[kind], name.as_bytes()].concat(), name).await
    }

    /// Reads all rows of the catalog of a kind that is no relation, with their names.
    pub(crate) async fn read_all<T: DeserializeOwned>(
        by: &mut Transaction,
        kind: u8,
    ) -> Result<Vec<(String, T)>> {
        let all = Self::all(by, &[kind]).await?.into_iter();
        Ok(all.map(|(key, row)| (String::from_utf8_lossy(&key[1..]).into_owned(), row)).collect())
    }

    /// Writes or removes a row of the catalog that is no relation.
    pub(crate) async fn write<T: Serialize>(
        by: &mut Transaction,
        kind: u8,
        name: &str,
        new: Option<&T>,
    ) -> Result<()> {
        Self::change_version(by).await?;
        Self::put(by, &[&[kind], name.as_bytes()].concat(), new).await
    }

    /// Makes, changes or removes a view or a sequence.
    pub(crate) async fn change_entry(
        &mut self,
        by: &mut Transaction,
        name: &RelationName,
        new: Option<&Entry>,
    ) -> Result<()> {
        Self::change_version(by).await?;
        self.known.clear();
        Self::put(by, &self.place.key_of(name), new).await
    }

    /// Makes, changes or removes a table with its indexes: `old` is as it was.
    pub(crate) async fn change(
        &mut self,
        by: &mut Transaction,
        old: Option<&Table>,
        new: Option<&Table>,
    ) -> Result<()> {
        Self::change_version(by).await?;
        self.known.clear();
        let names = |table: &Table| -> Vec<RelationName> {
            let primary = table.primary.iter().map(|key| &key.name);
            let names = primary.chain(table.indexes.iter().map(|index| &index.name)).chain([&table.name]);
            names.map(|name| RelationName::new(&table.schema, name)).collect()
        };
        let (before, after) = (old.map(names).unwrap_or_default(), new.map(names).unwrap_or_default());
        for gone in before.iter().filter(|name| !after.contains(name)) {
            Self::put::<Entry>(by, &self.place.key_of(gone), None).await?;
        }
        let trees = |table: Option<&Table>| -> Vec<u64> {
            table.into_iter().flat_map(|table| table.trees().collect::<Vec<_>>()).collect()
        };
        let kept = trees(new);
        for gone in trees(old).into_iter().filter(|root| !kept.contains(root)) {
            by.drop_tree(BlockId(gone)).await?;
        }
        let Some(new) = new else { return Ok(()) };
        let relation = new.relation();
        for (at, name) in after.iter().enumerate() {
            let is_new = !before.contains(name);
            if after[..at].contains(name) || is_new && self.has(by, name).await? {
                return Err(duplicate(&name.name));
            }
            let is_moved = old.is_none_or(|old| old.relation() != relation);
            let entry = match *name == relation {
                true => Entry::Table(new.clone().into()),
                false if is_new || is_moved => Entry::IndexOf(relation.key()),
                false => continue,
            };
            Self::put(by, &self.place.key_of(name), Some(&entry)).await?;
        }
        Ok(())
    }
}

/// The error for a schema that does not exist.
pub(crate) fn undefined_schema(name: &str) -> SqlError {
    SqlError::new(code::INVALID_SCHEMA_NAME, format!("schema \"{name}\" does not exist"))
}
