//! COMMENT ON.

use sqlparser::ast;

use super::Definer;
use crate::{
    bind::undefined_type,
    catalog::{Entry, Relation, Table, TypeEntry, undefined, undefined_schema},
    error::{Result, SqlError, code, fail},
    parse::{folded, relation, simple},
};

/// COMMENT ON CONSTRAINT.
#[derive(Clone, Debug)]
pub(crate) struct ConstraintComment {
    pub(crate) name: ast::Ident,
    pub(crate) table: ast::ObjectName,
    pub(crate) text: Option<String>,
}

/// Runs COMMENT ON CONSTRAINT. An empty text is none.
pub(crate) async fn comment_on_constraint(
    define: &mut Definer<'_, '_>,
    comment: &ConstraintComment,
) -> Result<()> {
    let table = define.owned(&relation(&comment.table)?).await?;
    let (name, mut new) = (folded(&comment.name), (*table).clone());
    let primary = new.primary.iter_mut().map(|key| (&key.name, &mut key.constraint_comment));
    let unique = new.indexes.iter_mut().filter(|index| index.is_constraint);
    let unique = unique.map(|index| (&index.name, &mut index.constraint_comment));
    let checks = new.checks.iter_mut().map(|check| (&check.name, &mut check.comment));
    let keys = new.foreign_keys.iter_mut().map(|key| (&key.name, &mut key.comment));
    let mut all = primary.chain(unique).chain(checks).chain(keys);
    match all.find(|(known, _)| **known == name) {
        Some((_, known)) => *known = comment.text.clone().filter(|text| !text.is_empty()),
        None => {
            fail!(UNDEFINED_OBJECT, "constraint \"{name}\" for table \"{}\" does not exist", table.name);
        }
    }
    define.change(Some(&table), Some(&new)).await
}

/// Runs COMMENT ON. An empty text is none.
pub(crate) async fn comment(
    define: &mut Definer<'_, '_>,
    kind: ast::CommentObject,
    name: &ast::ObjectName,
    text: Option<&str>,
) -> Result<()> {
    let text = text.filter(|text| !text.is_empty()).map(str::to_owned);
    use ast::CommentObject as O;
    match kind {
        O::Column => {
            let mut table = name.clone();
            let column = table.0.pop().filter(|_| !table.0.is_empty());
            let column = column.and_then(|part| part.as_ident().map(folded));
            let column =
                column.ok_or_else(|| SqlError::new(code::SYNTAX_ERROR, "column name must be qualified"))?;
            let table = define.owned(&relation(&table)?).await?;
            let at = table.column(&column)?;
            define.edit(&table, |new| new.columns[at].comment = text).await
        }
        O::Schema => {
            let name = simple(name)?;
            let schema = define.catalog.schema(define.run.by, &name).await?;
            let mut schema = schema.ok_or_else(|| undefined_schema(&name))?;
            define.catalog.place().check_owner(&schema.owner, "schema", &name)?;
            schema.comment = text;
            define.catalog.change_schema(define.run.by, &name, Some(&schema)).await
        }
        O::Table | O::View | O::MaterializedView | O::Index | O::Sequence | O::Type | O::Domain => {
            let name = relation(name)?;
            let found = define.catalog.relation(define.run.by, &name).await?;
            let missing =
                || if matches!(kind, O::Type | O::Domain) { undefined_type(&name) } else { undefined(&name) };
            let (place, found) = found.ok_or_else(missing)?;
            let owner = define.catalog.place().clone();
            let entry = match (kind, found) {
                (O::Table | O::MaterializedView, Relation::Table(table))
                    if table.materialized.is_some() == (kind == O::MaterializedView) =>
                {
                    owner.check_owner(&table.owner, "table", &table.name)?;
                    return define.edit(&table, |new| new.comment = text).await;
                }
                (O::Index, Relation::Index(table)) => {
                    let table = define.owned(&table.qualified()).await?;
                    let set = |new: &mut Table| {
                        let primary = new.primary.iter_mut().map(|key| (&key.name, &mut key.comment));
                        let indexes = new.indexes.iter_mut().map(|index| (&index.name, &mut index.comment));
                        let mut all = primary.chain(indexes);
                        if let Some((_, comment)) = all.find(|(known, _)| **known == place.name) {
                            *comment = text;
                        }
                    };
                    return define.edit(&table, set).await;
                }
                (O::View, Relation::View(view)) => {
                    owner.check_owner(&view.owner, "view", &view.name)?;
                    Entry::View(crate::catalog::View { comment: text, ..(*view).clone() })
                }
                (O::Sequence, Relation::Sequence(sequence)) => {
                    owner.check_owner(&sequence.owner, "sequence", &sequence.name)?;
                    Entry::Sequence(crate::sequences::Sequence { comment: text, ..(*sequence).clone() })
                }
                (O::Type | O::Domain, Relation::Type(of)) => {
                    owner.check_owner(&of.owner, "type", &place.name)?;
                    Entry::Type(TypeEntry { comment: text, ..(*of).clone() })
                }
                (kind, _) => {
                    let kind = kind.to_string().to_lowercase();
                    let article = if kind == "index" { "an" } else { "a" };
                    fail!(WRONG_OBJECT_TYPE, "\"{}\" is not {article} {kind}", place.name);
                }
            };
            define.catalog.change_entry(define.run.by, &place, Some(&entry)).await
        }
        other => Err(SqlError::unsupported(format!("COMMENT ON {other}"))),
    }
}
