//! The catalog: tables and indexes, as rows of a tree of the store.
//!
//! | key | value |
//! |---|---|
//! | `v` | a number that each change of the catalog replaces by one that never was |
//! | `r`, a database and a name | the table or sequence of this name, or the table whose index has it |
//! | `s` and a number | the state of a sequence |
//! | `u` and a name | a role |
//! | `d` and a name | the number of a database |
//!
//! A change of the catalog is part of its transaction, like all other changes of rows.

use std::{collections::HashMap, rc::Rc};

use plexus_base::BlockId;
use plexus_cache::Cache;
use plexus_store::{RowChange, Store, tree::ScanPlace};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    error::{Result, SqlError, code},
    sequences::{Sequence, SequenceSlot},
    types::{Type, Value, encode},
};

/// The transaction of a session.
pub(crate) type Transaction = plexus_store::Transaction<Cache>;

const VERSION_KEY: &[u8] = b"v";

/// A table as the catalog describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) id: u64,
    pub(crate) name: String,
    /// The role that may use it, beside superusers.
    pub(crate) owner: String,
    /// The root of the tree with the rows.
    pub(crate) root: u64,
    pub(crate) columns: Vec<Column>,
    /// The primary key, in whose order the rows are; without one each row has a number.
    pub(crate) primary: Option<Key>,
    pub(crate) indexes: Vec<Index>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) of: Type,
    pub(crate) not_null: bool,
    /// The text of the expression.
    pub(crate) default: Option<String>,
    /// The sequences that the expression names.
    #[serde(default)]
    pub(crate) sequences: Vec<String>,
    /// The sequence that is removed with the column.
    #[serde(default)]
    pub(crate) own_sequence: Option<String>,
}

/// A primary key: its name and its columns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) columns: Vec<usize>,
}

/// An index: a tree with the columns, and the key of the row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) name: String,
    pub(crate) root: u64,
    pub(crate) columns: Vec<usize>,
    pub(crate) is_unique: bool,
}

#[derive(Clone, Serialize, Deserialize)]
enum Entry {
    Table(Table),
    /// The table whose index has the name.
    IndexOf(String),
    Sequence(Sequence),
}

impl Table {
    pub(crate) fn rows(&self) -> BlockId {
        BlockId(self.root)
    }

    /// Returns the roots of its trees.
    pub(crate) fn trees(&self) -> impl Iterator<Item = u64> + '_ {
        [self.root].into_iter().chain(self.indexes.iter().map(|index| index.root))
    }

    pub(crate) fn column(&self, name: &str) -> Result<usize> {
        self.columns.iter().position(|column| column.name == name).ok_or_else(|| {
            let message = format!("column \"{name}\" of relation \"{}\" does not exist", self.name);
            SqlError::new(code::UNDEFINED_COLUMN, message)
        })
    }

    /// Returns the key of a row by its primary key; `None` if the table has none.
    pub(crate) fn primary_key(&self, values: &[Value]) -> Result<Option<Vec<u8>>> {
        let Some(primary) = &self.primary else { return Ok(None) };
        self.key(&primary.columns, values).map(Some)
    }

    pub(crate) fn key(&self, columns: &[usize], values: &[Value]) -> Result<Vec<u8>> {
        let mut key = Vec::new();
        for column in columns {
            encode::put_key(&mut key, &values[*column], self.columns[*column].of)?;
        }
        Ok(key)
    }
}

/// The number of a row of a table without primary key, as its key.
pub(crate) fn number_key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl Index {
    pub(crate) fn tree(&self) -> BlockId {
        BlockId(self.root)
    }

    /// Returns the key of a row in the index, and whether other rows may not have the same values.
    pub(crate) fn key(&self, table: &Table, row_key: &[u8], values: &[Value]) -> Result<(Vec<u8>, bool)> {
        let mut key = table.key(&self.columns, values)?;
        // NULL is different from NULL.
        let is_alone = self.is_unique && self.columns.iter().all(|column| !values[*column].is_null());
        if !is_alone {
            key.extend(row_key);
        }
        Ok((key, is_alone))
    }
}

/// The catalog as a session knows it.
pub(crate) struct Catalog {
    place: SessionPlace,
    /// The version at which the tables were read.
    version: Option<Vec<u8>>,
    tables: HashMap<String, Option<Rc<Table>>>,
}

/// The database of a session, and the role that uses it.
#[derive(Clone, Debug)]
pub(crate) struct SessionPlace {
    pub(crate) database: u32,
    pub(crate) role: String,
    pub(crate) is_superuser: bool,
}

