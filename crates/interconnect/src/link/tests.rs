//! Tests of the driver of a link over a scripted rail.

use plexus_fabric::{Lost, RailKind, SendError, WindowId};

use super::{
    MAX_MESSAGE, Request,
    fake::{Fake, put},
    protocol::RailClosed,
};
use crate::{Kind, inbox::Inbox};

#[test]
fn a_put_outside_the_window_ends_the_link_even_from_the_queue() {
    for first in [SendError::Full, SendError::TooLarge] {
        let fake = Fake::default();
        let mut link = fake.link(RailKind::Tcp);
        let (epoch, channel, put) = put(b"data");
        fake.script().refuses = Some(first);
        link.put(epoch, channel, Kind::Request, 0, put, b"behind it");
        assert_eq!(link.lost().is_some(), first == SendError::TooLarge);
        fake.script().refuses = Some(SendError::TooLarge);
        link.flush();
        assert!(matches!(link.lost(), Some(Lost::Closed(_))), "{:?}", link.lost());
    }
}

#[test]
fn a_peer_that_closes_endless_rails_and_reads_nothing_is_lost() {
    let fake = Fake::default();
    let mut link = fake.link(RailKind::Tcp);
    fake.script().refuses = Some(SendError::Full);
    let told = (1..1_000).find(|generation| {
        fake.add_closed_notice(RailClosed { slot: 3, generation: *generation, received: [0, 0], had: true });
        link.poll(&mut Inbox::default());
        link.flush();
        link.lost().is_some()
    });
    assert!(told.is_some_and(|told| told < 200), "{told:?}");
}

#[test]
fn a_lost_link_has_events() {
    let fake = Fake::default();
    let mut link = fake.link(RailKind::Tcp);
    assert!(!link.pending());
    link.fail(Lost::Silent);
    assert!(link.pending());
}

#[test]
fn a_get_longer_than_a_message_is_refused_over_memory_too() {
    let mut link = Fake::default().link(RailKind::Shm);
    let lengths = [MAX_MESSAGE, MAX_MESSAGE + 1].map(|len| {
        let (mut answer, len) = (vec![1], len as u32);
        assert!(link.direct(Request::Get { window: WindowId(1), offset: 0, len }, &mut answer));
        answer.len()
    });
    assert_eq!(lengths, [MAX_MESSAGE, 0]);
}
