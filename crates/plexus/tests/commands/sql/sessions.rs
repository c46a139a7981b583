//! Cancelled answers, savepoints and temporary tables of a session.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;

use super::*;
use crate::common::until;

/// Reads a message: its kind and its body.
fn message(stream: &mut UnixStream) -> (u8, Vec<u8>) {
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let mut body = vec![0; len.checked_sub(4).unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head[0], body)
}

/// Reads messages up to the one that a statement can follow. Returns their kinds, with the number
/// and secret of the session before that of its message, and the SQLSTATE of an error.
fn messages(stream: &mut UnixStream) -> (Vec<u8>, String) {
    let (mut kinds, mut state) = (Vec::new(), String::new());
    while kinds.last() != Some(&b'Z') {
        let (kind, body) = message(stream);
        if kind == b'E' {
            let code = body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"C"));
            state = String::from_utf8(code.unwrap().to_vec()).unwrap();
        }
        if kind == b'K' {
            kinds.extend(body);
        }
        kinds.push(kind);
    }
    (kinds, state)
}

/// A client of a node without a library.
struct Raw {
    stream: UnixStream,
    /// The number of the session and its secret.
    key: Vec<u8>,
}

impl Raw {
    fn start(path: &Path) -> Self {
        let names = format!("user\0{USER}\0database\0postgres\0\0");
        let start = [&196_608u32.to_be_bytes()[..], names.as_bytes()].concat();
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&packet(&start)).unwrap();
        let (told, _) = messages(&mut stream);
        // They are before the kind of their message.
        let at = told.iter().rposition(|byte| *byte == b'K').unwrap();
        Self { stream, key: told[at - 8..at].to_vec() }
    }

    fn send(&mut self, text: &str) {
        let query = [b"Q", &packet(format!("{text}\0").as_bytes())[..]].concat();
        self.stream.write_all(&query).unwrap();
    }

    /// Runs statements. Returns the kinds of messages, and the SQLSTATE of an error.
    fn run(&mut self, text: &str) -> (Vec<u8>, String) {
        self.send(text);
        messages(&mut self.stream)
    }

    /// Waits for a notification: its sender, channel and payload.
    fn notification(&mut self) -> (i32, String, String) {
        let (kind, body) = message(&mut self.stream);
        assert_eq!(kind, b'A');
        let texts: Vec<_> = body[4..].split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        (i32::from_be_bytes(body[..4].try_into().unwrap()), texts[0].to_string(), texts[1].to_string())
    }
}

fn packet(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
}

