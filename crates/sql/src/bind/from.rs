//! FROM: the relations of a query, their columns, and the way in which they are joined.

use std::{cell::RefCell, ops::Range, rc::Rc};

use sqlparser::ast;

use super::{
    Around, Parent, Scope, ScopeColumn, TABLE_OID,
    calls::plain_argument,
    locks::Locking,
    paths::Path,
    query::{self, Query, Shared},
    select::{ResultColumn, refuse},
    sets::{self, SetCall},
    wrong_kind,
};
use crate::{
    catalog::{self, Privilege, Table, undefined},
    error::{At, Result, SqlError, code, error, fail},
    expr::{Comparison, Expr},
    parse::{folded, relation, simple},
    sequences::Sequence,
    system::{self, SystemTable},
    types::{Type, Value, encode},
};

/// The rows of a part of FROM.
#[derive(Clone, Debug)]
pub(crate) enum Relation {
    Table(Rc<Table>),
    System(&'static SystemTable),
    /// The row of a sequence.
    Sequence(Rc<Sequence>),
    /// A query, and the values that it gets; `None`: those of the query around it.
    Query {
        query: Rc<Query>,
        outer: Option<Vec<Expr>>,
    },
    /// A query of WITH.
    Shared(Rc<Shared>),
    /// The newest rows of a recursive query.
    Working(usize),
    /// Functions that return rows, side by side, and whether the rows are numbered.
    Functions(Vec<SetCall>, bool),
    /// Joined sources that are one side of another join.
    Joined(Rc<Vec<Source>>),
}

/// A relation of a query. Its columns follow those of the sources before it in rows.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) relation: Relation,
    pub(crate) offset: usize,
    pub(crate) width: usize,
    /// The way to the rows of a table.
    pub(crate) path: Path,
    /// The columns of a table that are read, in their order; `None`: all.
    pub(crate) columns: Option<Rc<[usize]>>,
    /// Conditions of its own rows, with their columns alone.
    pub(crate) filter: Vec<Expr>,
    /// Conditions of rows that have the columns up to this source.
    pub(crate) conditions: Vec<Expr>,
    /// For an outer join: conditions without which the row has NULL here.
    pub(crate) outer: Option<Vec<Expr>>,
    /// Rows of this source without partner stay, too.
    pub(crate) is_full: bool,
    /// The key of the row is behind its columns.
    pub(crate) has_key: bool,
    /// Its rows are kept for the rows before it, though they could be looked up.
    pub(crate) is_kept: bool,
    /// Its rows are locked in this way until the end of the transaction.
    pub(crate) locked: Option<Locking>,
}

impl Source {
    pub(crate) fn new(relation: Relation, offset: usize, width: usize) -> Self {
        let path = Path::default();
        Self {
            relation,
            offset,
            width,
            path,
            columns: None,
            filter: Vec::new(),
            conditions: Vec::new(),
            outer: None,
            is_full: false,
            has_key: false,
            is_kept: false,
            locked: None,
        }
    }

