//! The rails that carried a measurement, and the reason for them.

use plexus_observe::snapshot::{Rail, explain};

/// The rails between two sides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Over {
    /// The rail that carried the messages, as in `shm`, `tcp` or, where several share the bulk,
    /// `tcp x 2`.
    pub rail: String,
    /// True if all of these rails encrypt.
    pub encrypted: bool,
    /// The reason for these rails.
    pub why: String,
}

impl Over {
    /// Returns the rails to `peer` in a report of a node. A measurement uses the first worker.
    pub fn of(rails: &[Rail], peer: &str) -> Self {
        let mut rails: Vec<&Rail> =
            rails.iter().filter(|rail| rail.peer == peer && rail.worker == 0).collect();
        rails.sort_by_key(|rail| (!rail.is_active(), rail.slot));
        let active: Vec<&Rail> = rails.iter().copied().filter(|rail| rail.is_active()).collect();
        let mut names: Vec<(&str, usize)> = Vec::new();
        for rail in &active {
            match names.iter_mut().find(|(kind, _)| *kind == rail.kind) {
                Some((_, times)) => *times += 1,
                None => names.push((&rail.kind, 1)),
            }
        }
        let names = names.iter().map(|(kind, times)| match times {
            1 => (*kind).to_owned(),
            _ => format!("{kind} x {times}"),
        });
        let whys = rails.iter().map(|rail| {
            let Rail { kind, path, state, reason, .. } = rail;
            let meaning = explain(reason).unwrap_or("for a reason that this version does not know");
            format!("{kind} ({path}) {state}, {reason}: {meaning}")
        });
        Self {
            rail: names.collect::<Vec<_>>().join(" + "),
            encrypted: !active.is_empty() && active.iter().all(|rail| rail.encrypted),
            why: whys.collect::<Vec<_>>().join("; "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(kind: &str, slot: u8, state: &str, reason: &str, encrypted: bool) -> Rail {
        let text = str::to_owned;
        let (kind, state, reason) = (text(kind), text(state), text(reason));
        Rail {
            peer: "n2".into(),
            path: format!("path {slot}"),
            kind,
            slot,
            state,
            reason,
            encrypted,
            ..Rail::default()
        }
    }

    #[test]
    fn what_carries_comes_first_and_all_say_why() {
        let over = Over::of(
            &[rail("tcp", 1, "standby", "slower", true), rail("shm", 0, "active", "best", false)],
            "n2",
        );
        assert_eq!((&*over.rail, over.encrypted), ("shm", false));
        assert!(over.why.starts_with("shm (path 0) active, best: the best rail"), "{}", over.why);
        assert!(over.why.contains("; tcp (path 1) standby, slower: a better rail"), "{}", over.why);
    }

    #[test]
    fn several_at_once_are_counted_and_those_of_others_are_not() {
        let other = Rail { peer: "n3".into(), ..rail("shm", 0, "active", "best", false) };
        let second = Rail { worker: 1, ..rail("tcp", 0, "active", "best", false) };
        let striped = [rail("tcp", 0, "active", "best", true), rail("tcp", 1, "active", "striped", true)];
        let over = Over::of(&[striped.to_vec(), vec![other, second]].concat(), "n2");
        assert_eq!((&*over.rail, over.encrypted), ("tcp x 2", true));
        assert!(over.why.contains("striped: as good as the best one"), "{}", over.why);
    }
}
