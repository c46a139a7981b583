//! Cancelled answers, savepoints and temporary tables of a session.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
};

use rustix::process::Signal;

use super::*;

/// Reads messages up to the one that a statement can follow. Returns their kinds, with the number
/// and secret of the session before that of its message, and the SQLSTATE of an error.
fn messages(stream: &mut UnixStream) -> (Vec<u8>, String) {
    let (mut kinds, mut state) = (Vec::new(), String::new());
    while kinds.last() != Some(&b'Z') {
        let mut head = [0; 5];
        stream.read_exact(&mut head).unwrap();
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; len.checked_sub(4).unwrap()];
        stream.read_exact(&mut body).unwrap();
        if head[0] == b'E' {
            let code = body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"C"));
            state = String::from_utf8(code.unwrap().to_vec()).unwrap();
        }
        if head[0] == b'K' {
            kinds.extend(body);
        }
        kinds.push(head[0]);
    }
    (kinds, state)
}

/// The client reads nothing until the statement is cancelled, so a part of a row has been sent.
#[test]
fn an_answer_that_is_cancelled_half_way_goes_on_where_it_was() {
    let cluster = cluster();
    let path = cluster.dir().join("run/.s.PGSQL.5433");
    let packet = |body: &[u8]| [&(body.len() as u32 + 4).to_be_bytes()[..], body].concat();
    let names = format!("user\0{USER}\0database\0postgres\0\0");
    let start = [&196_608u32.to_be_bytes()[..], names.as_bytes()].concat();
    for text in [
        "select repeat('a', 500) from generate_series(1, 20000)\0",
        "copy (select repeat('a', 500) from generate_series(1, 20000)) to stdout\0",
    ] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&packet(&start)).unwrap();
        let (told, _) = messages(&mut stream);
        // The number of the session and its secret are before the kind of their message.
        let at = told.iter().rposition(|byte| *byte == b'K').unwrap();
        let mut query = vec![b'Q'];
        query.extend(packet(text.as_bytes()));
        stream.write_all(&query).unwrap();
        thread::sleep(Duration::from_millis(300));
        let cancel = [&80_877_102u32.to_be_bytes()[..], &told[at - 8..at]].concat();
        UnixStream::connect(&path).unwrap().write_all(&packet(&cancel)).unwrap();
        thread::sleep(Duration::from_millis(300));
        let (kinds, state) = messages(&mut stream);
        assert_eq!(state, "57014", "{text}: {} messages", kinds.len());
        stream.write_all(b"Q\0\0\0\x0dselect 1\0").unwrap();
        assert_eq!(messages(&mut stream).0, b"TDCZ");
    }
}

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
