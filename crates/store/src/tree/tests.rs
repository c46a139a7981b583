//! Trees over blocks in memory, against a sorted map.

use std::{
    cell::{Cell, RefCell, RefMut},
    collections::BTreeMap,
    future::Future,
    ops::{Deref, Range},
    pin::pin,
    task::{Context, Poll, Waker},
};

use plexus_cache::{BlockRead, protocol::Mode};
use plexus_disks::Version;
use plexus_sim::Random;

use super::{check::check, *};

/// The user bytes of a block.
const USER: usize = 296;

/// Blocks in memory, for one task.
struct TestBlocks {
    pages: Vec<RefCell<Vec<u8>>>,
    next: Cell<u64>,
    /// The blocks of pages that were removed.
    free: RefCell<Vec<BlockId>>,
    /// If set, each third new page of a task that has others finds no room; how often that was.
    refused: Cell<Option<u32>>,
    /// If set, each 50th change of an entry finds its leaf contended; how many there were.
    contended: Cell<Option<u32>>,
    /// The pages that scans have asked for, each with the number of those that they had read, and
    /// those that they have read.
    asked: RefCell<Vec<(BlockId, usize)>>,
    scanned: RefCell<Vec<BlockId>>,
}

struct TestPage<'a> {
    page: RefMut<'a, Vec<u8>>,
    /// The page to put back if the change is dropped.
    before: Option<Vec<u8>>,
}

impl Deref for TestPage<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.page
    }
}

impl BlockRead for TestPage<'_> {
    fn version(&self) -> Version {
        Version(1)
    }
    fn page_type(&self) -> Option<PageType> {
        Some(TREE_PAGE)
    }
}

impl BlockChange for TestPage<'_> {
    fn granted(&self) -> u64 {
        u64::MAX
    }

    fn waited(&self) -> bool {
        true
    }

    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.page[range]
    }
}

impl Drop for TestPage<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            *self.page = before;
        }
    }
}

impl TestBlocks {
    fn new(blocks: usize) -> Self {
        Self {
            pages: vec![RefCell::new(vec![0; USER]); blocks],
            next: Cell::new(0),
            free: RefCell::default(),
            refused: Cell::new(None),
            contended: Cell::new(None),
            asked: RefCell::default(),
            scanned: RefCell::default(),
        }
    }

    fn lend(&self, block: BlockId) -> Result<TestPage<'_>, CacheError> {
        let page = usize::try_from(block.0).ok().and_then(|at| self.pages.get(at));
        let page = page.ok_or_else(|| CacheError::Damaged(format!("there is no {block}")))?;
        Ok(TestPage { page: page.borrow_mut(), before: None })
    }

    fn checked(&self, root: BlockId) -> check::CheckedTree {
        check(root, |block| self.pages[block.0 as usize].borrow().clone()).unwrap()
    }
}

impl Blocks for TestBlocks {
    type Read<'a> = TestPage<'a>;
    type Change<'a> = TestPage<'a>;
    type Alone<'a> = ();

    fn blocks(&self) -> u64 {
        self.pages.len() as u64
    }
    async fn read(&self, block: BlockId) -> Result<TestPage<'_>, CacheError> {
        self.lend(block)
    }
    async fn read_consistent(&self, block: BlockId) -> Result<TestPage<'_>, CacheError> {
        self.lend(block)
    }
    async fn read_once(&self, block: BlockId) -> Result<TestPage<'_>, CacheError> {
        self.scanned.borrow_mut().push(block);
        self.lend(block)
    }
    fn prefetch(&self, blocks: &[BlockId], _: Mode) {
        let scanned = self.scanned.borrow().len();
        self.asked.borrow_mut().extend(blocks.iter().map(|block| (*block, scanned)));
    }
    fn commit(&self, mut changes: Vec<TestPage<'_>>) -> Committed {
        changes.iter_mut().for_each(|change| change.before = None);
        Committed(1)
    }
    fn commit_in_order(&self, changes: Vec<TestPage<'_>>) -> Committed {
        self.commit(changes)
    }
    async fn durable(&self, _: Committed) -> Result<(), CacheError> {
        Ok(())
    }
    async fn reserve(&self, _: u32) -> Result<(), CacheError> {
        Ok(())
    }
    fn try_reserve(&self, _: u32) -> Result<bool, CacheError> {
        Ok(true)
    }
    fn release(&self, _: u32) {}
    async fn latch(&self, block: BlockId, _: bool) -> Result<TestPage<'_>, CacheError> {
        let mut page = self.lend(block)?;
        page.before = Some(page.to_vec());
        Ok(page)
    }
    async fn latch_new(&self, block: BlockId, _: PageType, _: Version) -> Result<TestPage<'_>, CacheError> {
        let has_others = || self.pages.iter().any(|page| page.try_borrow().is_err());
        if let Some(refused) = self.refused.get()
            && has_others()
        {
            self.refused.set(Some(refused + 1));
            if refused.is_multiple_of(3) {
                return Err(CacheError::NoFrame(block));
            }
        }
        let mut page = self.lend(block)?;
        page.page.fill(0);
        page.before = Some(page.to_vec());
        Ok(page)
    }
    async fn try_latch(&self, block: BlockId) -> Result<Option<TestPage<'_>>, CacheError> {
        self.latch(block, false).await.map(Some)
    }
    async fn alone(&self) {}
}

