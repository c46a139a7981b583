//! Definitions as text, as PostgreSQL shows them: the functions `format_type`, `pg_get_indexdef`,
//! `pg_get_constraintdef` and `pg_get_expr`.

use sqlparser::{
    ast,
    dialect::PostgreSqlDialect,
    keywords::Keyword,
    tokenizer::{Token, Tokenizer},
};

use super::{
    Snapshot,
    constraints::{Constraint, ConstraintOf},
    rows::row,
    snapshot::{Key, PUBLIC, Relation},
    types,
};
use crate::{
    bind::operators::COLLATIONS,
    catalog::{Action, IndexOrder, IndexPart, PATTERN_CLASSES, RelationName, Table},
    functions::names::{quoted_literal, quoted_name},
    parse,
    types::{Type, Value, named::NamedType},
};

/// The words of PostgreSQL's language, each with a letter for its category and whether it can be a
/// label without AS.
pub(crate) const KEYWORDS: &str = include_str!("keywords.txt");

/// Returns the rows of `pg_get_keywords`: the words of PostgreSQL's language, and where they can be
/// names.
pub(crate) fn keywords() -> Vec<Vec<Value>> {
    let row = |line: &'static str| {
        let mut words = line.split(' ');
        let (word, code, label) = (words.next()?, words.next()?, words.next()? == "t");
        let category = match code {
            "U" => "unreserved",
            "C" => "unreserved (cannot be function or type name)",
            "T" => "reserved (can be function or type name)",
            _ => "reserved",
        };
        let label_text = if label { "can be bare label" } else { "requires AS" };
        Some(row![word, code, label, category, label_text])
    };
    KEYWORDS.lines().filter_map(row).collect()
}

fn names(table: &Table, columns: &[usize]) -> String {
    let names: Vec<String> = columns.iter().map(|at| quoted_name(&table.columns[*at].name)).collect();
    names.join(", ")
}

/// Returns the name of a type that may be one that a statement has made, with its schema unless the
/// path of the session has it.
pub(crate) fn type_name(snapshot: &Snapshot, path: &[u32], oid: u32, modifier: Option<i32>) -> String {
    let Some(of) = snapshot.named_type(oid) else { return format_type(oid, modifier) };
    let is_visible = snapshot.find_type(path, &of.name) == Some(of);
    let schema = if is_visible { String::new() } else { quoted_name(&of.schema) + "." };
    format!("{schema}{}{}", quoted_name(&of.name), if of.array == oid { "[]" } else { "" })
}

/// Returns the name of a type with its limits, which is PostgreSQL's `format_type`.
pub(crate) fn format_type(oid: u32, modifier: Option<i32>) -> String {
    if oid == 0 {
        return "-".into();
    }
    if let Some(element) = types::element_of(oid) {
        return format_type(element.oid, modifier) + "[]";
    }
    let Some(of) = types::plain(oid) else { return "???".into() };
    // A type without limits has another name where limits are possible.
    let is_open = modifier.is_some_and(|modifier| modifier < 0);
    let limits = modifier.filter(|modifier| *modifier >= 4).map(|modifier| modifier - 4);
    match (of.name, limits) {
        ("bpchar", None) if is_open => "bpchar".into(),
        ("bpchar", limits) => limited("character", limits),
        ("varchar", limits) => limited("character varying", limits),
        ("numeric", Some(limits)) => format!("numeric({},{})", limits >> 16, limits & 0xffff),
        ("any", _) => "\"any\"".into(),
        ("time", _) => of_time("time", " without time zone", modifier),
        ("timetz", _) => of_time("time", " with time zone", modifier),
        ("timestamp", _) => of_time("timestamp", " without time zone", modifier),
        ("timestamptz", _) => of_time("timestamp", " with time zone", modifier),
        (name, _) => Type::of_oid(oid).map_or(name, Type::name).into(),
    }
}

fn limited(name: &str, limit: Option<i32>) -> String {
    limit.map_or_else(|| name.into(), |limit| format!("{name}({limit})"))
}