/// The client reads nothing until the statement is cancelled, so a part of a row has been sent.
#[test]
fn an_answer_that_is_cancelled_half_way_goes_on_where_it_was() {
    let cluster = cluster();
    let path = cluster.dir().join("run/.s.PGSQL.5433");
    for text in [
        "select repeat('a', 500) from generate_series(1, 20000)",
        "copy (select repeat('a', 500) from generate_series(1, 20000)) to stdout",
    ] {
        let mut client = Raw::start(&path);
        client.send(text);
        thread::sleep(Duration::from_millis(300));
        let cancel = [&80_877_102u32.to_be_bytes()[..], &client.key].concat();
        UnixStream::connect(&path).unwrap().write_all(&packet(&cancel)).unwrap();
        thread::sleep(Duration::from_millis(300));
        let (kinds, state) = messages(&mut client.stream);
        assert_eq!(state, "57014", "{text}: {} messages", kinds.len());
        assert_eq!(client.run("select 1").0, b"TDCZ");
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

#[test]
fn advisory_locks_hold_on_all_nodes_until_their_session_ends() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    let fails = |node: u16, text: &str| {
        let mut command = client(&psql, &cluster, node);
        let output = command.args(["-X", "-At", "-c", text]).output().unwrap();
        assert!(!output.status.success(), "{text}");
        String::from_utf8(output.stderr).unwrap()
    };
    let mut holder = Session::start(&psql, &cluster, 1);
    holder.run("select pg_advisory_lock(1), pg_advisory_lock_shared(2), pg_advisory_lock(3, 4);");
    assert_eq!(ask(2, "select pg_try_advisory_lock(1), pg_try_advisory_lock(2)"), "f|f");
    assert_eq!(ask(2, "select pg_try_advisory_lock_shared(2), pg_try_advisory_lock(3)"), "t|t");
    assert_eq!(ask(1, "select pg_try_advisory_lock(3, 4), pg_try_advisory_xact_lock(5)"), "f|t");
    let told = fails(2, "set lock_timeout = 100; select pg_advisory_lock(1)");
    assert!(told.contains("canceling statement due to lock timeout"), "{told}");
    let told = fails(2, "set statement_timeout = 100; select pg_advisory_lock(3, 4)");
    assert!(told.contains("canceling statement due to statement timeout"), "{told}");
    // A shared lock becomes one of the session alone, and back, when the other one that shares it
    // has ended.
    let mut other = Session::start(&psql, &cluster, 2);
    other.run("select pg_advisory_lock_shared(2);");
    let told = fails(2, "set lock_timeout = 100; select pg_advisory_lock_shared(2), pg_advisory_lock(2)");
    assert!(told.contains("canceling statement due to lock timeout"), "{told}");
    let waiting = thread::spawn(move || {
        holder.run("select pg_advisory_lock(2);");
        holder
    });
    thread::sleep(Duration::from_millis(200));
    other.run("select pg_advisory_unlock_shared(2);");
    let mut holder = waiting.join().unwrap();
    assert_eq!(ask(2, "select pg_try_advisory_lock_shared(2)"), "f");
    holder.run("select pg_advisory_unlock(2);");
    assert_eq!(ask(2, "select pg_try_advisory_lock_shared(2), pg_try_advisory_lock(2)"), "t|f");
    // Two that wait for each other, one of them for a table.
    ask(1, "create table t (a int)");
    other.run("begin; lock table t; select pg_advisory_xact_lock(9);");
    let waiting = thread::spawn(move || holder.end("begin; insert into t values (1); commit;"));
    thread::sleep(Duration::from_millis(200));
    let told = [other.end("select pg_advisory_xact_lock(1); commit;"), waiting.join().unwrap()];
    let failed = told.iter().filter(|told| told.contains("deadlock detected")).count();
    assert_eq!(failed, 1, "{told:?}");
    // The answers of a statement that was given up are not those of the next one.
    let mut holder = Session::start(&psql, &cluster, 1);
    holder.run("select pg_advisory_lock(12), pg_advisory_lock(13);");
    let mut command = client(&psql, &cluster, 2);
    let output = command.args(["-X", "-At"]).args(
        [
            "set statement_timeout = 300",
            "select pg_try_advisory_lock(11), pg_advisory_lock(12)",
            "select pg_try_advisory_lock(13), pg_try_advisory_lock(11)",
        ]
        .iter()
        .flat_map(|text| ["-c", text]),
    );
    let output = output.output().unwrap();
    let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(told.starts_with("SET\nf|t\n") && told.contains("statement timeout"), "{told}");
    holder.end("select 1;");
    // The sessions have ended.
    assert_eq!(ask(1, "select pg_try_advisory_lock(1), pg_try_advisory_lock(9)"), "t|t");
    let mut doomed = Session::start(&psql, &cluster, 1);
    doomed.run("select pg_advisory_lock(1);");
    signal(cluster.pids()[0], Signal::KILL);
    assert_eq!(ask(2, "set statement_timeout = '60s'; select pg_advisory_lock(1)"), "SET");
    doomed.child.wait().unwrap();
}

#[test]
fn a_database_goes_when_no_node_has_a_session_in_it() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    let run = |node: u16, database: &str, text: &str| {
        let mut command = client(&psql, &cluster, node);
        let command = command.env("PGDATABASE", database).args(["-X", "-At", "-v", "ON_ERROR_STOP=1"]);
        let output = command.args(["-c", text]).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let fill = "create schema s; create table s.t (id serial primary key, b text unique); create view v as select * from s.t; insert into s.t (b) select repeat('x', 250) || n from generate_series(1, 30000) n";
    // Each is a third of the disk group, so their space is used again.
    for round in 0..4 {
        ask(1, "create database shop");
        let told = run(2, "shop", fill);
        assert!(told.ends_with("INSERT 0 30000\n"), "round {round}: {told}");
        ask(2, "drop database shop");
    }
    assert!(run(1, "shop", "select 1").contains("database \"shop\" does not exist"));
    ask(1, "create database shop");
    let mut command = client(&psql, &cluster, 2);
    command.env("PGDATABASE", "shop").args(["-X", "-At"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut user = super::Session { child: command.stderr(Stdio::piped()).spawn().unwrap() };
    user.run("create table t (a int);");
    let told = run(1, "postgres", "drop database shop");
    assert!(told.contains("database \"shop\" is being accessed by other users"), "{told}");
    // A client that connects while the database goes is told so.
    let dropping = {
        let mut command = client(&psql, &cluster, 1);
        command.args(["-X", "-c", "drop database shop"]).spawn().unwrap()
    };
    thread::sleep(Duration::from_millis(200));
    let late = thread::scope(|scope| {
        let late = scope.spawn(|| run(2, "shop", "select 1"));
        thread::sleep(Duration::from_millis(200));
        assert_eq!(user.end("select 1;"), "");
        late.join().unwrap()
    });
    assert!({ dropping }.wait().unwrap().success());
    assert!(late.contains("database \"shop\" does not exist"), "{late}");
    assert!(run(1, "postgres", "drop database shop").contains("database \"shop\" does not exist"));
    let told = run(1, "postgres", "drop database if exists shop");
    assert!(told.contains("NOTICE") && told.contains("DROP DATABASE"), "{told}");
    assert!(run(1, "postgres", "begin; drop database x").contains("cannot run inside a transaction block"));
    assert!(run(1, "postgres", "drop database postgres").contains("currently open database"));
    ask(2, "create database shop");
    assert_eq!(run(1, "shop", "select count(*) from pg_class where relname = 't'"), "0\n");
}

/// Also a session that waits for its client, a sender in a transaction, and one whose node dies.
#[test]
fn notifications_reach_the_sessions_of_all_nodes_once_each_in_the_order_of_their_commits() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    let path = cluster.dir().join("run/.s.PGSQL.5434");
    let mut idle = Raw::start(&path);
    idle.run("listen a; listen b; listen c;");
    let sent = ask(
        1,
        "begin; notify a, '1'; savepoint s; notify a, '2'; rollback to s; notify a, '3'; notify a, '1'; commit; select pg_backend_pid()",
    );
    let process: i32 = sent.lines().last().unwrap().parse().unwrap();
    // Without a statement of its own.
    for payload in ["1", "3"] {
        assert_eq!(idle.notification(), (process, "a".to_owned(), payload.to_owned()));
    }
    ask(2, "begin; notify a, 'rolled back'; rollback");
    ask(1, "select pg_notify('a', 'x' || i % 5000) from generate_series(1, 10000) i");
    let own = ask(2, "listen a; notify a, 'last'; select pg_backend_pid()");
    let own: Vec<&str> = own.lines().rev().collect();
    assert!(
        own[0].contains(&format!("\"last\" received from server process with PID {}", own[1])),
        "{own:?}"
    );
    (1..5000).chain([0]).for_each(|i| assert_eq!(idle.notification().2, format!("x{i}")));
    assert_eq!(idle.notification().2, "last");
    // In a transaction it gets none before its end.
    assert_eq!(idle.run("begin; unlisten b;").0, b"CCZ");
    ask(1, "notify a, 'during'");
    ask(1, "notify b, 'not any more'");
    assert_eq!(idle.run("select 1;").0, b"TDCZ");
    assert_eq!(idle.run("commit;").0, b"CAZ");
    // Sessions of both nodes at once: each is heard in its own order.
    thread::scope(|scope| {
        for sender in 0..4u16 {
            let (psql, cluster) = (&psql, &cluster);
            scope.spawn(move || {
                let text: String = (0..50).map(|i| format!("notify a, '{sender} {i}';")).collect();
                let mut command = client(psql, cluster, sender % 2 + 1);
                command.args(["-X", "-q", "-c", &text]).arg("-c").arg(&text);
                said(command);
            });
        }
    });
    let mut heard = [const { Vec::new() }; 4];
    for _ in 0..400 {
        let (_, _, payload) = idle.notification();
        let (sender, i) = payload.split_once(' ').unwrap();
        heard[sender.parse::<usize>().unwrap()].push(i.parse::<usize>().unwrap());
    }
    let expected: Vec<usize> = (0..50).chain(0..50).collect();
    assert!(heard.iter().all(|of| *of == expected), "{heard:?}");
    // The other database has other channels.
    ask(1, "create database other");
    let mut command = client(&psql, &cluster, 1);
    command.env("PGDATABASE", "other").args(["-X", "-c", "notify a, 'of another database'"]);
    said(command);
    signal(cluster.pids()[0], Signal::KILL);
    cluster.wait_until("a death", |status| status["nodes"][0]["state"] != "running");
    ask(2, "notify c, 'alone'");
    assert_eq!(idle.notification().2, "alone");
}

/// Its notifications do not take the memory of the node, and other sessions go on.
#[test]
fn a_session_that_does_not_read_its_notifications_is_ended() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let mut lazy = Raw::start(&cluster.dir().join("run/.s.PGSQL.5433"));
    lazy.run("listen a;");
    let many = "select pg_notify('a', repeat('x', 7000) || i) from generate_series(1, 1000) i";
    let listed = || cluster.run("sessions").args(["--json"]).said().ok().contains("listen a;");
    assert!(listed());
    for _ in 0..30 {
        query(&psql, &cluster, 2, many);
    }
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while listed() {
        assert!(std::time::Instant::now() < until, "the session stays");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(query(&psql, &cluster, 1, "select 1"), "1");
}

#[test]
fn statements_sleep_and_sessions_of_other_nodes_are_cancelled_and_ended() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    let sleeping = "from pg_stat_activity where query like 'select pg_sleep%' and state = 'active'";
    let find = |node: u16| loop {
        let found = ask(node, &format!("select pid {sleeping}"));
        if !found.is_empty() {
            break found;
        }
        thread::sleep(Duration::from_millis(10));
    };
    for (way, expected) in [
        ("pg_cancel_backend(PID)", "canceling statement due to user request"),
        ("pg_terminate_backend(PID, 30000)", "terminating connection due to administrator command"),
    ] {
        let session = Session::start(&psql, &cluster, 2);
        let waiting = thread::spawn(move || session.end("select pg_sleep(600);"));
        let process = find(1);
        assert_eq!(find(2), process);
        // Others of its node go on, and a role that is none of its own may not.
        ask(2, "select pg_sleep(0.01)");
        ask(1, "drop role if exists ann; create role ann login");
        let mut other = client(&psql, &cluster, 1);
        let text = format!("select {}", way.replace("PID", &process));
        other.env("PGUSER", "ann").args(["-X", "-c", &text]);
        let told = String::from_utf8(other.output().unwrap().stderr).unwrap();
        assert!(told.contains("must be a superuser"), "{told}");
        assert_eq!(ask(1, &text), "t");
        let told = waiting.join().unwrap();
        assert!(told.contains(expected), "{told}");
        assert_eq!(ask(1, &format!("select count(*) {sleeping}")), "0");
    }
}

/// Two sessions of two nodes have one value of a deferrable key, which the second one waits for.
#[test]
fn a_deferrable_key_holds_on_all_nodes() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    ask(1, "create table t (a int primary key, b int unique deferrable initially deferred)");
    ask(2, "insert into t values (1, 1), (2, 2)");
    // The other session gives the value 5 to row 3 while this one has done `before`.
    let meet = |before: &str, after: &str| {
        let mut one = Session::start(&psql, &cluster, 1);
        one.run(&format!("begin; {before}"));
        let other = Session::start(&psql, &cluster, 2);
        let waiting = thread::spawn(move || other.end("begin; insert into t values (3, 5); commit;"));
        thread::sleep(Duration::from_millis(300));
        (one.end(after), waiting.join().unwrap())
    };
    let (one, other) = meet("insert into t values (4, 5);", "commit;");
    assert!(one.is_empty() && other.contains("violates unique constraint \"t_b_key\""), "{one}{other}");
    let both = meet("update t set b = 1 where b = 5;", "update t set b = 4 where a = 1; commit;");
    assert_eq!(both, Default::default());
    assert_eq!(ask(1, "select * from t order by a"), "1|4\n2|2\n3|5\n4|1");
    let both = meet("insert into t values (6, 5); delete from t where b = 5;", "rollback;");
    assert!(both.1.contains("t_pkey"), "{both:?}");
    ask(
        2,
        "begin; update t set b = b + 1; update t set b = 9 where b = 6; delete from t where a = 3; commit",
    );
    assert_eq!(ask(1, "select b from t where b > 0 order by b"), "2\n3\n5");
    cluster.run("store").args(["check"]).said().ok();
    let mut doomed = Session::start(&psql, &cluster, 1);
    doomed.run("begin; insert into t values (7, 7), (8, 7);");
    signal(cluster.pids()[0], Signal::KILL);
    assert_eq!(ask(2, "insert into t values (9, 7); select b from t where b > 5"), "INSERT 0 1\n7");
    doomed.child.wait().unwrap();
}

