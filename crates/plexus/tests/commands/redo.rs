//! Redo streams from the command line.

use std::{os::unix::fs::FileExt, path::PathBuf};

use plexus_admin::{config::Config, layout::ClusterDir};
use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{Patch, Version};
use plexus_redo::{
    recovery::RedoFiles,
    stream::{
        driver::RedoStream,
        protocol::{Geometry, Group, Lsn, PAGE, Record},
    },
};
use rustix::process::Signal;

use crate::common::{Cluster, CommandOutput, signal, wait_for_end};

/// Opens the stream of a new incarnation of the first node.
fn stream(cluster: &Cluster, incarnation: u64) -> RedoStream {
    let config = Config::load(&ClusterDir::new(cluster.dir())).unwrap();
    let geometry = Geometry::new(16 * PAGE, 2).unwrap();
    let files = RedoFiles::new(cluster.dir().join("disks/redo"), config.id.0);
    files.prepare(NodeId(0), "n1", Incarnation(incarnation), geometry).unwrap().open(drop).unwrap()
}

/// Appends two changes of a block, with an image, in two batches. Returns their starts.
fn changes(stream: &RedoStream) -> [Lsn; 2] {
    let first = change(stream);
    let mut second = Group::default();
    second.push(&Record::change(BlockId(7), Version(4), Version(5), b"x"));
    [first, append(stream, &second)]
}

/// Appends a change of a block, with an image, in a batch. Returns its start.
fn change(stream: &RedoStream) -> Lsn {
    let mut patch = Patch::default();
    patch.range(70, &[0xab]).range(80, &[1; 40]);
    let patch = patch.encoded();
    let mut first = Group::default();
    first.push(&Record::image(BlockId(7), Version(3), &[0; 4096]));
    first.push(&Record::change(BlockId(7), Version(3), Version(4), patch));
    append(stream, &first)
}

fn append(stream: &RedoStream, group: &Group) -> Lsn {
    let appended = stream.append(group).unwrap();
    stream.wait_durable(appended.end).unwrap();
    appended.start
}

fn redo(cluster: &Cluster, args: &[&str]) -> CommandOutput {
    let args: Vec<&str> = ["redo"].iter().chain(args).copied().collect();
    crate::common::run(args).args(["-C", cluster.dir().to_str().unwrap()]).said()
}

#[test]
fn streams_and_their_records_are_shown_while_they_are_written_and_afterwards() {
    let cluster = Cluster::new(1);
    assert!(redo(&cluster, &[]).ok().starts_with("no redo streams in "));
    assert_eq!(redo(&cluster, &["--json"]).json()["streams"], serde_json::json!([]));
    std::fs::create_dir_all(cluster.dir().join("disks/redo")).unwrap();
    let first = stream(&cluster, 5);
    changes(&first);
    let second = stream(&cluster, 6);
    second.close().unwrap();
    let shown = redo(&cluster, &["--json"]).json();
    let open = serde_json::json!({
        "stream": "n1.0", "node": 0, "incarnation": 5, "state": "open", "checkpoint": 4096, "end": 16384,
        "bytes": 12288, "blocks": 1, "size": 139264
    });
    assert_eq!(shown["streams"][0], open);
    assert_eq!(
        (&shown["streams"][1]["state"], &shown["streams"][1]["blocks"]),
        (&"closed".into(), &0.into())
    );
    let text = redo(&cluster, &[]).ok();
    assert!(text.lines().nth(1).unwrap().starts_with("n1.0    open "), "{text}");
    assert!(text.contains("12 KiB"), "{text}");

    let dump = redo(&cluster, &["dump", "n1.0"]).ok();
    let lines: Vec<&str> = dump.lines().map(str::trim_start).collect();
    assert_eq!(lines[0], "n1.0: node 0, open, from LSN 4096 on");
    assert!(lines[1].ends_with("  incarnation 5  block 7  image of version 3, 4096 bytes"), "{dump}");
    let bytes = "01".repeat(32);
    assert!(lines[2].ends_with(&format!("  block 7  version 3 to 4: at 70 ab, at 80 {bytes}... (40 bytes)")));
    assert!(lines[3].ends_with("  block 7  version 4 to 5: no patch, 78"), "{dump}");
    assert_eq!(lines[4], "n1.0: ends at LSN 16384: no later batch is in the file");
    let all = redo(&cluster, &["dump", "n1"]).ok();
    assert!(all.starts_with(&dump) && all.contains("n1.1: node 0, closed"), "{all}");
    let json = redo(&cluster, &["dump", "n1.0", "--json"]).ok();
    let records: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records[1]["ranges"][0], serde_json::json!({ "offset": 70, "bytes": "ab" }));
    assert_eq!(records[3]["end"], 16384);
    let refusal = redo(&cluster, &["dump", "n7"]).refusal();
    assert!(refusal.contains("n7: no such redo stream; see `plexus redo`"), "{refusal}");
}

