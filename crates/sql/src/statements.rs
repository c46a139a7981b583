//! Counts of statements: how often each ran on a node, and for how long.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sqlparser::{
    dialect::PostgreSqlDialect,
    tokenizer::{Token, Tokenizer},
};

/// A statement without its literals, and its counts on a node since its start.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct StatementInfo {
    /// The role.
    pub user: String,
    /// The database.
    pub database: String,
    /// The statement, with `$1` and so on in the places of literals.
    pub statement: String,
    /// How often it came to its end.
    pub calls: u64,
    /// The rows that it has returned or changed.
    pub rows: u64,
    /// The sum of its times, in milliseconds, and that of their squares.
    pub total_ms: f64,
    /// See `total_ms`.
    pub squares_ms: f64,
    /// The shortest of its times, in milliseconds.
    pub least_ms: f64,
    /// The longest one.
    pub most_ms: f64,
}

impl StatementInfo {
    /// Adds the counts of the same statement on another node.
    pub(crate) fn add(&mut self, other: &Self) {
        self.least_ms = if self.calls == 0 { other.least_ms } else { self.least_ms.min(other.least_ms) };
        self.most_ms = self.most_ms.max(other.most_ms);
        self.calls += other.calls;
        self.rows += other.rows;
        self.total_ms += other.total_ms;
        self.squares_ms += other.squares_ms;
    }
}

/// The counts of a node.
pub(crate) struct StatementCounts {
    /// The most statements that are counted.
    most: usize,
    /// By user, database and statement.
    all: Mutex<HashMap<(String, String, String), StatementInfo>>,
}

impl StatementCounts {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, all: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<(String, String, String), StatementInfo>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a statement that has ended.
    pub(crate) fn note(&self, (user, database): (&str, &str), text: &str, taken: Duration, rows: u64) {
        let statement = without_literals(text);
        let ms = taken.as_secs_f64() * 1000.0;
        let one = StatementInfo {
            calls: 1,
            rows,
            total_ms: ms,
            squares_ms: ms * ms,
            least_ms: ms,
            most_ms: ms,
            ..StatementInfo::default()
        };
        let key = (user.to_owned(), database.to_owned(), statement);
        let mut all = self.all();
        if all.len() >= self.most && !all.contains_key(&key) {
            // A twentieth gives way: those that ran least often.
            let mut known: Vec<_> = all.iter().map(|(key, info)| (info.calls, key.clone())).collect();
            known.sort_unstable();
            known.iter().take(known.len() / 20 + 1).for_each(|(_, key)| drop(all.remove(key)));
        }
        all.entry(key).or_default().add(&one);
    }

    /// Returns the counts.
    pub(crate) fn infos(&self) -> Vec<StatementInfo> {
        let all = self.all();
        let infos = all.iter().map(|((user, database, statement), info)| StatementInfo {
            user: user.clone(),
            database: database.clone(),
            statement: statement.clone(),
            ..info.clone()
        });
        infos.collect()
    }
}

/// Returns a text with `$1` and so on in the places of literals, behind the parameters that it has.
fn without_literals(text: &str) -> String {
    let dialect = PostgreSqlDialect {};
    let read = |text: &str| Tokenizer::new(&dialect, text).tokenize().ok();
    // A long text was cut, perhaps within a literal.
    let Some(tokens) = read(text).or_else(|| read(&format!("{text}'"))) else { return text.to_owned() };
    let number = |token: &Token| match token {
        Token::Placeholder(name) => name.trim_start_matches('$').parse().ok(),
        _ => None,
    };
    let mut last: u32 = tokens.iter().filter_map(number).max().unwrap_or(0);
    let mut written = String::with_capacity(text.len());
    for token in tokens {
        match token {
            Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::EscapedStringLiteral(_)
            | Token::UnicodeStringLiteral(_)
            | Token::NationalStringLiteral(_)
            | Token::HexStringLiteral(_)
            | Token::SingleQuotedByteStringLiteral(_)
            | Token::DollarQuotedString(_) => {
                last += 1;
                written.push_str(&format!("${last}"));
            }
            token => written.push_str(&token.to_string()),
        }
    }
    written.trim().trim_end_matches(';').trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_left_out_wherever_they_stand() {
        let texts = [
            ("select 1, 'it''s' from t order by 2 ;", "select $1, $2 from t order by $3"),
            ("with w as (select $2 + 7) table w", "with w as (select $2 + $3) table w"),
            ("alter role ann password 'pearl'", "alter role ann password $1"),
            ("select e'a\\'b', \"A b\" -- 3", "select $1, \"A b\" -- 3"),
            ("insert into t values (1.5, 'a text that was cu", "insert into t values ($1, $2"),
            ("select $$a$$ /* 5 */", "select $1 /* 5 */"),
        ];
        for (text, expected) in texts {
            assert_eq!(without_literals(text), expected);
        }
    }

    #[test]
    fn statements_that_differ_in_literals_are_one_and_rare_ones_give_way() {
        let counts = StatementCounts::new(40);
        let note = |text: &str, ms| counts.note(("ann", "shop"), text, Duration::from_millis(ms), 2);
        note("select * from t where a = 1", 10);
        note("select * from t where a = 25;", 30);
        let infos = counts.infos();
        let [info] = &infos[..] else { panic!("{infos:?}") };
        assert_eq!((&*info.user, &*info.database), ("ann", "shop"));
        assert_eq!(info.statement, "select * from t where a = $1");
        assert_eq!((info.calls, info.rows), (2, 4));
        let times = [info.total_ms, info.squares_ms, info.least_ms, info.most_ms];
        assert_eq!(times, [40.0, 1000.0, 10.0, 30.0]);
        for table in 0..1000 {
            note(&format!("table t{table}"), 1);
        }
        let infos = counts.infos();
        let is_old = infos.iter().any(|info| info.calls == 2);
        assert!((38..=40).contains(&infos.len()) && is_old, "{}", infos.len());
    }
}
