//! `plexus perf` without a cluster, between two processes: every option, its output and its
//! failures.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Stdio},
};

use serde_json::Value;

/// Two processes over memory, few messages.
fn brief<'a>(more: impl IntoIterator<Item = &'a str>) -> crate::common::Run {
    crate::common::run(["perf", "--rail", "shm", "--wait", "event", "--count", "20", "--sizes", "64"])
        .args(more)
}

fn rows(said: &Value) -> &Vec<Value> {
    said["perf"].as_array().unwrap()
}

/// `plexus perf --listen`, ended with the test.
struct Listener {
    child: Child,
    address: String,
}

impl Listener {
    fn start(more: &[&str]) -> Self {
        let mut run = crate::common::run(["perf", "--listen", "127.0.0.1:0", "--json", "--lifeline"]);
        let command = run.0.args(more).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        Self { child, address: said["listening"].as_str().unwrap().to_owned() }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn every_rail_and_way_of_waiting_side_by_side() {
    let said = crate::common::run(["perf", "--sizes", "8,16K", "--count", "8", "--json"]).said().json();
    let rows = rows(&said);
    assert_eq!(rows.len(), 2 * 2 * 2 * 2 * 2, "rails, ways of waiting, tests, operations, sizes");
    for row in rows {
        assert!(
            row["messages_per_s"].as_f64().unwrap() > 0.0 && row["messages"].as_u64() >= Some(8),
            "{row}"
        );
        for side in ["client", "server"] {
            for figure in ["ns_per_message", "ns_per_byte", "percent_of_core"] {
                assert!(row[side][figure].as_f64().unwrap() > 0.0, "{row}");
            }
        }
        let latency = row["test"] == "latency";
        assert_eq!(row["latency_us"]["max"].is_f64(), latency, "{row}");
        assert_eq!(row["round_trip_us"]["p50"].is_f64(), latency, "{row}");
        assert!(row["why"].as_str().unwrap().contains("--rail"), "{row}");
    }
    let has = |key: &str, value: &str| rows.iter().any(|row| row[key] == value);
    for (key, values) in
        [("rail", ["shm", "tcp"]), ("waiting", ["polling", "adaptive"]), ("op", ["send", "put"])]
    {
        values.iter().for_each(|value| assert!(has(key, value), "{key} {value}"));
    }
}

#[test]
fn every_option_once() {
    let said = brief("--streams 1,3 --depth 4,8 --bidirectional --load max --load-size 4K".split(' '))
        .args(["--lane", "bulk", "--repeat", "2", "--cores", "any", "--json"])
        .said()
        .json();
    let rows = rows(&said);
    // Latency has no depth.
    assert_eq!(rows.len(), 2 * 2 + 2 * 2 * 2);
    for row in rows {
        assert!(row["reverse"]["mb_per_s"].is_f64() && row["load_mb_per_s"].is_f64(), "{row}");
        assert_eq!(row["repeats"]["each"].as_array().unwrap().len(), 2);
        assert_eq!(row["lane"], "bulk");
        let streams = row["per_stream"]["each"].as_array().map_or(1, Vec::len);
        assert_eq!(row["streams"], streams, "{row}");
    }
}

#[test]
fn people_and_spreadsheets_get_theirs() {
    let text = brief([]).said().ok();
    let title = "Latency, half a round trip, in microseconds: over shm, event";
    for part in [title, "p99.999", "Bandwidth: ", "MB/s", "send", "put"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let csv = brief(["--csv"]).said().ok();
    let mut lines = csv.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert!(heads.contains(&"latency_p99.99_us") && heads.contains(&"server_cpu_ns_per_byte"));
    assert_eq!(lines.clone().count(), 4);
    assert!(lines.all(|line| line.split(',').count() >= heads.len()));
}

#[test]
fn pictures_are_drawn_by_size() {
    let directory = tempfile::tempdir().unwrap();
    let charts = directory.path().join("charts");
    let args = ["perf", "--rail", "shm", "--wait", "event", "--count", "8", "--sizes", "8..64", "--plot"];
    crate::common::run(args).args([charts.to_str().unwrap()]).said().ok();
    for name in ["latency", "bandwidth"] {
        let svg = std::fs::read_to_string(charts.join(format!("{name}.svg"))).unwrap();
        assert!(
            svg.contains("Service demand") && svg.contains("shm send") && svg.contains("shm put"),
            "{svg}"
        );
        let png = std::fs::read(charts.join(format!("{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG") && png.len() > 10_000, "{} bytes", png.len());
    }
    let refusal = brief(["--plot", charts.to_str().unwrap()]).said().refusal();
    assert!(refusal.contains("needs several sizes"), "{refusal}");
}

#[test]
fn published_figures_stand_beside_ours() {
    let args = ["perf", "--rail", "shm", "--wait", "event", "--count", "8", "--compare", "hp,dolphin,cern"];
    let said = crate::common::run(args).args(["--json"]).said().json();
    let compared = said["compare"].as_array().unwrap();
    assert_eq!(compared.len(), 8 + 1 + 5);
    assert!(compared.iter().all(|one| one["here"].as_f64() > Some(0.0)), "{said}");
    let text = crate::common::run(args).said().ok();
    assert!(text.contains("Beside HP Fabric Clustering System") && text.contains("better by"), "{text}");
}

#[test]
fn thresholds_decide_the_exit_code() {
    brief(["--test", "latency", "--max-latency-us", "1e9", "--percentile", "max"]).said().ok();
    let missed = |more: &[&str]| {
        let said = brief(more.iter().copied()).said();
        assert_eq!(said.code, Some(3), "{}", said.err);
        said.err
    };
    let latency = missed(&["--op", "put", "--test", "latency", "--max-latency-us", "0.0001"]);
    assert!(
        latency.contains("put of 64 B over shm (event): p50 ") && latency.contains("at most 0.00"),
        "{latency}"
    );
    brief(["--min-mb-s", "0.000001"]).said().ok();
    let slow = missed(&["--test", "bandwidth", "--min-mb-s", "1e12"]);
    assert!(slow.contains("MB/s, at least ") && slow.contains("and 1 more of 2 missed"), "{slow}");
}

#[test]
fn a_listener_serves_one_client_after_another() {
    let listener = Listener::start(&[]);
    for rail in ["auto", "tcp"] {
        let args = ["perf", &listener.address, "--rail", rail, "--wait", "adaptive", "--count", "20"];
        let said = crate::common::run(args).args(["--sizes", "64", "--op", "send", "--json"]).said().json();
        let right = if rail == "auto" { "shm" } else { "tcp" };
        assert!(rows(&said).len() == 2 && rows(&said).iter().all(|row| row["rail"] == right), "{said}");
        if rail == "auto" {
            assert!(rows(&said)[0]["why"].as_str().unwrap().contains("both are on one machine"));
        }
    }
    // Unauthenticated clients are refused, silent ones delay no other, and the listener goes on.
    for bytes in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"", b"{}\n"] {
        let mut unknown_client = std::net::TcpStream::connect(&listener.address).unwrap();
        std::io::Write::write_all(&mut unknown_client, bytes).unwrap();
    }
    let silent: Vec<_> = (0..4).map(|_| std::net::TcpStream::connect(&listener.address).unwrap()).collect();
    let args = ["perf", &listener.address, "--cores", "0,9999", "--sizes", "8", "--count", "8"];
    let refusal = crate::common::run(args).said().refusal();
    assert!(refusal.contains("the listener refuses: core 9999"), "{refusal}");
    let args = ["perf", &listener.address, "--wait", "event", "--sizes", "8", "--count", "8"];
    crate::common::run(args).said().ok();
    drop(silent);
}

#[test]
fn a_listener_that_is_to_serve_one_client_ends_after_it() {
    let mut listener = Listener::start(&["--once"]);
    // An unauthenticated client does not count as the one client.
    let mut unknown_client = std::net::TcpStream::connect(&listener.address).unwrap();
    std::io::Write::write_all(&mut unknown_client, &[0; 128]).unwrap();
    let args = ["perf", &listener.address, "--wait", "event", "--sizes", "8", "--count", "8"];
    crate::common::run(args).said().ok();
    assert!(listener.child.wait().unwrap().success());
    let refusal = crate::common::run(args).said().refusal();
    assert!(refusal.contains("start `plexus perf --listen` there first"), "{refusal}");
}

/// Checks every operation over every rail: reading operations take a whole round trip, and a word
/// always has eight bytes.
#[test]
fn every_operation_over_every_rail() {
    let args = ["perf", "--op", "send,put,get,write,atomic", "--sizes", "64", "--count", "8", "--json"];
    let said = crate::common::run(args).said().json();
    assert_eq!(rows(&said).len(), 5 * 2 * 2 * 2, "operations, tests, rails, ways of waiting");
    for row in rows(&said) {
        let (op, bytes) = (row["op"].as_str().unwrap(), row["bytes"].as_u64());
        assert_eq!(bytes, Some(if op == "atomic" { 8 } else { 64 }), "{row}");
        if row["test"] == "latency" {
            let whole = row["latency_us"]["max"] == row["round_trip_us"]["max"];
            assert_eq!(whole, matches!(op, "get" | "atomic"), "{row}");
        }
    }
    let text = crate::common::run_line("perf --op get,write --rail shm --wait event --sizes 64")
        .args(["--count", "8"])
        .said()
        .ok();
    assert!(text.contains("half a round trip, for what fetches all of it"), "{text}");
}

/// Writes a key of one repeated digit into a file.
fn key_file(path: &Path, digit: &str) -> String {
    std::fs::write(path, digit.repeat(64)).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    path.display().to_string()
}

#[test]
fn only_clients_with_the_key_are_served_and_encryption_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let key = |name: &str, digit: &str| key_file(&directory.path().join(name), digit);
    let (right, wrong) = (key("right", "1"), key("wrong", "2"));
    let listener = Listener::start(&["--key", &right]);
    let brief =
        ["perf", &listener.address, "--rail", "tcp", "--wait", "event", "--sizes", "8", "--count", "8"];
    for other in [&[][..], &["--key", &wrong]] {
        let refusal = crate::common::run(brief).args(other.iter().copied()).said().refusal();
        assert!(
            refusal.contains("closed the connection without a reply: use the same --key file"),
            "{refusal}"
        );
    }
    for (more, encrypted) in [(&["--encrypt"][..], true), (&[], false)] {
        let said = crate::common::run(brief)
            .args(["--key", &right, "--json"])
            .args(more.iter().copied())
            .said()
            .json();
        assert!(rows(&said).iter().all(|row| row["encrypted"] == encrypted), "{said}");
    }
    let open = Listener::start(&[]);
    let refusal = crate::common::run(["perf", &open.address, "--key", &right]).said().refusal();
    assert!(refusal.contains("use the same --key file on both sides, or none"), "{refusal}");
}

#[test]
fn wrong_usage_is_refused_with_what_to_do() {
    for (args, part) in [
        (&["--max-latency-us", "5", "--test", "bandwidth"][..], "--max-latency-us needs --test latency"),
        (&["--min-mb-s", "5", "--test", "latency"], "--min-mb-s needs --test bandwidth"),
        (&["--load", "fast"], "--load: `fast` is no load"),
        (&["--streams", "65"], "65 streams: use 1 to 64"),
        (&["--depth", "0"], "a depth of 0"),
        (&["--sizes", "5M"], "of 5242880 bytes: use 1 to 4194304"),
        (&["--seconds", "0"], "--seconds 0: use 0.01 to 600"),
        (&["--repeat", "0"], "--repeat 0: use 1 to 100"),
        (&["--cores", "1"], "write two numbers as in 0,1"),
        (&["--cores", "9999,0"], "core 9999"),
        (&["no/such/cluster"], "name a cluster with -C DIR"),
        (&["n1", "n2"], "n1 and n2: which cluster?"),
        (&["--listen", "nowhere"], "use an address of this machine"),
        (&["--listen"], "give both sides a key with --key FILE, or serve every client with --open"),
        (&["--key", "no/such.key"], "no/such.key: No such file"),
        (&["--op", "write", "--sizes", "12"], "write of 12 bytes: use a multiple of 8"),
        (&["--op", "write", "--lane", "bulk"], "use prompt"),
        (&["--op", "datagram"], "measure them with a running cluster"),
        (&["127.0.0.1:1"], "start `plexus perf --listen` there first"),
        (&["127.0.0.1:x"], "`x` is no port"),
    ] {
        let refusal = crate::common::run(["perf"]).args(args.iter().copied()).said().refusal();
        assert!(refusal.contains(part), "{args:?}: {refusal}");
    }
    for (args, part) in [
        (
            &["--op", "teleport"][..],
            "unknown operation `teleport`: use one of send, put, get, write, atomic, datagram",
        ),
        (&["--sizes", "64..8"], "write the smaller size first"),
        (&["--rail", "ipx"], "unknown rail `ipx`"),
        (&["--wait", "dozing"], "use one of polling, event, adaptive"),
        (&["--json", "--csv"], "cannot be used with"),
        (&["--compare", "ibm"], "unknown reference `ibm`: use one of hp, dolphin, cern"),
        (&["--compare", "hp", "--sizes", "8"], "cannot be used with"),
        (&["--listen", "--rail", "tcp"], "cannot be used with"),
        (&["--listen", "--streams", "2"], "cannot be used with"),
        (&["--listen", "--depth", "2"], "cannot be used with"),
        (&["--listen", "--bidirectional"], "cannot be used with"),
        (&["--listen", "--seconds", "1"], "cannot be used with"),
        (&["--listen", "--csv"], "cannot be used with"),
        (&["--listen", "--plot", "x"], "cannot be used with"),
        (&["--listen", "--compare", "hp"], "cannot be used with"),
        (&["--listen", "--max-latency-us", "1"], "cannot be used with"),
        (&["--encrypt", "--plain"], "cannot be used with"),
        (&["--max-latency-us", "nan"], "use a number above 0"),
        (&["--min-mb-s", "inf"], "use a number above 0"),
        (&["--once"], "--listen"),
        (&["--percentile", "p98"], "p99.99"),
        (&["--count", "5", "--seconds", "1"], "cannot be used with"),
    ] {
        let said = crate::common::run(["perf"]).args(args.iter().copied()).said();
        assert_eq!(said.code, Some(2), "{args:?}: {}", said.err);
        assert!(said.err.contains(part), "{args:?}: {}", said.err);
    }
}

#[test]
fn the_host_is_swept_in_namespaces_and_left_as_it_was() {
    const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";
    let backlog = || std::fs::read_to_string(BACKLOG).unwrap();
    let before = backlog();
    let sweep = || crate::common::run(["perf", "--sweep-host", "--seconds", "0.02", "--json"]);
    if !rustix::process::geteuid().is_root() {
        assert!(sweep().said().refusal().contains("run it as root"));
        return;
    }
    // Two at the same time would restore each other's settings.
    let mut first = sweep().0.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(first.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let refused = sweep().said().refusal();
    assert!(refused.contains("another `plexus perf --sweep-host`"), "{refused}; the first: {line}");
    first.kill().unwrap();
    first.wait().unwrap();
    let is_free = || std::fs::File::open(BACKLOG).unwrap().try_lock().is_ok().into();
    crate::common::until("the setting is restored", is_free, |is_free| *is_free == true);
    assert_eq!(backlog(), before);
    let said = sweep().said().json();
    let tried = said["sweep"].as_array().unwrap();
    assert_eq!(tried.len(), 9);
    let measured = |one: &Value| one["outcome"]["Ok"][0].as_f64().is_some_and(|mb| mb > 0.0);
    let namespaced = |one: &&Value| one["setting"] != "backlog";
    assert!(tried.iter().filter(namespaced).all(measured), "{said}");
    assert_eq!(backlog(), before);
}

#[test]
fn an_interrupt_from_the_terminal_is_the_reason_that_is_reported() {
    // A terminal sends the signal to both sides: this process and its child.
    let mut perf = crate::common::run(["perf", "--rail", "shm", "--wait", "event", "--seconds", "60"]).0;
    let mut perf = perf.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(perf.stderr.take().unwrap());
    let mut lines = String::new();
    errors.read_line(&mut lines).unwrap();
    assert!(lines.starts_with("shm, event"), "{lines}");
    let group = rustix::process::Pid::from_raw(perf.id() as i32).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::INT).unwrap();
    errors.read_to_string(&mut lines).unwrap();
    assert_eq!(perf.wait().unwrap().code(), Some(1), "{lines}");
    assert!(lines.ends_with("plexus: interrupted: nothing more was measured\n"), "{lines}");
}

#[test]
fn a_listener_prints_the_command_that_reaches_it() {
    let directory = tempfile::tempdir().unwrap();
    let key = key_file(&directory.path().join("perf.key"), "7");
    let mut listener =
        crate::common::run(["perf", "--listen", "127.0.0.1:0", "--key", &key, "--lifeline", "--once"]).0;
    let mut listener = listener.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(listener.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let command = line.split('`').nth(1).and_then(|command| command.strip_prefix("plexus "));
    let few = ["--wait", "event", "--sizes", "8", "--count", "8"];
    crate::common::run_line(command.unwrap_or_else(|| panic!("{line}"))).args(few).said().ok();
    assert!(listener.wait().unwrap().success());
}
