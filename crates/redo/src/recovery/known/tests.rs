//! Tests of streams that are missing, old or foreign, and of a crash at each step of their entries.

use std::{
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use plexus_disks::{BlockSize, Group as DiskGroup, GroupId, Shape, Version};

use super::*;
use crate::{
    recovery::{close_disks, force_disks, open_disks},
    stream::{
        driver::RedoStream,
        protocol::{Geometry, Group, PAGE, Record},
    },
};

const ME: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);

/// A registry in memory, which can be changed a limited number of times.
#[derive(Default)]
struct TestLedger {
    entries: Mutex<LedgerEntries>,
    versions: AtomicUsize,
    fails_after: Option<usize>,
}

impl Ledger for TestLedger {
    fn read(&self, _: &dyn Fn() -> bool) -> Result<LedgerEntries, String> {
        Ok(self.entries.lock().unwrap().clone())
    }

    fn set(&self, key: &str, version: u64, value: &str, _: &dyn Fn() -> bool) -> Result<bool, String> {
        let next = 1 + self.versions.fetch_add(1, Relaxed);
        if self.fails_after.is_some_and(|limit| next > limit) {
            return Err("the node has crashed".into());
        }
        let mut entries = self.entries.lock().unwrap();
        let (now, before) = entries.get(key).cloned().unwrap_or_default();
        assert!(now == 0 || before.len() == value.len(), "a value of fixed length: {value}");
        if now == version {
            entries.insert(key.into(), (next as u64, value.into()));
        }
        Ok(now == version)
    }
}

fn never() -> bool {
    false
}

fn files(directory: &Path) -> RedoFiles {
    RedoFiles::new(directory, 5)
}

fn prepared(files: &RedoFiles, node: NodeId, incarnation: u64) -> super::super::PreparedStream {
    let (name, geometry) = (format!("n{}", node.0 + 1), Geometry::new(16 * PAGE, 2).unwrap());
    files.prepare(node, &name, Incarnation(incarnation), geometry).unwrap()
}

/// Opens a stream as a node does, and changes a block in it.
fn opened(files: &RedoFiles, ledger: &TestLedger, node: NodeId, incarnation: u64) -> (String, RedoStream) {
    let known = ledger.read(&never).unwrap();
    let prepared = files.avoid_lost_place(prepared(files, node, incarnation), &known).unwrap();
    let name = prepared.file_name();
    let stream = prepared.open(drop).unwrap();
    files.note_open(ledger, &name, &never).unwrap();
    let mut group = Group::default();
    group.push(&Record::image(BlockId(7), Version(incarnation), &[0; 4096]));
    stream.wait_durable(stream.append(&group).unwrap().end).unwrap();
    (name, stream)
}

/// Compares streams with the registry as a scan does when all nodes have died.
fn compared(files: &RedoFiles, ledger: &TestLedger) -> Result<(), RedoFileError> {
    let known = ledger.read(&never).unwrap();
    let dead = files.unfinished(&[]).unwrap_or_default();
    files.compare(&known, &[], &dead, ledger, &never)
}

/// Closes all streams as the member does that recovers them.
fn recover(files: &RedoFiles, ledger: &TestLedger) {
    for dead in files.unfinished(&[]).unwrap() {
        files.close(&dead).unwrap();
        note_closed(ledger, &dead.file().file_name(), dead.file().header.incarnation, &never).unwrap();
    }
}

fn state(ledger: &TestLedger, name: &str) -> Option<bool> {
    let entries = ledger.read(&never).unwrap();
    Some(KnownStream::decode(&entries.get(&key(name))?.1).unwrap().is_closed)
}

#[test]
fn an_entry_is_read_as_it_was_written() {
    let known =
        KnownStream { node: NodeId(3), incarnation: Incarnation(u64::MAX), opening: 7, is_closed: true };
    let text = known.encode();
    assert_eq!(text, "node=003 incarnation=18446744073709551615 opening=00000000000000000007 closed=1");
    assert_eq!(KnownStream::decode(&text), Some(known));
    for cut in 0..text.len() {
        assert!(KnownStream::decode(&text[..cut]).is_none_or(|short| short != known));
    }
    assert_eq!(KnownStream::decode(&text.replace("003", "300")), None);
}