#[test]
fn roles_have_few_sessions_slow_statements_are_noted_and_certificates_are_replaced() {
    let Some(psql) = postgresql("psql") else { return };
    let new = || Cluster::with(1, &["--sql-port", "5433", "--size-mib", "16"], USER);
    let (cluster, other) = (new(), new());
    cluster.bear_busy_disks();
    cluster.edit("[sql]\n", "[sql]\nslow_ms = 300\n");
    cluster.run("up").said().ok();
    let url = cluster.run("sql").args(["--url", "--tcp", "-n", "n1"]).said().ok().trim().to_owned();
    let first = |text: &str| over_tcp(&psql, &url, ("", ""), text);
    let ann = |text: &str| over_tcp(&psql, &url, ("ann", "pearl"), text);

    first("create role ann login password 'pearl' connection limit 1").unwrap();
    assert_eq!(ann("select rolconnlimit from pg_roles where rolname = 'ann'").unwrap(), "1");
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| ann("select pg_sleep(600)"));
        let count =
            || Value::from(first("select count(*) from pg_stat_activity where usename = 'ann'").unwrap());
        until("she has a session", count, |count| count == "1");
        let error = ann("select 1").unwrap_err();
        assert!(error.contains("too many connections for role \"ann\""), "{error}");
        first("alter role ann connection limit -1").unwrap();
        assert_eq!(ann("select 1").unwrap(), "1");
        first("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'ann'").unwrap();
        assert!(sleeping.join().unwrap().is_err());
    });

    first("select 'quick'").unwrap();
    first("select pg_sleep(0.4),\n  'slow'").unwrap();
    let log = fs::read_to_string(cluster.dir().join("log/n1.log")).unwrap();
    let noted: Vec<_> = log.lines().filter(|line| line.contains("slow statement: ")).collect();
    let expected = format!(" ms, {USER} in postgres: select pg_sleep(0.4), 'slow'");
    assert!(noted.iter().any(|line| line.ends_with(&expected)), "{noted:#?}");
    assert!(!noted.iter().any(|line| line.contains("quick")), "{noted:#?}");

    let root = other.dir().join("keys/sql.crt");
    let with = |text| {
        over_tcp(&psql, &format!("{url}?sslmode=verify-ca&sslrootcert={}", root.display()), ("", ""), text)
    };
    assert!(with("select 1").unwrap_err().contains("certificate verify failed"));
    for file in ["keys/sql.crt", "keys/sql.key"] {
        fs::copy(other.dir().join(file), cluster.dir().join(file)).unwrap();
    }
    assert_eq!(with("select 1").unwrap(), "1");
}

