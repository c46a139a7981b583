//! Recovery of blocks from the streams of dead nodes, with real files.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use common::{BLOCK_BYTES, CLUSTER, Files, TestBlock, TestNode};
use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{Page, PageType, Version, Writer};
use plexus_redo::{
    recovery::{PLACES, RedoFiles},
    stream::protocol::{Geometry, PAGE},
};

const BLOCKS: u64 = 700;

fn files() -> (tempfile::TempDir, Files) {
    let directory = tempfile::tempdir().expect("a directory");
    let files = Files::create(directory.path().into(), BLOCKS);
    (directory, files)
}

/// Changes a block, and waits until the change is durable, as before the block is shipped.
fn changed(node: &TestNode, block: &mut TestBlock, number: u8) {
    node.change(block, |user| user[usize::from(number) % 16 * 200..][..3].fill(number));
    node.flush(block);
}

#[test]
fn a_new_page_is_recovered_from_its_header_and_what_was_written_to_it() {
    let (_directory, files) = files();
    let node = files.node(1, 11, 16);
    let mut blocks = [7, 8].map(|block| files.block(block));
    for block in &mut blocks {
        changed(&node, block, 1);
        block.write(&files.group);
        node.create(block, PageType(5), Version(9));
    }
    let [written, empty] = &mut blocks;
    changed(&node, written, 2);
    node.flush(empty);
    drop(node);
    let mut dead = files.dead();
    let highest = files.redo.scan(&mut dead[0]).expect("a scan");
    assert_eq!([7, 8].map(|block| highest[&BlockId(block)].0), [11, 10]);
    assert_eq!(files.replay(&[7, 8], &dead), [(7, Ok(11)), (8, Ok(10))].into());
    for block in &blocks {
        let found = files.block(block.block.0);
        assert_eq!(found.user(), block.user());
        assert_eq!(Page::of(&found.page[..]).page_type(), Some(PageType(5)));
    }
    assert!(blocks[1].user().iter().all(|byte| *byte == 0));
}

#[test]
fn a_block_that_moved_between_dead_nodes_is_on_disk_after_recovery_and_streams_close() {
    let (_directory, files) = files();
    let [one, two] = [1, 2].map(|node| files.node(node, 10 + u64::from(node), 16));
    let mut early = files.block(8);
    changed(&one, &mut early, 1);
    let mut block = files.block(7);
    for number in 1..30 {
        changed(if number % 3 == 0 { &two } else { &one }, &mut block, number);
        if number == 9 {
            block.write(&files.group);
        }
    }
    drop((one, two));
    // One of them is a member: its stream is not that of a dead node.
    let live = (NodeId(2), Incarnation(12));
    assert_eq!(files.redo.unfinished(&[live]).expect("streams").len(), 1);
    assert_eq!(files.redo.living(&[live]).expect("streams")[0].header.node, NodeId(2));
    let mut dead = files.dead();
    let highest: Vec<_> = dead.iter_mut().map(|dead| files.redo.scan(dead).expect("a scan")).collect();
    assert_eq!(highest.iter().map(|highest| highest[&BlockId(7)].0).collect::<Vec<_>>(), [29, 27]);
    assert_eq!(files.block(7).version().0, 9);
    let results = files.replay(&[7, 8, 9], &dead);
    assert_eq!(results, [(7, Ok(29)), (8, Ok(1)), (9, Ok(0))].into());
    let found = files.block(7);
    assert_eq!(found.user(), block.user());
    let writer = Writer { node: NodeId(1), incarnation: Incarnation(11) };
    assert_eq!(Page::of(&found.page[..]).writer(), Some(writer));
    // Again, as after a crash before the streams were closed: nothing changes.
    assert_eq!(files.replay(&[7, 8, 9], &dead), results);
    for dead in dead.iter().chain(&dead) {
        files.redo.close(dead).expect("it closes");
    }
    assert_eq!(files.dead(), []);

    // The next incarnation uses the same file, and its recovery does not read what was closed.
    let one = files.node(1, 20, 16);
    files.redo.close(&dead[0]).expect("closing the stream of the old incarnation does nothing");
    assert_eq!(files.redo.list().expect("a directory").len(), 2);
    let mut block = files.block(7);
    changed(&one, &mut block, 30);
    drop(one);
    let mut dead = files.dead();
    assert_eq!(dead.len(), 1);
    let highest = files.redo.scan(&mut dead[0]).expect("a scan");
    assert_eq!(
        (highest.get(&BlockId(7)).map(|version| version.0), highest.get(&BlockId(8))),
        (Some(30), None)
    );
    assert_eq!(files.replay(&[7], &dead), [(7, Ok(30))].into());
}