    pub(crate) fn table(&self) -> Option<&Rc<Table>> {
        match &self.relation {
            Relation::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Reads a row of its table into the values of another one.
    pub(crate) fn read(&self, row: &[u8], into: &mut Vec<Value>) -> Result<()> {
        match (&self.columns, &self.relation) {
            (Some(columns), _) => encode::read_columns(row, columns, into),
            (None, Relation::Table(table)) => encode::read_row_into(row, table.columns.len(), into),
            (None, _) => Ok(()),
        }
    }

    /// Returns true if its rows do not depend on those of sources before it.
    pub(crate) fn is_constant(&self) -> bool {
        self.path.is_constant() && !self.depends()
    }

    /// Returns whether its rows depend on those of sources before it, by what it is.
    pub(super) fn depends(&self) -> bool {
        self.exprs_before().into_iter().any(Expr::has_column)
    }

    /// Returns whether all columns of an expression are its own.
    pub(super) fn has_all(&self, expr: &Expr) -> bool {
        !expr.any_column(|column| !(self.offset..self.offset + self.width).contains(&column))
    }

    /// Calls `act` with each column of the sources before it that its rows depend on.
    fn exprs_before(&self) -> Vec<&Expr> {
        match &self.relation {
            Relation::Query { outer: Some(outer), .. } => outer.iter().collect(),
            Relation::Functions(calls, _) => calls.iter().flat_map(|call| &call.arguments).collect(),
            _ => Vec::new(),
        }
    }

    /// Calls `act` with each of its expressions, to change it.
    pub(super) fn exprs(&mut self, act: &mut dyn FnMut(&mut Expr)) {
        self.conditions.iter_mut().chain(self.outer.iter_mut().flatten()).for_each(&mut *act);
        match &mut self.relation {
            Relation::Query { outer: Some(outer), .. } => outer.iter_mut().for_each(act),
            Relation::Functions(calls, _) => {
                calls.iter_mut().flat_map(|call| &mut call.arguments).for_each(act);
            }
            _ => {}
        }
    }
}

/// The sources of FROM, their columns, and the conditions of inner joins.
#[derive(Default)]
pub(crate) struct From {
    pub(crate) sources: Vec<Source>,
    pub(crate) columns: Vec<ScopeColumn>,
    pub(crate) conditions: Vec<Expr>,
    width: usize,
}

/// Returns the columns of a table under an alias.
pub(crate) fn scope_of(table: &Table, alias: &str) -> Vec<ScopeColumn> {
    let columns =
        table.columns.iter().map(|column| ResultColumn { name: column.name.clone(), of: column.of });
    columns.enumerate().map(|(at, column)| ScopeColumn::new(alias, &column, at)).collect()
}

/// Splits a condition at its ANDs.
pub(crate) fn conjuncts(expr: Expr, into: &mut Vec<Expr>) {
    match expr {
        Expr::And(all) => all.into_iter().for_each(|one| conjuncts(one, into)),
        one => into.push(one),
    }
}

/// Binds the items of FROM.
pub(crate) fn bind(from: &[ast::TableWithJoins], around: Around<'_>) -> Result<From> {
    let mut bound = From::default();
    for item in from {
        bound.add_item(item, around)?;
    }
    Ok(bound)
}

/// Binds the tables that are joined with one whose rows change. The key of its row is behind its
/// columns.
pub(crate) fn bind_with_target(
    table: &Rc<Table>,
    alias: &str,
    items: &[ast::TableWithJoins],
    around: Around<'_>,
) -> Result<From> {
    let width = table.columns.len() + 1;
    let source = Source { has_key: true, ..Source::new(Relation::Table(table.clone()), 0, width) };
    let mut bound =
        From { sources: vec![source], columns: scope_of(table, alias), conditions: Vec::new(), width };
    for item in items {
        bound.add_item(item, around)?;
    }
    Ok(bound)
}

/// Binds the source of MERGE, and last the table whose rows change, as the right side of a left
/// join. The key of its row is behind its columns.
pub(crate) fn bind_for_merge(
    table: &Rc<Table>,
    alias: &str,
    (source, on): (&ast::TableFactor, &ast::Expr),
    around: Around<'_>,
) -> Result<From> {
    let mut bound = From::default();
    bound.add_factor(source, around)?;
    if bound.columns.iter().any(|column| column.table == alias) {
        fail!(DUPLICATE_ALIAS, "name \"{alias}\" specified more than once");
    }
    let (offset, width) = (bound.width, table.columns.len() + 1);
    let mut columns = scope_of(table, alias);
    columns.iter_mut().for_each(|column| column.value.move_columns(&|at| at + offset));
    bound.columns.extend(columns);
    let mut conditions = Vec::new();
    conjuncts(bound.scope(0, around).condition(on, "JOIN/ON")?, &mut conditions);
    let target = Source::new(Relation::Table(table.clone()), offset, width);
    bound.sources.push(Source { has_key: true, outer: Some(conditions), ..target });
    bound.width += width;
    Ok(bound)
}

/// The sides of a join whose rows stay without partner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeptSides {
    None,
    Left,
    Right,
    Both,
}

impl From {
    fn scope<'a>(&'a self, first: usize, around: Around<'a>) -> Scope<'a> {
        around.scope(&self.columns[first..])
    }

