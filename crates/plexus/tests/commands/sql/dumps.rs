//! Dumps: a database is moved between Plexus and PostgreSQL by pg_dump and psql.

use std::{fs, path::Path};

use super::*;

/// On both, psql restores what pg_dump writes of either.
#[test]
fn dumps_of_plexus_and_of_postgresql_are_restored_on_both() {
    const SHOWN: &str = "select * from c order by id; select * from v order by 1; select * from mv order by 1; \
        select name, n, ok from p order by id; select * from extra.t order by a; \
        select conname, pg_get_constraintdef(oid) from pg_constraint where conrelid in ('p'::regclass, 'c'::regclass) order by 1; \
        select indexdef from pg_indexes where schemaname = 'public' order by 1; \
        select description from pg_description where objoid in ('p'::regclass) order by 1; \
        insert into p (name) values ('next') returning id > 3; \
        select * from e order by m; select * from ev; select enum_range(null::mood), enum_range(null::extra.level); \
        select * from d order by n; select conname, contypid::regtype, pg_get_constraintdef(oid) from pg_constraint where contypid = 'posint'::regtype order by 1; \
        select typname, typtype, obj_description(oid) from pg_type where typnamespace in ('public'::regnamespace, 'extra'::regnamespace) and typtype in ('d', 'e') order by 1; \
        select table_name, column_name, data_type, is_identity from information_schema.columns \
        where table_schema in ('public', 'extra') order by 1, 2";
    let (Some(psql), Some(pg_dump), Some(oracle)) =
        (postgresql("psql"), postgresql("pg_dump"), Oracle::start())
    else {
        return;
    };
    let cluster = cluster();
    let at = |server: usize, program: &Path, database: &str| {
        let mut command = if server == 1 { oracle.client(program) } else { client(program, &cluster, 1) };
        command.env("PGDATABASE", database);
        command
    };
    let run = |server: usize, database: &str, args: &[&str]| {
        let mut command = at(server, &psql, database);
        command.args(["-XAtq", "-v", "ON_ERROR_STOP=1"]).args(args);
        said(command)
    };
    let source = cluster.parent().join("dumped.sql");
    fs::write(&source, include_str!("dumped.sql")).unwrap();
    let mut shown = Vec::new();
    for server in 0..2 {
        run(server, "postgres", &["-c", "create database first"]);
        run(server, "first", &["-f", source.to_str().unwrap()]);
        let dump = cluster.parent().join(format!("dump{server}.sql"));
        let mut command = at(server, &pg_dump, "first");
        command.arg("-f").arg(&dump);
        said(command);
        for other in 0..2 {
            let name = format!("of{server}");
            run(other, "postgres", &["-c", &format!("create database {name}")]);
            run(other, &name, &["-f", dump.to_str().unwrap()]);
            shown.push(run(other, &name, &["-c", SHOWN]));
        }
    }
    assert!(shown[0].contains("tab\there") && shown.iter().all(|one| *one == shown[0]), "{shown:#?}");
}
