//! Locks with fencing tokens.
//!
//! The tokens of a name say in which order its grants must have happened, so nothing need be searched. A grant happened between `asked` and `granted`; its
//! lock was certainly held until `known_until`. In the order of the tokens, each grant is put at the earliest moment that those before it leave: none
//! of those that it excludes may be held any more, or be granted later. If that moment is after its answer, no server can have done what the clients saw;
//! if it never is, these moments are what one did.

use std::{collections::BTreeMap, fmt};

/// A lock that a client was granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Of what.
    pub name: String,
    /// Whether it excludes all others, or only those that do.
    pub exclusive: bool,
    /// Its fencing token.
    pub token: u64,
    /// When the client asked.
    pub asked: u64,
    /// When it had the answer.
    pub granted: u64,
    /// The last moment at which it is sure to have had the lock; `asked` where it is sure of none. An answer may come late: when the client has it,
    /// the lock may be another's.
    pub known_until: u64,
}

/// Two holds that no server grants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlap {
    /// The one with the smaller token.
    pub first: Hold,
    /// The other.
    pub then: Hold,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, then, what } = self;
        write!(f, "{:?}: {what}", first.name)?;
        for hold in [first, then] {
            let kind = if hold.exclusive { "exclusive" } else { "shared" };
            let [asked, granted, known] =
                [hold.asked, hold.granted, hold.known_until].map(|ns| ns as f64 / 1e6);
            write!(
                f,
                "\n  token {}, {kind}: asked at {asked:.3} ms, granted at {granted:.3}, held at {known:.3}",
                hold.token
            )?;
        }
        Ok(())
    }
}

/// Whether one server could have granted these.
///
/// # Errors
/// The first two, by their tokens, that it could not.
pub fn check(holds: &[Hold]) -> Result<(), Box<Overlap>> {
    let mut names: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in holds {
        names.entry(&hold.name).or_default().push(hold);
    }
    names.into_values().try_for_each(|mut of_name| {
        of_name.sort_by_key(|hold| (hold.token, hold.asked));
        check_name(&of_name)
    })
}

/// Of the holds so far, those that reach furthest.
#[derive(Clone, Copy, Default)]
struct Latest<'a> {
    asked: Option<&'a Hold>,
    held: Option<&'a Hold>,
}

impl<'a> Latest<'a> {
    fn take_up(&mut self, hold: &'a Hold) {
        if self.asked.is_none_or(|latest| latest.asked < hold.asked) {
            self.asked = Some(hold);
        }
        if self.held.is_none_or(|latest| latest.known_until < hold.known_until) {
            self.held = Some(hold);
        }
    }

    /// Whether `then` could have been granted after all of them.
    fn before(&self, then: &Hold) -> Result<(), Box<Overlap>> {
        let wrong =
            |first: &Hold, what| Err(Box::new(Overlap { first: first.clone(), then: then.clone(), what }));
        match self {
            Self { asked: Some(first), .. } if first.asked > then.granted => {
                wrong(first, "the greater token was granted before the smaller was asked for")
            }
            Self { held: Some(first), .. } if first.known_until > then.granted => {
                wrong(first, "the second was granted while the first was held")
            }
            _ => Ok(()),
        }
    }
}

