//! A cluster without a cache: a disk group, the redo files, and nodes that change blocks as a cache
//! would.

use std::{collections::BTreeMap, path::PathBuf, sync::atomic::AtomicBool};

use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{BlockSize, Buffer, Group, GroupId, Page, PageType, Patch, Shape, Version, Writer};
use plexus_redo::{
    recovery::{DeadStream, RedoFiles},
    stream::{
        driver::RedoStream,
        protocol::{Appended, Geometry, Group as RedoGroup, PAGE, Record},
    },
};

pub(crate) const CLUSTER: u128 = 5;
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The files of a cluster.
pub(crate) struct Files {
    pub(crate) root: PathBuf,
    pub(crate) redo: RedoFiles,
    pub(crate) group: Group,
}

impl Files {
    /// Creates the files in an empty directory.
    pub(crate) fn create(root: PathBuf, blocks: u64) -> Self {
        std::fs::create_dir(root.join("redo")).expect("a directory");
        Group::create(&[root.join("disk")], &shape(blocks)).expect("a group");
        Self::open(root, blocks)
    }

    /// Opens the files of [`Files::create`].
    pub(crate) fn open(root: PathBuf, blocks: u64) -> Self {
        let group = Group::open(&[root.join("disk")], &shape(blocks)).expect("a group");
        Self { redo: RedoFiles::new(root.join("redo"), CLUSTER), group, root }
    }

    /// Starts a node with small segments.
    pub(crate) fn node(&self, node: u8, incarnation: u64, pages: u64) -> TestNode {
        let (node, incarnation) = (NodeId(node), Incarnation(incarnation));
        let geometry = Geometry::new(pages * PAGE, 4).expect("segments");
        let name = format!("n{}", node.0);
        let stream = self
            .redo
            .prepare(node, &name, incarnation, geometry)
            .and_then(|stream| stream.open(drop))
            .expect("a stream");
        TestNode { writer: Writer { node, incarnation }, stream }
    }

    /// Returns the streams of the dead.
    pub(crate) fn dead(&self) -> Vec<DeadStream> {
        self.redo.unfinished(&[]).expect("streams")
    }

    /// Replays blocks over the streams of the dead.
    pub(crate) fn replay(&self, blocks: &[u64], dead: &[DeadStream]) -> BTreeMap<u64, Result<u64, String>> {
        let mut results = BTreeMap::new();
        let blocks = blocks.iter().copied().map(BlockId);
        self.redo.replay(blocks, dead, &[], &self.group, &AtomicBool::new(false), |block, result| {
            assert!(results.insert(block.0, result.map(|version| version.0)).is_none(), "{block} once");
        });
        results
    }

    /// Reads a block, which must be a sound page.
    pub(crate) fn block(&self, block: u64) -> TestBlock {
        let mut page = Buffer::zeroed(BLOCK_BYTES);
        self.group.read(BlockId(block), &mut page).expect("it is read");
        Page::of(&page[..]).verify(BlockId(block)).expect("a sound page");
        TestBlock { block: BlockId(block), page, is_owed: false, appended: None }
    }
}

fn shape(blocks: u64) -> Shape {
    Shape { id: GroupId(CLUSTER), block_size: BlockSize::from_kib(4).expect("a size"), blocks }
}

/// A block in the memory of the node that may change it.
#[derive(Clone)]
pub(crate) struct TestBlock {
    pub(crate) block: BlockId,
    pub(crate) page: Buffer,
    is_owed: bool,
    pub(crate) appended: Option<Appended>,
}

impl TestBlock {
    pub(crate) fn version(&self) -> Version {
        Page::of(&self.page[..]).version()
    }

    /// Returns the user's bytes.
    pub(crate) fn user(&self) -> &[u8] {
        &self.page[plexus_disks::HEADER..BLOCK_BYTES - plexus_disks::TRAILER]
    }

    /// Writes the block to disk, without a sync.
    pub(crate) fn write(&mut self, group: &Group) {
        Page::of(&mut self.page[..]).seal();
        group.write(self.block, &self.page).expect("it is written");
        self.is_owed = false;
    }
}

/// A running node, which ends like a killed one when it is dropped.
pub(crate) struct TestNode {
    pub(crate) writer: Writer,
    pub(crate) stream: RedoStream,
}

impl TestNode {
    /// Changes a block: an image first if the block is not owed, then the change.
    pub(crate) fn change(&self, block: &mut TestBlock, change: impl FnOnce(&mut [u8])) {
        let before = block.page.clone();
        let was = block.version();
        let mut page = Page::of(&mut block.page[..]);
        change(page.user_mut());
        let mut patch = Patch::default();
        let before_page = Page::of(&before[..]);
        let (old, new) = (before_page.user().chunks(8), page.user().chunks(8));
        for (place, (_, new)) in (0..).zip(old.zip(new)).filter(|(_, (old, new))| old != new) {
            patch.range(place * 8, new);
        }
        page.stamp(block.block, self.writer, Version(was.0 + 1));
        let mut group = RedoGroup::default();
        if !std::mem::replace(&mut block.is_owed, true) {
            group.push(&Record::image(block.block, was, &before));
        }
        group.push(&Record::change(block.block, was, Version(was.0 + 1), patch.encoded()));
        block.appended = Some(self.stream.append(&group).expect("a group"));
    }

    /// Makes a new page of a block that had a version, and logs its header.
    pub(crate) fn create(&self, block: &mut TestBlock, page_type: PageType, last: Version) {
        let version = Version(last.0 + 1);
        Page::of(&mut block.page[..]).blank(block.block, self.writer, version, page_type);
        let mut group = RedoGroup::default();
        group.push(&Record::image(block.block, version, &block.page[..plexus_disks::HEADER]));
        block.is_owed = true;
        block.appended = Some(self.stream.append(&group).expect("a group"));
    }

    /// Waits until the changes of a block are durable.
    pub(crate) fn flush(&self, block: &TestBlock) {
        self.stream.wait_durable(block.appended.expect("changed").end).expect("durable");
    }
}
