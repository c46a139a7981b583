//! Numbers by a template: `to_char` and `to_number` (chapter 9.8 of PostgreSQL's manual).

use super::{Call, Declared, function, ok, precise};
use crate::{
    error::{Result, SqlError, code},
    types::{Value, numeric::Numeric},
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("to_char(float4, text) text stable", |call| of_float(call, 6)),
    function("to_char(float8, text) text stable", |call| of_float(call, 15)),
    function("to_char(int4/int8, text) text stable", of_int),
    function("to_char(numeric, text) text stable", |call| shown(call.numeric(0), call.text(1))),
    function("to_number(text, text) numeric stable", to_number),
];

/// The most characters of a template, and digits of a number.
const MOST: usize = 1000;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Node {
    Nine,
    Zero,
    Point,
    Comma,
    Currency,
    Minus,
    Plus,
    Sign,
    Ordinal {
        is_upper: bool,
    },
    Roman {
        is_upper: bool,
    },
    /// Has no place of its own.
    Mark,
    Char(char),
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
enum Lead {
    #[default]
    None,
    Before,
    After,
}

/// A template, as `NUMDesc` of PostgreSQL.
#[derive(Default)]
struct Template {
    nodes: Vec<Node>,
    before: usize,
    after: usize,
    shift: usize,
    /// The digits before the first and the last place of `0`.
    zero_start: usize,
    zero_end: usize,
    lead: Lead,
    before_sign: usize,
    has_point: bool,
    has_zero: bool,
    is_filled: bool,
    is_bracketed: bool,
    has_minus: bool,
    has_plus: bool,
    is_scientific: bool,
    is_shifted: bool,
    is_roman: bool,
}

fn wrong(message: impl Into<String>) -> SqlError {
    SqlError::new(code::SYNTAX_ERROR, message)
}

impl Template {
    fn read(text: &str) -> Result<Self> {
        if text.len() > MOST {
            return Err(SqlError::new(code::PROGRAM_LIMIT, "the template is too long"));
        }
        let mut made = Self::default();
        let mut rest = text;
        while let Some(char) = rest.chars().next() {
            rest = made.read_one(char, rest)?;
        }
        made.before += made.shift;
        Ok(made)
    }

    /// Reads one keyword or character; returns what follows.
    fn read_one<'a>(&mut self, char: char, rest: &'a str) -> Result<&'a str> {
        const WORDS: &[&str] = &["EEEE", "FM", "MI", "PL", "PR", "RN", "SG", "TH"];
        let is_word = |word: &&&str| {
            rest.get(..word.len()).is_some_and(|found| found == **word || found == word.to_ascii_lowercase())
        };
        let word = WORDS.iter().find(is_word).copied();
        let length = word.map_or(char.len_utf8(), str::len);
        let is_upper = char.is_ascii_uppercase();
        let node = match (word, char) {
            (Some("EEEE"), _) => {
                self.is_scientific = true;
                Node::Mark
            }
            (Some("FM"), _) => {
                self.is_filled = true;
                Node::Mark
            }
            (Some(word @ ("MI" | "PL" | "SG")), _) => {
                if self.lead != Lead::None {
                    return Err(wrong(format!("cannot use \"S\" and \"{word}\" together")));
                }
                self.has_minus |= word != "PL";
                self.has_plus |= word != "MI";
                match word {
                    "MI" => Node::Minus,
                    "PL" => Node::Plus,
                    _ => Node::Sign,
                }
            }
            (Some("PR"), _) => {
                if self.lead != Lead::None || self.has_plus || self.has_minus {
                    return Err(wrong("cannot use \"PR\" and \"S\"/\"PL\"/\"MI\"/\"SG\" together"));
                }
                self.is_bracketed = true;
                Node::Mark
            }
            (Some("RN"), _) => {
                self.is_roman = true;
                Node::Roman { is_upper }
            }
            (Some(_), _) => Node::Ordinal { is_upper },
            (None, '9' | '0') if self.is_bracketed => {
                return Err(wrong(format!("\"{char}\" must be ahead of \"PR\"")));
            }
            (None, '9') => {
                *(if self.is_shifted {
                    &mut self.shift
                } else if self.has_point {
                    &mut self.after
                } else {
                    &mut self.before
                }) += 1;
                Node::Nine
            }
            (None, '0') => {
                if !self.has_zero && !self.has_point {
                    self.has_zero = true;
                    self.zero_start = self.before + 1;
                }
                *(if self.has_point { &mut self.after } else { &mut self.before }) += 1;
                self.zero_end = self.before + self.after;
                Node::Zero
            }
            (None, '.' | 'D' | 'd') => {
                if self.has_point || self.is_shifted {
                    return Err(wrong("multiple decimal points"));
                }
                self.has_point = true;
                Node::Point
            }
            (None, ',' | 'G' | 'g') => Node::Comma,
            (None, 'L' | 'l') => Node::Currency,
            (None, 'S' | 's') => {
                if self.lead != Lead::None {
                    return Err(wrong("cannot use \"S\" twice"));
                }
                if self.has_plus || self.has_minus || self.is_bracketed {
                    return Err(wrong("cannot use \"S\" and \"PL\"/\"MI\"/\"SG\"/\"PR\" together"));
                }
                self.lead = if self.has_point { Lead::After } else { Lead::Before };
                self.before_sign = self.before;
                Node::Mark
            }
            (None, 'V' | 'v') => {
                if self.has_point {
                    return Err(wrong("cannot use \"V\" and decimal point together"));
                }
                self.is_shifted = true;
                Node::Mark
            }
            (None, 'B' | 'b') => Node::Mark,
            (None, '"') => {
                let inner = &rest[1..];
                let end = inner.find('"').unwrap_or(inner.len());
                self.nodes.extend(inner[..end].chars().map(Node::Char));
                return Ok(inner.get(end + 1..).unwrap_or(""));
            }
            (None, '\\') if rest.len() > 1 => {
                let next = rest[1..].chars().next().unwrap_or('\\');
                self.nodes.push(Node::Char(next));
                return Ok(&rest[1 + next.len_utf8()..]);
            }
            (None, char) => Node::Char(char),
        };
        self.nodes.push(node);
        Ok(&rest[length..])
    }
}

