//! The tables that a statement changes, with their rules as expressions: generated columns, checks,
//! indexes and foreign keys.

use std::rc::Rc;

use plexus_base::BlockId;
use sqlparser::ast;

use crate::{
    bind::{Parameters, Scope, assign, coerce, from::scope_of},
    catalog::{Catalog, ForeignKey, Index, IndexPart, Table, Transaction, undefined},
    error::{Result, SqlError, code, error},
    expr::{Expr, Inputs},
    functions::{Context, Volatility},
    parse::expression,
    types::{Type, Value, encode},
};

/// A table whose rows are changed.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) table: Rc<Table>,
    /// The columns that are computed, and their expressions.
    generated: Vec<(usize, Expr)>,
    /// The condition of each check.
    checks: Vec<Expr>,
    indexes: Vec<BoundIndex>,
    /// The place of each foreign key's rows.
    pub(super) references: Vec<Reference>,
    /// The foreign keys that name this table: their tables among the targets, and their numbers.
    pub(super) referenced_by: Vec<(usize, usize)>,
}

/// The parts and the condition of an index that is not plain.
#[derive(Default, Debug)]
pub(crate) struct BoundIndex {
    pub(crate) parts: Vec<(Expr, Type)>,
    pub(crate) condition: Option<Expr>,
}

impl BoundIndex {
    pub(crate) fn of(table: &Table, index: &Index) -> Result<Self> {
        let part = |part: &IndexPart| match part {
            IndexPart::Column(column) => Ok((Expr::Column(*column), table.columns[*column].of)),
            IndexPart::Expression(text, of) => {
                Ok((coerce(bind_text(table, text)?, *of, &Parameters::default(), false)?, *of))
            }
        };
        let parts = index.parts.iter().map(part).collect::<Result<_>>()?;
        let condition = index.condition.as_deref();
        let condition = condition.map(|text| bind_condition(table, text, "WHERE")).transpose()?;
        Ok(Self { parts, condition })
    }
}

/// The tree in which the rows that a foreign key names are found by their key.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) table: Rc<Table>,
    pub(super) tree: BlockId,
    /// For each column of the tree's key: its number among the columns of the foreign key, and its
    /// type.
    key: Vec<(usize, Type)>,
}

impl Reference {
    fn of(key: &ForeignKey, table: Rc<Table>) -> Result<Self> {
        let (tree, columns) =
            referenced_tree(&table, &key.referenced).ok_or_else(|| missing_key(&table.name))?;
        let column = |column: &usize| {
            let at = key.referenced.iter().position(|referenced| referenced == column).unwrap_or(0);
            (at, table.columns[*column].of)
        };
        let key = columns.iter().map(column).collect();
        Ok(Self { tree, key, table })
    }

    /// Returns the key of the row with the values of a foreign key.
    pub(super) fn key(&self, values: &[Value]) -> Result<Vec<u8>> {
        let mut key = Vec::new();
        for (at, of) in &self.key {
            encode::put_key(&mut key, &values[*at], *of)?;
        }
        Ok(key)
    }
}

/// Returns the tree whose key has these columns of a table, and their order in it.
pub(crate) fn referenced_tree<'t>(table: &'t Table, columns: &[usize]) -> Option<(BlockId, &'t [usize])> {
    let is_it =
        |known: &[usize]| known.len() == columns.len() && columns.iter().all(|column| known.contains(column));
    let primary = table.primary.iter().map(|key| (table.rows(), &key.columns[..]));
    let unique =
        table.indexes.iter().filter(|index| index.is_unique && index.is_plain() && index.deferral.is_none());
    let unique = unique.map(|index| (index.tree(), &index.columns[..]));
    primary.chain(unique).find(|(_, known)| is_it(known))
}

pub(crate) fn missing_key(table: &str) -> SqlError {
    error!(
        INVALID_FOREIGN_KEY,
        "there is no unique constraint matching given keys for referenced table \"{table}\""
    )
}

/// Returns the expression of a text.
pub(crate) fn parsed(text: &str) -> Result<ast::Expr> {
    let damaged = |_| error!(DATA_CORRUPTED, "the expression {text} is malformed");
    expression(text).map_err(damaged)
}

/// Returns the parameters for expressions of a table.
fn parameters_of(table: &Table) -> Parameters {
    let types = table.columns.iter().map(|column| column.of).collect();
    Parameters { own_types: Some(types).into(), ..Parameters::default() }
}

/// Binds the text of an expression over the columns of a table.
pub(crate) fn bind_text(table: &Table, text: &str) -> Result<(Expr, Type)> {
    let (columns, parameters) = (scope_of(table, &table.name), parameters_of(table));
    let scope = Scope::new(&columns, &parameters);
    scope.bind(&parsed(text)?)
}

