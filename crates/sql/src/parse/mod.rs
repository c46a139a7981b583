//! Text to statements, by the library `sqlparser`, and what it does not know.

mod own;

use sqlparser::{
    ast,
    dialect::PostgreSqlDialect,
    keywords::Keyword,
    parser::Parser,
    tokenizer::{Token, TokenWithSpan, Tokenizer, Whitespace},
};

use crate::{
    ddl::{AlterSequence, ConstraintComment},
    error::{Result, SqlError, code},
};

/// The most queries in each other in a text.
const MOST_QUERIES: usize = 24;

/// The deepest nesting of a statement.
const MOST_DEPTH: usize = 200;

/// The table of which FOR UPDATE and FOR SHARE are, if FOR NO KEY UPDATE or FOR KEY SHARE was
/// meant: the library does not know them.
pub(crate) const WEAKER_LOCK: &str = "weaker lock";

/// The name of the argument that stands behind the word VARIADIC: the library does not know it.
pub(crate) const VARIADIC: &str = "variadic argument";

/// The text behind the number of CACHE before the name of the sequence of an identity column.
pub(crate) const SEQUENCE_NAME: &str = " sequence name ";

/// The comment of a materialized view that begins without its rows.
pub(crate) const NO_DATA: &str = "without data";

/// The beginning of a string that stands for an expression in FETCH FIRST.
const FETCHED: &str = "\u{1}fetch ";

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

/// `COPY`, with the text format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Copy {
    pub(crate) table: String,
    pub(crate) columns: Vec<String>,
    pub(crate) is_from: bool,
    /// The query whose rows are copied, in the place of a table.
    pub(crate) query: Option<Box<ast::Statement>>,
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
        "COPY" => return Ok(vec![Statement::Copy(copy(first)?)]),
        "VACUUM" => return Ok(vec![Statement::Vacuum(vacuumed(first)?)]),
        "ANALYZE" => return Ok(vec![Statement::Nothing("ANALYZE")]),
        _ => {}
    }
    if let Some(statement) = create_user(first) {
        return Ok(vec![statement?]);
    }
    let failed = |error: &dyn std::fmt::Display| {
        let text = error.to_string();
        let message = text.trim_start_matches("sql parser error: ");
        match message.contains("recursion limit") {
            true => SqlError::new("54001", "stack depth limit exceeded"),
            false => syntax(format!("syntax error: {message}")),
        }
    };
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, text).tokenize_with_location();
    let tokens = tokens.map_err(|error| failed(&error))?;
    check_depth(&tokens)?;
    let tokens = know_fetched(know_variadic(know_weaker_locks(tokens)));
    let mut statements = Vec::new();
    for tokens in tokens.split(|token| token.token == Token::SemiColon) {
        let (tokens, has_data) = without_data(tokens);
        let mut parser = Parser::new(&PostgreSqlDialect {})
            .with_recursion_limit(MOST_DEPTH)
            .with_tokens_with_locations(tokens);
        if let Some(statement) = own::statement(&mut parser).map_err(|error| failed(&error))? {
            statements.push(statement);
            continue;
        }
        let parsed = parser.parse_statements().map_err(|error| failed(&error))?;
        for mut statement in parsed.into_iter().map(select_into) {
            match &mut statement {
                ast::Statement::CreateView(create) if !has_data => create.comment = Some(NO_DATA.into()),
                ast::Statement::CreateTable(ast::CreateTable { query: Some(query), .. }) if !has_data => {
                    let none = ast::Expr::value(ast::Value::Number("0".into(), false));
                    query.limit_clause = Some(ast::LimitClause::LimitOffset {
                        limit: Some(none),
                        offset: None,
                        limit_by: Vec::new(),
                    });
                    query.fetch = None;
                }
                _ => {}
            }
            statements.push(Statement::Sql(Box::new(statement)));
        }
    }
    Ok(if statements.is_empty() { vec![Statement::Empty] } else { statements })
}

