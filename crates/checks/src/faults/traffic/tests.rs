//! The check detects peers that repeat, skip or change messages, or put too late.

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use plexus_base::Waiting;
use plexus_fabric::RailKind;
use plexus_interconnect::mesh::Mesh;

use super::{super::member::Member, *};

#[derive(Clone, Copy, Debug)]
enum Lie {
    None,
    Twice,
    Skipped,
    Changed,
    NotInPlace,
    LatePut,
    NotAsked,
}

/// A peer that sends one correct or incorrect message and ignores all others.
struct Liar(Lie);

impl Liar {
    /// Sends a message with one byte changed; the first message has only its number.
    fn message(net: &mut Net, number: u64, changed: usize) {
        let mut bytes = Vec::new();
        content(&mut bytes, Channel::Datagrams, number, length(Channel::Datagrams, number));
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        if let Some(byte) = bytes.get_mut(changed) {
            *byte ^= 1;
        }
        net.send(NodeId(0), Channel::Datagrams, Kind::Request, DATA, &bytes).unwrap();
    }

    /// Sends a put to the place of `number` with the content of `of`.
    fn put(net: &mut Net, number: u64, of: u64) {
        let mut data = Vec::new();
        content(&mut data, CHANNELS[PUTS], of, PLACE);
        let offset = number % PLACES * PLACE as u64;
        let put = Put { window: WINDOW, offset, generation: 0, data: &data };
        net.put(NodeId(0), CHANNELS[PUTS], Kind::Request, DATA, put, &number.to_le_bytes()).unwrap();
    }
}

impl Service for Liar {
    type Task = ();

    fn message(&mut self, _: &mut Net, _: Message<'_>) {}

    fn task(&mut self, _: &mut Net, (): ()) {}

    fn peer_up(&mut self, net: &mut Net, _: NodeId) {
        match self.0 {
            Lie::None => (0..3).for_each(|number| Self::message(net, number, usize::MAX)),
            Lie::Twice => (0..2).for_each(|_| Self::message(net, 0, usize::MAX)),
            Lie::Skipped => Self::message(net, 1, usize::MAX),
            Lie::Changed => (0..2).for_each(|number| Self::message(net, number, 8)),
            Lie::NotInPlace => Self::put(net, 0, 1),
            Lie::LatePut => {
                (0..PLACES / 2).for_each(|number| Self::put(net, number, number));
                // An older put for place 0 comes late, behind a correct put on the same lane.
                let mut bytes = Vec::new();
                content(&mut bytes, Channel::Files, 0, length(Channel::Files, 0));
                bytes[..8].copy_from_slice(&0_u64.to_le_bytes());
                let late = Put { window: WINDOW, offset: 0, generation: 0, data: &[9; PLACE] };
                net.put(NodeId(0), Channel::Files, Kind::Request, DATA, late, &bytes).unwrap();
                Self::put(net, PLACES / 2, PLACES / 2);
            }
            Lie::NotAsked => {
                let number = IN_FLIGHT.to_le_bytes();
                net.send(NodeId(0), Channel::Files, Kind::Reply, ACKNOWLEDGED, &number).unwrap();
            }
        }
    }

    fn peer_gone(&mut self, _: &mut Net, _: NodeId, _: &Lost) {}
}

/// Returns the error that the check reports.
fn said_of(lie: Lie) -> Option<String> {
    let address = || vec![TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()];
    let addresses = [address(), address()];
    let cluster = u64::from(std::process::id()) << 16 | u64::from(addresses[0][0].port());
    let config = |me: u8| {
        let member = Member {
            me,
            cluster,
            incarnation: 1,
            rail: RailKind::Tcp,
            encrypt: false,
            listen: addresses[usize::from(me)].clone(),
            peer: addresses[usize::from(1 - me)].clone(),
            namespace: None,
        };
        let window = Arc::new(Window::create(WINDOW, WINDOW_BYTES, 0).unwrap());
        (window.clone(), member.config(window))
    };
    let observed = Arc::<Observed>::default();
    let (window, honest) = config(0);
    assert_eq!(honest.waiting, Waiting::Event);
    let honest =
        Mesh::start(honest, vec![Traffic::new(NodeId(1), window, observed.clone())], |_| ()).unwrap();
    let liar = Mesh::start(config(1).1, vec![Liar(lie)], |_| ()).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let done = || {
        observed.first_wrong().is_some() || observed.received.load(Relaxed) >= 3 && matches!(lie, Lie::None)
    };
    while !done() {
        assert!(Instant::now() < end, "{lie:?} was not detected");
        thread::sleep(Duration::from_millis(1));
    }
    liar.stop();
    honest.stop();
    observed.first_wrong()
}

#[test]
fn each_misbehaving_peer_is_detected_and_a_correct_one_is_not() {
    assert_eq!(said_of(Lie::None), None);
    for (lie, part) in [
        (Lie::Twice, "datagrams: message Some(0) came where 1 was due"),
        (Lie::Skipped, "datagrams: message Some(1) came where 0 was due"),
        (Lie::Changed, "datagrams: message 1 came changed"),
        (Lie::NotInPlace, "put 0 is not in place"),
        (Lie::LatePut, "put 0 was overwritten by an older one"),
        (Lie::NotAsked, "files: an acknowledgement that is not due"),
    ] {
        assert_eq!(said_of(lie).as_deref(), Some(part));
    }
}
