//! Syntax of PostgreSQL that the library does not know, written as syntax that it knows.

use sqlparser::{
    ast,
    keywords::Keyword,
    tokenizer::{Token, TokenWithSpan, Whitespace},
};

use super::expression;
use crate::error::Result;

/// The table of which FOR UPDATE and FOR SHARE are, if FOR NO KEY UPDATE or FOR KEY SHARE was
/// meant: the library does not know them.
pub(crate) const WEAKER_LOCK: &str = "weaker lock";

/// The name of the argument that stands behind the word VARIADIC: the library does not know it.
pub(crate) const VARIADIC: &str = "variadic argument";

/// The text behind the number of CACHE before the name of the sequence of an identity column.
pub(crate) const SEQUENCE_NAME: &str = " sequence name ";

/// The comment of a table or materialized view that begins without the rows of its query.
pub(crate) const NO_DATA: &str = "\u{1}without data";

/// The cluster of a table that stands for a domain.
pub(crate) const DOMAIN: &str = "\u{1}domain";

/// The collation of a domain that is NOT NULL.
pub(crate) const NOT_NULL: &str = "\u{1}not null";

/// The beginning of a string that stands for an expression in FETCH FIRST.
const FETCHED: &str = "\u{1}fetch ";

/// The text that is the default of a column whose identity is dropped, and the one with IF EXISTS.
const DROP_IDENTITY: [&str; 2] = ["\u{1}drop identity", "\u{1}drop identity if exists"];

/// Returns true if a token is this word, without quotes.
fn is_word(token: &TokenWithSpan, wanted: &str) -> bool {
    match &token.token {
        Token::Word(word) => word.quote_style.is_none() && word.value.eq_ignore_ascii_case(wanted),
        _ => false,
    }
}

