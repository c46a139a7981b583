//! Maps and their changes.

use super::*;

/// Disks of these failure groups with so many slots.
fn disks(disks: &[(u8, u32)]) -> Vec<DiskEntry> {
    let disk = |(number, (failure_group, slots)): (u8, &(u8, u32))| {
        let (id, server) = (u128::from(number) + 1, NodeId(*failure_group));
        DiskEntry::new(&AddedDisk { id, server, failure_group: *failure_group, slots: *slots })
    };
    (0..).zip(disks).map(disk).collect()
}

/// Returns the map as the registry has it, with this version of all entries.
fn stored(map: &Map, version: u64) -> Map {
    let edits = map.edits(None);
    let entries = edits.iter().map(|(key, _, value)| (key.as_str(), version, &value.as_ref().unwrap()[..]));
    Map::decode(entries).unwrap().unwrap()
}

#[test]
fn every_chunk_has_copies_in_different_failure_groups_also_of_uneven_hosts() {
    let uneven = [(0, 170), (1, 170), (2, 44), (2, 44), (2, 44), (2, 44)];
    for all in [&[(0, 130), (1, 130)][..], &uneven, &[(0, 300), (1, 100), (2, 200)]] {
        let slots: u32 = all.iter().map(|(_, slots)| slots).sum();
        let chunks = slots / 2 - 5;
        let map = Map::new(64, chunks, 2, disks(all)).unwrap();
        let mut used = std::collections::BTreeSet::new();
        for chunk in (0..chunks).map(ChunkId) {
            let [one, other] = *map.copies(chunk).unwrap() else { panic!("{chunk:?}") };
            let group = |copy: Copy| map.disk(copy.disk).unwrap().failure_group;
            assert_ne!(group(one), group(other), "{chunk:?}");
            assert!(used.insert(one) && used.insert(other), "{chunk:?}: a slot twice");
        }
        let none = Map::new(64, slots / 2 + 1, 2, disks(all));
        assert!(matches!(none, Err(MapRefusal::NoRoom { .. })), "{none:?}");
    }
}

#[test]
fn three_copies_are_in_three_failure_groups_and_two_of_them_may_be_lost() {
    let all = disks(&[(0, 30), (1, 20), (2, 9), (2, 9), (3, 30)]);
    let map = stored(&Map::new(64, 20, 3, all).unwrap(), 4);
    let grown = stored(&map.with(&MapChange::GrowGroup(22)).unwrap(), 5);
    let stream = MapChange::Stream { name: "n3.0".into(), node: NodeId(2), chunks: 2 };
    let map = stored(&grown.with(&stream).unwrap(), 6);
    let chunks = (0..22).map(ChunkId).chain(map.stream("n3.0").unwrap());
    for chunk in chunks.clone() {
        let groups = map.copies(chunk).unwrap().iter().map(|copy| map.disk(copy.disk).unwrap().failure_group);
        assert_eq!(groups.collect::<std::collections::BTreeSet<_>>().len(), 3, "{chunk:?}");
    }
    assert_eq!(chunks.count(), 24);
    let two = map.with(&MapChange::Stale(vec![DiskNumber(0), DiskNumber(1)])).unwrap();
    let three = two.with(&MapChange::Stale(vec![DiskNumber(4)]));
    assert!(matches!(three, Err(MapRefusal::LastCopy { .. })), "{three:?}");
    // Each entry fits into a value of the registry.
    let large = Map::new(64, 6000, 3, disks(&[(0, 9000), (1, 9000), (2, 9000)])).unwrap();
    let grown = large.with(&MapChange::GrowGroup(8500)).unwrap();
    for map in [&large, &grown] {
        let lengths = map.edits(None).into_iter().map(|(_, _, value)| value.unwrap().len());
        assert!(lengths.max().unwrap() <= 65_536);
        let last = ChunkId(map.chunks() - 1);
        assert!(stored(map, 4).copies(last).is_some() && map.copies(last).is_some());
        assert!(map.copies(ChunkId(map.chunks())).is_none());
    }
    let fewer = Map::new(64, 1, 3, disks(&[(0, 9), (1, 9), (1, 9)]));
    assert_eq!(fewer, Err(MapRefusal::NoRoom { chunks: 1, copies: 3 }));
}

#[test]
fn a_stream_has_a_copy_on_the_disk_of_its_node() {
    let map = stored(&Map::new(64, 2, 2, disks(&[(0, 9), (1, 9), (2, 9)])).unwrap(), 4);
    let stream = MapChange::Stream { name: "n3.0".into(), node: NodeId(2), chunks: 3 };
    let next = stored(&map.with(&stream).unwrap(), 5);
    let chunks = next.stream("n3.0").unwrap();
    assert!(chunks.len() == 3 && chunks.iter().all(|chunk| next.slot(*chunk, DiskNumber(2)).is_some()));
    assert_eq!(next.with(&stream), Err(MapRefusal::StreamExists("n3.0".into())));
    assert_eq!(next.streams().collect::<Vec<_>>(), ["n3.0"]);
}

