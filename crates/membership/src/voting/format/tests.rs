//! Encodings are decoded again, and other bytes are refused.

use plexus_base::{Epoch, Incarnation, Nanos, NodeSet, wire::Fault};
use plexus_sim::{Random, hostile};

use super::*;
use crate::protocol::{FileId, Profile, ReportNumber, Seat, View};

const NAME: FileName = FileName { cluster: ClusterId(0x1234), file: FileId(7) };
const NODE: NodeId = NodeId(2);

fn view(epoch: u32) -> View {
    let mut view = View::first(NodeSet::first(5), [(FileId(7), None), (FileId(9), Some(NodeId(1)))]);
    view.epoch = Epoch(epoch);
    (view.seats[0], view.seats[3]) = (Seat::In(Incarnation(4)), Seat::Out(Incarnation(u64::MAX)));
    view.files[1].since = Epoch(3);
    view
}

fn a_report(counter: u64) -> Report {
    Report {
        counter,
        opened: Epoch(5),
        hears: NodeSet::first(2),
        reaches: true,
        disk_timeout: Nanos::from_ms(29_000),
        echo: std::array::from_fn(|node| ReportNumber {
            incarnation: Incarnation(node as u64 % 4),
            counter: node as u64 * 7,
        }),
        registry: 5 << 32 | 9,
        dead: std::array::from_fn(|node| Incarnation(node as u64 % 3)),
        must_prove: NodeSet::first(5),
        ..Report::first(NODE, Incarnation(11), &Profile::LAN, Arc::new(view(6)))
    }
}

fn a_ballot(counter: u64) -> Ballot {
    let proposed = Some(Arc::new(view(7)));
    Ballot { counter, mbal: 34, bal: 18, proposed, decided: Arc::new(view(6)) }
}

fn header() -> Vec<u8> {
    Header { name: NAME, first: view(0) }.encode()
}

fn file() -> Vec<u8> {
    let mut bytes = vec![0; FILE];
    let mut put = |at: usize, block: Vec<u8>| bytes[at * BLOCK..(at + 1) * BLOCK].copy_from_slice(&block);
    put(0, header());
    put(heartbeat_at(NODE), heartbeat(NAME, &a_report(8)));
    put(ballot_at(NODE, 0), ballot(NAME, NODE, &a_ballot(5)));
    put(ballot_at(NODE, 1), ballot(NAME, NODE, &a_ballot(4)));
    bytes
}

#[test]
fn ballots_new_incarnations_and_newer_generations_must_be_durable_and_heartbeats_need_not() {
    let report = |counter, incarnation, registry| {
        heartbeat(NAME, &Report { registry, incarnation: Incarnation(incarnation), ..a_report(counter) })
    };
    let (own, empty) = (heartbeat_at(NODE), vec![0; BLOCK]);
    assert!(must_be_durable(
        ballot_at(NODE, 0),
        &ballot(NAME, NODE, &a_ballot(1)),
        &ballot(NAME, NODE, &a_ballot(3))
    ));
    assert!(must_be_durable(ballot_at(NODE, 1), &empty, &ballot(NAME, NODE, &a_ballot(2))));
    assert!(must_be_durable(own, &report(1, 7, 3), &report(2, 7, 4)));
    assert!(must_be_durable(own, &report(1, 7, 4), &report(2, 8, 4)));
    assert!(must_be_durable(own, &empty, &report(1, 7, 0)));
    assert!(!must_be_durable(own, &report(1, 7, 4), &report(2, 7, 4)));
    assert!(!must_be_durable(own, &report(1, 7, 4), &report(2, 7, 0)));
    let mut torn = report(1, 7, 4);
    torn[1000] ^= 1;
    assert!(must_be_durable(own, &torn, &report(2, 7, 4)));
}

#[test]
fn a_written_file_is_read() {
    let contents = contents(NAME, &file()).expect("a voting file");
    for (node, blocks) in contents.nodes.iter().enumerate() {
        if node == NODE.index() {
            assert_eq!(blocks.heartbeat, Block::Good(Arc::new(a_report(8))));
            assert_eq!(blocks.ballots, [5, 4].map(|counter| Block::Good(Arc::new(a_ballot(counter)))));
            assert_eq!(blocks.newest(), Some(0));
        } else {
            assert_eq!(*blocks, NodeBlocks::default());
        }
    }
    let bare = Ballot { mbal: 3, bal: 0, proposed: None, ..a_ballot(1) };
    assert_eq!(ballot_decoded(NAME, NODE, &ballot(NAME, NODE, &bare)), Ok(Some(bare)));
    assert_eq!(message_decoded(&message(&a_report(3))), Ok(a_report(3)));
    assert_eq!(Header::decode(NAME, &header()), Ok(Header { name: NAME, first: view(0) }));
}

