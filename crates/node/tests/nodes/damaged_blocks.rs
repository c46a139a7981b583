//! A block that is not what was written is refused, by name, each time; every other one is there, and the disk is left as
//! it is.

use std::{fs, os::unix::fs::FileExt};

use plexus_base::{BlockId, Waiting};
use plexus_cache::CacheError;
use plexus_disks::{BlockSize, DATA_START};
use plexus_fabric::RailKind;
use plexus_node::{
    Node,
    config::{Config, Interconnect, Membership, NodeConfig, this_host},
    control::Control,
    create,
    layout::ClusterDir,
    lifecycle::Stage,
};
use serde_json::json;

const BLOCK: u64 = 4096;

fn config(root: &std::path::Path) -> Config {
    let dir = ClusterDir::new(root.join("c"));
    let process = std::process::id();
    let node = NodeConfig {
        name: "n1".into(),
        host: this_host(),
        address: ([127, (process >> 8) as u8, process as u8, 250], 7400).into(),
        addresses: Vec::new(),
        rails: vec![RailKind::Shm],
        cores: Vec::new(),
        metrics: None,
        fence: Vec::new(),
    };
    Config {
        name: "c".into(),
        id: create::new_id().unwrap(),
        workers: 1,
        waiting: Waiting::Event,
        block_size: BlockSize::from_kib(4).unwrap(),
        cache_mib: 1,
        program_window_mib: plexus_node::config::PROGRAM_WINDOW_MIB,
        checkpoint_seconds: 60,
        interconnect: Interconnect::default(),
        // However loaded the machine is, nobody is put out who lives.
        membership: Membership { lease_ms: Some(4_000), evict_ms: Some(4_000), ..Membership::default() },
        voting: create::voting_files(&dir, std::slice::from_ref(&node)).unwrap(),
        blocks: 64,
        disks: vec![dir.disks().join("0")],
        nodes: [node].into_iter().collect(),
        dir,
    }
}

fn start(config: &Config) -> Node {
    Node::start(config.clone(), "n1", |_| Vec::new(), |why| eprintln!("{why}")).unwrap()
}

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
    let config = config(directory.path());
    create::create(&config).unwrap();
    let node = start(&config);
    let mut session = node.body().cache().session();
    for block in 0..10 {
        session.change(BlockId(block)).unwrap().fill(block as u8 + 1);
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
    let before = fs::read(&config.disks[0]).unwrap();

    let node = start(&config);
    let mut session = node.body().cache().session();
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
    assert!(before == fs::read(&config.disks[0]).unwrap(), "the disk was written to");
}