/// The holds of one name, in the order of their tokens.
fn check_name(holds: &[&Hold]) -> Result<(), Box<Overlap>> {
    let (mut exclusive, mut shared) = (Latest::default(), Latest::default());
    let mut last: Option<&Hold> = None;
    for &hold in holds {
        if let Some(first) = last.filter(|last| last.token == hold.token) {
            let what = "two grants with one token";
            return Err(Box::new(Overlap { first: first.clone(), then: hold.clone(), what }));
        }
        exclusive.before(hold)?;
        if hold.exclusive {
            shared.before(hold)?;
            exclusive.take_up(hold);
        } else {
            shared.take_up(hold);
        }
        last = Some(hold);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plexus_sim::Random;

    fn hold(token: u64, [asked, granted, known_until]: [u64; 3]) -> Hold {
        Hold { name: "a".into(), exclusive: true, token, asked, granted, known_until }
    }

    fn shared(token: u64, times: [u64; 3]) -> Hold {
        Hold { exclusive: false, ..hold(token, times) }
    }

    #[test]
    fn who_comes_after_the_other_is_fine() {
        check(&[hold(2, [15, 30, 40]), hold(1, [0, 10, 20])]).unwrap();
        // Asked for at once: either may have been first. What is held is held before the next has its answer.
        check(&[hold(1, [5, 30, 30]), hold(2, [0, 30, 40])]).unwrap();
        check(&[shared(1, [0, 10, 50]), shared(2, [0, 20, 60]), hold(3, [0, 61, 70])]).unwrap();
        // Of two that go together the tokens need not be in order.
        check(&[shared(2, [0, 10, 20]), shared(1, [30, 40, 50])]).unwrap();
        check(&[Hold { name: "b".into(), ..hold(1, [0, 10, 99]) }, hold(1, [0, 10, 99])]).unwrap();
    }

    #[test]
    fn what_no_server_does_is_named() {
        let wrong = |holds: &[Hold]| check(holds).unwrap_err().what;
        let held = "the second was granted while the first was held";
        let order = "the greater token was granted before the smaller was asked for";
        assert_eq!(wrong(&[hold(1, [0, 10, 31]), hold(2, [15, 30, 40])]), held);
        assert_eq!(wrong(&[hold(2, [0, 10, 20]), hold(1, [30, 40, 50])]), order);
        assert_eq!(wrong(&[hold(1, [0, 10, 20]), hold(1, [30, 40, 50])]), "two grants with one token");
        assert_eq!(wrong(&[shared(1, [0, 10, 31]), hold(2, [15, 30, 40])]), held);
        assert_eq!(wrong(&[hold(1, [0, 10, 31]), shared(2, [15, 30, 40])]), held);
        // Not the one just before it, but one before that.
        assert_eq!(wrong(&[hold(1, [0, 10, 90]), shared(2, [0, 95, 96]), hold(3, [0, 80, 99])]), held);
    }

    /// What clients saw of a server that grants one lock, to some of them together.
    fn reference(random: &mut Random) -> Vec<Hold> {
        let (mut now, mut token, mut holds) = (100, 0, Vec::new());
        for _ in 0..1 + random.below(40) {
            let exclusive = random.below(3) > 0;
            let many = if exclusive { 1 } else { 1 + random.below(3) };
            let mut free = now;
            for _ in 0..many {
                token += 1 + random.below(3);
                let at = now + random.below(5);
                let released = at + 1 + random.below(30);
                free = free.max(released);
                let asked = at - random.below(100).min(at);
                let granted = at + random.below(40);
                // Who was told late, or died before, is not known to have held it for long.
                let known_until = granted.max(at + random.below(released - at));
                let granted_late = granted > released;
                let known_until = if granted_late { granted } else { known_until.min(released.max(granted)) };
                holds.push(Hold { exclusive, ..hold(token, [asked, granted, known_until]) });
                // A hold that is known to have lasted holds the others up.
                free = free.max(known_until);
            }
            now = free + 1 + random.below(10);
        }
        holds
    }

    #[test]
    fn what_a_server_grants_is_fine_and_every_change_for_the_worse_is_not() {
        let (mut overlaps, mut against_time) = (0, 0);
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let good = reference(&mut random);
            check(&good).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            let last = good.len() - 1;
            let pick = random.below(good.len() as u64) as usize;
            let other =
                good.iter().position(|other| other.granted > good[pick].known_until && other.exclusive);
            let Some(other) = other.filter(|_| pick != last) else { continue };
            let mut longer = good.clone();
            longer[pick].known_until = good[other].granted + 1;
            assert!(check(&longer).is_err(), "seed {seed}: held on while another was granted");
            let mut same = good.clone();
            same[other].token = good[pick].token;
            assert!(check(&same).is_err(), "seed {seed}: two with one token");
            overlaps += 1;
            if good[pick].granted < good[other].asked {
                let mut swapped = good.clone();
                swapped[pick].token = good[other].token;
                swapped[other].token = good[pick].token;
                assert!(check(&swapped).is_err(), "seed {seed}: tokens against time");
                against_time += 1;
            }
        }
        assert!(overlaps > 1000 && against_time > 100, "{overlaps}, {against_time}");
    }
}
