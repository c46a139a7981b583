//! What operators of numbers' bits, of texts and of patterns do.

use std::{cell::RefCell, rc::Rc};

use regex::{Regex, RegexBuilder};

use crate::{
    error::{Result, SqlError, code},
    expr,
    types::{Type, Value, numeric::Numeric},
};

/// The most bytes of a compiled pattern.
const MOST_PATTERN: usize = 4 << 20;

/// The patterns that a thread keeps compiled.
const KEPT_PATTERNS: usize = 32;

pub(super) fn bits(all: &[Value], act: fn(i64, i64) -> i64) -> Result<Value> {
    match all {
        [Value::Int(one), Value::Int(other)] => Ok(Value::Int(act(*one, *other))),
        _ => Ok(Value::Null),
    }
}

pub(super) fn bits_of_one(all: &[Value], act: fn(i64) -> i64) -> Result<Value> {
    match all {
        [Value::Int(one)] => Ok(Value::Int(act(*one))),
        _ => Ok(Value::Null),
    }
}

pub(super) fn power(all: &[Value]) -> Result<Value> {
    let [Value::Float(base), Value::Float(exponent)] = all else { return Ok(Value::Null) };
    let invalid = |message: &str| SqlError::new("2201F", message);
    if *base == 0.0 && *exponent < 0.0 {
        return Err(invalid("zero raised to a negative power is undefined"));
    }
    if *base < 0.0 && exponent.is_finite() && exponent.fract() != 0.0 {
        return Err(invalid("a negative number raised to a non-integer power yields a complex result"));
    }
    let result = base.powf(*exponent);
    let out = |what: &str| SqlError::new(code::NUMERIC_OUT_OF_RANGE, format!("value out of range: {what}"));
    match (base.is_finite() && exponent.is_finite(), result) {
        (true, result) if result.is_infinite() => Err(out("overflow")),
        (true, 0.0) if *base != 0.0 => Err(out("underflow")),
        (_, result) => Ok(Value::Float(result)),
    }
}

pub(super) fn power_of_numeric(all: &[Value]) -> Result<Value> {
    match all {
        [Value::Null, _] | [_, Value::Null] => Ok(Value::Null),
        _ => Err(SqlError::unsupported("the operator ^ of type numeric")),
    }
}

pub(super) fn root(all: &[Value], act: fn(f64) -> f64) -> Result<Value> {
    match all {
        [Value::Float(number)] => match act(*number) {
            root if root.is_nan() && !number.is_nan() => {
                Err(SqlError::new("2201F", "cannot take square root of a negative number"))
            }
            root => Ok(Value::Float(root)),
        },
        _ => Ok(Value::Null),
    }
}

pub(super) fn absolute(all: &[Value], of: Type) -> Result<Value> {
    Ok(match all {
        [Value::Int(number)] => {
            let number = number.checked_abs().ok_or_else(|| crate::types::out_of_range(of))?;
            return Value::Int(number).fit(of, false);
        }
        [Value::Float(number)] => Value::Float(number.abs()),
        [Value::Numeric(number)] => Value::Numeric(Numeric { digits: number.digits.abs(), ..*number }),
        _ => Value::Null,
    })
}

pub(super) fn join_bytes(all: &[Value]) -> Result<Value> {
    match all {
        [Value::Bytes(one), Value::Bytes(other)] => Ok(Value::Bytes([&one[..], other].concat())),
        _ => Ok(Value::Null),
    }
}

pub(super) fn starts_with(all: &[Value]) -> Result<Value> {
    match all {
        [Value::Text(text), Value::Text(prefix)] => Ok(Value::Bool(text.starts_with(prefix.as_str()))),
        _ => Ok(Value::Null),
    }
}

pub(super) fn is_like(all: &[Value], ignores_case: bool, wanted: bool) -> Result<Value> {
    match all {
        [Value::Text(text), Value::Text(pattern)] => {
            Ok(Value::Bool(expr::is_like(text, pattern, ignores_case)? == wanted))
        }
        _ => Ok(Value::Null),
    }
}

