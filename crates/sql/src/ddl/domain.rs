//! CREATE and ALTER DOMAIN.

use sqlparser::{ast, keywords::Keyword, tokenizer::Token};

use super::{
    Definer,
    alter::tokens,
    constraint::{NewConstraint, unnested},
    sequence::numbered,
};
use crate::{
    bind::{Parameters, Scope, coerce, select::refuse},
    error::{Result, SqlError, code, fail},
    expr::Expr,
    parse::{NOT_NULL, expression, folded, relation},
    types::{
        Type, Value,
        named::{Domain, NamedType},
    },
};

/// Runs CREATE DOMAIN.
pub(crate) async fn create_domain(define: &mut Definer<'_, '_>, create: &ast::CreateDomain) -> Result<()> {
    let of = define.type_of(&create.data_type).await?;
    refuse(of.named().is_some(), "a domain over a type that a statement has made")?;
    let not_null = match &create.collation {
        None => false,
        Some(collation) if collation.value == NOT_NULL => true,
        Some(_) => return Err(SqlError::unsupported("COLLATE of a domain")),
    };
    let mut domain = Domain { of, not_null, default: None, checks: Vec::new() };
    set_default(&mut domain, create.default.as_ref())?;
    let name = relation(&create.name)?;
    for constraint in &create.constraints {
        add_check(&mut domain, name.rsplit('\0').next().unwrap_or_default(), NewConstraint::of(constraint)?)?;
    }
    let make = |oid, array, name: &_| NamedType::new(oid, array, name, Vec::new(), Some(domain));
    check_conditions(define.add_type(&create.name, make).await?)
}

/// Checks that the conditions are of the type of the values.
fn check_conditions(of: Type) -> Result<()> {
    coerce((Expr::Value(Value::Null), Type::Unknown), of, &Parameters::default(), false).map(drop)
}

fn set_default(domain: &mut Domain, default: Option<&ast::Expr>) -> Result<()> {
    domain.default = default.map(ToString::to_string);
    if let Some(default) = default {
        let none = Parameters::default();
        coerce(Scope::new(&[], &none).bind(default)?, domain.of, &none, false)?;
        refuse(!none.sequences.borrow().is_empty(), "a sequence in the default of a domain")?;
    }
    Ok(())
}

/// Adds a check; `name` is that of the domain.
fn add_check(domain: &mut Domain, name: &str, check: NewConstraint) -> Result<()> {
    let NewConstraint::Check { name: given, condition } = check else {
        return Err(SqlError::unsupported("a constraint of a domain other than CHECK"));
    };
    let is_known = |name: &String| domain.checks.iter().any(|(known, _)| known == name);
    if let Some(given) = given.as_ref().filter(|given| is_known(given)) {
        fail!(DUPLICATE_OBJECT, "constraint \"{given}\" for domain \"{name}\" already exists");
    }
    let name = given.or_else(|| numbered(&[name], "check").find(|name| !is_known(name))).unwrap_or_default();
    // The word for the value is shown in capitals.
    let shown = |token: Token| match &token {
        Token::Word(word) if word.keyword == Keyword::VALUE => "VALUE".to_owned(),
        token => token.to_string(),
    };
    let text: String =
        tokens(&unnested(&condition).to_string()).unwrap_or_default().into_iter().map(shown).collect();
    expression(&text)?;
    domain.checks.push((name, text));
    // They are checked in the order of their names.
    domain.checks.sort();
    Ok(())
}

impl Definer<'_, '_> {
    /// Runs ALTER DOMAIN, which comes as ALTER TABLE of a table with the column `value`.
    pub(super) async fn alter_domain(
        &mut self,
        name: &ast::ObjectName,
        operations: &[ast::AlterTableOperation],
    ) -> Result<()> {
        use ast::{AlterColumnOperation as C, AlterTableOperation as O};
        let unsupported =
            |what: &dyn ToString| SqlError::unsupported(format!("ALTER DOMAIN {}", what.to_string()));
        let (entry, of) = self.owned_type(name).await?;
        let Some(domain) = &of.domain else {
            return Err(SqlError::new(code::WRONG_OBJECT_TYPE, format!("\"{}\" is not a domain", of.name)));
        };
        let [operation] = operations else { return Err(unsupported(&"with several changes")) };
        let mut new = domain.clone();
        let mut is_stricter = false;
        match operation {
            O::RenameTable { table_name: ast::RenameTableNameKind::To(name) } => {
                let name = relation(name)?;
                refuse(name.contains('\0'), "RENAME to a name with a schema")?;
                return self.rename_type(&entry, of, name).await;
            }
            O::AlterColumn { op: C::SetDefault { value }, .. } => set_default(&mut new, Some(value))?,
            O::AlterColumn { op: C::DropDefault, .. } => new.default = None,
            O::AlterColumn { op: C::SetNotNull, .. } => (new.not_null, is_stricter) = (true, true),
            O::AlterColumn { op: C::DropNotNull, .. } => new.not_null = false,
            O::AddConstraint { constraint, not_valid: false } => {
                add_check(&mut new, &of.name, NewConstraint::of(constraint)?)?;
                is_stricter = true;
            }
            O::DropConstraint { if_exists, name, .. } => {
                let name = folded(name);
                new.checks.retain(|(known, _)| *known != name);
                if new.checks.len() == domain.checks.len() {
                    let message = format!("constraint \"{name}\" of domain \"{}\" does not exist", of.name);
                    self.skip(*if_exists, SqlError::new(code::UNDEFINED_OBJECT, message))?;
                }
            }
            other => return Err(unsupported(other)),
        }
        let new = of.version(&of.relation(), Vec::new(), Some(new)).made()?;
        check_conditions(new.of())?;
        if is_stricter {
            self.check_domain(new).await?;
        }
        self.change_type(&entry, of, new).await
    }

    /// Checks all values of a domain in tables.
    async fn check_domain(&mut self, of: &'static NamedType) -> Result<()> {
        let tables = self.catalog.tables(self.run.by).await?;
        for table in tables.iter().filter(|table| table.uses(of)) {
            let columns =
                table.columns.iter().enumerate().filter(|(_, column)| column.of.named() == Some(of));
            let checked = columns.map(|(at, column)| {
                let value = (Expr::Column(at), column.of);
                coerce(value, of.of(), &Parameters::default(), false)
            });
            let checked = checked.collect::<Result<Vec<_>>>()?;
            self.each_row(table, &checked).await?;
        }
        Ok(())
    }
}
