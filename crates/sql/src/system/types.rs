//! The rows of `pg_type`: the types of SQL that there are, from the lines of `types.txt`, and
//! their arrays.

use std::{collections::HashMap, sync::LazyLock};

use super::{
    Snapshot, describe,
    relations::PG_CATALOG,
    rows::row,
    snapshot::{FIRST_ROLE, Numbers, PUBLIC},
};
use crate::{
    catalog::TypeEntry,
    functions::Context,
    types::{
        Type, Value,
        named::{Domain, LABEL_STEP, NamedType},
    },
};

/// The functions of domains.
const OF_DOMAINS: [&str; 2] = ["domain_in/2597", "domain_recv/2598"];

/// The functions of enumerated types.
const OF_ENUMS: [&str; 8] =
    ["enum_in/3506", "enum_out/3507", "enum_recv/3532", "enum_send/3533", "-", "-", "-", "-"];

/// The functions of arrays, and those that look into values, as `types.txt` writes them.
const OF_ARRAYS: [&str; 8] = [
    "array_in/750",
    "array_out/751",
    "array_recv/2400",
    "array_send/2401",
    "-",
    "-",
    "array_subscript_handler/6179",
    "array_typanalyze/3816",
];

/// A type of PostgreSQL.
#[derive(Clone, Debug)]
pub(crate) struct CatalogType {
    pub(crate) oid: u32,
    pub(crate) name: &'static str,
    pub(crate) size: i16,
    pub(crate) is_by_value: bool,
    kind: &'static str,
    category: &'static str,
    is_preferred: bool,
    delimiter: &'static str,
    element: u32,
    pub(crate) array: u32,
    /// The functions for text and binary input and output, and others.
    functions: [&'static str; 8],
    pub(crate) alignment: &'static str,
    pub(crate) storage: &'static str,
    pub(crate) collation: u32,
}

/// The types of `types.txt`.
static TYPES: LazyLock<Vec<CatalogType>> = LazyLock::new(|| {
    let lines = include_str!("types.txt").lines();
    lines.filter_map(|line| read(&line.split(' ').collect::<Vec<_>>())).collect()
});

static BY_NAME: LazyLock<HashMap<&'static str, u32>> =
    LazyLock::new(|| TYPES.iter().map(|one| (one.name, one.oid)).collect());

/// Reads a line of `types.txt`.
fn read(words: &[&'static str]) -> Option<CatalogType> {
    Some(CatalogType {
        oid: words.first()?.parse().ok()?,
        name: words.get(1)?,
        size: words.get(2)?.parse().ok()?,
        is_by_value: *words.get(3)? == "t",
        kind: words.get(4)?,
        category: words.get(5)?,
        is_preferred: *words.get(6)? == "t",
        delimiter: words.get(7)?,
        element: words.get(8)?.parse().ok()?,
        array: words.get(9)?.parse().ok()?,
        functions: words.get(10..18)?.try_into().ok()?,
        alignment: words.get(18)?,
        storage: words.get(19)?,
        collation: words.get(20)?.parse().ok()?,
    })
}

/// Returns the number of a function of `types.txt`, 0 for none.
fn number(function: &str) -> u32 {
    function.split_once('/').and_then(|(_, oid)| oid.parse().ok()).unwrap_or_default()
}

/// Returns the names and numbers of the functions that read and write values.
pub(crate) fn functions() -> impl Iterator<Item = (&'static str, u32)> {
    let all = TYPES.iter().flat_map(|one| one.functions).chain(OF_ARRAYS).chain(OF_ENUMS).chain(OF_DOMAINS);
    all.filter_map(|function| Some((function.split_once('/')?.0, number(function))))
}

/// Returns whether PostgreSQL has a type with this name.
pub(crate) fn is_type(name: &str) -> bool {
    BY_NAME.contains_key(name)
}

/// Returns the number of the type with a name in the catalog.
pub(crate) fn find(name: &str) -> Option<u32> {
    match name.strip_prefix('_') {
        Some(element) => {
            let oid = BY_NAME.get(element)?;
            TYPES.iter().find(|one| one.oid == *oid).map(|one| one.array).filter(|array| *array != 0)
        }
        None => BY_NAME.get(name).copied(),
    }
}

/// Returns the type with a number that is no array.
pub(crate) fn plain(oid: u32) -> Option<&'static CatalogType> {
    TYPES.iter().find(|one| one.oid == oid)
}

/// Returns the category of a type (`pg_type.typcategory`), and whether it is the preferred one
/// there.
pub(crate) fn category(of: Type) -> (&'static str, bool) {
    if let Type::Enum(_) = of {
        return ("E", false);
    }
    plain(of.oid()).map_or(("A", false), |known| (known.category, known.is_preferred))
}

/// Returns the type whose arrays have a number.
pub(crate) fn element_of(array: u32) -> Option<&'static CatalogType> {
    TYPES.iter().find(|one| one.array == array && array != 0)
}