#[test]
fn the_runs_of_statements_are_counted_on_all_nodes() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = Cluster::with(2, &["--sql-port", "5433", "--size-mib", "32", "--cache-mib", "8"], USER);
    cluster.bear_busy_disks();
    cluster.edit("[sql]\n", "[sql]\ncounted_statements = 100\n");
    cluster.run("up").said().ok();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    ask(1, "create table t (a int primary key, b text); create role ann login");
    for node in 1..=2 {
        ask(node, &format!("insert into t values ({node}, 'b')"));
        ask(node, &format!("select * from t where a <= {node}"));
        let mut fails = client(&psql, &cluster, node);
        assert!(!fails.args(["-X", "-c", "select a / 0 from t"]).status().unwrap().success());
    }
    let mut as_ann = client(&psql, &cluster, 2);
    as_ann.env("PGUSER", "ann").args([
        "-X",
        "-At",
        "-c",
        "select query from pg_stat_statements where calls = 2",
    ]);
    let of_others = "<insufficient privilege>\n<insufficient privilege>\n";
    assert_eq!(said(as_ann), of_others);
    // Also with the extended protocol.
    ask(1, "prepare p as insert into t values ($1, 'c'); execute p (3)");
    let found = ask(
        2,
        "select calls, rows, query, d.datname, r.rolname,
            total_exec_time >= max_exec_time and max_exec_time >= mean_exec_time
            and mean_exec_time >= min_exec_time and min_exec_time > 0 and stddev_exec_time >= 0 and queryid <> 0
        from pg_stat_statements s join pg_database d on d.oid = dbid join pg_roles r on r.oid = userid
        where query like '%t where%' or query like 'insert%' or query like '%/%' order by query",
    );
    let of = format!("postgres|{USER}|t");
    let expected = format!("2|2|insert into t values ($1, $2)|{of}\n2|3|select * from t where a <= $1|{of}");
    assert_eq!(found, expected);
}

