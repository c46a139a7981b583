//! The relations of `pg_catalog` and `information_schema`: their names, numbers and columns from
//! `relations.txt`, the rows of those that never change from `fixed.txt`, the queries of views from
//! `views.sql` and `information_schema.sql`.

use std::{collections::HashMap, fmt, sync::LazyLock};

use sqlparser::{ast, dialect::PostgreSqlDialect, parser::Parser};

use super::{
    Snapshot, classes, cluster, comments, constraints, describe::format_type, privileges, procedures, types,
};
use crate::{
    functions::Context,
    types::{Type, Value, text},
};

/// The number of the schema `pg_catalog`.
pub(crate) const PG_CATALOG: u32 = 11;
/// The number of the schema `information_schema`.
pub(crate) const INFORMATION_SCHEMA: u32 = 13207;

type Columns = Vec<(&'static str, Type)>;
type Rows = fn(&Snapshot, &Context) -> Vec<Vec<Value>>;

/// The name, number and columns of a relation.
pub(crate) struct SystemTable {
    pub(crate) schema: &'static str,
    pub(crate) name: &'static str,
    pub(crate) oid: u32,
    pub(crate) columns: Columns,
    /// The values of the columns that are the same in all rows.
    constants: Vec<Option<Value>>,
    /// Makes the other values of the rows, unless these never change.
    make: Option<Rows>,
    /// The columns that are never NULL.
    pub(crate) required: Vec<bool>,
    /// `r` and `v` as in `pg_class`, `s` for a table of all databases.
    kind: char,
}

impl fmt::Debug for SystemTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl SystemTable {
    /// Returns the rows at a snapshot.
    pub(crate) fn rows(&self, snapshot: &Snapshot, context: &Context) -> Vec<Vec<Value>> {
        match self.make {
            Some(make) => make(snapshot, context).into_iter().map(|row| self.completed(row)).collect(),
            None if self.schema == "pg_catalog" => fixed(self.name).to_vec(),
            None => Vec::new(),
        }
    }

    /// Puts the constants at their places in a row.
    fn completed(&self, row: Vec<Value>) -> Vec<Value> {
        let mut others = row.into_iter();
        let whole = self.constants.iter().map(|constant| constant.clone().or_else(|| others.next()));
        let mut whole: Vec<Value> = whole.map_while(|value| value).collect();
        whole.extend(others);
        whole
    }

    /// Returns the number of its schema.
    pub(crate) fn schema_oid(&self) -> u32 {
        if self.schema == "pg_catalog" { PG_CATALOG } else { INFORMATION_SCHEMA }
    }

    /// Returns whether it is the same in all databases.
    pub(crate) fn is_shared(&self) -> bool {
        self.kind == 's'
    }

    /// Returns its kind as in `pg_class`: PostgreSQL's one, also where this one has rows of its
    /// own.
    pub(crate) fn kind(&self) -> char {
        if self.kind == 'v' { 'v' } else { 'r' }
    }
}

/// A query under a name.
#[derive(Debug)]
pub(crate) struct SystemView {
    pub(crate) schema: &'static str,
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

/// The rows of tables that are neither fixed nor always empty.
static ROWS: &[(&str, Rows)] = &[
    ("pg_attrdef", classes::defaults),
    ("pg_attribute", classes::attributes),
    ("pg_authid", cluster::roles),
    ("pg_class", classes::classes),
    ("pg_constraint", constraints::constraints),
    ("pg_database", cluster::databases),
    ("pg_depend", constraints::dependencies),
    ("pg_description", comments::descriptions),
    ("pg_enum", types::labels),
    ("pg_index", classes::indexes),
    ("pg_namespace", cluster::schemas),
    ("pg_proc", procedures::procedures),
    ("pg_rewrite", classes::rules),
    ("pg_sequence", classes::sequences),
    ("pg_settings", cluster::settings),
    ("pg_stat_activity", cluster::activity),
    ("pg_stat_statements", cluster::statements),
    ("pg_timezone_abbrevs", cluster::abbreviations),
    ("pg_timezone_names", cluster::zones),
    ("pg_type", types::types),
    ("table_privileges", privileges::of_tables),
];

/// The names of relations, and their places among all of them.
struct Relations {
    all: Vec<SystemTable>,
    by_name: HashMap<(&'static str, &'static str), usize>,
    views: Vec<SystemView>,
}

static RELATIONS: LazyLock<Relations> = LazyLock::new(|| {
    let all = parse(include_str!("relations.txt"));
    let by_name = all.iter().enumerate().map(|(at, one)| ((one.schema, one.name), at)).collect();
    let texts = [
        ("pg_catalog", include_str!("views.sql")),
        ("information_schema", include_str!("information_schema.sql")),
    ];
    let views = texts.iter().flat_map(|(schema, text)| parse_views(schema, text, &all)).collect();
    Relations { all, by_name, views }
});

/// The rows of tables that never change.
static FIXED: LazyLock<HashMap<&'static str, Vec<Vec<Value>>>> = LazyLock::new(|| {
    let mut tables: HashMap<_, Vec<_>> = HashMap::new();
    let mut table = None;
    for line in include_str!("fixed.txt").lines() {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => table = find("pg_catalog", name),
            None => {
                let Some(table) = table else { continue };
                let cells = line.split('|').zip(&table.columns).map(|(text, (_, of))| value(text, *of));
                tables.entry(table.name).or_default().push(cells.collect());
            }
        }
    }
    tables
});