#[test]
fn the_last_current_copy_stays() {
    let map = stored(&Map::new(64, 2, 2, disks(&[(0, 9), (1, 9)])).unwrap(), 4);
    let without = stored(&map.with(&MapChange::Stale(vec![DiskNumber(1)])).unwrap(), 7);
    let entry = without.disk(DiskNumber(1)).unwrap();
    assert_eq!((entry.state, entry.since, entry.changed), (DiskState::Stale, 7, 7));
    let last = without.with(&MapChange::Stale(vec![DiskNumber(0)]));
    assert_eq!(last, Err(MapRefusal::LastCopy { chunks: 2, without: vec![DiskNumber(0)] }));
    // It has missed writes since 7, also if it is away again before it has all.
    let back = stored(&without.with(&MapChange::Syncing(DiskNumber(1))).unwrap(), 8);
    let away = stored(&back.with(&MapChange::Stale(vec![DiskNumber(1)])).unwrap(), 9);
    assert_eq!(away.disk(DiskNumber(1)).unwrap().since, 7);
    let again = away.with(&MapChange::Current(DiskNumber(1)));
    assert_eq!(again, Err(MapRefusal::State { disk: DiskNumber(1), state: DiskState::Stale }));
}

#[test]
fn chunks_move_until_all_disks_are_equally_full_or_one_is_empty() {
    let mut map = stored(&Map::new(64, 40, 2, disks(&[(0, 60), (1, 60)])).unwrap(), 4);
    let mut version = 4;
    let mut make = |map: &mut Map, change: &MapChange| {
        version += 1;
        *map = stored(&map.with(change).unwrap(), version);
    };
    let added = |id, failure_group, slots| {
        MapChange::Add(AddedDisk { id, server: NodeId(failure_group), failure_group, slots })
    };
    let run = |map: &mut Map, make: &mut dyn FnMut(&mut Map, &MapChange)| {
        while let Some(change) = map.next_move() {
            make(map, &change);
            (0..3).for_each(|disk| make(map, &MapChange::Moved(DiskNumber(disk))));
        }
    };
    assert_eq!(
        map.with(&MapChange::Leave(DiskNumber(0), true)),
        Err(MapRefusal::NoRoomElsewhere { chunks: 40 })
    );
    make(&mut map, &added(9, 2, 30));
    assert_eq!(map.with(&added(9, 3, 30)), Err(MapRefusal::IsInGroup(DiskNumber(2))));
    make(&mut map, &MapChange::Balance(true));
    run(&mut map, &mut make);
    assert_eq!([0, 1, 2].map(|disk| map.used_slots(DiskNumber(disk))), [32, 32, 16]);
    assert!(!map.is_balancing());
    make(&mut map, &MapChange::Leave(DiskNumber(2), true));
    run(&mut map, &mut make);
    assert!(map.disk(DiskNumber(2)).is_none());
    assert_eq!([0, 1].map(|disk| map.used_slots(DiskNumber(disk))), [40, 40]);
    // Streams get slots that were never used.
    make(&mut map, &MapChange::Stream { name: "n1.0".into(), node: NodeId(0), chunks: 20 });
    let full = MapChange::Stream { name: "n1.1".into(), node: NodeId(0), chunks: 1 };
    assert_eq!(map.with(&full), Err(MapRefusal::NoRoom { chunks: 1, copies: 2 }));
}

