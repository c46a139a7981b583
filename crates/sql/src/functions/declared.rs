//! The declarations of functions and operators.
//!
//! A declaration is near to that of `CREATE FUNCTION`: `left(text, int4) text`. Around it:
//!
//! | notation | meaning |
//! |---|---|
//! | `pow power(…)` | two names of one function; operators stand under their symbols |
//! | `abs(int2/int4) int2/int4` | two functions, the second with the second types |
//! | `f(int4) int4; (int8, text) int4` | two functions, both of the last name |
//! | `f(text, [int4]) text` | two functions, the second without the last argument |
//! | `f(variadic any) text` | calls give the elements of the last array one by one |
//! | `f(a int4, b int4=1) int4` | named arguments, and a literal for one that a call leaves out |
//! | `f(…) text stable`, `volatile` | the result depends on the statement, or is a new one each time |
//! | `f(…) text null` | it is called with NULL; others give NULL for NULL |
//! | `f(text!, text) text null` | it is called with NULL, but for the first argument |

use super::Call;
use crate::{
    error::Result,
    system::type_named,
    types::{Type, Value},
};

/// A function as the binder and the catalogs see it.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) arguments: Vec<DeclaredType>,
    /// The names of the arguments, if they have any.
    pub(crate) names: Vec<&'static str>,
    /// The values of the last arguments that a call may leave out, as literals.
    pub(crate) defaults: Vec<&'static str>,
    /// The number of last arguments that a call may leave out, which has no value then.
    pub(crate) optional: usize,
    /// The last argument is an array, which a call may give as separate values.
    pub(crate) is_variadic: bool,
    /// The names and the types of the result's columns; one unless the function returns rows.
    pub(crate) columns: Vec<(&'static str, DeclaredType)>,
    pub(crate) volatility: Volatility,
    /// NULL as an argument gives NULL.
    pub(crate) is_strict: bool,
    /// The places of the arguments for which NULL gives NULL, if it is not strict.
    pub(crate) required: Vec<usize>,
    pub(crate) body: FunctionBody,
}

/// The work of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FunctionBody {
    Native(fn(&Call<'_>) -> Result<Value>),
    /// An expression of the named arguments, which takes the place of the call.
    Sql(&'static str),
}

/// An entry of the table: the declaration and what it does.
pub(crate) type Declared = (&'static str, FunctionBody);

/// A type in the declaration of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeclaredType {
    Is(Type),
    /// Each argument has its own type, which may stay unknown.
    Any,
    AnyElement,
    AnyArray,
    AnyCompatible,
    AnyCompatibleArray,
    AnyEnum,
}

/// The types that stand for others, with their names and identifiers in PostgreSQL.
static PSEUDO_TYPES: &[(DeclaredType, &str, u32)] = &[
    (DeclaredType::Any, "\"any\"", 2276),
    (DeclaredType::AnyElement, "anyelement", 2283),
    (DeclaredType::AnyArray, "anyarray", 2277),
    (DeclaredType::AnyCompatible, "anycompatible", 5077),
    (DeclaredType::AnyCompatibleArray, "anycompatiblearray", 5078),
    (DeclaredType::AnyEnum, "anyenum", 3500),
];

/// A promise about the results of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Volatility {
    /// The same arguments give the same result for ever.
    Immutable,
    /// The same arguments give the same result within a statement.
    Stable,
    Volatile,
}

/// Makes an entry of the table.
pub(crate) const fn function(declaration: &'static str, act: fn(&Call<'_>) -> Result<Value>) -> Declared {
    (declaration, FunctionBody::Native(act))
}

