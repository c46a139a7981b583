//! Regular expressions (chapter 9.7 of PostgreSQL's manual), by the library `fancy-regex`: this
//! module translates PostgreSQL's syntax to that of the library. An alternation prefers its first
//! branch that matches, where PostgreSQL prefers the longest match.

use std::{cell::RefCell, iter::Peekable, rc::Rc, str::Chars};

use fancy_regex::{Captures, Regex, RegexBuilder};

use super::{Call, Declared, MOST_BYTES, function, invalid_parameter, like::is_like, ok, too_long};
use crate::{
    error::{Result, SqlError, code, error},
    types::Value,
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("regexp_count(text, text, [int4], [text]) int4", regexp_count),
    function("regexp_instr(text, text, [int4], [int4], [int4], [text], [int4]) int4", regexp_instr),
    function("regexp_like(text, text, [text]) bool", regexp_like),
    function("regexp_match(text, text, [text]) _text", regexp_match),
    function("regexp_replace(text, text, text, [text]) text", regexp_replace),
    function("regexp_replace(text, text, text, int4, [int4], [text]) text", regexp_replace_from),
    function("regexp_split_to_array(text, text, [text]) _text", regexp_split),
    function("regexp_substr(text, text, [int4], [int4], [text], [int4]) text", regexp_substr),
    function("substring(text, text) text", substring),
    function("~(text, text) bool", |call| ok(matches(call.text(0), call.text(1), "")?)),
    function("~*(text, text) bool", |call| ok(matches(call.text(0), call.text(1), "i")?)),
    function("~~(text, text) bool", |call| ok(is_like(call.text(0), call.text(1), false)?)),
    function("~~*(text, text) bool", |call| ok(is_like(call.text(0), call.text(1), true)?)),
];

/// The compiled expressions that a thread keeps.
const MOST_KEPT: usize = 32;

/// The steps of a match that goes back, and the bytes of a compiled expression.
const MOST_STEPS: usize = 1_000_000;
const MOST_COMPILED: usize = 10 << 20;

fn invalid(message: impl std::fmt::Display) -> SqlError {
    error!("2201B", "invalid regular expression: {message}")
}

/// Compiles an expression of PostgreSQL with flags as those of `regexp_match`.
pub(crate) fn regex(pattern: &str, flags: &str) -> Result<Rc<Regex>> {
    thread_local! {
        static KEPT: RefCell<Vec<((String, String), Rc<Regex>)>> = const { RefCell::new(Vec::new()) };
    }
    let kept = KEPT.with_borrow_mut(|kept| {
        let at = kept.iter().position(|((known, with), _)| known == pattern && with == flags)?;
        let last = kept.remove(at);
        let found = last.1.clone();
        kept.push(last);
        Some(found)
    });
    if let Some(found) = kept {
        return Ok(found);
    }
    let translated = Options::read(flags)?.translate(pattern)?;
    let built = RegexBuilder::new(&translated)
        .backtrack_limit(MOST_STEPS)
        .delegate_size_limit(MOST_COMPILED)
        .delegate_dfa_size_limit(MOST_COMPILED)
        .build()
        .map_err(invalid)?;
    let built = Rc::new(built);
    KEPT.with_borrow_mut(|kept| {
        if kept.len() >= MOST_KEPT {
            kept.remove(0);
        }
        kept.push(((pattern.to_owned(), flags.to_owned()), built.clone()));
    });
    Ok(built)
}

/// Returns whether an expression matches a part of a text.
pub(super) fn matches(text: &str, pattern: &str, flags: &str) -> Result<bool> {
    regex(pattern, flags)?.is_match(text).map_err(|_| too_complex())
}

fn too_complex() -> SqlError {
    SqlError::new("2201B", "regular expression failed: it is too complex for this text")
}

/// The options of an expression.
#[derive(Clone, Copy, Default)]
struct Options {
    ignores_case: bool,
    is_literal: bool,
    is_expanded: bool,
    /// The dot and complements do not match line ends.
    dot_stops: bool,
    /// `^` and `$` match at each line.
    by_line: bool,
}

