//! Random messages of programs in random orders of delivery: nothing fails, and nothing of the
//! programs remains when they are gone.

use std::collections::VecDeque;

use plexus_base::locks::{Mode, VALUE_LEN};
use plexus_client::wire::lock::{ConvertRequest, NewLockMessage};
use plexus_locks::protocol::Shard;
use plexus_sim::Random;

use super::*;

mod locks;

const NODES: usize = 3;
const ARENA: u64 = 64 << 10;

/// The cores of a cluster, and the messages between them: in order within a kind, as on links.
struct Cluster {
    cores: Vec<ProgramCore>,
    way: Transit,
    /// The lock manager of each node, with local locks only: messages between managers have other
    /// tests.
    locks: Vec<Shard>,
}

#[derive(Default)]
struct Transit {
    between: BTreeMap<(usize, usize, Kind), VecDeque<(Head, Vec<u8>)>>,
    arenas: Vec<Vec<u8>>,
    told: Vec<(usize, ClientId, Head, Vec<u8>)>,
    /// The bytes written to arenas.
    moved: u64,
    /// The node whose backlog is too long.
    choked: Option<usize>,
    /// The requests of programs to the lock manager of their node.
    lock_requests: VecDeque<(usize, Event)>,
}

struct Acting<'a>(usize, &'a mut Transit);

impl ProgramDriver for Acting<'_> {
    fn tell(&mut self, program: ClientId, head: Head, payload: &[u8]) {
        self.1.told.push((self.0, program, head, payload.to_vec()));
    }
    fn send(&mut self, to: NodeId, head: Head, payload: &[u8]) -> bool {
        if to.index() >= NODES {
            return false;
        }
        let queue = self.1.between.entry((self.0, to.index(), kind(head.verb))).or_default();
        queue.push_back((head, payload.to_vec()));
        true
    }
    fn is_choked(&self, to: NodeId) -> bool {
        self.1.choked == Some(to.index())
    }
    fn copy(&mut self, to: NodeId, at: u64, bytes: &[u8], head: Head) -> bool {
        self.1.moved += bytes.len() as u64;
        self.1.arenas[to.index()][at as usize..][..bytes.len()].copy_from_slice(bytes);
        self.send(to, head, &[])
    }
    fn read(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.1.arenas[self.0][at as usize..][..into.len()]);
    }
    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.1.moved += bytes.len() as u64;
        self.1.arenas[self.0][at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    fn lock(&mut self, event: Event) {
        self.1.lock_requests.push_back((self.0, event));
    }
    fn timeout(&self, timeout_ns: u64) -> WaitLimit {
        if timeout_ns == 0 { WaitLimit::Try } else { WaitLimit::Forever }
    }
}

impl Cluster {
    fn new() -> Self {
        Self::with(ARENA)
    }

    fn with(arena: u64) -> Self {
        let core = |node| {
            let place = WorkerPlace { me: NodeId(node as u8), worker: 0, workers: 1 };
            ProgramCore::new(place, 0..arena)
        };
        let arenas = vec![vec![0xee; arena as usize]; NODES];
        let locks = (0..NODES).map(locks::manager).collect();
        Self { cores: (0..NODES).map(core).collect(), way: Transit { arenas, ..Transit::default() }, locks }
    }

    /// Gives a node a turn, or delivers one of the possible next messages, as `chance` picks;
    /// returns false if there is nothing to do.
    fn deliver(&mut self, chance: u64) -> bool {
        if chance.is_multiple_of(3) && self.serve_locks() {
            return true;
        }
        let busy = self.cores.iter().position(ProgramCore::pending);
        if let Some(node) = busy.filter(|_| chance.is_multiple_of(2)) {
            return self.cores[node].turn(&mut Acting(node, &mut self.way));
        }
        let ready: Vec<_> =
            self.way.between.iter().filter(|(_, queue)| !queue.is_empty()).map(|(way, _)| *way).collect();
        if ready.is_empty() {
            return busy.is_some();
        }
        let way = ready[chance as usize % ready.len()];
        if let Some((head, payload)) = self.way.between.get_mut(&way).and_then(VecDeque::pop_front) {
            let (from, to, _) = way;
            self.cores[to].node(&mut Acting(to, &mut self.way), NodeId(from as u8), head, &payload);
        }
        true
    }

