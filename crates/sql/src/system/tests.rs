//! Tests of the rows of system tables.

use std::collections::HashSet;

use super::{
    Snapshot, describe,
    relations::{self, find_view},
    snapshot::RelationOf,
};
use crate::{
    catalog::{
        Action, Check, Column, ForeignKey, Grant, Index, Key, Privilege, RelationName, Relations, Table,
    },
    functions::{
        Context,
        names::{quoted_literal, quoted_name},
    },
    sequences::Sequence,
    types::{Type, Value},
};

fn column(name: &str, of: Type) -> Column {
    Column::new(name, of)
}

fn table(id: u64, name: &str) -> Table {
    let key =
        Column { not_null: true, own_sequence: Some(format!("{name}_a_seq")), ..column("a", Type::Int4) };
    let default = Column { default: Some("'x'".into()), ..column("b", Type::Text) };
    Table {
        id,
        schema: "public".into(),
        name: name.into(),
        owner: "tester".into(),
        root: id,
        columns: vec![key, default],
        primary: Some(Key {
            name: format!("{name}_pkey"),
            columns: vec![0],
            include: Vec::new(),
            comment: None,
            constraint_comment: None,
        }),
        indexes: vec![Index { is_constraint: true, ..Index::new(format!("{name}_b_key"), vec![1], true) }],
        checks: vec![Check {
            name: format!("{name}_check"),
            condition: "a > 0".into(),
            columns: vec![0],
            comment: Some("positive".into()),
        }],
        grants: vec![Grant {
            role: None,
            privilege: Privilege::Select,
            can_grant: false,
            by: "tester".into(),
        }],
        comment: Some("a table".into()),
        ..Table::default()
    }
}

fn snapshot(order: [u64; 2]) -> Snapshot {
    let mut tables: Vec<Table> = order.iter().map(|id| table(*id, &format!("t{id}"))).collect();
    let foreign = ForeignKey {
        name: "t2_b_fkey".into(),
        columns: vec![1],
        table: RelationName::new("public", "t1"),
        referenced: vec![1],
        on_delete: Action::Cascade,
        on_update: Action::Nothing,
        is_full: false,
        is_deferrable: true,
        is_deferred: false,
        comment: None,
    };
    tables
        .iter_mut()
        .filter(|table| table.id == 2)
        .for_each(|table| table.foreign_keys.push(foreign.clone()));
    let sequence = Sequence {
        id: 3,
        cache: 1,
        schema: "public".into(),
        name: "t1_a_seq".into(),
        owner: "tester".into(),
        start: 1,
        increment: 1,
        least: 1,
        most: 2_147_483_647,
        cycles: false,
        of: Type::Int4,
        grants: Vec::new(),
        comment: None,
    };
    Snapshot::of_parts("tester", Relations { tables, sequences: vec![sequence], ..Relations::default() })
}

fn fits(value: &Value, of: Type) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) => of == Type::Bool,
        Value::Int(_) => of.is_integer() || of == Type::Oid || of.is_reg(),
        Value::Float(_) => of.is_float(),
        Value::Interval(_) => of == Type::Interval,
        Value::Text(_) => of.is_text() || of == Type::OneByte,
        Value::Array(array) => {
            let element = of.element();
            element.is_some_and(|of| array.values.iter().all(|value| fits(value, of)))
        }
        _ => false,
    }
}

#[test]
fn rows_have_the_columns_and_types_of_their_tables() {
    let (snapshot, context) = (snapshot([1, 2]), Context::of_test("tester"));
    let mut count = 0;
    for table in relations::all() {
        for row in table.rows(&snapshot, &context) {
            assert_eq!(row.len(), table.columns.len(), "{table:?}");
            for ((value, (name, of)), required) in row.iter().zip(&table.columns).zip(&table.required) {
                assert!(fits(value, *of), "{table:?} {name} {of:?} {value:?}");
                assert!(!required || !value.is_null(), "{table:?} {name} is NULL");
            }
            count += 1;
        }
    }
    assert!(count > 1000, "{count}");
}