impl Space for TestBlocks {
    async fn take(&self) -> Result<FreeBlock, StoreError> {
        if let Some(block) = self.free.borrow_mut().pop() {
            return Ok(FreeBlock { block, last: Version(1) });
        }
        let block = self.next.replace(self.next.get() + 1);
        match block < self.blocks() {
            true => Ok(FreeBlock { block: BlockId(block), last: Version(0) }),
            false => Err(StoreError::Full),
        }
    }
    fn give_back(&self, free: FreeBlock) {
        assert_eq!(free.block.0 + 1, self.next.replace(free.block.0), "the last one is given back");
    }
    fn is_contended(&self, _: BlockId, _: u64) -> bool {
        self.contended.get().is_some_and(|count| {
            self.contended.set(Some(count + 1));
            count.is_multiple_of(50)
        })
    }
}

/// Runs a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}

fn new_tree(blocks: &TestBlocks) -> Tree<'_, TestBlocks, TestBlocks> {
    let root = now(blocks.take()).unwrap();
    now(Tree::create(blocks, blocks, root, 7)).unwrap().0
}

#[test]
fn a_page_for_which_there_is_no_room_is_divided_later() {
    let blocks = TestBlocks::new(4000);
    let tree = new_tree(&blocks);
    blocks.refused.set(Some(0));
    for number in 0u32..2000 {
        now(tree.put(&number.to_be_bytes(), &[7; 20])).unwrap();
    }
    assert!(blocks.refused.get().unwrap() > 200, "{:?}", blocks.refused);
    blocks.checked(tree.root);
    for number in 0u32..2000 {
        assert_eq!(now(tree.get(&number.to_be_bytes())).unwrap().unwrap(), [7; 20]);
    }
}

/// Returns a key: some are short and meet often, some have long common parts.
fn key(random: &mut Random) -> Vec<u8> {
    let number = random.below(200);
    match random.below(3) {
        0 => number.to_be_bytes().to_vec(),
        1 => format!("key {number}").into_bytes(),
        _ => [&b"the same for all"[..], &(number as u16).to_be_bytes()].concat(),
    }
}

fn scanned(
    tree: &Tree<'_, TestBlocks, TestBlocks>,
    from: &[u8],
    to: Option<&[u8]>,
    most: usize,
) -> Vec<OwnedEntry> {
    let (mut all, mut place) = (Vec::new(), Some(ScanPlace::from(from)));
    while let Some(at) = place {
        let before = all.len();
        let take = &mut |key: &[u8], value: &[u8]| all.push((key.to_vec(), value.to_vec()));
        place = now(tree.scan_below(&at, to, most, take)).unwrap();
        assert!(all.len() - before <= most);
    }
    all
}

fn scanned_back(
    tree: &Tree<'_, TestBlocks, TestBlocks>,
    below: Option<&[u8]>,
    most: usize,
) -> Vec<OwnedEntry> {
    let (mut all, mut below) = (Vec::new(), below.map(<[u8]>::to_vec));
    loop {
        let before = all.len();
        let take = &mut |key: &[u8], value: &[u8]| all.push((key.to_vec(), value.to_vec()));
        let next = now(tree.scan_back(below.as_deref(), most, take)).unwrap();
        assert!(all.len() - before <= most);
        below = match next {
            Some(next) => Some(next),
            None => return all,
        };
    }
}