#[test]
fn records_of_before_the_closing_are_not_replayed_when_a_stream_is_used_again() {
    let (_directory, files) = files();
    let image = fs::read(files.root.join("disk")).expect("the disk");
    let one = files.node(1, 11, 16);
    let mut block = files.block(3);
    (1..4).for_each(|number| changed(&one, &mut block, number));
    one.stream.close().expect("it closes");
    drop(one);
    // An operator accepts an older image of the disk, without these changes.
    fs::write(files.root.join("disk"), image).expect("the disk");
    let again = files.node(1, 12, 16);
    changed(&again, &mut files.block(4), 1);
    drop(again);
    let mut dead = files.dead();
    let highest = files.redo.scan(&mut dead[0]).expect("a scan");
    assert_eq!(
        highest.into_iter().map(|(block, version)| (block.0, version.0)).collect::<Vec<_>>(),
        [(4, 1)]
    );
    assert_eq!(files.replay(&[3, 4], &dead), [(3, Ok(0)), (4, Ok(1))].into());
}

#[test]
fn a_restart_does_not_wait_for_recovery_and_survivors_streams_take_part() {
    let (_directory, files) = files();
    let mut block = files.block(3);
    let one = files.node(1, 11, 16);
    changed(&one, &mut block, 1);
    drop(one);
    let again = files.node(1, 12, 16);
    changed(&again, &mut block, 2);
    let survivor = files.node(2, 13, 16);
    changed(&survivor, &mut block, 3);
    drop(again);
    let live = [(NodeId(2), Incarnation(13))];
    let (dead, living) = (files.redo.unfinished(&live).expect("streams"), files.redo.living(&live));
    let paths: Vec<_> = dead.iter().map(|dead| dead.file().path.file_name().expect("a name")).collect();
    assert_eq!(paths, ["n1.0", "n1.1"]);
    let mut results = Vec::new();
    let never = AtomicBool::new(false);
    let living = living.expect("streams");
    files.redo.replay([BlockId(3)], &dead, &living, &files.group, &never, |_, result| results.push(result));
    assert_eq!(results[0].as_ref().map(|version| version.0), Ok(3));
    assert_eq!(files.block(3).user(), block.user());
}

#[test]
fn a_torn_block_is_healed_from_its_image_and_a_later_damage_is_not_taken_for_a_tear() {
    let (_directory, files) = files();
    let node = files.node(1, 11, 64);
    let mut blocks = [4, 5, 6].map(|block| files.block(block));
    for number in 1..5 {
        for block in &mut blocks {
            changed(&node, block, number);
            if number == 2 {
                block.write(&files.group);
            }
        }
    }
    let newest = blocks.clone();
    let write = |block: u64, bytes: &[u8]| files.group.write(BlockId(block), bytes).expect("it is written");
    // The write of version 4 tears, in front or in the middle.
    let [mut first, mut second, third] = blocks;
    let half = files.block(4).page;
    first.page[2048..].copy_from_slice(&half[2048..]);
    write(4, &first.page);
    second.write(&files.group);
    second.page[2048..2560].fill(0);
    write(5, &second.page);
    // Redo beyond version 4 was given up when version 6 was on disk. Then a bit flips.
    let mut later = third.clone();
    for version in [5, 6] {
        Page::of(&mut later.page[..]).stamp(later.block, node.writer, plexus_disks::Version(version));
    }
    later.write(&files.group);
    later.page[1000] ^= 1;
    write(6, &later.page);
    drop(node);
    let results = files.replay(&[4, 5, 6], &files.dead());
    assert_eq!((&results[&4], &results[&5]), (&Ok(4), &Ok(4)));
    for block in &newest[..2] {
        assert_eq!(files.block(block.block.0).user(), block.user());
    }
    let error = results[&6].as_ref().expect_err("changes are lost");
    assert!(error.contains("block 6 is torn, and redo leads only to version 4 while"), "{error}");
    let mut found = later.page.clone();
    files.group.read(BlockId(6), &mut found).expect("it is read");
    assert!(found[..] == later.page[..], "a block that cannot be recovered is not changed");
}