#[test]
fn numbers_do_not_depend_on_the_order_of_reading() {
    let numbers = |snapshot: &Snapshot| {
        let all = snapshot.relations.iter().map(|one| (one.name.clone(), one.oid));
        all.collect::<HashSet<_>>()
    };
    let (one, other) = (snapshot([1, 2]), snapshot([2, 1]));
    assert_eq!(numbers(&one), numbers(&other));
    let oids: HashSet<u32> = one.relations.iter().map(|relation| relation.oid).collect();
    assert_eq!(oids.len(), one.relations.len());
    assert!(oids.iter().all(|oid| *oid < 1 << 31));
}

#[test]
fn definitions_are_shown_as_postgresql_shows_them() {
    let snapshot = snapshot([1, 2]);
    let path = [11, 2200];
    let all = super::constraints::all(&snapshot);
    let shown: Vec<String> =
        all.iter().map(|one| describe::constraint(&snapshot, &path, one, false)).collect();
    assert_eq!(
        shown,
        [
            "PRIMARY KEY (a)",
            "UNIQUE (b)",
            "CHECK ((a > 0))",
            "PRIMARY KEY (a)",
            "UNIQUE (b)",
            "CHECK ((a > 0))",
            "FOREIGN KEY (b) REFERENCES t1(b) ON DELETE CASCADE DEFERRABLE"
        ]
    );
    let keys: Vec<String> = snapshot.keys().map(|key| describe::index(&snapshot, &[], &key)).collect();
    assert_eq!(keys[0], "CREATE UNIQUE INDEX t1_pkey ON public.t1 USING btree (a)");
    let table = snapshot.relations.iter().find_map(|one| match &one.of {
        RelationOf::Table(table) => Some(table.clone()),
        _ => None,
    });
    let default = describe::default_of(&snapshot, &[], &table.unwrap(), 1);
    assert_eq!(default.as_deref(), Some("'x'::text"));
    for (oid, limits, name) in [
        (1043, Some(14), "character varying(10)"),
        (1042, Some(-1), "bpchar"),
        (1042, None, "character"),
        (1042, Some(5), "character(1)"),
        (1700, Some(655366), "numeric(10,2)"),
        (1015, Some(14), "character varying(10)[]"),
        (1184, None, "timestamp with time zone"),
        (18, None, "\"char\""),
        (0, None, "-"),
        (4_000_000, None, "???"),
    ] {
        assert_eq!(describe::format_type(oid, limits), name);
    }
}

#[test]
fn each_view_has_a_query() {
    for (schema, name) in [("pg_catalog", "pg_tables"), ("information_schema", "columns")] {
        let view = find_view(Some(schema), name).unwrap();
        assert!(view.text.contains("from"), "{}", view.text);
    }
    let names =
        |text: &str| text.lines().filter(|line| line.starts_with("-- ") && line.ends_with(':')).count();
    let known = |schema: &str| {
        relations::all()
            .iter()
            .filter(|one| find_view(Some(schema), one.name).is_some() && one.schema == schema)
            .count()
    };
    assert_eq!(names(include_str!("views.sql")), known("pg_catalog"));
    assert_eq!(names(include_str!("information_schema.sql")), known("information_schema"));
}

#[test]
fn names_have_parts_and_quotes() {
    let split = |name: &str| super::names::split(name).ok();
    assert_eq!(split("A.\"B.\"\"c\" "), Some(vec!["a".into(), "B.\"c".into()]));
    assert_eq!(split(""), None);
    assert_eq!(split("a."), None);
    assert_eq!(split("\"a"), None);
    assert_eq!(split("\"a\"b"), None);
    assert_eq!(quoted_name("select"), "\"select\"");
    assert_eq!(quoted_name("name"), "name");
    assert_eq!(quoted_name("a b"), "\"a b\"");
    assert_eq!(quoted_literal("it's"), "'it''s'");
}