/// Returns the places of the tokens that are no white space.
fn places(tokens: &[TokenWithSpan]) -> Vec<usize> {
    (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect()
}

/// Writes FOR NO KEY UPDATE and FOR KEY SHARE as [`WEAKER_LOCK`] says.
pub(super) fn know_weaker_locks(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let words = places(&tokens);
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
pub(super) fn know_variadic(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
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

/// Writes the query `TABLE t` as `SELECT * FROM t`.
pub(super) fn know_table(mut tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let words = places(&tokens);
    let is = |place: usize, all: &[&str]| all.iter().any(|word| is_word(&tokens[words[place]], word));
    // Elsewhere `AS table` is the name of a column.
    let is_first_as = |place: usize| {
        is(0, &["create", "prepare"]) && is(place, &["as"]) && !(0..place).any(|before| is(before, &["as"]))
    };
    let begins = |place: usize| {
        tokens[words[place]].token == Token::LParen
            || is(place, &["union", "except", "intersect", "all"])
            || is_first_as(place)
    };
    let is_query = |place: &usize| is(*place, &["table"]) && (*place == 0 || begins(*place - 1));
    let found: Vec<usize> = (0..words.len()).filter(is_query).map(|place| words[place]).collect();
    for at in found.into_iter().rev() {
        let select = [Token::make_keyword("SELECT"), Token::Mul, Token::make_keyword("FROM")];
        let span = tokens[at].span;
        tokens.splice(at..=at, select.map(|token| TokenWithSpan { token, span }));
    }
    tokens
}

/// Writes the expression of `FETCH FIRST (…) ROWS` as a string, because the library knows numbers
/// only.
pub(super) fn know_fetched(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let is_any = |token: &TokenWithSpan, words: &[Keyword]| matches!(&token.token, Token::Word(word) if words.contains(&word.keyword));
    if !tokens.iter().any(|token| is_any(token, &[Keyword::FETCH])) {
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
        let is_behind = before.next().is_some_and(|token| is_any(token, &[Keyword::FIRST, Keyword::NEXT]))
            && before.next().is_some_and(|token| is_any(token, &[Keyword::FETCH]));
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

/// Removes `WITH DATA` or `WITH NO DATA` from the end of a CREATE statement. Returns false for the
/// second.
pub(super) fn remove_with_data(tokens: &mut Vec<TokenWithSpan>) -> bool {
    let places = places(tokens);
    if !places.first().is_some_and(|at| is_word(&tokens[*at], "create")) {
        return true;
    }
    for (end, has_data) in [(&["with", "no", "data"][..], false), (&["with", "data"], true)] {
        let Some(start) = places.len().checked_sub(end.len()) else { continue };
        if places[start..].iter().zip(end).all(|(at, word)| is_word(&tokens[*at], word)) {
            tokens.truncate(places[start]);
            return has_data;
        }
    }
    true
}

/// Writes the name of the sequence of an identity column as [`SEQUENCE_NAME`] says.
pub(super) fn know_sequence_name(tokens: &mut Vec<TokenWithSpan>) {
    let places = places(tokens);
    let is_it = |at: usize, word: &str| is_word(&tokens[at], word);
    let is_changed = places.first().is_some_and(|at| is_it(*at, "create") || is_it(*at, "alter"));
    let named = places.windows(5).find(|next| {
        is_it(next[0], "identity")
            && tokens[next[1]].token == Token::LParen
            && is_it(next[2], "sequence")
            && is_it(next[3], "name")
    });
    let Some(&[_, _, first, _, start]) = named.filter(|_| is_changed) else { return };
    let is_name = |token: &&TokenWithSpan| matches!(token.token, Token::Word(_) | Token::Period);
    let end = start + tokens[start..].iter().take_while(is_name).count();
    let name: String = tokens[start..end].iter().map(|token| token.token.to_string()).collect();
    let span = tokens[first].span;
    let named = |count: &str| Token::Number(format!("{count}{SEQUENCE_NAME}{name}"), false);
    let is_end = |token: &TokenWithSpan| token.token == Token::RParen;
    let options = end..tokens[end..].iter().position(is_end).map_or(tokens.len(), |count| end + count);
    let cache = tokens[options.clone()].iter().position(|token| is_word(token, "cache"));
    let count = cache.and_then(|cache| {
        let rest = tokens[end + cache..options.end].iter_mut();
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

/// Takes CONCURRENTLY out of DROP INDEX, which waits for others anyway.
pub(super) fn know_drop_concurrently(tokens: &mut Vec<TokenWithSpan>) {
    if let [first, second, third, ..] = places(tokens)[..]
        && is_word(&tokens[first], "drop")
        && is_word(&tokens[second], "index")
        && is_word(&tokens[third], "concurrently")
    {
        tokens.remove(third);
    }
}

/// Writes `ALTER … DROP IDENTITY` as SET DEFAULT of [`DROP_IDENTITY`].
pub(super) fn know_drop_identity(tokens: &mut Vec<TokenWithSpan>) {
    let places = places(tokens);
    if !places.first().is_some_and(|at| is_word(&tokens[*at], "alter")) {
        return;
    }
    let at = |place: usize, all: &[&str]| {
        places[place..].len() >= all.len()
            && places[place..].iter().zip(all).all(|(at, word)| is_word(&tokens[*at], word))
    };
    let Some(found) = (0..places.len()).find(|place| at(*place, &["drop", "identity"])) else { return };
    let if_exists = at(found + 2, &["if", "exists"]);
    let (first, last) = (places[found], places[found + if if_exists { 3 } else { 1 }]);
    let text = DROP_IDENTITY[usize::from(if_exists)].to_owned();
    let span = tokens[first].span;
    let written = [
        Token::make_keyword("SET"),
        Token::Whitespace(Whitespace::Space),
        Token::make_keyword("DEFAULT"),
        Token::SingleQuotedString(text),
    ];
    tokens.splice(first..=last, written.map(|token| TokenWithSpan { token, span }));
}

/// Returns whether a default drops the identity of its column: `true` with IF EXISTS.
pub(crate) fn drops_identity(value: &ast::Expr) -> Option<bool> {
    let ast::Expr::Value(value) = value else { return None };
    let ast::Value::SingleQuotedString(text) = &value.value else { return None };
    DROP_IDENTITY.iter().position(|known| known == text).map(|at| at == 1)
}
