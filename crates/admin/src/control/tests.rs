//! Both ends together, and a client that breaks the protocol.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    sync::mpsc,
    time::Duration,
};

use serde_json::json;

use super::{server::MAX_CLIENTS, *};
use crate::{layout::ClusterDir, records::durable::Lock};

/// Creates the directories of a cluster in `directory`.
fn cluster(directory: &std::path::Path) -> ClusterDir {
    let dir = ClusterDir::new(directory);
    fs::create_dir_all(dir.run()).unwrap();
    dir
}

/// Starts a server with two commands: `count` counts, and `endless` runs until its client is gone,
/// then reports that.
fn served(directory: &std::path::Path, gone: mpsc::Sender<()>) -> (ClusterDir, Server) {
    let dir = cluster(directory);
    let commands = Commands::default();
    let server = Server::start(&dir.socket("n1"), commands.clone()).unwrap();
    commands.register("count", |args, progress| {
        let to = args["to"].as_u64().ok_or("count to what?")?;
        (0..to).for_each(|n| assert!(progress(json!(n))));
        Ok(json!({ "counted": to }))
    });
    commands.register("endless", move |_, progress| {
        assert!(progress(json!("started")));
        while progress(Value::Null) {
            std::thread::yield_now();
        }
        gone.send(()).unwrap();
        Err("the client is gone".into())
    });
    (dir, server)
}

#[test]
fn a_node_that_takes_no_connection_is_not_waited_for_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let dir = cluster(directory.path());
    // The socket of a suspended node: connections wait in its queue until that is full.
    let _listener = std::os::unix::net::UnixListener::bind(dir.socket("n1")).unwrap();
    let limit = Duration::from_millis(10);
    let mut waiting = Vec::new();
    let refused = loop {
        match Control::connect_within(&dir, "n1", limit) {
            Ok(control) => waiting.push(control),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, ControlError::Closed { .. }), "{refused}");
    assert!(refused.to_string().contains("n1 does not take connections"), "{refused}");
}

#[test]
fn after_silence_a_node_is_heard_again_and_no_part_of_a_line_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let dir = cluster(directory.path());
    let listener = std::os::unix::net::UnixListener::bind(dir.socket("n1")).unwrap();
    let mut control = Control::connect(&dir, "n1").unwrap();
    control.set_timeout(Duration::from_millis(1)).unwrap();
    let mut node = listener.accept().unwrap().0;
    control.ask("hold", json!({ "name": "a" })).unwrap();
    let mut line = String::new();
    BufReader::new(node.try_clone().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "{\"command\":\"hold\",\"args\":{\"name\":\"a\"}}\n");
    let silent = |control: &mut Control| {
        let heard = control.hear();
        assert!(matches!(heard, Err(ControlError::Silent { .. })), "{heard:?}");
    };
    silent(&mut control);
    node.write_all(b"{\"progress\":").unwrap();
    silent(&mut control);
    node.write_all(b"7}\n{\"ok\":").unwrap();
    assert_eq!(control.hear().unwrap(), ControlResponse::Progress(json!(7)));
    silent(&mut control);
    node.write_all(b"8}\n").unwrap();
    assert_eq!(control.hear().unwrap(), ControlResponse::Done(json!(8)));
    drop(node);
    assert!(matches!(control.hear(), Err(ControlError::Ended { command, .. }) if command == "hold"));
}

#[test]
fn a_node_that_ends_within_a_line_has_ended_and_one_that_does_not_end_its_line_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let dir = cluster(directory.path());
    let listener = std::os::unix::net::UnixListener::bind(dir.socket("n1")).unwrap();
    let heard = |said: &[u8]| {
        let mut control = Control::connect(&dir, "n1").unwrap();
        let mut node = listener.accept().unwrap().0;
        control.ask("hold", Value::Null).unwrap();
        // A socket closed with unread data gives another error than its end.
        BufReader::new(node.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
        std::thread::scope(|scope| {
            // The server may have closed the connection already.
            scope.spawn(move || drop(node.write_all(said)));
            control.hear().unwrap_err()
        })
    };
    for said in [&b""[..], b"{", b"{\"progress\":7}"] {
        let error = heard(said);
        assert!(matches!(error, ControlError::Ended { .. }), "{error}");
    }
    let error = heard(&vec![b' '; MAX_LINE as usize + 1]).to_string();
    assert!(error.ends_with("an answer of more than 16777216 bytes"), "{error}");
}