    fn say(&mut self, node: usize, program: ClientId, head: Head, payload: &[u8]) -> Checked {
        let message = ProgramMessage { from: program, head, payload };
        self.cores[node].program(&mut Acting(node, &mut self.way), message)
    }

    fn settle(&mut self) {
        while self.deliver(0) {}
    }

    #[track_caller]
    fn assert_nothing_is_left(&mut self) {
        for (node, core) in self.cores.iter_mut().enumerate() {
            assert!(core.programs.is_empty() && core.ports.is_empty(), "ports of {node}");
            assert!(core.flows.is_empty(), "flows of {node}");
            assert!(core.calls.is_empty(), "calls of {node}");
            assert_eq!(core.locks.len(), 0, "locks of {node}");
            let shard = &self.locks[node];
            assert!(shard.locks().next().is_none() && shard.resources().next().is_none(), "locks at {node}");
            assert!(core.windows.are_all_given_back(ARENA), "windows of {node}");
        }
    }
}

/// Returns a random, nearly valid message: small numbers, so that it refers to earlier ones.
fn anything(random: &mut Random) -> (Head, Vec<u8>) {
    const VERBS: [Verb; 26] = [
        Verb::Bind,
        Verb::Unbind,
        Verb::Send,
        Verb::Send,
        Verb::Taken,
        Verb::End,
        Verb::Call,
        Verb::Answer,
        Verb::Cancel,
        Verb::Create,
        Verb::Open,
        Verb::Open,
        Verb::Map,
        Verb::Map,
        Verb::Close,
        Verb::Watch,
        Verb::Put,
        Verb::Add,
        Verb::Swap,
        Verb::Lock,
        Verb::Lock,
        Verb::Lock,
        Verb::Convert,
        Verb::Unlock,
        Verb::Unlock,
        Verb::Cancel,
    ];
    let mut pick = |most: u64| random.below(most);
    let verb = VERBS[pick(26) as usize];
    let usage = match verb {
        Verb::Cancel => [Use::Calls, Use::Locks][pick(2) as usize],
        Verb::Lock | Verb::Convert | Verb::Unlock => Use::Locks,
        Verb::Call | Verb::Answer => Use::Calls,
        Verb::Bind | Verb::Unbind | Verb::Send | Verb::Taken | Verb::End => {
            [Use::Datagrams, Use::Calls, Use::Endpoints][pick(3) as usize]
        }
        _ => Use::Windows,
    };
    let head = Head {
        node: NodeId(pick(NODES as u64 + 1) as u8),
        port: pick(if usage == Use::Locks { 20 } else { 4 }) as u32,
        other: pick(4) as u32,
        id: pick(6),
        value: if verb == Verb::Create { 8 * pick(1000) } else { pick(3) * 8 },
        ..Head::new(verb, usage)
    };
    if usage == Use::Locks && pick(20) > 0 {
        let mode = Mode::ALL[pick(6) as usize];
        let (notify, session, start_time, timeout_ns) = (pick(2) > 0, pick(3) as u32, pick(9), pick(3));
        let value = (pick(8) == 0).then_some([7; VALUE_LEN]);
        let name = [b'a' + pick(3) as u8];
        let payload = match verb {
            Verb::Lock => NewLockMessage { mode, notify, session, start_time, timeout_ns, name: &name }
                .encode()
                .to_vec(),
            Verb::Convert => ConvertRequest { mode, timeout_ns, value }.encode().to_vec(),
            _ => value.map(Vec::from).unwrap_or_default(),
        };
        return (head, payload);
    }
    let len = match verb {
        Verb::Create | Verb::Open => 1,
        Verb::Add => 8,
        Verb::Swap => 16,
        _ => pick(40),
    };
    (head, (0..len).map(|_| pick(3) as u8).collect())
}