/// The result is that of PostgreSQL with the same statements in the same order.
#[test]
fn merge_looks_at_the_rows_that_another_transaction_has_changed_meanwhile() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    ask(1, "create table t (id int primary key, n int); insert into t values (1, 10), (2, 20), (3, 30)");
    ask(1, "create table s (id int, n int); insert into s values (1, 1), (2, 2), (3, 3)");
    let mut other = Session::start(&psql, &cluster, 1);
    other.run("begin; update t set n = 100 where id = 1; delete from t where id = 2;");
    other.run("update t set id = 33 where id = 3;");
    thread::scope(|scope| {
        let merge =
            "merge into t using s on t.id = s.id when matched and t.n > 50 then update set n = t.n + s.n
            when matched then update set n = -1 when not matched then insert values (s.id, 1000 + s.n)";
        scope.spawn(|| ask(2, merge));
        let waits =
            "select count(*) from pg_stat_activity where query like 'merge%' and wait_event_type = 'Lock'";
        until("it waits", || Value::from(ask(1, waits)), |count| count == "1");
        other.run("commit;");
    });
    assert_eq!(ask(2, "select * from t order by id"), "1|101\n2|1002\n3|1003\n33|30");
}

/// The results are those of PostgreSQL with the same statements in the same order.
#[test]
fn the_rows_of_a_join_are_locked_as_they_are_then() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    ask(1, "create table a (id int primary key, n int); insert into a values (1, 10), (2, 20), (3, 30)");
    ask(1, "create table b (id int primary key, a int); insert into b values (1, 1), (2, 2), (3, 3)");
    let mut other = Session::start(&psql, &cluster, 1);
    other.run("begin; update a set n = 11 where id = 1; update a set n = 0 where id = 2; delete from b where id = 3;");
    thread::scope(|scope| {
        let locking = "select b.id, n from a join b on b.a = a.id where n > 5 order by b.id for update";
        let locks = scope.spawn(|| ask(2, locking));
        let waits = "select count(*) from pg_stat_activity where query like 'select b.id%' and wait_event_type = 'Lock'";
        until("it waits", || Value::from(ask(1, waits)), |count| count == "1");
        other.run("commit;");
        assert_eq!(locks.join().unwrap(), "1|11");
    });
    // The other side of an outer join is the one of the newest row.
    let other_side = "select a.id, a.n, b.id from a left join b on b.id = a.n order by a.id for update of a";
    ask(1, "update a set n = 1 where id = 1");
    other.run("begin; update a set n = 2 where id = 1; update a set n = 77 where id = 2;");
    thread::scope(|scope| {
        let locks = scope.spawn(|| ask(2, other_side));
        let waits = "select count(*) from pg_stat_activity where query like 'select a.id%' and wait_event_type = 'Lock'";
        until("it waits", || Value::from(ask(1, waits)), |count| count == "1");
        other.run("commit; update a set n = 11 where id = 1; update a set n = 7 where id = 2;");
        assert_eq!(locks.join().unwrap(), "1|2|\n2|77|\n3|30|");
    });
    // A row of each table is locked, and those of a table that is not named are free.
    other.run("begin; select * from a join b on b.a = a.id where a.id = 1 for update of b;");
    assert_eq!(ask(2, "select a.id from a join b on b.a = a.id order by 1 for update skip locked"), "2");
    assert_eq!(ask(2, "select id from a order by 1 for update skip locked"), "1\n2\n3");
    let mut fails = client(&psql, &cluster, 2);
    fails.args(["-X", "-c", "select 1 from a, b where b.a = a.id and a.id = 1 for update nowait"]);
    let told = String::from_utf8(fails.output().unwrap().stderr).unwrap();
    assert!(told.contains("could not obtain lock on row in relation \"b\""), "{told}");
}

