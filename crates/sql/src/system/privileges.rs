//! The rights to tables and views in `information_schema`.

use super::{Snapshot, acl, rows::row, snapshot::RelationOf};
use crate::{functions::Context, types::Value};

fn yes(is_so: bool) -> &'static str {
    if is_so { "YES" } else { "NO" }
}

/// Makes the rows of `table_privileges`; those of `column_privileges` follow from them.
pub(super) fn of_tables(snapshot: &Snapshot, context: &Context) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for relation in &snapshot.relations {
        if !matches!(relation.of, RelationOf::Table(_) | RelationOf::View(_)) {
            continue;
        }
        let schema = snapshot.schema_name(relation.schema).unwrap_or_default();
        let mut add = |by: &str, role: &str, word: &str, can_grant: bool| {
            let (database, name) = (&context.database, &relation.name);
            rows.push(row![by, role, database, schema, name, word, yes(can_grant), yes(word == "SELECT")]);
        };
        let owner = relation.owner().unwrap_or_default();
        acl::OF_TABLES.iter().for_each(|word| add(owner, owner, word, true));
        for grant in relation.grants() {
            if let Some(word) = acl::word(grant.privilege) {
                add(&grant.by, grant.role.as_deref().unwrap_or("PUBLIC"), word, grant.can_grant);
            }
        }
    }
    rows
}
