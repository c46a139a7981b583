//! Tests of the table of functions.

use std::{collections::BTreeSet, fmt::Write, fs, path::Path, sync::Arc};

use super::*;
use crate::{activity::Activity, memory::NodeMemory};

impl Context {
    /// Makes that of a test.
    pub(crate) fn of_test(role: &str) -> Self {
        let activity = Arc::new(Activity::new(0, role.into(), role.into(), role.into(), None, None));
        Self {
            begun: 0,
            statement_begun: 0,
            settings: Settings::new(true).into(),
            user: role.into(),
            database: "postgres".into(),
            process: 1,
            sequences: Drawn::default(),
            place: SessionPlace { database: 0, role: role.into(), is_superuser: true },
            definitions: Definitions::new(role.into()),
            answers: Answers::default(),
            memory: StatementMemory::new(NodeMemory::new(usize::MAX)),
            advisory: Advisory::new(None, activity.clone(), 0),
            notifications: SessionNotifications::new(None, activity, 0, 1),
            sessions: OtherSessions::new(None),
            temporary: Default::default(),
            constraints: Constraints::default(),
        }
    }
}

/// The variable of the environment with which the test writes the list of functions.
const WRITE: &str = "PLEXUS_WRITE_FUNCTIONS";

/// Returns the text of `docs/functions.md`.
fn documentation() -> String {
    let mut text = String::from(
        "# Functions of SQL\n\n\
         The functions that SQL has, in the chapters of PostgreSQL's manual. They take the same arguments\n\
         as there; known differences stand in [sql.md](sql.md). Others are refused with SQLSTATE 42883.\n\
         COALESCE, NULLIF, GREATEST and LEAST are expressions; aggregates stand in sql.md, too.\n\n\
         This list is made from the table in `crates/sql/src/functions`.\n",
    );
    let sets = sets::FUNCTIONS.iter().map(|one| ("Functions that return rows", one.name()));
    let mut chapters: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    let functions = TABLE.iter().filter(|(_, one)| !one.is_operator()).map(|(title, one)| (*title, one.name));
    for (title, name) in functions.chain(sets) {
        match chapters.iter_mut().find(|(known, _)| *known == title) {
            Some((_, names)) => drop(names.insert(name)),
            None => chapters.push((title, BTreeSet::from([name]))),
        }
    }
    for (title, names) in chapters {
        write!(text, "\n## {title}\n\n").unwrap();
        let mut line = String::new();
        for (at, name) in names.iter().enumerate() {
            let end = if at + 1 < names.len() { "," } else { "\n" };
            let word = format!("`{name}`{end}");
            if line.len() + word.len() >= 100 {
                writeln!(text, "{}", line.trim_end()).unwrap();
                line.clear();
            }
            line.push_str(&word);
            line.push(if end == "," { ' ' } else { '\n' });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[test]
fn the_documentation_lists_all_functions() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/functions.md");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, documentation()).unwrap();
    }
    let is_current = fs::read_to_string(&path).is_ok_and(|known| known == documentation());
    assert!(
        is_current,
        "docs/functions.md is out of date: {WRITE}=1 cargo test -p plexus-sql the_documentation_lists writes it"
    );
}

#[test]
fn each_function_is_in_the_table_once_and_its_declaration_is_consistent() {
    let mut known = BTreeSet::new();
    for function in all() {
        let Function { name, arguments, names, defaults, .. } = function;
        for form in function.forms() {
            let types: Vec<&str> = form.iter().map(|of| of.name()).collect();
            let shown = format!("{name}({})", types.join(", "));
            assert!(known.insert(shown.clone()), "{shown} is in the table twice");
        }
        assert!(defaults.len() <= arguments.len(), "{name} has too many defaults");
        assert!(names.is_empty() || names.len() == arguments.len(), "{name} has unnamed arguments");
        assert!(!function.is_variadic || !arguments.is_empty(), "{name} is variadic of nothing");
    }
}

/// Returns the arguments that a call is resolved to, or the SQLSTATE.
fn resolved(name: &str, types: &[Type]) -> String {
    match resolve(name, types, false) {
        Ok(bound) => bound.types.iter().map(|of| of.name()).collect::<Vec<_>>().join(", "),
        Err(error) => error.code.to_owned(),
    }
}

#[test]
fn overloads_are_resolved_as_in_postgresql() {
    use Type::{Float4, Float8, Int2, Int4, Int8, Text, Unknown};
    let numeric = Type::Numeric(None);
    for (name, types, wanted) in [
        // Exact matches, then preferred types.
        ("abs", &[Int2][..], "smallint"),
        ("abs", &[Unknown], "double precision"),
        ("power", &[Int4, Int4], "double precision, double precision"),
        ("power", &[numeric, Int4], "numeric, numeric"),
        ("power", &[Float4, numeric], "double precision, double precision"),
        ("mod", &[Int2, Int8], "bigint, bigint"),
        ("round", &[Int4, Int4], "numeric, integer"),
        // Literals are texts where a text is taken.
        ("length", &[Unknown], "text"),
        ("md5", &[Unknown], "text"),
        ("substr", &[Unknown, Unknown], "text, integer"),
        ("left", &[Type::Varchar(Some(3)), Int4], "text, integer"),
        // Polymorphic and variadic arguments.
        ("concat", &[Int4, Unknown], "integer, unknown"),
        ("array_append", &[Type::Array(&Int4), numeric], "numeric[], numeric"),
        ("array_length", &[Type::Array(&Text), Int4], "text[], integer"),
        ("jsonb_extract_path", &[Type::Jsonb, Unknown, Text], "jsonb, text, text"),
        ("to_json", &[Unknown], "42804"),
        // None fits, or several do.
        ("repeat", &[Text, Int8], "42883"),
        ("length", &[Int4], "42883"),
        ("to_char", &[Unknown, Unknown], "42725"),
        ("left", &[Text], "42883"),
        ("pi", &[Float8], "42883"),
    ] {
        assert_eq!(resolved(name, types), wanted, "{name} of {types:?}");
    }
}
