//! `COPY` with its options, also in the form of old clients.

use sqlparser::{
    ast::{self, Ident},
    keywords::Keyword,
    parser::{Parser, ParserError},
    tokenizer::Token,
};

use super::{Copy, folded, own::take};
use crate::{
    copy::{CopyFormat, CopyHeader, CopyOptions, ForcedColumns},
    error::{Result, SqlError, code, error},
};

/// The value of an option.
enum OptionValue {
    None,
    /// A word or a literal.
    Text(String),
    Columns(ForcedColumns),
}

type Options = Vec<(String, OptionValue)>;

fn wrong<T>(parser: &Parser<'_>) -> std::result::Result<T, ParserError> {
    Err(ParserError::ParserError(format!("unexpected {}", parser.peek_token())))
}

/// Reads what follows the word COPY. The error in the result is of an option.
pub(super) fn copy(parser: &mut Parser<'_>) -> std::result::Result<Result<Copy>, ParserError> {
    let mut options = Options::new();
    let (mut table, mut columns, mut query) = (None, Vec::new(), None);
    if parser.consume_token(&Token::LParen) {
        query = Some(Box::new(ast::Statement::Query(parser.parse_query()?)));
        parser.expect_token(&Token::RParen)?;
    } else {
        if take(parser, &["binary"]) {
            options.push(("format".into(), OptionValue::Text("binary".into())));
        }
        table = Some(parser.parse_object_name(false)?);
        if parser.consume_token(&Token::LParen) {
            columns = names(parser)?;
            parser.expect_token(&Token::RParen)?;
        }
    }
    let is_from = query.is_none() && take(parser, &["from"]);
    if !is_from && !take(parser, &["to"]) {
        return wrong(parser);
    }
    let is_client = take(parser, &["stdin"]) || take(parser, &["stdout"]);
    if !is_client {
        return Ok(Err(SqlError::unsupported("COPY of a file")));
    }
    if take(parser, &["using", "delimiters"]) || take(parser, &["delimiters"]) {
        options.push(("delimiter".into(), OptionValue::Text(parser.parse_literal_string()?)));
    }
    let _ = take(parser, &["with"]);
    match parser.consume_token(&Token::LParen) {
        true => {
            options.extend(parser.parse_comma_separated(option)?);
            parser.expect_token(&Token::RParen)?;
        }
        false => old_options(parser, &mut options)?,
    }
    if is_from && take(parser, &["where"]) {
        return Ok(Err(SqlError::unsupported("COPY FROM with WHERE")));
    }
    let table = table.map(|table| super::relation(&table)).transpose();
    Ok(table.and_then(|table| {
        let options = checked(options, is_from)?;
        Ok(Copy { table: table.unwrap_or_default(), columns, is_from, query, options })
    }))
}

fn names(parser: &mut Parser<'_>) -> std::result::Result<Vec<String>, ParserError> {
    let names: Vec<Ident> = parser.parse_comma_separated(Parser::parse_identifier)?;
    Ok(names.iter().map(folded).collect())
}

/// Reads `name [value]`.
fn option(parser: &mut Parser<'_>) -> std::result::Result<(String, OptionValue), ParserError> {
    let name = folded(&parser.parse_identifier()?);
    let value = match parser.peek_token().token {
        Token::Comma | Token::RParen => OptionValue::None,
        Token::Mul => {
            parser.advance_token();
            OptionValue::Columns(ForcedColumns::All)
        }
        Token::LParen => {
            parser.advance_token();
            let names = names(parser)?;
            parser.expect_token(&Token::RParen)?;
            OptionValue::Columns(ForcedColumns::Named(names))
        }
        Token::Number(number, _) => {
            parser.advance_token();
            OptionValue::Text(number)
        }
        Token::Word(_) => OptionValue::Text(folded(&parser.parse_identifier()?)),
        _ => OptionValue::Text(parser.parse_literal_string()?),
    };
    Ok((name, value))
}

/// Reads options as they were written before PostgreSQL 9.0.
fn old_options(parser: &mut Parser<'_>, options: &mut Options) -> std::result::Result<(), ParserError> {
    loop {
        let flags = [("binary", "format"), ("csv", "format"), ("header", "header"), ("freeze", "freeze")];
        if let Some((word, name)) = flags.into_iter().find(|(word, _)| take(parser, &[*word])) {
            let value = if name == "format" { word } else { "true" };
            options.push((name.into(), OptionValue::Text(value.into())));
        } else if take(parser, &["force"]) {
            let name = match (take(parser, &["quote"]), take(parser, &["not", "null"])) {
                (true, _) => "force_quote",
                (_, true) => "force_not_null",
                _ if take(parser, &["null"]) => "force_null",
                _ => return wrong(parser),
            };
            let columns = match parser.consume_token(&Token::Mul) {
                true => ForcedColumns::All,
                false => ForcedColumns::Named(names(parser)?),
            };
            options.push((name.into(), OptionValue::Columns(columns)));
        } else if let Some(name) = ["delimiter", "null", "quote", "escape", "encoding"]
            .into_iter()
            .find(|name| take(parser, &[*name]))
        {
            let _ = parser.parse_keyword(Keyword::AS);
            options.push((name.into(), OptionValue::Text(parser.parse_literal_string()?)));
        } else {
            return Ok(());
        }
    }
}