impl SessionPlace {
    /// Returns the first part of the keys of the database's relations.
    fn prefix(&self) -> Vec<u8> {
        [&b"r"[..], &self.database.to_be_bytes()].concat()
    }

    fn key_of(&self, name: &str) -> Vec<u8> {
        [&self.prefix()[..], name.as_bytes()].concat()
    }

    /// Refuses what belongs to another role. There is no GRANT.
    fn check_owner(&self, owner: &str, what: &str, name: &str) -> Result<()> {
        if self.is_superuser || self.role == owner {
            return Ok(());
        }
        Err(SqlError::new(code::INSUFFICIENT_PRIVILEGE, format!("permission denied for {what} {name}")))
    }
}

fn damaged(name: &str) -> SqlError {
    SqlError::new(code::DATA_CORRUPTED, format!("the catalog entry of \"{name}\" is malformed"))
}

/// The error for a relation that does not exist.
pub(crate) fn undefined(name: &str) -> SqlError {
    SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"))
}

impl Catalog {
    pub(crate) fn new(place: SessionPlace) -> Self {
        Self { place, version: None, tables: HashMap::new() }
    }

    /// Returns the database, and the role of the session.
    pub(crate) fn place(&self) -> &SessionPlace {
        &self.place
    }

    /// Forgets all tables: a change of them may be undone.
    pub(crate) fn forget(&mut self) {
        self.version = None;
        self.tables.clear();
    }

    /// Forgets what another version of the catalog has. Returns the version of the statement.
    pub(crate) async fn refresh(&mut self, store: &Store<Cache>, by: &mut Transaction) -> Result<&[u8]> {
        let version = Self::version(store, by).await?;
        if self.version.as_ref() != Some(&version) {
            self.tables.clear();
        }
        Ok(self.version.insert(version))
    }

    /// Returns the version of the catalog.
    pub(crate) async fn version(store: &Store<Cache>, by: &mut Transaction) -> Result<Vec<u8>> {
        Ok(by.get(store.catalog(), VERSION_KEY).await?.unwrap_or_default())
    }

    /// Fails if the catalog has changed since the snapshot of a transaction that has one for all
    /// statements.
    pub(crate) async fn check_newest(&self, store: &Store<Cache>, by: &mut Transaction) -> Result<()> {
        Ok(by.change(store.catalog(), VERSION_KEY, &mut |_| RowChange::Keep).await?)
    }

    async fn entry(&self, store: &Store<Cache>, by: &mut Transaction, name: &str) -> Result<Option<Entry>> {
        let found = by.get(store.catalog(), &self.place.key_of(name)).await?;
        found.map(|bytes| serde_json::from_slice(&bytes).map_err(|_| damaged(name))).transpose()
    }

    /// Returns the table with a name.
    pub(crate) async fn find(
        &mut self,
        store: &Store<Cache>,
        by: &mut Transaction,
        name: &str,
    ) -> Result<Option<Rc<Table>>> {
        if let Some(known) = self.tables.get(name) {
            return Ok(known.clone());
        }
        let table = match self.entry(store, by, name).await? {
            Some(Entry::Table(table)) => {
                self.place.check_owner(&table.owner, "table", name)?;
                Some(Rc::new(table))
            }
            _ => None,
        };
        self.tables.insert(name.to_owned(), table.clone());
        Ok(table)
    }

    /// Returns the table with a name, or the error that there is none.
    pub(crate) async fn table(
        &mut self,
        store: &Store<Cache>,
        by: &mut Transaction,
        name: &str,
    ) -> Result<Rc<Table>> {
        self.find(store, by, name).await?.ok_or_else(|| undefined(name))
    }

    /// Returns the table that has an index of this name.
    pub(crate) async fn table_of_index(
        &mut self,
        store: &Store<Cache>,
        by: &mut Transaction,
        index: &str,
    ) -> Result<Option<Rc<Table>>> {
        match self.entry(store, by, index).await? {
            Some(Entry::IndexOf(table)) => self.find(store, by, &table).await,
            _ => Ok(None),
        }
    }

    /// Returns whether a relation has this name.
    pub(crate) async fn has(&self, store: &Store<Cache>, by: &mut Transaction, name: &str) -> Result<bool> {
        Ok(self.entry(store, by, name).await?.is_some())
    }

