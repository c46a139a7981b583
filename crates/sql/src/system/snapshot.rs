//! The definitions of a database at one version of the catalog, with the numbers by which
//! PostgreSQL's clients know them.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    rc::Rc,
};

use super::relations::{self, INFORMATION_SCHEMA, PG_CATALOG, SystemTable};
use crate::{
    catalog::{
        self, Catalog, Index, IndexOrder, IndexPart, RelationName, Relations, Schema, SessionPlace, Table,
        Transaction, TypeEntry, View,
    },
    error::{Result, SqlError},
    exec::KeptRows,
    functions::Context,
    roles::{DATABASE, ROLE, Role},
    sequences::Sequence,
    types::{Type, named::NamedType},
};

/// The number of the schema `public`.
pub(crate) const PUBLIC: u32 = 2200;
/// The first number of an object that is not part of the system.
const FIRST: u32 = 16384;
/// Numbers from here on are made from names; those before from the catalog's own numbers.
const NAMED: u32 = 1 << 30;
/// The number of the database `postgres`.
const POSTGRES: u32 = 5;
/// The number of the role with which a cluster begins.
pub(crate) const FIRST_ROLE: u32 = 10;
/// The role that owns the schema `public`: the owner of the database belongs to it.
pub(crate) const DATABASE_OWNER: u32 = 6171;

/// The definitions of a database at the snapshot of a statement.
#[derive(Default, Debug)]
pub(crate) struct Snapshot {
    /// All that stands in `pg_class`.
    pub(crate) relations: Vec<Relation>,
    pub(crate) roles: Vec<(u32, String, Role)>,
    pub(crate) databases: Vec<(u32, String)>,
    pub(crate) schemas: Vec<SchemaOf>,
    /// The types that statements have made.
    pub(crate) types: Vec<TypeEntry>,
    /// The number of the database.
    pub(crate) database: u32,
    numbers: Numbers,
    by_oid: HashMap<u32, usize>,
    by_name: HashMap<(u32, String), usize>,
    /// The numbers of constraints by table and name, of defaults by table and column, and of the
    /// rules of views with the column 0.
    constraints: HashMap<(u32, String), u32>,
    tables_of_constraints: HashMap<u32, u32>,
    defaults: HashMap<(u32, usize), u32>,
}

/// A schema as `pg_namespace` shows it.
#[derive(Debug)]
pub(crate) struct SchemaOf {
    pub(crate) oid: u32,
    pub(crate) name: String,
    /// The number of the role that owns it.
    pub(crate) owner: u32,
    /// Its definition, if a statement has made it.
    pub(crate) of: Option<Schema>,
}

/// A relation: something with a row in `pg_class`.
#[derive(Debug)]
pub(crate) struct Relation {
    pub(crate) oid: u32,
    pub(crate) schema: u32,
    pub(crate) name: String,
    pub(crate) of: RelationOf,
}

/// The definition of a relation.
#[derive(Debug)]
pub(crate) enum RelationOf {
    Table(Rc<Table>),
    /// An index of a table with this number, or its primary key.
    Index(u32, Rc<Table>, Box<Index>),
    View(View),
    Sequence(Sequence),
    System(&'static SystemTable),
}

impl Relation {
    /// Returns the key columns of an index.
    pub(crate) fn key(&self) -> Option<Key<'_>> {
        let RelationOf::Index(table_oid, table, index) = &self.of else { return None };
        let plain = |columns: &[usize]| columns.iter().copied().map(IndexPart::Column).collect::<Vec<_>>();
        let mut parts = if index.parts.is_empty() { plain(&index.columns) } else { index.parts.clone() };
        let count = parts.len();
        parts.extend(plain(&index.include));
        Some(Key { oid: self.oid, name: &self.name, table_oid: *table_oid, table, parts, count, index })
    }

    pub(crate) fn is_system(&self) -> bool {
        matches!(self.of, RelationOf::System(_))
    }

    /// Returns the name of the role that owns it.
    pub(crate) fn owner(&self) -> Option<&str> {
        match &self.of {
            RelationOf::Table(table) | RelationOf::Index(_, table, _) => Some(&table.owner),
            RelationOf::View(view) => Some(&view.owner),
            RelationOf::Sequence(sequence) => Some(&sequence.owner),
            RelationOf::System(_) => None,
        }
    }
}

impl IndexPart {
    /// Returns the number of the column, 0 for an expression.
    pub(crate) fn number(&self) -> usize {
        match self {
            Self::Column(at) => at + 1,
            Self::Expression(..) => 0,
        }
    }

