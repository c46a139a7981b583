//! Subqueries in expressions.

use std::rc::Rc;

use sqlparser::ast::{self, BinaryOperator};

use super::{
    Scope, Typed, coerce, keyed,
    narrow::read_less,
    operators::no_operator,
    query::{self, Query, QueryBody},
};
use crate::{
    error::{Result, SqlError, code},
    expr::{Comparison, Expr, SubqueryUse},
    types::{Type, Value},
};

/// Returns the subquery that an expression is.
pub(super) fn of(expr: &ast::Expr) -> Option<&ast::Query> {
    match expr {
        ast::Expr::Subquery(query) => Some(query),
        ast::Expr::Nested(inner) => of(inner),
        _ => None,
    }
}

impl Scope<'_> {
    fn inner(&self, query: &ast::Query) -> Result<(Query, Vec<Expr>)> {
        query::bind_inner(query, Scope { calls: None, ..*self })
    }

    fn one_column(&self, query: &ast::Query) -> Result<(Query, Vec<Expr>, Type)> {
        let (query, outer) = self.inner(query)?;
        match &query.columns[..] {
            [column] => {
                let of = column.of;
                Ok((query, outer, of))
            }
            _ => Err(SqlError::new(code::SYNTAX_ERROR, "subquery must return only one column")),
        }
    }

    pub(super) fn subquery(&self, query: &ast::Query) -> Result<Typed> {
        let (query, outer, of) = self.one_column(query)?;
        Ok((Expr::Subquery { query: Rc::new(query), outer, asked: SubqueryUse::Value }, of))
    }

    pub(super) fn array_of(&self, query: &ast::Query) -> Result<Typed> {
        let (query, outer, of) = self.one_column(query)?;
        let array = of.array().ok_or_else(|| SqlError::unsupported(format!("an array of {}", of.name())))?;
        Ok((Expr::Subquery { query: Rc::new(query), outer, asked: SubqueryUse::Array }, array))
    }

    pub(super) fn exists(&self, query: &ast::Query, negated: bool) -> Result<Typed> {
        let (mut query, outer) = self.inner(query)?;
        // One row is enough, and its values are not asked for.
        if let QueryBody::Select(select) = &mut query.body
            && select.limit.is_none()
        {
            select.limit = Some(Expr::Value(Value::Int(1)));
            if !select.output.iter().any(Expr::is_volatile) && select.groups.is_none() && !select.is_distinct
            {
                select.output.clear();
                select.order.clear();
                read_less(select);
            }
            query.keyed = keyed::of(&query, true);
        }
        let found = Expr::Subquery { query: Rc::new(query), outer, asked: SubqueryUse::Exists };
        Ok((found.negated(negated), Type::Bool))
    }

    pub(super) fn in_subquery(&self, value: &ast::Expr, query: &ast::Query, negated: bool) -> Result<Typed> {
        let (found, of) = self.compared(value, &BinaryOperator::Eq, query, false)?;
        Ok((found.negated(negated), of))
    }

    /// Binds the comparison of a value, or of a row of them, with the rows of a subquery.
    pub(super) fn compared(
        &self,
        value: &ast::Expr,
        operator: &BinaryOperator,
        query: &ast::Query,
        is_all: bool,
    ) -> Result<Typed> {
        let comparison = Comparison::named(&operator.to_string())
            .ok_or_else(|| SqlError::unsupported(format!("the operator {operator} with a subquery")))?;
        let (query, outer) = self.inner(query)?;
        let values = match value {
            ast::Expr::Tuple(all) => all.iter().map(|one| self.bind(one)).collect::<Result<Vec<_>>>()?,
            one => vec![self.bind(one)?],
        };
        if values.len() != query.columns.len() {
            let message = match values.len() < query.columns.len() {
                true => "subquery has too many columns",
                false => "subquery has too few columns",
            };
            return Err(SqlError::new(code::SYNTAX_ERROR, message));
        }
        let mut casts = Vec::new();
        let mut exprs = Vec::new();
        for (at, (typed, column)) in values.into_iter().zip(&query.columns).enumerate() {
            let wrong = || no_operator(&format!("{} {operator} {}", typed.1.name(), column.of.name()));
            let common = typed.1.common(column.of).ok_or_else(wrong)?;
            casts.push(coerce((Expr::Column(at), column.of), common, self.parameters, false)?);
            exprs.push(coerce(typed, common, self.parameters, false)?);
        }
        let query = Rc::new(query::cast_rows(query, casts));
        let asked = SubqueryUse::Compare { comparison, values: exprs, is_all };
        Ok((Expr::Subquery { query, outer, asked }, Type::Bool))
    }
}