/// The steps of an incarnation: the header says open, the registry, changes, the registry says
/// closed, the header.
#[test]
fn a_crash_at_any_step_of_a_stream_is_not_taken_for_a_loss_and_hides_none() {
    for by_survivor in [false, true] {
        for steps in 0..=5_usize {
            let place = tempfile::tempdir().unwrap();
            let (files, ledger) = (files(place.path()), TestLedger::default());
            // An earlier incarnation, so that the file is there and is closed.
            drop(opened(&files, &ledger, ME, 3));
            recover(&files, &ledger);
            let path = place.path().join("n1.0");
            let earlier = std::fs::read(&path).unwrap();
            let prepared = prepared(&files, ME, 5);
            let open = || drop(prepared.open(drop).unwrap());
            let note_open = || files.note_open(&ledger, "n1.0", &never).unwrap();
            let close = || files.close(&files.unfinished(&[]).unwrap()[0]).unwrap();
            let note = || note_closed(&ledger, "n1.0", Incarnation(5), &never).unwrap();
            // A node that leaves tells the registry first, a member that recovers a stream last.
            let [fourth, fifth]: [&dyn Fn(); 2] = if by_survivor { [&close, &note] } else { [&note, &close] };
            if steps >= 1 {
                open();
            }
            // The third step is a change, which does not matter here.
            let then = [&note_open as &dyn Fn(), &|| (), fourth, fifth];
            then.iter().take(steps.saturating_sub(1)).for_each(|does| does());

            compared(&files, &ledger).unwrap();
            if steps == 2 || steps == 3 {
                assert_eq!(state(&ledger, "n1.0"), Some(false));
                // From the moment of the first change on, every loss is noticed.
                let newest = std::fs::read(&path).unwrap();
                std::fs::write(&path, &earlier).unwrap();
                let why = compared(&files, &ledger).unwrap_err().to_string();
                assert!(why.contains("n1.0: this is an older copy of the redo stream of node 0"), "{why}");
                std::fs::remove_file(&path).unwrap();
                let why = compared(&files, &ledger).unwrap_err().to_string();
                assert!(why.contains("n1.0: the redo stream of node 0 is missing"), "{why}");
                std::fs::write(&path, newest).unwrap();
            }
            // The next incarnation uses the stream as usual.
            drop(opened(&files, &ledger, ME, 7));
            compared(&files, &ledger).unwrap();
            recover(&files, &ledger);
            compared(&files, &ledger).unwrap();
            assert_eq!(state(&ledger, "n1.0"), Some(true), "{steps} steps");
            // A stream that is closed may be removed.
            std::fs::remove_file(&path).unwrap();
            compared(&files, &ledger).unwrap();
        }
    }
}

#[test]
fn a_node_that_starts_again_does_not_cover_up_the_loss_of_its_stream() {
    let place = tempfile::tempdir().unwrap();
    let (files, ledger) = (files(place.path()), TestLedger::default());
    drop(opened(&files, &ledger, ME, 3));
    std::fs::remove_file(place.path().join("n1.0")).unwrap();
    let (name, stream) = opened(&files, &ledger, ME, 5);
    assert_eq!(name, "n1.1");
    let why = compared(&files, &ledger).unwrap_err().to_string();
    assert!(why.contains("n1.0: the redo stream of node 0 is missing"), "{why}");
    drop(stream);
    recover(&files, &ledger);
    compared(&files, &ledger).unwrap_err();
}

#[test]
fn a_stream_in_the_place_of_another_is_named() {
    let place = tempfile::tempdir().unwrap();
    let (files, ledger) = (files(place.path()), TestLedger::default());
    drop(opened(&files, &ledger, ME, 3));
    drop(opened(&files, &ledger, OTHER, 4));
    std::fs::copy(place.path().join("n1.0"), place.path().join("n2.0")).unwrap();
    let why = compared(&files, &ledger).unwrap_err().to_string();
    let text = "n2.0: this is a redo stream of node 0, in the place of one of node 1; put the newest file back, or \
                accept that changes are lost with `plexus redo give-up n2.0 --lose-newer`";
    assert!(why.ends_with(text), "{why}");
    // Its own node does not write there.
    assert_eq!(opened(&files, &ledger, OTHER, 6).0, "n2.1");
}