/// Returns the rows of a table of `pg_catalog` that are always the same.
pub(super) fn fixed(table: &str) -> &'static [Vec<Value>] {
    FIXED.get(table).map_or(&[], Vec::as_slice)
}

/// Reads a value of `fixed.txt` or `relations.txt`.
fn value(text: &str, of: Type) -> Value {
    match of {
        _ if text.is_empty() => Value::Null,
        of if of.is_reg() => text.parse().map_or(Value::Null, Value::Int),
        of => text::parse(text, of).unwrap_or(Value::Null),
    }
}

/// Returns the type with a name of `relations.txt`. Those that are only in catalogs are text here.
pub(crate) fn type_named(name: &str) -> Type {
    let fixed = match name {
        "char" => Type::OneByte,
        "varchar" => Type::Varchar(None),
        "xid" => Type::Oid,
        name => super::types::find(name).and_then(Type::of_oid).unwrap_or(Type::Text),
    };
    match name.strip_prefix('_') {
        Some(element) => type_named(element).array().unwrap_or(Type::Text),
        None => fixed,
    }
}

/// Reads `relations.txt`: a line for each relation, then its columns in lines with a margin. Behind
/// the type of a column is `!` if it is never NULL, and `=` with its value if all rows have it.
fn parse(text: &'static str) -> Vec<SystemTable> {
    let mut all: Vec<SystemTable> = Vec::new();
    for line in text.lines() {
        if let Some(columns) = line.strip_prefix("  ") {
            let Some(table) = all.last_mut() else { continue };
            for (name, declared) in columns.split(' ').filter_map(|column| column.split_once(':')) {
                let (of, constant) =
                    declared.split_once('=').map_or((declared, None), |(of, text)| (of, Some(text)));
                let is_required = of.ends_with('!');
                let of = type_named(of.trim_end_matches('!'));
                table.columns.push((name, of));
                table.required.push(is_required);
                table.constants.push(constant.map(|text| value(text, of)));
            }
            continue;
        }
        let mut words = line.split(' ');
        let (schema, name) = words.next().and_then(|name| name.split_once('.')).unwrap_or_default();
        let oid = words.next().and_then(|oid| oid.parse().ok()).unwrap_or_default();
        let kind = words.next().and_then(|kind| kind.chars().next()).unwrap_or('r');
        let make = ROWS.iter().find(|(known, _)| *known == name);
        let make = make.map(|(_, make)| *make);
        let (columns, constants, required) = (Vec::new(), Vec::new(), Vec::new());
        all.push(SystemTable { schema, name, oid, columns, constants, make, required, kind });
    }
    all
}

/// Reads the queries of views: each follows a line with its name and a colon.
fn parse_views(schema: &'static str, text: &'static str, all: &[SystemTable]) -> Vec<SystemView> {
    let chunks = text.split("\n-- ").skip(1).filter_map(|chunk| chunk.split_once(":\n"));
    let view = |(name, query): (&'static str, &'static str)| {
        let known = all.iter().find(|one| one.schema == schema && one.name == name)?;
        Some(SystemView { schema, name, text: view_text(known, query.trim_end()) })
    };
    chunks.filter_map(view).collect()
}

/// Returns the query of a view with all of its columns: NULL are those that `query` does not have.
fn view_text(view: &SystemTable, query: &str) -> String {
    let has = names_of(query);
    let columns = view.columns.iter().map(|(name, of)| {
        let of = format_type(of.oid(), None);
        let value = if has.iter().any(|known| known == name) { name } else { "null" };
        format!("{value}::{of} as {name}")
    });
    format!("select {} from (\n{query}\n) as rows_of_view", columns.collect::<Vec<_>>().join(", "))
}

/// Returns the names of the columns of a query.
fn names_of(query: &str) -> Vec<String> {
    let parsed = Parser::parse_sql(&PostgreSqlDialect {}, query).ok().and_then(|mut all| all.pop());
    let Some(ast::Statement::Query(query)) = parsed else { return Vec::new() };
    let mut body = &*query.body;
    while let ast::SetExpr::SetOperation { left, .. } = body {
        body = left;
    }
    let ast::SetExpr::Select(select) = body else { return Vec::new() };
    let name = |item: &ast::SelectItem| match item {
        ast::SelectItem::ExprWithAlias { alias, .. } => Some(alias.value.clone()),
        ast::SelectItem::UnnamedExpr(ast::Expr::Identifier(name)) => Some(name.value.clone()),
        ast::SelectItem::UnnamedExpr(ast::Expr::CompoundIdentifier(parts)) => {
            parts.last().map(|name| name.value.clone())
        }
        _ => None,
    };
    select.projection.iter().filter_map(name).collect()
}

/// Returns all relations.
pub(crate) fn all() -> &'static [SystemTable] {
    &RELATIONS.all
}

fn find(schema: &str, name: &str) -> Option<&'static SystemTable> {
    RELATIONS.by_name.get(&(schema, name)).map(|at| &RELATIONS.all[*at])
}

/// Returns the table with a name; without a schema it is one of `pg_catalog`.
pub(crate) fn find_table(schema: Option<&str>, name: &str) -> Option<&'static SystemTable> {
    find(schema.unwrap_or("pg_catalog"), name).filter(|_| find_view(schema, name).is_none())
}

/// Returns the view with a name; without a schema it is one of `pg_catalog`.
pub(crate) fn find_view(schema: Option<&str>, name: &str) -> Option<&'static SystemView> {
    let schema = schema.unwrap_or("pg_catalog");
    RELATIONS.views.iter().find(|view| view.schema == schema && view.name == name)
}
