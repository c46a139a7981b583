//! New names for tables, columns, constraints and indexes. Texts of expressions follow; those of
//! views do not, so what a view names keeps its name.

use std::rc::Rc;

use sqlparser::{
    dialect::PostgreSqlDialect,
    tokenizer::{Token, Tokenizer},
};

use super::{
    super::{
        Definer,
        constraint::{has_constraint, named_column},
    },
    column::{names, shows_all},
};
use crate::{
    bind::select::refuse,
    catalog::{IndexPart, RelationName, Table, duplicate},
    dml::target::Target,
    error::{Result, fail},
};

/// Returns the tokens of a text; each is shown as it was written.
pub(in crate::ddl) fn tokens(text: &str) -> Option<Vec<Token>> {
    Tokenizer::new(&PostgreSqlDialect {}, text).with_unescape(false).tokenize().ok()
}

fn folded(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_some() => Some(word.value.clone()),
        Token::Word(word) => Some(word.value.to_ascii_lowercase()),
        _ => None,
    }
}

/// Returns the words of a text, as names.
pub(super) fn words(text: &str) -> Option<Vec<String>> {
    Some(tokens(text)?.iter().filter_map(folded).collect())
}

/// Gives a name in the text of an expression another one: that of a column, or that of the table
/// before the name of a column.
fn renamed(text: &str, old: &str, new: &str, is_table: bool) -> String {
    let Some(tokens) = tokens(text) else { return text.to_owned() };
    let is = |at: Option<usize>, token: &Token| at.and_then(|at| tokens.get(at)) == Some(token);
    let quoted = format!("\"{}\"", new.replace('"', "\"\""));
    let token = |(at, token): (usize, &Token)| {
        let is_qualifier = is(Some(at + 1), &Token::Period);
        let is_call = is(Some(at + 1), &Token::LParen);
        match folded(token) {
            Some(name) if name == old && !is_call && is_qualifier == is_table => quoted.clone(),
            _ => token.to_string(),
        }
    };
    tokens.iter().enumerate().map(token).collect()
}

/// Changes all texts of a table's own expressions over its columns: they must mean the same.
fn rename_texts(table: &mut Table, old: &str, new: &str, is_table: bool) {
    let change = |text: &mut String| *text = renamed(text, old, new, is_table);
    table.checks.iter_mut().for_each(|check| change(&mut check.condition));
    table.columns.iter_mut().filter_map(|column| column.generated.as_mut()).for_each(change);
    for index in &mut table.indexes {
        index.condition.as_mut().into_iter().for_each(change);
        for part in &mut index.parts {
            if let IndexPart::Expression(text, _) = part {
                change(text);
            }
        }
    }
}

/// Refuses a new name with which the expressions of a table do not mean what they did.
fn check_same(old: &Table, new: &Table) -> Result<()> {
    let rules = |table: &Table| Target::of(Rc::new(table.clone())).map(|target| target.rules());
    let is_same = rules(new).is_ok_and(|new| rules(old).is_ok_and(|old| old == new));
    refuse(!is_same, "RENAME with this expression in a check, an index or a generated column")
}

impl Definer<'_, '_> {
    pub(super) async fn rename_table(&mut self, table: &Table, name: &RelationName) -> Result<()> {
        if self.has(name).await? {
            return Err(duplicate(&name.name));
        }
        let views = self.views_of(&table.relation()).await?;
        refuse(!views.is_empty(), "RENAME of a table that a view uses")?;
        let old = table.relation();
        let mut new = table.clone();
        new.name.clone_from(&name.name);
        rename_texts(&mut new, &old.name, &name.name, true);
        check_same(table, &new)?;
        let rename = |new: &mut Table| {
            let keys = new.foreign_keys.iter_mut().filter(|key| key.table == old);
            keys.for_each(|key| key.table = name.clone());
        };
        rename(&mut new);
        self.change(Some(table), Some(&new)).await?;
        for other in table.referenced_by.iter().filter(|other| **other != old) {
            // Its foreign keys name the table as it was.
            let Some(known) = self.catalog.find(self.run.by, &other.qualified()).await? else { continue };
            let mut changed = (*known).clone();
            rename(&mut changed);
            self.catalog.change(self.run.by, Some(&known), Some(&changed)).await?;
        }
        Ok(())
    }

    pub(super) async fn rename_column(&mut self, table: &Table, old: &str, name: String) -> Result<()> {
        let at = named_column(table, old, "")?;
        if table.column(&name).is_ok() {
            fail!(DUPLICATE_COLUMN, "column \"{name}\" of relation \"{}\" already exists", table.name);
        }
        let mut views = self.views_of(&table.relation()).await?;
        views.retain(|view| names(&view.text, old) || shows_all(&view.text));
        refuse(!views.is_empty(), "RENAME of a column that a view uses")?;
        let mut new = table.clone();
        rename_texts(&mut new, old, &name, false);
        new.columns[at].name = name;
        check_same(table, &new)?;
        self.change(Some(table), Some(&new)).await
    }

    pub(super) async fn rename_constraint(&mut self, table: &Table, old: &str, name: String) -> Result<()> {
        if !has_constraint(table, old) {
            fail!(UNDEFINED_OBJECT, "constraint \"{old}\" for table \"{}\" does not exist", table.name);
        }
        if has_constraint(table, &name) {
            fail!(DUPLICATE_OBJECT, "constraint \"{name}\" for relation \"{}\" already exists", table.name);
        }
        let mut new = table.clone();
        let checks = new.checks.iter_mut().map(|check| &mut check.name);
        let keys = new.foreign_keys.iter_mut().map(|key| &mut key.name);
        match checks.chain(keys).find(|known| *known == old) {
            Some(known) => *known = name,
            None => return self.rename_index(table, old, name).await,
        }
        self.change(Some(table), Some(&new)).await
    }

    pub(super) async fn rename_index(&mut self, table: &Table, old: &str, name: String) -> Result<()> {
        let rename = |new: &mut Table| {
            let primary = new.primary.iter_mut().map(|key| &mut key.name);
            let names = primary.chain(new.indexes.iter_mut().map(|index| &mut index.name));
            names.filter(|known| *known == old).for_each(|known| known.clone_from(&name));
        };
        self.edit(table, rename).await
    }
}