#[test]
fn a_group_grows_in_slots_that_were_never_used() {
    let mut map = stored(&Map::new(64, 3, 2, disks(&[(0, 9), (1, 9)])).unwrap(), 4);
    let two = DiskNumber(1);
    let grow = |slots| MapChange::Grow { disk: two, id: 2, slots };
    assert_eq!(map.with(&grow(9)), Err(MapRefusal::NotLarger { disk: two, slots: 9 }));
    assert_eq!(map.with(&MapChange::Grow { disk: two, id: 7, slots: 99 }), Err(MapRefusal::NoDisk(two)));
    assert_eq!(map.with(&MapChange::GrowGroup(3)), Err(MapRefusal::SizeOfGroup { chunks: 3 }));
    let most = MapChange::GrowGroup(MAX_CHUNKS + 1);
    assert_eq!(map.with(&most), Err(MapRefusal::SizeOfGroup { chunks: 3 }));
    // A disk alone has no room for two copies.
    map = stored(&map.with(&grow(10_000)).unwrap(), 5);
    assert_eq!(map.with(&MapChange::GrowGroup(10)), Err(MapRefusal::NoRoom { chunks: 7, copies: 2 }));
    map = stored(&map.with(&MapChange::Grow { disk: DiskNumber(0), id: 1, slots: 10_000 }).unwrap(), 6);
    // A slot that was used once is free again, and not zero.
    let one = map.copies(ChunkId(0)).unwrap()[0];
    map.disks[one.disk.index()].unused_from = 8;
    let before = map.all_copies().count();
    // Into the next entry and the one after it.
    let larger = map.with(&MapChange::GrowGroup(9000)).unwrap();
    let edits = larger.edits(Some(&map));
    let keys: Vec<_> = edits.iter().map(|(key, version, _)| (key.as_str(), *version)).collect();
    assert_eq!(keys, [("map", 6), ("map/0", 6), ("map/1", 0), ("map/2", 0)]);
    let larger = stored(&larger, 7);
    assert_eq!((larger.chunks(), larger.bytes()), (9000, 9000 * (64 << 20)));
    let new: Vec<_> = larger.all_copies().skip(before).filter(|copy| copy.disk == one.disk).collect();
    assert!(new.iter().all(|copy| copy.slot >= 8), "{:?}", new.iter().min());
    // The same with a copy that gets no writes now.
    let stale = map.with(&MapChange::Stale(vec![two])).unwrap();
    assert!(stale.with(&MapChange::GrowGroup(5)).is_ok());
}

#[test]
fn a_chunk_moves_only_while_its_other_copy_is_current() {
    let map = stored(&Map::new(64, 1, 2, disks(&[(0, 9), (1, 9), (2, 9)])).unwrap(), 4);
    let [one, other] = *map.copies(ChunkId(0)).unwrap() else { panic!("two copies") };
    let third = map.disks().map(|(number, _)| number).find(|disk| ![one.disk, other.disk].contains(disk));
    let to = Copy { disk: third.unwrap(), slot: 5 };
    let moves = |from| MapChange::Move(vec![Move::new(ChunkId(0), from, to)]);
    let moving = stored(&map.with(&moves(one.disk)).unwrap(), 5);
    assert_eq!(moving.live_copies(ChunkId(0)).count(), 3);
    assert_eq!(moving.current_copies(ChunkId(0)).collect::<Vec<_>>(), [one, other]);
    let refused = Err(MapRefusal::CannotMove(ChunkId(0)));
    assert_eq!(moving.with(&moves(other.disk)), refused);
    let stale = stored(&map.with(&MapChange::Stale(vec![other.disk])).unwrap(), 5);
    assert_eq!(stale.with(&moves(one.disk)), refused);
    // The other way round the lost copy is replaced.
    assert!(stale.with(&moves(other.disk)).is_ok());
}

#[test]
fn a_forced_group_goes_on_with_the_newest_disks_that_are_there() {
    let map = stored(&Map::new(64, 2, 2, disks(&[(0, 9), (1, 9)])).unwrap(), 4);
    let stale = stored(&map.with(&MapChange::Stale(vec![DiskNumber(1)])).unwrap(), 7);
    let forced = stored(&stale.with(&MapChange::Force(vec![DiskNumber(1)])).unwrap(), 8);
    assert_eq!(
        (forced.state(DiskNumber(0)), forced.state(DiskNumber(1))),
        (DiskState::Stale, DiskState::Current)
    );
    assert!(
        forced.disk(DiskNumber(0)).unwrap().copies_whole && !forced.disk(DiskNumber(1)).unwrap().copies_whole
    );
    let none = stale.with(&MapChange::Force(Vec::new()));
    assert!(matches!(none, Err(MapRefusal::LastCopy { chunks: 2, .. })), "{none:?}");
    // Two that lack different changes are not made equal.
    let map = stored(&Map::new(64, 9, 2, disks(&[(0, 9), (1, 9), (2, 9)])).unwrap(), 4);
    let one = stored(&map.with(&MapChange::Stale(vec![DiskNumber(1)])).unwrap(), 7);
    let two = one.with(&MapChange::Force(vec![DiskNumber(1), DiskNumber(2)]));
    let (older, newer) = (DiskNumber(1), DiskNumber(2));
    assert_eq!(two, Err(MapRefusal::DifferentTimes { older, newer }));
}

#[test]
fn hostile_bytes_do_no_harm() {
    let map = Map::new(64, 2, 2, disks(&[(0, 9), (1, 9)])).unwrap();
    let entries = map.edits(None).into_iter().filter_map(|(_, _, value)| value);
    let good = entries.collect::<Vec<_>>().concat();
    assert!(map_any(&good));
    plexus_sim::hostile(&[good], |bytes| {
        let _ = map_any(bytes);
    });
}
