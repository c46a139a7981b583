//! Functions that return rows: in FROM, and in the list of SELECT.

use sqlparser::ast;

use super::{Scope, Typed, coerce, select::ResultColumn};
use crate::{
    error::{Result, SqlError, fail},
    expr::Expr,
    functions::sets::{self, SetFunction},
    types::Type,
};

/// A call of a function that returns rows.
#[derive(Clone, Debug)]
pub(crate) struct SetCall {
    pub(crate) function: &'static SetFunction,
    pub(crate) arguments: Vec<Expr>,
    pub(crate) types: Vec<Type>,
    pub(crate) columns: Vec<ResultColumn>,
}

/// Returns whether a function returns rows.
pub(super) fn is_set(name: &str) -> bool {
    sets::FUNCTIONS.iter().any(|function| function.name() == name)
}

/// Binds a call; a function that returns one value is one row.
pub(crate) fn bind(name: &str, arguments: Vec<Typed>, scope: &Scope<'_>) -> Result<SetCall> {
    let types: Vec<Type> = arguments.iter().map(|(_, of)| *of).collect();
    if !is_set(name) {
        let (value, of) = scope.call(name, arguments)?;
        let columns = vec![ResultColumn { name: name.to_owned(), of }];
        return Ok(SetCall { function: &sets::VALUE, arguments: vec![value], types: vec![of], columns });
    }
    let (function, wanted, columns) = sets::find(name, &types)?;
    let exprs = arguments.into_iter().zip(&wanted);
    let arguments = exprs.map(|(typed, to)| coerce(typed, *to, scope.parameters, false));
    let arguments = arguments.collect::<Result<_>>()?;
    let columns: Vec<ResultColumn> =
        columns.into_iter().map(|(name, of)| ResultColumn { name: name.into(), of }).collect();
    Ok(SetCall { function, arguments, types: wanted, columns })
}

impl Scope<'_> {
    /// Binds a call in the list of SELECT: the row is repeated for each of its rows.
    pub(super) fn set_call(
        &self,
        function: &ast::Function,
        name: &str,
        arguments: Vec<Typed>,
    ) -> Result<Typed> {
        let Some(calls) = self.calls else {
            fail!(FEATURE_NOT_SUPPORTED, "set-returning functions are not allowed here");
        };
        let call = bind(name, arguments, self)?;
        if call.columns.len() != 1 {
            return Err(SqlError::unsupported(format!("{name} with several columns outside of FROM")));
        }
        Ok(calls.add_set(function, call))
    }
}