    /// Returns the text of an expression.
    pub(crate) fn expression(&self) -> Option<&str> {
        match self {
            Self::Column(_) => None,
            Self::Expression(text, _) => Some(text),
        }
    }

    /// Returns the number of the collation of its values.
    pub(crate) fn collation_in(&self, table: &Table) -> u32 {
        let own = match self {
            Self::Column(at) => table.columns[*at].collation,
            Self::Expression(..) => None,
        };
        own.unwrap_or_else(|| super::classes::collation_of(self.type_in(table)))
    }

    /// Returns the type of its values.
    pub(crate) fn type_in(&self, table: &Table) -> Type {
        match self {
            Self::Column(at) => table.columns[*at].of,
            Self::Expression(_, of) => *of,
        }
    }
}

/// An index, or a primary key.
#[derive(Clone, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) oid: u32,
    pub(crate) name: &'a str,
    pub(crate) table_oid: u32,
    pub(crate) table: &'a Table,
    /// The parts of the key, and behind them the columns of INCLUDE.
    pub(crate) parts: Vec<IndexPart>,
    /// The number of the parts of the key.
    pub(crate) count: usize,
    pub(crate) index: &'a Index,
}

impl Key<'_> {
    /// Returns the order of a part.
    pub(crate) fn order(&self, at: usize) -> IndexOrder {
        self.index.order.get(at).copied().unwrap_or_default()
    }
}

/// Gives numbers to objects. The same objects get the same numbers on all nodes and in all runs.
#[derive(Default, Debug)]
pub(super) struct Numbers {
    used: HashSet<u32>,
}

impl Numbers {
    /// Returns the number of an object that has one in the catalog.
    fn of_id(&mut self, id: u64) -> u32 {
        let span = u64::from(NAMED - FIRST);
        self.free(FIRST + (id % span) as u32)
    }

    /// Returns the number of an object with a name, which belongs to an object with an `id`.
    pub(super) fn of_name(&mut self, kind: &str, id: u64, name: &str) -> u32 {
        // FNV-1a, since all versions of all nodes must agree.
        let bytes = kind.bytes().chain(id.to_le_bytes()).chain(name.bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        self.free(NAMED | (hash >> 32) as u32 & (NAMED - 1))
    }

    fn free(&mut self, mut number: u32) -> u32 {
        while !self.used.insert(number) {
            number = if number >= (1 << 31) - 1 { FIRST } else { number + 1 };
        }
        number
    }
}

impl Snapshot {
    /// Reads the definitions. `first` is the role with which the cluster began.
    pub(crate) async fn read(place: &SessionPlace, first: &str, by: &mut Transaction) -> Result<Self> {
        let catalog = Catalog::new(place.clone());
        let relations = catalog.relations(by).await?;
        let schemas = catalog.schemas(by).await?;
        let roles = Catalog::read_all(by, ROLE).await?;
        let databases = Catalog::read_all(by, DATABASE).await?;
        let mut read = Self::default();
        read.add_roles(first, roles);
        read.add_schemas(schemas);
        read.add_relations(relations);
        read.add_databases(first, databases, place.database);
        Ok(read)
    }

    /// Makes the definitions of a test.
    #[cfg(test)]
    pub(crate) fn of_parts(role: &str, relations: Relations) -> Self {
        let mut made = Self::default();
        made.add_roles(role, Vec::new());
        made.add_schemas(Vec::new());
        made.add_relations(relations);
        made.add_databases(role, Vec::new(), 0);
        made
    }

    fn add(&mut self, oid: u32, schema: u32, name: &str, of: RelationOf) {
        let at = self.relations.len();
        self.by_oid.insert(oid, at);
        self.by_name.insert((schema, name.to_owned()), at);
        self.relations.push(Relation { oid, schema, name: name.to_owned(), of });
    }

