//! Statements that the library does not read.

use sqlparser::{
    ast,
    keywords::Keyword,
    parser::{Parser, ParserError},
    tokenizer::Token,
};

use super::Statement;
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
    for view in [&["alter", "view"][..], &["alter", "materialized", "view"]] {
        if take(parser, view) {
            let name = parser.parse_object_name(false)?;
            if !take(parser, &["owner", "to"]) {
                return Err(ParserError::ParserError("ALTER of a view other than OWNER TO".into()));
            }
            let owner = parser.parse_identifier()?;
            end(parser)?;
            let dialect = sqlparser::dialect::PostgreSqlDialect {};
            let text = format!("alter table {name} owner to {owner}");
            let statement = Parser::new(&dialect).try_with_sql(&text)?.parse_statement()?;
            return Ok(Some(Statement::Sql(Box::new(statement))));
        }
    }
    if take(parser, &["alter", "sequence"]) {
        return alter_sequence(parser).map(Some);
    }
    Ok(None)
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
