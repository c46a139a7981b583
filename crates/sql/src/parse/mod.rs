//! Text to statements, by the library `sqlparser`, and what it does not know.

mod copy;
mod own;
mod rewrites;

use sqlparser::{
    ast,
    dialect::PostgreSqlDialect,
    parser::{Parser, ParserError},
    tokenizer::{Location, Token, TokenWithSpan, Tokenizer},
};

pub(crate) use self::rewrites::{
    DOMAIN, NO_DATA, NOT_NULL, SEQUENCE_NAME, VARIADIC, WEAKER_LOCK, drops_identity, fetched,
};
use self::rewrites::{
    know_drop_concurrently, know_drop_identity, know_fetched, know_sequence_name, know_table, know_variadic,
    know_weaker_locks, remove_with_data,
};
use crate::{
    copy::CopyOptions,
    ddl::{AlterSequence, ConstraintComment},
    error::{Result, SqlError, code, offset_of},
};

/// The most queries in each other in a text.
const MOST_QUERIES: usize = 24;

/// The deepest nesting of a statement.
const MOST_DEPTH: usize = 200;

/// A statement of a client.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    Sql(Box<ast::Statement>),
    /// Moves rows between a table and the client.
    Copy(Copy),
    /// Does nothing here; the tag of its end.
    Nothing(&'static str),
    AlterSequence(AlterSequence),
    ConstraintComment(ConstraintComment),
    /// Checks these constraints at the end of each statement, or of the transaction; without names,
    /// all of them.
    SetConstraints {
        names: Option<Vec<ast::ObjectName>>,
        is_deferred: bool,
    },
    /// Cleans these tables; without one, all tables of the database.
    Vacuum(Vec<String>),
    Empty,
}

/// The statement COPY.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Copy {
    pub(crate) table: String,
    pub(crate) columns: Vec<String>,
    pub(crate) is_from: bool,
    /// The query whose rows are copied, in the place of a table.
    pub(crate) query: Option<Box<ast::Statement>>,
    pub(crate) options: CopyOptions,
}

fn syntax(message: impl Into<String>) -> SqlError {
    SqlError::new(code::SYNTAX_ERROR, message)
}

/// The parentheses of a text from which on it is parsed with [`DEEP_STACK`] bytes of stack: queries
/// in queries take much of it in the library.
const DEEP: usize = 12;
const DEEP_STACK: usize = 32 << 20;

/// Returns the statements of a text, each with its own text.
pub(crate) fn parse(text: &str) -> Result<Vec<Statement>> {
    match text.bytes().filter(|byte| *byte == b'(').nth(DEEP) {
        None => parse_all(text),
        Some(_) => stacker::grow(DEEP_STACK, || parse_all(text)),
    }
}

/// The most tokens of an expression, which may be as deep as it has operators.
const MOST_TOKENS: usize = 20_000;

/// Refuses a text with too many queries in queries, or with an expression that is too long: each
/// operator and query takes stack wherever it is copied.
fn check_depth(tokens: &[TokenWithSpan]) -> Result<()> {
    // Whether each open parenthesis has a query.
    let mut open = Vec::new();
    let mut depth = 0;
    // The tokens since the last comma, in each parenthesis.
    let mut counts = vec![0];
    for token in tokens {
        match &token.token {
            Token::LParen => counts.push(0),
            Token::RParen if counts.len() > 1 => drop(counts.pop()),
            _ => {}
        }
        if let Some(count) = counts.last_mut() {
            match &token.token {
                Token::Comma | Token::SemiColon => *count = 0,
                Token::Whitespace(_) => {}
                _ => *count += 1,
            }
            if *count > MOST_TOKENS {
                return Err(SqlError::new("54001", "stack depth limit exceeded"));
            }
        }
        match &token.token {
            Token::LParen => open.push(false),
            Token::RParen => depth -= usize::from(open.pop() == Some(true)),
            Token::Word(word) if word.value.eq_ignore_ascii_case("select") => {
                if let Some(has_query @ false) = open.last_mut() {
                    *has_query = true;
                    depth += 1;
                }
            }
            _ => {}
        }
        if depth > MOST_QUERIES {
            return Err(SqlError::new("54001", "stack depth limit exceeded"));
        }
    }
    Ok(())
}