    /// Adds relations in an order that decides their numbers, if two would be the same.
    pub(crate) fn add_relations(&mut self, read: Relations) {
        let Relations { mut tables, mut views, mut sequences, types } = read;
        // These have their numbers from the beginning.
        self.numbers
            .used
            .extend(types.iter().filter_map(|of| of.of.named()).flat_map(|of| [of.oid, of.array]));
        self.types = types;
        tables.sort_by_key(|table| table.id);
        views.sort_by_key(|view| view.id);
        sequences.sort_by_key(|sequence| sequence.id);
        for table in relations::all() {
            self.add(table.oid, table.schema_oid(), table.name, RelationOf::System(table));
        }
        let mut with_oids = Vec::new();
        for table in tables.into_iter().map(Rc::new) {
            let (oid, schema) = (self.numbers.of_id(table.id), self.schema_or_public(&table.schema));
            self.add(oid, schema, &table.name, RelationOf::Table(table.clone()));
            if table.materialized.is_some() {
                let rule = self.numbers.of_name("rule", table.id, "_RETURN");
                self.defaults.insert((oid, 0), rule);
            }
            with_oids.push((oid, schema, table));
        }
        for view in views {
            let (oid, schema) = (self.numbers.of_id(view.id), self.schema_or_public(&view.schema));
            let rule = self.numbers.of_name("rule", view.id, "_RETURN");
            self.defaults.insert((oid, 0), rule);
            self.add(oid, schema, &view.name.clone(), RelationOf::View(view));
        }
        for sequence in sequences {
            let (oid, schema) = (self.numbers.of_id(sequence.id), self.schema_or_public(&sequence.schema));
            self.add(oid, schema, &sequence.name.clone(), RelationOf::Sequence(sequence));
        }
        for (oid, schema, table) in with_oids {
            self.add_parts(oid, schema, &table);
        }
    }

    /// Adds the indexes, constraints and defaults of a table.
    fn add_parts(&mut self, oid: u32, schema: u32, table: &Rc<Table>) {
        let primary = table.primary.iter().map(catalog::Key::index);
        for index in primary.chain(table.indexes.iter().cloned()).map(Box::new) {
            let number = self.numbers.of_name("index", table.id, &index.name);
            self.add(number, schema, &index.name.clone(), RelationOf::Index(oid, table.clone(), index));
        }
        for name in table.constraint_names() {
            let number = self.numbers.of_name("constraint", table.id, name);
            self.constraints.insert((oid, name.to_owned()), number);
            self.tables_of_constraints.insert(number, oid);
        }
        for (column, number) in table.columns.iter().zip(1..) {
            if column.default.is_some() || column.generated.is_some() {
                let default = self.numbers.of_name("default", table.id, &column.name);
                self.defaults.insert((oid, number), default);
            }
        }
    }

    pub(crate) fn add_schemas(&mut self, mut read: Vec<Schema>) {
        read.sort_by_key(|schema| schema.id);
        let of_system = [
            (PG_CATALOG, "pg_catalog", FIRST_ROLE),
            (PUBLIC, "public", DATABASE_OWNER),
            (INFORMATION_SCHEMA, "information_schema", FIRST_ROLE),
        ];
        let of_system =
            of_system.map(|(oid, name, owner)| SchemaOf { oid, name: name.to_owned(), owner, of: None });
        self.schemas.extend(of_system);
        for schema in read {
            let (oid, owner) = (self.numbers.of_id(schema.id), self.role(&schema.owner));
            let name = schema.name.clone();
            self.schemas.push(SchemaOf { oid, name, owner, of: Some(schema) });
        }
    }

    fn schema_or_public(&self, name: &str) -> u32 {
        self.schema_oid(name).unwrap_or(PUBLIC)
    }

    fn add_roles(&mut self, first: &str, mut read: Vec<(String, Role)>) {
        if !read.iter().any(|(name, _)| name == first) {
            read.push((first.to_owned(), Role::first(None)));
        }
        read.sort_by(|one, other| one.0.cmp(&other.0));
        for (name, role) in read {
            let oid = if name == first { FIRST_ROLE } else { self.numbers.of_name("role", 0, &name) };
            self.roles.push((oid, name, role));
        }
        self.roles.push((DATABASE_OWNER, "pg_database_owner".into(), Role::default()));
    }

    fn add_databases(&mut self, first: &str, read: Vec<(String, u32)>, own: u32) {
        let of_start = [("postgres".to_owned(), 0), (first.to_owned(), 1)];
        let mut all: Vec<(String, u32)> = of_start.into_iter().chain(read).collect();
        all.sort_by_key(|(_, number)| *number);
        all.dedup_by(|one, other| one.0 == other.0);
        for (name, number) in all {
            let oid = if number == 0 { POSTGRES } else { self.numbers.of_id(number.into()) };
            self.databases.push((oid, name));
            if number == own {
                self.database = oid;
            }
        }
    }

    /// Returns the relation with a number.
    pub(crate) fn relation(&self, oid: u32) -> Option<&Relation> {
        self.by_oid.get(&oid).map(|at| &self.relations[*at])
    }

    /// Returns the definition of the type with a number, or of that whose arrays have it.
    pub(crate) fn named_type(&self, oid: u32) -> Option<&'static NamedType> {
        self.named_types().find(|of| of.oid == oid || of.array == oid)
    }