#[test]
fn files_that_are_no_streams_of_the_cluster_are_named_and_stay_as_they_are() {
    let cluster = Cluster::new(1);
    let directory = cluster.dir().join("disks/redo");
    // A disk group of an earlier version has no streams.
    assert!(redo(&cluster, &[]).ok().starts_with("no redo streams in "));
    std::fs::create_dir_all(&directory).unwrap();
    drop(stream(&cluster, 5));
    let path = directory.join("n1.0");
    let good = std::fs::read(&path).unwrap();
    let (other, foreign) = (directory.join("n9.0"), RedoFiles::new(&directory, 77));
    let geometry = Geometry::new(16 * PAGE, 2).unwrap();
    drop(foreign.prepare(NodeId(0), "n9", Incarnation(5), geometry).unwrap());
    let foreign = std::fs::read(&other).unwrap();
    std::fs::remove_file(&other).unwrap();
    let mut newer = good.clone();
    newer[..2 * PAGE as usize].chunks_mut(PAGE as usize).for_each(|header| {
        header[8] = 3;
        plexus_base::wire::seal(header, 12);
    });
    for (bad, reason) in [
        (foreign, "redo stream of node 0 of cluster 0000000000000000000000000000004d where that of node 0"),
        (good[..9000].to_vec(), "a segment is missing: 9000 bytes of 139264; restore the stream from a copy"),
        (newer, "it has version 3, this program reads version 2; use the same version of plexus everywhere"),
        (
            vec![0; 139_264],
            "it does not begin with the magic bytes of the format; restore the stream from a copy",
        ),
        (Vec::new(), "restore the stream from a copy, or use the version of plexus that wrote it"),
    ] {
        std::fs::write(&path, &bad).unwrap();
        let refusals = [&[][..], &["dump"], &["dump", "n1.0"]].map(|args| redo(&cluster, args).refusal());
        let up = cluster.run("up").said().refusal();
        for refusal in refusals.into_iter().chain([up]) {
            assert!(refusal.contains("redo/n1.0: redo stream"), "{refusal}");
            assert!(refusal.contains(reason), "{refusal}");
        }
        assert!(std::fs::read(&path).unwrap() == bad, "the file was changed");
        // The node runs, with another stream.
        let down = cluster.run("down").said().refusal();
        assert!(down.contains("down, but n1: redo is not recovered: ") && down.contains(reason), "{down}");
        std::fs::remove_file(directory.join("n1.1")).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    }
    // The stream in which an earlier incarnation has written nothing is used again.
    std::fs::write(&path, good).unwrap();
    cluster.run("up").said().ok();
    let shown = || redo(&cluster, &["--json"]).json();
    let is_new = |shown: &serde_json::Value| shown["streams"][0]["incarnation"].as_u64() > Some(5);
    let shown = crate::common::until("the stream is opened", shown, is_new);
    assert_eq!(shown["streams"].as_array().unwrap().len(), 1, "{shown}");
    cluster.run("down").said().ok();
}

