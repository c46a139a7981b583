//! All orders of events of a few transactions: every state of a small scope, each once.
//!
//! A state is found again by its events. From each one everything that has begun is let end, and
//! the properties are checked.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Step(usize),
    Flush(usize),
    Follow(usize),
    Deliver(usize, usize),
    Kill(usize, Death),
    Join(usize),
}

/// The losses with a node that dies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    /// Changes that are not durable.
    pub(super) changes: bool,
    /// Messages that have not arrived.
    pub(super) messages: bool,
}

/// A small cluster: by node its transactions, and the deaths and joins that may happen.
#[derive(Clone)]
struct Scope {
    programs: Vec<Vec<Client>>,
    deaths: usize,
    joins: usize,
}

fn program(is_repeatable: bool, rows: &[(usize, Option<RowLock>)]) -> Client {
    Client { state: Step::Working, is_repeatable, rows: rows.to_vec(), ..Client::default() }
}

fn reader(rows: &[usize]) -> Client {
    Client { is_reader: true, ..program(true, &rows.iter().map(|row| (*row, None)).collect::<Vec<_>>()) }
}

impl Scope {
    fn world(&self) -> World {
        let mut world = World::new(0, self.programs.len());
        world.finish();
        // A committed version without contents, from before.
        world.rows[..2].fill([&[2][..], &[0; 12]].concat());
        world.programs = Some(self.programs.iter().map(|all| all.iter().cloned().collect()).collect());
        world
    }

    /// Returns the world behind events, with the deaths and joins that are left.
    fn replay(&self, events: &[Event]) -> (World, usize, usize) {
        let (mut world, mut deaths, mut joins) = (self.world(), self.deaths, self.joins);
        for event in events {
            match *event {
                Event::Step(at) => drop(world.step(at, 0)),
                Event::Flush(at) => drop(world.flush(at)),
                Event::Follow(at) => drop(world.follow(at)),
                Event::Deliver(from, to) => drop(world.deliver(from, to)),
                Event::Kill(at, death) => {
                    deaths -= 1;
                    world.die(at, Some(death));
                }
                Event::Join(at) => {
                    joins -= 1;
                    world.join(at);
                }
            }
        }
        (world, deaths, joins)
    }

    fn next(world: &World, deaths: usize, joins: usize) -> Vec<Event> {
        let mut events = Vec::new();
        let living = world.nodes.iter().flatten().count();
        for at in 0..world.nodes.len() {
            if world.nodes[at].is_none() {
                events.extend((joins > 0).then_some(Event::Join(at)));
                continue;
            }
            events.extend([Event::Step(at), Event::Flush(at), Event::Follow(at)]);
            events.extend((0..world.nodes.len()).map(|from| Event::Deliver(from, at)));
            if deaths > 0 && living > 1 {
                for (changes, messages) in [(false, false), (false, true), (true, false), (true, true)] {
                    events.push(Event::Kill(at, Death { changes, messages }));
                }
            }
        }
        events
    }

    /// Explores all states, or the first ones. Returns their number, and whether these are all.
    fn explore(&self, most: usize) -> (usize, bool) {
        let mut known = HashSet::from([self.world().fingerprint()]);
        let mut open = VecDeque::from([Vec::new()]);
        while let Some(events) = open.pop_front() {
            let (world, deaths, joins) = self.replay(&events);
            for event in Self::next(&world, deaths, joins) {
                let mut events: Vec<Event> = events.clone();
                events.push(event);
                let checked = std::panic::catch_unwind(|| {
                    let (mut world, ..) = self.replay(&events);
                    let state = world.fingerprint();
                    if known.contains(&state) {
                        return None;
                    }
                    world.finish();
                    world.check();
                    Some(state)
                });
                match checked {
                    Ok(None) => {}
                    Ok(Some(state)) => {
                        known.insert(state);
                        open.push_back(events);
                    }
                    Err(_) => panic!("after {events:?}"),
                }
            }
            if known.len() >= most {
                return (known.len(), false);
            }
        }
        (known.len(), true)
    }
}

