//! PREPARE and EXECUTE, which share the names of prepared statements with the protocol, and the
//! plans of statements that differ only in their literals.

use std::{pin::pin, rc::Rc};

use sqlparser::ast;

use super::{
    Prepared, Session,
    run::{Plan, needs_tables},
    settings::Time,
    within,
};
use crate::{
    bind::{Parameters, Scope, assign},
    error::{Result, SqlError, code, fail},
    expr::Inputs,
    parse::{self, Statement, folded, simple},
    shape::{Literal, Shape},
    types::{Type, Value},
};

/// The most shapes of a session.
const MOST_SHAPES: usize = 64;

impl Session<'_> {
    /// Returns the statement of a shape; `None` if it cannot be planned without its literals.
    pub(super) async fn of_shape(&mut self, shape: &Shape) -> Result<Option<Rc<Prepared>>> {
        if let Some(known) = self.shapes.get(&shape.key) {
            return Ok(known.clone());
        }
        let parsed = parse::parse(shape.text()).ok().and_then(|mut all| all.pop());
        // Others have no parameters.
        let fits = |statement: &Statement| shape.literals.is_empty() || needs_tables(statement);
        let parsed = parsed.filter(|statement| !self.is_failed && fits(statement));
        let Some(statement) = parsed else { return Ok(None) };
        let types = shape.literals.iter().map(Literal::of).collect();
        let prepared = Rc::new(Prepared { types, ..Prepared::new(statement) });
        if self.shapes.len() >= MOST_SHAPES {
            self.shapes.clear();
        }
        self.shapes.insert(shape.key.clone(), Some(prepared.clone()));
        Ok(Some(prepared))
    }

    /// Returns the plan of a shape, and the types of its literals, which the tables decide as they
    /// are now; `None` if it cannot be planned without its literals.
    pub(super) async fn plan_of_shape(
        &mut self,
        shape: &Shape,
        prepared: &Prepared,
    ) -> Result<Option<(Rc<Plan>, Vec<Type>)>> {
        let activity = self.activity;
        let limit = self.context.settings.borrow().time(Time::Statement);
        let planned = {
            let planned = pin!(self.plan(prepared));
            within(limit, activity.unless_cancelled(planned)).await
        };
        match planned {
            Ok((plan, types)) if types.len() == shape.literals.len() => return Ok(Some((plan, types))),
            // With the literals it says why, or succeeds.
            Ok(_) => {}
            Err(error) if ["0A", "22", "42"].iter().any(|class| error.code.starts_with(class)) => {}
            Err(error) => return Err(error.elsewhere()),
        }
        self.shapes.insert(shape.key.clone(), None);
        Ok(None)
    }

    /// Plans a statement and keeps it under a name; without one, until the next.
    pub(super) async fn prepare(
        &mut self,
        name: String,
        statement: Statement,
        types: Vec<Type>,
        text: Box<str>,
    ) -> Result<()> {
        self.check_failed(&statement)?;
        if !name.is_empty() && self.statements.contains_key(&name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new("42P05", message));
        }
        let mut prepared = Prepared { text, types, ..Prepared::new(statement) };
        let activity = self.activity;
        activity.forget_cancel();
        activity.begin(&prepared.text);
        let limit = self.context.settings.borrow().time(Time::Statement);
        let planned = Box::pin(self.plan(&prepared));
        let (plan, types) = within(limit, activity.unless_cancelled(planned)).await?;
        prepared.types = types;
        prepared.columns = plan.columns();
        if let Statement::Sql(statement) = &prepared.statement
            && let ast::Statement::Fetch { name, .. } = &**statement
        {
            prepared.columns = self.cursor_columns(&folded(name)).unwrap_or_default();
        }
        self.statements.insert(name, Rc::new(prepared));
        Ok(())
    }

    /// Keeps the statement of PREPARE under its name.
    pub(super) async fn prepare_statement(
        &mut self,
        name: &ast::Ident,
        types: &[ast::DataType],
        statement: &ast::Statement,
    ) -> Result<()> {
        let mut known = Vec::with_capacity(types.len());
        for of in types {
            let (catalog, by) = self.refreshed().await?;
            known.push(catalog.type_of(by, of).await?.unrounded());
        }
        let (text, statement) = (statement.to_string(), Statement::Sql(Box::new(statement.clone())));
        if !needs_tables(&statement) {
            return Err(SqlError::new(code::SYNTAX_ERROR, format!("syntax error: PREPARE of {text}")));
        }
        self.prepare(folded(name), statement, known, text.into()).await?;
        self.connection.out.complete("PREPARE");
        Ok(())
    }

    /// Returns the statement that EXECUTE names, and the values of its parameters.
    pub(super) async fn executed(
        &mut self,
        name: &ast::ObjectName,
        parameters: &[ast::Expr],
    ) -> Result<(Rc<Prepared>, Vec<Value>)> {
        let name = simple(name)?;
        let prepared = self.prepared(&name)?;
        self.check_failed(&prepared.statement)?;
        if parameters.len() != prepared.types.len() {
            fail!(SYNTAX_ERROR, "wrong number of parameters for prepared statement \"{name}\"");
        }
        let types = self.types_of(&prepared).await?;
        let none = Parameters { own_types: Some(types.clone()).into(), ..Parameters::default() };
        let scope = Scope::new(&[], &none);
        let value = |(at, (given, of)): (usize, (&ast::Expr, &Type))| {
            let value = assign(scope.bind(given)?, *of, &format!("${}", at + 1), &none)?;
            value.evaluate(Inputs { row: &[], parameters: &[], outer: &[], context: &self.context })
        };
        let values = parameters.iter().zip(&types).enumerate().map(value);
        let values = values.collect::<Result<_>>()?;
        Ok((prepared, values))
    }
}
