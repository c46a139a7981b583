//! The schemas `pg_catalog` and `information_schema`: tables and views of the definitions of a
//! database, in the form that PostgreSQL's clients expect.

pub(crate) mod functions;

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

use plexus_cache::Cache;
use plexus_store::Store;

use crate::{
    catalog::{Catalog, SessionPlace, Table, Transaction},
    error::{Result, SqlError, code},
    exec::KeptRows,
    functions::Context,
    types::{Type, Value},
};

/// The definitions of a database at the snapshot of a statement.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) tables: Vec<Rc<Table>>,
}

impl Snapshot {
    /// Reads the definitions.
    pub(crate) async fn read(
        place: &SessionPlace,
        store: &Store<Cache>,
        by: &mut Transaction,
    ) -> Result<Self> {
        let tables = Catalog::new(place.clone()).tables(store, by).await?;
        Ok(Self { tables: tables.into_iter().map(Rc::new).collect() })
    }
}

/// The definitions that a session knows. Functions need them at once, so an evaluation without them
/// fails, and is repeated when they are there.
#[derive(Default, Debug)]
pub(crate) struct Definitions {
    /// The definitions and the version of the catalog that has them.
    known: RefCell<Option<(Vec<u8>, Rc<Snapshot>)>>,
    /// They are those of the present statement.
    is_current: Cell<bool>,
    is_wanted: Cell<bool>,
    /// The rows of tables in this statement.
    rows: RefCell<HashMap<u32, KeptRows>>,
}

impl Definitions {
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
        let rows = Rc::new((table.rows)(&definitions, context));
        self.rows.borrow_mut().insert(table.oid, rows.clone());
        Ok(rows)
    }

    /// Returns whether an evaluation has missed them.
    pub(crate) fn take_wanted(&self) -> bool {
        self.is_wanted.take()
    }

    /// Reads them, unless those of this version are known.
    pub(crate) async fn supply(
        &self,
        place: &SessionPlace,
        store: &Store<Cache>,
        by: &mut Transaction,
    ) -> Result<()> {
        let version = Catalog::version(store, by).await?;
        let is_known = self.known.borrow().as_ref().is_some_and(|(known, _)| *known == version);
        if !is_known {
            let read = Rc::new(Snapshot::read(place, store, by).await?);
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

/// A table whose rows are made from the definitions.
pub(crate) struct SystemTable {
    pub(crate) schema: &'static str,
    pub(crate) name: &'static str,
    pub(crate) oid: u32,
    pub(crate) columns: &'static [(&'static str, Type)],
    pub(crate) rows: fn(&Snapshot, &Context) -> Vec<Vec<Value>>,
}

impl std::fmt::Debug for SystemTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// A query under a name.
#[derive(Debug)]
pub(crate) struct SystemView {
    pub(crate) schema: &'static str,
    pub(crate) name: &'static str,
    pub(crate) oid: u32,
    pub(crate) text: &'static str,
}

static TABLES: &[SystemTable] = &[SystemTable {
    schema: "pg_catalog",
    name: "pg_namespace",
    oid: 2615,
    columns: &[("oid", Type::Oid), ("nspname", Type::Name), ("nspowner", Type::Oid), ("nspacl", Type::Text)],
    rows: |_, _| vec![vec![Value::Int(2200), Value::Text("public".into()), Value::Int(10), Value::Null]],
}];

static VIEWS: &[SystemView] = &[];

/// Returns the table with a name; without a schema it is one of `pg_catalog`.
pub(crate) fn find_table(schema: Option<&str>, name: &str) -> Option<&'static SystemTable> {
    let schema = schema.unwrap_or("pg_catalog");
    TABLES.iter().find(|table| table.schema == schema && table.name == name)
}

/// Returns the view with a name; without a schema it is one of `pg_catalog`.
pub(crate) fn find_view(schema: Option<&str>, name: &str) -> Option<&'static SystemView> {
    let schema = schema.unwrap_or("pg_catalog");
    VIEWS.iter().find(|view| view.schema == schema && view.name == name)
}

/// Converts a value to or from a type whose values are shown as names.
pub(crate) fn cast(value: Value, from: Type, to: Type, context: &Context) -> Result<Value> {
    match (&value, to) {
        (Value::Null, _) => Ok(Value::Null),
        (Value::Int(_), to) if !to.is_text() => value.cast(from, to, true),
        (Value::Int(oid), _) => Ok(Value::Text(name_of(*oid, from, context)?)),
        (Value::Text(name), _) => Ok(Value::Int(identifier_of(name, to, context)?)),
        _ => Err(SqlError::new(code::CANNOT_COERCE, format!("cannot cast to type {}", to.name()))),
    }
}

/// Returns the name of the object with an identifier, or the identifier if there is none.
fn name_of(oid: i64, _of: Type, context: &Context) -> Result<String> {
    context.definitions.get()?;
    Ok(oid.to_string())
}

/// Returns the identifier of the object with a name.
fn identifier_of(name: &str, of: Type, context: &Context) -> Result<i64> {
    context.definitions.get()?;
    name.parse().map_err(|_| SqlError::unsupported(format!("the name {name} of type {}", of.name())))
}
