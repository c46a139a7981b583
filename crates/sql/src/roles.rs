//! Roles and databases: rows of the catalog, and the statements that make and change them.
//!
//! Each cluster begins with one role, a superuser, and two databases: `postgres` and the one with
//! the name of that role. A role uses what it has made and what it has been given a right to, a
//! superuser everything.

use serde::{Deserialize, Serialize};
use sqlparser::ast;

use crate::{
    bind::select::refuse,
    catalog::{Catalog, Relations, SessionPlace, Transaction, View},
    error::{Result, SqlError, code, error, fail},
    exec::Run,
    parse::folded,
    sequences::Sequence,
    types::named::NamedType,
    wire::scram::Verifier,
};

/// The kinds of the catalog's rows.
pub(crate) const ROLE: u8 = b'u';
pub(crate) const DATABASE: u8 = b'd';

/// A role as the catalog has it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    pub(crate) can_login: bool,
    pub(crate) is_superuser: bool,
    pub(crate) creates_databases: bool,
    pub(crate) creates_roles: bool,
    /// What is kept of its password.
    pub(crate) verifier: Option<String>,
    /// The most sessions that it has on each node.
    pub(crate) most_sessions: Option<u32>,
}

impl Role {
    /// Returns the role with which a cluster begins, until a statement changes it.
    pub(crate) fn first(verifier: Option<String>) -> Self {
        let most_sessions = None;
        let (is_superuser, creates_databases, creates_roles) = (true, true, true);
        Self { can_login: true, is_superuser, creates_databases, creates_roles, verifier, most_sessions }
    }
}

/// The role with which a cluster begins; a database has its name, too.
#[derive(Clone)]
pub(crate) struct FirstRole {
    pub(crate) role: String,
    pub(crate) verifier: Option<String>,
}

impl FirstRole {
    /// Returns a role.
    pub(crate) async fn role(&self, by: &mut Transaction, name: &str) -> Result<Option<Role>> {
        let found = Catalog::read(by, ROLE, name).await?;
        Ok(found.or_else(|| (name == self.role).then(|| Role::first(self.verifier.clone()))))
    }

    /// Returns the number of a database.
    pub(crate) async fn database(&self, by: &mut Transaction, name: &str) -> Result<Option<u32>> {
        match name {
            "postgres" => Ok(Some(0)),
            name if name == self.role => Ok(Some(1)),
            name => Catalog::read(by, DATABASE, name).await,
        }
    }
}

fn undefined(name: &str) -> SqlError {
    error!(UNDEFINED_OBJECT, "role \"{name}\" does not exist")
}

fn no_privilege(to: &str) -> SqlError {
    error!(INSUFFICIENT_PRIVILEGE, "permission denied to {to}")
}

/// Returns the one part of a name that has no schema.
fn simple(name: &ast::ObjectName) -> Result<String> {
    match &name.0[..] {
        [part] => part.as_ident().map(folded),
        _ => None,
    }
    .ok_or_else(|| error!(SYNTAX_ERROR, "syntax error at or near \"{name}\""))
}

/// Returns what is kept of the password that a statement gives.
fn verifier(password: &ast::Password) -> Result<Option<String>> {
    let ast::Password::Password(expr) = password else { return Ok(None) };
    let text = match expr {
        ast::Expr::Value(value) => value.value.clone().into_string(),
        _ => None,
    };
    let text = text.ok_or_else(|| SqlError::new(code::SYNTAX_ERROR, "a password is a string"))?;
    if text.is_empty() {
        return Ok(None);
    }
    refuse(text.starts_with("md5") && text.len() == 35, "an MD5 password")?;
    Ok(Some(match Verifier::parse(&text) {
        Some(verifier) => verifier.text(),
        None => Verifier::of(&text)?.text(),
    }))
}

/// Returns the sessions of a CONNECTION LIMIT; -1 is no limit.
fn most_sessions(limit: &ast::Expr) -> Result<Option<u32>> {
    match limit.to_string().parse::<i32>() {
        Ok(-1) => Ok(None),
        Ok(limit @ 0..) => Ok(Some(limit as u32)),
        Ok(limit) => Err(error!(INVALID_PARAMETER_VALUE, "invalid connection limit: {limit}")),
        Err(_) => Err(error!(SYNTAX_ERROR, "syntax error at or near \"{limit}\"")),
    }
}