#[test]
fn nothing_remains_of_programs_that_sent_random_messages() {
    let (mut cut_off, mut said) = (0, 0);
    for seed in 1..400_u64 {
        let mut random = Random::new(seed);
        let mut cluster = Cluster::new();
        let mut programs: Vec<(usize, ClientId)> = Vec::new();
        for number in 0..600 {
            if programs.len() < 4 {
                let (node, program) = (random.bits() as usize % NODES, ClientId(number));
                cluster.cores[node].attach(program);
                programs.push((node, program));
            }
            let place = random.bits() as usize % programs.len();
            let (node, program) = programs[place];
            let (head, payload) = anything(&mut random);
            said += 1;
            let gone = cluster.say(node, program, head, &payload).is_err();
            cut_off += u32::from(gone);
            if gone || random.bits().is_multiple_of(60) {
                cluster.cores[node].forget(&mut Acting(node, &mut cluster.way), program);
                programs.swap_remove(place);
            }
            for _ in 0..random.bits() % 4 {
                let chance = random.bits();
                cluster.deliver(chance);
            }
        }
        for (node, program) in programs {
            cluster.cores[node].forget(&mut Acting(node, &mut cluster.way), program);
        }
        cluster.settle();
        cluster.assert_nothing_is_left();
    }
    assert!(cut_off > 1000 && said > 10 * cut_off, "{cut_off} of {said}");
}

#[test]
fn nothing_is_left_of_a_node_that_is_gone() {
    for seed in 1..200_u64 {
        let mut random = Random::new(seed);
        let mut cluster = Cluster::new();
        for number in 0..NODES {
            cluster.cores[number].attach(ClientId(number as u32));
        }
        for _ in 0..200 {
            let node = random.bits() as usize % NODES;
            let (head, payload) = anything(&mut random);
            if cluster.say(node, ClientId(node as u32), head, &payload).is_err() {
                let mut world = Acting(node, &mut cluster.way);
                cluster.cores[node].forget(&mut world, ClientId(node as u32));
                cluster.cores[node].attach(ClientId(node as u32));
            }
            let chance = random.bits();
            cluster.deliver(chance);
        }
        // Node 2 ends: its messages are delivered, then its peers learn it; messages to it are
        // dropped.
        while let Some(way) = cluster
            .way
            .between
            .iter()
            .find(|((from, _, _), queue)| *from == 2 && !queue.is_empty())
            .map(|(way, _)| *way)
        {
            if let Some((head, payload)) = cluster.way.between.get_mut(&way).and_then(VecDeque::pop_front)
                && way.1 != 2
            {
                cluster.cores[way.1].node(&mut Acting(way.1, &mut cluster.way), NodeId(2), head, &payload);
            }
        }
        for node in 0..2 {
            cluster.cores[node].peer_gone(&mut Acting(node, &mut cluster.way), NodeId(2));
        }
        let gone = |cluster: &mut Cluster| cluster.way.between.retain(|(_, to, _), _| *to != 2);
        gone(&mut cluster);
        cluster.settle();
        for node in 0..2 {
            cluster.cores[node].forget(&mut Acting(node, &mut cluster.way), ClientId(node as u32));
        }
        gone(&mut cluster);
        cluster.settle();
        cluster.cores.truncate(2);
        cluster.assert_nothing_is_left();
    }
}

