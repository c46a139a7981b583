//! Columns that come, go and change.

use sqlparser::{ast, keywords::Keyword, tokenizer::Token};

use super::{super::Definer, kept};
use crate::{
    bind::{Parameters, Scope, assign, from::scope_of, select::refuse},
    catalog::{Column, ForeignKey, Identity, IndexPart, RelationName, Table},
    ddl::{
        constraint::{check_key_type, check_types},
        drop::shown_keys,
        sequence::{drop_sequence, own_sequence},
    },
    dml::{
        default_of,
        target::{Target, bind_text, referenced_tree},
    },
    error::{Result, SqlError, code, error, fail},
    expr::Expr,
    parse::{self, folded},
    types::{Type, Value},
};

/// Returns whether a text of SQL has a word.
pub(in crate::ddl) fn names(text: &str, name: &str) -> bool {
    super::rename::words(text).is_some_and(|words| words.iter().any(|word| word == name))
}

/// Returns whether a text of SQL has `*` for all columns.
pub(super) fn shows_all(text: &str) -> bool {
    let tokens = super::rename::tokens(text).unwrap_or_default();
    let mut before = None;
    tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).any(|token| {
        let is_begin = match before.replace(token) {
            Some(Token::Comma | Token::Period) => true,
            Some(Token::Word(word)) => {
                matches!(word.keyword, Keyword::SELECT | Keyword::DISTINCT | Keyword::ALL)
            }
            _ => false,
        };
        is_begin && *token == Token::Mul
    })
}

/// Returns whether the keys that a foreign key may name all go with a column of INCLUDE.
fn loses_key(table: &Table, key: &ForeignKey, gone: usize) -> bool {
    let mut left = table.clone();
    left.primary = left.primary.filter(|key| !key.include.contains(&gone));
    left.indexes.retain(|index| !index.include.contains(&gone));
    referenced_tree(&left, &key.referenced).is_none()
}

impl Definer<'_, '_> {
    pub(super) async fn add_column(
        &mut self,
        table: &Table,
        column: &ast::ColumnDef,
        if_not_exists: bool,
    ) -> Result<()> {
        let name = folded(&column.name);
        if table.column(&name).is_ok() {
            let message = format!("column \"{name}\" of relation \"{}\" already exists", table.name);
            return self.skip(if_not_exists, SqlError::new(code::DUPLICATE_COLUMN, message));
        }
        let views = self.views_of(&table.relation()).await?;
        refuse(
            views.iter().any(|view| shows_all(&view.text)),
            "ADD COLUMN to a table of which a view shows all columns (*)",
        )?;
        let mut constraints = Vec::new();
        let made = self.column(&table.relation(), column, &mut constraints).await?;
        let mut new = table.clone();
        let at = new.columns.len();
        new.columns.push(made);
        self.bind_column(&mut new, at).await?;
        let mut values = kept(at);
        values.push(self.new_value(&new, at).await?);
        // A row that ends before the column has NULL there.
        match matches!(values[at], Expr::Value(Value::Null)) && new.columns[at].generated.is_none() {
            true => {
                if new.columns[at].not_null {
                    self.validate(&new).await?;
                }
                self.change(Some(table), Some(&new)).await?;
            }
            false => self.rewrite(table, new, &values).await?,
        }
        for constraint in constraints {
            let table = self.table(&table.relation()).await?;
            self.add_constraint(&table, constraint).await?;
        }
        Ok(())
    }

    /// Returns the value of a new column in rows that are there.
    async fn new_value(&mut self, table: &Table, at: usize) -> Result<Expr> {
        let named = Parameters::default();
        let value = default_of(table, at, &named)?;
        self.catalog.find_sequences(self.run.by, named.sequences.take()).await?;
        Ok(value)
    }

    pub(in crate::ddl) async fn drop_column(
        &mut self,
        table: &Table,
        name: &str,
        if_exists: bool,
        cascade: bool,
    ) -> Result<()> {
        let gone = match table.column(name) {
            Ok(gone) => gone,
            Err(error) => return self.skip(if_exists, error),
        };
        let mut views = self.views_of(&table.relation()).await?;
        views.retain(|view| names(&view.text, name) || view.columns.iter().any(|column| column.name == name));
        let loses = |key: &ForeignKey| key.referenced.contains(&gone) || loses_key(table, key, gone);
        let keys = self.foreign_keys_to(table, loses).await?;
        let mut generated = Vec::new();
        for (at, column) in table.columns.iter().enumerate().filter(|(at, _)| *at != gone) {
            let Some(text) = &column.generated else { continue };
            if bind_text(table, text)?.0.any_column(|used| used == gone) {
                generated.push(at);
            }
        }
        let shown = |at: &usize| format!("column {} of table {}", table.columns[*at].name, table.name);
        let others = generated.iter().map(shown).chain(shown_keys(&keys)).collect();
        self.release(&shown(&gone), &shown(&gone), others, &views, cascade).await?;
        self.drop_foreign_keys(&keys).await?;
        let mut goes = vec![gone];
        goes.extend(generated);
        goes.sort_unstable();
        for at in goes.into_iter().rev() {
            let table = self.table(&table.relation()).await?;
            self.remove_column(&table, at).await?;
        }
        Ok(())
    }