/// Checks options in PostgreSQL's order.
fn checked(all: Options, is_from: bool) -> Result<CopyOptions> {
    let syntax = |message: String| Err(SqlError::new(code::SYNTAX_ERROR, message));
    let unsupported = |message: String| Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message));
    let invalid = |message: String| Err(SqlError::new(code::INVALID_PARAMETER_VALUE, message));
    let mut options = CopyOptions::default();
    let (mut delimiter, mut null, mut quote, mut escape) = (None, None, None, None);
    let mut seen = Vec::new();
    for (name, value) in all {
        if seen.contains(&name) {
            return syntax("conflicting or redundant options".into());
        }
        let columns = match &value {
            OptionValue::Columns(columns) => columns.clone(),
            _ => ForcedColumns::default(),
        };
        let text = match (&value, &*name) {
            (OptionValue::Columns(_), _) => String::new(),
            (_, "force_quote" | "force_not_null" | "force_null") => {
                return invalid(format!("argument to option \"{name}\" must be a list of column names"));
            }
            (OptionValue::Text(text), _) => text.clone(),
            (OptionValue::None, "header" | "freeze") => "true".into(),
            (OptionValue::None, "format" | "delimiter" | "null" | "quote" | "escape" | "encoding") => {
                return syntax(format!("{name} requires a parameter"));
            }
            _ => String::new(),
        };
        let boolean = match &*text.to_ascii_lowercase() {
            "true" | "on" | "1" => Some(true),
            "false" | "off" | "0" => Some(false),
            _ => None,
        };
        match &*name {
            "format" => {
                options.format = match &*text {
                    "text" => CopyFormat::Text,
                    "csv" => CopyFormat::Csv,
                    "binary" => CopyFormat::Binary,
                    _ => return invalid(format!("COPY format \"{text}\" not recognized")),
                }
            }
            "header" => {
                options.header = match boolean {
                    Some(true) => CopyHeader::Names,
                    Some(false) => CopyHeader::None,
                    None if text.eq_ignore_ascii_case("match") && is_from => CopyHeader::Match,
                    None if text.eq_ignore_ascii_case("match") => {
                        return unsupported("cannot use \"match\" with HEADER in COPY TO".into());
                    }
                    None => return syntax("header requires a Boolean value or \"match\"".into()),
                }
            }
            "delimiter" => delimiter = Some(text),
            "null" => null = Some(text),
            "quote" => quote = Some(text),
            "escape" => escape = Some(text),
            "force_quote" => options.force_quote = columns,
            "force_not_null" => options.force_not_null = columns,
            "force_null" => options.force_null = columns,
            // All rows are written in the same way.
            "freeze" => {}
            "encoding" => match &*text.to_ascii_lowercase().replace(['-', '_'], "") {
                "utf8" | "unicode" => {}
                _ => return Err(SqlError::unsupported(format!("COPY with the encoding {text}"))),
            },
            _ => return syntax(format!("option \"{name}\" not recognized")),
        }
        seen.push(name);
    }
    let (is_csv, is_binary) = (options.format == CopyFormat::Csv, options.format == CopyFormat::Binary);
    for (name, value) in [("DELIMITER", &delimiter), ("NULL", &null)] {
        if is_binary && value.is_some() {
            return syntax(format!("cannot specify {name} in BINARY mode"));
        }
    }
    if is_csv {
        (options.delimiter, options.null) = (b',', String::new());
    }
    let byte = |what: &str, text: Option<String>, first: u8| match text.as_ref().map(|text| text.as_bytes()) {
        None => Ok(first),
        Some([byte]) => Ok(*byte),
        Some(_) => Err(error!(FEATURE_NOT_SUPPORTED, "COPY {what} must be a single one-byte character")),
    };
    options.delimiter = byte("delimiter", delimiter, options.delimiter)?;
    if matches!(options.delimiter, b'\n' | b'\r') {
        return invalid("COPY delimiter cannot be newline or carriage return".into());
    }
    options.null = null.unwrap_or(options.null);
    if options.null.contains(['\n', '\r']) {
        return invalid("COPY null representation cannot use newline or carriage return".into());
    }
    let sign = char::from(options.delimiter);
    if !is_csv && matches!(options.delimiter, b'\\' | b'.' | b'a'..=b'z' | b'0'..=b'9') {
        return invalid(format!("COPY delimiter cannot be \"{sign}\""));
    }
    if is_binary && options.header != CopyHeader::None {
        return unsupported("cannot specify HEADER in BINARY mode".into());
    }
    for (name, value) in [("quote", &quote), ("escape", &escape)] {
        if !is_csv && value.is_some() {
            return unsupported(format!("COPY {name} available only in CSV mode"));
        }
        if name == "quote" {
            options.quote = byte(name, quote.clone(), options.quote)?;
            if is_csv && options.delimiter == options.quote {
                return invalid("COPY delimiter and quote must be different".into());
            }
        }
    }
    options.escape = byte("escape", escape, options.quote)?;
    let forced = [
        ("quote", &options.force_quote, false),
        ("not null", &options.force_not_null, true),
        ("null", &options.force_null, true),
    ];
    for (name, columns, needs_from) in forced {
        if *columns == ForcedColumns::default() {
            continue;
        }
        if !is_csv {
            return unsupported(format!("COPY force {name} available only in CSV mode"));
        }
        if is_from != needs_from {
            let way = if needs_from { "FROM" } else { "TO" };
            return unsupported(format!("COPY force {name} only available using COPY {way}"));
        }
    }
    if options.null.contains(sign) {
        return unsupported("COPY delimiter must not appear in the NULL specification".into());
    }
    if is_csv && options.null.contains(char::from(options.quote)) {
        return unsupported("CSV quote character must not appear in the NULL specification".into());
    }
    Ok(options)
}