/// It waits for a row that a transaction has without a lock of another one, and other statements
/// may change the table meanwhile.
#[test]
fn an_index_is_made_beside_transactions_that_wait_and_changes_of_its_table() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    ask(
        1,
        "create table t (id int primary key, n int); insert into t select g, g from generate_series(1, 3000) g",
    );
    for (number, change) in [
        "update t set n = -n where id = 2490",
        "alter index t_0 rename to t_old",
        "alter table t rename to u; alter table u rename to t",
        "alter table t add column o int default 5",
        "update t set id = -id where id = 2490",
        "truncate t",
    ]
    .into_iter()
    .enumerate()
    {
        // The build of the index comes to this row, and waits.
        let mut other = Session::start(&psql, &cluster, 1);
        other.run("begin; select * from t where id = 2500 for update;");
        let build = format!("create unique index concurrently t_{number} on t (n, id)");
        thread::scope(|scope| {
            let built = scope.spawn(|| {
                let mut command = client(&psql, &cluster, 2);
                command.args(["-X", "-c", &build]).output().unwrap()
            });
            let waits = "select count(*) from pg_stat_activity where query like 'create unique%' and wait_event_type = 'Lock'";
            until("it waits", || Value::from(ask(1, waits)), |count| count == "1");
            match change.starts_with("update") {
                true => other.run(&format!("{change};")),
                false => {
                    other.run("commit;");
                    ask(1, change);
                    other.run("begin;");
                }
            }
            other.run("commit;");
            let built = built.join().unwrap();
            let told = String::from_utf8_lossy(&built.stderr);
            // A statement that writes all rows again ends it, unless the index is complete before.
            let may_end = change.contains("add column") || change == "truncate t";
            if may_end && told.contains("or its table was written again") {
                ask(1, &format!("drop index t_{number}"));
            } else {
                assert!(built.status.success(), "{change}: {told}");
            }
        });
        assert_eq!(ask(1, "select count(*) from pg_index where not indisvalid"), "0", "{change}");
        cluster.run("store").args(["check"]).said().ok();
    }
}

