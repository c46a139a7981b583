//! Random runs.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::*;

fn run(seed: u64, logs: bool) -> Counts {
    let mut world = World::new(seed, logs);
    for at in 0..world.nodes.len() {
        if world.random.percent(80) {
            world.start(at);
        }
    }
    let steps = world.random.between(500, 6000);
    let deaths = world.random.below(steps);
    for step in 0..steps {
        world.step();
        if step == deaths {
            world.calm();
        }
    }
    world.finish();
    for node in std::mem::take(&mut world.nodes).into_iter().flatten() {
        world.count(&node);
    }
    let Registry { moved, removed, replaced, grown, taken_over, .. } = world.registry;
    Counts { moved, removed, replaced, grown, taken_over, ..world.counts }
}

/// `MIRROR_SEEDS=200000` runs more, from `MIRROR_FIRST` on. The events of a seed that fails are
/// printed.
#[test]
fn mirror_disks_keep_their_properties_when_nodes_and_disks_fail() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, seeds) = (number("MIRROR_FIRST").unwrap_or(0), number("MIRROR_SEEDS").unwrap_or(6000));
    let few = seeds as usize;
    let mut all = Counts::default();
    for seed in first..first + seeds {
        let counts = match catch_unwind(AssertUnwindSafe(|| run(seed, false))) {
            Ok(counts) => counts,
            Err(panic) => {
                println!("seed {seed}:");
                run(seed, true);
                resume_unwind(panic);
            }
        };
        all.writes += counts.writes;
        all.reads += counts.reads;
        all.recovered += counts.recovered;
        all.marks += counts.marks;
        all.copied += counts.copied;
        all.views += counts.views;
        all.late += counts.late;
        all.stopped += counts.stopped;
        all.moved += counts.moved;
        all.removed += counts.removed;
        all.replaced += counts.replaced;
        all.grown += counts.grown;
        all.taken_over += counts.taken_over;
        all.left += counts.left;
        all.quiet += counts.quiet;
        all.scrubbed += counts.scrubbed;
    }
    println!("{all:?}");
    let [writes, reads, recovered, marks, copied, late] =
        [all.writes, all.reads, all.recovered, all.marks, all.copied, all.late];
    let is_enough = writes > 25 * few && reads > 12 * few && recovered > few && marks > few;
    let has_moved = 5 * all.moved > few && 20 * all.removed > few && 10 * all.replaced > few;
    let has_moved = has_moved && 40 * all.scrubbed > few && 2 * all.grown > few && 10 * all.taken_over > few;
    let has_ended = 10 * all.left > few && 40 * all.quiet > few;
    let is_enough = is_enough && has_moved && has_ended && copied > 8 * few && late * 40 > few;
    assert!(is_enough, "too little happens: {all:?}");
}