impl World {
    fn join(&mut self, at: usize) {
        let made = self.make(at);
        self.nodes[at] = Some(made);
        self.new_view();
    }

    /// Returns a number that is different for each state.
    fn fingerprint(&self) -> u64 {
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|node| {
                let node = node.as_ref()?;
                let Node {
                    core,
                    grants,
                    incarnation,
                    view,
                    is_open,
                    raised,
                    next_slot,
                    block,
                    clients,
                    tokens,
                } = node;
                let of_node = (incarnation, view, is_open, raised, next_slot, block, clients, tokens);
                Some((core.fingerprint(), grants.load(Relaxed), format!("{of_node:?}")))
            })
            .collect();
        let slots: BTreeMap<_, _> =
            self.slots.iter().map(|(id, slot)| (id, (slot.number, slot.is_durable))).collect();
        let limits: BTreeMap<_, _> = self.limits.iter().collect();
        let mut seen: Vec<_> = self
            .seen
            .iter()
            .map(|seen| (seen.row, seen.snapshot, seen.by, seen.on, &seen.contents))
            .collect();
        seen.sort();
        let links: Vec<_> = self.links.iter().filter(|(_, link)| !link.is_empty()).collect();
        let blocks = (self.epoch, &self.members, &self.rows, &self.holders, &self.homes, self.next_block);
        let ends = (&self.acknowledged, &self.numbers, &self.locks, &self.programs, self.newest_seen);
        let text = format!("{nodes:?}{slots:?}{limits:?}{seen:?}{links:?}{blocks:?}{ends:?}");
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    }
}

/// `TRANSACTION_STATES=1000000` explores more.
fn explore(programs: &[&[Client]], deaths: usize, joins: usize, states: usize) {
    let most = std::env::var("TRANSACTION_STATES").ok().and_then(|most| most.parse().ok());
    let programs = programs.iter().map(|all| all.to_vec()).collect();
    let (count, is_all) = Scope { programs, deaths, joins }.explore(most.unwrap_or(states));
    println!("{count} states{}", if is_all { ", which are all" } else { "" });
    assert!(is_all || most.is_some() || count >= states);
}

#[test]
fn writers_of_two_rows_in_all_orders() {
    let writer = |rows: [usize; 2]| program(false, &rows.map(|row| (row, None)));
    explore(&[&[writer([0, 1])], &[writer([1, 0])]], 0, 0, 10_000);
    let repeatable = program(true, &[(0, None)]);
    explore(&[&[program(false, &[(0, None)]), repeatable.clone()], &[repeatable]], 0, 0, 10_000);
}

#[test]
fn a_writer_and_readers_of_two_rows_in_all_orders() {
    let writer = program(false, &[(0, None), (1, None)]);
    explore(&[std::slice::from_ref(&writer), &[reader(&[1, 0]), reader(&[0])]], 0, 0, 10_000);
    explore(&[&[writer], &[reader(&[1, 0])], &[reader(&[0, 1])]], 0, 0, 10_000);
}

#[test]
fn writers_and_locks_in_all_orders() {
    let locker = program(false, &[(0, Some(RowLock::Share)), (1, None)]);
    let updater = program(false, &[(1, Some(RowLock::Update)), (0, None)]);
    explore(&[&[updater], std::slice::from_ref(&locker)], 0, 0, 10_000);
    explore(&[&[program(false, &[(0, None)])], std::slice::from_ref(&locker)], 1, 0, 10_000);
}

#[test]
fn two_writers_of_which_a_node_dies_in_all_orders() {
    let writer = program(false, &[(0, None)]);
    explore(&[std::slice::from_ref(&writer), &[writer.clone(), reader(&[0])]], 1, 0, 10_000);
}

#[test]
fn a_writer_that_dies_and_a_newcomer_that_reads_in_all_orders() {
    explore(&[&[program(false, &[(0, None)])], &[reader(&[0]), reader(&[0])]], 1, 1, 10_000);
}