/// Removes a range of keys, and then the pages that have none. Returns how many these are.
fn merge_all(
    blocks: &TestBlocks,
    tree: &Tree<'_, TestBlocks, TestBlocks>,
    model: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    random: &mut Random,
) -> usize {
    let (one, other) = (key(random), key(random));
    let removed: Vec<Vec<u8>> =
        model.range(one.clone().min(other.clone())..one.max(other)).map(|(key, _)| key.clone()).collect();
    removed.iter().for_each(|key| _ = model.remove(key));
    let (mut merged, mut place) = (0, Some(ScanPlace::from(&[])));
    while let Some(at) = place {
        let mut act = |key: &[u8], _: &[u8]| match removed.iter().any(|removed| removed == key) {
            true => EntryChange::Remove,
            false => EntryChange::Keep,
        };
        let leaf = now(tree.visit_leaf(&at, &mut act)).unwrap();
        if leaf.is_empty
            && let Some((block, _)) = now(tree.merge(0, &leaf.low)).unwrap()
        {
            blocks.free.borrow_mut().push(block);
            merged += 1;
        }
        place = leaf.next;
    }
    let inner = now(tree.merge_inner()).unwrap();
    blocks.free.borrow_mut().extend(inner.iter().map(|(block, _)| *block));
    merged + inner.len()
}

#[test]
fn a_tree_is_a_sorted_map() {
    let mut all_removed = 0;
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let blocks = TestBlocks::new(2000);
        blocks.contended.set((seed % 2 == 0).then_some(1));
        let tree = new_tree(&blocks);
        let mut model = BTreeMap::new();
        let (sets, longest) = (random.between(30, 95), random.between(0, 20));
        let mut removed = 0;
        for _ in 0..random.between(50, 600) {
            let key = key(&mut random);
            if random.percent(sets) {
                let value: Vec<u8> = (0..random.below(longest + 1)).map(|_| random.bits() as u8).collect();
                now(tree.put(&key, &value)).unwrap();
                model.insert(key, value);
            } else if random.percent(60) {
                assert_eq!(now(tree.remove(&key)).unwrap().0, model.remove(&key).is_some(), "seed {seed}");
            } else {
                assert_eq!(now(tree.get(&key)).unwrap().as_ref(), model.get(&key), "seed {seed}");
            }
            if random.percent(2) {
                removed += merge_all(&blocks, &tree, &mut model, &mut random);
            }
        }
        all_removed += removed;
        let checked = blocks.checked(tree.root);
        assert!(checked.entries.iter().map(|(key, value)| (key, value)).eq(&model), "seed {seed}");
        assert_eq!(checked.untold, 0, "seed {seed}");
        let free = blocks.free.borrow().len();
        assert_eq!((checked.pages.len() + free) as u64, blocks.next.get(), "seed {seed}");
        for _ in 0..5 {
            let (from, most) = (key(&mut random), random.between(1, 9) as usize);
            let expected: Vec<_> =
                model.range(from.clone()..).map(|(key, value)| (key.clone(), value.clone())).collect();
            assert_eq!(scanned(&tree, &from, None, most), expected, "seed {seed}");
            let to = key(&mut random);
            let expected: Vec<_> = expected.into_iter().filter(|(key, _)| *key < to).collect();
            assert_eq!(scanned(&tree, &from, Some(&to), most), expected, "seed {seed}");
            let expected: Vec<_> =
                model.range(..from.clone()).rev().map(|(key, value)| (key.clone(), value.clone())).collect();
            assert_eq!(scanned_back(&tree, Some(&from), most), expected, "seed {seed}");
            let all: Vec<_> = checked.entries.iter().rev().cloned().collect();
            assert_eq!(scanned_back(&tree, None, most), all, "seed {seed}");
        }
    }
    assert!(all_removed > 500, "{all_removed}");
}

/// A task may be late to tell of the page that it has made.
#[test]
fn a_parent_is_not_told_of_a_page_that_was_removed() {
    let blocks = TestBlocks::new(2000);
    let tree = new_tree(&blocks);
    for number in 0..100u64 {
        now(tree.put(&number.to_be_bytes(), b"value")).unwrap();
    }
    let place = ScanPlace::from(&50u64.to_be_bytes());
    let leaf = now(tree.visit_leaf(&place, &mut |_, _| EntryChange::Remove)).unwrap();
    let block = now(tree.page_at(0, &leaf.low)).unwrap();
    assert_eq!(now(tree.merge(0, &leaf.low)).unwrap().unwrap().0, block);
    now(tree.tell_parent(NewSibling { level: 1, separator: leaf.low, block })).unwrap();
    blocks.checked(tree.root);
    assert_eq!(now(tree.get(&50u64.to_be_bytes())).unwrap(), None);
}