    /// Removes a column with the constraints and indexes that name it.
    async fn remove_column(&mut self, table: &Table, gone: usize) -> Result<()> {
        let target = Target::of(std::rc::Rc::new(table.clone()))?;
        let mut new = table.clone();
        let uses = |columns: &[usize]| columns.contains(&gone);
        let moved = |columns: &mut Vec<usize>| {
            columns.iter_mut().filter(|column| **column > gone).for_each(|column| *column -= 1);
        };
        new.columns.remove(gone);
        new.primary = new.primary.filter(|key| !uses(&key.columns) && !uses(&key.include));
        if let Some(key) = &mut new.primary {
            moved(&mut key.columns);
            moved(&mut key.include);
        }
        let mut at = 0;
        new.indexes.retain(|index| {
            at += 1;
            !uses(&index.columns) && !uses(&index.include) && !target.index_uses(at - 1, gone)
        });
        for index in &mut new.indexes {
            moved(&mut index.columns);
            moved(&mut index.include);
            for part in &mut index.parts {
                if let IndexPart::Column(column) = part
                    && *column > gone
                {
                    *column -= 1;
                }
            }
        }
        new.checks.retain(|check| !uses(&check.columns));
        new.checks.iter_mut().for_each(|check| moved(&mut check.columns));
        let own = table.relation();
        let is_gone = |key: &ForeignKey| {
            uses(&key.columns) || key.table == own && (uses(&key.referenced) || loses_key(table, key, gone))
        };
        new.foreign_keys.retain(|key| !is_gone(key));
        for key in &mut new.foreign_keys {
            moved(&mut key.columns);
            if key.table == own {
                moved(&mut key.referenced);
            }
        }
        let mut values = kept(table.columns.len());
        values.remove(gone);
        self.rewrite(table, new, &values).await?;
        // Foreign keys of other tables name columns by their numbers.
        for name in table.referenced_by.iter().filter(|name| **name != own) {
            let other = self.table(name).await?;
            let mut changed = (*other).clone();
            let keys = changed.foreign_keys.iter_mut().filter(|key| key.table == own);
            keys.for_each(|key| moved(&mut key.referenced));
            if changed != *other {
                self.change(Some(&other), Some(&changed)).await?;
            }
        }
        match &table.columns[gone].own_sequence {
            Some(sequence) => drop_sequence(self, &RelationName::of_key(sequence), false).await,
            None => Ok(()),
        }
    }