fn parse_all(text: &str) -> Result<Vec<Statement>> {
    let first = text.trim_start();
    let word: String = first.chars().take_while(char::is_ascii_alphabetic).collect();
    match word.to_ascii_uppercase().as_str() {
        "VACUUM" => return Ok(vec![Statement::Vacuum(vacuumed(first)?)]),
        "ANALYZE" => return Ok(vec![Statement::Nothing("ANALYZE")]),
        _ => {}
    }
    if let Some(statement) = create_user(first) {
        return Ok(vec![statement?]);
    }
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, text).tokenize_with_location();
    let tokens = tokens.map_err(|error| refusal(text, &error, None))?;
    check_depth(&tokens)?;
    let is_end = |token: &&TokenWithSpan| token.token == Token::SemiColon;
    let mut ends = tokens.iter().filter(is_end).map(|end| end.span.start).collect::<Vec<_>>().into_iter();
    let tokens = know_fetched(know_variadic(know_weaker_locks(tokens)));
    let mut statements = Vec::new();
    for tokens in tokens.split(|token| token.token == Token::SemiColon) {
        let end = ends.next();
        let failed = |error: &dyn std::fmt::Display| refusal(text, error, end);
        let mut tokens = know_table(tokens.to_vec());
        let has_data = remove_with_data(&mut tokens);
        know_sequence_name(&mut tokens);
        know_drop_identity(&mut tokens);
        know_drop_concurrently(&mut tokens);
        let mut parser = Parser::new(&PostgreSqlDialect {})
            .with_recursion_limit(MOST_DEPTH)
            .with_tokens_with_locations(tokens);
        if own::take(&mut parser, &["copy"]) {
            let copy = copy::copy(&mut parser).and_then(|copy| match copy {
                Ok(_) => own::end(&parser).map(|()| copy),
                Err(_) => Ok(copy),
            });
            statements.push(Statement::Copy(copy.map_err(|error| failed(&error))??));
            continue;
        }
        if let Some(statement) = own::statement(&mut parser).map_err(|error| failed(&error))? {
            statements.push(statement);
            continue;
        }
        let parsed = parser.parse_statements().map_err(|error| failed(&error))?;
        for mut statement in parsed.into_iter().map(select_into) {
            match &mut statement {
                ast::Statement::CreateView(create) if !has_data => create.comment = Some(NO_DATA.into()),
                ast::Statement::CreateTable(create) if !has_data => {
                    create.comment = Some(ast::CommentDef::WithoutEq(NO_DATA.into()));
                }
                _ => {}
            }
            statements.push(Statement::Sql(Box::new(statement)));
        }
    }
    Ok(if statements.is_empty() { vec![Statement::Empty] } else { statements })
}

/// Returns the error for a text that the library does not read; `end` is the semicolon behind it.
fn refusal(text: &str, error: &dyn std::fmt::Display, end: Option<Location>) -> SqlError {
    let error = error.to_string();
    let message = error.trim_start_matches("sql parser error: ");
    if message.contains("recursion limit") {
        return SqlError::new("54001", "stack depth limit exceeded");
    }
    // The library names the place behind its message.
    let place = message.rsplit_once(" at Line: ").and_then(|(_, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        Some(Location { line: line.parse().ok()?, column: column.trim_end().parse().ok()? })
    });
    let place = place.or_else(|| end.filter(|_| message.ends_with("EOF")));
    let Some(place) = place else {
        return match message.ends_with("EOF") {
            true => {
                let end = Location { line: text.split('\n').count() as u64, column: u64::MAX };
                syntax("syntax error at end of input").at(end)
            }
            false => syntax(format!("syntax error: {message}")),
        };
    };
    let rest = &text[offset_of(text, place)..];
    if message.starts_with("Unterminated string") {
        return syntax(format!("unterminated quoted string at or near \"{rest}\"")).at(place);
    }
    let token = Tokenizer::new(&PostgreSqlDialect {}, rest).tokenize_with_location();
    let end = token.ok().and_then(|tokens| Some(tokens.first()?.span.end));
    let near = end.map_or(rest, |end| &rest[..offset_of(rest, end)]);
    match near {
        "" => syntax("syntax error at end of input").at(place),
        near => syntax(format!("syntax error at or near \"{near}\"")).at(place),
    }
}

/// Returns SELECT INTO as CREATE TABLE AS.
fn select_into(statement: ast::Statement) -> ast::Statement {
    let ast::Statement::Query(mut query) = statement else { return statement };
    let ast::SetExpr::Select(select) = &mut *query.body else { return ast::Statement::Query(query) };
    match select.into.take() {
        Some(ast::SelectInto { temporary, unlogged: false, targets, .. }) if targets.len() == 1 => {
            let parsed = Parser::new(&PostgreSqlDialect {}).try_with_sql(&targets[0].to_string());
            match parsed.and_then(|mut parser| parser.parse_object_name(false)) {
                Ok(name) => {
                    let create = ast::helpers::stmt_create_table::CreateTableBuilder::new(name);
                    create.temporary(temporary).query(Some(query)).build().into()
                }
                Err(_) => ast::Statement::Query(query),
            }
        }
        into => {
            select.into = into;
            ast::Statement::Query(query)
        }
    }
}