    /// Returns the checks of domains: their numbers, domains, names and conditions.
    pub(crate) fn domain_checks(
        &self,
    ) -> impl Iterator<Item = (u32, &'static NamedType, &'static str, &'static str)> {
        let domains = self.named_types().filter_map(|of| Some((of, of.domain.as_ref()?)));
        domains.flat_map(|(of, domain)| {
            domain.checks.iter().map(move |(name, condition)| {
                let number = Numbers::default().of_name("constraint", of.oid.into(), name);
                (number, of, &**name, &**condition)
            })
        })
    }

    /// Returns the type with a name in one of these schemas, the first one that has it.
    pub(crate) fn find_type(&self, schemas: &[u32], name: &str) -> Option<&'static NamedType> {
        let in_schema = |schema: &u32| {
            self.named_types().find(|of| of.name == name && self.schema_oid(&of.schema) == Some(*schema))
        };
        let is_of_system = |schema: &u32| *schema == PG_CATALOG && super::is_type(name);
        schemas.iter().take_while(|schema| !is_of_system(schema)).find_map(in_schema)
    }

    /// Returns the relation with a name in a schema.
    pub(crate) fn find(&self, schema: u32, name: &str) -> Option<&Relation> {
        self.by_name.get(&(schema, name.to_owned())).map(|at| &self.relations[*at])
    }

    /// Returns the number of a role.
    pub(crate) fn role(&self, name: &str) -> u32 {
        self.roles.iter().find(|(_, known, _)| known == name).map_or(0, |(oid, ..)| *oid)
    }

    pub(crate) fn is_superuser(&self, name: &str) -> bool {
        self.roles.iter().any(|(_, known, role)| known == name && role.is_superuser)
    }

    /// Returns the number of the owner of a relation.
    pub(crate) fn owner_of(&self, relation: &Relation) -> u32 {
        relation.owner().map_or(FIRST_ROLE, |owner| self.role(owner))
    }

    /// Returns the name of the role with a number.
    pub(crate) fn role_name(&self, oid: u32) -> Option<&str> {
        self.roles.iter().find(|(known, ..)| *known == oid).map(|(_, name, _)| name.as_str())
    }

    /// Returns the number of a database.
    pub(super) fn database_oid(&self, name: &str) -> Option<u32> {
        self.databases.iter().find(|(_, known)| known == name).map(|(oid, _)| *oid)
    }

    /// Returns the definitions of the types that statements have made.
    pub(super) fn named_types(&self) -> impl Iterator<Item = &'static NamedType> {
        self.types.iter().filter_map(|entry| entry.of.named())
    }

    /// Returns the name of a schema.
    pub(crate) fn schema_name(&self, oid: u32) -> Option<&str> {
        self.schemas.iter().find(|schema| schema.oid == oid).map(|schema| schema.name.as_str())
    }

    /// Returns the number of a schema.
    pub(crate) fn schema_oid(&self, name: &str) -> Option<u32> {
        self.schemas.iter().find(|schema| schema.name == name).map(|schema| schema.oid)
    }

    /// Returns the relation with a name of the catalog.
    pub(crate) fn named(&self, name: &RelationName) -> Option<&Relation> {
        self.find(self.schema_oid(&name.schema)?, &name.name)
    }

    /// Returns the sequence with the end of a key of the catalog.
    pub(crate) fn sequence(&self, key: &str) -> Option<&Relation> {
        let found = self.named(&RelationName::of_key(key));
        found.filter(|relation| matches!(relation.of, RelationOf::Sequence(_)))
    }

    /// Returns the table with a name, and its number.
    pub(crate) fn table(&self, name: &RelationName) -> Option<(u32, &Table)> {
        let found = self.named(name)?;
        match &found.of {
            RelationOf::Table(table) => Some((found.oid, table)),
            _ => None,
        }
    }

    /// Returns the number of the unique index of a table with these columns, 0 if there is none.
    pub(crate) fn unique_key(&self, table: u32, columns: &[usize]) -> u32 {
        let fits = |key: &Key<'_>| {
            key.index.is_unique
                && key.index.deferral.is_none()
                && key.count == columns.len()
                && columns.iter().all(|at| key.parts[..key.count].iter().any(|part| part.number() == at + 1))
        };
        self.keys_of(table).into_iter().find(fits).map_or(0, |key| key.oid)
    }

    /// Returns the numbers of the schemas in which the session looks for a name without schema.
    pub(crate) fn path(&self, context: &Context) -> Vec<u32> {
        let setting = context.settings.borrow().show("search_path").unwrap_or_default();
        let own: Vec<u32> = catalog::path_of(&setting, &context.user)
            .iter()
            .filter_map(|name| self.schema_oid(name))
            .collect();
        let temporary = context.temporary.borrow().as_deref().and_then(|name| self.schema_oid(name));
        // The system's schema is the first one behind it, unless the path names it.
        let first = Some(PG_CATALOG).filter(|first| !own.contains(first));
        temporary.into_iter().chain(first).chain(own).collect()
    }

    /// Returns whether a name without schema means the relation.
    pub(crate) fn is_visible(&self, path: &[u32], relation: &Relation) -> bool {
        let found = path.iter().find_map(|schema| self.find(*schema, &relation.name));
        found.is_some_and(|found| found.oid == relation.oid)
    }

    /// Returns the number of the rule that has the query of a view.
    pub(crate) fn rule_oid(&self, view: u32) -> u32 {
        self.defaults.get(&(view, 0)).copied().unwrap_or_default()
    }

    /// Returns the number of a constraint of a table.
    pub(crate) fn constraint_oid(&self, table: u32, name: &str) -> u32 {
        self.constraints.get(&(table, name.to_owned())).copied().unwrap_or_default()
    }

    /// Returns the number of the table that has a constraint.
    pub(crate) fn table_of_constraint(&self, oid: u32) -> Option<u32> {
        self.tables_of_constraints.get(&oid).copied()
    }

    /// Returns the number of the default of a column, counted from 1.
    pub(crate) fn default_oid(&self, table: u32, column: usize) -> u32 {
        self.defaults.get(&(table, column)).copied().unwrap_or_default()
    }

    /// Returns all indexes and primary keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key<'_>> {
        self.relations.iter().filter_map(Relation::key)
    }

    /// Returns the primary key and the indexes of a table.
    pub(crate) fn keys_of(&self, table: u32) -> Vec<Key<'_>> {
        let Some(Relation { schema, of: RelationOf::Table(table), .. }) = self.relation(table) else {
            return Vec::new();
        };
        let primary = table.primary.iter().map(|key| &key.name);
        let names = primary.chain(table.indexes.iter().map(|index| &index.name));
        names.filter_map(|name| self.find(*schema, name)?.key()).collect()
    }
}