fn of_time(name: &str, zone: &str, digits: Option<i32>) -> String {
    let digits = digits.filter(|digits| *digits >= 0);
    limited(name, digits) + zone
}

/// Returns the name of a relation, with its schema unless the path of the session has it.
pub(crate) fn relation_name(snapshot: &Snapshot, path: &[u32], relation: &Relation) -> String {
    let name = quoted_name(&relation.name);
    match snapshot.is_visible(path, relation) {
        true => name,
        false => format!("{}.{name}", quoted_name(snapshot.schema_name(relation.schema).unwrap_or_default())),
    }
}

/// Returns a part of an index.
fn part(table: &Table, part: &IndexPart) -> String {
    match part {
        IndexPart::Column(at) => quoted_name(&table.columns[*at].name),
        IndexPart::Expression(text, _) => text.clone(),
    }
}

/// Returns the statement that makes an index.
pub(crate) fn index(snapshot: &Snapshot, path: &[u32], key: &Key<'_>) -> String {
    let unique = if key.index.is_unique { "UNIQUE " } else { "" };
    let schema = snapshot.relation(key.table_oid).map_or(PUBLIC, |table| table.schema);
    let typed = |text: &str| with_types(snapshot, path, key.table, text);
    let parts = key.parts[..key.count].iter().enumerate().map(|(at, one)| {
        let shown = match one {
            // A call of a function needs no parentheses.
            IndexPart::Expression(text, _) if !is_call(text) => format!("({})", typed(text)),
            one => part(key.table, one),
        };
        let IndexOrder { is_descending, nulls_first, collation, class } = key.order(at);
        let order = match (is_descending, nulls_first) {
            (false, false) => "",
            (false, true) => " NULLS FIRST",
            (true, true) => " DESC",
            (true, false) => " DESC NULLS LAST",
        };
        let collation = collation.filter(|collation| *collation != one.collation_in(key.table));
        let collation = COLLATIONS.iter().find(|(_, number)| Some(*number) == collation);
        let collation = collation.map(|(name, _)| format!(" COLLATE {}", quoted_name(name)));
        let class = PATTERN_CLASSES.iter().find(|(_, number)| Some(*number) == class);
        let class = class.map(|(name, _)| format!(" {name}"));
        shown + &collation.unwrap_or_default() + &class.unwrap_or_default() + order
    });
    let condition = key.index.condition.as_ref();
    let condition = condition.map(|text| format!(" WHERE {}", nested(&typed(text)))).unwrap_or_default();
    format!(
        "CREATE {unique}INDEX {} ON {}.{} USING btree ({}){}{}{condition}",
        quoted_name(key.name),
        quoted_name(snapshot.schema_name(schema).unwrap_or_default()),
        quoted_name(&key.table.name),
        parts.collect::<Vec<_>>().join(", "),
        included(key.parts[key.count..].iter().map(|one| part(key.table, one)).collect()),
        if key.index.has_equal_nulls { " NULLS NOT DISTINCT" } else { "" }
    )
}

fn included(columns: Vec<String>) -> String {
    if columns.is_empty() { String::new() } else { format!(" INCLUDE ({})", columns.join(", ")) }
}

/// Returns whether an expression is a call of a function.
fn is_call(text: &str) -> bool {
    matches!(parse::expression(text), Ok(ast::Expr::Function(_)))
}

/// Returns an expression in parentheses.
pub(super) fn nested(text: &str) -> String {
    match parse::expression(text) {
        Ok(ast::Expr::Nested(_)) => text.to_owned(),
        _ => format!("({text})"),
    }
}

/// Returns a part of an index, counted from 1.
pub(crate) fn index_column(key: &Key<'_>, number: i64) -> Option<String> {
    let at = usize::try_from(number).ok()?.checked_sub(1)?;
    key.parts.get(at).map(|one| part(key.table, one))
}