/// Returns a CREATE statement without `WITH DATA` or `WITH NO DATA` at its end, and false for the
/// second; and writes the name of the sequence of an identity column as [`SEQUENCE_NAME`] says. The
/// library knows neither.
fn without_data(tokens: &[TokenWithSpan]) -> (Vec<TokenWithSpan>, bool) {
    let mut words =
        tokens.iter().enumerate().filter(|(_, token)| !matches!(token.token, Token::Whitespace(_)));
    let is = |token: &TokenWithSpan, wanted: &str| match &token.token {
        Token::Word(word) => word.quote_style.is_none() && word.value.eq_ignore_ascii_case(wanted),
        _ => false,
    };
    let mut tokens = tokens.to_vec();
    let places: Vec<usize> = words.by_ref().map(|(at, _)| at).collect();
    let begins = |word: &str| places.first().is_some_and(|at| is(&tokens[*at], word));
    if begins("create") {
        let ends = |wanted: &[&str]| {
            let start = places.len().checked_sub(wanted.len())?;
            let all = places[start..].iter().zip(wanted).all(|(at, word)| is(&tokens[*at], word));
            all.then_some(places[start])
        };
        if let Some(at) = ends(&["with", "no", "data"]) {
            tokens.truncate(at);
            return (tokens, false);
        }
        if let Some(at) = ends(&["with", "data"]) {
            tokens.truncate(at);
        }
    } else if begins("alter") || begins("create") {
        let named = places.windows(4).find(|next| {
            tokens[next[0]].token == Token::LParen
                && is(&tokens[next[1]], "sequence")
                && is(&tokens[next[2]], "name")
        });
        if let Some(&[_, first, _, start]) = named {
            let is_name = |token: &TokenWithSpan| matches!(token.token, Token::Word(_) | Token::Period);
            let end = start + tokens[start..].iter().take_while(|token| is_name(token)).count();
            let name: String = tokens[start..end].iter().map(|token| token.token.to_string()).collect();
            let span = tokens[first].span;
            let named = |count: &str| Token::Number(format!("{count}{SEQUENCE_NAME}{name}"), false);
            let cache = tokens[end..].iter().position(|token| is(token, "cache"));
            let count = cache.and_then(|cache| {
                let rest = tokens[end + cache..].iter_mut();
                rest.map(|token| &mut token.token).find(|token| matches!(token, Token::Number(..)))
            });
            let mut written = Vec::new();
            match count {
                Some(count) => *count = named(&count.to_string()),
                None => written = vec![Token::make_keyword("CACHE"), named("1")],
            }
            let written = written.into_iter().map(|token| TokenWithSpan { token, span });
            tokens.splice(first..end, written);
        }
    }
    (tokens, true)
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

/// Writes FOR NO KEY UPDATE and FOR KEY SHARE as [`WEAKER_LOCK`] says.
fn know_weaker_locks(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let is_word = |token: &TokenWithSpan, word: &str| match &token.token {
        Token::Word(found) => found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word),
        _ => false,
    };
    let words: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let at = |place: usize, all: &[&str]| {
        words[place..].len() >= all.len()
            && words[place..].iter().zip(all).all(|(at, word)| is_word(&tokens[*at], word))
    };
    // The words that go, and those behind which the table is written.
    let (mut gone, mut behind) = (Vec::new(), Vec::new());
    for place in 0..words.len() {
        if at(place, &["for", "no", "key", "update"]) {
            gone.extend([words[place + 1], words[place + 2]]);
            behind.push(words[place + 3]);
        } else if at(place, &["for", "key", "share"]) {
            gone.push(words[place + 1]);
            behind.push(words[place + 2]);
        }
    }
    if behind.is_empty() {
        return tokens;
    }
    let mut written = Vec::with_capacity(tokens.len() + 2);
    for (at, token) in tokens.into_iter().enumerate() {
        let span = token.span;
        if !gone.contains(&at) {
            written.push(token);
        }
        if behind.contains(&at) {
            let of = [Token::make_keyword("OF"), Token::make_word(WEAKER_LOCK, Some('"'))];
            written.extend(of.map(|token| TokenWithSpan { token, span }));
        }
    }
    written
}

/// Writes the word VARIADIC as [`VARIADIC`] says.
fn know_variadic(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let written = |token: TokenWithSpan| match &token.token {
        Token::Word(word) if word.keyword == Keyword::VARIADIC => {
            let named = [Token::make_word(VARIADIC, Some('"')), Token::RArrow];
            named.map(|named| TokenWithSpan { token: named, span: token.span }).to_vec()
        }
        _ => vec![token],
    };
    match tokens
        .iter()
        .any(|token| matches!(&token.token, Token::Word(word) if word.keyword == Keyword::VARIADIC))
    {
        true => tokens.into_iter().flat_map(written).collect(),
        false => tokens,
    }
}

/// Writes the expression of `FETCH FIRST (…) ROWS` as a string, because the library knows numbers
/// only.
fn know_fetched(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let is_word = |token: &TokenWithSpan, words: &[Keyword]| matches!(&token.token, Token::Word(word) if words.contains(&word.keyword));
    if !tokens.iter().any(|token| is_word(token, &[Keyword::FETCH])) {
        return tokens;
    }
    // Others have quotes, which their texts as tokens have not.
    let is_plain = |token: &TokenWithSpan| match &token.token {
        Token::Word(word) => word.quote_style.is_none(),
        Token::Number(..)
        | Token::Placeholder(_)
        | Token::Whitespace(Whitespace::Space | Whitespace::Newline) => true,
        Token::LParen | Token::RParen | Token::Comma | Token::DoubleColon => true,
        Token::Plus | Token::Minus | Token::Mul | Token::Div => true,
        _ => false,
    };
    let mut written: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    // The text of the expression and its open parentheses.
    let mut counted: Option<(String, usize)> = None;
    let mut rest = tokens.into_iter();
    while let Some(token) = rest.next() {
        let mut before = written.iter().rev().filter(|token| !matches!(token.token, Token::Whitespace(_)));
        let is_behind = before.next().is_some_and(|token| is_word(token, &[Keyword::FIRST, Keyword::NEXT]))
            && before.next().is_some_and(|token| is_word(token, &[Keyword::FETCH]));
        match (&mut counted, &token.token) {
            (None, Token::LParen) if is_behind && is_plain_until_end(rest.as_slice(), is_plain) => {
                counted = Some((FETCHED.to_owned() + "(", 1))
            }
            (None, _) => written.push(token),
            (Some((text, open)), inner) => {
                *open = *open + usize::from(*inner == Token::LParen) - usize::from(*inner == Token::RParen);
                text.push_str(&inner.to_string());
                if *open == 0 {
                    let text = std::mem::take(text);
                    counted = None;
                    written.push(TokenWithSpan { token: Token::SingleQuotedString(text), span: token.span });
                }
            }
        }
    }
    written
}

