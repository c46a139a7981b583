//! Tests of what the threads of a node's redo do for views that have passed. They reach inside.

use std::sync::mpsc;

use plexus_cache::CacheTask;
use plexus_disks::{BlockSize, GroupId, Shape};

use super::*;
use crate::stream::protocol::{Geometry, PAGE};

/// The longest wait for something that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts the redo of a node that is alone.
fn start(root: &std::path::Path) -> (NodeRedo, mpsc::Receiver<(WorkerId, CacheTask)>) {
    std::fs::create_dir(root.join("redo")).expect("a directory");
    let shape = Shape { id: GroupId(5), block_size: BlockSize::from_kib(4).expect("a size"), blocks: 8 };
    DiskGroup::create(&[root.join("disk")], &shape).expect("a group");
    let group = Arc::new(DiskGroup::open(&[root.join("disk")], &shape).expect("a group"));
    let files = RedoFiles::new(root.join("redo"), 5);
    let geometry = Geometry::new(64 * PAGE, 4).expect("segments");
    let stream = files.prepare(NodeId(1), "n1", Incarnation(1), geometry).expect("a stream");
    let failed = Box::new(|why: &str| panic!("{why}"));
    let settings = RedoSettings {
        workers: 1,
        files,
        geometry,
        stream: Some(stream),
        name: "n1".into(),
        me: (NodeId(1), Incarnation(1)),
        ledger: None,
        target_bytes: u64::MAX,
        failed,
    };
    let (tell, answers) = mpsc::channel();
    let tell = RedoAnswers::new(move |worker, task| _ = tell.send((worker, task)));
    (NodeRedo::start(settings, group, tell).expect("threads"), answers)
}

#[test]
fn a_view_that_comes_during_a_scan_discards_its_result() {
    let directory = tempfile::tempdir().expect("a directory");
    let (redo, answers) = start(directory.path());
    let members = vec![(NodeId(1), Incarnation(1))];
    let scanned = |wanted: Epoch| loop {
        match answers.recv_timeout(LIMIT).expect("an answer") {
            (_, CacheTask::Scanned(epoch, _)) => return assert_eq!(epoch, wanted),
            (_, CacheTask::Drained(_)) => {}
            _ => panic!("an answer without a question"),
        }
    };
    redo.recover(WorkerId(0), Epoch(2), members.clone());
    scanned(Epoch(2));
    redo.shared.lock().scanned = None;
    // A scan for an earlier view ends now.
    redo.shared.scan(Epoch(1), &members);
    assert!(redo.shared.lock().scanned.is_none(), "the result of a scan for an earlier view counts");
    // A worker that comes into the view later has the streams scanned for it.
    redo.recover(WorkerId(0), Epoch(2), members);
    scanned(Epoch(2));
}