#[test]
fn requests_are_answered_in_turn() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, server) = served(directory.path(), mpsc::channel().0);
    assert_eq!(fs::metadata(dir.socket("n1")).unwrap().permissions().mode() & 0o777, 0o600);
    let mut control = Control::connect(&dir, "n1").unwrap();
    for to in [0, 3, 1000] {
        let mut seen = 0;
        let result = control.call("count", json!({ "to": to }), |value| {
            assert_eq!(value, json!(seen));
            seen += 1;
        });
        assert_eq!((result.unwrap(), seen), (json!({ "counted": to }), to));
    }
    let refused = control.call("count", Value::Null, |_| {}).unwrap_err().to_string();
    assert_eq!(refused, "n1: count to what?");
    let unknown = control.call("dance", Value::Null, |_| {}).unwrap_err().to_string();
    assert_eq!(unknown, "n1: the node does not know `dance` (yet); it knows count, endless");

    drop((server, control));
    let Err(error) = Control::connect(&dir, "n1") else { panic!("connected") };
    assert!(error.to_string().starts_with("n1 is not running; start it with"), "{error}");
}

#[test]
fn a_command_notices_that_its_client_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let (sender, gone) = mpsc::channel();
    let (dir, _server) = served(directory.path(), sender);
    let mut stream = BufReader::new(UnixStream::connect(dir.socket("n1")).unwrap());
    stream.get_mut().write_all(b"{\"command\":\"endless\"}\n").unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert_eq!(line, "{\"progress\":\"started\"}\n");
    drop(stream);
    gone.recv_timeout(Duration::from_secs(30)).unwrap();
}

#[test]
fn a_full_node_is_heard_also_by_who_asks_after_it_hung_up() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, _server) = served(directory.path(), mpsc::channel().0);
    let reach = || BufReader::new(UnixStream::connect(dir.socket("n1")).unwrap());
    let line = |stream: &mut BufReader<UnixStream>| {
        let mut line = String::new();
        stream.read_line(&mut line).map(|_| line)
    };
    let clients: Vec<_> = (0..MAX_CLIENTS).map(|_| reach()).collect();
    let mut late = Control::connect(&dir, "n1").unwrap();
    // The server takes connections in order: when the next one is refused, the last one is closed.
    let mut next = reach();
    assert!(line(&mut next).unwrap().contains("64 clients already"));
    assert_eq!(line(&mut next).unwrap(), "");
    let refused = late.call("count", json!({ "to": 1 }), |_| {}).unwrap_err();
    assert!(refused.to_string().contains("n1: the node has 64 clients already"), "{refused}");
    let gone = late.call("count", json!({ "to": 1 }), |_| {}).unwrap_err();
    assert!(matches!(gone, ControlError::Ended { .. }), "{gone}");
    drop(clients);
}

#[test]
fn another_user_is_refused_also_where_the_modes_let_it_in() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, _server) = served(directory.path(), mpsc::channel().0);
    for path in [directory.path().to_owned(), dir.run()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(dir.socket("n1"), fs::Permissions::from_mode(0o666)).unwrap();
    let asked = |user: Option<u32>| {
        let dir = &dir;
        let ask = move || {
            if let Some(user) = user {
                // Of this thread only; the socket keeps the user that connected.
                let user = rustix::process::Uid::from_raw(user);
                rustix::thread::set_thread_res_uid(user, user, user).ok()?;
            }
            Some(Control::connect(dir, "n1").unwrap().call("count", json!({ "to": 1 }), |_| {}))
        };
        std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
    };
    assert!(asked(None).unwrap().is_ok());
    // Only root can become another user; others test the rule below.
    if let Some(answer) = asked(Some(65_534)) {
        let refused = answer.unwrap_err().to_string();
        assert!(refused.contains("only the node's own user and root"), "{refused}");
    }
    let [root, own, other] = [0, 7, 8].map(rustix::process::Uid::from_raw);
    let allowed = [root, own, other].map(|user| super::server::may_control(user, own));
    assert_eq!(allowed, [true, true, false]);
}