    async fn put<T: Serialize>(
        store: &Store<Cache>,
        by: &mut Transaction,
        key: &[u8],
        entry: Option<&T>,
    ) -> Result<()> {
        let change = match entry {
            None => RowChange::Remove,
            Some(entry) => RowChange::Set(serde_json::to_vec(entry).map_err(|_| damaged("a row"))?),
        };
        Ok(by.change(store.catalog(), key, &mut |_| change.clone()).await?)
    }

    /// The first step of each change, so that two at the same time wait for each other. The version
    /// is one that never was: plans of a change that is rolled back must not fit to a later one.
    async fn change_version(store: &Store<Cache>, by: &mut Transaction) -> Result<()> {
        let version = store.fresh_id().await?.to_le_bytes();
        let mut set = |_: Option<&[u8]>| RowChange::Set(version.to_vec());
        Ok(by.change(store.catalog(), VERSION_KEY, &mut set).await?)
    }

    /// Returns the sequence with a name.
    pub(crate) async fn sequence(
        &self,
        store: &Store<Cache>,
        by: &mut Transaction,
        name: &str,
    ) -> Result<Option<Sequence>> {
        match self.entry(store, by, name).await? {
            Some(Entry::Sequence(sequence)) => {
                self.place.check_owner(&sequence.owner, "sequence", name)?;
                Ok(Some(sequence))
            }
            _ => Ok(None),
        }
    }

    /// Finds the sequences that a statement names.
    pub(crate) async fn find_sequences(
        &self,
        store: &Store<Cache>,
        by: &mut Transaction,
        named: Vec<(String, SequenceSlot)>,
    ) -> Result<()> {
        for (name, slot) in named {
            let sequence = self.sequence(store, by, &name).await?.ok_or_else(|| undefined(&name))?;
            slot.get_or_init(|| Rc::new(sequence));
        }
        Ok(())
    }

    /// Returns whether a relation whose key begins so has a property.
    async fn any(
        store: &Store<Cache>,
        by: &mut Transaction,
        prefix: &[u8],
        is_so: impl Fn(&Entry) -> bool,
    ) -> Result<bool> {
        let mut place = Some(ScanPlace::from(prefix));
        while let Some(from) = place {
            let (rows, next) = by.scan(store.catalog(), &from).await?;
            for (_, bytes) in rows.iter().filter(|(key, _)| key.starts_with(prefix)) {
                if is_so(&serde_json::from_slice(bytes).map_err(|_| damaged("a relation"))?) {
                    return Ok(true);
                }
            }
            place = next.filter(|_| rows.last().is_none_or(|(key, _)| key.starts_with(prefix)));
        }
        Ok(false)
    }

    /// Returns the tables of all databases.
    pub(crate) async fn all_tables(store: &Store<Cache>, by: &mut Transaction) -> Result<Vec<Table>> {
        Self::tables_of(store, by, b"r").await
    }

    /// Returns the tables of the database.
    pub(crate) async fn tables(&self, store: &Store<Cache>, by: &mut Transaction) -> Result<Vec<Table>> {
        Self::tables_of(store, by, &self.place.prefix()).await
    }

    async fn tables_of(store: &Store<Cache>, by: &mut Transaction, prefix: &[u8]) -> Result<Vec<Table>> {
        let tables = std::cell::RefCell::new(Vec::new());
        let collect = |entry: &Entry| {
            if let Entry::Table(table) = entry {
                tables.borrow_mut().push(table.clone());
            }
            false
        };
        Self::any(store, by, prefix, collect).await?;
        Ok(tables.into_inner())
    }

    /// Returns the sequences of the database.
    pub(crate) async fn sequences(&self, store: &Store<Cache>, by: &mut Transaction) -> Result<Vec<Sequence>> {
        let sequences = std::cell::RefCell::new(Vec::new());
        let collect = |entry: &Entry| {
            if let Entry::Sequence(sequence) = entry {
                sequences.borrow_mut().push(sequence.clone());
            }
            false
        };
        Self::any(store, by, &self.place.prefix(), collect).await?;
        Ok(sequences.into_inner())
    }

    /// Returns whether the default of a column names a sequence.
    pub(crate) async fn needs_sequence(
        &self,
        store: &Store<Cache>,
        by: &mut Transaction,
        name: &String,
    ) -> Result<bool> {
        let needs = |entry: &Entry| matches!(entry, Entry::Table(table) if table.columns.iter().any(|column| column.sequences.contains(name)));
        Self::any(store, by, &self.place.prefix(), needs).await
    }

