//! DROP of relations, and TRUNCATE.

use std::rc::Rc;

use sqlparser::ast;

use super::{Definer, needed, sequence::drop_sequence};
use crate::{
    bind::select::refuse,
    catalog::{Privilege, Relation, RelationName, Table, View, shown, undefined},
    error::{Result, SqlError, code, fail},
    parse::relation,
};

/// Runs DROP TABLE, VIEW, INDEX, SEQUENCE or TYPE.
pub(crate) async fn drop_all(
    define: &mut Definer<'_, '_>,
    kind: ast::ObjectType,
    names: &[ast::ObjectName],
    if_exists: bool,
    cascade: bool,
) -> Result<()> {
    let mut tables: Vec<Rc<Table>> = Vec::new();
    for name in names {
        let name = relation(name)?;
        let word = match kind {
            ast::ObjectType::Table => "table",
            ast::ObjectType::View => "view",
            ast::ObjectType::MaterializedView => "materialized view",
            ast::ObjectType::Index => "index",
            ast::ObjectType::Sequence => "sequence",
            ast::ObjectType::Type => "type",
            other => return Err(SqlError::unsupported(format!("DROP {other}"))),
        };
        let is_type = kind == ast::ObjectType::Type;
        let found = define.catalog.relation(define.run.by, &name).await?;
        let found = found.filter(|(_, found)| matches!(found, Relation::Type(_)) == is_type);
        let Some((place, found)) = found else {
            let code = match kind {
                ast::ObjectType::Type | ast::ObjectType::Index => code::UNDEFINED_OBJECT,
                _ => code::UNDEFINED_TABLE,
            };
            let message = format!("{word} \"{}\" does not exist", shown(&name));
            define.skip(if_exists, SqlError::new(code, message))?;
            continue;
        };
        match (kind, found) {
            (ast::ObjectType::Table | ast::ObjectType::MaterializedView, Relation::Table(table))
                if table.materialized.is_some() == (kind == ast::ObjectType::MaterializedView) =>
            {
                define.catalog.place().check_owner(&table.owner, word, &table.name)?;
                tables.push(table);
            }
            (ast::ObjectType::View, Relation::View(view)) => {
                define.catalog.place().check_owner(&view.owner, word, &view.name)?;
                define.drop_view(&view, cascade).await?;
            }
            (ast::ObjectType::Index, Relation::Index(table)) => {
                let table = define.owned(&table.qualified()).await?;
                define.drop_index(&table, &place.name, cascade).await?;
            }
            (ast::ObjectType::Sequence, Relation::Sequence(sequence)) => {
                define.catalog.place().check_owner(&sequence.owner, "sequence", &sequence.name)?;
                drop_sequence(define, &sequence.relation(), cascade).await?;
            }
            (ast::ObjectType::Type, Relation::Type(entry)) => {
                define.catalog.place().check_owner(&entry.owner, "type", &place.name)?;
                define.drop_type(&entry, cascade).await?;
            }
            (_, found) => return Err(wrong_kind(&place.name, word, &found)),
        }
    }
    define.drop_tables(&tables, cascade).await
}

/// The error for a relation of another kind.
pub(super) fn wrong_kind(name: &str, wanted: &str, found: &Relation) -> SqlError {
    let hint = match found {
        Relation::Table(table) if table.materialized.is_some() => {
            "Use DROP MATERIALIZED VIEW to remove a materialized view."
        }
        Relation::Table(_) => "Use DROP TABLE to remove a table.",
        Relation::View(_) => "Use DROP VIEW to remove a view.",
        Relation::Sequence(_) => "Use DROP SEQUENCE to remove a sequence.",
        Relation::Index(_) => "Use DROP INDEX to remove an index.",
        Relation::Type(_) => "",
    };
    let article = if wanted == "index" { "an" } else { "a" };
    SqlError::new(code::WRONG_OBJECT_TYPE, format!("\"{name}\" is not {article} {wanted}")).with_hint(hint)
}

fn shown_view(view: &View) -> String {
    format!("{} {}", view.kind(), view.name)
}