    fn add_item(&mut self, item: &ast::TableWithJoins, around: Around<'_>) -> Result<()> {
        use ast::{JoinConstraint as C, JoinOperator as J};
        let first = (self.sources.len(), self.columns.len(), self.conditions.len(), self.width);
        self.add_factor(&item.relation, around)?;
        for join in &item.joins {
            refuse(join.global, "GLOBAL JOIN")?;
            let (constraint, kept) = match &join.join_operator {
                J::CrossJoin(constraint @ C::None) => (constraint, KeptSides::None),
                J::Join(constraint) | J::Inner(constraint) => (constraint, KeptSides::None),
                J::Left(constraint) | J::LeftOuter(constraint) => (constraint, KeptSides::Left),
                J::Right(constraint) | J::RightOuter(constraint) => (constraint, KeptSides::Right),
                J::FullOuter(constraint) => (constraint, KeptSides::Both),
                _ => return Err(SqlError::unsupported(format!("the join {join}"))),
            };
            let middle = (self.sources.len(), self.columns.len(), self.conditions.len(), self.width);
            self.add_factor(&join.relation, around)?;
            if kept != KeptSides::None {
                self.unite(middle)?;
            }
            if matches!(kept, KeptSides::Right | KeptSides::Both) {
                self.check_lateral(first.3..middle.3)?;
                self.unite_before(first, middle)?;
            }
            let on = self.constraint(constraint, first.1, middle.1, kept, around)?;
            match kept {
                KeptSides::None => self.conditions.extend(on),
                _ => {
                    let last = self.sources.len() - 1;
                    self.sources[last].outer = Some(on);
                    self.sources[last].is_full = kept == KeptSides::Both;
                }
            }
            if kept == KeptSides::Right {
                self.exchange();
            }
            // Its rows without partner are joined with those of the items before.
            if kept == KeptSides::Both && first.0 > 0 {
                self.unite(first)?;
            }
        }
        Ok(())
    }

