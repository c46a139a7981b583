//! GRANT and REVOKE of rights to relations and schemas.

use sqlparser::ast;

use super::Definer;
use crate::{
    bind::select::refuse,
    catalog::{
        Entry, Grant, PUBLIC, Privilege, Relation, Schema, SessionPlace, Table, View, undefined,
        undefined_schema,
    },
    error::{Result, SqlError, fail},
    parse::{folded, relation, simple},
    sequences::Sequence,
};

/// The rights that a kind of objects has.
const TABLE: &[Privilege] = &[
    Privilege::Select,
    Privilege::Insert,
    Privilege::Update,
    Privilege::Delete,
    Privilege::Truncate,
    Privilege::References,
    Privilege::Trigger,
];
const SEQUENCE: &[Privilege] = &[Privilege::Usage, Privilege::Select, Privilege::Update];
const SCHEMA: &[Privilege] = &[Privilege::Usage, Privilege::Create];

/// A change of rights.
struct Change {
    /// The rights; `None`: all of the object.
    privileges: Option<Vec<Privilege>>,
    /// The roles; `None`: all.
    roles: Vec<Option<String>>,
    can_grant: bool,
    is_grant: bool,
    /// Only the right to give rights is taken back.
    is_option: bool,
    /// Rights that others gave with one that is taken back go, too.
    cascades: bool,
}

fn privilege(action: &ast::Action) -> Result<Privilege> {
    use ast::Action as A;
    Ok(match action {
        A::Select { columns: None } => Privilege::Select,
        A::Insert { columns: None } => Privilege::Insert,
        A::Update { columns: None } => Privilege::Update,
        A::References { columns: None } => Privilege::References,
        A::Delete => Privilege::Delete,
        A::Truncate => Privilege::Truncate,
        A::Trigger => Privilege::Trigger,
        A::Usage => Privilege::Usage,
        A::Create { obj_type: None } => Privilege::Create,
        A::Connect => Privilege::Connect,
        A::Temporary => Privilege::Temporary,
        other => return Err(SqlError::unsupported(format!("the right {other}"))),
    })
}

impl Change {
    fn of(
        privileges: &ast::Privileges,
        grantees: &[ast::Grantee],
        by: &str,
        can_grant: bool,
        is_grant: bool,
    ) -> Result<Self> {
        let privileges = match privileges {
            ast::Privileges::All { .. } => None,
            ast::Privileges::Actions(actions) => {
                Some(actions.iter().map(privilege).collect::<Result<Vec<_>>>()?)
            }
        };
        let role = |grantee: &ast::Grantee| match (&grantee.grantee_type, &grantee.name) {
            (ast::GranteesType::Public, _) => Ok(None),
            (
                ast::GranteesType::None | ast::GranteesType::Group,
                Some(ast::GranteeName::ObjectName(name)),
            ) => {
                let is_quoted = name
                    .0
                    .iter()
                    .any(|part| part.as_ident().is_some_and(|ident| ident.quote_style.is_some()));
                match simple(name)?.as_str() {
                    "public" if !is_quoted => Ok(None),
                    "current_user" | "current_role" | "session_user" if !is_quoted => Ok(Some(by.to_owned())),
                    name => Ok(Some(name.to_owned())),
                }
            }
            _ => Err(SqlError::unsupported(format!("the role {grantee}"))),
        };
        let roles = grantees.iter().map(role).collect::<Result<Vec<_>>>()?;
        Ok(Self { privileges, roles, can_grant, is_grant, is_option: false, cascades: false })
    }