/// Returns a pattern of LIKE in which the backslash escapes, from one with another such character.
pub(crate) fn escaped_like(all: &[Value]) -> Result<Value> {
    let [Value::Text(pattern), Value::Text(escape)] = all else { return Ok(Value::Null) };
    let escape = escape_of(escape)?;
    if escape == Some('\\') {
        return Ok(Value::Text(pattern.clone()));
    }
    let mut plain = String::with_capacity(pattern.len());
    let mut is_escaped = false;
    for char in pattern.chars() {
        match char {
            char if !is_escaped && Some(char) == escape => {
                plain.push('\\');
                is_escaped = true;
                continue;
            }
            // A backslash behind the escape is escaped already.
            '\\' if !is_escaped => plain.push_str("\\\\"),
            char => plain.push(char),
        }
        is_escaped = false;
    }
    Ok(Value::Text(plain))
}

fn escape_of(text: &str) -> Result<Option<char>> {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (escape, None) => Ok(escape),
        _ => {
            let error = SqlError::new("22025", "invalid escape string");
            Err(error.with_detail("Escape string must be empty or one character."))
        }
    }
}

pub(super) fn matches(all: &[Value], ignores_case: bool, wanted: bool) -> Result<Value> {
    match all {
        [Value::Text(text), Value::Text(pattern)] => {
            Ok(Value::Bool(compiled(pattern, ignores_case)?.is_match(text) == wanted))
        }
        _ => Ok(Value::Null),
    }
}

/// Returns whether a text matches a pattern of SIMILAR TO, which may have an escape character.
pub(crate) fn is_similar(all: &[Value]) -> Result<Value> {
    let [Value::Text(text), Value::Text(pattern), Value::Text(escape)] = all else { return Ok(Value::Null) };
    let pattern = similar(pattern, escape_of(escape)?)?;
    Ok(Value::Bool(compiled(&pattern, false)?.is_match(text)))
}

/// Returns the regular expression of a pattern of SIMILAR TO.
fn similar(pattern: &str, escape: Option<char>) -> Result<String> {
    let mut regular = String::from("^(?:");
    let mut is_escaped = false;
    let mut is_class = false;
    for char in pattern.chars() {
        match char {
            char if is_escaped => {
                if char == '"' {
                    return Err(SqlError::unsupported("an escape with \" in SIMILAR TO"));
                }
                if !char.is_alphanumeric() {
                    regular.push('\\');
                }
                regular.push(char);
                is_escaped = false;
            }
            char if Some(char) == escape => is_escaped = true,
            '\\' => regular.push_str("\\\\"),
            char if is_class => {
                is_class = char != ']';
                regular.push(char);
            }
            '[' => {
                is_class = true;
                regular.push('[');
            }
            '%' => regular.push_str(".*"),
            '_' => regular.push('.'),
            '(' => regular.push_str("(?:"),
            '.' | '^' | '$' => {
                regular.push('\\');
                regular.push(char);
            }
            char => regular.push(char),
        }
    }
    regular.push_str(")$");
    Ok(regular)
}

thread_local! {
    /// The patterns in use, the last used one at the end.
    static COMPILED: RefCell<Vec<(String, bool, Rc<Regex>)>> = const { RefCell::new(Vec::new()) };
}