    /// Checks that the last source does not depend on columns whose rows it may have to do without.
    fn check_lateral(&self, left: Range<usize>) -> Result<()> {
        let mut found = None;
        for expr in self.sources.last().into_iter().flat_map(Source::exprs_before) {
            expr.columns(&mut |column| found = found.or(left.contains(&column).then_some(column)));
        }
        let Some(at) = found else { return Ok(()) };
        let is_it = |column: &&ScopeColumn| matches!(column.value, Expr::Column(own) if own == at);
        let name = self.columns.iter().find(is_it).map_or("", |column| &column.table);
        let message = format!("invalid reference to FROM-clause entry for table \"{name}\"");
        let detail = "The combining JOIN type must be INNER or LEFT for a LATERAL reference.";
        Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message).with_detail(detail))
    }

    /// Makes one source of those behind a place, if they are several or have conditions.
    fn unite(&mut self, from: (usize, usize, usize, usize)) -> Result<()> {
        let (source, _, condition, offset) = from;
        if self.sources.len() == source + 1 && self.conditions.len() == condition {
            return Ok(());
        }
        let sources = self.sources.split_off(source);
        let conditions = self.conditions.split_off(condition);
        let joined = joined(sources, conditions, offset)?;
        self.sources.push(Source { offset, ..joined });
        Ok(())
    }

    /// Makes one source of those between two places.
    fn unite_before(
        &mut self,
        first: (usize, usize, usize, usize),
        middle: (usize, usize, usize, usize),
    ) -> Result<()> {
        let last = self.sources.split_off(middle.0);
        let conditions = self.conditions.split_off(middle.2);
        self.unite(first)?;
        self.sources.extend(last);
        self.conditions.extend(conditions);
        Ok(())
    }

    /// Exchanges the last two sources: a right join is a left join of the other one.
    fn exchange(&mut self) {
        let count = self.sources.len();
        self.sources.swap(count - 2, count - 1);
        let (left, right) = self.sources.split_at_mut(count - 1);
        let (left, right) = (&mut left[count - 2], &mut right[0]);
        // Now `left` is the one that was right.
        std::mem::swap(&mut left.outer, &mut right.outer);
        let (old_left, old_right) = (right.offset, left.offset);
        (left.offset, right.offset) = (old_left, old_left + left.width);
        let (left_width, right_width) = (left.width, right.width);
        let moved = move |column: usize| match column {
            column if column >= old_right => column - old_right + old_left,
            column if column >= old_left => column - old_left + old_left + left_width,
            column => column,
        };
        debug_assert_eq!(old_left + right_width, old_right);
        right.outer.iter_mut().flatten().for_each(|expr| expr.move_columns(&moved));
        self.columns.iter_mut().for_each(|column| column.value.move_columns(&moved));
    }

    /// Binds the condition of a join.
    fn constraint(
        &mut self,
        constraint: &ast::JoinConstraint,
        left: usize,
        right: usize,
        kept: KeptSides,
        around: Around<'_>,
    ) -> Result<Vec<Expr>> {
        let mut conditions = Vec::new();
        let names: Vec<String> = match constraint {
            ast::JoinConstraint::None => return Ok(conditions),
            ast::JoinConstraint::On(on) => {
                conjuncts(self.scope(left, around).condition(on, "JOIN/ON")?, &mut conditions);
                return Ok(conditions);
            }
            ast::JoinConstraint::Using(names) => names.iter().map(simple).collect::<Result<_>>()?,
            ast::JoinConstraint::Natural => {
                let visible = |from: usize, to: usize| self.columns[from..to].iter().filter(|c| !c.is_hidden);
                let own: Vec<&str> =
                    visible(right, self.columns.len()).map(|column| column.name.as_str()).collect();
                let shared = visible(left, right).filter(|column| own.contains(&column.name.as_str()));
                shared.map(|column| column.name.clone()).collect()
            }
            ast::JoinConstraint::UsingAlias(..) => return Err(SqlError::unsupported("USING with an alias")),
        };
        let mut merged = Vec::new();
        for name in &names {
            let find = |from: usize, to: usize, side: &str| -> Result<usize> {
                let is_it = |at: &usize| self.columns[*at].name == *name && !self.columns[*at].is_hidden;
                let mut found = (from..to).filter(is_it);
                match (found.next(), found.next()) {
                    (Some(at), None) => Ok(at),
                    (Some(_), Some(_)) => Err(error!(
                        AMBIGUOUS_COLUMN,
                        "common column name \"{name}\" appears more than once in {side} table"
                    )),
                    (None, _) => Err(error!(
                        UNDEFINED_COLUMN,
                        "column \"{name}\" specified in USING clause does not exist in {side} table"
                    )),
                }
            };
            let (one, other) = (find(left, right, "left")?, find(right, self.columns.len(), "right")?);
            let scope = self.scope(left, around);
            let (one_value, other_value, of) = scope.paired(
                (self.columns[one].value.clone(), self.columns[one].of),
                (self.columns[other].value.clone(), self.columns[other].of),
                "=",
            )?;
            let equal =
                Expr::Compare(Comparison::Equal, one_value.clone().boxed(), other_value.clone().boxed());
            conditions.push(equal);
            let value = match kept {
                KeptSides::None | KeptSides::Left => one_value,
                KeptSides::Right => other_value,
                KeptSides::Both => Expr::Coalesce(vec![one_value, other_value]),
            };
            let mut column = self.columns[one].clone();
            column.is_merged = true;
            column.value = value;
            column.of = of;
            if kept == KeptSides::Both {
                column.table = String::new();
            }
            self.columns[one].is_hidden = true;
            self.columns[other].is_hidden = true;
            merged.push(column);
        }
        // They are first among the columns of the join.
        self.columns.splice(left..left, merged);
        Ok(conditions)
    }

    fn add_factor(&mut self, factor: &ast::TableFactor, around: Around<'_>) -> Result<()> {
        use ast::TableFactor as F;
        match factor {
            F::Table { name, alias, args: None, with_ordinality: false, .. } => {
                let mut rest = factor.clone();
                if let F::Table { alias, .. } = &mut rest {
                    *alias = None;
                }
                let shown = rest.to_string();
                let is_plain = shown == name.to_string() || shown == format!("ONLY {name}");
                refuse(!is_plain, &format!("{shown} in FROM"))?;
                let (relation, columns, default) = find(name, around).at(name)?;
                self.add(relation, columns, &default, alias.as_ref())
            }
            F::Derived { lateral, subquery, alias, sample: None } => {
                let first = if *lateral { 0 } else { self.columns.len() };
                let scope = self.scope(first, around);
                let (query, outer) = query::bind_inner(subquery, scope)?;
                let columns = query.columns.clone();
                let relation = Relation::Query { query: Rc::new(query), outer: Some(outer) };
                self.add(relation, columns, "", alias.as_ref())
            }
            F::NestedJoin { table_with_joins, alias: None } => self.add_item(table_with_joins, around),
            F::Table { name, alias, args: Some(args), with_ordinality, .. } if args.settings.is_none() => {
                self.add_function(name, &args.args, *with_ordinality, alias.as_ref(), around)
            }
            F::Function { lateral: _, name, args, with_ordinality, alias } => {
                self.add_function(name, args, *with_ordinality, alias.as_ref(), around)
            }
            F::UNNEST {
                alias,
                array_exprs,
                with_offset: false,
                with_offset_alias: None,
                with_ordinality,
            } => {
                let scope = self.scope(0, around);
                let calls =
                    array_exprs.iter().map(|expr| sets::bind("unnest", vec![scope.bind(expr)?], &scope));
                let calls = calls.collect::<Result<Vec<_>>>()?;
                self.add_calls("unnest", calls, *with_ordinality, alias.as_ref())
            }
            other => Err(SqlError::unsupported(format!("{other} in FROM"))),
        }
    }

    fn add_function(
        &mut self,
        of: &ast::ObjectName,
        arguments: &[ast::FunctionArg],
        is_numbered: bool,
        alias: Option<&ast::TableAlias>,
        around: Around<'_>,
    ) -> Result<()> {
        let name = match &of.0[..] {
            [.., last] => last.as_ident().map(folded).unwrap_or_default(),
            [] => String::new(),
        };
        let scope = self.scope(0, around);
        let unsupported = || SqlError::unsupported(format!("the arguments of {name} in FROM"));
        let bind = |argument| scope.bind(plain_argument(argument).ok_or_else(unsupported)?);
        let bound = arguments.iter().map(bind).collect::<Result<_>>()?;
        let call = sets::bind(&name, bound, &scope).at(of)?;
        self.add_calls(&name, vec![call], is_numbered, alias)
    }

    fn add_calls(
        &mut self,
        name: &str,
        calls: Vec<SetCall>,
        is_numbered: bool,
        alias: Option<&ast::TableAlias>,
    ) -> Result<()> {
        let mut columns: Vec<ResultColumn> = calls.iter().flat_map(|call| call.columns.clone()).collect();
        // The only column of a function has the name of the alias.
        if let ([column], Some(alias)) = (&mut columns[..], alias) {
            column.name = folded(&alias.name);
        }
        if is_numbered {
            columns.push(ResultColumn { name: "ordinality".into(), of: Type::Int8 });
        }
        self.add(Relation::Functions(calls, is_numbered), columns, name, alias)
    }

    fn add(
        &mut self,
        relation: Relation,
        mut columns: Vec<ResultColumn>,
        default: &str,
        alias: Option<&ast::TableAlias>,
    ) -> Result<()> {
        let name = alias.map_or(default.to_owned(), |alias| folded(&alias.name));
        if let Some(alias) = alias {
            refuse(alias.at.is_some(), "an alias with AT")?;
            let aliases: Vec<String> = alias.columns.iter().map(|column| folded(&column.name)).collect();
            query::rename(&mut columns, &aliases, &name)?;
        }
        if !name.is_empty() && self.columns.iter().any(|column| column.table == name) {
            fail!(DUPLICATE_ALIAS, "table name \"{name}\" specified more than once");
        }
        let system_oid = match &relation {
            Relation::System(table) => Some(table.oid),
            _ => None,
        };
        let offset = self.width;
        let scoped = columns.iter().enumerate();
        self.columns.extend(scoped.map(|(at, column)| ScopeColumn::new(&name, column, offset + at)));
        if let Some(oid) = system_oid {
            let column = ResultColumn { name: TABLE_OID.into(), of: Type::Oid };
            let value = Expr::Value(Value::Int(oid.into()));
            let column = ScopeColumn::new(&name, &column, offset);
            self.columns.push(ScopeColumn { value, is_hidden: true, ..column });
        }
        self.sources.push(Source::new(relation, offset, columns.len()));
        self.width += columns.len();
        Ok(())
    }
}

