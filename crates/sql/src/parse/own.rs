//! Statements that the library does not read.

use sqlparser::{
    ast,
    keywords::Keyword,
    parser::{Parser, ParserError},
    tokenizer::Token,
};

use super::{DOMAIN, NOT_NULL, Statement};
use crate::ddl::{AlterSequence, ConstraintComment};

/// Takes words, if they are next, whether the library knows them or not.
pub(super) fn take(parser: &mut Parser<'_>, words: &[&str]) -> bool {
    let is_next = |(at, wanted): (usize, &&str)| match parser.peek_nth_token(at).token {
        Token::Word(word) => word.quote_style.is_none() && word.value.eq_ignore_ascii_case(wanted),
        _ => false,
    };
    if !words.iter().enumerate().all(is_next) {
        return false;
    }
    words.iter().for_each(|_| parser.advance_token());
    true
}

fn wrong<T>(parser: &Parser<'_>) -> Result<T, ParserError> {
    Err(ParserError::ParserError(format!("unexpected {}", parser.peek_token())))
}

pub(super) fn end(parser: &Parser<'_>) -> Result<(), ParserError> {
    if parser.peek_token().token == Token::EOF { Ok(()) } else { wrong(parser) }
}

/// Returns the statement, if it is one of these.
pub(super) fn statement(parser: &mut Parser<'_>) -> Result<Option<Statement>, ParserError> {
    if take(parser, &["set", "constraints"]) {
        let names = match parser.parse_keyword(Keyword::ALL) {
            true => None,
            false => Some(parser.parse_comma_separated(|parser| parser.parse_object_name(false))?),
        };
        let is_deferred = take(parser, &["deferred"]);
        if !is_deferred && !take(parser, &["immediate"]) {
            return wrong(parser);
        }
        end(parser)?;
        return Ok(Some(Statement::SetConstraints { names, is_deferred }));
    }
    if take(parser, &["comment", "on", "constraint"]) {
        let name = parser.parse_identifier()?;
        parser.expect_keyword_is(Keyword::ON)?;
        let table = parser.parse_object_name(false)?;
        parser.expect_keyword_is(Keyword::IS)?;
        let text = match parser.parse_keyword(Keyword::NULL) {
            true => None,
            false => Some(parser.parse_literal_string()?),
        };
        end(parser)?;
        return Ok(Some(Statement::ConstraintComment(ConstraintComment { name, table, text })));
    }
    for kind in
        [&["alter", "view"][..], &["alter", "materialized", "view"], &["alter", "type"], &["alter", "domain"]]
    {
        let owned = parser.maybe_parse(|parser| {
            let is_it = take(parser, kind);
            let name = parser.parse_object_name(false)?;
            if !is_it || !take(parser, &["owner", "to"]) {
                return wrong(parser);
            }
            let owner = parser.parse_identifier()?;
            end(parser)?;
            Ok(format!("alter table {name} owner to {owner}"))
        })?;
        if let Some(text) = owned {
            let dialect = sqlparser::dialect::PostgreSqlDialect {};
            let statement = Parser::new(&dialect).try_with_sql(&text)?.parse_statement()?;
            return Ok(Some(Statement::Sql(Box::new(statement))));
        }
        if kind.contains(&"view") && take(parser, kind) {
            return Err(ParserError::ParserError("ALTER of a view other than OWNER TO".into()));
        }
    }
    if take(parser, &["create", "domain"]) {
        return create_domain(parser).map(Some);
    }
    // A domain changes as the only column of a table does.
    if take(parser, &["alter", "domain"]) {
        let name = parser.parse_object_name(false)?;
        let words = [["set", "default"], ["drop", "default"], ["set", "not"], ["drop", "not"]];
        let is_next = |words: &[&str; 2]| {
            let is_it = |(at, word): (usize, &&str)| match parser.peek_nth_token(at).token {
                Token::Word(next) => next.value.eq_ignore_ascii_case(word),
                _ => false,
            };
            words.iter().enumerate().all(is_it)
        };
        let mut tokens = Vec::new();
        if words.iter().any(is_next) {
            tokens.extend(["alter", "column", "value"].map(|word| Token::make_word(word, None)));
        }
        while parser.peek_token().token != Token::EOF {
            tokens.push(parser.next_token().token);
        }
        let dialect = sqlparser::dialect::PostgreSqlDialect {};
        let mut rest = Parser::new(&dialect).with_tokens(tokens);
        let operation = rest.parse_alter_table_operation()?;
        end(&rest)?;
        let text = format!("alter table {name} owner to x");
        let mut statement = Parser::new(&dialect).try_with_sql(&text)?.parse_statement()?;
        if let ast::Statement::AlterTable(alter) = &mut statement {
            (alter.operations, alter.on_cluster) = (vec![operation], Some(ast::Ident::new(DOMAIN)));
        }
        return Ok(Some(Statement::Sql(Box::new(statement))));
    }
    if take(parser, &["alter", "sequence"]) {
        return alter_sequence(parser).map(Some);
    }
    Ok(None)
}