    /// Returns whether a role owns a relation of any database.
    pub(crate) async fn owns(store: &Store<Cache>, by: &mut Transaction, role: &str) -> Result<bool> {
        let is_owned = |entry: &Entry| match entry {
            Entry::Table(table) => table.owner == role,
            Entry::Sequence(sequence) => sequence.owner == role,
            Entry::IndexOf(_) => false,
        };
        Self::any(store, by, b"r", is_owned).await
    }

    /// Reads a row of the catalog that is no relation.
    pub(crate) async fn read<T: DeserializeOwned>(
        store: &Store<Cache>,
        by: &mut Transaction,
        kind: u8,
        name: &str,
    ) -> Result<Option<T>> {
        let found = by.get(store.catalog(), &[&[kind], name.as_bytes()].concat()).await?;
        found.map(|bytes| serde_json::from_slice(&bytes).map_err(|_| damaged(name))).transpose()
    }

    /// Reads all rows of the catalog of a kind that is no relation, with their names.
    pub(crate) async fn read_all<T: DeserializeOwned>(
        store: &Store<Cache>,
        by: &mut Transaction,
        kind: u8,
    ) -> Result<Vec<(String, T)>> {
        let (mut all, mut place) = (Vec::new(), Some(ScanPlace::from(&[kind])));
        while let Some(from) = place {
            let (rows, next) = by.scan(store.catalog(), &from).await?;
            for (key, bytes) in rows.iter().filter(|(key, _)| key.first() == Some(&kind)) {
                let name = String::from_utf8_lossy(&key[1..]).into_owned();
                let read = serde_json::from_slice(bytes).map_err(|_| damaged(&name))?;
                all.push((name, read));
            }
            place = next.filter(|_| rows.last().is_none_or(|(key, _)| key.first() == Some(&kind)));
        }
        Ok(all)
    }

    /// Writes or removes a row of the catalog that is no relation.
    pub(crate) async fn write<T: Serialize>(
        store: &Store<Cache>,
        by: &mut Transaction,
        kind: u8,
        name: &str,
        new: Option<&T>,
    ) -> Result<()> {
        Self::change_version(store, by).await?;
        Self::put(store, by, &[&[kind], name.as_bytes()].concat(), new).await
    }

    /// Makes or removes a sequence.
    pub(crate) async fn change_sequence(
        &mut self,
        store: &Store<Cache>,
        by: &mut Transaction,
        name: &str,
        new: Option<&Sequence>,
    ) -> Result<()> {
        Self::change_version(store, by).await?;
        let entry = new.map(|sequence| Entry::Sequence(sequence.clone()));
        self.tables.clear();
        Self::put(store, by, &self.place.key_of(name), entry.as_ref()).await
    }

    /// Makes, changes or removes a table with its indexes: `old` is as it was.
    pub(crate) async fn change(
        &mut self,
        store: &Store<Cache>,
        by: &mut Transaction,
        old: Option<&Table>,
        new: Option<&Table>,
    ) -> Result<()> {
        Self::change_version(store, by).await?;
        let names = |table: Option<&Table>| -> Vec<String> {
            let primary = table.and_then(|table| table.primary.as_ref()).map(|key| key.name.clone());
            let indexes =
                table.into_iter().flat_map(|table| table.indexes.iter().map(|index| index.name.clone()));
            primary.into_iter().chain(indexes).collect()
        };
        let (before, after) = (names(old), names(new));
        for gone in before.iter().filter(|name| !after.contains(name)) {
            Self::put::<Entry>(store, by, &self.place.key_of(gone), None).await?;
        }
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.name != old.name)) {
            Self::put::<Entry>(store, by, &self.place.key_of(&old.name), None).await?;
        }
        let trees = |table: Option<&Table>| -> Vec<u64> {
            table.into_iter().flat_map(|table| table.trees().collect::<Vec<_>>()).collect()
        };
        let kept = trees(new);
        for gone in trees(old).into_iter().filter(|root| !kept.contains(root)) {
            by.drop_tree(BlockId(gone)).await?;
        }
        let Some(new) = new else {
            self.tables.clear();
            return Ok(());
        };
        for index in after.iter().filter(|name| !before.contains(name)) {
            if self.has(store, by, index).await? {
                let message = format!("relation \"{index}\" already exists");
                return Err(SqlError::new(code::DUPLICATE_TABLE, message));
            }
            Self::put(store, by, &self.place.key_of(index), Some(&Entry::IndexOf(new.name.clone()))).await?;
        }
        Self::put(store, by, &self.place.key_of(&new.name), Some(&Entry::Table(new.clone()))).await?;
        self.tables.clear();
        Ok(())
    }
}
