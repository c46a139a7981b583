//! Tests of the witnesses of losses, where no member is left that was there.

use super::*;

/// The earlier members are gone and said nothing; with an older record alone, their blocks are
/// unknown.
#[test]
fn a_newcomer_that_is_left_alone_takes_nothing_as_good_that_it_cannot_know() {
    let (alone, all) = ([(0, 2)], BLOCKS as usize);
    let named = |shard: &Shard| (0..BLOCKS).filter(|block| shard.lost().contains(BlockId(*block))).count();
    let one = |block| {
        let mut lost = Lost::default();
        lost.insert_block(BlockId(block));
        lost
    };
    for (record, needs, expected) in [(3, 3, 1), (3, 4, all), (6, 3, 1), (0, 0, 1)] {
        let mut world = without_view(2, 4);
        world.shard.recall(Epoch(record), one(5));
        world.view_after(needs, 7, &alone);
        assert_eq!(named(&world.shard), expected, "a record of {record} where {needs} is needed");
    }
    // A node that left knew that nothing was lost, but that is void if the voting files are older
    // than the record.
    for (record, expected) in [(3, 0), (5, 0), (7, all), (9, all)] {
        let mut world = without_view(2, 4);
        world.shard.recall(Epoch(record), one(5));
        let view = Members { epoch: Epoch(7), members: vec![(NodeId(0), Incarnation(2))] };
        let before = LossHistory { needs: Epoch(4), intact: Epoch(6) };
        world.shard.view(Nanos(0), (&view, before), &mut world.log);
        assert_eq!(named(&world.shard), expected, "a record of {record}");
        assert!(
            world.log.done.contains(&Did::Other(Action::RecordLost { seq: 1 })),
            "the record says otherwise"
        );
    }
    // It may have joined while another member was there, and was never open to it.
    for (needs, expected) in [(3, 1), (8, all)] {
        let mut world = without_view(2, 4);
        world.shard.recall(Epoch(3), one(5));
        world.view_after(3, 7, &[(0, 2), (1, 1)]);
        world.view_after(needs, 8, &alone);
        assert_eq!(named(&world.shard), expected);
    }
}

/// The losses on other records may have been accepted since.
#[test]
fn of_several_records_the_latest_counts() {
    for (mine, theirs, expected) in [(4, 3, [true, false]), (4, 5, [false, true]), (4, 4, [true, true])] {
        let mut world = without_view(2, 4);
        let mut masters = [0, 1]
            .map(|node| (0..BLOCKS).map(BlockId).filter(move |block| master(*block, 2) == NodeId(node)));
        let blocks = [masters[0].next().unwrap(), masters[0].next().unwrap()];
        let mut lost = Lost::default();
        lost.insert_block(blocks[0]);
        world.shard.recall(Epoch(mine), lost);
        world.view_after(2, 7, &[(0, 1), (1, 1)]);
        let partition = blocks[1].partition();
        world.say(1, 7, MessageBody::Mark { blocks: true });
        world.say(1, 7, MessageBody::Mark { blocks: false });
        world.say_of(1, 7, (blocks[1], MessageBody::Lost { partition, last: blocks[1] }));
        world.say(1, 7, MessageBody::Reported { witness: Witness::Recorded(Epoch(theirs)) });
        assert_eq!(blocks.map(|block| world.shard.lost().contains(block)), expected);
    }
}

/// A record newer than the voting files outweighs all others.
#[test]
fn where_voting_files_are_older_than_a_record_everything_may_be_lost() {
    let own = || (0..BLOCKS).map(BlockId).filter(|block| master(*block, 2) == NodeId(0));
    for (mine, expected) in [(6, 0), (7, own().count())] {
        let mut world = without_view(2, 4);
        world.shard.recall(Epoch(mine), Lost::default());
        world.view_after(0, 7, &[(0, 1), (1, 1)]);
        for body in [
            MessageBody::Mark { blocks: true },
            MessageBody::Mark { blocks: false },
            MessageBody::Reported { witness: Witness::Recorded(Epoch(0)) },
        ] {
            world.say(1, 7, body);
        }
        assert_eq!(own().filter(|block| world.shard.lost().contains(*block)).count(), expected);
    }
}