/// Returns a regular expression of PostgreSQL, compiled.
///
/// # Errors
/// It is none, or it has parts that cannot be searched for in linear time.
pub(crate) fn compiled(pattern: &str, ignores_case: bool) -> Result<Rc<Regex>> {
    COMPILED.with_borrow_mut(|kept| {
        let is_it = |(known, ignores, _): &(String, bool, _)| known == pattern && *ignores == ignores_case;
        if let Some(at) = kept.iter().rposition(is_it) {
            let found = kept.remove(at);
            kept.push(found.clone());
            return Ok(found.2);
        }
        let invalid = |reason: &dyn std::fmt::Display| {
            SqlError::new("2201B", format!("invalid regular expression: {reason}"))
        };
        let translated = Translator::default().translate(pattern, ignores_case)?;
        let regex = RegexBuilder::new(&translated)
            .dot_matches_new_line(true)
            .size_limit(MOST_PATTERN)
            .dfa_size_limit(MOST_PATTERN)
            .nest_limit(100)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => invalid(&"regular expression is too complex"),
                error => invalid(&error.to_string().lines().last().unwrap_or_default()),
            })?;
        let regex = Rc::new(regex);
        if kept.len() == KEPT_PATTERNS {
            kept.remove(0);
        }
        kept.push((pattern.to_owned(), ignores_case, regex.clone()));
        Ok(regex)
    })
}

/// Writes regular expressions of PostgreSQL as those of the library.
#[derive(Default)]
struct Translator {
    to: String,
}

fn invalid(reason: &str) -> SqlError {
    SqlError::new("2201B", format!("invalid regular expression: {reason}"))
}

impl Translator {
    fn translate(mut self, pattern: &str, ignores_case: bool) -> Result<String> {
        let mut pattern = pattern.strip_prefix("***:").unwrap_or(pattern);
        if let Some(literal) = pattern.strip_prefix("***=") {
            let flags = if ignores_case { "(?i)" } else { "" };
            return Ok(format!("{flags}{}", regex::escape(literal)));
        }
        let mut ignores_case = ignores_case;
        if let Some((options, rest)) = pattern.strip_prefix("(?").and_then(|rest| rest.split_once(')'))
            && !options.is_empty()
            && options.bytes().all(|byte| byte.is_ascii_lowercase())
        {
            for option in options.chars() {
                match option {
                    'i' => ignores_case = true,
                    'c' => ignores_case = false,
                    's' | 't' => {}
                    other => return Err(SqlError::unsupported(format!("the option {other} of a pattern"))),
                }
            }
            pattern = rest;
        }
        if ignores_case {
            self.to.push_str("(?i)");
        }
        let mut chars = pattern.chars().peekable();
        while let Some(char) = chars.next() {
            match char {
                '\\' => self.escape(&mut chars)?,
                '[' => self.class(&mut chars)?,
                '(' if chars.peek() == Some(&'?') => {
                    chars.next();
                    match chars.next() {
                        Some(':') => self.to.push_str("(?:"),
                        Some('=' | '!' | '<') => {
                            return Err(SqlError::unsupported("a pattern that looks ahead or behind"));
                        }
                        _ => return Err(invalid("quantifier operand invalid")),
                    }
                }
                // A brace without a number is itself.
                '{' if !chars.peek().is_some_and(char::is_ascii_digit) => self.to.push_str("\\{"),
                '}' if !self.is_in_bound() => self.to.push_str("\\}"),
                char => self.to.push(char),
            }
        }
        Ok(self.to)
    }

    /// Returns whether the text so far ends in a bound that is open.
    fn is_in_bound(&self) -> bool {
        let digits = self.to.trim_end_matches(|char: char| char.is_ascii_digit() || char == ',');
        digits.len() < self.to.len() && digits.ends_with('{') && !digits.ends_with("\\{")
    }