fn of_int(call: &Call<'_>) -> Result<Value> {
    shown(Numeric::from_int(call.int(0)), call.text(1))
}

fn of_float(call: &Call<'_>, digits: usize) -> Result<Value> {
    let number = call.float(0);
    let template = Template::read(call.text(1))?;
    if template.is_scientific {
        return ok(scientific(&format!("{number:.0$e}", template.after)));
    }
    if !number.is_finite() {
        return Ok(filled(&template, number < 0.0));
    }
    let whole = format!("{:.0}", number.abs()).len();
    let after = match whole {
        whole if whole >= digits => 0,
        whole => template.after.min(digits - whole),
    };
    let shifted = number * 10f64.powi(template.shift as i32);
    ok(write(&template, &format!("{shifted:.after$}")))
}

/// Returns a number that does not fit.
fn filled(template: &Template, is_negative: bool) -> Value {
    let sign = if is_negative { "-" } else { "" };
    let digits = format!("{sign}1{}", "0".repeat(template.before));
    write(template, &digits).into()
}

/// Gives an exponent of Rust the form of C.
fn scientific(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    let lead = if mantissa.starts_with('-') { "" } else { " " };
    format!("{lead}{mantissa}e{sign}{:02}", exponent.abs())
}

fn shown(number: Numeric, template: &str) -> Result<Value> {
    let template = Template::read(template)?;
    if template.is_scientific {
        return ok(scientific_numeric(number, template.after));
    }
    let number = match template.shift {
        0 => number,
        shift => number.mul(Numeric::parse(&format!("1e{shift}"))?)?,
    };
    // Digits behind those of the number are zeros, of which there may be more than numbers have.
    let after = template.after.min(30);
    let mut text = precise::round(number, after as i64)?.to_string();
    text.push_str(&"0".repeat(template.after - after));
    if template.is_roman {
        return ok(write_roman(&template, &text));
    }
    ok(write(&template, &text))
}

