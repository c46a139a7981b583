//! SQL: psql and pgbench of PostgreSQL work unmodified on every node, and PostgreSQL gives the
//! expected results.

mod damage;
mod dumps;
mod oracle;
mod prompt;
mod random;
mod sessions;
mod types;

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use self::oracle::Oracle;
use crate::common::{Cluster, CommandOutput, program, run, signal};

/// The files of statements whose results are compared, each in a database of its own.
const STATEMENTS: &[(&str, &str)] = &[
    ("statements", include_str!("sql/statements.sql")),
    ("catalogs", include_str!("sql/catalogs.sql")),
    ("clients", include_str!("sql/clients.sql")),
    ("copies", include_str!("sql/copies.sql")),
    ("alterations", include_str!("sql/alterations.sql")),
    ("definitions", include_str!("sql/definitions.sql")),
    ("domains", include_str!("sql/domains.sql")),
    ("enums", include_str!("sql/enums.sql")),
    ("functions", include_str!("sql/functions.sql")),
    ("joins", include_str!("sql/joins.sql")),
    ("keys", include_str!("sql/keys.sql")),
    ("merges", include_str!("sql/merges.sql")),
    ("networks", include_str!("sql/networks.sql")),
    ("positions", include_str!("sql/positions.sql")),
    ("probes", include_str!("sql/probes.sql")),
    ("queries", include_str!("sql/queries.sql")),
    ("sessions", include_str!("sql/sessions.sql")),
    ("types", include_str!("sql/types.sql")),
];

/// The user of the test.
const USER: &str = "tester";

/// Returns a program of PostgreSQL 15, or prints why the test does nothing.
fn postgresql(name: &str) -> Option<PathBuf> {
    let path = Path::new("/usr/lib/postgresql/15/bin").join(name);
    if !path.exists() {
        println!("skipped: there is no {}: install postgresql-15", path.display());
        return None;
    }
    Some(path)
}

/// Two nodes with SQL.
fn cluster() -> Cluster {
    let cluster = Cluster::with(2, &["--sql-port", "5433", "--size-mib", "64", "--cache-mib", "16"], USER);
    cluster.bear_busy_disks();
    cluster.run("up").said().ok();
    cluster
}

/// Returns the command of a client of PostgreSQL for a node.
fn client(program: &Path, cluster: &Cluster, node: u16) -> Command {
    let mut command = Command::new(program);
    command.env("PGHOST", cluster.dir().join("run")).env("PGPORT", (5432 + node).to_string());
    command.env("PGUSER", USER).env("PGDATABASE", "postgres").stdin(Stdio::null());
    command
}

#[track_caller]
fn said(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out.into_owned()
}

#[track_caller]
fn query(psql: &Path, cluster: &Cluster, node: u16, text: &str) -> String {
    let mut command = client(psql, cluster, node);
    command.args(["-X", "-At", "-c", text]);
    said(command).trim_end().to_owned()
}