    /// Changes the rights to an object with an owner, a kind and a name, of which these are
    /// possible. Another role gives those that it got; a session with the rights of the owner acts
    /// as the owner.
    fn apply(
        &self,
        grants: &mut Vec<Grant>,
        place: &SessionPlace,
        (owner, kind, name): (&str, &str, &str),
        possible: &[Privilege],
    ) -> Result<()> {
        let privileges = self.privileges.as_deref().unwrap_or(possible);
        let may = |privilege: &Privilege| {
            let is_given = |grant: &Grant| {
                grant.can_grant && grant.privilege == *privilege && grant.role.as_ref() == Some(&place.role)
            };
            grants.iter().any(is_given)
        };
        let giver: &str = match place.is(owner) {
            true => owner,
            false if privileges.iter().all(may) => &place.role,
            false => fail!(INSUFFICIENT_PRIVILEGE, "permission denied for {kind} {name}"),
        };
        for privilege in privileges {
            if !possible.contains(privilege) {
                let name = format!("{privilege:?}").to_uppercase();
                let kind = if possible == TABLE { "relation" } else { kind };
                fail!("0LP01", "invalid privilege type {name} for {kind}");
            }
            for role in &self.roles {
                let is_it =
                    |grant: &Grant| grant.privilege == *privilege && grant.role == *role && grant.by == giver;
                match (self.is_grant, grants.iter_mut().find(|grant| is_it(grant))) {
                    (true, Some(known)) => known.can_grant |= self.can_grant,
                    (true, None) => grants.push(Grant {
                        role: role.clone(),
                        privilege: *privilege,
                        can_grant: self.can_grant,
                        by: giver.to_owned(),
                    }),
                    (false, Some(known)) if self.is_option => known.can_grant = false,
                    (false, _) => grants.retain(|grant| !is_it(grant)),
                }
            }
        }
        // Rights that were given with one that is gone.
        loop {
            let may_give = |given: &Grant| {
                let is_source = |grant: &Grant| {
                    grant.can_grant
                        && grant.privilege == given.privilege
                        && grant.role.as_ref() == Some(&given.by)
                };
                given.by == owner || grants.iter().any(is_source)
            };
            let kept: Vec<Grant> = grants.iter().filter(|given| may_give(given)).cloned().collect();
            if kept.len() == grants.len() {
                return Ok(());
            }
            if !self.cascades {
                let error = SqlError::new("2BP01", "dependent privileges exist");
                return Err(error.with_hint("Use CASCADE to revoke them too."));
            }
            *grants = kept;
        }
    }
}

/// Gives an object another owner, who has given what the one before gave.
pub(super) fn change_owner(owner: &mut String, grants: &mut [Grant], new: &str) {
    for grant in grants.iter_mut().filter(|grant| grant.by == *owner) {
        grant.by = new.to_owned();
    }
    *owner = new.to_owned();
}

/// Runs GRANT for the role of the session.
pub(crate) async fn grant(define: &mut Definer<'_, '_>, grant: &ast::Grant) -> Result<()> {
    let is_plain = grant.as_grantor.is_none() && grant.granted_by.is_none() && grant.current_grants.is_none();
    refuse(!is_plain, "this form of GRANT")?;
    let by = define.catalog.place().role.clone();
    let change = Change::of(&grant.privileges, &grant.grantees, &by, grant.with_grant_option, true)?;
    define.change_rights(change, grant.objects.as_ref()).await
}

/// Runs REVOKE for the role of the session.
pub(crate) async fn revoke(define: &mut Definer<'_, '_>, revoke: &ast::Revoke) -> Result<()> {
    refuse(revoke.granted_by.is_some(), "this form of REVOKE")?;
    let by = define.catalog.place().role.clone();
    let mut change = Change::of(&revoke.privileges, &revoke.grantees, &by, false, false)?;
    change.is_option = revoke.grant_option_for;
    change.cascades = revoke.cascade == Some(ast::CascadeOption::Cascade);
    define.change_rights(change, revoke.objects.as_ref()).await
}

/// Returns the names of the tables of GRANT and REVOKE, for their locks.
pub(crate) fn granted(objects: Option<&ast::GrantObjects>) -> Result<Vec<String>> {
    match objects {
        Some(ast::GrantObjects::Tables(names)) => names.iter().map(relation).collect(),
        _ => Ok(Vec::new()),
    }
}

