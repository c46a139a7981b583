//! What a node has said yes to and not been told to keep yet: a list of nodes with one more at its end.
//!
//! Who has a node added asks all members whether they list it so, and tells them to keep it when all have said yes. What is kept is what was looked
//! at, so nobody who said yes must say no. All are asked and told in one order, and each has only what it was asked for last: of two lists that are
//! asked for at once the same one is kept by all, or none. Where nobody is told to keep it, it does no harm: the next that is asked for takes its place.
//!
//! Not known here: where lists come from, who asks, and what keeping means.

use crate::boot::config::Nodes;

/// See the module.
#[derive(Default)]
pub(super) struct Promise(Option<(u64, Nodes)>);

impl Promise {
    /// Is asked whether nodes are listed as this fingerprint says; `look` has that list, or why it is another.
    pub(super) fn look(
        &mut self,
        fingerprint: u64,
        look: impl FnOnce() -> Result<Nodes, String>,
    ) -> Result<(), String> {
        // Whoever asked for the same may tell all to keep it yet, those who say no this time among them.
        self.0.take_if(|(promised, _)| *promised != fingerprint);
        self.0 = Some((fingerprint, look()?));
        Ok(())
    }

    /// What is to be kept.
    pub(super) fn nodes(&self, fingerprint: u64) -> Result<&Nodes, String> {
        let promised = self.0.as_ref().filter(|(promised, _)| *promised == fingerprint);
        promised
            .map(|(_, nodes)| nodes)
            .ok_or_else(|| "has not said yes to this list of nodes, or was asked for another since".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(name: &str) -> Nodes {
        let text = format!("name = \"{name}\"\nhost = \"h\"\naddress = \"127.0.0.1:7\"\nrails = [\"tcp\"]\n");
        [toml::from_str(&text).unwrap()].into_iter().collect()
    }

    /// A list, and what asks for it and has it kept.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Step {
        Look(u64),
        Keep(u64),
    }

    /// Two members go through these steps; what each has listed when it is asked says a bit of `listed`. What they keep.
    fn kept(steps: [Step; 4], listed: usize) -> [Vec<u64>; 2] {
        let mut members: [(Promise, Vec<u64>); 2] = Default::default();
        let mut agreed = [false; 2];
        let mut bits = (0..).map(|bit| (listed >> bit & 1) as u64);
        for step in steps {
            match step {
                Step::Look(wanted) => {
                    let mut yes = 0;
                    for (promise, _) in &mut members {
                        let has = bits.next().unwrap();
                        let look = || if has == wanted { Ok(list("n")) } else { Err("another".into()) };
                        yes += u32::from(promise.look(wanted, look).is_ok());
                    }
                    agreed[wanted as usize] |= yes == 2;
                }
                Step::Keep(wanted) if agreed[wanted as usize] => {
                    for (promise, kept) in &mut members {
                        kept.extend(promise.nodes(wanted).is_ok().then_some(wanted));
                    }
                }
                Step::Keep(_) => {}
            }
        }
        members.map(|(_, kept)| kept)
    }

    #[test]
    fn of_two_lists_that_are_asked_for_at_once_all_members_keep_the_same() {
        use Step::{Keep, Look};
        let orders = [
            [Look(0), Keep(0), Look(1), Keep(1)],
            [Look(0), Look(1), Keep(0), Keep(1)],
            [Look(0), Look(1), Keep(1), Keep(0)],
            [Look(0), Look(0), Keep(0), Keep(0)],
        ];
        let mut some = 0;
        for steps in orders {
            for listed in 0..16 {
                let [one, other] = kept(steps, listed);
                assert_eq!(one, other, "{steps:?}, {listed:04b}");
                some += usize::from(!one.is_empty());
            }
        }
        assert!(some > 10, "{some}");
    }

    #[test]
    fn what_is_kept_is_what_was_looked_at_however_often_it_is_told() {
        let mut promise = Promise::default();
        assert!(promise.nodes(7).is_err(), "was not asked");
        promise.look(7, || Ok(list("a"))).unwrap();
        for _ in 0..2 {
            assert_eq!(promise.nodes(7).unwrap(), &list("a"));
        }
        assert!(promise.nodes(8).is_err(), "was asked for another");
        promise.look(7, || Err("the file is another now".into())).unwrap_err();
        assert!(promise.nodes(7).is_ok(), "the one who asked before has its yes");
        promise.look(8, || Err("the file is another".into())).unwrap_err();
        assert!(promise.nodes(7).is_err() && promise.nodes(8).is_err());
    }
}
