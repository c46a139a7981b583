//! What a master that is not open keeps, as clients see it.

use super::*;

#[test]
fn what_is_given_up_while_the_members_change_is_not_kept() {
    let all = [0, 1, 2];
    let mut few = Few::new(&all);
    let name = few.name_at(0);
    few.lock(2, 0, FIRST, &name, Mode::NL, Patience::Forever);
    few.lock(1, 1, FIRST, &name, Mode::EX, Patience::Forever);
    assert_eq!(few.news(), ["0+NL", "1+EX"]);
    // The third has not heard of the view, and the others wait for it.
    for node in [0, 1] {
        few.event(node, Event::View(view(2, &all)));
    }
    for lock in 2..1_000 {
        few.lock(1, lock, FIRST, &name, Mode::PR, Patience::Forever);
        if lock % 2 == 0 {
            few.event(1, Event::Cancel { lock: LockId(lock) });
        }
        few.unlock(1, lock, None);
        assert_eq!(few.news(), [format!("{lock}-Cancelled")]);
    }
    assert!(!few.shards[0].is_open());
    few.convert(1, 1, Mode::PR, Some([1; VALUE_LEN]));
    few.unlock(1, 1, None);
    few.event(2, Event::View(view(2, &all)));
    few.lock(2, 1_000, FIRST, &name, Mode::EX, Patience::Try);
    assert_eq!(
        (few.value_of(1_000), few.news()),
        ((1, Validity::Valid), vec!["1-Cancelled".into(), "1000+EX".into()])
    );
}
