//! Savepoints and temporary tables of a session.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use rustix::process::Signal;

use super::*;

/// Each released savepoint leaves no version of the row behind.
#[test]
fn a_row_is_changed_behind_many_released_savepoints() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let mut session = Session::start(&psql, &cluster, 1);
    session.run("create table t (id int primary key, n int); insert into t values (1, 0); begin;");
    let step = "savepoint s; update t set n = n + 1; release s;".repeat(20);
    (0..20).for_each(|_| session.run(&format!("{step} select 1;")));
    session.run("savepoint s; update t set n = 0; rollback to s; create table made (a int); rollback to s;");
    session.end("commit;");
    assert_eq!(query(&psql, &cluster, 1, "select n from t"), "400");
}

/// Its session ends, or its node dies.
#[test]
fn temporary_tables_go_with_their_session_and_with_their_node() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = Cluster::with(2, &["--sql-port", "5433", "--size-mib", "16"], USER);
    cluster.bear_busy_disks();
    cluster.run("up").said().ok();
    let url = cluster.run("sql").args(["--url", "-n", "n1"]).said().ok().trim().to_owned();
    let schemas = |node: &str, before: &str| {
        let count = "select count(*) from pg_namespace where nspname like 'pg_temp_%'";
        let said = cluster.run("sql").args(["-n", node, "-c", before, "-c", count]).said().ok();
        said.lines().rev().nth(1).unwrap().trim().to_owned()
    };
    let begin = || {
        let mut session = Command::new(&psql);
        session.args([&url, "-XAtq"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut session = session.spawn().unwrap();
        let input = session.stdin.as_mut().unwrap();
        input.write_all(b"create temp table t (id serial, a int unique); select 'made';\n").unwrap();
        let mut line = String::new();
        BufReader::new(session.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "made\n");
        session
    };
    let mut session = begin();
    assert_eq!(schemas("n2", "select 1"), "1");
    drop(session.stdin.take());
    session.wait().unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while schemas("n2", "select 1") != "0" {
        assert!(std::time::Instant::now() < until, "the schema of an ended session stays");
    }
    let mut session = begin();
    signal(cluster.pids()[0], Signal::KILL);
    session.wait().unwrap();
    cluster.wait_until("a death", |status| status["nodes"][0]["state"] != "running");
    assert_eq!(schemas("n2", "create temp table own (a int)"), "1", "that of the session itself");
    assert_eq!(schemas("n2", "select 1"), "0");
}
