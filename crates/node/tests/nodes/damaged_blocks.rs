//! A damaged block is refused by name each time; every other block can be read, and the disk stays
//! unchanged.

use std::{fs, os::unix::fs::FileExt};

use plexus_admin::{config::Config, control::Control, create, status::Stage};
use plexus_base::BlockId;
use plexus_cache::{BlockChange, CacheError};
use plexus_disks::DATA_START;
use plexus_fabric::RailKind;
use plexus_node::Node;
use serde_json::json;

const BLOCK: u64 = 4096;

/// Ends the node, which has served until now, as `plexus down` does.
fn end(config: &Config, node: Node) {
    assert_eq!(node.lifecycle().stage(), (Stage::Running, None));
    let mut control = Control::connect(&config.dir, "n1").unwrap();
    for (command, args) in
        [("quiesce", json!({})), ("handback", json!({})), ("exit", json!({ "clean": true }))]
    {
        control.call(command, args, |_| ()).unwrap();
    }
    node.run_until_stopped().unwrap();
}

#[test]
fn each_kind_of_damage_is_named_and_nothing_else_suffers() {
    let directory = tempfile::tempdir().unwrap();
    let config = crate::cluster::config(directory.path(), 1, RailKind::Shm, 4_000);
    create::create(&config).unwrap();
    let node = crate::cluster::start(&config, "n1");
    let mut session = node.runtime().cache().session();
    for block in 0..10 {
        let mut change = session.change(BlockId(block)).unwrap();
        let all = 0..change.len();
        change.bytes_mut(all).fill(block as u8 + 1);
        change.commit();
    }
    drop(session);
    end(&config, node);

    let disk = fs::OpenOptions::new().read(true).write(true).open(&config.disks[0]).unwrap();
    let place = |block: u64| DATA_START + block * BLOCK;
    let mut sixth = vec![0; BLOCK as usize];
    disk.read_exact_at(&mut sixth, place(6)).unwrap();
    disk.write_all_at(&[0xff], place(3) + 1000).unwrap();
    disk.write_all_at(&[0; 2048], place(4) + 2048).unwrap();
    disk.write_all_at(&sixth, place(5)).unwrap();
    disk.write_all_at(&[0xee; BLOCK as usize], place(20)).unwrap();
    // The label in front of the blocks tells of each start.
    let blocks = || fs::read(&config.disks[0]).unwrap().split_off(DATA_START as usize);
    let before = blocks();

    let node = crate::cluster::start(&config, "n1");
    let mut session = node.runtime().cache().session();
    let damaged = [
        (3, "block 3 is damaged: checksum"),
        (4, "block 4 is torn: it starts as version 1 and ends as version 0"),
        (5, "block 5 holds the page of block 6: a misdirected write"),
        (20, "block 20 is not a page: it starts with [ee, ee, ee, ee]"),
    ];
    for _ in 0..2 {
        for (block, what) in damaged {
            let read = session.read(BlockId(block)).map(drop).unwrap_err();
            let change = session.change(BlockId(block)).map(drop).unwrap_err();
            for error in [read, change] {
                let CacheError::Damaged(line) = error else { panic!("{error}") };
                assert!(line.contains(what) && line.contains("disks/0, byte "), "{line}");
            }
        }
        for block in [0, 1, 2, 6, 7, 8, 9] {
            let page = session.read(BlockId(block)).unwrap();
            assert!(page.iter().all(|byte| *byte == block as u8 + 1), "block {block}");
        }
        assert!(session.read(BlockId(21)).unwrap().iter().all(|byte| *byte == 0), "never written");
    }
    drop(session);
    end(&config, node);
    assert!(before == blocks(), "the disk was written to");
}