impl Options {
    fn read(flags: &str) -> Result<Self> {
        let mut options = Self::default();
        for flag in flags.chars() {
            match flag {
                'g' | 't' | 'e' | 'b' => {}
                'i' => options.ignores_case = true,
                'c' => options.ignores_case = false,
                'n' | 'm' => (options.dot_stops, options.by_line) = (true, true),
                'p' => (options.dot_stops, options.by_line) = (true, false),
                'w' => (options.dot_stops, options.by_line) = (false, true),
                's' => (options.dot_stops, options.by_line) = (false, false),
                'q' => options.is_literal = true,
                'x' => options.is_expanded = true,
                other => {
                    let message = format!("invalid regular expression option: \"{other}\"");
                    return Err(invalid_parameter(message));
                }
            }
        }
        Ok(options)
    }

    /// Returns the expression in the syntax of the library.
    fn translate(mut self, pattern: &str) -> Result<String> {
        let mut rest = pattern;
        if let Some(literal) = rest.strip_prefix("***=") {
            (self.is_literal, rest) = (true, literal);
        } else if let Some(advanced) = rest.strip_prefix("***:") {
            rest = advanced;
        }
        if !self.is_literal
            && let Some(inner) = rest.strip_prefix("(?")
            && let Some(end) = inner.find(')')
            && end > 0
            && inner[..end].bytes().all(|byte| byte.is_ascii_lowercase())
        {
            let embedded = Self::read(&inner[..end]).map_err(|_| invalid("invalid embedded option"))?;
            self.ignores_case |= embedded.ignores_case && !inner[..end].contains('c');
            self.is_literal |= embedded.is_literal;
            self.is_expanded |= embedded.is_expanded;
            if inner[..end].contains(['n', 'm', 'p', 'w', 's']) {
                (self.dot_stops, self.by_line) = (embedded.dot_stops, embedded.by_line);
            }
            rest = &inner[end + 1..];
        }
        let mut options = String::from("(?");
        for (flag, is_on) in
            [('i', self.ignores_case), ('s', !self.dot_stops), ('m', self.by_line), ('x', self.is_expanded)]
        {
            if is_on {
                options.push(flag);
            }
        }
        let body = match self.is_literal {
            true => fancy_regex::escape(rest).into_owned(),
            false => self.translate_body(rest)?,
        };
        Ok(match options.as_str() {
            "(?" => body,
            options => format!("{options}){body}"),
        })
    }

    fn translate_body(self, pattern: &str) -> Result<String> {
        let mut made = String::with_capacity(pattern.len() + 8);
        let mut chars = pattern.chars().peekable();
        while let Some(char) = chars.next() {
            match char {
                '\\' => put_escape(&mut made, &mut chars, false)?,
                '[' => self.put_bracket(&mut made, &mut chars)?,
                '{' if !chars.peek().is_some_and(char::is_ascii_digit) => made.push_str("\\{"),
                '#' if !self.is_expanded => made.push_str("\\#"),
                char => made.push(char),
            }
        }
        Ok(made)
    }

