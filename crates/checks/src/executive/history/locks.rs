//! Judges locks by their fencing tokens.
//!
//! The tokens of a name give the order of its grants, so no search is needed. A grant happened
//! between `asked` and `granted`; its lock was certainly held until `known_until`. In the order of
//! the tokens, each grant is put at the earliest moment that the earlier ones allow: no conflicting
//! lock may be held then or be granted later. If that moment is after the answer, no server can
//! have produced the history. Otherwise these moments are a valid order.

use std::{collections::BTreeMap, fmt};

/// A lock that a client was granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// The name of the lock.
    pub name: String,
    /// True for an exclusive lock, false for a shared one.
    pub exclusive: bool,
    /// Its fencing token.
    pub token: u64,
    /// The time of the request.
    pub asked: u64,
    /// The time at which the client had the answer.
    pub granted: u64,
    /// The last moment at which the client certainly had the lock, or `asked` if there is none. An
    /// answer may come late, when another client already has the lock.
    pub known_until: u64,
}

/// Two holds that no server grants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlap {
    /// The hold with the smaller token.
    pub first: Hold,
    /// The other hold.
    pub then: Hold,
    /// The violated rule.
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

/// Checks that one server could have granted these locks.
///
/// # Errors
/// The first two holds, by token, that conflict.
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

/// The holds so far that reach furthest.
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

    /// Checks that `then` could have been granted after all of them.
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

/// Checks the holds of one name, in the order of their tokens.
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
    fn sequential_holds_are_accepted() {
        check(&[hold(2, [15, 30, 40]), hold(1, [0, 10, 20])]).unwrap();
        // Requested at the same time: either may have been first. The lock is held before the next
        // has its answer.
        check(&[hold(1, [5, 30, 30]), hold(2, [0, 30, 40])]).unwrap();
        check(&[shared(1, [0, 10, 50]), shared(2, [0, 20, 60]), hold(3, [0, 61, 70])]).unwrap();
        // The tokens of two compatible holds need not be in order.
        check(&[shared(2, [0, 10, 20]), shared(1, [30, 40, 50])]).unwrap();
        check(&[Hold { name: "b".into(), ..hold(1, [0, 10, 99]) }, hold(1, [0, 10, 99])]).unwrap();
    }

    #[test]
    fn overlapping_holds_are_refused() {
        let wrong = |holds: &[Hold]| check(holds).unwrap_err().what;
        let held = "the second was granted while the first was held";
        let order = "the greater token was granted before the smaller was asked for";
        assert_eq!(wrong(&[hold(1, [0, 10, 31]), hold(2, [15, 30, 40])]), held);
        assert_eq!(wrong(&[hold(2, [0, 10, 20]), hold(1, [30, 40, 50])]), order);
        assert_eq!(wrong(&[hold(1, [0, 10, 20]), hold(1, [30, 40, 50])]), "two grants with one token");
        assert_eq!(wrong(&[shared(1, [0, 10, 31]), hold(2, [15, 30, 40])]), held);
        assert_eq!(wrong(&[hold(1, [0, 10, 31]), shared(2, [15, 30, 40])]), held);
        // The conflict is with an earlier hold than the previous one.
        assert_eq!(wrong(&[hold(1, [0, 10, 90]), shared(2, [0, 95, 96]), hold(3, [0, 80, 99])]), held);
    }

    /// Returns the history of a server that grants one lock, also to several clients together.
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
                // A client with a late answer, or that died before, is not known to have held it
                // for long.
                let known_until = granted.max(at + random.below(released - at));
                let granted_late = granted > released;
                let known_until = if granted_late { granted } else { known_until.min(released.max(granted)) };
                holds.push(Hold { exclusive, ..hold(token, [asked, granted, known_until]) });
                // A hold that is known to have lasted delays the others.
                free = free.max(known_until);
            }
            now = free + 1 + random.below(10);
        }
        holds
    }

    #[test]
    fn generated_holds_are_accepted_and_corrupted_ones_refused() {
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