    fn escape(&mut self, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<()> {
        let char = chars.next().ok_or_else(|| invalid("invalid escape \\ sequence"))?;
        match char {
            'm' => self.to.push_str("\\b{start}"),
            'M' => self.to.push_str("\\b{end}"),
            'y' => self.to.push_str("\\b"),
            'Y' => self.to.push_str("\\B"),
            'A' => self.to.push_str("\\A"),
            'Z' => self.to.push_str("\\z"),
            'd' => self.to.push_str("[0-9]"),
            'D' => self.to.push_str("[^0-9]"),
            's' | 'S' | 'w' | 'W' => {
                self.to.push('\\');
                self.to.push(char);
            }
            '1'..='9' => return Err(SqlError::unsupported("a pattern with a back reference")),
            char => {
                let char = self.character(char, chars)?;
                self.to.push_str(&regex::escape(&char.to_string()));
            }
        }
        Ok(())
    }

    /// Returns the character that an escape means.
    fn character(&self, char: char, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<char> {
        let wrong = || invalid("invalid escape \\ sequence");
        let mut code = |digits: usize| {
            let text: String = (0..digits).map_while(|_| chars.next_if(char::is_ascii_hexdigit)).collect();
            let whole = digits == 255 || text.len() == digits;
            u32::from_str_radix(&text, 16).ok().filter(|_| whole).and_then(char::from_u32).ok_or_else(wrong)
        };
        Ok(match char {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'B' => '\\',
            'e' => '\u{1b}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '0' => '\0',
            'u' => code(4)?,
            'U' => code(8)?,
            'x' => code(255)?,
            'c' => {
                let letter = chars.next().ok_or_else(wrong)?;
                char::from_u32(u32::from(letter) & 31).ok_or_else(wrong)?
            }
            char if char.is_ascii_alphanumeric() => return Err(wrong()),
            char => char,
        })
    }

    /// Writes a class of characters in brackets.
    fn class(&mut self, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<()> {
        let open = || invalid("brackets [] not balanced");
        self.to.push('[');
        if chars.next_if_eq(&'^').is_some() {
            self.to.push('^');
        }
        let mut is_first = true;
        loop {
            let char = chars.next().ok_or_else(open)?;
            match char {
                ']' if !is_first => break,
                '[' if matches!(chars.peek(), Some(':' | '.' | '=')) => {
                    let mark = chars.next().ok_or_else(open)?;
                    let mut name = String::new();
                    loop {
                        let char = chars.next().ok_or_else(open)?;
                        if char == mark && chars.next_if_eq(&']').is_some() {
                            break;
                        }
                        name.push(char);
                    }
                    self.named_class(mark, &name)?;
                }
                '\\' => match chars.peek() {
                    Some('d') => {
                        chars.next();
                        self.to.push_str("0-9");
                    }
                    Some(class @ ('s' | 'w')) => {
                        self.to.push('\\');
                        self.to.push(*class);
                        chars.next();
                    }
                    _ => {
                        let char = chars.next().ok_or_else(open)?;
                        let char = self.character(char, chars)?;
                        self.literal(char);
                    }
                },
                // A range, unless it is the last character.
                '-' if !is_first && chars.peek() != Some(&']') => self.to.push('-'),
                char => self.literal(char),
            }
            is_first = false;
        }
        self.to.push(']');
        Ok(())
    }

    fn literal(&mut self, char: char) {
        if char.is_ascii_punctuation() {
            self.to.push('\\');
        }
        self.to.push(char);
    }

    fn named_class(&mut self, mark: char, name: &str) -> Result<()> {
        let class = match (mark, name) {
            (':', "alpha") => "\\p{Alphabetic}",
            (':', "upper") => "\\p{Uppercase}",
            (':', "lower") => "\\p{Lowercase}",
            (':', "alnum") => "\\p{Alphabetic}0-9",
            (':', "space") => "\\s",
            (':', "word") => "\\w",
            (':', "digit" | "punct" | "blank" | "cntrl" | "graph" | "print" | "xdigit" | "ascii") => {
                self.to.push_str(&format!("[:{name}:]"));
                return Ok(());
            }
            (':', _) => return Err(invalid("invalid character class")),
            (_, name) if name.chars().count() == 1 => {
                name.chars().for_each(|char| self.literal(char));
                return Ok(());
            }
            _ => return Err(SqlError::unsupported("a collating element in a pattern")),
        };
        self.to.push_str(class);
        Ok(())
    }
}