    /// Translates a set of characters, behind its bracket.
    fn put_bracket(self, made: &mut String, chars: &mut Peekable<Chars<'_>>) -> Result<()> {
        let unbalanced = || invalid("brackets [] not balanced");
        let mut set = String::from("[");
        let is_complement = chars.next_if_eq(&'^').is_some();
        if is_complement {
            set.push('^');
            if self.dot_stops {
                set.push_str("\\n");
            }
        }
        let mut is_first = true;
        loop {
            let char = chars.next().ok_or_else(unbalanced)?;
            match char {
                ']' if !is_first => break,
                '[' if chars.peek().is_some_and(|next| matches!(next, ':' | '.' | '=')) => {
                    let kind = chars.next().ok_or_else(unbalanced)?;
                    let mut name = String::new();
                    loop {
                        match chars.next().ok_or_else(unbalanced)? {
                            char if char == kind && chars.next_if_eq(&']').is_some() => break,
                            char => name.push(char),
                        }
                    }
                    match (kind, name.as_str()) {
                        // The whole set is an edge of a word.
                        (':', edge @ ("<" | ">")) if set == "[" && chars.next_if_eq(&']').is_some() => {
                            made.push_str(if edge == "<" { "\\b(?=\\w)" } else { "\\b(?<=\\w)" });
                            return Ok(());
                        }
                        (':', name) => set.push_str(class(name)?),
                        (_, name) if name.chars().count() == 1 => {
                            set.push_str(&fancy_regex::escape(name));
                        }
                        _ => return Err(invalid("invalid collating element")),
                    }
                }
                '\\' => put_escape(&mut set, chars, true)?,
                '[' | ']' | '&' | '~' | '#' | '^' => {
                    set.push('\\');
                    set.push(char);
                }
                char if char.is_whitespace() => set.push_str(&format!("\\x{{{:x}}}", char as u32)),
                char => set.push(char),
            }
            is_first = false;
        }
        made.push_str(&set);
        made.push(']');
        Ok(())
    }
}

/// Returns the content of a set for the name of a class of characters.
fn class(name: &str) -> Result<&'static str> {
    Ok(match name {
        "alnum" => "\\p{Alphabetic}\\p{Nd}",
        "alpha" => "\\p{Alphabetic}",
        "blank" => "\\x20\\t",
        "cntrl" => "\\p{Cc}",
        "digit" => "0-9",
        "graph" => "[^\\s\\p{Cc}\\p{Cn}]",
        "lower" => "\\p{Lowercase}",
        "print" => "[^\\p{Cc}\\p{Cn}]",
        "punct" => "\\p{P}\\p{S}",
        "space" => "\\s",
        "upper" => "\\p{Uppercase}",
        "xdigit" => "0-9A-Fa-f",
        "word" => "\\w",
        _ => return Err(invalid("invalid character class")),
    })
}

/// Translates an escape, behind its backslash.
fn put_escape(made: &mut String, chars: &mut Peekable<Chars<'_>>, is_in_set: bool) -> Result<()> {
    let broken = || invalid("invalid escape \\ sequence");
    let number = |chars: &mut Peekable<Chars<'_>>, most: usize| -> Result<String> {
        let mut digits = String::new();
        while digits.len() < most
            && let Some(digit) = chars.next_if(char::is_ascii_hexdigit)
        {
            digits.push(digit);
        }
        match u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32) {
            Some(char) => Ok(format!("\\x{{{:x}}}", char as u32)),
            None => Err(broken()),
        }
    };
    let char = chars.next().ok_or_else(broken)?;
    match char {
        'd' if is_in_set => made.push_str("0-9"),
        'd' => made.push_str("[0-9]"),
        'D' if !is_in_set => made.push_str("[^0-9]"),
        'w' | 's' => made.extend(['\\', char]),
        'W' | 'S' if !is_in_set => made.extend(['\\', char]),
        'y' if !is_in_set => made.push_str("\\b"),
        'Y' if !is_in_set => made.push_str("\\B"),
        'm' if !is_in_set => made.push_str("\\b(?=\\w)"),
        'M' if !is_in_set => made.push_str("\\b(?<=\\w)"),
        'A' if !is_in_set => made.push_str("\\A"),
        'Z' if !is_in_set => made.push_str("\\z"),
        'a' | 'f' | 'n' | 'r' | 't' | 'v' => made.extend(['\\', char]),
        'b' => made.push_str("\\x08"),
        'B' => made.push_str("\\\\"),
        'e' => made.push_str("\\x1b"),
        'c' => {
            let of = chars.next().ok_or_else(broken)?;
            made.push_str(&format!("\\x{{{:x}}}", of as u32 & 31));
        }
        'u' => made.push_str(&number(chars, 4)?),
        'U' => made.push_str(&number(chars, 8)?),
        'x' => made.push_str(&number(chars, 8)?),
        '0' => made.push_str("\\x{0}"),
        '1'..='9' if !is_in_set => {
            made.extend(['\\', char]);
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                made.push(digit);
            }
        }
        char if char.is_alphanumeric() => return Err(broken()),
        char if char.is_ascii() && !char.is_ascii_whitespace() => made.extend(['\\', char]),
        char => made.push_str(&format!("\\x{{{:x}}}", char as u32)),
    }
    Ok(())
}