#[test]
fn a_torn_block_starts_from_the_newest_image_of_all_streams() {
    let (_directory, files) = files();
    let [one, two] = [1, 2].map(|node| files.node(node, 11, 16));
    let (mut block, mut other) = (files.block(4), files.block(5));
    changed(&one, &mut block, 1);
    changed(&two, &mut block, 2);
    block.write(&files.group);
    files.group.sync().expect("synced");
    // The checkpoint of one stream passes the change to version 2, the other keeps its image.
    changed(&two, &mut other, 1);
    two.stream.checkpoint(two.stream.durable());
    changed(&two, &mut block, 3);
    let mut torn = block.clone();
    torn.page[2048..].fill(0);
    files.group.write(torn.block, &torn.page).expect("it is written");
    drop((one, two));
    assert_eq!(files.replay(&[4], &files.dead()), [(4, Ok(3))].into());
    assert_eq!(files.block(4).user(), block.user());
}

#[test]
fn a_gap_is_refused_by_name_and_other_blocks_are_recovered() {
    let (directory, files) = files();
    let [one, two] = [1, 2].map(|node| files.node(node, 11, 16));
    let (mut block, mut other) = (files.block(7), files.block(8));
    changed(&one, &mut block, 1);
    changed(&two, &mut block, 2);
    changed(&one, &mut block, 3);
    changed(&one, &mut other, 1);
    drop((one, two));
    fs::remove_file(directory.path().join("redo/n2.0")).expect("it is removed");
    let results = files.replay(&[7, 8], &files.dead());
    assert_eq!(results[&8], Ok(1));
    let error = results[&7].as_ref().expect_err("a gap");
    assert!(error.starts_with("block 7: redo is missing: it has version 1, and the next record"), "{error}");
    assert!(error.contains("(stream 0 of node 1, LSN "), "{error}");
    assert_eq!(files.block(7).version().0, 0, "nothing is written over a gap");
}

/// The blocks of a damaged stream: some in each segment, the last ones in a segment that goes on.
const IN_ORDER: u64 = 18;

/// Changes blocks in order, and damages the batches of some.
fn damaged_stream(files: &Files, damaged: &[u64]) {
    let node = files.node(1, 11, 16);
    let starts: Vec<_> = (0..IN_ORDER)
        .map(|number| {
            let mut block = files.block(number);
            changed(&node, &mut block, 1);
            block.appended.expect("changed").start
        })
        .collect();
    drop(node);
    let file = OpenOptions::new().write(true).open(files.root.join("redo/n1.0")).expect("it opens");
    let geometry = Geometry::new(16 * PAGE, 4).expect("segments");
    for block in damaged {
        let offset = geometry.offset(starts[*block as usize]);
        file.write_all_at(b"damage", offset + 1000).expect("it is written");
    }
}