/// Statements about roles and databases.
pub(crate) struct Roles<'a, 'r> {
    pub(crate) run: &'a mut Run<'r>,
    pub(crate) place: &'a SessionPlace,
    pub(crate) first: &'a FirstRole,
}

impl Roles<'_, '_> {
    async fn role(&mut self, name: &str) -> Result<Option<Role>> {
        self.first.role(self.run.by, name).await
    }

    async fn own(&mut self) -> Result<Role> {
        let name = self.place.role.clone();
        Ok(self.role(&name).await?.unwrap_or_default())
    }

    async fn write(&mut self, name: &str, role: Option<&Role>) -> Result<()> {
        Catalog::write(self.run.by, ROLE, name, role).await
    }

    /// Checks that roles exist.
    pub(crate) async fn check_all(&mut self, names: &[String]) -> Result<()> {
        for name in names {
            self.role(name).await?.ok_or_else(|| undefined(name))?;
        }
        Ok(())
    }

    /// Runs CREATE ROLE.
    pub(crate) async fn create(&mut self, create: &ast::CreateRole) -> Result<()> {
        let own = self.own().await?;
        if !own.creates_roles && !own.is_superuser {
            return Err(no_privilege("create role"));
        }
        let is_plain = !create.if_not_exists
            && create.inherit != Some(false)
            && create.bypassrls != Some(true)
            && create.replication != Some(true)
            && create.valid_until.is_none()
            && [&create.in_role, &create.in_group, &create.role, &create.user, &create.admin]
                .iter()
                .all(|members| members.is_empty())
            && create.authorization_owner.is_none();
        refuse(!is_plain, "this form of CREATE ROLE")?;
        let role = Role {
            can_login: create.login == Some(true),
            is_superuser: create.superuser == Some(true),
            creates_databases: create.create_db == Some(true),
            creates_roles: create.create_role == Some(true),
            verifier: create.password.as_ref().map_or(Ok(None), verifier)?,
            most_sessions: create.connection_limit.as_ref().map_or(Ok(None), most_sessions)?,
        };
        if role.is_superuser && !own.is_superuser {
            return Err(no_privilege("create superusers"));
        }
        let [name] = &create.names[..] else { return Err(SqlError::unsupported("CREATE ROLE of several")) };
        let name = simple(name)?;
        if name.starts_with("pg_") || name == "public" {
            fail!("42939", "role name \"{name}\" is reserved");
        }
        if self.role(&name).await?.is_some() {
            fail!(DUPLICATE_OBJECT, "role \"{name}\" already exists");
        }
        self.write(&name, Some(&role)).await
    }

    /// Runs ALTER ROLE.
    pub(crate) async fn alter(
        &mut self,
        name: &ast::Ident,
        operation: &ast::AlterRoleOperation,
    ) -> Result<()> {
        let ast::AlterRoleOperation::WithOptions { options } = operation else {
            return Err(SqlError::unsupported("this form of ALTER ROLE"));
        };
        let own = self.own().await?;
        let is_own = name.quote_style.is_none() && name.value.eq_ignore_ascii_case("current_user");
        let name = if is_own { self.place.role.clone() } else { folded(name) };
        let mut role = self.role(&name).await?.ok_or_else(|| undefined(&name))?;
        let is_own_password = name == self.place.role
            && options.iter().all(|option| matches!(option, ast::RoleOption::Password(_)));
        let may = own.is_superuser || (own.creates_roles && !role.is_superuser) || is_own_password;
        if !may {
            return Err(SqlError::new(code::INSUFFICIENT_PRIVILEGE, "permission denied"));
        }
        for option in options {
            match option {
                ast::RoleOption::Login(is_on) => role.can_login = *is_on,
                ast::RoleOption::SuperUser(is_on) if own.is_superuser => role.is_superuser = *is_on,
                ast::RoleOption::SuperUser(_) => return Err(no_privilege("alter superusers")),
                ast::RoleOption::CreateDB(is_on) => role.creates_databases = *is_on,
                ast::RoleOption::CreateRole(is_on) => role.creates_roles = *is_on,
                ast::RoleOption::Password(password) => role.verifier = verifier(password)?,
                ast::RoleOption::ConnectionLimit(limit) => role.most_sessions = most_sessions(limit)?,
                ast::RoleOption::Inherit(true)
                | ast::RoleOption::BypassRLS(false)
                | ast::RoleOption::Replication(false) => {}
                other => return Err(SqlError::unsupported(format!("ALTER ROLE with {other}"))),
            }
        }
        let is_first = name == self.first.role;
        refuse(is_first && !(role.is_superuser && role.can_login), "taking rights from the first role")?;
        self.write(&name, Some(&role)).await
    }