#[test]
fn malformed_request_ends_its_connection_only() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, _server) = served(directory.path(), mpsc::channel().0);
    for bytes in
        [&b"\xff\x00garbage\n"[..], b"{\"command\":7}\n", b"[]\n", b"{\"command\":\"count\",\"x\":1}\n"]
    {
        let mut stream = BufReader::new(UnixStream::connect(dir.socket("n1")).unwrap());
        stream.get_mut().write_all(bytes).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(line.starts_with("{\"error\":\"not a request: "), "{line}");
        line.clear();
        assert_eq!(stream.read_line(&mut line).unwrap(), 0);
    }
    let mut control = Control::connect(&dir, "n1").unwrap();
    assert!(control.call("count", json!({ "to": 1 }), |_| {}).is_ok());
}

#[test]
fn a_dead_nodes_socket_is_replaced_and_depth_does_not_matter() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("d".repeat(120)).join("e".repeat(120));
    let dir = cluster(&deep);
    fs::write(dir.socket("n1"), "stale").unwrap();
    let (dir, _server) = served(&deep, mpsc::channel().0);
    let mut control = Control::connect(&dir, "n1").unwrap();
    assert!(control.call("count", json!({ "to": 1 }), |_| {}).is_ok());
}

#[test]
fn hostile_lines_do_no_harm() {
    let good = [
        r#"{"command":"bench.blocks","args":{"clients":4,"hot":[1,2.5,null]}}"#,
        r#"{"command":"status"}"#,
        r#"{"progress":{"done":0.5}}"#,
        r#"{"error":"one line"}"#,
    ];
    let good = good.map(|line| line.as_bytes().to_vec());
    assert!(good.iter().all(|line| line_any(line)));
    let nested = b"[".repeat(100_000);
    assert!(!line_any(&nested), "nor is the stack used up");
    plexus_sim::hostile(&good, |line| assert!(!line_any(line) || line.contains(&b'"')));
}

#[test]
fn a_living_process_is_not_said_to_have_ended_and_a_dead_one_not_to_run() {
    let directory = tempfile::tempdir().unwrap();
    let dir = cluster(directory.path());
    fs::create_dir_all(dir.logs()).unwrap();
    let end = "2026-11-23T07:18:00.818311Z  INFO the node starts: n1\n2026-11-23T07:18:09.818311Z  INFO the node ends: evicted\n";
    fs::write(dir.log("n1"), end).unwrap();
    let short = Duration::from_millis(10);
    let refused = || match Control::connect_within(&dir, "n1", short) {
        Ok(_) => panic!("connected"),
        Err(error) => error.to_string(),
    };
    let pid = std::process::id();
    let (runs, ended) = (format!("it runs (pid {pid})"), "it ended at 2026-11-23T07:18:09.818311Z: evicted");
    assert!(
        refused().starts_with("n1 is not running; start it") && refused().contains(ended),
        "{}",
        refused()
    );
    let lock = Lock::try_take(&dir.lock("n1"), 7).unwrap().unwrap();
    // It has no socket yet, or no longer.
    assert!(
        refused().starts_with("n1 does not take connections") && refused().contains(&runs),
        "{}",
        refused()
    );
    let listener = std::os::unix::net::UnixListener::bind(dir.socket("n1")).unwrap();
    let mut connections = [(), (), ()].map(|()| Control::connect(&dir, "n1").unwrap());
    let [silent, dropped, gone] = &mut connections;
    let accepted = [(), (), ()].map(|()| listener.accept().unwrap());
    silent.set_timeout(short).unwrap();
    let error = silent.call("hold", Value::Null, |_| {}).unwrap_err();
    assert!(matches!(error, ControlError::Silent { .. }) && error.to_string().contains(&runs), "{error}");
    drop(accepted);
    let error = dropped.call("hold", Value::Null, |_| {}).unwrap_err();
    assert!(matches!(error, ControlError::Dropped { .. }) && error.to_string().contains(&runs), "{error}");
    // Another incarnation of the node runs.
    lock.sign(8, 0).unwrap();
    let error = gone.call("hold", Value::Null, |_| {}).unwrap_err();
    assert!(matches!(error, ControlError::Ended { .. }) && error.to_string().contains(ended), "{error}");
}