#[test]
fn damage_in_a_stream_stops_exactly_the_blocks_that_lack_records() {
    for damaged in 0..IN_ORDER - 1 {
        let (_directory, files) = files();
        damaged_stream(&files, &[damaged]);
        let mut dead = files.dead();
        let highest = files.redo.scan(&mut dead[0]).expect("footers name all blocks");
        let results = files.replay(&(0..IN_ORDER).collect::<Vec<_>>(), &dead);
        assert_eq!(highest.len(), results.len());
        for (block, result) in results {
            if block != damaged {
                assert_eq!((block, result), (block, Ok(1)), "{damaged} is damaged");
                continue;
            }
            let why = result.expect_err("its record is damaged");
            let what = format!("block {block}: has version 0, and damaged redo leads it to version 1: ");
            assert!(why.starts_with(&what), "{why}");
            assert!(why.contains("redo/n1.0: redo stream of node 1 is damaged at LSN"), "{why}");
        }
    }
}

#[test]
fn damage_in_the_stream_of_a_survivor_is_not_taken_for_its_end() {
    let (_directory, files) = files();
    damaged_stream(&files, &[3]);
    let living = files.redo.living(&[(NodeId(1), Incarnation(11))]).expect("streams");
    assert_eq!(living.len(), 1);
    let mut results = Vec::new();
    let (blocks, never) = ([2, 3, 4].map(BlockId), AtomicBool::new(false));
    files.redo.replay(blocks, &[], &living, &files.group, &never, |_, result| results.push(result));
    let found: Vec<_> = results.iter().map(|result| result.as_ref().map_or(0, |version| version.0)).collect();
    assert_eq!(found, [1, 0, 1]);
    let why = results[1].as_ref().expect_err("its record is damaged");
    assert!(why.starts_with("block 3: has version 0, and damaged redo leads it to version 1: "), "{why}");
}

#[test]
fn damage_of_batches_in_a_row_in_the_last_segment_stops_the_scan_and_every_block() {
    let (_directory, files) = files();
    damaged_stream(&files, &[15, 16]);
    let last = IN_ORDER - 1;
    let mut dead = files.dead();
    let error = files.redo.scan(&mut dead[0]).expect_err("no footer names the blocks").to_string();
    assert!(error.contains("redo/n1.0: redo stream of node 1 is damaged at LSN"), "{error}");
    let results = files.replay(&[0, last], &dead);
    for result in results.values() {
        let why = result.as_ref().expect_err("any block may have records there");
        assert!(why.contains("damaged redo may lead it further"), "{why}");
    }
    // A stream that disappears before its records are read is not taken for an empty one.
    fs::remove_file(files.root.join("redo/n1.0")).expect("it is removed");
    let why = files.replay(&[0], &dead)[&0].clone().expect_err("the records cannot be read");
    assert!(why.contains("redo/n1.0") && why.contains("No such file"), "{why}");
}

#[test]
fn a_recovery_that_was_cancelled_is_repeated_with_the_same_result() {
    let (_directory, files) = files();
    let node = files.node(1, 11, 2000);
    let mut blocks: Vec<_> = (0..BLOCKS).map(|block| files.block(block)).collect();
    for number in 1..4 {
        blocks.iter_mut().for_each(|block| node.change(block, |user| user[number] = block_byte(number)));
    }
    node.flush(&blocks[blocks.len() - 1]);
    drop(node);
    let dead = files.dead();
    let (cancel, mut reported) = (AtomicBool::new(false), 0);
    let all = || (0..BLOCKS).map(BlockId);
    files.redo.replay(all(), &dead, &[], &files.group, &cancel, |_, result| {
        assert_eq!(result.map(|version| version.0), Ok(3));
        cancel.store(true, Relaxed);
        reported += 1;
    });
    assert!((1..BLOCKS).contains(&reported), "{reported}");
    assert_eq!(files.block(BLOCKS - 1).version().0, 0);
    let results = files.replay(&(0..BLOCKS).collect::<Vec<_>>(), &dead);
    assert!(results.values().all(|result| *result == Ok(3)));
    for block in blocks {
        assert_eq!(files.block(block.block.0).user(), block.user());
    }
}

fn block_byte(number: usize) -> u8 {
    number as u8 + 1
}

