//! ALTER TABLE and ALTER INDEX.

mod column;
mod rename;

pub(super) use self::{column::names, rename::tokens};

use std::rc::Rc;

use sqlparser::ast;

use super::{
    Definer,
    constraint::{NewConstraint, add_check},
    grant::change_owner,
    index::add_index,
};
use crate::{
    bind::select::refuse,
    catalog::{Entry, Relation, RelationName, Table, TypeEntry, undefined, undefined_schema},
    error::{Result, SqlError, error},
    expr::Expr,
    parse::{DOMAIN, folded, relation, simple},
};

/// Returns expressions that keep the first columns of a row.
fn kept(columns: usize) -> Vec<Expr> {
    (0..columns).map(Expr::Column).collect()
}

fn cascades(behavior: Option<ast::DropBehavior>) -> bool {
    behavior == Some(ast::DropBehavior::Cascade)
}

impl Definer<'_, '_> {
    fn named_owner(&self, owner: &ast::Owner) -> String {
        match owner {
            ast::Owner::Ident(name) => folded(name),
            _ => self.catalog.place().role.clone(),
        }
    }

    /// Gives a view, a sequence or a type to another role.
    async fn change_owner_of(&mut self, place: &RelationName, found: Relation, to: &str) -> Result<()> {
        let session = self.catalog.place();
        let entry = match found {
            Relation::View(view) => {
                session.check_owner(&view.owner, "view", &view.name)?;
                let mut view = (*view).clone();
                change_owner(&mut view.owner, &mut view.grants, to);
                Entry::View(view)
            }
            Relation::Sequence(sequence) => {
                session.check_owner(&sequence.owner, "sequence", &sequence.name)?;
                let mut sequence = (*sequence).clone();
                change_owner(&mut sequence.owner, &mut sequence.grants, to);
                Entry::Sequence(sequence)
            }
            Relation::Type(of) => {
                session.check_owner(&of.owner, "type", &place.name)?;
                Entry::Type(TypeEntry { owner: to.to_owned(), ..(*of).clone() })
            }
            Relation::Table(_) | Relation::Index(_) => return Ok(()),
        };
        self.catalog.change_entry(self.run.by, place, Some(&entry)).await
    }
}

/// Runs ALTER SCHEMA.
pub(crate) async fn alter_schema(define: &mut Definer<'_, '_>, alter: &ast::AlterSchema) -> Result<()> {
    let name = simple(&alter.name)?;
    let schema = define.catalog.schema(define.run.by, &name).await?;
    let mut schema = schema.ok_or_else(|| undefined_schema(&name))?;
    define.catalog.place().check_owner(&schema.owner, "schema", &name)?;
    for operation in &alter.operations {
        let ast::AlterSchemaOperation::OwnerTo { owner } = operation else {
            return Err(SqlError::unsupported(format!("ALTER SCHEMA {operation}")));
        };
        let owner = define.named_owner(owner);
        change_owner(&mut schema.owner, &mut schema.grants, &owner);
    }
    define.catalog.change_schema(define.run.by, &name, Some(&schema)).await
}

/// Runs ALTER TABLE.
pub(crate) async fn alter_table(define: &mut Definer<'_, '_>, alter: &ast::AlterTable) -> Result<()> {
    let name = relation(&alter.name)?;
    if alter.on_cluster.as_ref().is_some_and(|name| name.value == DOMAIN) {
        return define.alter_domain(&alter.name, &alter.operations).await;
    }
    refuse(
        alter.location.is_some() || alter.on_cluster.is_some() || alter.table_type.is_some(),
        "this form of ALTER TABLE",
    )?;
    let found = define.catalog.relation(define.run.by, &name).await?;
    if let ([ast::AlterTableOperation::OwnerTo { new_owner }], Some((place, found))) =
        (&alter.operations[..], found)
        && !matches!(found, Relation::Table(_) | Relation::Index(_))
    {
        let owner = define.named_owner(new_owner);
        return define.change_owner_of(&place, found, &owner).await;
    }
    let Some(table) = define.catalog.owned(define.run.by, &name).await? else {
        return define.skip(alter.if_exists, undefined(&name));
    };
    let is_owner =
        |operation: &ast::AlterTableOperation| matches!(operation, ast::AlterTableOperation::OwnerTo { .. });
    let is_known = alter.operations.iter().all(is_owner);
    refuse(table.materialized.is_some() && !is_known, "ALTER of a materialized view")?;
    define.check_pending(&table, "ALTER TABLE")?;
    let mut name = table.relation();
    // Foreign keys may need keys that a later operation adds.
    let is_foreign = |operation: &&ast::AlterTableOperation| {
        matches!(
            operation,
            ast::AlterTableOperation::AddConstraint { constraint: ast::TableConstraint::ForeignKey(_), .. }
        )
    };
    let first = alter.operations.iter().filter(|operation| !is_foreign(operation));
    for operation in first.chain(alter.operations.iter().filter(is_foreign)) {
        let table = define.table(&name).await?;
        define.alter(&table, operation, &mut name).await?;
    }
    Ok(())
}

/// Runs ALTER INDEX … RENAME.
pub(crate) async fn alter_index(
    define: &mut Definer<'_, '_>,
    name: &ast::ObjectName,
    operation: &ast::AlterIndexOperation,
) -> Result<()> {
    let ast::AlterIndexOperation::RenameIndex { index_name } = operation;
    let name = relation(name)?;
    let found = define.catalog.table_of_index(define.run.by, &name).await?;
    let (table, index) = found.ok_or_else(|| undefined(&name))?;
    let new = relation(index_name)?;
    refuse(new.contains('\0'), "RENAME to a name with a schema")?;
    define.rename_index(&table, &index, new).await
}