/// Returns the definition of a constraint behind its name.
pub(crate) fn constraint(snapshot: &Snapshot, path: &[u32], of: &Constraint<'_>, is_pretty: bool) -> String {
    let deferral = match of.deferral {
        None => "",
        Some(false) => " DEFERRABLE",
        Some(true) => " DEFERRABLE INITIALLY DEFERRED",
    };
    match of.of {
        ConstraintOf::Primary | ConstraintOf::Unique => {
            let kind = match of.of {
                ConstraintOf::Primary => "PRIMARY KEY",
                _ if of.has_equal_nulls => "UNIQUE NULLS NOT DISTINCT",
                _ => "UNIQUE",
            };
            let include = of.include.iter().map(|at| quoted_name(&of.table.columns[*at].name)).collect();
            format!("{kind} ({}){}{deferral}", names(of.table, &of.columns), included(include))
        }
        ConstraintOf::Check(check) => {
            let text = with_types(snapshot, path, of.table, &check.condition);
            format!("CHECK ({})", if is_pretty { text } else { nested(&text) })
        }
        ConstraintOf::Foreign(key, other_oid, other) => {
            let relation = snapshot.relation(other_oid);
            let target = relation.map(|relation| relation_name(snapshot, path, relation)).unwrap_or_default();
            format!(
                "FOREIGN KEY ({}) REFERENCES {target}({}){}{}{}{deferral}",
                names(of.table, &key.columns),
                names(other, &key.referenced),
                if key.is_full { " MATCH FULL" } else { "" },
                action("UPDATE", key.on_update),
                action("DELETE", key.on_delete),
            )
        }
    }
}

/// Returns the part of a foreign key about changes of the other table.
fn action(event: &str, action: Action) -> String {
    let words = match action {
        Action::Nothing => return String::new(),
        Action::Restrict => "RESTRICT",
        Action::Cascade => "CASCADE",
        Action::SetNull => "SET NULL",
        Action::SetDefault => "SET DEFAULT",
    };
    format!(" ON {event} {words}")
}

/// Returns the default of a column as PostgreSQL shows it.
pub(crate) fn default_of(snapshot: &Snapshot, path: &[u32], table: &Table, at: usize) -> Option<String> {
    let column = &table.columns[at];
    let text = column.default.as_ref().or(column.generated.as_ref())?;
    let of = column.of.base();
    let name = type_name(snapshot, path, of.oid(), None);
    let shown = expression(&parse::expression(text).ok()?, of, &name, !path.contains(&PUBLIC));
    shown.or_else(|| Some(with_types(snapshot, path, table, text)))
}

/// Returns a default of a type that PostgreSQL has.
pub(super) fn default_in(text: &str, of: Type) -> Option<String> {
    let shown = expression(&parse::expression(text).ok()?, of, &format_type(of.oid(), None), false);
    shown.or_else(|| Some(text.to_owned()))
}

/// Returns an expression of a table, with the schemas of types that the path does not have.
pub(crate) fn with_types(snapshot: &Snapshot, path: &[u32], table: &Table, text: &str) -> String {
    let types = table.columns.iter().filter_map(|column| column.of.named());
    query_text(snapshot, path, text, &types.map(NamedType::relation).collect::<Vec<_>>())
}