#[test]
fn pages_of_a_queue_are_used_again() {
    let blocks = TestBlocks::new(2000);
    let tree = new_tree(&blocks);
    for number in 0..20_000u64 {
        now(tree.put(&number.to_be_bytes(), b"value")).unwrap();
        if number % 100 == 99 {
            let mut place = Some(ScanPlace::from(&[]));
            while let Some(at) = place {
                let leaf = now(tree.visit_leaf(&at, &mut |key, _| match key {
                    key if key < &(number - 50).to_be_bytes()[..] => EntryChange::Remove,
                    _ => EntryChange::Keep,
                }))
                .unwrap();
                if leaf.is_empty
                    && let Some((block, _)) = now(tree.merge(0, &leaf.low)).unwrap()
                {
                    blocks.free.borrow_mut().push(block);
                }
                place = leaf.next;
            }
            let inner = now(tree.merge_inner()).unwrap();
            blocks.free.borrow_mut().extend(inner.iter().map(|(block, _)| *block));
        }
    }
    let checked = blocks.checked(tree.root);
    assert_eq!(checked.entries.len(), 51);
    assert!(blocks.next.get() < 100, "{}", blocks.next.get());
}

#[test]
fn entries_that_are_inserted_together_are_those_of_single_ones() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let blocks = TestBlocks::new(2000);
        let tree = new_tree(&blocks);
        let (mut model, mut together) = (BTreeMap::new(), 0);
        for _ in 0..random.between(5, 40) {
            let mut run: Vec<OwnedEntry> =
                (0..random.between(1, 30)).map(|number| (key(&mut random), vec![number as u8])).collect();
            if random.percent(80) {
                run.sort();
            }
            let mut at = 0;
            while at < run.len() {
                let (count, _) =
                    now(tree.insert_run(&run[at..], 0, |into, value| into.extend_from_slice(value))).unwrap();
                for (key, value) in &run[at..at + count] {
                    assert_eq!(model.insert(key.clone(), value.clone()), None, "seed {seed}");
                }
                (at, together) = (at + count, together + count);
                if count == 0 {
                    let (key, value) = run[at].clone();
                    now(tree.put(&key, &value)).unwrap();
                    model.insert(key, value);
                    at += 1;
                }
            }
        }
        let checked = blocks.checked(tree.root);
        assert!(checked.entries.iter().map(|(key, value)| (key, value)).eq(&model), "seed {seed}");
        assert!(together > 0, "seed {seed}");
    }
}

#[test]
fn keys_that_come_in_order_leave_full_pages() {
    let blocks = TestBlocks::new(2000);
    let tree = new_tree(&blocks);
    for number in 0..1000u64 {
        now(tree.put(&number.to_be_bytes(), b"value")).unwrap();
    }
    // An entry takes 8 + 5 + 6 bytes of the 240 - 18 of a page: ten fit beside a high key.
    let pages = blocks.checked(tree.root).pages.len();
    assert!(pages < 1000 / 10 * 6 / 5, "{pages} pages");
}

#[test]
fn a_scan_asks_for_each_page_once_and_before_it_needs_it() {
    let blocks = TestBlocks::new(2000);
    let tree = new_tree(&blocks);
    for number in 0..5000u64 {
        now(tree.put(&number.to_be_bytes(), b"value")).unwrap();
    }
    let ask = |to: Option<u64>| {
        blocks.asked.borrow_mut().clear();
        blocks.scanned.borrow_mut().clear();
        let to = to.map(u64::to_be_bytes);
        let count = scanned(&tree, &[], to.as_ref().map(<[u8; 8]>::as_slice), 1000).len();
        let (asked, scanned) = (blocks.asked.take(), blocks.scanned.take());
        let pages: Vec<BlockId> = asked.iter().map(|(page, _)| *page).collect();
        assert_eq!(pages, scanned[1..]);
        // The first of them is the second one of the scan.
        assert!(asked.iter().zip(1..).all(|((_, before), at)| *before <= at), "{asked:?}");
        (count, scanned.len(), asked.iter().zip(1..).map(|((_, before), at)| at - before).max())
    };
    assert_eq!(ask(None).0, 5000);
    // The pages of this tree have about ten children.
    assert!(ask(None).1 > 400 && ask(None).2 > Some(5), "{:?}", ask(None));
    // A short one does not ask for what is behind its end.
    for to in [5, 25, 100, 300] {
        assert_eq!(ask(Some(to)).0 as u64, to);
    }
}