/// Runs a file of statements on a node and on PostgreSQL. Returns how their outputs differ.
fn differences(
    psql: &Path,
    cluster: &Cluster,
    node: u16,
    oracle: &Oracle,
    (name, statements): &(&str, &str),
) -> Vec<String> {
    let script = cluster.parent().join(format!("{name}.sql"));
    fs::write(&script, statements).unwrap();
    let outputs = |server: &dyn Fn() -> Command| {
        // The user is the same, and the file begins with none of its own.
        let mut create = server();
        create.env("PGDATABASE", "postgres").args(["-X", "-c", &format!("create database {name}")]);
        said(create);
        let mut command = server();
        let Output { stdout, stderr, .. } =
            command.env("PGDATABASE", name).args(["-X", "-A", "-a", "-f"]).arg(&script).output().unwrap();
        // What is printed to both, statement by statement: errors come in their order, too.
        (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    };
    let ours = outputs(&|| client(psql, cluster, node));
    let theirs = outputs(&|| oracle.client(psql));
    let mut faults = Vec::new();
    for (ours, theirs) in [(ours.0, theirs.0), (ours.1, theirs.1)] {
        let pairs = ours.lines().zip(theirs.lines()).enumerate();
        let different = pairs.filter(|(_, (our, their))| our != their).map(|(line, (our, their))| {
            format!("{name}.sql, line {line} of the output: {our:?} instead of {their:?}")
        });
        faults.extend(different.take(5));
        let (ours, theirs) = (ours.lines().count(), theirs.lines().count());
        if ours != theirs {
            faults.push(format!("{name}.sql: {ours} lines instead of {theirs}"));
        }
    }
    faults
}

#[test]
fn statements_have_the_results_that_they_have_on_postgresql() {
    let (Some(psql), Some(oracle)) = (postgresql("psql"), Oracle::start()) else { return };
    let cluster = cluster();
    // Half of the files run on each node.
    let faults = thread::scope(|scope| {
        let (psql, cluster, oracle) = (&psql, &cluster, &oracle);
        let node = |node: u16| {
            move || {
                let files = STATEMENTS.iter().skip(usize::from(node - 1)).step_by(2);
                files.flat_map(|file| differences(psql, cluster, node, oracle, file)).collect::<Vec<_>>()
            }
        };
        let nodes = [scope.spawn(node(1)), scope.spawn(node(2))];
        nodes.map(|node| node.join().unwrap()).concat()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // The few rows that meet a condition come first.
    let mut explain = client(&psql, &cluster, 1);
    let text = "explain select l.note from l, o where l.o = o.id and o.state = 'F' and o.day = '2020-03-01'";
    let plan = said({
        explain.env("PGDATABASE", "joins").args(["-X", "-A", "-t", "-c", text]);
        explain
    });
    let expected = "Scan of all rows of o\n  Join with Scan of rows of l by its primary key\n";
    assert_eq!(plan, expected);
    let told = |text: &str| {
        let mut explain = client(&psql, &cluster, 1);
        explain.env("PGDATABASE", "joins").args(["-X", "-A", "-t", "-c", text]);
        said(explain)
    };
    let plan =
        told("explain (format json, analyze) select l.note from l join o on l.o = o.id where o.id = 1");
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let top = &plan[0]["Plan"];
    assert_eq!(top["Node Type"], "Nested Loop", "{plan}");
    assert_eq!((&top["Join Type"], top["Plans"].as_array().unwrap().len()), (&"Inner".into(), 2), "{plan}");
    assert!(top["Plans"][0]["Relation Name"].is_string() && plan[0]["Execution Time"].is_f64(), "{plan}");
    // Each value of a list is looked up.
    let plan = |query: &str| {
        let mut explain = client(&psql, &cluster, 1);
        explain.env("PGDATABASE", "probes").args(["-X", "-A", "-t", "-c", &format!("explain {query}")]);
        said(explain).trim_end().to_owned()
    };
    let of_list = "Scan of rows of t by its primary key, of each value of a list";
    assert_eq!(plan("select * from t where a in (1, 2, 3)"), of_list);
    assert_eq!(plan("select * from t where a = any ('{1, 2, 3}') and b > 1"), of_list);
    assert_eq!(plan("select * from t where a in (select x from k where y = 1)"), of_list);
    assert_eq!(
        plan("select * from t where b in (1, 2) and a > 5"),
        "Scan of index t_b_a_idx of t, of each value of a list"
    );
    assert_eq!(plan("select * from t where a = 1 or b = 5"), "Scan of rows of t by several keys");
    assert_eq!(plan("select * from t where a = 1 or e = '2020-01-01'"), "Scan of all rows of t");
    assert_eq!(plan("select * from m where lower(mail) = 'a'"), "Scan of index m_lower_idx of m");
    assert_eq!(plan("select * from m where mail = 'a' and not gone"), "Scan of index m_mail_idx of m");
    assert_eq!(plan("select * from m where n = 5 and state = 'x'"), "Scan of index m_n_state_idx of m");
    // Unless they lead to most rows.
    let all = "Scan of all rows of m";
    assert_eq!(plan("select * from m where n = 5"), "Scan of index m_n_state_idx of m");
    assert_eq!(plan("select * from m where n >= 1"), all);
    assert_eq!(plan("select * from m where n >= 1 and lower(mail) = 'a'"), "Scan of index m_lower_idx of m");
    assert_eq!(plan("select * from m where id in (select g from generate_series(1, 4000) g)"), all);
    let of_few = "Scan of index m_id_idx of m";
    assert_eq!(plan("select * from m where state = 'queued' and id > 5"), of_few);
    assert_eq!(plan("select * from m where state = 'queued' order by id limit 1"), of_few);
    let plan = told("explain (analyze, timing off, summary off) select * from generate_series(1, 3)");
    assert_eq!(plan, "Function generate_series (actual rows=3 loops=1)\n");
}

/// All sums of pgbench's tables, which must be equal.
fn sums(psql: &Path, cluster: &Cluster, node: u16) -> [String; 4] {
    [
        "select sum(abalance) from pgbench_accounts",
        "select sum(bbalance) from pgbench_branches",
        "select sum(tbalance) from pgbench_tellers",
        "select sum(delta) from pgbench_history",
    ]
    .map(|text| query(psql, cluster, node, text))
}

#[test]
fn nodes_draw_different_numbers_from_a_sequence_and_go_on_from_where_it_is_set() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    ask(1, "create table numbered (id serial primary key, node int)");
    thread::scope(|scope| {
        for session in 0..8 {
            let node = session % 2 + 1;
            scope.spawn(move || {
                let insert = format!("insert into numbered (node) values ({node});").repeat(100);
                ask(node, &insert);
            });
        }
    });
    assert_eq!(ask(1, "select count(*), count(distinct id) from numbered"), "800|800");
    // Both nodes have numbers left, which they do not use.
    ask(1, "select setval('numbered_id_seq', 10000)");
    let first = ask(2, "insert into numbered (node) values (2) returning id");
    assert!(first.starts_with("10001"), "{first}");
    let second = ask(1, "select nextval('numbered_id_seq')");
    assert!(second.parse::<u64>().unwrap() > 10_000, "{second}");
    // What a node has drawn is not drawn again when it is killed.
    signal(cluster.pids()[1], Signal::KILL);
    let third = ask(1, "select nextval('numbered_id_seq')");
    assert_eq!(third.parse::<u64>().unwrap(), second.parse::<u64>().unwrap() + 1);
    cluster.run("up").said().ok();
    let fourth = ask(2, "insert into numbered (node) values (2) returning id");
    assert!(!fourth.starts_with("10001"), "{fourth}");
    assert_eq!(ask(2, "select count(*), count(distinct id) from numbered"), "802|802");
}

#[test]
fn pgbench_runs_on_two_nodes_at_once_and_goes_on_when_one_is_killed() {
    let (Some(psql), Some(pgbench)) = (postgresql("psql"), postgresql("pgbench")) else { return };
    let cluster = cluster();
    let mut init = client(&pgbench, &cluster, 1);
    init.args(["-i", "-q", "-s", "1"]);
    said(init);
    let bench = |node: u16, args: &[&str]| {
        let mut command = client(&pgbench, &cluster, node);
        command.args(["-n", "-c", "4"]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    for mode in ["simple", "extended", "prepared"] {
        let first = bench(1, &["-t", "30", "-M", mode]).spawn().unwrap();
        let second = said(bench(2, &["-t", "30", "-M", mode]));
        let first = first.wait_with_output().unwrap();
        assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
        assert!(second.contains("number of transactions actually processed: 120/120"), "{second}");
    }
    assert_eq!(query(&psql, &cluster, 2, "select count(*) from pgbench_history"), "720");

    let killed = bench(2, &["-T", "600"]).spawn().unwrap();
    let first = bench(1, &["-T", "4"]).spawn().unwrap();
    thread::sleep(Duration::from_secs(1));
    signal(cluster.pids()[1], Signal::KILL);
    let first = first.wait_with_output().unwrap();
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let killed = killed.wait_with_output().unwrap();
    assert!(!killed.status.success());
    let told = String::from_utf8_lossy(&killed.stdout).into_owned();
    let acknowledged: u64 = told
        .lines()
        .find_map(|line| line.strip_prefix("number of transactions actually processed: "))
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{told}"));
    let told = String::from_utf8_lossy(&first.stdout).into_owned();
    let others: u64 = told
        .lines()
        .find_map(|line| line.strip_prefix("number of transactions actually processed: "))
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{told}"));
    let found: u64 = query(&psql, &cluster, 1, "select count(*) from pgbench_history").parse().unwrap();
    // Each of the four clients may have had one transaction whose end it has not heard.
    let least = 720 + acknowledged + others;
    assert!((least..=least + 4).contains(&found), "{least} were acknowledged, {found} are there");
    let [accounts, branches, tellers, history] = sums(&psql, &cluster, 1);
    assert_eq!([&branches, &tellers, &history], [&accounts; 3]);

    cluster.run("up").said().ok();
    assert_eq!(sums(&psql, &cluster, 2), [accounts, branches, tellers, history]);
}

#[test]
fn a_client_of_plexus_needs_no_other_program() {
    let cluster = cluster();
    let sql = |args: &[&str]| cluster.run("sql").args(args.iter().copied()).said();
    let text = sql(&[
        "-c",
        "create table t (a int primary key, b text)",
        "-c",
        "insert into t values (1, 'one'), (22, null)",
        "-c",
        "select * from t order by a",
    ])
    .ok();
    assert_eq!(text, "CREATE TABLE\nINSERT 0 2\n a  b\n 1  one\n22\n(2 rows)\n");
    assert_eq!(sql(&["-n", "n2", "-c", "select count(*) from t"]).ok(), "count\n    2\n(1 row)\n");
    let failed = sql(&["-c", "select nosuch from t"]);
    assert!(failed.err.contains("ERROR: column \"nosuch\" does not exist (42703)"), "{}", failed.err);
    failed.refused();
    let url = sql(&["--url", "-n", "n2"]).ok();
    assert!(
        url.starts_with(&format!("postgresql://{USER}@%2F")) && url.ends_with("run:5434/postgres\n"),
        "{url}"
    );
    let dir = cluster.dir();
    let refusal = run(["bench", "blocks", "-C", dir.to_str().unwrap()]).said().refusal();
    assert!(refusal.contains("would overwrite the tables"), "{refusal}");
    assert!(sql(&["-n", "n9", "-c", "select 1"]).refusal().contains("there is no node `n9`"));
}

#[test]
fn hostile_bytes_end_their_connection_alone() {
    let cluster = cluster();
    let socket = cluster.dir().join("run/.s.PGSQL.5433");
    let start = |user: &str| {
        let settings = format!("\0\x03\0\0user\0{user}\0database\0postgres\0\0");
        let mut bytes = (settings.len() as u32 + 4).to_be_bytes().to_vec();
        bytes.extend(settings.as_bytes());
        bytes
    };
    let message = |kind: u8, len: u32, body: &[u8]| {
        let mut bytes = vec![kind];
        bytes.extend(len.to_be_bytes());
        bytes.extend(body);
        bytes
    };
    let started = |rest: Vec<u8>| [start(USER), rest].concat();
    let hostile = [
        vec![0; 64],
        vec![255; 64],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        (0..=255).collect(),
        start("another"),
        started(message(b'Q', u32::MAX, b"select 1")),
        started(message(b'Q', 3, b"")),
        started(message(b'Q', 12, b"\xff\xfe\xfd\xfc\0\0\0\0")),
        started(message(b'?', 4, b"")),
        started(message(b'B', 8, b"\0\0\xff\xff")),
        started(message(b'P', 12, b"\0select\0\xff")),
        started([message(b'B', 12, b"\0\0\0\0\0\x01\x7f\xff"), message(b'S', 4, b"")].concat()),
    ];
    for bytes in hostile {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
    }
    let deep = format!("select {}1{}", "(".repeat(100_000), ")".repeat(100_000));
    let script = cluster.parent().join("deep.sql");
    fs::write(&script, format!("{deep};\nselect 1 + 1 as two;\n")).unwrap();
    let mut command = cluster.run("sql").0;
    let Output { stdout, stderr, .. } = command.stdin(fs::File::open(&script).unwrap()).output().unwrap();
    let err = String::from_utf8_lossy(&stderr);
    assert!(err.contains("stack depth limit exceeded (54001)"), "{err}");
    assert_eq!(String::from_utf8_lossy(&stdout), "two\n  2\n(1 row)\n");
}

/// A client that keeps its transaction open.
struct Session {
    child: std::process::Child,
}

impl Session {
    fn start(psql: &Path, cluster: &Cluster, node: u16) -> Self {
        let mut command = client(psql, cluster, node);
        command.args(["-X", "-At"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap() }
    }

    /// Runs statements, and returns when they have ended.
    fn run(&mut self, text: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{text}\n\\echo done").unwrap();
        let (stdout, mut said) = (self.child.stdout.as_mut().unwrap(), Vec::new());
        let mut byte = [0];
        while !said.ends_with(b"done\n") {
            stdout.read_exact(&mut byte).unwrap();
            said.push(byte[0]);
        }
    }

    /// Ends the client; returns what it was told of errors.
    fn end(mut self, text: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{text}").unwrap();
        String::from_utf8(self.child.wait_with_output().unwrap().stderr).unwrap()
    }
}

#[test]
fn a_table_is_truncated_when_all_that_have_changed_it_are_at_their_end() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    query(&psql, &cluster, 1, "create table t (a int primary key)");
    let mut writer = Session::start(&psql, &cluster, 1);
    writer.run("begin; insert into t values (1);");
    let truncate = {
        let mut command = client(&psql, &cluster, 2);
        command.args(["-X", "-At", "-c", "truncate t"]).spawn().unwrap()
    };
    thread::sleep(Duration::from_millis(200));
    // It waits behind the change of the definition, and is then in the new tree.
    let later = {
        let mut command = client(&psql, &cluster, 1);
        command.args(["-X", "-At", "-c", "insert into t values (2)"]).spawn().unwrap()
    };
    thread::sleep(Duration::from_millis(200));
    assert_eq!(writer.end("insert into t values (3); commit;"), "");
    for mut child in [truncate, later] {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(query(&psql, &cluster, 2, "select a from t order by a"), "2");
}

#[test]
fn one_of_two_transactions_that_wait_for_each_other_on_two_nodes_fails() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    query(
        &psql,
        &cluster,
        1,
        "create table t (a int primary key, b int); insert into t values (1, 0), (2, 0)",
    );
    let [mut one, mut other] = [1, 2].map(|node| Session::start(&psql, &cluster, node));
    one.run("begin; update t set b = b + 1 where a = 1;");
    other.run("begin; update t set b = b + 1 where a = 2;");
    let waiting = thread::spawn(move || one.end("update t set b = b + 1 where a = 2; commit;"));
    thread::sleep(Duration::from_millis(200));
    let told = [other.end("update t set b = b + 1 where a = 1; commit;"), waiting.join().unwrap()];
    let failed = told.iter().filter(|told| told.contains("deadlock detected")).count();
    assert_eq!(failed, 1, "{told:?}");
    assert_eq!(query(&psql, &cluster, 2, "select sum(b) from t"), "2");
}

/// Runs a statement over TCP, as a role with a password. Returns what psql printed, or its error.
fn over_tcp(psql: &Path, url: &str, role: (&str, &str), text: &str) -> Result<String, String> {
    let mut command = Command::new(psql);
    let mut url = url.to_owned();
    if !role.0.is_empty() {
        let at = url.rfind('@').unwrap();
        url = format!("postgresql://{}:{}{}", role.0, role.1, &url[at..]);
    }
    let Output { status, stdout, stderr } =
        command.arg(url).args(["-X", "-At", "-c", text]).stdin(Stdio::null()).output().unwrap();
    match status.success() {
        true => Ok(String::from_utf8(stdout).unwrap().trim_end().to_owned()),
        false => Err(String::from_utf8(stderr).unwrap()),
    }
}

#[test]
fn over_tcp_a_password_is_asked_for_and_roles_and_databases_are_apart() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let url = cluster.run("sql").args(["--url", "--tcp", "-n", "n2"]).said().ok().trim().to_owned();
    let first = |text: &str| over_tcp(&psql, &url, ("", ""), text);
    assert_eq!(first("select current_user").unwrap(), USER);
    for wrong in [(USER, "wrong"), (USER, ""), ("not_there", "wrong")] {
        let error = over_tcp(&psql, &url, wrong, "select 1").unwrap_err();
        let expected = ["password authentication failed for user", "no password supplied"];
        assert!(expected.iter().any(|text| error.contains(text)), "{error}");
    }
    first("create role ann login password 'pearl'; create role ben login password 'p\u{e9}arl';").unwrap();
    first("create role cat password 'pearl'").unwrap();
    first("create table mine (a int); create database shop").unwrap();
    let ann = |text: &str| over_tcp(&psql, &url, ("ann", "pearl"), text);
    let ben = |text: &str| over_tcp(&psql, &url, ("ben", "p%C3%A9arl"), text);
    ann("create table hers (a serial primary key, b int); insert into hers (b) values (7)").unwrap();
    assert_eq!(ann("select a, b from hers").unwrap(), "1|7");
    assert_eq!(first("select a, b from hers").unwrap(), "1|7");
    for (role, text, error) in [
        (
            &ann as &dyn Fn(&str) -> Result<String, String>,
            "select * from mine",
            "permission denied for table mine",
        ),
        (&ben, "select * from hers", "permission denied for table hers"),
        (&ben, "drop table hers", "must be owner of table hers"),
        (&ben, "select nextval('hers_a_seq')", "permission denied for sequence hers_a_seq"),
        (&ben, "create role more", "permission denied to create role"),
        (&ben, "create database more", "permission denied to create database"),
        (&ben, "alter role ann password 'x'", "permission denied"),
        (&first, "drop role ann", "cannot be dropped because some objects depend on it"),
    ] {
        let told = role(text).unwrap_err();
        assert!(told.contains(error), "{text}: {told}");
    }
    let error = over_tcp(&psql, &url, ("cat", "pearl"), "select 1").unwrap_err();
    assert!(error.contains("role \"cat\" is not permitted to log in"), "{error}");
    // The other node knows it at once; a role changes its own password.
    query(&psql, &cluster, 1, "alter role ann password 'ruby'");
    assert!(ann("select 1").is_err());
    let ann = |text: &str| over_tcp(&psql, &url, ("ann", "ruby"), text);
    ann("alter role ann password 'opal'").unwrap();
    assert!(ann("select 1").is_err());
    // Another database has other tables.
    let shop = url.replace("/postgres", "/shop");
    let shop = |text: &str| over_tcp(&psql, &shop, ("", ""), text);
    assert!(shop("select * from hers").unwrap_err().contains("relation \"hers\" does not exist"));
    shop("create table hers (a int); insert into hers values (3)").unwrap();
    assert_eq!(shop("select a from hers").unwrap(), "3");
    assert_eq!(first("select a from hers").unwrap(), "1");
    assert_eq!(shop("select current_database()").unwrap(), "shop");
    let error = over_tcp(&psql, &url.replace("/postgres", "/none"), ("", ""), "select 1").unwrap_err();
    assert!(error.contains("database \"none\" does not exist"), "{error}");
}

#[test]
fn sessions_are_listed_cancelled_and_ended_and_limits_end_waits() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    query(&psql, &cluster, 1, "create table t (a int primary key, b int); insert into t values (1, 0)");
    let mut holder = Session::start(&psql, &cluster, 1);
    holder.run("begin; update t set b = 1;");
    // A limit ends the wait for a row, and the wait for a table.
    for text in ["update t set b = 2", "truncate t"] {
        let mut command = client(&psql, &cluster, 2);
        command.args(["-X", "-c", "set lock_timeout = '200ms'", "-c", text]);
        let error = String::from_utf8(command.output().unwrap().stderr).unwrap();
        assert!(error.contains("canceling statement due to lock timeout"), "{text}: {error}");
    }
    let waiter = Session::start(&psql, &cluster, 2);
    let waiting = thread::spawn(move || waiter.end("update t set b = 3;"));
    let listed = || {
        let text = cluster.run("sessions").args(["--json"]).said().ok();
        let nodes: serde_json::Value = serde_json::from_str(&text).unwrap();
        let sessions = |node: &serde_json::Value| node["sessions"].as_array().unwrap().clone();
        nodes.as_array().unwrap().iter().map(sessions).collect::<Vec<_>>()
    };
    let seen = loop {
        let seen = listed();
        if seen[1].first().is_some_and(|session| session["waits_for"].is_string()) {
            break seen;
        }
        thread::sleep(Duration::from_millis(10));
    };
    let (held, waits) = (&seen[0][0], &seen[1][0]);
    assert_eq!(held["state"], "idle in transaction");
    assert_eq!(waits["statement"], "update t set b = 3;");
    assert_eq!(waits["waits_for"], format!("transaction {}", held["transaction"]));
    cluster.run("sessions").args(["cancel", &format!("n2:{}", waits["id"])]).said().ok();
    let told = waiting.join().unwrap();
    assert!(told.contains("canceling statement due to user request"), "{told}");
    cluster.run("sessions").args(["end", &format!("n1:{}", held["id"])]).said().ok();
    let told = holder.end("select 1;");
    assert!(told.contains("terminating connection due to administrator command"), "{told}");
    assert_eq!(query(&psql, &cluster, 2, "select b from t"), "0");
    let mut idle = Session::start(&psql, &cluster, 1);
    idle.run("set idle_in_transaction_session_timeout = 100; begin; update t set b = 4;");
    while !listed()[0].is_empty() {
        thread::sleep(Duration::from_millis(10));
    }
    let told = idle.end("select 1;");
    assert!(told.contains("terminating connection due to idle-in-transaction timeout"), "{told}");
    // A client in a transaction does not hold up the end of the node.
    let mut last = Session::start(&psql, &cluster, 1);
    last.run("begin; update t set b = 5;");
    cluster.run("down").said().ok();
    let told = last.end("select 1;");
    assert!(told.contains("terminating connection due to administrator command"), "{told}");
    cluster.run("up").said().ok();
    assert_eq!(query(&psql, &cluster, 2, "select b from t"), "0");
    // With a wait it ends; one that begins meanwhile is refused.
    let mut last = Session::start(&psql, &cluster, 1);
    last.run("begin; update t set b = 6;");
    let mut down = cluster.run("down").args(["--wait", "30"]).start();
    let refused = loop {
        let mut command = client(&psql, &cluster, 1);
        let output = command.args(["-X", "-c", "select b from t"]).output().unwrap();
        if !output.status.success() {
            break String::from_utf8(output.stderr).unwrap();
        }
    };
    // One that has begun before is ended.
    let expected = ["the node is shutting down", "terminating connection due to administrator command"];
    assert!(expected.iter().any(|expected| refused.contains(expected)), "{refused}");
    last.run("commit;");
    assert!(down.plexus.wait().unwrap().success());
    cluster.run("up").said().ok();
    assert_eq!(query(&psql, &cluster, 2, "select b from t"), "6");
}

#[test]
fn more_savepoints_than_a_transaction_has_steps_for_end_it_alone() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let mut session = Session::start(&psql, &cluster, 1);
    session.run("create table t (id int primary key); begin; insert into t values (0);");
    let some = |from: u32, rows: u32| {
        let step = |id| format!("savepoint s\\; insert into t values ({id})\\; release s\\;");
        (from..from + rows).map(step).collect::<String>()
    };
    // Without a change in between there is no limit.
    let unused = "savepoint s\\; release s\\;".repeat(100);
    (0..700).for_each(|_| session.run(&format!("{unused} select 1;")));
    let most = u32::from(u16::MAX);
    (0..most / 255).for_each(|part| session.run(&format!("{} select 1;", some(1 + part * 255, 255))));
    session.run("select count(*) = 65536 as complete from t \\gset\n\\if :complete\n\\else\n\\quit\n\\endif");
    let told = session.end("savepoint s; commit;");
    assert!(told.contains("at most 65535 savepoints"), "{told}");
    assert_eq!(query(&psql, &cluster, 1, "select count(*) from t"), "0");
}

#[test]
fn half_open_connections_do_not_keep_others_out() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let cluster = cluster();
    let url = cluster.run("sql").args(["--url", "--tcp", "-n", "n1"]).said().ok().trim().to_owned();
    let address = url.rsplit_once('@').unwrap().1.split('/').next().unwrap().to_owned();
    let open: Vec<_> = (0..1000).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    // One that says something, and never proves a password.
    let mut half = std::net::TcpStream::connect(&address).unwrap();
    let start = b"\0\0\0\x15\0\x03\0\0user\0tester\0\0";
    half.write_all(start).unwrap();
    let mut head = [0; 9];
    half.read_exact(&mut head).unwrap();
    assert_eq!((head[0], head[8]), (b'R', 10), "{head:?}");
    half.write_all(b"Q\0\0\0\x0dselect 1\0").unwrap();
    let mut rest = Vec::new();
    half.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert!(rest.contains("08P01"), "{rest}");
    let answer = cluster.run("sql").args(["-n", "n1", "-c", "select 1 as one"]).said().ok();
    assert!(answer.contains("(1 row)"), "{answer}");
    drop(open);
}