/// Returns foreign keys as messages show them, from their tables and names.
pub(super) fn shown_keys(keys: &[(RelationName, String)]) -> Vec<String> {
    keys.iter().map(|(table, key)| format!("constraint {key} on table {}", table.name)).collect()
}

impl Definer<'_, '_> {
    /// Gives a table empty trees, and returns it.
    pub(super) async fn emptied(&mut self, table: &Table) -> Result<Table> {
        let mut new = table.clone();
        new.root = self.run.by.create_tree().await?.0;
        for index in &mut new.indexes {
            index.root = self.run.by.create_tree().await?.0;
        }
        self.change(Some(table), Some(&new)).await?;
        Ok(new)
    }

    /// Removes tables at once: those that only need each other can go.
    pub(super) async fn drop_tables(&mut self, tables: &[Rc<Table>], cascade: bool) -> Result<()> {
        let gone: Vec<RelationName> = tables.iter().map(|table| table.relation()).collect();
        for table in tables {
            self.check_pending(table, "DROP TABLE")?;
            let mut views: Vec<View> = self.views_of(&table.relation()).await?;
            views.retain(|view| !gone.contains(&view.relation()));
            let mut keys = self.foreign_keys_to(table, |_| true).await?;
            keys.retain(|(name, _)| !gone.contains(name));
            let kind = table.view().map_or("table", |view| view.kind());
            let object = format!("{kind} {}", table.name);
            self.release(&object, &object, shown_keys(&keys), &views, cascade).await?;
            self.drop_foreign_keys(&keys).await?;
        }
        // First they name no tables any more, which may be some of them.
        for table in tables.iter().filter(|table| !table.foreign_keys.is_empty()) {
            let Some(table) = self.left(table).await? else { continue };
            self.edit(&table, |alone| alone.foreign_keys.clear()).await?;
        }
        for table in tables {
            let Some(table) = self.left(table).await? else { continue };
            self.change(Some(&table), None).await?;
            for sequence in table.columns.iter().filter_map(|column| column.own_sequence.as_ref()) {
                drop_sequence(self, &RelationName::of_key(sequence), cascade).await?;
            }
        }
        Ok(())
    }

    /// Returns a table as it is now, unless it has gone with another one.
    async fn left(&mut self, table: &Table) -> Result<Option<Rc<Table>>> {
        let name = table.relation().qualified();
        self.catalog.find(self.run.by, &name).await
    }

    /// Lets views and other objects that need an object go with it, if it cascades; else fails
    /// because of them: each needs `part` of the object.
    pub(super) async fn release(
        &mut self,
        object: &str,
        part: &str,
        others: Vec<String>,
        views: &[View],
        cascade: bool,
    ) -> Result<()> {
        let is_free = others.is_empty() && views.is_empty();
        if !cascade && !is_free {
            let all = views.iter().map(shown_view).chain(others);
            return Err(needed(
                object,
                &all.map(|one| format!("{one} depends on {part}")).collect::<Vec<_>>(),
            ));
        }
        self.cascades(others, views).await
    }