impl Definer<'_, '_> {
    async fn change_rights(&mut self, change: Change, objects: Option<&ast::GrantObjects>) -> Result<()> {
        use ast::GrantObjects as O;
        match objects {
            Some(O::Tables(names)) | Some(O::Views(names)) | Some(O::Sequences(names)) => {
                let is_sequence = matches!(objects, Some(O::Sequences(_)));
                for name in names {
                    self.relation_rights(&change, &relation(name)?, is_sequence).await?;
                }
                Ok(())
            }
            Some(O::AllTablesInSchema { schemas } | O::AllSequencesInSchema { schemas }) => {
                let is_sequence = matches!(objects, Some(O::AllSequencesInSchema { .. }));
                let all = self.catalog.relations(self.run.by).await?;
                let tables = all.tables.iter().map(Table::relation);
                let relations: Vec<_> = match is_sequence {
                    true => all.sequences.iter().map(Sequence::relation).collect(),
                    false => tables.chain(all.views.iter().map(View::relation)).collect(),
                };
                for schema in schemas {
                    let schema = simple(schema)?;
                    for name in relations.iter().filter(|name| name.schema == schema) {
                        self.relation_rights(&change, &name.qualified(), is_sequence).await?;
                    }
                }
                Ok(())
            }
            Some(O::Schemas(names)) => {
                for name in names {
                    let name = simple(name)?;
                    refuse(name == PUBLIC, "GRANT and REVOKE on schema public")?;
                    let schema = self.catalog.schema(self.run.by, &name).await?;
                    let mut schema = schema.ok_or_else(|| undefined_schema(&name))?;
                    let Schema { owner, grants, .. } = &mut schema;
                    change.apply(grants, self.catalog.place(), (&*owner, "schema", &name), SCHEMA)?;
                    self.catalog.change_schema(self.run.by, &name, Some(&schema)).await?;
                }
                Ok(())
            }
            Some(other) => Err(SqlError::unsupported(format!("GRANT and REVOKE on {other}"))),
            None => Err(SqlError::unsupported("GRANT and REVOKE of roles")),
        }
    }

    async fn relation_rights(&mut self, change: &Change, name: &str, is_sequence: bool) -> Result<()> {
        let found = self.catalog.relation(self.run.by, name).await?;
        let (place, found) = found.ok_or_else(|| undefined(name))?;
        let session = self.catalog.place();
        let entry = match found {
            Relation::Table(table) if !is_sequence => {
                let mut new = (*table).clone();
                change.apply(&mut new.grants, session, (&table.owner, "table", &table.name), TABLE)?;
                return self.change(Some(&table), Some(&new)).await;
            }
            Relation::View(view) if !is_sequence => {
                let mut new = (*view).clone();
                change.apply(&mut new.grants, session, (&view.owner, "view", &view.name), TABLE)?;
                Entry::View(new)
            }
            Relation::Sequence(sequence) => {
                let mut new = (*sequence).clone();
                let object = (&*sequence.owner, "sequence", &*sequence.name);
                change.apply(&mut new.grants, session, object, SEQUENCE)?;
                Entry::Sequence(new)
            }
            _ => {
                let kind = if is_sequence { "a sequence" } else { "a table" };
                fail!(WRONG_OBJECT_TYPE, "\"{}\" is not {kind}", place.name);
            }
        };
        self.catalog.change_entry(self.run.by, &place, Some(&entry)).await
    }
}

/// Returns the roles that a change of rights names.
pub(crate) fn grantees(grantees: &[ast::Grantee]) -> Vec<String> {
    let name = |grantee: &ast::Grantee| match &grantee.name {
        Some(ast::GranteeName::ObjectName(name)) => name.0.last()?.as_ident().map(folded),
        _ => None,
    };
    let names = grantees.iter().filter_map(name);
    names
        .filter(|name| !matches!(name.as_str(), "public" | "current_user" | "current_role" | "session_user"))
        .collect()
}