/// Returns the expression of a text.
pub(crate) fn expression(text: &str) -> Result<ast::Expr> {
    // It is no part of a client's text, so no error names a place in it.
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, text).tokenize().map_err(ParserError::from);
    let parsed = tokens.and_then(|tokens| {
        let parser = Parser::new(&PostgreSqlDialect {}).with_recursion_limit(MOST_DEPTH);
        let mut parser = parser.with_tokens(tokens);
        let expr = parser.parse_expr()?;
        parser.expect_token(&Token::EOF)?;
        Ok(expr)
    });
    parsed.map_err(|error| syntax(format!("syntax error in {text}: {error}")))
}

/// Reads CREATE USER, which is CREATE ROLE with LOGIN.
fn create_user(text: &str) -> Option<Result<Statement>> {
    let mut words = text.split_whitespace();
    let (create, user) = (words.next()?, words.next()?);
    if !create.eq_ignore_ascii_case("create") || !user.eq_ignore_ascii_case("user") {
        return None;
    }
    let rest = text[create.len()..].trim_start().get(user.len()..)?;
    let mut parsed = match parse(&format!("create role{rest}")) {
        Ok(parsed) => parsed,
        Err(error) => return Some(Err(error)),
    };
    let (first, more) = (parsed.pop()?, parsed.len());
    let Statement::Sql(mut statement) = first else { return None };
    match &mut *statement {
        ast::Statement::CreateRole(create) if more == 0 => create.login = create.login.or(Some(true)),
        _ => return Some(Err(SqlError::unsupported("CREATE USER with other statements"))),
    }
    Some(Ok(Statement::Sql(statement)))
}

/// Reads the tables of `VACUUM [(options) | FULL | FREEZE | VERBOSE | ANALYZE] [table, …]`. All
/// options mean the same here.
fn vacuumed(text: &str) -> Result<Vec<String>> {
    let text = text["vacuum".len()..].trim().trim_end_matches(';').trim();
    let text = match text.strip_prefix('(') {
        Some(options) => options.split_once(')').ok_or_else(|| syntax("syntax error in VACUUM"))?.1,
        None => text,
    };
    let is_option = |word: &&str| {
        ["FULL", "FREEZE", "VERBOSE", "ANALYZE"].iter().any(|option| option.eq_ignore_ascii_case(word))
    };
    let words: Vec<&str> = text.split_whitespace().skip_while(is_option).collect();
    let tables = words.join(" ");
    Ok(tables.split(',').map(str::trim).filter(|table| !table.is_empty()).map(relation_of_text).collect())
}

fn name(word: &str) -> String {
    match word.strip_prefix('"').and_then(|word| word.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => word.to_ascii_lowercase(),
    }
}

/// Returns the relation that a text names, in the form of [`relation`].
pub(crate) fn relation_of_text(text: &str) -> String {
    let mut is_quoted = false;
    let point = text.char_indices().find(|(_, char)| {
        is_quoted ^= *char == '"';
        *char == '.' && !is_quoted
    });
    match point {
        None => name(text),
        Some((at, _)) => format!("{}\0{}", name(&text[..at]), name(&text[at + 1..])),
    }
}

/// Returns a name as PostgreSQL folds it.
pub(crate) fn folded(ident: &ast::Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_ascii_lowercase(),
    }
}

/// Returns the name of a column or another object that is in no schema.
pub(crate) fn simple(name: &ast::ObjectName) -> Result<String> {
    match &name.0[..] {
        [part] => {
            part.as_ident().map(folded).ok_or_else(|| SqlError::unsupported(format!("the name {name}")))
        }
        _ => Err(SqlError::unsupported(format!("the name {name}"))),
    }
}

/// Returns the name of a relation without its schema.
pub(crate) fn unqualified(name: &ast::ObjectName) -> Result<String> {
    let name = relation(name)?;
    Ok(name.rsplit('\0').next().unwrap_or_default().to_owned())
}

/// Returns the name of a relation; if it has a schema, the schema and a byte 0 are before it.
pub(crate) fn relation(name: &ast::ObjectName) -> Result<String> {
    let parts: Vec<String> = name
        .0
        .iter()
        .map(|part| {
            part.as_ident().map(folded).ok_or_else(|| SqlError::unsupported(format!("the name {name}")))
        })
        .collect::<Result<_>>()?;
    match &parts[..] {
        [name] => Ok(name.clone()),
        [schema, name] => Ok(format!("{schema}\0{name}")),
        _ => Err(SqlError::unsupported(format!("the name {name}"))),
    }
}