/// Writers go on meanwhile, and it has one entry for each row.
#[test]
fn an_index_is_made_while_both_nodes_write() {
    let (Some(psql), Some(pgbench)) = (postgresql("psql"), postgresql("pgbench")) else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    ask(1, "create table t (id int primary key, n int, s text)");
    ask(1, "insert into t select g, g, 's' || g from generate_series(1, 6000) g");
    let script = cluster.parent().join("writes.sql");
    let writes = "\\set id random(1, 6000)\n\\set n random(1, 100000)\n
        update t set n = :n where id = :id;\n
        begin;\ndelete from t where id = :id + 1;\ninsert into t values (:id + 1, :n, 's') on conflict do nothing;\nend;\n";
    fs::write(&script, writes).unwrap();
    thread::scope(|scope| {
        let writers = [1, 2].map(|node| {
            let mut command = client(&pgbench, &cluster, node);
            command.args(["-n", "-c", "2", "-T", "8", "-f"]).arg(&script);
            scope.spawn(move || said(command))
        });
        for (node, index) in
            [(1, "t_n on t (n)"), (2, "t_both on t (s, id)"), (1, "t_few on t (upper(s)) where n > 50000")]
        {
            ask(node, &format!("create index concurrently {index}"));
        }
        for writer in writers {
            let told = writer.join().unwrap();
            assert!(told.contains("number of failed transactions: 0 "), "{told}");
        }
    });
    let found = "select count(*), sum(id), sum(n) from";
    let by_index = format!("{found} (select id, n from t where n > 0 order by n limit 100000) x");
    let plan = ask(1, "explain select id, n from t where n > 0 order by n limit 100000");
    assert!(plan.contains("Scan of index t_n of t"), "{plan}");
    assert_eq!(ask(2, &by_index), ask(2, &format!("{found} t")));
    for digit in 1..9 {
        let few = format!("n > 50000 and upper(s) > 'S{digit}' and upper(s) < 'S{}'", digit + 1);
        assert!(ask(1, &format!("explain select id from t where {few}")).contains("index t_few of t"));
        assert_eq!(
            ask(2, &format!("{found} t where {few}")),
            ask(2, &format!("{found} t where {}", few.replace("n >", "n + 0 >")))
        );
    }
    cluster.run("store").args(["check"]).said().ok();
}

#[test]
fn a_snapshot_is_too_old_only_for_a_table_whose_definition_has_changed() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    ask(1, "create table t (id int primary key, n int); insert into t values (1, 1)");
    ask(1, "create table u (id int primary key, n int); insert into u values (1, 1)");
    let mut session = Session::start(&psql, &cluster, 1);
    session.run("begin isolation level repeatable read; select count(*) from t;");
    ask(2, "alter table u add column o int");
    ask(2, "create table v (id int)");
    session.run("select * from t for update; update t set n = 2;");
    session.run("commit;");
    assert_eq!(ask(2, "select n from t"), "2");
    let mut session = Raw::start(&cluster.dir().join("run/.s.PGSQL.5433"));
    session.run("begin isolation level repeatable read; select count(*) from t;");
    ask(2, "alter table u drop column o");
    assert_eq!(session.run("update u set n = 3").1, "40001");
}