/// Returns a number with one digit before the point and `after` behind it.
fn scientific_numeric(number: Numeric, after: usize) -> String {
    let digits = number.digits.unsigned_abs();
    if digits == 0 {
        return scientific(&format!("{:.after$}e0", 0.0));
    }
    let (count, width) = (digits.ilog10() as usize + 1, after + 1);
    // The digits that are not shown decide the rounding.
    let shown = match count.saturating_sub(width) as u32 {
        0 => digits,
        gone => (digits + 5 * 10u128.pow(gone - 1)) / 10u128.pow(gone),
    };
    let shown = format!("{shown:0<width$}");
    // It has one more digit if it was rounded up to a power of ten.
    let exponent = (count + shown.len() - width) as i64 - 1 - i64::from(number.scale);
    let sign = if number.digits < 0 { "-" } else { "" };
    let point = if after > 0 { "." } else { "" };
    scientific(&format!("{sign}{}{point}{}e{exponent}", &shown[..1], &shown[1..width]))
}

fn write_roman(template: &Template, text: &str) -> String {
    const LETTERS: &str = "M CM D CD C XC L XL X IX V IV I";
    const VALUES: [i64; 13] = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1];
    let mut roman = String::new();
    match text.split('.').next().and_then(|whole| whole.parse::<i64>().ok()) {
        Some(mut number @ 1..4000) => {
            for (value, letters) in VALUES.into_iter().zip(LETTERS.split(' ')) {
                while number >= value {
                    roman.push_str(letters);
                    number -= value;
                }
            }
        }
        _ => roman = "#".repeat(15),
    }
    let mut shown = String::new();
    for node in &template.nodes {
        match node {
            Node::Roman { is_upper } => {
                let cased = if *is_upper { roman.clone() } else { roman.to_lowercase() };
                shown.push_str(&if template.is_filled { cased } else { format!("{cased:>15}") });
            }
            Node::Char(char) => shown.push(*char),
            _ => {}
        }
    }
    shown
}

/// Returns the letters behind a number that counts.
pub(super) fn ordinal(digits: &str, is_upper: bool) -> String {
    let last_two = &digits[digits.len().saturating_sub(2)..];
    let letters = match (last_two.len() == 2 && last_two.starts_with('1'), last_two.chars().last()) {
        (false, Some('1')) => "st",
        (false, Some('2')) => "nd",
        (false, Some('3')) => "rd",
        _ => "th",
    };
    if is_upper { letters.to_uppercase() } else { letters.to_owned() }
}

/// The state of a number that is written (`NUMProc` of PostgreSQL).
struct Writer<'a> {
    template: &'a Template,
    number: Vec<char>,
    at: usize,
    is_negative: bool,
    is_sign_written: bool,
    lead: Lead,
    is_bracketed: bool,
    spaces: usize,
    place: usize,
    count: usize,
    last_relevant: Option<usize>,
    is_inside: bool,
    shown: String,
}