/// Reads CREATE DOMAIN, of which the library does not know NOT NULL.
fn create_domain(parser: &mut Parser<'_>) -> Result<Statement, ParserError> {
    let name = parser.parse_object_name(false)?;
    let _ = parser.parse_keyword(Keyword::AS);
    let data_type = parser.parse_data_type()?;
    let (mut collation, mut default, mut constraints) = (None, None, Vec::new());
    loop {
        let named = match parser.parse_keyword(Keyword::CONSTRAINT) {
            true => Some(parser.parse_identifier()?),
            false => None,
        };
        match parser.parse_optional_column_option()? {
            None if named.is_none() => break,
            Some(ast::ColumnOption::Null) => {}
            Some(ast::ColumnOption::NotNull) => collation = Some(ast::Ident::new(NOT_NULL)),
            Some(ast::ColumnOption::Default(expr)) if default.is_none() => default = Some(expr),
            Some(ast::ColumnOption::Check(check)) => {
                constraints.push(ast::CheckConstraint { name: named.or(check.name), ..check }.into());
            }
            _ => return wrong(parser),
        }
    }
    end(parser)?;
    let domain = ast::CreateDomain { name, data_type, collation, default, constraints };
    Ok(Statement::Sql(Box::new(ast::Statement::CreateDomain(domain))))
}

fn alter_sequence(parser: &mut Parser<'_>) -> Result<Statement, ParserError> {
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let name = parser.parse_object_name(false)?;
    let mut alter =
        AlterSequence { name, if_exists, options: Vec::new(), restart: None, rename: None, owner: None };
    if take(parser, &["rename", "to"]) {
        alter.rename = Some(parser.parse_identifier()?);
    } else if take(parser, &["owner", "to"]) {
        alter.owner = Some(parser.parse_identifier()?);
    } else {
        // The other options are those of CREATE SEQUENCE.
        let mut options = String::from("x");
        while parser.peek_token().token != Token::EOF {
            if !take(parser, &["restart"]) {
                options.push_str(&format!(" {}", parser.next_token()));
                continue;
            }
            let _ = take(parser, &["with"]);
            let is_negative = parser.consume_token(&Token::Minus);
            alter.restart = Some(match parser.peek_token().token {
                Token::Number(digits, _) => {
                    parser.next_token();
                    let text = if is_negative { format!("-{digits}") } else { digits };
                    let number = text.parse().map_err(|_| {
                        ParserError::ParserError(format!("value \"{text}\" is out of range for type bigint"))
                    })?;
                    Some(number)
                }
                _ if is_negative => return wrong(parser),
                _ => None,
            });
        }
        let dialect = sqlparser::dialect::PostgreSqlDialect {};
        let mut rest = Parser::new(&dialect).try_with_sql(&options)?;
        let parsed = rest.parse_create_sequence(false)?;
        end(&rest)?;
        if let ast::Statement::CreateSequence { sequence_options, .. } = parsed {
            alter.options = sequence_options;
        }
        if alter.options.is_empty() && alter.restart.is_none() {
            return wrong(parser);
        }
    }
    end(parser)?;
    Ok(Statement::AlterSequence(alter))
}