#[test]
fn every_copy_of_a_window_ends_like_its_home() {
    for seed in 1..200_u64 {
        let mut random = Random::new(seed);
        let mut cluster = Cluster::new();
        let window = |verb| Head { port: 1, ..Head::new(verb, Use::Windows) };
        for node in 0..NODES {
            cluster.cores[node].attach(ClientId(0));
        }
        cluster.say(0, ClientId(0), Head { id: 1, value: 256, ..window(Verb::Create) }, b"w").unwrap();
        for node in 1..NODES {
            cluster
                .say(node, ClientId(0), Head { id: 1, node: NodeId(0), ..window(Verb::Open) }, b"w")
                .unwrap();
        }
        cluster.settle();
        // Copies start while others write already.
        for number in 0..60_u64 {
            let node = random.bits() as usize % NODES;
            let place = random.bits() % 32 * 8;
            let change = Head { id: 100 + number, value: place, ..window(Verb::Put) };
            cluster.say(node, ClientId(0), change, &number.to_le_bytes()).unwrap();
            if number == 10 || number == 30 {
                let node = if number == 10 { 1 } else { 2 };
                cluster.say(node, ClientId(0), Head { id: 2, ..window(Verb::Map) }, &[]).unwrap();
            }
            for _ in 0..random.bits() % 5 {
                let chance = random.bits();
                cluster.deliver(chance);
            }
        }
        cluster.settle();
        let copies: Vec<Vec<u8>> = (0..NODES)
            .map(|node| {
                let mapped = |told: &&(usize, ClientId, Head, Vec<u8>)| {
                    told.0 == node && told.2.verb == Verb::Done && told.2.id == if node == 0 { 1 } else { 2 }
                };
                let at =
                    cluster.way.told.iter().find(mapped).expect("every map is answered").2.value as usize;
                cluster.way.arenas[node][at..][..256].to_vec()
            })
            .collect();
        assert!(copies[0] == copies[1] && copies[0] == copies[2], "seed {seed}");
        let done =
            cluster.way.told.iter().filter(|told| told.2.verb == Verb::Done && told.2.id >= 100).count();
        assert_eq!(done, 60, "every change is answered");
    }
}

/// A program that has mapped a window reads it until it learns of the end, however late that is.
#[test]
fn memory_of_a_mapped_window_is_not_reused_before_the_program_closes_it() {
    const LEN: u64 = ARENA / 2;
    let window = |verb| Head { port: 1, ..Head::new(verb, Use::Windows) };
    let (creator, reader) = (ClientId(0), ClientId(1));
    for (node, leaves) in [(0, false), (1, false), (1, true)] {
        let mut cluster = Cluster::new();
        cluster.cores[0].attach(creator);
        cluster.cores[node].attach(reader);
        cluster.cores[node].attach(ClientId(2));
        cluster.say(0, creator, Head { id: 1, value: LEN, ..window(Verb::Create) }, b"w").unwrap();
        cluster.settle();
        cluster.say(node, reader, Head { id: 1, ..window(Verb::Open) }, b"w").unwrap();
        cluster.settle();
        cluster.say(node, reader, Head { id: 2, ..window(Verb::Map) }, &[]).unwrap();
        cluster.say(0, creator, window(Verb::Map), &[]).unwrap();
        cluster.settle();
        cluster.say(0, creator, window(Verb::Close), &[]).unwrap();
        cluster.settle();
        let create = |cluster: &mut Cluster, id: u64| {
            let asked = Head { id, port: id as u32, value: LEN + 8, ..window(Verb::Create) };
            cluster.say(node, ClientId(2), asked, &[id as u8]).unwrap();
            cluster.settle();
            let (.., done, _) = cluster.way.told.last().unwrap();
            assert_eq!(done.id, id);
            done.status
        };
        assert_eq!(create(&mut cluster, 10), Status::NoRoom, "at node {node}");
        let gone = |told: &&(usize, ClientId, Head, Vec<u8>)| told.1 == reader && told.2.verb == Verb::Gone;
        assert_eq!(cluster.way.told.iter().filter(gone).count(), 1, "and yet it was told");
        if leaves {
            cluster.cores[node].forget(&mut Acting(node, &mut cluster.way), reader);
        } else {
            cluster.say(node, reader, window(Verb::Close), &[]).unwrap();
        }
        assert_eq!(create(&mut cluster, 11), Status::Ok, "at node {node}");
    }
}