/// The most matches of a regular expression that are kept.
const MOST_MATCHES: usize = 1 << 20;

/// Returns matches from a byte on, at most so many.
fn found<'t>(regex: &Regex, text: &'t str, from: usize, most: usize) -> Result<Vec<Captures<'t>>> {
    let mut all: Vec<Captures<'t>> = Vec::new();
    let mut at = from;
    while all.len() < most && at <= text.len() {
        let Some(one) = regex.captures_from_pos(text, at).map_err(|_| too_complex())? else { break };
        let Some(whole) = one.get(0) else { break };
        at = whole.end();
        if whole.start() == whole.end() {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
        all.push(one);
        if all.len() > MOST_MATCHES {
            return Err(SqlError::new(code::PROGRAM_LIMIT, "too many regular expression matches"));
        }
    }
    Ok(all)
}

/// Returns the flags of a call, which may not ask for all matches.
fn flags<'a>(call: &'a Call<'_>, at: usize, name: &str) -> Result<&'a str> {
    let flags = if call.count() > at { call.text(at) } else { "" };
    match flags.contains('g') {
        true => Err(invalid_parameter(format!("{name}() does not support the \"global\" option"))),
        false => Ok(flags),
    }
}

/// Returns an argument that must not be less than `least`.
fn counted(call: &Call<'_>, at: usize, name: &str, default: i64, least: i64) -> Result<i64> {
    let number = if call.count() > at { call.int(at) } else { default };
    match number < least {
        true => Err(invalid_parameter(format!("invalid value for parameter \"{name}\": {number}"))),
        false => Ok(number),
    }
}

/// Returns the byte of a character, which is counted from 1; none if it is far behind the end.
fn byte_of(text: &str, place: i64) -> Option<usize> {
    let at = usize::try_from(place - 1).ok()?;
    let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    ends.into_iter().nth(at)
}

fn regexp_like(call: &Call<'_>) -> Result<Value> {
    ok(matches(call.text(0), call.text(1), flags(call, 2, "regexp_like")?)?)
}

fn regexp_match(call: &Call<'_>) -> Result<Value> {
    let regex = regex(call.text(1), flags(call, 2, "regexp_match")?)?;
    let all = found(&regex, call.text(0), 0, 1)?;
    let Some(one) = all.first() else { return Ok(Value::Null) };
    let value = |at: usize| one.get(at).map(|part| part.as_str()).into();
    let first = usize::from(one.len() > 1);
    ok((first..one.len()).map(value).collect::<Vec<Value>>())
}

fn regexp_count(call: &Call<'_>) -> Result<Value> {
    let start = counted(call, 2, "start", 1, 1)?;
    let regex = regex(call.text(1), flags(call, 3, "regexp_count")?)?;
    let Some(from) = byte_of(call.text(0), start) else { return ok(0i64) };
    ok(found(&regex, call.text(0), from, usize::MAX)?.len() as i64)
}

fn regexp_substr(call: &Call<'_>) -> Result<Value> {
    let start = counted(call, 2, "start", 1, 1)?;
    let nth = counted(call, 3, "n", 1, 1)? as usize;
    let group = counted(call, 5, "subexpr", 0, 0)? as usize;
    let regex = regex(call.text(1), flags(call, 4, "regexp_substr")?)?;
    let Some(from) = byte_of(call.text(0), start) else { return Ok(Value::Null) };
    let all = found(&regex, call.text(0), from, nth)?;
    let part = all.get(nth - 1).and_then(|one| one.get(group));
    ok(part.map(|part| part.as_str()))
}

