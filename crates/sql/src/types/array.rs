//! Arrays: their values, and as text.

use std::cmp::Ordering;

use super::{Type, Value, text};

/// The values of an array, in the order of its last dimension first.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Array {
    /// The number of values of each dimension and the subscript of the first; none if it is empty.
    pub(crate) dimensions: Vec<(usize, i32)>,
    pub(crate) values: Vec<Value>,
}

impl From<Vec<Value>> for Array {
    fn from(values: Vec<Value>) -> Self {
        let dimensions = if values.is_empty() { Vec::new() } else { vec![(values.len(), 1)] };
        Self { dimensions, values }
    }
}

impl Array {
    /// Compares the values, then the dimensions.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let pairs = self.values.iter().zip(&other.values);
        let first = pairs.map(|(one, other)| one.compare(other)).find(|order| order.is_ne());
        first.unwrap_or_else(|| {
            (self.values.len().cmp(&other.values.len())).then_with(|| self.dimensions.cmp(&other.dimensions))
        })
    }

    /// Returns its text.
    pub(crate) fn print(&self, of: Type) -> String {
        let element = of.element().unwrap_or(Type::Text);
        if matches!(of, Type::Int2Vector | Type::OidVector) {
            let values: Vec<String> = self.values.iter().map(|value| text::print(value, element)).collect();
            return values.join(" ");
        }
        if self.values.is_empty() {
            return "{}".into();
        }
        let mut shown = String::new();
        if self.dimensions.iter().any(|(_, first)| *first != 1) {
            for (count, first) in &self.dimensions {
                shown.push_str(&format!("[{first}:{}]", i64::from(*first) + *count as i64 - 1));
            }
            shown.push('=');
        }
        let mut values = self.values.iter();
        self.print_level(0, &mut values, element, &mut shown);
        shown
    }

    fn print_level(
        &self,
        level: usize,
        values: &mut std::slice::Iter<'_, Value>,
        element: Type,
        into: &mut String,
    ) {
        let Some((count, _)) = self.dimensions.get(level) else {
            match values.next() {
                None | Some(Value::Null) => into.push_str("NULL"),
                Some(value) => put_quoted(into, &text::print(value, element)),
            }
            return;
        };
        into.push('{');
        for at in 0..*count {
            if at > 0 {
                into.push(',');
            }
            self.print_level(level + 1, values, element, into);
        }
        into.push('}');
    }
}

/// Appends an element, in quotes if it needs them.
fn put_quoted(into: &mut String, element: &str) {
    let is_special = |char: char| matches!(char, '{' | '}' | ',' | '"' | '\\') || char.is_ascii_whitespace();
    if !element.is_empty() && !element.contains(is_special) && !element.eq_ignore_ascii_case("null") {
        into.push_str(element);
        return;
    }
    into.push('"');
    for char in element.chars() {
        if matches!(char, '"' | '\\') {
            into.push('\\');
        }
        into.push(char);
    }
    into.push('"');
}

/// The element of an array type in the catalog.
pub(super) mod of_element {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use super::Type;

    pub(crate) fn serialize<S: Serializer>(of: &&'static Type, to: S) -> Result<S::Ok, S::Error> {
        of.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<&'static Type, D::Error> {
        match Type::deserialize(from)?.array() {
            Some(Type::Array(of)) => Ok(of),
            _ => Err(D::Error::custom("a type of which there are no arrays")),
        }
    }
}