/// Returns whether there is a type with a number.
pub(crate) fn is_known(oid: u32) -> bool {
    plain(oid).is_some_and(CatalogType::is_known) || element_of(oid).is_some_and(CatalogType::has_arrays)
}

impl CatalogType {
    /// Returns whether values of it can be in tables or calls.
    fn is_known(&self) -> bool {
        self.kind == "p" || Type::of_oid(self.oid).is_some()
    }

    /// Returns whether it has arrays.
    fn has_arrays(&self) -> bool {
        self.array != 0 && (self.kind == "e" || Type::of_oid(self.array).is_some())
    }

    /// Returns a type that a statement has made.
    pub(super) fn of_named(of: &'static NamedType) -> Self {
        if let Some(domain) = &of.domain {
            let base =
                plain(domain.of.oid()).cloned().or_else(|| element_of(domain.of.oid()).map(Self::of_array));
            if let Some(mut base) = base {
                (base.oid, base.name, base.kind, base.is_preferred) = (of.oid, of.name.as_str(), "d", false);
                (base.element, base.array) = (0, 0);
                [base.functions[0], base.functions[2]] = OF_DOMAINS;
                base.functions[4..7].fill("-");
                return base;
            }
        }
        Self {
            oid: of.oid,
            name: &of.name,
            size: 4,
            is_by_value: true,
            kind: "e",
            category: "E",
            is_preferred: false,
            delimiter: ",",
            element: 0,
            array: of.array,
            functions: OF_ENUMS,
            alignment: "i",
            storage: "p",
            collation: 0,
        }
    }

    fn row(&self, schema: u32, owner: u32, domain: Option<&Domain>) -> Vec<Value> {
        let default = domain.and_then(|domain| describe::default_in(domain.default.as_ref()?, domain.of));
        let [input, output, receive, send, read_limits, show_limits, subscript, analyze] =
            self.functions.map(number);
        let array = if self.has_arrays() { self.array } else { 0 };
        let not_null = domain.is_some_and(|domain| domain.not_null);
        let (base, limits) = domain.map_or((0, -1), |domain| (domain.of.oid(), domain.of.modifier()));
        row![
            [self.oid, self.name, schema, owner, self.size, self.is_by_value],
            [self.kind, self.category, self.is_preferred, self.delimiter],
            [subscript, self.element, array, input, output, receive, send, read_limits, show_limits, analyze],
            [self.alignment, self.storage, not_null, base, limits, self.collation],
            [default.clone(), default],
        ]
    }

    /// Returns the type of its arrays.
    fn of_array(&self) -> Self {
        let [.., read_limits, show_limits, _, _] = self.functions;
        let mut functions = OF_ARRAYS;
        (functions[4], functions[5]) = (read_limits, show_limits);
        Self {
            oid: self.array,
            // Its row puts a `_` before the name.
            name: self.name,
            size: -1,
            is_by_value: false,
            kind: if self.kind == "p" { "p" } else { "b" },
            category: if self.kind == "p" { "P" } else { "A" },
            is_preferred: false,
            delimiter: self.delimiter,
            element: self.oid,
            array: 0,
            functions,
            alignment: if self.alignment == "d" { "d" } else { "i" },
            storage: "x",
            collation: self.collation,
        }
    }
}

/// Makes the rows of `pg_type`.
pub(super) fn types(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let rows = |one: &CatalogType, schema: u32, owner: u32, domain: Option<&Domain>| {
        let array = one.has_arrays().then(|| {
            let mut row = one.of_array().row(schema, owner, None);
            row[1] = Value::Text(format!("_{}", one.name));
            row
        });
        [one.row(schema, owner, domain)].into_iter().chain(array).collect::<Vec<_>>()
    };
    let known = TYPES.iter().filter(|one| one.is_known());
    let of_system = known.flat_map(|one| rows(one, PG_CATALOG, FIRST_ROLE, None));
    let named = snapshot.types.iter().filter_map(|TypeEntry { of, owner, .. }| {
        let of = of.named()?;
        let schema = snapshot.schema_oid(&of.schema).unwrap_or(PUBLIC);
        Some(rows(&CatalogType::of_named(of), schema, snapshot.role(owner), of.domain.as_ref()))
    });
    of_system.chain(named.flatten()).collect()
}

/// Makes the rows of `pg_enum`.
pub(super) fn labels(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let labels = snapshot.named_types().flat_map(|of| {
        of.labels.iter().map(|(position, label)| {
            let oid = Numbers::default().of_name("label", of.oid.into(), &position.to_string());
            row![oid, of.oid, *position as f64 / LABEL_STEP as f64, label]
        })
    });
    labels.collect()
}