#[test]
fn give_up_accepts_any_state_of_the_file_and_can_be_repeated() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("missing", |path| std::fs::remove_file(path).unwrap()),
        ("stream of node 1", |path| {
            std::fs::copy(path.with_file_name("n2.0"), path).unwrap();
        }),
        ("magic bytes", |path| std::fs::write(path, vec![0; 139_264]).unwrap()),
        ("", |_| {}),
    ];
    for (what, damage) in damages {
        let place = tempfile::tempdir().unwrap();
        let (files, mut ledger) = (files(place.path()), TestLedger::default());
        drop(opened(&files, &ledger, OTHER, 3));
        recover(&files, &ledger);
        drop(opened(&files, &ledger, ME, 3));
        damage(&place.path().join("n1.0"));
        let look = |ledger: &TestLedger| files.to_give_up("n1.0", ledger, &[], &never).unwrap();
        let found = look(&ledger);
        assert!(found.state.contains(what) && !found.is_over, "{found:?}");
        assert_eq!(found.blocks, if what.is_empty() { vec![BlockId(7)] } else { Vec::new() });
        ledger.fails_after = Some(ledger.versions.load(Relaxed));
        files.give_up(&found, &ledger, &never).unwrap_err();
        ledger.fails_after = None;
        for is_over in [false, true] {
            let found = look(&ledger);
            assert_eq!(found.is_over, is_over, "{what}");
            files.give_up(&found, &ledger, &never).unwrap();
        }
        compared(&files, &ledger).unwrap();
        assert!(files.unfinished(&[]).unwrap().is_empty());
        // It keeps its incarnation, and the node goes on.
        let entries = ledger.read(&never).unwrap();
        let known = KnownStream::decode(&entries["stream/n1.0"].1).unwrap();
        assert_eq!((known.incarnation, known.is_closed), (Incarnation(3), true));
        drop(opened(&files, &ledger, ME, 5));
        compared(&files, &ledger).unwrap();
    }
}

#[test]
fn give_up_refuses_streams_of_members_and_unknown_names() {
    let place = tempfile::tempdir().unwrap();
    let (files, ledger) = (files(place.path()), TestLedger::default());
    drop(opened(&files, &ledger, ME, 3));
    let refused = |name: &str| {
        let members = [(ME, Incarnation(3))];
        files.to_give_up(name, &ledger, &members, &never).unwrap_err().to_string()
    };
    assert!(refused("n1.0").contains("a running node writes this stream"));
    std::fs::write(place.path().join("notes"), "").unwrap();
    for name in ["n9.0", "notes", "../x.0", ""] {
        assert!(refused(name).contains("no such redo stream"), "{name}");
    }
}

/// A group of two disks whose images can be put back.
struct Disks {
    place: tempfile::TempDir,
    ledger: TestLedger,
}

impl Disks {
    fn new() -> Self {
        let disks = Self { place: tempfile::tempdir().unwrap(), ledger: TestLedger::default() };
        DiskGroup::create(&disks.paths(), &Self::shape()).unwrap();
        // The stream of a node that has left.
        let known = KnownStream { node: ME, incarnation: Incarnation(1), opening: 1, is_closed: true };
        disks.ledger.set(&key("n1.0"), 0, &known.encode(), &never).unwrap();
        disks
    }

    fn shape() -> Shape {
        Shape { id: GroupId(5), block_size: BlockSize::from_kib(4).unwrap(), blocks: 512 }
    }

    fn paths(&self) -> [std::path::PathBuf; 2] {
        ["0", "1"].map(|disk| self.place.path().join(disk))
    }

    fn group(&self) -> DiskGroup {
        DiskGroup::open(&self.paths(), &Self::shape()).unwrap()
    }

    /// A start of a node as the only one.
    fn start(&self, incarnation: u64) -> Result<Vec<String>, String> {
        let me = (ME, Incarnation(incarnation));
        open_disks(&self.group(), &self.ledger, me, &[me], false, &never).map_err(|why| why.to_string())
    }

    fn end(&self) {
        close_disks(&self.group(), &self.ledger, &never).unwrap();
    }