/// Refuses an expression whose value may become another one while its row stays.
pub(crate) fn check_immutable(table: &Table, text: &str, message: &str) -> Result<()> {
    let varies = |expr: &Expr| {
        use Type::{Date, TimeOfDay, TimeTz, Timestamp, TimestampTz};
        match expr {
            Expr::Call(bound, _) => bound.function.volatility != Volatility::Immutable,
            Expr::Sequence(..) => true,
            Expr::Cast { from: Type::Unknown, .. } => false,
            // The zone of the session decides, or another setting.
            Expr::Cast { from, to, .. } => {
                let [from, to] = [from, to].map(|of| of.element().unwrap_or(*of).unrounded());
                let is_moment = |of: Type| matches!(of, Date | Timestamp | TimestampTz);
                (from == TimestampTz) != (to == TimestampTz)
                    || is_moment(from) && to.is_text()
                    || from.is_text() && (is_moment(to) || to == TimeTz)
                    || (from, to) == (TimeOfDay, TimeTz)
                    // A label may get another name.
                    || matches!(from, Type::Enum(_)) != matches!(to, Type::Enum(_))
            }
            _ => false,
        }
    };
    let (columns, parameters) = (scope_of(table, &table.name), parameters_of(table));
    let (expr, _) = Scope::new(&columns, &parameters).bind(&parsed(text)?)?;
    match parameters.is_stable.get() || expr.any(&mut |one| varies(one)) {
        true => Err(SqlError::new(code::INVALID_OBJECT_DEFINITION, message)),
        false => Ok(()),
    }
}

/// Binds the text of a condition over the columns of a table.
pub(crate) fn bind_condition(table: &Table, text: &str, of: &str) -> Result<Expr> {
    let (columns, parameters) = (scope_of(table, &table.name), parameters_of(table));
    let scope = Scope::new(&columns, &parameters);
    scope.condition(&parsed(text)?, of)
}

/// Returns the default of a column.
pub(crate) fn default_of(table: &Table, column: usize, parameters: &Parameters) -> Result<Expr> {
    let column = &table.columns[column];
    let of_domain = column.of.named().and_then(|of| of.domain.as_ref()?.default.as_ref());
    let Some(text) = column.default.as_ref().or(of_domain) else {
        return coerce((Expr::Value(Value::Null), column.of.base()), column.of, parameters, false);
    };
    let known = parameters.sequences.borrow().len();
    let scope = Scope::new(&[], parameters);
    let before = parameters.own_types.replace(parameters_of(table).own_types.take());
    let bound = scope.bind(&parsed(text)?);
    parameters.own_types.replace(before);
    let bound = assign(bound?, column.of, &column.name, parameters);
    // The name of a sequence means the same for all settings of `search_path`.
    for (name, _) in &mut parameters.sequences.borrow_mut()[known..] {
        if !name.contains('\0') {
            *name = format!("{}\0{name}", crate::catalog::PUBLIC);
        }
    }
    bound
}

impl Target {
    /// Binds the rules of a table, without its foreign keys.
    pub(crate) fn of(table: Rc<Table>) -> Result<Self> {
        let mut generated = Vec::new();
        for (at, column) in table.columns.iter().enumerate() {
            if let Some(text) = &column.generated {
                let typed = bind_text(&table, text)?;
                generated.push((at, assign(typed, column.of, &column.name, &Parameters::default())?));
            }
        }
        let checks = table.checks.iter().map(|check| bind_condition(&table, &check.condition, "CHECK"));
        let checks = checks.collect::<Result<_>>()?;
        let indexes =
            table.indexes.iter().map(|index| BoundIndex::of(&table, index)).collect::<Result<_>>()?;
        Ok(Self { table, generated, checks, indexes, references: Vec::new(), referenced_by: Vec::new() })
    }

    /// Returns the text of its expressions, for comparisons.
    pub(crate) fn rules(&self) -> String {
        format!("{:?} {:?} {:?}", self.generated, self.checks, self.indexes)
    }

    /// Returns true if its rows have to do with those of other tables.
    pub(super) fn has_references(&self) -> bool {
        !self.references.is_empty() || !self.referenced_by.is_empty()
    }

    /// Computes the generated columns of a row and checks its values.
    pub(crate) fn complete(&self, row: &mut [Value], context: &Context) -> Result<()> {
        if !self.generated.is_empty() {
            let computed = self.generated.iter().map(|(column, expr)| {
                Ok((*column, expr.evaluate(Inputs { row, parameters: &[], outer: &[], context })?))
            });
            for (column, value) in computed.collect::<Result<Vec<_>>>()? {
                row[column] = value;
            }
        }
        super::check_nulls(&self.table, row)?;
        for (check, condition) in self.table.checks.iter().zip(&self.checks) {
            let holds = condition.evaluate(Inputs { row, parameters: &[], outer: &[], context })?;
            // NULL is no violation.
            if holds == Value::Bool(false) {
                let (table, name) = (&self.table, &check.name);
                let message =
                    format!("new row for relation \"{}\" violates check constraint \"{name}\"", table.name);
                let detail = super::failing_row(table, row);
                return Err(super::violated(code::CHECK_VIOLATION, table, name, message, detail));
            }
        }
        Ok(())
    }