#[test]
fn tls_carries_much_in_both_directions_and_the_certificate_is_that_of_the_cluster() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let url = cluster.run("sql").args(["--url", "--tcp", "-n", "n1"]).said().ok().trim().to_owned();
    let with = |mode: &str, text: &str| over_tcp(&psql, &format!("{url}?{mode}"), ("", ""), text);
    let root = cluster.dir().join("keys/sql.crt");
    let trusted = format!("sslmode=verify-ca&sslrootcert={}", root.display());
    with(&trusted, "create table t (a int primary key, b text)").unwrap();
    assert_eq!(with("sslmode=disable", "select 1").unwrap(), "1");
    let other = Cluster::with(1, &["--sql-port", "5433", "--size-mib", "16"], USER);
    let wrong = format!("sslmode=verify-ca&sslrootcert={}", other.dir().join("keys/sql.crt").display());
    let error = with(&wrong, "select 1").unwrap_err();
    assert!(error.contains("certificate verify failed"), "{error}");
    // Three mebibytes there and back.
    let line =
        |row: u32| format!("{row}\t{}\n", char::from(b'a' + (row % 26) as u8).to_string().repeat(1000));
    let rows: String = (0..3000).map(line).collect();
    let script = cluster.parent().join("rows.sql");
    fs::write(&script, format!("copy t from stdin;\n{rows}\\.\n")).unwrap();
    let mut command = Command::new(&psql);
    command.arg(format!("{url}?{trusted}")).args(["-X", "-q", "-f"]).arg(&script);
    said(command);
    let mut command = Command::new(&psql);
    command.arg(format!("{url}?{trusted}")).args(["-X", "-q", "-c", "copy t to stdout"]);
    assert!(said(command) == rows);
    // What comes before the handshake, and what is no handshake, ends the connection alone.
    let address = url.rsplit_once('@').unwrap().1.split('/').next().unwrap().to_owned();
    let ask = 80_877_103u32.to_be_bytes();
    for more in [&b"\0\0\0\x08\x04\xd2\x16\x2e"[..], b"no handshake at all"] {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.write_all(&[&[0, 0, 0, 8][..], &ask, more].concat()).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(!said.windows(4).any(|bytes| bytes == b"R\0\0\0"), "{said:?}");
    }
    assert_eq!(with("sslmode=require", "select count(*) from t").unwrap(), "3000");
}