impl Function {
    /// Returns the functions of an entry.
    pub(crate) fn all_of((text, body): Declared) -> impl Iterator<Item = Self> {
        let words = |text: &'static str| text.split_whitespace();
        let end: Vec<&str> = words(text.rsplit(')').next().unwrap_or_default()).collect();
        let volatility = match (end.contains(&"stable"), end.contains(&"volatile")) {
            (true, _) => Volatility::Stable,
            (_, true) => Volatility::Volatile,
            _ => Volatility::Immutable,
        };
        let is_strict = !end.contains(&"null");
        let (mut all, mut names) = (Vec::new(), "");
        for signature in text.split(';').map(str::trim) {
            let (head, rest) = signature.split_once('(').unwrap_or((signature, ")"));
            let (arguments, result) = rest.rsplit_once(')').unwrap_or((rest, ""));
            names = if head.is_empty() { names } else { head };
            let pieces =
                |text: &'static str| text.split(',').map(str::trim).filter(|piece| !piece.is_empty());
            let types = pieces(arguments).chain(pieces(result));
            let ways = types.map(|piece| piece.split('/').count()).max().unwrap_or(1);
            for (name, way) in words(names).flat_map(|name| (0..ways).map(move |way| (name, way))) {
                let mut made = Self {
                    name,
                    arguments: Vec::new(),
                    names: Vec::new(),
                    defaults: Vec::new(),
                    optional: 0,
                    is_variadic: false,
                    columns: Vec::new(),
                    volatility,
                    is_strict,
                    required: Vec::new(),
                    body,
                };
                for (at, piece) in pieces(arguments).enumerate() {
                    made.required.extend(piece.ends_with('!').then_some(at));
                    made.optional += usize::from(piece.starts_with('['));
                    let (piece, default) = piece.split_once('=').unwrap_or((piece, ""));
                    made.defaults.extend((!default.is_empty()).then_some(default));
                    let mut parts: Vec<&str> = words(piece.trim_matches(['[', ']', '!'])).collect();
                    made.arguments.extend(parts.pop().map(|types| DeclaredType::named(types, way)));
                    made.is_variadic |= parts.contains(&"variadic");
                    made.names.extend(parts.into_iter().filter(|part| *part != "variadic"));
                }
                for piece in pieces(result) {
                    let is_attribute = |word: &&str| matches!(*word, "stable" | "volatile" | "null");
                    let mut parts: Vec<&str> = words(piece).filter(|word| !is_attribute(word)).collect();
                    let of = parts.pop().map(|types| DeclaredType::named(types, way));
                    made.columns.extend(of.map(|of| (parts.first().copied().unwrap_or(name), of)));
                }
                all.push(made);
            }
        }
        all.into_iter()
    }

    pub(crate) fn is_operator(&self) -> bool {
        !self.name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
    }

    /// Returns the type of the result.
    pub(crate) fn result(&self) -> DeclaredType {
        self.columns.first().map_or(DeclaredType::Any, |(_, of)| *of)
    }

    /// Returns the arguments of each function that the catalog has for this one.
    pub(crate) fn forms(&self) -> impl Iterator<Item = &[DeclaredType]> {
        (self.arguments.len() - self.optional..=self.arguments.len()).map(|count| &self.arguments[..count])
    }
}

impl DeclaredType {
    /// Returns the type of a number in a declaration with several types.
    fn named(types: &str, way: usize) -> Self {
        let name = types.split('/').nth(way).unwrap_or(types);
        let pseudo = PSEUDO_TYPES.iter().find(|(_, known, _)| known.trim_matches('"') == name);
        pseudo.map_or_else(|| Self::Is(type_named(name)), |(of, ..)| *of)
    }

    /// Returns its name in PostgreSQL.
    pub(crate) fn name(self) -> &'static str {
        self.facts().0
    }

    /// Returns its identifier in PostgreSQL's catalog.
    pub(crate) fn oid(self) -> u32 {
        self.facts().1
    }

    fn facts(self) -> (&'static str, u32) {
        match self {
            Self::Is(of) => (of.name(), of.oid()),
            pseudo => PSEUDO_TYPES.iter().find(|(of, ..)| *of == pseudo).map_or(("", 0), |of| (of.1, of.2)),
        }
    }
}