/// Makes one source of several, whose rows begin at an offset.
fn joined(mut sources: Vec<Source>, mut conditions: Vec<Expr>, offset: usize) -> Result<Source> {
    let mut needs_others = false;
    let mut own = |expr: &mut Expr| {
        expr.columns(&mut |column| needs_others |= column < offset);
        expr.move_columns(&|column| column.saturating_sub(offset));
    };
    for source in &mut sources {
        source.offset -= offset;
        source.exprs(&mut own);
    }
    conditions.iter_mut().for_each(&mut own);
    refuse(needs_others, "LATERAL inside of an outer join of several tables")?;
    let constant = super::paths::place(&mut sources, conditions);
    if let Some(first) = sources.first_mut() {
        first.conditions.extend(constant);
    }
    let width = sources.iter().map(|source| source.width).sum();
    Ok(Source::new(Relation::Joined(Rc::new(sources)), offset, width))
}

/// Finds a relation by its name. Returns it with its columns and the name that it has without
/// alias.
fn find(name: &ast::ObjectName, around: Around<'_>) -> Result<(Relation, Vec<ResultColumn>, String)> {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident().map(folded)).collect();
    let (schema, own) = match &parts[..] {
        [own] => (None, own.as_str()),
        [schema, own] => (Some(schema.as_str()), own.as_str()),
        _ => return Err(SqlError::unsupported(format!("the name {name}"))),
    };
    if schema.is_none()
        && let Some(reference) = around.with.and_then(|with| with.find(own))
    {
        return Ok((reference.relation.clone(), reference.columns.clone(), own.to_owned()));
    }
    if let Some(table) = system::find_table(schema, own) {
        let columns = table.columns.iter();
        let columns = columns.map(|(name, of)| ResultColumn { name: (*name).to_owned(), of: *of }).collect();
        return Ok((Relation::System(table), columns, own.to_owned()));
    }
    if let Some(view) = system::find_view(schema, own) {
        let (relation, columns) = bind_view(&view.text, None, around)?;
        return Ok((relation, columns, own.to_owned()));
    }
    if matches!(schema, Some("pg_catalog" | "information_schema")) {
        return Err(undefined(&parts.join(".")));
    }
    let name = relation(name)?;
    let parameters = around.parameters;
    let column = |name: &String, of| ResultColumn { name: name.clone(), of };
    match parameters.relation(&name)? {
        catalog::Relation::Table(table) => {
            parameters.check(&table.owner, &table.grants, Privilege::Select, "table", &table.name)?;
            if table.materialized.as_ref().is_some_and(|view| !view.is_populated) && !parameters.is_only_bound
            {
                let message = format!("materialized view \"{}\" has not been populated", table.name);
                let hint = "Use the REFRESH MATERIALIZED VIEW command.";
                return Err(SqlError::new(code::NOT_IN_STATE, message).with_hint(hint));
            }
            let columns = table.columns.iter().map(|known| column(&known.name, known.of)).collect();
            Ok((Relation::Table(table), columns, own.to_owned()))
        }
        catalog::Relation::View(view) => {
            parameters.check(&view.owner, &view.grants, Privilege::Select, "view", &view.name)?;
            let (relation, mut columns) = bind_view(&view.text, Some(view.path.clone()), around)?;
            columns.iter_mut().zip(&view.columns).for_each(|(found, known)| {
                found.name.clone_from(&known.name);
            });
            Ok((relation, columns, own.to_owned()))
        }
        catalog::Relation::Sequence(sequence) => {
            let Sequence { owner, grants, .. } = &*sequence;
            parameters.check(owner, grants, Privilege::Select, "sequence", &sequence.name)?;
            let columns = system::SEQUENCE_COLUMNS.iter().map(|(name, of)| column(&(*name).into(), *of));
            Ok((Relation::Sequence(sequence), columns.collect(), own.to_owned()))
        }
        catalog::Relation::Index(_) => Err(wrong_kind(&name)),
        catalog::Relation::Type(_) => Err(undefined(&name)),
    }
}

/// Binds the query of a view, which knows no names around it.
fn bind_view(
    text: &str,
    path: Option<Vec<String>>,
    around: Around<'_>,
) -> Result<(Relation, Vec<ResultColumn>)> {
    let damaged = || error!(DATA_CORRUPTED, "the view {text} is malformed");
    let parsed = crate::parse::parse(text)?.pop().ok_or_else(damaged)?;
    let crate::parse::Statement::Sql(statement) = parsed else { return Err(damaged()) };
    let ast::Statement::Query(query) = *statement else { return Err(damaged()) };
    let parent = Parent { scope: Scope::new(&[], around.parameters), captured: RefCell::default() };
    let alone = Around { parameters: around.parameters, parent: Some(&parent), with: None };
    let views = &around.parameters.views;
    views.set(views.get() + 1);
    let before = around.parameters.view_path.replace(path);
    let bound = query::bind(&query, alone);
    *around.parameters.view_path.borrow_mut() = before;
    views.set(views.get() - 1);
    let mut bound = bound.map_err(SqlError::elsewhere)?;
    query::settle(&mut bound);
    let columns = bound.columns.clone();
    Ok((Relation::Query { query: Rc::new(bound), outer: Some(Vec::new()) }, columns))
}