/// Writes a rounded number by a template (`NUM_processor`).
fn write(template: &Template, number: &str) -> String {
    let is_negative = number.starts_with('-');
    let unsigned = number.trim_start_matches('-');
    let whole = unsigned.find('.').unwrap_or(unsigned.len());
    let mut digits: Vec<char> = unsigned.chars().collect();
    if whole > template.before {
        digits = "#".repeat(template.before).chars().chain(['.']).collect();
        digits.extend(std::iter::repeat_n('#', template.after));
    }
    let spaces = template.before.saturating_sub(whole);
    let has_sign_of_its_own = template.has_plus || template.has_minus;
    let is_sign_written = match has_sign_of_its_own {
        true => !template.has_plus || template.has_minus,
        false => !is_negative && template.is_filled && template.lead == Lead::None,
    };
    let is_late =
        template.lead == Lead::Before && template.before == template.before_sign && !has_sign_of_its_own;
    let mut writer = Writer {
        template,
        at: 0,
        is_negative,
        is_sign_written,
        lead: if is_late { Lead::After } else { template.lead },
        is_bracketed: template.is_bracketed && (is_negative || !template.is_filled),
        spaces,
        place: 0,
        count: (template.before + template.after).saturating_sub(1),
        last_relevant: None,
        is_inside: false,
        shown: String::new(),
        number: digits,
    };
    if template.is_filled && template.has_point {
        writer.find_last_relevant();
    }
    if !is_sign_written && spaces == 0 {
        writer.count += 1;
    }
    for node in &template.nodes {
        writer.put(*node);
    }
    writer.shown
}

impl Writer<'_> {
    /// Finds the last digit that is no zero behind the point, or the point.
    fn find_last_relevant(&mut self) {
        let Some(point) = self.number.iter().position(|char| *char == '.') else { return };
        let last = (point..self.number.len()).rev().find(|at| self.number[*at] != '0').unwrap_or(point);
        let mut last = last;
        if self.template.zero_end > self.spaces {
            let zero = (self.number.len() - 1).min(self.template.zero_end - self.spaces);
            last = last.max(zero);
        }
        self.last_relevant = Some(last);
    }

    fn put(&mut self, node: Node) {
        let is_filled = self.template.is_filled;
        match node {
            Node::Nine | Node::Zero | Node::Point => self.put_digit(node),
            Node::Comma if self.is_inside => self.shown.push(','),
            Node::Comma if is_filled => {}
            Node::Minus if self.is_negative => self.shown.push('-'),
            Node::Plus if !self.is_negative => self.shown.push('+'),
            Node::Minus | Node::Plus if is_filled => {}
            Node::Minus | Node::Plus | Node::Comma | Node::Currency => self.shown.push(' '),
            Node::Sign => self.shown.push(if self.is_negative { '-' } else { '+' }),
            Node::Ordinal { is_upper } => {
                if !self.is_negative && !self.template.has_point && self.number.first() != Some(&'#') {
                    let digits: String = self.number.iter().collect();
                    self.shown.push_str(&ordinal(&digits, is_upper));
                }
            }
            Node::Roman { .. } | Node::Mark => {}
            Node::Char(char) => self.shown.push(char),
        }
    }

    /// Returns whether the zero before the point is left out: `9.9` shows ` .1`.
    fn is_space_before_point(&self) -> bool {
        !self.template.has_zero
            && self.at == 0
            && self.number.first() == Some(&'0')
            && self.template.after != 0
    }

    fn is_last_the_point(&self) -> bool {
        self.last_relevant.is_some_and(|at| self.number[at] == '.')
    }

    /// Writes a digit or the point (`NUM_numpart_to_char`).
    fn put_digit(&mut self, node: Node) {
        let template = self.template;
        let (is_filled, has_zero) = (template.is_filled, template.has_zero);
        let zero_start = template.zero_start.saturating_sub(1);
        self.is_inside = false;
        let begins = self.place >= self.spaces || has_zero && zero_start == self.place;
        if !self.is_sign_written && begins && (!self.is_space_before_point() || self.is_last_the_point()) {
            self.put_sign();
        }
        if self.place < self.spaces && (!has_zero || zero_start > self.place) {
            if !is_filled {
                self.shown.push(' ');
            }
        } else if has_zero && self.place < self.spaces {
            self.shown.push('0');
            self.is_inside = true;
        } else {
            match self.number.get(self.at) {
                Some('.') if (!self.is_last_the_point() || is_filled) => {
                    self.shown.push('.');
                }
                _ if self.last_relevant.is_some_and(|last| self.at > last) && node != Node::Zero => {}
                _ if self.is_space_before_point() => {
                    if !is_filled {
                        self.shown.push(' ');
                    } else if self.is_last_the_point() {
                        self.shown.push('0');
                    }
                }
                Some(digit) => {
                    self.shown.push(*digit);
                    self.is_inside = true;
                }
                None => {}
            }
            if self.at < self.number.len() {
                self.at += 1;
            }
        }
        let mut end = self.count + usize::from(self.spaces > 0) + usize::from(template.has_point);
        if self.last_relevant == Some(self.at) {
            end = self.place;
        }
        if self.place + 1 == end {
            if self.is_sign_written && self.is_bracketed {
                self.shown.push(if self.is_negative { '>' } else { ' ' });
            } else if template.lead != Lead::None && self.lead == Lead::After {
                self.shown.push(if self.is_negative { '-' } else { '+' });
            }
        }
        self.place += 1;
    }

    fn put_sign(&mut self) {
        if self.template.lead != Lead::None {
            if self.lead == Lead::Before {
                self.shown.push(if self.is_negative { '-' } else { '+' });
                self.is_sign_written = true;
            }
            return;
        }
        if self.is_bracketed {
            self.shown.push(if self.is_negative { '<' } else { ' ' });
        } else if self.is_negative {
            self.shown.push('-');
        } else if !self.template.is_filled {
            self.shown.push(' ');
        }
        self.is_sign_written = true;
    }
}