/// Returns true if the tokens up to the parenthesis that closes are all plain.
fn is_plain_until_end(tokens: &[TokenWithSpan], is_plain: impl Fn(&TokenWithSpan) -> bool) -> bool {
    let mut open = 1;
    for token in tokens {
        match token.token {
            Token::LParen => open += 1,
            Token::RParen => open -= 1,
            _ => {}
        }
        if open == 0 || !is_plain(token) {
            return open == 0;
        }
    }
    false
}

/// Returns the expression of [`know_fetched`].
pub(crate) fn fetched(value: &ast::Value) -> Result<Option<ast::Expr>> {
    let ast::Value::SingleQuotedString(text) = value else { return Ok(None) };
    text.strip_prefix(FETCHED).map(expression).transpose()
}

/// Returns the expression of a text.
pub(crate) fn expression(text: &str) -> Result<ast::Expr> {
    let parser = Parser::new(&PostgreSqlDialect {}).with_recursion_limit(MOST_DEPTH).try_with_sql(text);
    let parsed = parser.and_then(|mut parser| {
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

/// Reads `COPY table [(columns)] FROM STDIN | TO STDOUT [[WITH] (options)]`.
fn copy(text: &str) -> Result<Copy> {
    let spaced: String = text
        .trim()
        .trim_end_matches(';')
        .chars()
        .flat_map(|char| match char {
            '(' | ')' | ',' => vec![' ', char, ' '],
            char => vec![char],
        })
        .collect();
    let queried = copied_query(text)?;
    let spaced = match &queried {
        None => spaced,
        Some((_, rest)) => format!("copy - {}", rest.replace('(', " ( ").replace(')', " ) ")),
    };
    let mut words = spaced.split_whitespace().skip(1).peekable();
    let wrong = || syntax("syntax error in COPY: use COPY table [(columns)] FROM STDIN or TO STDOUT");
    let table = relation_of_text(words.next().filter(|word| *word != "(").ok_or_else(wrong)?);
    let mut columns = Vec::new();
    if words.next_if_eq(&"(").is_some() {
        loop {
            columns.push(name(words.next().ok_or_else(wrong)?));
            match words.next() {
                Some(",") => {}
                Some(")") => break,
                _ => return Err(wrong()),
            }
        }
    }
    let way = (words.next().map(str::to_ascii_uppercase), words.next().map(str::to_ascii_uppercase));
    let is_from = match (way.0.as_deref(), way.1.as_deref()) {
        (Some("FROM"), Some("STDIN")) => true,
        (Some("TO"), Some("STDOUT")) => false,
        (Some("FROM" | "TO"), Some(_)) => return Err(SqlError::unsupported("COPY of a file")),
        _ => return Err(wrong()),
    };
    let options: Vec<String> = words.map(str::to_ascii_lowercase).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).filter(|word| *word != "with").collect();
    match options[..] {
        [] | ["(", "freeze", "on" | "true", ")"] | ["(", "freeze", ")"] | ["(", "format", "text", ")"] => {}
        _ => return Err(SqlError::unsupported(format!("COPY with {}", options.join(" ")))),
    }
    if is_from && queried.is_some() {
        return Err(wrong());
    }
    Ok(Copy { table, columns, is_from, query: queried.map(|(query, _)| query) })
}

/// Returns the query of COPY in parentheses, and the text behind it.
fn copied_query(text: &str) -> Result<Option<(Box<ast::Statement>, &str)>> {
    let Some(inner) = text["copy".len()..].trim_start().strip_prefix('(') else { return Ok(None) };
    let (mut depth, mut quote) = (1, None);
    let end = inner.char_indices().find(|(_, char)| {
        match (quote, char) {
            (Some(open), char) if open == *char => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(*char),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let (end, _) = end.ok_or_else(|| syntax("syntax error in COPY: the query has no end"))?;
    match parse(&inner[..end])?.pop() {
        Some(Statement::Sql(query)) if matches!(*query, ast::Statement::Query(_)) => {
            Ok(Some((query, inner[end + 1..].trim().trim_end_matches(';'))))
        }
        _ => Err(SqlError::unsupported("COPY of this statement")),
    }
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
