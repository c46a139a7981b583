//! Which value block a new master knows, when the one before has died.

use super::*;

/// Three nodes, a name that the third masters, and on the first lock 1, held in `mode` and converted down to CR by a master whose answer is never heard;
/// then 2 is written by the second node, in PW.
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
    [0, 1].into_iter().for_each(|node| few.event(node, Event::View(view(2, &[0, 1]))));
    few.said.retain(|(_, to, _)| *to != NodeId(2));
    few.go_on();
}

#[test]
fn who_has_gone_down_unheard_does_not_know_the_value_any_more() {
    let (mut few, name) = gone_down_unheard(Mode::PR, None);
    few.unlock(1, 2, None);
    the_third_dies(&mut few);
    few.lock(1, 3, FIRST, &name, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.value_of(3).1, Validity::Lost);
}

#[test]
fn what_was_written_unheard_is_not_written_again_over_what_others_wrote() {
    let (mut few, name) = gone_down_unheard(Mode::PW, Some([1; VALUE_LEN]));
    few.unlock(1, 2, None);
    the_third_dies(&mut few);
    few.lock(1, 3, FIRST, &name, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.value_of(3), (1, Validity::Lost), "the last that anybody knows of");
    let (mut few, name) = gone_down_unheard(Mode::PW, Some([1; VALUE_LEN]));
    the_third_dies(&mut few);
    few.lock(0, 3, FIRST, &name, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.value_of(3), (2, Validity::Valid), "its holder knows");
}

#[test]
fn who_has_asked_nobody_but_the_new_master_to_go_down_knows_the_value_still() {
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
    // Asked in the new view: nobody can have granted it when the new master asks who holds what.
    few.event(next, Event::View(view(2, &[0, 1])));
    few.said.retain(|(_, to, _)| *to != NodeId(2));
    few.go_on();
    few.lock(next, 3, FIRST, &name, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.value_of(3), (5, Validity::Valid));
}
