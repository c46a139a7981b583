//! Columns as CREATE TABLE and ADD COLUMN define them.

use sqlparser::ast;

use super::{
    Definer,
    constraint::{NewConstraint, NewKey},
    sequence::{own_sequence, serial_of},
};
use crate::{
    bind::{self, Parameters, assign},
    catalog::{Column, Identity, RelationName, Table},
    dml::{
        default_of,
        target::{bind_text, check_immutable},
    },
    error::{Result, SqlError, code, error, fail},
    parse::{expression, folded, unqualified},
};

impl Definer<'_, '_> {
    /// Returns a column with its sequence; its constraints are added to `constraints`. Defaults and
    /// generated values are bound later, when all columns are known.
    pub(super) async fn column(
        &mut self,
        table: &RelationName,
        column: &ast::ColumnDef,
        constraints: &mut Vec<NewConstraint>,
    ) -> Result<Column> {
        let name = folded(&column.name);
        let serial = serial_of(&column.data_type);
        let of = match serial {
            Some(of) => of,
            None => self.type_of(&column.data_type).await?,
        };
        let mut made = Column::new(&name, of);
        let catalog = &mut *self.catalog;
        if serial.is_some() {
            own_sequence(self.run, catalog, table, &mut made, &[]).await?;
        }
        let mut is_nullable = false;
        for ast::ColumnOptionDef { name: constraint, option } in &column.options {
            let constraint = constraint.as_ref().map(folded);
            match option {
                ast::ColumnOption::Null => is_nullable = true,
                ast::ColumnOption::NotNull => made.not_null = true,
                ast::ColumnOption::Default(_) | ast::ColumnOption::Generated { .. }
                    if made.default.is_some() || made.generated.is_some() =>
                {
                    return Err(defined_twice(&made, option, table));
                }
                ast::ColumnOption::Default(expr) => made.default = Some(expr.to_string()),
                ast::ColumnOption::Collation(collation) => {
                    made.collation = Some(bind::operators::collation_of(collation, of)?)
                }
                ast::ColumnOption::PrimaryKey(key) => {
                    let key = NewKey::of(constraint, vec![name.clone()], key.characteristics.as_ref())?;
                    constraints.push(NewConstraint::Key(NewKey { is_primary: true, ..key }));
                }
                ast::ColumnOption::Unique(key) => {
                    let has_equal_nulls = key.nulls_distinct == ast::NullsDistinctOption::NotDistinct;
                    let key = NewKey::of(constraint, vec![name.clone()], key.characteristics.as_ref())?;
                    constraints.push(NewConstraint::Key(NewKey { has_equal_nulls, ..key }));
                }
                ast::ColumnOption::Check(check) => {
                    let name = constraint.or(check.name.as_ref().map(folded));
                    constraints.push(NewConstraint::check(name, check)?);
                }
                ast::ColumnOption::ForeignKey(key) => {
                    let mut key = key.clone();
                    key.columns = vec![column.name.clone()];
                    let name = constraint.or(key.name.as_ref().map(folded));
                    constraints.push(NewConstraint::Foreign { name, key });
                }
                ast::ColumnOption::Generated {
                    generated_as: ast::GeneratedAs::ByDefault | ast::GeneratedAs::Always,
                    sequence_options,
                    generation_expr: None,
                    ..
                } => {
                    let options = sequence_options.as_deref().unwrap_or_default();
                    own_sequence(self.run, catalog, table, &mut made, options).await?;
                    made.identity = Some(identity_of(option));
                }
                ast::ColumnOption::Generated {
                    generation_expr: Some(expr),
                    generation_expr_mode: Some(ast::GeneratedExpressionMode::Stored),
                    sequence_options: None,
                    ..
                } => made.generated = Some(expr.to_string()),
                other => return Err(SqlError::unsupported(format!("the column option {other}"))),
            }
        }
        if is_nullable && made.not_null {
            fail!(
                SYNTAX_ERROR,
                "conflicting NULL/NOT NULL declarations for column \"{name}\" of table \"{}\"",
                table.name
            );
        }
        Ok(made)
    }

    /// Checks the default of a column and what computes its values, and finds the sequences that
    /// they name.
    pub(super) async fn bind_column(&mut self, table: &mut Table, at: usize) -> Result<()> {
        let named = Parameters::default();
        default_of(table, at, &named).map_err(|error| match error.code {
            code::UNDEFINED_COLUMN => {
                error!(FEATURE_NOT_SUPPORTED, "cannot use column reference in DEFAULT expression")
            }
            _ => error,
        })?;
        let column = &mut table.columns[at];
        if let Some(of) = column.of.named()
            && let Some(ast::Expr::Cast { expr, data_type: ast::DataType::Custom(name, _), .. }) =
                column.default.as_deref().map(expression).transpose()?
            && matches!(*expr, ast::Expr::Value(_))
            && unqualified(&name)? == of.name
        {
            // The literal alone follows new names of the type and its labels.
            column.default = Some(expr.to_string());
        }
        let named = named.sequences.take();
        let mut sequences = Vec::new();
        for (name, _) in &named {
            let found = self.catalog.relation(self.run.by, name).await?;
            sequences.extend(found.map(|(relation, _)| relation.key()));
        }
        table.columns[at].sequences = sequences;
        self.catalog.find_sequences(self.run.by, named).await?;
        if let Some(text) = &table.columns[at].generated {
            let (expr, of) = bind_text(table, text)?;
            let mut wrong = None;
            expr.columns(&mut |column| {
                if table.columns[column].generated.is_some() {
                    wrong = Some(table.columns[column].name.clone());
                }
            });
            if let Some(name) = wrong {
                let message =
                    format!("cannot use generated column \"{name}\" in column generation expression");
                return Err(SqlError::new(code::INVALID_OBJECT_DEFINITION, message)
                    .with_detail("A generated column cannot reference another generated column."));
            }
            check_immutable(table, text, "generation expression is not immutable")?;
            let Column { name, of: to, .. } = &table.columns[at];
            assign((expr, of), *to, name, &Parameters::default())?;
        }
        Ok(())
    }
}

pub(super) fn identity_of(option: &ast::ColumnOption) -> Identity {
    match option {
        ast::ColumnOption::Generated { generated_as: ast::GeneratedAs::Always, .. } => Identity::Always,
        _ => Identity::ByDefault,
    }
}

fn defined_twice(column: &Column, option: &ast::ColumnOption, table: &RelationName) -> SqlError {
    let (name, table) = (&column.name, &table.name);
    let is_identity = |option: &ast::ColumnOption| {
        matches!(option, ast::ColumnOption::Generated { generation_expr: None, .. })
    };
    let is_computed = column.generated.is_some()
        || matches!(option, ast::ColumnOption::Generated { generation_expr: Some(_), .. });
    let problem = match (column.identity.is_some() || is_identity(option), is_computed) {
        (true, true) => "both identity and generation expression specified",
        (true, false) if column.identity.is_some() && is_identity(option) => {
            "multiple identity specifications"
        }
        (true, false) => "both default and identity specified",
        (false, true) => "both default and generation expression specified",
        (false, false) => "multiple default values specified",
    };
    error!(SYNTAX_ERROR, "{problem} for column \"{name}\" of table \"{table}\"")
}
