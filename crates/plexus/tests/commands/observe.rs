//! The observation of a cluster: rails, traffic, metrics, recordings.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use crate::common::{Cluster, run, signal};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Creates every kind of traffic.
fn busy(cluster: &Cluster) {
    let dir = cluster.dir();
    run(["bench", "blocks", "-C", dir.to_str().unwrap(), "--seconds", "0.2", "--clients", "2"]).said().ok();
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_pair_has_its_rails_and_a_node_that_does_not_answer_is_shown() {
    let cluster = Cluster::new(3);
    cluster.prevent_evictions();
    cluster.run("up").said().ok();
    let table = cluster.run("rails").said().ok();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    for (row, pair) in ["n1-n2", "n1-n3", "n2-n3"].iter().enumerate() {
        assert_eq!(rows[1 + row][..5], [*pair, "0", "shm", "active", "best"], "{table}");
    }
    assert!(table.contains("\nbest: "), "{table}");

    let stopped = cluster.pids()[2];
    signal(stopped, Signal::STOP);
    let twice = cluster.run("rails").args(["--json", "-i", "0.1", "-n", "2"]).said().ok();
    signal(stopped, Signal::CONT);
    let twice = lines(&twice);
    assert_eq!(twice.len(), 2);
    for value in twice {
        assert_eq!(value["nodes"][2], json!({ "name": "n3", "state": "silent" }));
        let of_n3 =
            value["rails"].as_array().unwrap().iter().find(|rail| rail["pair"] == json!(["n1", "n3"]));
        assert_eq!(of_n3.unwrap()["ends"]["n3"], json!([]), "only its peer speaks of it");
    }
}

#[test]
fn traffic_is_shown_by_what_is_asked_for_and_in_intervals() {
    let cluster = Cluster::up(2);
    busy(&cluster);
    let out = |value: &Value| -> u64 {
        let rows = value["rows"].as_array().unwrap().iter();
        rows.map(|row| ["client_out", "server_out"].map(|way| row[way]["messages"].as_u64().unwrap()))
            .map(|[client, server]| client + server)
            .sum()
    };
    let all = out(&cluster.run("stat").args(["--json", "--by", "channel"]).said().json());
    assert!(all > 0);
    for by in ["node", "peer", "worker", "size", "node,peer,channel,size"] {
        let value = cluster.run("stat").args(["--json", "--by", by]).said().json();
        assert!(value["rows"][0][by.split(',').next().unwrap()].is_string(), "{value}");
        assert!(out(&value) >= all, "{by}: {value}");
    }
    let table = cluster.run("stat").args(["--by", "node,size", "--channel", "cache-blocks"]).said().ok();
    assert!(table.lines().nth(1).unwrap().starts_with("node  size "), "{table}");
    assert!(table.contains("to 16 KiB") || table.contains("to 8 KiB"), "{table}");

    let log = cluster.run("stat").args(["-i", "0.1", "-n", "2"]).said().ok();
    let widths: Vec<usize> = log.lines().skip(1).map(|line| line.split_whitespace().count()).collect();
    assert!(log.lines().nth(1).unwrap().starts_with("time ") && widths.len() == 3, "{log}");
    let log = lines(&cluster.run("stat").args(["-i", "0.1", "-n", "3", "--json"]).said().ok());
    assert_eq!(log.len(), 3);
    assert!(log.iter().all(|value| value["seconds"].as_f64().unwrap() > 0.0 && value["rows"].is_array()));
    let refused = cluster.run("stat").args(["--by", "colour"]).said();
    assert!(
        refused.code == Some(2) && refused.err.contains("use node, peer, worker, channel, size"),
        "{}",
        refused.err
    );
}

#[test]
fn metrics_are_printed_and_served_and_a_hostile_scraper_changes_nothing() {
    let cluster = Cluster::new(2);
    let text = std::fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    let host =
        text.split('"').find(|word| word.starts_with("127.")).unwrap().split(':').next().unwrap().to_owned();
    let address = format!("{host}:9100");
    cluster.edit(&format!("# metrics = \"{address}\""), &format!("metrics = \"{address}\""));
    cluster.run("up").said().ok();
    busy(&cluster);
    let printed = cluster.run("metrics").said().ok();
    assert!(printed.ends_with("# EOF\n"), "{printed}");
    for series in ["plexus_rail_up{node=\"n2\"", "channel=\"cache-blocks\"", "plexus_cache_events_total{"] {
        assert!(printed.contains(series), "{series} in {printed}");
    }

    let hold: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let mut garbage = TcpStream::connect(&address).unwrap();
    let _ = garbage.write_all(&[0xff; 1 << 16]);
    assert_eq!(cluster.run("status").args(["--json"]).said().json()["nodes"][0]["state"], "running");
    drop((hold, garbage));
    let answer = loop {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        // Closed at once while the others are being noticed.
        let _ = stream.read_to_string(&mut answer);
        if !answer.is_empty() {
            break answer;
        }
    };
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("# EOF\n"), "{answer}");
    assert!(answer.contains("node=\"n1\"") && !answer.contains("node=\"n2\""), "{answer}");
    assert_eq!(cluster.run("down").args(["--json"]).said().json()["clean"], true);
}

#[test]
fn a_recording_survives_its_writer_and_becomes_pictures() {
    let cluster = Cluster::up(2);
    let file = cluster.parent().join("recorded");
    let out = cluster.parent().join("out");
    let (path, out_path) = (file.to_str().unwrap(), out.to_str().unwrap());
    let record = |more: &[&str]| {
        let mut record = run(["stat", "record", path]);
        record.0.arg("-C").arg(cluster.dir()).args(["--interval", "0.1"]).args(more);
        record
    };
    let report = || run(["stat", "report", path, "-o", out_path]).said();
    let mut writer = record(&[]).0.spawn().unwrap();
    let start = std::time::Instant::now();
    loop {
        busy(&cluster);
        let said = report();
        if said.out.contains("cache-blocks") {
            break;
        }
        assert!(start.elapsed() < std::time::Duration::from_secs(30), "nothing is recorded: {}", said.err);
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    // As if it had been killed in the middle of a record.
    let mut torn = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
    torn.write_all(&[200, 0, 0, 0, 1, 2, 3, 4, 5]).unwrap();

    let text = report().ok();
    for words in [
        "of the messages are up to",
        "cache-blocks",
        "\nn2 ",
        "9 B at the end of the file are no whole record",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    for picture in ["sizes.svg", "shares.svg", "rates.svg"] {
        let picture = out.join(picture);
        assert!(std::fs::read_to_string(&picture).unwrap().trim_end().ends_with("</svg>"));
        assert!(std::fs::read(picture.with_extension("png")).unwrap().starts_with(b"\x89PNG"));
    }
    assert!(std::fs::read_to_string(out.join("index.html")).unwrap().contains("cache-blocks"));

    let more = record(&["--for", "0.3", "--json"]).said().json();
    assert!(more["intervals"] == 3 && more["before"].as_u64() > Some(0), "{more}");
    assert!(!report().ok().contains("no whole record"), "what was torn is cut off");

    std::fs::write(&file, "something else").unwrap();
    assert!(report().refusal().contains("not a recording"));
    assert!(record(&["--for", "1"]).said().refusal().contains("not a recording; name another file"));
    assert!(cluster.run("stat").args(["--top"]).said().refusal().contains("a live screen needs a terminal"));
}