    /// Returns the key of a row in an index, and whether other rows may not have the same values;
    /// `None` if the row does not belong to the index.
    pub(crate) fn entry(
        &self,
        at: usize,
        row_key: &[u8],
        row: &[Value],
        context: &Context,
    ) -> Result<Option<(Vec<u8>, bool)>> {
        let (index, bound) = (&self.table.indexes[at], &self.indexes[at]);
        if index.is_plain() {
            return index.key(&self.table, row_key, row).map(Some);
        }
        let inputs = Inputs { row, parameters: &[], outer: &[], context };
        if let Some(condition) = &bound.condition
            && !condition.holds(inputs)?
        {
            return Ok(None);
        }
        let (mut key, mut is_alone) = (Vec::new(), index.is_unique);
        for (part, of) in &bound.parts {
            let value = part.evaluate(inputs)?;
            is_alone &= index.has_equal_nulls || !value.is_null();
            encode::put_key(&mut key, &value, *of)?;
        }
        if !is_alone {
            key.extend(row_key);
        }
        Ok(Some((key, is_alone)))
    }

    /// Returns whether the expressions or the condition of an index name a column.
    pub(crate) fn index_uses(&self, at: usize, column: usize) -> bool {
        let BoundIndex { parts, condition } = &self.indexes[at];
        let mut all = parts.iter().map(|(part, _)| part).chain(condition);
        all.any(|expr| expr.any_column(|used| used == column))
    }

    /// Returns the values of an index for a row, with their types and texts.
    pub(super) fn shown_entry(
        &self,
        at: usize,
        row: &[Value],
        context: &Context,
    ) -> Vec<(String, Value, Type)> {
        let (index, table) = (&self.table.indexes[at], &self.table);
        let column = |column: usize| {
            (table.columns[column].name.clone(), row[column].clone(), table.columns[column].of)
        };
        if index.parts.is_empty() {
            return index.columns.iter().map(|at| column(*at)).collect();
        }
        let inputs = Inputs { row, parameters: &[], outer: &[], context };
        let parts = index.parts.iter().zip(&self.indexes[at].parts).map(|(part, (expr, of))| match part {
            IndexPart::Column(at) => column(*at),
            IndexPart::Expression(text, _) => {
                let name = match parsed(text) {
                    Ok(ast::Expr::Function(_)) => text.clone(),
                    _ => format!("({text})"),
                };
                (name, expr.evaluate(inputs).unwrap_or(Value::Null), *of)
            }
        });
        parts.collect()
    }
}

/// The table of a statement, which is the first one, and those that change with it.
#[derive(Debug)]
pub(crate) struct Targets(pub(super) Vec<Target>);

impl Targets {
    /// Binds the rules of a table, and of all tables whose rows may change with its rows.
    pub(crate) async fn of(
        catalog: &mut Catalog,
        by: &mut Transaction,
        table: &Rc<Table>,
    ) -> Result<Rc<Self>> {
        let mut all = vec![Target::of(table.clone())?];
        let mut at = 0;
        while at < all.len() {
            let table = all[at].table.clone();
            for key in &table.foreign_keys {
                let name = key.table.qualified();
                let other = match key.table == table.relation() {
                    true => table.clone(),
                    false => catalog.find(by, &name).await?.ok_or_else(|| undefined(&name))?,
                };
                all[at].references.push(Reference::of(key, other)?);
            }
            for name in &table.referenced_by {
                let known = all.iter().position(|target| target.table.relation() == *name);
                let other = match known {
                    Some(known) => known,
                    None => {
                        let name = name.qualified();
                        let found = catalog.find(by, &name).await?.ok_or_else(|| undefined(&name))?;
                        all.push(Target::of(found)?);
                        all.len() - 1
                    }
                };
                let keys = &all[other].table.foreign_keys;
                let is_here = |(_, key): &(usize, &ForeignKey)| key.table == table.relation();
                let keys: Vec<_> =
                    keys.iter().enumerate().filter(is_here).map(|(key, _)| (other, key)).collect();
                all[at].referenced_by.extend(keys);
            }
            at += 1;
        }
        Ok(Rc::new(Self(all)))
    }

    /// Binds the rules of a table alone, whose foreign keys are checked elsewhere.
    pub(crate) fn alone(table: Rc<Table>) -> Result<Rc<Self>> {
        Ok(Rc::new(Self(vec![Target::of(table)?])))
    }

    /// Returns the table of the statement, with its rules.
    pub(crate) fn first(&self) -> &Target {
        &self.0[0]
    }

    /// Returns the table of the statement.
    pub(crate) fn table(&self) -> &Rc<Table> {
        &self.0[0].table
    }

    /// Returns the tables whose rows change with those of the first one, and those whose rows are
    /// looked at.
    pub(crate) fn others(&self, removes: bool) -> (Vec<u64>, Vec<u64>) {
        let changed = if removes { &self.0[..] } else { &self.0[..1] };
        let read = changed.iter().flat_map(|target| &target.references).map(|reference| reference.table.id);
        (changed.iter().skip(1).map(|target| target.table.id).collect(), read.collect())
    }
}