fn to_number(call: &Call<'_>) -> Result<Value> {
    let template = Template::read(call.text(1))?;
    if template.is_scientific || template.is_roman {
        let word = if template.is_roman { "RN" } else { "EEEE" };
        return Err(SqlError::unsupported(format!("\"{word}\" for input")));
    }
    let text = call.text(0);
    if text.len() > MOST {
        return Err(SqlError::new(code::PROGRAM_LIMIT, "the text is too long"));
    }
    let mut chars = text.chars().peekable();
    let (mut digits, mut is_negative, mut has_point) = (String::new(), false, false);
    let mut read_sign = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| {
        while chars.next_if(|char| *char == ' ').is_some() {}
        if let Some(sign) = chars.next_if(|char| matches!(char, '-' | '+' | '<')) {
            is_negative = sign != '+';
        }
    };
    for node in &template.nodes {
        match node {
            Node::Nine | Node::Zero => {
                if digits.is_empty() {
                    read_sign(&mut chars);
                }
                if let Some(digit) = chars.next_if(char::is_ascii_digit) {
                    digits.push(digit);
                } else if !has_point && chars.next_if_eq(&'.').is_some() {
                    digits.push('.');
                    has_point = true;
                }
            }
            Node::Point => {
                if !has_point && chars.next_if_eq(&'.').is_some() {
                    digits.push('.');
                    has_point = true;
                }
            }
            Node::Comma => {
                chars.next_if_eq(&',');
            }
            Node::Minus | Node::Plus | Node::Sign | Node::Mark => read_sign(&mut chars),
            Node::Currency | Node::Char(_) => {
                chars.next_if(|char| !char.is_ascii_digit() && !matches!(char, '-' | '+' | '.' | ','));
            }
            Node::Ordinal { .. } | Node::Roman { .. } => {}
        }
    }
    read_sign(&mut chars);
    let sign = if is_negative { "-" } else { "" };
    let number = Numeric::parse(&format!("{sign}{digits}"))?;
    let fraction = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    ok(match template.shift {
        0 => precise::round(number, fraction.max(template.after.min(fraction)) as i64)?,
        shift => number.div(Numeric::parse(&format!("1e{shift}"))?)?,
    })
}