/// Makes a table with about 1.5 MiB on a node.
fn filled(cluster: &Cluster, node: &str, table: &str) -> CommandOutput {
    let mut statements = vec![
        format!("create table {table} (id int primary key, item text, number int unique)"),
        format!("insert into {table} values (0, '{}', 0)", "x".repeat(500)),
    ];
    for power in 0..11 {
        let more = 1 << power;
        statements
            .push(format!("insert into {table} select id + {more}, item, number + {more} from {table}"));
    }
    let statements = statements.iter().flat_map(|statement| ["-c", statement]);
    cluster.run("sql").args(["-n", node]).args(statements).said()
}

/// A node uses the space again that tables of another one had, and that of a killed node.
#[test]
fn the_space_of_dropped_tables_and_killed_nodes_is_used_again() {
    let options = ["--sql-port", "5433", "--size-mib", "16", "--cache-mib", "8"];
    let cluster = Cluster::with(2, &options, USER);
    cluster.bear_busy_disks();
    cluster.run("up").said().ok();
    let sql = |node: &str, text: &str| cluster.run("sql").args(["-n", node, "-c", text]).said();
    for number in 0..8 {
        filled(&cluster, "n1", &format!("t{number}")).ok();
        sql("n1", &format!("drop table t{number}")).ok();
    }
    for number in 0..4 {
        filled(&cluster, "n2", &format!("u{number}")).ok();
    }
    for round in 0..3 {
        sql("n1", "begin; create table gone (id int); insert into gone values (1); rollback").ok();
        signal(cluster.pids()[0], Signal::KILL);
        cluster.wait_until("an end", |nodes| nodes["nodes"][0]["state"] != "running");
        cluster.run("up").said().ok();
        filled(&cluster, "n1", &format!("v{round}")).ok();
        sql("n2", &format!("drop table v{round}")).ok();
    }
    // Without room a statement fails, and nothing is lost.
    let is_full = |number: &u32| filled(&cluster, "n1", &format!("w{number}")).err.contains("(53100)");
    let failed = (0..20).find(is_full);
    assert!(failed.is_some_and(|number| number > 1), "{failed:?}");
    // Two tables for one: the other node may take a MiB of the space for its own changes.
    sql("n2", "drop table w0, w1").ok();
    // A snapshot may show them for as long as the machine is busy, and until then the table may not
    // even be created.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !filled(&cluster, "n2", "x").err.is_empty() {
        assert!(std::time::Instant::now() < end, "the space of two tables is used again for one");
        sql("n2", "drop table if exists x").ok();
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let count = |table: &str| sql("n1", &format!("select count(*) from {table}")).ok();
    assert_eq!(count("u0"), count("x"));
    let checked = cluster.run("store").args(["check", "--json"]).said().json();
    assert_eq!(checked["faults"], serde_json::json!([]), "{checked}");
}