    fn labels(&self) -> [(u64, u64); 2] {
        let openings = self.group().openings().unwrap();
        [0, 1].map(|disk| (openings[disk].last, openings[disk].before))
    }

    fn images(&self) -> [Vec<u8>; 2] {
        self.paths().map(|path| std::fs::read(path).unwrap())
    }
}

#[test]
fn an_image_from_before_the_last_start_or_end_is_noticed_and_accepted_on_demand() {
    let disks = Disks::new();
    assert_eq!(disks.start(1), Ok(Vec::new()));
    assert_eq!(disks.labels(), [(1, 0); 2]);
    let running = disks.images();
    disks.end();
    disks.end();
    assert_eq!(disks.labels(), [(2, 1); 2]);
    std::fs::write(&disks.paths()[1], &running[1]).unwrap();
    // The registry knows 2, and so does the label of disk 0.
    let faults = disks.start(2).unwrap();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(
        faults[0].contains("1: this is an older image of the disk") && faults[0].contains("has number 1")
    );
    for accepts in [false, true] {
        assert_eq!(force_disks(&disks.group(), &disks.ledger, accepts, &never).unwrap(), faults);
    }
    assert!(force_disks(&disks.group(), &disks.ledger, true, &never).unwrap().is_empty());
    assert_eq!(disks.start(3), Ok(Vec::new()));
    assert_eq!(disks.labels(), [(3, 2), (3, 1)]);
    // The newer image that was given up does not come back unnoticed.
    std::fs::write(&disks.paths()[1], &running[1]).unwrap();
    assert_eq!(disks.start(3).unwrap().len(), 1);
}

#[test]
fn a_crash_between_label_and_registry_is_not_taken_for_an_older_image() {
    for changes in [0, 1] {
        let mut disks = Disks::new();
        // One change was the entry of the stream.
        disks.ledger.fails_after = Some(1 + changes);
        let started = disks.start(1);
        let ended = close_disks(&disks.group(), &disks.ledger, &never);
        assert_eq!((started.is_ok(), ended.is_ok()), (changes == 1, changes == 0));
        disks.ledger.fails_after = None;
        assert_eq!(disks.start(2), Ok(Vec::new()));
        let number = 1 + changes as u64;
        assert_eq!(disks.labels(), [(number, number - 1); 2], "a number that is not used is used next");
        // A torn write of one copy leaves the other.
        let mut image = disks.images()[0].clone();
        image[..4096].fill(0xff);
        std::fs::write(&disks.paths()[0], image).unwrap();
        assert_eq!(disks.start(3), Ok(Vec::new()));
    }
}

#[test]
fn the_nodes_of_one_start_note_it_once_and_the_end_is_that_of_the_last() {
    let disks = Disks::new();
    let members = [(ME, Incarnation(1)), (OTHER, Incarnation(1))];
    for me in members {
        assert!(open_disks(&disks.group(), &disks.ledger, me, &members, false, &never).unwrap().is_empty());
        assert_eq!(disks.labels(), [(1, 0); 2]);
    }
    // One that has opened them before goes on without the member that noted it.
    let left = [(OTHER, Incarnation(1))];
    assert!(open_disks(&disks.group(), &disks.ledger, left[0], &left, true, &never).unwrap().is_empty());
    assert_eq!(disks.labels(), [(1, 0); 2]);
    let place = tempfile::tempdir().unwrap();
    let streams = files(place.path());
    drop(opened(&streams, &disks.ledger, OTHER, 1));
    disks.end();
    assert_eq!(disks.labels(), [(1, 0); 2], "a stream is open");
    recover(&streams, &disks.ledger);
    disks.end();
    assert_eq!(disks.labels(), [(2, 1); 2]);
}

#[test]
fn another_disk_of_the_group_is_noticed() {
    let disks = Disks::new();
    assert_eq!(disks.start(1), Ok(Vec::new()));
    disks.paths().iter().for_each(|path| std::fs::remove_file(path).unwrap());
    DiskGroup::create(&disks.paths(), &Disks::shape()).unwrap();
    let faults = disks.start(2).unwrap();
    assert!(faults.len() == 2 && faults[0].contains("not the disk that the registry knows"), "{faults:?}");
}