/// One step of a node handles a small part of a large window, however large it is.
#[test]
fn large_windows_are_made_and_copied_in_small_steps() {
    const LARGE: u64 = 3 << 20;
    let mut cluster = Cluster::with(2 * LARGE);
    let window = |verb| Head { port: 1, ..Head::new(verb, Use::Windows) };
    for node in 0..2 {
        cluster.cores[node].attach(ClientId(0));
    }
    let find = Head { id: 1, node: NodeId(0), ..window(Verb::Open) };
    cluster.say(0, ClientId(0), Head { id: 1, value: LARGE - 8, ..window(Verb::Create) }, b"w").unwrap();
    cluster.say(1, ClientId(0), find, b"w").unwrap();
    // No program finds it before it is clear.
    while cluster.deliver(1) && cluster.way.told.is_empty() {}
    assert_eq!(cluster.way.told[0].2.status, Status::NoWindow);
    let (mut most, mut steps) = (0, 0);
    let mut settle = |cluster: &mut Cluster| {
        loop {
            let before = cluster.way.moved;
            if !cluster.deliver(0) {
                return;
            }
            most = most.max(cluster.way.moved - before);
            steps += 1;
        }
    };
    settle(&mut cluster);
    assert_eq!(cluster.way.moved, LARGE - 8, "made, and cleared once");
    cluster.say(1, ClientId(0), find, b"w").unwrap();
    settle(&mut cluster);
    cluster.say(1, ClientId(0), Head { id: 2, ..window(Verb::Map) }, &[]).unwrap();
    settle(&mut cluster);
    assert_eq!(cluster.way.moved, 2 * (LARGE - 8), "copied, and once");
    let (node, _, mapped, _) = cluster.way.told.last().unwrap();
    assert_eq!((*node, mapped.id, mapped.status), (1, 2, Status::Ok));
    let copy = &cluster.way.arenas[1][mapped.value as usize..][..LARGE as usize - 8];
    assert!(copy.iter().all(|byte| *byte == 0));
    assert_eq!(most, windows::CLEARED.max(windows::PIECE * windows::PIECES));
    assert!(steps > LARGE / most, "{steps}");
    // Its creator ends while another window is being cleared, and while a copy is being sent.
    cluster.say(0, ClientId(0), Head { id: 3, port: 2, value: LARGE, ..window(Verb::Create) }, b"x").unwrap();
    cluster.cores[2].attach(ClientId(0));
    cluster.say(2, ClientId(0), find, b"w").unwrap();
    while !cluster.way.told.iter().any(|(node, _, head, _)| *node == 2 && head.status == Status::Ok) {
        cluster.deliver(1);
    }
    cluster.say(2, ClientId(0), Head { id: 2, ..window(Verb::Map) }, &[]).unwrap();
    let before = cluster.way.moved;
    while cluster.way.moved == before {
        cluster.deliver(1);
    }
    assert!(cluster.cores[0].pending());
    for node in 0..NODES {
        cluster.cores[node].forget(&mut Acting(node, &mut cluster.way), ClientId(0));
    }
    while cluster.deliver(0) {}
    for (node, core) in cluster.cores.iter_mut().enumerate() {
        assert!(core.windows.are_all_given_back(2 * LARGE), "windows of {node}");
    }
}

fn say(verb: Verb, usage: Use) -> Head {
    Head { node: NodeId(1), port: 1, other: 1, ..Head::new(verb, usage) }
}

impl Cluster {
    /// Two programs: one at node 0, and one at node 1 that has port 1 of `usage`.
    fn with_a_port(usage: Use) -> Self {
        let mut cluster = Self::new();
        for node in 0..2 {
            cluster.cores[node].attach(ClientId(0));
        }
        cluster.say(1, ClientId(0), say(Verb::Bind, usage), &[]).unwrap();
        cluster
    }

    /// Takes the messages that the program of `node` got since the last call, in answer to `verb`.
    fn told(&mut self, node: usize, verb: Verb) -> Vec<(Head, Vec<u8>)> {
        let told = std::mem::take(&mut self.way.told).into_iter();
        let (wanted, rest): (Vec<_>, _) = told.partition(|told| told.0 == node && told.2.verb == verb);
        self.way.told = rest;
        wanted.into_iter().map(|(_, _, head, payload)| (head, payload)).collect()
    }
}