    /// Removes views that need something that goes, and tells of them and of other objects.
    pub(super) async fn cascades(&mut self, objects: Vec<String>, views: &[View]) -> Result<()> {
        let mut lines: Vec<String> = views.iter().map(shown_view).collect();
        lines.extend(objects);
        match &lines[..] {
            [] => {}
            [one] => self.notices.push(format!("drop cascades to {one}")),
            all => {
                let lines: Vec<String> = all.iter().map(|one| format!("drop cascades to {one}")).collect();
                let message = format!("drop cascades to {} other objects", all.len());
                self.notices.push(format!("{message}\n{}", lines.join("\n")));
            }
        }
        for view in views {
            // One that needs another one of them may have gone with it.
            let name = view.relation().qualified();
            match self.catalog.relation(self.run.by, &name).await? {
                Some((_, Relation::View(view))) => Box::pin(self.drop_view(&view, true)).await?,
                Some((_, Relation::Table(table))) => Box::pin(self.drop_tables(&[table], true)).await?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn drop_view(&mut self, view: &View, cascade: bool) -> Result<()> {
        if view.is_materialized {
            let table = self.table(&view.relation()).await?;
            return Box::pin(self.drop_tables(&[table], cascade)).await;
        }
        let views = self.views_of(&view.relation()).await?;
        let object = format!("view {}", view.name);
        self.release(&object, &object, Vec::new(), &views, cascade).await?;
        self.catalog.change_entry(self.run.by, &view.relation(), None).await
    }

    async fn drop_index(&mut self, table: &Table, name: &str, cascade: bool) -> Result<()> {
        self.check_pending(table, "DROP INDEX")?;
        let index = table.indexes.iter().find(|index| index.name == name);
        if index.is_none_or(|index| index.is_constraint) {
            let message = format!(
                "cannot drop index {name} because constraint {name} on table {} requires it",
                table.name
            );
            let hint = format!("You can drop constraint {name} on table {} instead.", table.name);
            return Err(SqlError::new(code::DEPENDENT_OBJECTS, message).with_hint(hint));
        }
        let columns = index.map(|index| index.columns.clone()).unwrap_or_default();
        self.release_key(table, &columns, &format!("index {name}"), &format!("index {name}"), cascade)
            .await?;
        let table = self.table(&table.relation()).await?;
        self.edit(&table, |new| new.indexes.retain(|index| index.name != name)).await
    }

    /// Removes the foreign keys that need a key of a table, or fails because of them.
    pub(super) async fn release_key(
        &mut self,
        table: &Table,
        columns: &[usize],
        object: &str,
        index: &str,
        cascade: bool,
    ) -> Result<()> {
        let mut columns = columns.to_vec();
        columns.sort_unstable();
        let keys = self
            .foreign_keys_to(table, |key| {
                let mut referenced = key.referenced.clone();
                referenced.sort_unstable();
                referenced == columns
            })
            .await?;
        self.release(object, index, shown_keys(&keys), &[], cascade).await?;
        self.drop_foreign_keys(&keys).await
    }
}

/// Runs TRUNCATE: the tables get new trees.
pub(crate) async fn truncate(define: &mut Definer<'_, '_>, truncate: &ast::Truncate) -> Result<()> {
    let is_plain = truncate.partitions.is_none() && !truncate.if_exists && truncate.on_cluster.is_none();
    refuse(!is_plain, "this form of TRUNCATE")?;
    let cascade = truncate.cascade == Some(ast::CascadeOption::Cascade);
    let mut names: Vec<RelationName> = Vec::new();
    for target in &truncate.table_names {
        let name = relation(&target.name)?;
        let found = define.catalog.find(define.run.by, &name).await?.ok_or_else(|| undefined(&name))?;
        if found.materialized.is_some() {
            fail!(WRONG_OBJECT_TYPE, "\"{}\" is not a table", found.name);
        }
        if !names.contains(&found.relation()) {
            names.push(found.relation());
        }
    }
    let mut at = 0;
    while let Some(name) = names.get(at).cloned() {
        at += 1;
        let table = define.table(&name).await?;
        let place = define.catalog.place();
        place.check(&table.owner, &table.grants, Privilege::Truncate, "table", &table.name)?;
        define.check_pending(&table, "TRUNCATE")?;
        for other in &table.referenced_by {
            if names.contains(other) {
                continue;
            }
            if !cascade {
                let message = "cannot truncate a table referenced in a foreign key constraint";
                let detail = format!("Table \"{}\" references \"{}\".", other.name, table.name);
                let hint = format!(
                    "Truncate table \"{}\" at the same time, or use TRUNCATE ... CASCADE.",
                    other.name
                );
                return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message)
                    .with_detail(detail)
                    .with_hint(hint));
            }
            define.notices.push(format!("truncate cascades to table \"{}\"", other.name));
            names.push(other.clone());
        }
    }
    for name in names {
        let table = define.table(&name).await?;
        define.emptied(&table).await?;
        if truncate.identity == Some(ast::TruncateIdentityOption::Restart) {
            for sequence in table.columns.iter().filter_map(|column| column.own_sequence.as_ref()) {
                define.restart(&RelationName::of_key(sequence), None).await?;
            }
        }
    }
    Ok(())
}
