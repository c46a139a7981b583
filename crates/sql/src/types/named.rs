//! Types that statements have made: enumerated types and domains.
//!
//! A column has the whole definition of its type, so values are read and shown without the catalog.
//! Each definition is in memory once, for as long as the program runs: [`Type`] is copied
//! everywhere. A change of a type is a new definition, and the tables that use the type get it.

use std::{
    collections::HashMap,
    fmt,
    sync::{LazyLock, Mutex, OnceLock, PoisonError},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Facts, Type, Value};
use crate::{
    catalog::{PUBLIC, RelationName},
    error::{Result, SqlError, code, error},
    expr::{Expr, Inputs},
    functions::{Context, names::quoted_name},
};

/// The most bytes of definitions that statements of one run of a node make: they stay in memory.
const MOST_BYTES: usize = 64 << 20;

/// The most labels of a type.
pub(crate) const MOST_LABELS: usize = 10_000;

/// The distance of neighboring labels. Values of a type are stored as the positions of their
/// labels, so rows and keys stay right when a label comes between two others; halving the distance
/// leaves room for 40 of them at one place.
pub(crate) const LABEL_STEP: i64 = 1 << 40;

/// A type that a statement has made.
#[derive(Serialize, Deserialize)]
pub(crate) struct NamedType {
    pub(crate) oid: u32,
    /// The number of the type of its arrays.
    pub(crate) array: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// The labels of an enumerated type with their positions, in their order.
    pub(crate) labels: Vec<(i64, String)>,
    /// The rules of a domain.
    pub(crate) domain: Option<Domain>,
    /// Its name in SQL, and that of its arrays.
    #[serde(skip)]
    shown: (String, String),
    #[serde(skip)]
    facts: OnceLock<Facts>,
}

/// A type with rules for its values.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Domain {
    pub(crate) of: Type,
    pub(crate) not_null: bool,
    /// The text of the default.
    pub(crate) default: Option<String>,
    /// The names of checks, and the texts of their conditions.
    pub(crate) checks: Vec<(String, String)>,
}

/// The definitions by their texts, and the newest one of each type.
#[derive(Default)]
struct Known {
    by_text: HashMap<String, &'static NamedType>,
    by_oid: HashMap<u32, &'static NamedType>,
    bytes: usize,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// Types are equal if they are versions of one.
impl PartialEq for NamedType {
    fn eq(&self, other: &Self) -> bool {
        self.oid == other.oid
    }
}

impl Eq for NamedType {}

/// Its number: expressions are compared by their texts.
impl fmt::Debug for NamedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.oid.fmt(f)
    }
}

impl NamedType {
    pub(crate) fn new(
        oid: u32,
        array: u32,
        name: &RelationName,
        labels: Vec<(i64, String)>,
        domain: Option<Domain>,
    ) -> Self {
        let (schema, name) = (name.schema.clone(), name.name.clone());
        Self { oid, array, schema, name, labels, domain, shown: Default::default(), facts: OnceLock::new() }
    }

    /// Returns another version of the definition.
    pub(crate) fn version(
        &self,
        name: &RelationName,
        labels: Vec<(i64, String)>,
        domain: Option<Domain>,
    ) -> Self {
        Self::new(self.oid, self.array, name, labels, domain)
    }

    /// Returns the definition for use in types.
    fn known(mut self) -> &'static Self {
        let text = serde_json::to_string(&self).unwrap_or_default();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.by_text.get(&text) {
            return known;
        }
        let name = quoted_name(&self.name);
        let shown =
            if self.schema == PUBLIC { name } else { format!("{}.{name}", quoted_name(&self.schema)) };
        self.shown = (shown.clone(), shown + "[]");
        known.bytes += 2 * text.len() + size_of::<Self>() + 32 * self.labels.len();
        let of: &'static Self = Box::leak(Box::new(self));
        known.by_text.insert(text, of);
        known.by_oid.extend([(of.oid, of), (of.array, of)]);
        of
    }

    /// Returns the definition, which a statement has made, for use in types.
    pub(crate) fn made(self) -> Result<&'static Self> {
        if KNOWN.lock().unwrap_or_else(PoisonError::into_inner).bytes > MOST_BYTES {
            let message = "too many definitions of types since the node was started";
            return Err(SqlError::new(code::PROGRAM_LIMIT, message).with_hint("Restart the node."));
        }
        Ok(self.known())
    }

    /// Returns a definition of the type with a number, or of that whose arrays have it. It need not
    /// be the present one.
    pub(crate) fn of_oid(oid: u32) -> Option<&'static Self> {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.by_oid.get(&oid).copied()
    }

    pub(crate) fn relation(&self) -> RelationName {
        RelationName::new(&self.schema, &self.name)
    }

    /// Returns the type.
    pub(crate) fn of(&'static self) -> Type {
        if self.domain.is_some() { Type::Domain(self) } else { Type::Enum(self) }
    }

    /// Returns its name in SQL.
    pub(super) fn shown(&self) -> &str {
        &self.shown.0
    }

    /// Returns the values of the type in the catalog.
    pub(super) fn facts(&'static self) -> &'static Facts {
        let size = self.domain.as_ref().map_or(4, |domain| domain.of.size());
        let (name, array_name) = (self.shown.0.as_str(), self.shown.1.as_str());
        let Self { oid, array, name: catalog_name, .. } = self;
        let (of, oid, array) = (self.of(), *oid, *array);
        self.facts.get_or_init(|| Facts { of, oid, size, name, catalog_name, array, array_name })
    }

    /// Checks a value of a domain, with the conditions of its checks.
    pub(crate) fn check(&self, value: &Value, conditions: &[Expr], context: &Context) -> Result<()> {
        let Some(domain) = &self.domain else { return Ok(()) };
        let fields = |error: SqlError| error.with(|fields| fields.data_type = Some(self.name.clone()));
        if domain.not_null && value.is_null() {
            let message = format!("domain {} does not allow null values", self.shown());
            return Err(fields(SqlError::new(code::NOT_NULL_VIOLATION, message)));
        }
        let row = std::slice::from_ref(value);
        for ((name, _), condition) in domain.checks.iter().zip(conditions) {
            let holds = condition.evaluate(Inputs { row, parameters: &[], outer: &[], context })?;
            if holds == Value::Bool(false) {
                let message =
                    format!("value for domain {} violates check constraint \"{name}\"", self.shown());
                let error = fields(SqlError::new(code::CHECK_VIOLATION, message));
                return Err(error.with(|fields| fields.constraint = Some(name.clone())));
            }
        }
        Ok(())
    }

    /// Returns the value with a label.
    pub(super) fn value(&self, label: &str) -> Result<Value> {
        let found = self.labels.iter().find(|(_, known)| known == label);
        found
            .map(|(position, _)| Value::Int(*position))
            .ok_or_else(|| error!(INVALID_TEXT, "invalid input value for enum {}: \"{label}\"", self.shown()))
    }

    /// Returns the label of a value.
    pub(super) fn label(&self, position: i64) -> &str {
        let at = self.labels.binary_search_by_key(&position, |(position, _)| *position);
        at.map_or("", |at| &self.labels[at].1)
    }
}

/// A definition in the catalog.
pub(super) mod known {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        of: &&'static NamedType,
        to: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        of.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> std::result::Result<&'static NamedType, D::Error> {
        NamedType::deserialize(from).map(NamedType::known)
    }
}