#[test]
fn every_changed_byte_is_detected() {
    for good in [header(), heartbeat(NAME, &a_report(8)), ballot(NAME, NODE, &a_ballot(5))] {
        for byte in 0..BLOCK {
            let mut bad = good.clone();
            bad[byte] ^= 0x10;
            assert!(Header::decode(NAME, &bad).is_err());
            assert!(heartbeat_decoded(NAME, NODE, &bad).is_err(), "byte {byte}");
            assert!(ballot_decoded(NAME, NODE, &bad).is_err(), "byte {byte}");
        }
    }
}

#[test]
fn a_torn_ballot_leaves_the_other_in_force() {
    for at in 0..8 {
        let mut bytes = file();
        let torn = ballot_at(NODE, 0) * BLOCK;
        let before = vec![0; BLOCK];
        bytes[torn + at * 512..torn + BLOCK].copy_from_slice(&before[at * 512..]);
        let blocks = contents(NAME, &bytes).expect("a voting file").nodes[NODE.index()].clone();
        // With two files, all that is not zero is in the first two sectors.
        let expected = if at < 2 { 4 } else { 5 };
        assert_eq!(blocks.ballot().map(|ballot| ballot.counter), Some(expected), "torn at {at}");
    }
}

#[test]
fn blocks_of_other_clusters_files_and_positions_are_refused_with_the_reason() {
    let other = |name: FileName| contents(name, &file()).expect_err("another's").to_string();
    let cluster = FileName { cluster: ClusterId(1), ..NAME };
    assert!(other(cluster).starts_with("it belongs to cluster 00000000000000000000000000001234"));
    let another = FileName { file: FileId(8), ..NAME };
    assert!(other(another).starts_with("it belongs to voting file 0000000000000007"));
    let block = heartbeat(NAME, &a_report(8));
    assert_eq!(heartbeat_decoded(NAME, NodeId(3), &block), Err(BlockError::Misplaced));
    assert_eq!(ballot_decoded(NAME, NODE, &block), Err(BlockError::Misplaced));
    assert_eq!(contents(NAME, &[]), Err(Fault::CutOff.into()));
    assert_eq!(contents(NAME, &vec![0; FILE]), Err(Fault::Magic.into()));
    assert_eq!(contents(NAME, &vec![7; FILE]), Err(Fault::Magic.into()));
}

#[test]
fn impossible_values_are_refused_although_the_checksum_is_right() {
    let good = ballot(NAME, NODE, &a_ballot(5));
    // Format, instance, whether proposed, a `bal` above `mbal`, files, a seat, bytes behind the
    // files.
    let (block, view) = ([(4, 1), (48, 1), (52, 2), (64, 99)], [(76, 0), (76, 17), (78, 2)]);
    for (byte, value) in block.into_iter().chain(view).chain([(88, 3), (590, 1)]) {
        let mut bad = good.clone();
        bad[byte] = value;
        block::mend(&mut bad);
        assert!(ballot_decoded(NAME, NODE, &bad).is_err(), "byte {byte}");
    }
}

#[test]
fn numbers_without_room_to_count_on_are_refused() {
    let refused = |mut block: Vec<u8>, bytes: &[usize]| {
        bytes.iter().for_each(|byte| block[*byte] = 0x80);
        block::mend(&mut block);
        Header::decode(NAME, &block).is_err()
            && heartbeat_decoded(NAME, NODE, &block).is_err()
            && ballot_decoded(NAME, NODE, &block).is_err()
    };
    // The highest bytes of the first view's epoch, of a block's counter (which a report repeats),
    // and of a ballot's instance and epoch.
    assert!(refused(header(), &[51]));
    assert!(refused(heartbeat(NAME, &a_report(8)), &[39, 71]));
    assert!(refused(ballot(NAME, NODE, &a_ballot(5)), &[39]));
    assert!(refused(ballot(NAME, NODE, &a_ballot(5)), &[51, 75, 595]));
    let mut bytes = message(&a_report(3));
    bytes[23] = 0x80;
    assert_eq!(message_decoded(&bytes), Err(Fault::Field("incarnation or counter").of("report of a node")));
}

#[test]
fn hostile_bytes_do_no_harm() {
    let good =
        [header(), heartbeat(NAME, &a_report(8)), ballot(NAME, NODE, &a_ballot(5)), message(&a_report(3))];
    assert_eq!(good.each_ref().map(|bytes| voting_any(bytes)), [3, 3, 3, 1]);
    hostile(&good, |bytes| assert!(voting_any(bytes) <= 4));
    let mut random = Random::new(1);
    for _ in 0..50 {
        let mut bytes = file();
        (0..random.below(4000)).for_each(|_| bytes[random.below(FILE as u64) as usize] = random.bits() as u8);
        let _ = contents(NAME, &bytes);
    }
}

#[test]
fn the_bytes_stay_as_they_are() {
    let bytes = [file(), message(&a_report(3))].concat();
    assert_eq!((bytes.len(), plexus_base::crc32c(&bytes)), (201_664, 567_440_961));
}