#[test]
fn a_stream_that_cannot_be_used_is_named_and_the_others_are_shown() {
    let cluster = Cluster::new(1);
    std::fs::create_dir_all(cluster.dir().join("disks/redo")).unwrap();
    let [start, _] = changes(&stream(&cluster, 5));
    drop(stream(&cluster, 6));
    let path: PathBuf = cluster.dir().join("disks/redo/n1.0");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let offset = Geometry::new(16 * PAGE, 2).unwrap().offset(start);
    file.write_all_at(b"damage", offset + 500).unwrap();
    for args in [&[][..], &["dump"]] {
        let shown = redo(&cluster, args);
        let damage = format!("redo/n1.0: redo stream of node 0 is damaged at {start} (byte {offset})");
        assert!(shown.err.contains(&damage), "{}", shown.err);
        assert_eq!(shown.out.contains("n1.1"), args.is_empty(), "{}", shown.out);
        shown.refused();
    }
    file.set_len(9000).unwrap();
    let refusal = redo(&cluster, &["dump", "n1.0"]).refusal();
    assert!(refusal.contains("n1.0: redo stream of node 0: a segment is missing"), "{refusal}");
    redo(&cluster, &["dump", "n1.1"]).ok();
    let refusal = redo(&cluster, &[]).refusal();
    assert!(
        refusal.contains("1 of 2 redo streams cannot be used") && refusal.contains("a segment is missing")
    );
}

/// Writes a stream of which batches in a row are damaged, with a valid one behind them: the blocks
/// that may lack records are not known. Returns the text about the damage.
fn damaged(cluster: &Cluster) -> String {
    std::fs::create_dir_all(cluster.dir().join("disks/redo")).unwrap();
    let stream = stream(cluster, 5);
    let [_, start, next, _] = [(); 4].map(|()| change(&stream));
    let path = cluster.dir().join("disks/redo/n1.0");
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let offset = |lsn| Geometry::new(16 * PAGE, 2).unwrap().offset(lsn);
    [start, next].iter().for_each(|lsn| file.write_all_at(b"damage", offset(*lsn) + 500).unwrap());
    format!("redo/n1.0: redo stream of node 0 is damaged at {start} (byte {})", offset(start))
}

#[test]
fn blocks_whose_redo_cannot_be_scanned_are_refused_with_the_reason_and_nodes_end_with_it() {
    let cluster = Cluster::new(1);
    let damage = damaged(&cluster);
    let refusal = cluster.run("up").said().refusal();
    assert!(refusal.contains("running: n1, but") && refusal.contains(&damage), "{refusal}");
    let bench = || {
        let mut bench = crate::common::run(["bench", "blocks", "--hot", "8", "--seconds", "0.2"]);
        bench.0.arg("-C").arg(cluster.dir());
        bench.said()
    };
    let refusal = bench().refusal();
    assert!(refusal.contains("is refused until redo can be read") && refusal.contains(&damage), "{refusal}");
    let status = cluster.run("status").args(["--json"]).said().json();
    let problem = status["nodes"][0]["recovery"]["problem"].as_str().unwrap();
    assert!(problem.contains(&damage), "{status}");
    let text = cluster.run("status").said().ok();
    assert!(text.contains("blocks that no node holds are refused") && text.contains(&damage), "{text}");
    let down = cluster.run("down").said();
    assert!(!down.out.contains("everything is on disk"), "{}", down.out);
    let refusal = down.refusal();
    assert!(refusal.contains("down, but n1: redo is not recovered: ") && refusal.contains(&damage));
    let streams = || std::fs::read_dir(cluster.dir().join("disks/redo")).unwrap().count();
    for end in [Signal::KILL, Signal::KILL, Signal::TERM] {
        cluster.run("up").said().refusal();
        bench().refused();
        let pid = cluster.pids()[0];
        signal(pid, end);
        wait_for_end(pid);
        // The stream in which the node has written nothing is used again.
        assert_eq!(streams(), 2);
    }
}