#[test]
fn files_that_are_no_streams_of_this_cluster_are_refused_by_name() {
    let (directory, files) = files();
    drop(files.node(1, 11, 16));
    let path = directory.path().join("redo/n1.0");
    let refused = |redo: &RedoFiles| redo.unfinished(&[]).expect_err("refused").to_string();
    let other = RedoFiles::new(directory.path().join("redo"), CLUSTER + 1);
    assert!(refused(&other).contains("redo/n1.0: redo stream of node 1 of cluster"), "{}", refused(&other));
    let good = fs::read(&path).expect("it is read");
    for (change, expected) in [
        (
            (|bytes| change_format(bytes, 3)) as fn(&mut Vec<u8>),
            "it has version 3, this program reads version 2",
        ),
        (|bytes| change_format(bytes, 1), "end the cluster with the version of plexus that wrote it"),
        (|bytes| bytes.truncate(9 * BLOCK_BYTES), "a segment is missing: 36864 bytes of"),
        (|bytes| bytes[..2 * BLOCK_BYTES].fill(0), "restore the stream from a copy"),
    ] {
        let mut bad = good.clone();
        change(&mut bad);
        fs::write(&path, &bad).expect("it is written");
        let error = refused(&files.redo);
        assert!(error.contains("redo/n1.0: redo stream") && error.contains(expected), "{error}");
        assert_eq!(fs::read(&path).expect("it is read"), bad, "nothing was changed");
    }
    fs::write(&path, good).expect("it is written");
    // A file of a creation that was interrupted is no stream yet.
    fs::write(directory.path().join("redo/n1.1.new"), [0; 100]).expect("it is written");
    assert_eq!(files.dead().len(), 1);
    let gone = RedoFiles::new(directory.path().join("gone"), CLUSTER);
    assert!(refused(&gone).contains("gone: the directory of the redo streams cannot be read"));
}

/// Gives both headers another format.
fn change_format(bytes: &mut [u8], format: u8) {
    for header in bytes[..2 * BLOCK_BYTES].chunks_mut(BLOCK_BYTES).filter(|header| header[0] != 0) {
        header[8] = format;
        plexus_base::wire::seal(header, 12);
    }
}

#[test]
fn a_node_whose_streams_all_wait_for_recovery_says_so() {
    let (_directory, files) = files();
    for incarnation in 1..=u64::from(PLACES) {
        let node = files.node(1, incarnation, 16);
        changed(&node, &mut files.block(incarnation), 1);
    }
    let geometry = Geometry::new(4 * PAGE, 2).expect("segments");
    let open = |incarnation| {
        files
            .redo
            .prepare(NodeId(1), "n1", Incarnation(incarnation), geometry)
            .and_then(|stream| stream.open(drop))
    };
    let error = open(99).err().expect("no place").to_string();
    let says = "n1 has 8 redo streams, and each waits for recovery: start the other nodes";
    assert!(error.contains(says), "{error}");
    let dead = files.dead();
    files.redo.close(&dead[3]).expect("it closes");
    // A clock that went back gives a lower incarnation than the one of the closed stream.
    assert!(open(2).is_err());
    open(99).expect("a closed stream");
}

#[test]
fn a_stream_in_which_nothing_was_written_is_used_again_and_not_another() {
    let (directory, files) = files();
    let streams = || fs::read_dir(directory.path().join("redo")).expect("streams").count();
    for incarnation in 1..=20 {
        drop(files.node(1, incarnation, 16));
        assert_eq!(streams(), 1);
    }
    let node = files.node(1, 21, 16);
    changed(&node, &mut files.block(3), 1);
    drop(node);
    // Its change waits for recovery. Streams of other nodes and of later incarnations stay.
    for (number, incarnation) in [(1, 22), (2, 23), (1, 21)] {
        drop(files.node(number, incarnation, 16));
    }
    assert_eq!((streams(), files.dead().len()), (4, 4));
    assert_eq!(files.dead()[0].file().header.incarnation, Incarnation(21));
}