fn regexp_instr(call: &Call<'_>) -> Result<Value> {
    let start = counted(call, 2, "start", 1, 1)?;
    let nth = counted(call, 3, "n", 1, 1)? as usize;
    let end = counted(call, 4, "endoption", 0, 0)?;
    if end > 1 {
        return Err(invalid_parameter(format!("invalid value for parameter \"endoption\": {end}")));
    }
    let group = counted(call, 6, "subexpr", 0, 0)? as usize;
    let text = call.text(0);
    let regex = regex(call.text(1), flags(call, 5, "regexp_instr")?)?;
    let Some(from) = byte_of(text, start) else { return ok(0i64) };
    let all = found(&regex, text, from, nth)?;
    let part = all.get(nth - 1).and_then(|one| one.get(group));
    ok(part.map_or(0, |part| {
        text[..if end == 1 { part.end() } else { part.start() }].chars().count() as i64 + 1
    }))
}

fn substring(call: &Call<'_>) -> Result<Value> {
    let regex = regex(call.text(1), "")?;
    let all = found(&regex, call.text(0), 0, 1)?;
    let Some(one) = all.first() else { return Ok(Value::Null) };
    let part = one.get(usize::from(one.len() > 1));
    ok(part.map(|part| part.as_str()))
}

fn regexp_split(call: &Call<'_>) -> Result<Value> {
    let text = call.text(0);
    let regex = regex(call.text(1), flags(call, 2, "regexp_split_to_array")?)?;
    let mut parts: Vec<Value> = Vec::new();
    let mut at = 0;
    for one in found(&regex, text, 0, usize::MAX)? {
        let Some(whole) = one.get(0) else { continue };
        // An empty match at the begin, at the end or behind another one is none.
        if whole.start() == whole.end() && (whole.start() == at || whole.start() == text.len()) {
            continue;
        }
        parts.push(text[at..whole.start()].into());
        at = whole.end();
    }
    parts.push(text[at..].into());
    ok(parts)
}

fn regexp_replace(call: &Call<'_>) -> Result<Value> {
    let flags = if call.count() > 3 { call.text(3) } else { "" };
    if flags.starts_with(|char: char| char.is_ascii_digit()) {
        let message = format!("invalid regular expression option: \"{}\"", &flags[..1]);
        return Err(invalid_parameter(message));
    }
    replaced(call, 0, if flags.contains('g') { None } else { Some(1) }, flags)
}

fn regexp_replace_from(call: &Call<'_>) -> Result<Value> {
    let start = counted(call, 3, "start", 1, 1)?;
    let nth = counted(call, 4, "n", 1, 0)? as usize;
    let flags = if call.count() > 5 { call.text(5) } else { "" };
    let is_all = nth == 0 && call.count() > 4 || call.count() < 5 && flags.contains('g');
    let Some(from) = byte_of(call.text(0), start) else { return ok(call.text(0)) };
    replaced(call, from, if is_all { None } else { Some(nth) }, flags)
}

/// Replaces all matches from a byte on, or one of them.
fn replaced(call: &Call<'_>, from: usize, nth: Option<usize>, flags: &str) -> Result<Value> {
    let (text, new) = (call.text(0), call.text(2));
    let regex = regex(call.text(1), flags)?;
    let all = found(&regex, text, from, nth.unwrap_or(usize::MAX))?;
    let (mut made, mut at) = (String::new(), 0);
    for one in all.iter().skip(nth.unwrap_or(1) - 1) {
        let Some(whole) = one.get(0) else { continue };
        made.push_str(&text[at..whole.start()]);
        at = whole.end();
        let mut chars = new.chars();
        while let Some(char) = chars.next() {
            if char != '\\' {
                made.push(char);
                continue;
            }
            match chars.next() {
                Some('&') => made.push_str(whole.as_str()),
                Some(digit @ '1'..='9') => {
                    let group = one.get(digit as usize - '0' as usize);
                    made.push_str(group.map_or("", |part| part.as_str()));
                }
                Some('\\') | None => made.push('\\'),
                Some(other) => made.extend(['\\', other]),
            }
        }
        if made.len() > MOST_BYTES {
            return Err(too_long());
        }
    }
    ok(made + &text[at..])
}
