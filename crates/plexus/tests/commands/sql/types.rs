//! Types that statements make: two nodes, prepared statements, and the death of a node.

use super::*;

#[test]
fn a_type_is_the_same_on_all_nodes_and_in_statements_that_were_prepared_before_its_change() {
    let Some(psql) = postgresql("psql") else { return };
    let cluster = cluster();
    let ask = |node: u16, text: &str| query(&psql, &cluster, node, text);
    ask(1, "create type mood as enum ('sad', 'ok')");
    ask(2, "create table t (m mood primary key); create table seen (ms text)");
    ask(1, "insert into t values ('ok'), ('sad')");
    let mut prepared = Session::start(&psql, &cluster, 2);
    prepared.run(
        "prepare p (mood) as insert into seen
        select string_agg(m::text, ',' order by m) from t where m >= $1;",
    );
    prepared.run("execute p ('sad');");
    ask(1, "alter type mood add value 'fine' before 'ok'");
    ask(1, "alter type mood rename value 'sad' to 'blue'");
    ask(1, "insert into t values ('fine')");
    assert_eq!(prepared.end("execute p ('blue'); execute p ('fine');"), "");
    assert_eq!(ask(2, "select ms from seen order by length(ms) desc"), "blue,fine,ok\nfine,ok\nsad,ok");
    // A change waits for a transaction that uses a table with the type, and a new table waits for a
    // change.
    let mut writer = Session::start(&psql, &cluster, 1);
    writer.run("begin; delete from t where m = 'ok';");
    let other = |text: &str| {
        let mut command = client(&psql, &cluster, 2);
        command.args(["-X", "-At", "-c", "set lock_timeout = '300ms'", "-c", text]);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let told = other("alter type mood add value 'late'");
    assert!(told.contains("lock timeout"), "{told}");
    writer.run("rollback; begin; alter type mood rename to feeling;");
    let told = other("create table of_type (m mood)");
    assert!(told.contains("timeout"), "{told}");
    // What a node had not committed when it died is undone.
    signal(cluster.pids()[0], Signal::KILL);
    assert_eq!(ask(2, "select enum_range(null::mood)"), "{blue,fine,ok}");
    ask(2, "alter type mood add value 'late'; insert into t values ('late')");
    assert_eq!(ask(2, "select min(m), max(m) from t"), "blue|late");
    // Between two labels there is room for forty more.
    ask(2, "create type narrow as enum ('first', 'last')");
    let add = |number: u32| format!("alter type narrow add value '{number}' before 'last';");
    ask(2, &(0..40).map(add).collect::<String>());
    let told = other(&add(40));
    assert!(told.contains("no room for another label before \"last\""), "{told}");
    ask(2, "alter type narrow add value '40' after 'last'");
    let checked = cluster.run("store").args(["check", "--json"]).said().json();
    assert_eq!(checked["faults"], serde_json::json!([]), "{checked}");
}
