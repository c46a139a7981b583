//! What a user can do to a disk group, and what it says.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use plexus_base::BlockId;
use plexus_disks::{BlockSize, Buffer, DATA_START, DiskError, Group, GroupId, Shape};

struct Made {
    directory: tempfile::TempDir,
    paths: Vec<PathBuf>,
    shape: Shape,
}

fn made(disks: usize, kib: u32, blocks: u64) -> Made {
    let directory = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..disks).map(|disk| directory.path().join(format!("disk{disk}"))).collect();
    let shape =
        Shape { id: GroupId::random().unwrap(), block_size: BlockSize::from_kib(kib).unwrap(), blocks };
    Group::create(&paths, &shape).unwrap();
    Made { directory, paths, shape }
}

fn refused(paths: &[PathBuf], shape: &Shape) -> String {
    match Group::open(paths, shape) {
        Ok(_) => panic!("opened"),
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains('\n'), "one line: {line}");
            line
        }
    }
}

#[test]
fn every_block_has_a_place_of_its_own() {
    for (disks, kib) in [(1, 4), (2, 8), (3, 16)] {
        let made = made(disks, kib, 700);
        let group = Group::open(&made.paths, &made.shape).unwrap();
        let mut buffer = Buffer::zeroed(made.shape.block_size.bytes());
        for block in 0..700 {
            buffer.fill((block % 251) as u8 + 1);
            group.write(BlockId(block), &buffer).unwrap();
        }
        group.sync().unwrap();
        let group = Group::open(&made.paths, &made.shape).unwrap();
        for block in 0..700 {
            group.read(BlockId(block), &mut buffer).unwrap();
            assert!(buffer.iter().all(|byte| *byte == (block % 251) as u8 + 1), "block {block}");
        }
        // Memory that is not aligned works as well.
        let mut odd = vec![0; made.shape.block_size.bytes() + 1];
        group.read(BlockId(3), &mut odd[1..]).unwrap();
        assert_eq!(odd[1], 4);
        assert!(matches!(group.read(BlockId(700), &mut buffer), Err(DiskError::OutOfRange { .. })));
    }
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_of_a_failure() {
    let made = made(1, 4, 10);
    let before = fs::read(&made.paths[0]).unwrap();
    let paths = [made.directory.path().join("new"), made.paths[0].clone()];
    let error = Group::create(&paths, &made.shape).unwrap_err().to_string();
    assert!(error.contains("exists already and will not be overwritten"), "{error}");
    assert!(!paths[0].exists());
    assert_eq!(fs::read(&made.paths[0]).unwrap(), before);
}

#[test]
fn too_little_room_is_said_before_anything_is_made() {
    let made = made(1, 4, 10);
    let paths = [made.directory.path().join("huge")];
    let error = Group::create(&paths, &Shape { blocks: 1 << 40, ..made.shape }).unwrap_err().to_string();
    assert!(error.contains("4294967297 MiB needed for the disk group"), "{error}");
    assert!(!paths[0].exists());
}

#[test]
fn only_the_disks_of_the_configuration_are_taken() {
    let (good, other) = (made(2, 4, 700), made(2, 4, 700));
    let (shape, paths) = (good.shape, good.paths.clone());
    let swapped: Vec<_> = paths.iter().rev().cloned().collect();
    let foreign = vec![paths[0].clone(), other.paths[1].clone()];
    let missing = vec![paths[0].clone(), good.directory.path().join("nowhere")];
    let eight = BlockSize::from_kib(8).unwrap();
    let cases = [
        (refused(&swapped, &shape), "is disk 1 of 2 of its group but stands at place 0"),
        (refused(&foreign, &shape), "belongs to disk group"),
        (refused(&missing, &shape), "disk 1 of the group is missing"),
        (refused(&paths[..1], &shape), "was made with disks 2, the configuration says 1"),
        (refused(&paths, &Shape { block_size: eight, ..shape }), "a block size in bytes of 4096"),
        (refused(&paths, &Shape { blocks: 701, ..shape }), "was made with blocks 700"),
    ];
    for (line, part) in cases {
        assert!(line.contains(part), "{line}");
    }
    assert!(Group::open(&paths, &shape).is_ok());
}

#[test]
fn damage_to_a_disk_is_named() {
    let made = made(1, 4, 700);
    let file = OpenOptions::new().write(true).open(&made.paths[0]).unwrap();
    file.write_all_at(&[0xff; 100], 0).unwrap();
    assert!(Group::open(&made.paths, &made.shape).is_ok(), "the second copy of the label serves");
    file.set_len(DATA_START + 5000).unwrap();
    assert!(refused(&made.paths, &made.shape).contains("truncated: 1053576 bytes of 4194304"));
    file.set_len(4096).unwrap();
    assert!(refused(&made.paths, &made.shape).contains("is not a Plexus disk"));
    file.set_len(100).unwrap();
    assert!(refused(&made.paths, &made.shape).contains("malformed label of a disk: it is cut off"));
    file.set_len(0).unwrap();
    assert!(refused(&made.paths, &made.shape).contains("is empty"));
}

#[test]
fn nothing_is_written_that_the_guard_does_not_allow() {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    };
    let Made { directory: _directory, paths, shape } = made(1, 4, 64);
    let group = Group::open(&paths, &shape).unwrap();
    let may = Arc::new(AtomicBool::new(true));
    group.guard(Box::new({
        let may = may.clone();
        move || may.load(Relaxed)
    }));
    let (one, two) = (vec![1; shape.block_size.bytes()], vec![2; shape.block_size.bytes()]);
    group.write(BlockId(7), &one).unwrap();
    may.store(false, Relaxed);
    let refused = group.write(BlockId(7), &two).unwrap_err().to_string();
    assert!(refused.contains("no longer a member of the cluster"), "{refused}");
    let mut found = vec![0; shape.block_size.bytes()];
    group.read(BlockId(7), &mut found).unwrap();
    assert_eq!(found, one);
}