#[test]
fn a_decision_is_made_while_no_other_task_changes_the_entry() {
    let blocks = TestBlocks::new(100);
    let tree = new_tree(&blocks);
    let add = |value: Option<&[u8]>| {
        let sum = value.map_or(0, |value| value[0]) + 1;
        (EntryChange::Set(vec![sum]), sum)
    };
    assert_eq!([(); 3].map(|()| now(tree.change(b"a", add)).unwrap().0), [1, 2, 3]);
    let keep = |value: Option<&[u8]>| (EntryChange::Keep, value.is_some());
    assert_eq!(now(tree.change(b"a", keep)).unwrap(), (true, Committed::default()));
    assert_eq!(now(tree.change(b"b", keep)).unwrap(), (false, Committed::default()));
    assert_eq!(now(tree.get(b"a")).unwrap(), Some(vec![3]));
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let blocks = TestBlocks::new(3);
    let tree = new_tree(&blocks);
    let most = most_bytes(USER);
    let error = now(tree.put(b"k", &vec![0; most])).unwrap_err().to_string();
    assert_eq!(error, format!("an entry of {} bytes is too long: at most {most} fit", most + 1));
    // The longest entries divide the root, and then find no block.
    let value = vec![7; most - 2];
    let full = (0u8..).find_map(|number| now(tree.put(&[number, 0], &value)).err());
    assert!(matches!(full, Some(StoreError::Full)));
    let checked = blocks.checked(tree.root);
    assert!(checked.entries.len() >= 4 && checked.entries.iter().all(|(_, found)| *found == value));
    assert!(now(tree.remove(&[0, 0])).unwrap().0);
}

/// Any bytes as a page are an error or a page, and no panic.
#[test]
fn damaged_pages_are_named() {
    let mut random = Random::new(9);
    let blocks = TestBlocks::new(300);
    let tree = new_tree(&blocks);
    for number in 0..400u16 {
        now(tree.put(&number.to_be_bytes(), b"v")).unwrap();
    }
    let (mut named, used) = (0, blocks.next.get());
    for _ in 0..3000 {
        let block = BlockId(random.below(used));
        let before = blocks.pages[block.0 as usize].borrow().clone();
        for _ in 0..random.between(1, 4) {
            let at = random.below(30) as usize;
            blocks.pages[block.0 as usize].borrow_mut()[at] = random.bits() as u8;
        }
        let key = (random.below(400) as u16).to_be_bytes();
        let results = [
            now(tree.get(&key)).err(),
            now(tree.scan(&ScanPlace::from(&key), 10)).err(),
            now(tree.scan_back(Some(&key), 10, &mut |_, _| {})).err(),
            now(tree.change(&key, |_| (EntryChange::Keep, ()))).err(),
        ];
        named += results.iter().flatten().filter(|why| matches!(why, StoreError::Damaged { .. })).count();
        *blocks.pages[block.0 as usize].borrow_mut() = before;
    }
    assert!(named > 100, "{named}");
}

/// Pages are unlike each other, so an estimate may be twice too large or too small.
#[test]
fn the_entries_between_two_keys_are_estimated() {
    let blocks = TestBlocks::new(3000);
    let tree = new_tree(&blocks);
    let mut random = Random::new(4);
    let mut numbers: Vec<u32> = (0..20_000).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, random.below(at as u64 + 1) as usize);
    }
    for number in &numbers {
        now(tree.put(&number.to_be_bytes(), b"value")).unwrap();
    }
    assert!((13_000..30_000).contains(&now(tree.entries_about()).unwrap()));
    for (from, to) in [(0, 20_000), (0, 100), (5000, 5500), (19_000, 20_000), (7000, 17_000), (42, 43)] {
        let (from_key, to_key) = (u32::to_be_bytes(from), u32::to_be_bytes(to));
        let estimated = now(tree.entries_between_about(&from_key, Some(&to_key))).unwrap();
        let exact = f64::from(to - from);
        let (least, most) = (exact / 2.0 - 30.0, exact * 2.0 + 30.0);
        assert!((least..most).contains(&estimated), "{from} to {to}: {estimated}");
    }
    let rest = now(tree.entries_between_about(&19_990u32.to_be_bytes(), None)).unwrap();
    assert!(rest < 70.0, "{rest}");
}
