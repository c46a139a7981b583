//! Statements that differ only in their literals: they share a plan.
//!
//! Clients of simple queries write values into the text. The shape of such a text has a parameter
//! in the place of each literal, so the statement is parsed and planned once. A text whose meaning
//! could change with that has no shape.

use crate::{
    error::Result,
    types::{Type, Value, numeric::Numeric, text},
};

/// The most literals of a shape.
const MOST_LITERALS: usize = 64;

/// The first words of statements that have a shape.
const FIRST_WORDS: [&str; 8] = ["select", "insert", "update", "delete", "begin", "commit", "end", "rollback"];

/// The words behind which a literal is no value: a place in a list, or a part of a type.
const REFUSED_WORDS: [&str; 7] = ["order", "group", "interval", "date", "time", "timestamp", "timestamptz"];

/// A value that a client has written into the text of a statement.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Literal {
    Number(Type, Value),
    Text(String),
}

/// A statement without its literals.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Shape {
    /// The statement, with `$1` and so on in the places of literals; behind it a letter for the
    /// type of each.
    pub(crate) key: String,
    /// The end of the statement in `key`.
    end: usize,
    pub(crate) literals: Vec<Literal>,
}

impl Literal {
    /// Returns the type of its parameter; the statement decides that of a text.
    pub(crate) fn of(&self) -> Type {
        match self {
            Self::Number(of, _) => *of,
            Self::Text(_) => Type::Unknown,
        }
    }

    /// Returns its value as the type that its parameter has got.
    pub(crate) fn value(self, of: Type) -> Result<Value> {
        match self {
            Self::Number(_, value) => Ok(value),
            Self::Text(text) => text::parse(&text, of),
        }
    }
}

impl Shape {
    /// Returns the shape of a text with one statement.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let mut shape = Self { key: String::with_capacity(text.len() + 16), end: 0, literals: Vec::new() };
        let mut rest = text.trim();
        rest = rest.strip_suffix(';').unwrap_or(rest);
        let mut is_first = true;
        while let Some(first) = rest.chars().next() {
            let part = match first {
                '\'' => shape.add_text(rest)?,
                '0'..='9' => shape.add_number(rest)?,
                '"' => 2 + rest[1..].find('"')?,
                'a'..='z' | 'A'..='Z' | '_' | '\u{80}'.. => {
                    let len = word_len(rest);
                    let word = rest[..len].to_ascii_lowercase();
                    let is_known = FIRST_WORDS.contains(&word.as_str());
                    if is_first && !is_known || REFUSED_WORDS.contains(&word.as_str()) {
                        return None;
                    }
                    // A text with a prefix, or a name that goes on.
                    if rest[len..].starts_with(['\'', '"', '&']) {
                        return None;
                    }
                    len
                }
                '$' | ';' | '\\' => return None,
                '-' if rest.starts_with("--") => return None,
                '/' if rest.starts_with("/*") => return None,
                '.' if rest[1..].starts_with(|next: char| next.is_ascii_digit()) => return None,
                _ => first.len_utf8(),
            };
            if is_first && !first.is_ascii_alphabetic() {
                return None;
            }
            is_first = false;
            if !matches!(first, '\'' | '0'..='9') {
                shape.key.push_str(&rest[..part]);
            }
            rest = &rest[part..];
        }
        shape.end = shape.key.len();
        shape.key.extend(shape.literals.iter().map(|literal| match literal {
            Literal::Text(_) => 't',
            Literal::Number(Type::Int4, _) => 'i',
            Literal::Number(Type::Int8, _) => 'l',
            Literal::Number(..) => 'n',
        }));
        (!is_first).then_some(shape)
    }

    /// Returns the statement with parameters.
    pub(crate) fn text(&self) -> &str {
        &self.key[..self.end]
    }

    fn add(&mut self, literal: Literal) -> Option<()> {
        self.literals.push(literal);
        self.key.push('$');
        self.key.push_str(&self.literals.len().to_string());
        (self.literals.len() <= MOST_LITERALS).then_some(())
    }

    /// Adds the number at the begin of a text. Returns its length.
    fn add_number(&mut self, text: &str) -> Option<usize> {
        let is_part = |char: char| char.is_ascii_digit() || char == '.';
        let len = text.find(|char: char| !is_part(char)).unwrap_or(text.len());
        // A number with an exponent, or none at all.
        if text[len..].starts_with(|next: char| next.is_alphanumeric() || next == '_') {
            return None;
        }
        let (of, value) = number(&text[..len]).ok()?;
        self.add(Literal::Number(of, value))?;
        Some(len)
    }

    /// Adds the text at the begin of a text. Returns its length.
    fn add_text(&mut self, text: &str) -> Option<usize> {
        let (mut value, mut at) = (String::new(), 1);
        loop {
            let end = at + text[at..].find('\'')?;
            value.push_str(&text[at..end]);
            at = end + 1;
            if !text[at..].starts_with('\'') {
                break;
            }
            value.push('\'');
            at += 1;
        }
        self.add(Literal::Text(value))?;
        Some(at)
    }
}

/// Returns a number that a statement has, with its type.
pub(crate) fn number(text: &str) -> Result<(Type, Value)> {
    if let Ok(number) = text.parse::<i64>() {
        let of = if i32::try_from(number).is_ok() { Type::Int4 } else { Type::Int8 };
        return Ok((of, Value::Int(number)));
    }
    Ok((Type::Numeric(None), Value::Numeric(Numeric::parse(text)?)))
}

fn word_len(text: &str) -> usize {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_' || !char.is_ascii();
    text.find(|char: char| !is_part(char)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_parameters() {
        let of = |text| Shape::of(text).map(|shape| (shape.text().to_owned(), shape.literals));
        let int = |number| Literal::Number(Type::Int4, Value::Int(number));
        let text = |text: &str| Literal::Text(text.into());
        assert_eq!(
            of("update a1 set b=b+ -5 where \"c 2\" = 'it''s' ;"),
            Some(("update a1 set b=b+ -$1 where \"c 2\" = $2 ".into(), vec![int(5), text("it's")]))
        );
        let (shown, literals) = of("INSERT INTO t VALUES (1, 2147483648, 1.50, '', NULL)").unwrap();
        assert_eq!(shown, "INSERT INTO t VALUES ($1, $2, $3, $4, NULL)");
        let types: Vec<Type> = literals.iter().map(Literal::of).collect();
        assert_eq!(types, [Type::Int4, Type::Int8, Type::Numeric(None), Type::Unknown]);
        assert_eq!(of("begin"), Some(("begin".into(), Vec::new())));
        assert_ne!(Shape::of("select 1").unwrap().key, Shape::of("select '1'").unwrap().key);
        assert_eq!(Shape::of("select 1").unwrap().key, Shape::of("select 7;").unwrap().key);
    }

    #[test]
    fn a_text_whose_meaning_could_change_has_no_shape() {
        for text in [
            "",
            ";",
            "5",
            "create table t (a numeric(5, 2))",
            "select a from t order by 1",
            "select count(*) from t group by 1",
            "select 1; select 2",
            "select $1",
            "select E'a'",
            "select date '2020-01-01'",
            "select 1e5",
            "select 1a",
            "select .5",
            "select 'a",
            "select \"a",
            "select 1 -- one",
            "select /* one */ 1",
            "select $$a$$",
            "select U&'a'",
            "select '\\x' || x'1'",
        ] {
            assert_eq!(Shape::of(text), None, "{text}");
        }
    }
}