/// The definitions that a session knows. Functions need them at once, so an evaluation without them
/// fails, and is repeated when they are there.
#[derive(Default, Debug)]
pub(crate) struct Definitions {
    /// The role with which the cluster began.
    first: String,
    /// The definitions and the version of the catalog that has them.
    known: RefCell<Option<(Vec<u8>, Rc<Snapshot>)>>,
    /// They are those of the present statement.
    is_current: Cell<bool>,
    is_wanted: Cell<bool>,
    /// The rows of tables in this statement.
    rows: RefCell<HashMap<u32, KeptRows>>,
}

impl Definitions {
    /// Makes those of a session of a cluster that began with a role.
    pub(crate) fn new(first: String) -> Self {
        Self { first, ..Self::default() }
    }

    /// Returns the definitions; else notes that they are wanted, and fails.
    pub(crate) fn get(&self) -> Result<Rc<Snapshot>> {
        match &*self.known.borrow() {
            Some((_, known)) if self.is_current.get() => Ok(known.clone()),
            _ => {
                self.is_wanted.set(true);
                Err(SqlError::unsupported("a name of the catalog in this place"))
            }
        }
    }

    /// Returns the rows of a table.
    pub(crate) fn rows(&self, table: &SystemTable, context: &Context) -> Result<KeptRows> {
        let definitions = self.get()?;
        if let Some(known) = self.rows.borrow().get(&table.oid) {
            return Ok(known.clone());
        }
        let rows = Rc::new(table.rows(&definitions, context));
        self.rows.borrow_mut().insert(table.oid, rows.clone());
        Ok(rows)
    }

    /// Returns whether an evaluation has missed them.
    pub(crate) fn take_wanted(&self) -> bool {
        self.is_wanted.take()
    }

    /// Reads them, unless those of this version are known.
    pub(crate) async fn supply(&self, place: &SessionPlace, by: &mut Transaction) -> Result<()> {
        let version = Catalog::version(by).await?;
        let is_known = self.known.borrow().as_ref().is_some_and(|(known, _)| *known == version);
        if !is_known {
            let read = Rc::new(Snapshot::read(place, &self.first, by).await?);
            *self.known.borrow_mut() = Some((version, read));
        }
        self.is_current.set(true);
        Ok(())
    }

    /// Ends a statement: the next one may have other definitions.
    pub(crate) fn end_statement(&self) {
        self.is_current.set(false);
        self.is_wanted.set(false);
        self.rows.borrow_mut().clear();
    }
}
