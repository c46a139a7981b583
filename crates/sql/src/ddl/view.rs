//! CREATE VIEW.

use std::rc::Rc;

use sqlparser::ast;

use super::{Definer, table::insert_all};
use crate::{
    bind::select::{ResultColumn, refuse},
    catalog::{
        Column, Entry, Index, Materialized, Relation, RelationName, Table, View, ViewColumn, duplicate,
    },
    error::{Result, SqlError, code, fail},
    parse::{NO_DATA, folded, relation},
    spool::Rows,
    types::Type,
};

/// Runs CREATE VIEW, whose query has these columns and, if it is materialized, these rows. Returns
/// the number of its own rows.
pub(crate) async fn create_view(
    define: &mut Definer<'_, '_>,
    create: &ast::CreateView,
    columns: &[ResultColumn],
    uses: Vec<RelationName>,
    rows: Rows,
) -> Result<Option<u64>> {
    let is_plain = !create.or_alter
        && !create.secure
        && create.options == ast::CreateTableOptions::None
        && create.cluster_by.is_empty()
        && create.comment.as_ref().is_none_or(|comment| create.materialized && comment == NO_DATA)
        && !create.with_no_schema_binding
        && (!create.if_not_exists || create.materialized)
        && create.to.is_none()
        && create.params.is_none()
        && !create.copy_grants;
    refuse(!is_plain, "this form of CREATE VIEW")?;
    let uses_temporary = uses.iter().any(|name| define.catalog.is_temporary(&name.schema));
    let place = define.place_of(&create.name, create.temporary || uses_temporary).await?;
    if uses_temporary && !create.temporary {
        define.notices.push(format!("view \"{}\" will be a temporary view", place.name));
    }
    if create.columns.len() > columns.len() {
        fail!(SYNTAX_ERROR, "CREATE VIEW specifies more column names than columns");
    }
    let mut named: Vec<ViewColumn> = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let name = match create.columns.get(at) {
            Some(given) => {
                refuse(given.data_type.is_some() || given.options.is_some(), "this form of CREATE VIEW")?;
                folded(&given.name)
            }
            None => column.name.clone(),
        };
        if named.iter().any(|known| known.name == name) {
            fail!(DUPLICATE_COLUMN, "column \"{name}\" specified more than once");
        }
        named.push(ViewColumn { name, of: if column.of == Type::Unknown { Type::Text } else { column.of } });
    }
    if create.if_not_exists && define.has(&place).await? {
        return define.skip(true, duplicate(&place.name)).map(|()| None);
    }
    let old = match define.catalog.relation(define.run.by, &place.qualified()).await? {
        None => None,
        Some((_, Relation::View(view))) if create.or_replace => Some(view),
        Some((_, Relation::View(_))) => return Err(duplicate(&place.name)),
        Some(_) if create.or_replace => {
            fail!(WRONG_OBJECT_TYPE, "\"{}\" is not a view", place.name);
        }
        Some(_) => return Err(duplicate(&place.name)),
    };
    let mut view = View {
        id: define.run.by.store().fresh_id().await?,
        schema: place.schema.clone(),
        name: place.name.clone(),
        owner: define.catalog.place().role.clone(),
        text: with_names(&create.query, columns).to_string(),
        path: match define.catalog.is_temporary(&place.schema) {
            true => define.catalog.whole_path(),
            false => define.catalog.path().to_vec(),
        },
        columns: named,
        uses,
        is_materialized: false,
        grants: Vec::new(),
        comment: None,
    };
    if let Some(old) = old {
        define.catalog.place().check_owner(&old.owner, "view", &old.name)?;
        check_replaced(&old, &view)?;
        refuse(view.uses.contains(&place), "a view of itself")?;
        (view.id, view.owner) = (old.id, old.owner.clone());
        (view.grants, view.comment) = (old.grants.clone(), old.comment.clone());
    }
    if !create.materialized {
        define.catalog.change_entry(define.run.by, &place, Some(&Entry::View(view))).await?;
        return Ok(None);
    }
    let View { id, owner, text, path, columns, uses, .. } = view;
    let mut columns = columns.iter().map(|column| Column::new(&column.name, column.of)).collect::<Vec<_>>();
    define.refresh_types(&mut columns).await?;
    let mut table = Table::new(id, &place, &owner, define.run.by.create_tree().await?.0, columns);
    let is_populated = create.comment.is_none();
    table.materialized = Some(Materialized { text, path, uses, is_populated });
    define.change(None, Some(&table)).await?;
    if is_populated { Ok(Some(insert_all(define, Rc::new(table), rows).await?)) } else { Ok(None) }
}

/// Runs REFRESH MATERIALIZED VIEW with the rows of its query.
pub(crate) async fn refresh_view(
    define: &mut Definer<'_, '_>,
    refresh: &ast::RefreshMaterializedView,
    rows: Rows,
) -> Result<()> {
    let table = define.owned(&relation(&refresh.name)?).await?;
    let is_unique = |index: &Index| index.is_unique && index.condition.is_none();
    if refresh.concurrently && !table.indexes.iter().any(is_unique) {
        let message =
            format!("cannot refresh materialized view \"{}.{}\" concurrently", table.schema, table.name);
        let hint =
            "Create a unique index with no WHERE clause on one or more columns of the materialized view.";
        return Err(SqlError::new(code::NOT_IN_STATE, message).with_hint(hint));
    }
    let is_populated = refresh.with_data != Some(false);
    let emptied = define.emptied(&table).await?;
    let mut new = emptied.clone();
    new.materialized.iter_mut().for_each(|view| view.is_populated = is_populated);
    define.change(Some(&emptied), Some(&new)).await?;
    if is_populated { insert_all(define, Rc::new(new), rows).await.map(drop) } else { Ok(()) }
}

/// Returns the query of a view with the names of its columns for `*`: columns that come later are
/// not its own.
fn with_names(query: &ast::Query, columns: &[ResultColumn]) -> ast::Query {
    let mut query = query.clone();
    let is_unique = |column: &ResultColumn| columns.iter().filter(|one| one.name == column.name).count() == 1;
    if let ast::SetExpr::Select(select) = &mut *query.body
        && let [ast::SelectItem::Wildcard(_)] = &select.projection[..]
        && columns.iter().all(is_unique)
    {
        let names = columns.iter().map(|column| ast::Ident::with_quote('"', &column.name));
        select.projection =
            names.map(|name| ast::SelectItem::UnnamedExpr(ast::Expr::Identifier(name))).collect();
    }
    query
}

/// Checks that a view keeps its columns.
fn check_replaced(old: &View, new: &View) -> Result<()> {
    let wrong = |message: String| Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message));
    if new.columns.len() < old.columns.len() {
        return wrong("cannot drop columns from view".into());
    }
    for (old, new) in old.columns.iter().zip(&new.columns) {
        if old.name != new.name {
            let message = format!("cannot change name of view column \"{}\" to \"{}\"", old.name, new.name);
            let hint = "Use ALTER VIEW ... RENAME COLUMN ... to change name of view column instead.";
            return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message).with_hint(hint));
        }
        if old.of != new.of {
            return wrong(format!(
                "cannot change data type of view column \"{}\" from {} to {}",
                old.name,
                old.of.name(),
                new.of.name()
            ));
        }
    }
    Ok(())
}