    /// Runs DROP ROLE. Returns notices about what was not there.
    pub(crate) async fn drop_all(
        &mut self,
        names: &[ast::ObjectName],
        if_exists: bool,
    ) -> Result<Vec<String>> {
        let own = self.own().await?;
        let mut notices = Vec::new();
        for name in names {
            let name = simple(name)?;
            let Some(role) = self.role(&name).await? else {
                match if_exists {
                    true => notices.push(format!("role \"{name}\" does not exist, skipping")),
                    false => return Err(undefined(&name)),
                }
                continue;
            };
            if !own.is_superuser && (!own.creates_roles || role.is_superuser) {
                return Err(no_privilege("drop role"));
            }
            if name == self.place.role {
                return Err(SqlError::new(code::OBJECT_IN_USE, "current user cannot be dropped"));
            }
            refuse(name == self.first.role, "DROP ROLE of the first role")?;
            if Catalog::owns(self.run.by, &name).await? {
                fail!(
                    DEPENDENT_OBJECTS,
                    "role \"{name}\" cannot be dropped because some objects depend on it"
                );
            }
            self.write(&name, None).await?;
        }
        Ok(notices)
    }

    /// Returns the name of a database that a statement drops, and its number if there is one.
    pub(crate) async fn database_to_drop(&mut self, name: &ast::ObjectName) -> Result<(String, Option<u32>)> {
        let name = simple(name)?;
        let number = self.first.database(self.run.by, &name).await?;
        let Some(number) = number else { return Ok((name, None)) };
        if !self.own().await?.is_superuser {
            fail!(INSUFFICIENT_PRIVILEGE, "must be owner of database {name}");
        }
        if number == self.place.database {
            return Err(SqlError::new(code::OBJECT_IN_USE, "cannot drop the currently open database"));
        }
        refuse(number < 2, "DROP DATABASE of a database with which the cluster began")?;
        Ok((name, Some(number)))
    }

    /// Removes a database with all that is in it. No session uses it.
    pub(crate) async fn drop_database(&mut self, name: &str) -> Result<()> {
        let by = &mut *self.run.by;
        let Some(database) = self.first.database(by, name).await? else { return Ok(()) };
        let mut catalog = Catalog::new(SessionPlace { database, ..self.place.clone() });
        let Relations { tables, views, sequences, types } = catalog.relations(by).await?;
        for table in &tables {
            catalog.change(by, Some(table), None).await?;
        }
        let views = views.iter().map(View::relation);
        let types = types.iter().filter_map(|of| of.of.named()).map(NamedType::relation);
        for relation in views.chain(sequences.iter().map(Sequence::relation)).chain(types) {
            catalog.change_entry(by, &relation, None).await?;
        }
        for schema in catalog.schemas(by).await? {
            catalog.change_schema(by, &schema.name, None).await?;
        }
        Catalog::write::<u32>(by, DATABASE, name, None).await
    }

    /// Runs CREATE DATABASE.
    pub(crate) async fn create_database(&mut self, name: &ast::ObjectName) -> Result<()> {
        let own = self.own().await?;
        if !own.is_superuser && !own.creates_databases {
            return Err(no_privilege("create database"));
        }
        let name = simple(name)?;
        if self.first.database(self.run.by, &name).await?.is_some() {
            fail!(DUPLICATE_DATABASE, "database \"{name}\" already exists");
        }
        // 0 and 1 are those of the beginning.
        let number = self.run.by.store().fresh_id().await?.wrapping_add(2);
        let number = u32::try_from(number).map_err(|_| SqlError::unsupported("so many databases"))?;
        Catalog::write(self.run.by, DATABASE, &name, Some(&number)).await
    }
}