/// Returns the query of a view, with the schemas of relations and types that the path does not
/// have.
pub(crate) fn query_text(snapshot: &Snapshot, path: &[u32], text: &str, uses: &[RelationName]) -> String {
    let hidden =
        |name: &RelationName| snapshot.schema_oid(&name.schema).is_none_or(|oid| !path.contains(&oid));
    let hidden: Vec<&RelationName> = uses.iter().filter(|name| hidden(name)).collect();
    let tokens = match Tokenizer::new(&PostgreSqlDialect {}, text).tokenize() {
        Ok(tokens) if !hidden.is_empty() => tokens,
        _ => return text.to_owned(),
    };
    let is_space = |token: &&Token| matches!(token, Token::Whitespace(_));
    // Whether names in each open parenthesis are tables: behind FROM and JOIN, and commas there.
    let (mut places, mut is_next, mut before) = (vec![false], false, None);
    let mut written = String::with_capacity(text.len() + 32);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::LParen => places.push(false),
            Token::RParen if places.len() > 1 => drop(places.pop()),
            Token::Word(word) => {
                let place = places.last_mut();
                match word.keyword {
                    Keyword::FROM => place.into_iter().for_each(|place| *place = true),
                    Keyword::SELECT
                    | Keyword::WHERE
                    | Keyword::GROUP
                    | Keyword::HAVING
                    | Keyword::ORDER
                    | Keyword::LIMIT
                    | Keyword::WINDOW
                    | Keyword::UNION
                    | Keyword::EXCEPT
                    | Keyword::INTERSECT => place.into_iter().for_each(|place| *place = false),
                    _ => {}
                }
                let behind = tokens[at + 1..].iter().find(|token| !is_space(token));
                let name = match word.quote_style {
                    Some(_) => word.value.clone(),
                    None => word.value.to_ascii_lowercase(),
                };
                let is_type = before == Some(&Token::DoubleColon)
                    || matches!(before, Some(Token::Word(word)) if word.keyword == Keyword::AS)
                        && matches!(behind, Some(Token::RParen));
                if (is_next && !matches!(behind, Some(Token::LParen)) || is_type)
                    && !matches!(behind, Some(Token::Period))
                    && let Some(relation) = hidden.iter().find(|relation| relation.name == name)
                {
                    written.push_str(&format!("{}.", quoted_name(&relation.schema)));
                }
            }
            _ => {}
        }
        written.push_str(&token.to_string());
        if !is_space(&token) {
            before = Some(token);
            is_next = match token {
                Token::Comma => places.last() == Some(&true),
                Token::Word(word) => {
                    matches!(word.keyword, Keyword::FROM | Keyword::JOIN | Keyword::ONLY | Keyword::LATERAL)
                }
                Token::LParen => is_next,
                _ => false,
            };
        }
    }
    written
}

/// Returns the text of an expression that becomes a value of a type, if it is of a simple form.
fn expression(expr: &ast::Expr, of: Type, type_name: &str, shows_public: bool) -> Option<String> {
    use ast::{Expr, Value as Literal};
    Some(match expr {
        Expr::Nested(inner) => expression(inner, of, type_name, shows_public)?,
        Expr::Value(value) => match &value.value {
            Literal::SingleQuotedString(text) if of.is_number() || of == Type::Bool => text.clone(),
            Literal::SingleQuotedString(text) => format!("{}::{type_name}", quoted_literal(text)),
            Literal::Number(number, _) => number.to_string(),
            Literal::Boolean(is_true) => is_true.to_string(),
            Literal::Null => format!("NULL::{type_name}"),
            _ => return None,
        },
        Expr::Cast { expr: inner, .. } => match &**inner {
            Expr::Value(ast::ValueWithSpan { value: Literal::SingleQuotedString(text), .. }) => {
                format!("{}::{type_name}", quoted_literal(text))
            }
            _ => return None,
        },
        Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr } => {
            let Expr::Value(value) = &**expr else { return None };
            let Literal::Number(number, _) = &value.value else { return None };
            let number = number.to_string();
            let fits = |number: &str| number.parse::<i32>().is_ok();
            let of = match number.parse::<i64>() {
                Ok(_) if fits(&number) => "integer",
                Ok(_) => "bigint",
                Err(_) => "numeric",
            };
            format!("'-{number}'::{of}")
        }
        Expr::Function(call) => {
            let name = call.name.to_string();
            let ast::FunctionArguments::List(list) = &call.args else { return Some(name.to_uppercase()) };
            match (&list.args[..], name.to_ascii_lowercase().as_str()) {
                ([], lower) => format!("{lower}()"),
                ([argument], "nextval") => {
                    format!("nextval({})", regclass(&argument.to_string(), shows_public))
                }
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// Returns the argument of `nextval` without needless quotes.
fn regclass(argument: &str, shows_public: bool) -> String {
    let name = argument.trim_end_matches("::regclass").trim_end_matches("::REGCLASS");
    let name = name.trim_matches('\'').replace("''", "'");
    let name = match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => quoted_name(&quoted.replace("\"\"", "\"")),
        None => name,
    };
    let schema = if shows_public && !name.contains('.') { "public." } else { "" };
    format!("{}::regclass", quoted_literal(&format!("{schema}{name}")))
}