    pub(super) async fn alter_column(
        &mut self,
        table: &Table,
        at: usize,
        operation: &ast::AlterColumnOperation,
    ) -> Result<()> {
        use ast::AlterColumnOperation as O;
        let mut new = table.clone();
        let name = &table.columns[at].name;
        let wrong = |code: &'static str, what: &str| {
            SqlError::new(code, format!("column \"{name}\" of relation \"{}\" {what}", table.name))
        };
        let (is_identity, is_generated) =
            (table.columns[at].identity.is_some(), table.columns[at].generated.is_some());
        match operation {
            O::SetDefault { value } if let Some(if_exists) = parse::drops_identity(value) => {
                if !is_identity {
                    return self.skip(if_exists, wrong(code::NOT_IN_STATE, "is not an identity column"));
                }
                let column = &mut new.columns[at];
                let sequence = column.own_sequence.take();
                (column.identity, column.default) = (None, None);
                column.sequences.clear();
                self.change(Some(table), Some(&new)).await?;
                return match sequence {
                    Some(sequence) => drop_sequence(self, &RelationName::of_key(&sequence), false).await,
                    None => Ok(()),
                };
            }
            O::SetDefault { .. } | O::DropDefault if is_identity => {
                return Err(wrong(code::SYNTAX_ERROR, "is an identity column"));
            }
            O::SetDefault { .. } | O::DropDefault if is_generated => {
                return Err(wrong(code::SYNTAX_ERROR, "is a generated column"));
            }
            O::SetDefault { value } => {
                new.columns[at].default = Some(value.to_string());
                self.bind_column(&mut new, at).await?;
            }
            O::DropDefault => {
                new.columns[at].default = None;
                new.columns[at].sequences.clear();
            }
            O::SetNotNull => {
                new.columns[at].not_null = true;
                self.validate(&new).await?;
            }
            O::DropNotNull => {
                if table.primary_columns().is_some_and(|columns| columns.contains(&at)) {
                    fail!(INVALID_TABLE_DEFINITION, "column \"{name}\" is in a primary key");
                }
                if is_identity {
                    return Err(wrong(code::SYNTAX_ERROR, "is an identity column"));
                }
                new.columns[at].not_null = false;
            }
            O::SetDataType { data_type, using, .. } => {
                let to = self.type_of(data_type).await?;
                return self.set_type(table, at, to, using.as_ref()).await;
            }
            O::AddGenerated { generated_as, sequence_options } => {
                let Column { not_null, default, .. } = &table.columns[at];
                let obstacle = match (not_null, is_identity, default) {
                    (false, ..) => Some("must be declared NOT NULL before identity can be added"),
                    (_, true, _) => Some("is already an identity column"),
                    (.., Some(_)) => Some("already has a default value"),
                    _ => None,
                };
                if let Some(obstacle) = obstacle {
                    return Err(wrong(code::NOT_IN_STATE, obstacle));
                }
                let options = sequence_options.as_deref().unwrap_or_default();
                let (relation, catalog) = (table.relation(), &mut *self.catalog);
                own_sequence(self.run, catalog, &relation, &mut new.columns[at], options).await?;
                new.columns[at].identity = Some(match generated_as {
                    Some(ast::GeneratedAs::Always) => Identity::Always,
                    _ => Identity::ByDefault,
                });
                self.bind_column(&mut new, at).await?;
            }
            other => return Err(SqlError::unsupported(format!("ALTER COLUMN {other}"))),
        }
        self.change(Some(table), Some(&new)).await
    }

    async fn set_type(
        &mut self,
        table: &Table,
        at: usize,
        to: Type,
        using: Option<&ast::Expr>,
    ) -> Result<()> {
        let column = &table.columns[at];
        let name = &column.name;
        let mut views = self.views_of(&table.relation()).await?;
        views.retain(|view| names(&view.text, name) || view.text.contains('*'));
        if let Some(view) = views.first() {
            let message = "cannot alter type of a column used by a view or rule";
            let detail = format!("rule _RETURN on view {} depends on column \"{name}\"", view.name);
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message).with_detail(detail));
        }
        for other in &table.columns {
            let Some(text) = &other.generated else { continue };
            let is_used = bind_text(table, text)?.0.any_column(|used| used == at);
            if is_used && other.name != *name {
                let message = "cannot alter type of a column used by a generated column";
                let detail = format!("Column \"{name}\" is used by generated column \"{}\".", other.name);
                return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message).with_detail(detail));
            }
        }
        let types = table.columns.iter().map(|column| column.of).chain([to]).collect();
        let none = Parameters { own_types: Some(types).into(), ..Parameters::default() };
        let columns = scope_of(table, &table.name);
        let scope = Scope::new(&columns, &none);
        let cannot = |what: String| {
            error!(DATATYPE_MISMATCH, "{what} cannot be cast automatically to type {}", to.name())
        };
        let value = match using {
            Some(expr) => assign(scope.bind(expr)?, to, name, &none).map_err(|error| match error.code {
                code::DATATYPE_MISMATCH => {
                    let what = format!("result of USING clause for column \"{name}\"");
                    cannot(what).with_hint("You might need to add an explicit cast.")
                }
                _ => error,
            })?,
            None => assign((Expr::Column(at), column.of), to, name, &none).map_err(|_| {
                let hint = format!("You might need to specify \"USING {name}::{}\".", to.name());
                cannot(format!("column \"{name}\"")).with_hint(hint)
            })?,
        };
        let mut new = table.clone();
        (new.columns[at].of, new.columns[at].collation) = (to, None);
        let is_key = table.primary.iter().any(|key| key.columns.contains(&at))
            || table.indexes.iter().any(|index| index.columns.contains(&at));
        if is_key {
            check_key_type(to)?;
        }
        let bound = default_of(&new, at, &none);
        // A literal has the type that the column had.
        let is_other = column.default.is_some() && column.of.named() != to.named() && !to.is_text();
        if is_other || bound.is_err() {
            return Err(cannot(format!("default for column \"{name}\"")));
        }
        for key in &table.foreign_keys {
            let other = self.table(&key.table).await?;
            check_types(&new, key, if *other == *table { &new } else { &other })?;
        }
        for other in table.referenced_by.iter().filter(|other| **other != table.relation()) {
            let other = self.table(other).await?;
            let keys = other.foreign_keys.iter().filter(|key| key.table == table.relation());
            for key in keys {
                check_types(&other, key, &new)?;
            }
        }
        let mut values = kept(table.columns.len());
        values[at] = value;
        self.rewrite(table, new, &values).await
    }
}