/// The memory that a sender can fill at the receiver's node has a bound, also with ever new flows.
#[test]
fn waiting_messages_count_after_their_flow_has_ended() {
    let mut cluster = Cluster::with_a_port(Use::Datagrams);
    for id in 0..2 * limits::MAX_SENDERS as u64 {
        cluster.say(0, ClientId(0), Head { id, ..say(Verb::Send, Use::Datagrams) }, b"x").unwrap();
        cluster.say(0, ClientId(0), Head { id, ..say(Verb::End, Use::Datagrams) }, &[]).unwrap();
        cluster.settle();
    }
    let came = cluster.told(1, Verb::Deliver);
    assert_eq!(came.len(), limits::MAX_SENDERS);
    // Each message that is taken makes room for one more.
    for (number, (flow, _)) in came.iter().enumerate().take(3) {
        let taken = Head { node: NodeId(0), id: flow.id, value: 1, ..say(Verb::Taken, Use::Datagrams) };
        cluster.say(1, ClientId(0), taken, &[]).unwrap();
        for id in [10_000, 20_000].map(|id| id + number as u64) {
            cluster.say(0, ClientId(0), Head { id, ..say(Verb::Send, Use::Datagrams) }, b"y").unwrap();
        }
        cluster.settle();
        assert_eq!(cluster.told(1, Verb::Deliver).len(), 1);
        let refused = cluster.told(0, Verb::Refused).pop().map(|(head, _)| (head.id, head.status));
        assert_eq!(refused, Some((20_000 + number as u64, Status::Busy)));
    }
    // A port that is closed takes its count with it.
    cluster.say(1, ClientId(0), say(Verb::Unbind, Use::Datagrams), &[]).unwrap();
    assert_eq!(cluster.cores[1].programs[&ClientId(0)].senders, 0);
}

#[test]
fn a_call_counts_until_its_server_answers_it() {
    let mut cluster = Cluster::with_a_port(Use::Calls);
    let request = vec![1; limits::MAX_MESSAGE];
    let most = (limits::WAITING_BYTES / limits::MAX_MESSAGE) as u64;
    for id in 0..most {
        cluster.say(0, ClientId(0), Head { id, ..say(Verb::Call, Use::Calls) }, &request).unwrap();
        cluster.say(0, ClientId(0), Head { id, ..say(Verb::Cancel, Use::Calls) }, &[]).unwrap();
        cluster.settle();
    }
    let (calls, cancels) = (cluster.told(1, Verb::Request), cluster.told(1, Verb::Cancel));
    assert_eq!((calls.len() as u64, cancels.len() as u64), (most, most));
    let ids = |told: &[(Head, Vec<u8>)]| told.iter().map(|(head, _)| head.id).collect::<Vec<_>>();
    assert_eq!(ids(&calls), ids(&cancels));
    let call = |cluster: &mut Cluster, id| {
        cluster.say(0, ClientId(0), Head { id, ..say(Verb::Call, Use::Calls) }, &request).unwrap();
        cluster.settle();
        cluster.told(0, Verb::Done).pop().map(|(head, _)| head.status)
    };
    assert_eq!(call(&mut cluster, 1000), Some(Status::Busy));
    let answer = |id| Head { id, ..say(Verb::Answer, Use::Calls) };
    cluster.say(1, ClientId(0), answer(calls[0].0.id), &[]).unwrap();
    assert_eq!(call(&mut cluster, 1001), None, "it waits for its answer");
    assert_eq!(call(&mut cluster, 1002), Some(Status::Busy));
    // The caller's node is gone: that changes nothing for the server's memory.
    cluster.cores[1].peer_gone(&mut Acting(1, &mut cluster.way), NodeId(0));
    assert_eq!(cluster.told(1, Verb::Cancel).len(), 1);
    assert_eq!(call(&mut cluster, 1003), Some(Status::Busy));
}