impl Definer<'_, '_> {
    async fn alter(
        &mut self,
        table: &Rc<Table>,
        operation: &ast::AlterTableOperation,
        name: &mut RelationName,
    ) -> Result<()> {
        use ast::AlterTableOperation as O;
        match operation {
            O::AddConstraint { constraint, not_valid } => {
                refuse(*not_valid, "NOT VALID")?;
                self.add_constraint(table, NewConstraint::of(constraint)?).await
            }
            O::AddColumn { if_not_exists, column_def, column_position: None, .. } => {
                self.add_column(table, column_def, *if_not_exists).await
            }
            O::DropColumn { column_names, if_exists, drop_behavior, .. } => {
                for column in column_names {
                    let table = self.table(name).await?;
                    self.drop_column(&table, &folded(column), *if_exists, cascades(*drop_behavior)).await?;
                }
                Ok(())
            }
            O::DropConstraint { if_exists, name, drop_behavior } => {
                self.drop_constraint(table, &folded(name), *if_exists, cascades(*drop_behavior)).await
            }
            O::RenameColumn { old_column_name, new_column_name } => {
                self.rename_column(table, &folded(old_column_name), folded(new_column_name)).await
            }
            O::RenameTable { table_name: ast::RenameTableNameKind::To(new) } => {
                let new = relation(new)?;
                refuse(new.contains('\0'), "RENAME to a name with a schema")?;
                let new = RelationName::new(&table.schema, new);
                self.rename_table(table, &new).await?;
                *name = new;
                Ok(())
            }
            O::RenameConstraint { old_name, new_name } => {
                self.rename_constraint(table, &folded(old_name), folded(new_name)).await
            }
            O::AlterColumn { column_name, op } => {
                let column = table.column(&folded(column_name))?;
                self.alter_column(table, column, op).await
            }
            O::OwnerTo { new_owner } => {
                let owner = self.named_owner(new_owner);
                self.own_sequences_to(table, &owner).await?;
                self.edit(table, |new| change_owner(&mut new.owner, &mut new.grants, &owner)).await
            }
            O::ValidateConstraint { name } => match super::constraint::has_constraint(table, &folded(name)) {
                // All are valid.
                true => Ok(()),
                false => Err(no_constraint(table, &folded(name))),
            },
            O::SetOptionsParens { options } => {
                let is_known = |option: &ast::SqlOption| {
                    option.to_string().to_ascii_lowercase().starts_with("fillfactor")
                };
                refuse(!options.iter().all(is_known), "a storage parameter")
            }
            other => Err(SqlError::unsupported(format!("ALTER TABLE {other}"))),
        }
    }

    async fn add_constraint(&mut self, table: &Table, constraint: NewConstraint) -> Result<()> {
        let mut new = table.clone();
        match constraint {
            NewConstraint::Key(key) => match self.add_key(&mut new, key).await? {
                // The rows move to a tree in the order of the key.
                None => self.rewrite(table, new, &kept(table.columns.len())).await,
                Some(index) => {
                    if index.is_primary {
                        self.validate(&new).await?;
                        self.change(Some(table), Some(&new)).await?;
                    }
                    let table = self.table(&table.relation()).await?;
                    add_index(self, &table, index).await
                }
            },
            NewConstraint::Check { name, condition } => {
                add_check(&mut new, name, &condition)?;
                self.validate(&new).await?;
                self.change(Some(table), Some(&new)).await
            }
            NewConstraint::Foreign { name, key } => {
                self.add_foreign_key(&mut new, name, &key).await?;
                self.change(Some(table), Some(&new)).await?;
                self.validate_foreign_key(&new, new.foreign_keys.len() - 1).await
            }
        }
    }

    async fn drop_constraint(
        &mut self,
        table: &Table,
        name: &str,
        if_exists: bool,
        cascade: bool,
    ) -> Result<()> {
        if let Some(primary) = table.primary.as_ref().filter(|primary| primary.name == name) {
            self.release_constraint(table, &primary.columns, name, cascade).await?;
            let table = self.table(&table.relation()).await?;
            let new = Table { primary: None, ..(*table).clone() };
            return self.rewrite(&table, new, &kept(table.columns.len())).await;
        }
        let unique = table.indexes.iter().find(|index| index.is_constraint && index.name == name);
        if let Some(index) = unique {
            self.release_constraint(table, &index.columns, name, cascade).await?;
            let table = self.table(&table.relation()).await?;
            return self.edit(&table, |new| new.indexes.retain(|index| index.name != name)).await;
        }
        let mut new = table.clone();
        new.checks.retain(|check| check.name != name);
        new.foreign_keys.retain(|key| key.name != name);
        if new != *table {
            return self.change(Some(table), Some(&new)).await;
        }
        self.skip(if_exists, no_constraint(table, name))
    }

    async fn release_constraint(
        &mut self,
        table: &Table,
        columns: &[usize],
        name: &str,
        cascade: bool,
    ) -> Result<()> {
        let object = format!("constraint {name} on table {}", table.name);
        self.release_key(table, columns, &object, &format!("index {name}"), cascade).await
    }
}

fn no_constraint(table: &Table, name: &str) -> SqlError {
    error!(UNDEFINED_OBJECT, "constraint \"{name}\" of relation \"{}\" does not exist", table.name)
}
