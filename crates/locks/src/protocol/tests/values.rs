//! The value block that a new master knows after the death of the one before.

use super::*;

/// Creates three nodes and a name that the third masters. Lock 1 on the first node is held in
/// `mode` and converted to CR, and the master's answer is lost. Then lock 2 on the second node
/// writes in PW.
fn gone_down_unheard(mode: Mode, value: Option<[u8; VALUE_LEN]>) -> (Few, Vec<u8>) {
    let mut few = Few::new(&[0, 1, 2]);
    let name = few.name_at(2);
    few.lock(0, 1, FIRST, &name, mode, WaitLimit::Forever);
    few.held_up = true;
    few.convert(0, 1, Mode::CR, value);
    let (_, _, convert) = few.said.remove(0);
    few.hand(2, Event::Message { from: NodeId(0), incarnation: Incarnation(1), message: convert });
    assert_eq!(few.said.drain(..).count(), 1, "an answer");
    few.held_up = false;
    few.lock(1, 2, FIRST, &name, Mode::PW, WaitLimit::Forever);
    few.convert(1, 2, Mode::PR, Some([2; VALUE_LEN]));
    assert_eq!(few.value_of(2), (2, Validity::Valid));
    (few, name)
}

fn the_third_dies(few: &mut Few) {
    few.held_up = true;
    few.enter([0, 1], &view(2, &[0, 1]));
    few.said.retain(|(_, to, _)| *to != NodeId(2));
    few.go_on();
}

#[test]
fn a_holder_whose_conversion_answer_was_lost_does_not_know_the_value() {
    let (mut few, name) = gone_down_unheard(Mode::PR, None);
    few.unlock(1, 2, None);
    the_third_dies(&mut few);
    few.lock(1, 3, FIRST, &name, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.value_of(3).1, Validity::Lost);
}

#[test]
fn a_repeated_write_does_not_replace_later_values() {
    let (mut few, name) = gone_down_unheard(Mode::PW, Some([1; VALUE_LEN]));
    few.unlock(1, 2, None);
    the_third_dies(&mut few);
    few.lock(1, 3, FIRST, &name, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.value_of(3), (1, Validity::Lost), "the last known value");
    let (mut few, name) = gone_down_unheard(Mode::PW, Some([1; VALUE_LEN]));
    the_third_dies(&mut few);
    few.lock(0, 3, FIRST, &name, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.value_of(3), (2, Validity::Valid), "its holder knows the value");
}

#[test]
fn a_holder_that_asked_only_the_new_master_still_knows_the_value() {
    let mut few = Few::new(&[0, 1, 2]);
    let name = few.name_at(2);
    let next = view(2, &[0, 1]).master(Name::new(&name).expect("a name").partition()).index();
    let holder = 1 - next;
    few.lock(next, 1, FIRST, &name, Mode::NL, WaitLimit::Forever);
    few.lock(holder, 2, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.convert(holder, 2, Mode::EX, Some([5; VALUE_LEN]));
    few.held_up = true;
    few.event(holder, Event::View(view(2, &[0, 1])));
    few.convert(holder, 2, Mode::CR, None);
    // Sent in the new view: it cannot have been granted before the new master asks for held locks.
    few.event(next, Event::View(view(2, &[0, 1])));
    few.said.retain(|(_, to, _)| *to != NodeId(2));
    few.go_on();
    few.lock(next, 3, FIRST, &name, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.value_of(3), (5, Validity::Valid));
}