#[test]
fn nothing_is_started_with_a_node_that_has_a_long_backlog() {
    let mut cluster = Cluster::with_a_port(Use::Datagrams);
    let window = |verb, id| Head { id, ..say(verb, Use::Windows) };
    for node in 0..2 {
        let create =
            Head { id: 1, port: 2 + node as u32, value: 64, ..Head::new(Verb::Create, Use::Windows) };
        cluster.say(node, ClientId(0), create, b"w").unwrap();
    }
    cluster.settle();
    cluster.say(0, ClientId(0), window(Verb::Open, 2), b"w").unwrap();
    cluster.say(1, ClientId(0), Head { node: NodeId(0), ..window(Verb::Open, 2) }, b"w").unwrap();
    cluster.settle();
    cluster.say(1, ClientId(0), window(Verb::Map, 3), &[]).unwrap();
    cluster.say(0, ClientId(0), Head { id: 4, ..say(Verb::Send, Use::Datagrams) }, b"before").unwrap();
    cluster.settle();
    cluster.way.told.clear();
    cluster.way.choked = Some(1);
    cluster.say(0, ClientId(0), Head { id: 5, ..say(Verb::Send, Use::Datagrams) }, b"new").unwrap();
    cluster.say(0, ClientId(0), Head { id: 4, value: 1, ..say(Verb::Send, Use::Datagrams) }, b"on").unwrap();
    cluster.say(0, ClientId(0), Head { id: 6, ..say(Verb::Call, Use::Calls) }, b"new").unwrap();
    cluster.say(0, ClientId(0), window(Verb::Put, 7), b"at home there").unwrap();
    cluster.say(0, ClientId(0), Head { port: 2, ..window(Verb::Put, 8) }, b"copied to there").unwrap();
    cluster.settle();
    let refused: Vec<_> =
        cluster.told(0, Verb::Refused).iter().map(|(head, _)| (head.id, head.status)).collect();
    assert_eq!(refused, [(5, Status::Busy)]);
    let done: Vec<_> = cluster.told(0, Verb::Done).iter().map(|(head, _)| (head.id, head.status)).collect();
    assert_eq!(done, [6, 7, 8].map(|id| (id, Status::Busy)));
    let came: Vec<_> = cluster.told(1, Verb::Deliver).into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(came, [b"on"], "operations under way continue");
}

/// A new map of a copy that was just given up waits until its home writes to it no more, and asks
/// once.
#[test]
fn a_copy_that_is_given_up_can_be_had_again() {
    let mut cluster = Cluster::new();
    let window = |verb, port, id| Head { port, id, node: NodeId(0), ..Head::new(verb, Use::Windows) };
    for node in 0..2 {
        cluster.cores[node].attach(ClientId(0));
    }
    cluster.say(0, ClientId(0), Head { value: 64, ..window(Verb::Create, 1, 1) }, b"w").unwrap();
    cluster.settle();
    for port in [1, 2, 3] {
        cluster.say(1, ClientId(0), window(Verb::Open, port, 1), b"w").unwrap();
    }
    cluster.settle();
    cluster.say(1, ClientId(0), window(Verb::Map, 1, 2), &[]).unwrap();
    cluster.settle();
    cluster.told(1, Verb::Done);
    cluster.say(1, ClientId(0), window(Verb::Close, 1, 0), &[]).unwrap();
    for port in [2, 3] {
        cluster.say(1, ClientId(0), window(Verb::Map, port, u64::from(port)), &[]).unwrap();
    }
    assert!(cluster.told(1, Verb::Done).is_empty(), "its home may still write to it");
    cluster.say(1, ClientId(0), window(Verb::Close, 3, 0), &[]).unwrap();
    cluster.settle();
    let done: Vec<_> = cluster.told(1, Verb::Done).iter().map(|(head, _)| (head.id, head.status)).collect();
    assert_eq!(done, [(2, Status::Ok), (3, Status::Ok)]);
    // All that waited for it close their views meanwhile.
    cluster.say(1, ClientId(0), window(Verb::Close, 2, 0), &[]).unwrap();
    cluster.say(1, ClientId(0), window(Verb::Open, 4, 4), b"w").unwrap();
    while cluster.told(1, Verb::Done).is_empty() {
        cluster.deliver(1);
    }
    cluster.settle();
    for node in 0..2 {
        cluster.cores[node].forget(&mut Acting(node, &mut cluster.way), ClientId(0));
    }
    cluster.settle();
    cluster.cores.truncate(2);
    cluster.assert_nothing_is_left();
}
