//! The rows of `pg_proc`: the table of functions, and the functions that read and write the values
//! of types.

use std::{collections::HashMap, sync::LazyLock};

use super::{
    Snapshot,
    rows::{list, row, vector},
    snapshot::Numbers,
    types,
};
use crate::{
    functions::{self, Context, DeclaredType, Function, Volatility},
    types::Value,
};

/// The type `cstring` of the texts of values.
const CSTRING: u32 = 2275;

/// A function of `pg_proc`; without an entry of the table it reads or writes values.
struct Procedure {
    oid: u32,
    name: &'static str,
    /// The function with the arguments that a call gives.
    function: Option<(&'static Function, &'static [DeclaredType])>,
}

static PROCEDURES: LazyLock<Vec<Procedure>> = LazyLock::new(|| {
    let of_types: HashMap<u32, &str> = types::functions().map(|(name, oid)| (oid, name)).collect();
    let of_types = of_types.into_iter().map(|(oid, name)| Procedure { oid, name, function: None });
    let mut numbers = Numbers::default();
    let forms = functions::all().flat_map(|function| function.forms().map(move |form| (function, form)));
    let of_table = forms.map(|(function, arguments)| {
        let types: Vec<&str> = arguments.iter().map(|of| of.name()).collect();
        let oid = numbers.of_name(&types.join(","), 0, function.name);
        Procedure { oid, name: function.name, function: Some((function, arguments)) }
    });
    let mut all: Vec<Procedure> = of_types.chain(of_table).collect();
    all.sort_by_key(|one| one.oid);
    all
});

/// Returns the name of the function with a number.
pub(super) fn name_of(oid: u32) -> Option<&'static str> {
    let at = PROCEDURES.binary_search_by_key(&oid, |one| one.oid).ok()?;
    Some(PROCEDURES[at].name)
}

/// Returns the numbers of the functions with a name.
pub(super) fn named(name: &str) -> Vec<u32> {
    PROCEDURES.iter().filter(|one| one.name == name).map(|one| one.oid).collect()
}

impl Procedure {
    fn row(&self) -> Vec<Value> {
        let oid_of = |of: &DeclaredType| of.oid();
        let (arguments, result, is_strict, volatility, defaults) = match self.function {
            Some((function, arguments)) => (
                arguments.iter().map(oid_of).collect(),
                function.result().oid(),
                function.is_strict,
                function.volatility,
                function.defaults.len(),
            ),
            None => (vec![CSTRING], CSTRING, true, Volatility::Immutable, 0),
        };
        let volatility = match volatility {
            Volatility::Immutable => 'i',
            Volatility::Stable => 's',
            Volatility::Volatile => 'v',
        };
        let is_variadic = self.function.is_some_and(|(function, _)| function.is_variadic);
        let variadic = arguments.last().copied().filter(|_| is_variadic).unwrap_or_default();
        // Arguments that are named by a letter have no names elsewhere.
        let names = self.function.map(|(function, _)| &function.names);
        let names = names.filter(|names| names.iter().any(|name| name.len() > 1));
        let names = names.map(|names| list(names.clone(), 1));
        row![
            [self.oid, self.name, variadic, is_strict, volatility, arguments.len(), defaults, result],
            [vector(arguments), names, self.name],
        ]
    }
}

/// Makes the rows of `pg_proc`.
pub(super) fn procedures(_: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    PROCEDURES.iter().map(Procedure::row).collect()
}