/// Removed rows, leaves without rows and the status blocks of old transactions are free again,
/// while the nodes work.
#[test]
fn what_transactions_leave_behind_is_cleaned() {
    let options = ["--sql-port", "5433", "--size-mib", "64", "--cache-mib", "8"];
    let cluster = Cluster::with(2, &options, USER);
    cluster.bear_busy_disks();
    cluster.edit("[sql]\n", "[sql]\nclean_after = 4000\n");
    cluster.run("up").said().ok();
    let sql = |node: &str, text: &str| cluster.run("sql").args(["-n", node, "-c", text]).said();
    sql("n1", "create table q (id serial primary key, item text)").ok();
    sql("n1", "create table one (id int primary key, number int)").ok();
    sql("n1", "insert into one values (1, 0)").ok();
    let checked = || cluster.run("store").args(["check", "--json"]).said().json();
    // A queue: rows go at one end and come at the other, on both nodes.
    let fill = |node: &str, count: u32| {
        let mut statements = vec!["insert into q (item) values ('item')".to_owned(); 1];
        for _ in 0..count {
            statements.push("insert into q (item) select item from q limit 1000".into());
        }
        let statements = statements.iter().flat_map(|statement| ["-c", statement]);
        cluster.run("sql").args(["-n", node]).args(statements).said().ok();
    };
    fill("n1", 12);
    let mut pages = Vec::new();
    for round in 0..6 {
        let node = ["n1", "n2"][round % 2];
        let shown = sql(node, "select max(id) from q").ok();
        let low = shown.split_whitespace().nth(1).unwrap();
        fill(node, 8);
        sql(node, &format!("delete from q where id <= {low}")).ok();
        // The cleaning of the other node may have a snapshot, which keeps what it shows.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            sql(node, "vacuum q").ok();
            let found = checked();
            assert_eq!(found["faults"], serde_json::json!([]), "{found}");
            pages.push(found["pages"].as_u64().unwrap());
            if round < 2 || *pages.last().unwrap() < pages[1] * 5 / 4 {
                break;
            }
            assert!(std::time::Instant::now() < end, "{pages:?}");
        }
    }
    // Far more transactions than the status blocks that stay have room for.
    let update = "update one set number = number + 1 where id = 1";
    let many: Vec<&str> = std::iter::repeat_n(["-c", update], 3500).flatten().collect();
    for node in ["n1", "n2", "n1", "n2"] {
        cluster.run("sql").args(["-n", node]).args(many.iter().copied()).said().ok();
    }
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while checked()["freed_status_blocks"].as_u64().unwrap() < 16 {
        assert!(std::time::Instant::now() < end, "{}", checked());
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    assert_eq!(sql("n1", "select number from one").ok(), "number\n 14000\n(1 row)\n");
    assert_eq!(checked()["faults"], serde_json::json!([]));
}
