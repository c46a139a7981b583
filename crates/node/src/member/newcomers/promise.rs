//! The list of one more node that a member has agreed to and not yet kept.
//!
//! The node that adds a node asks all members whether their lists agree, and tells them to keep the
//! list when all do. A member keeps exactly the list that it compared, so it cannot fail then. All
//! requests come in one order, and a member stores only the last list that it compared. So of two
//! lists that are proposed at once, all members keep the same one, or none. A list that is never
//! kept does no harm: the next proposal replaces it.
//!
//! This module does not know the source of lists, the proposer, or the effect of keeping.

use plexus_admin::config::Nodes;

/// The last list that this member has agreed to.
#[derive(Default)]
pub(super) struct Promise(Option<(u64, Nodes)>);

impl Promise {
    /// Compares a list by its fingerprint; `look` returns the list, or the reason why it differs.
    pub(super) fn look(
        &mut self,
        fingerprint: u64,
        look: impl FnOnce() -> Result<Nodes, String>,
    ) -> Result<(), String> {
        // The proposer of the same list may still tell all to keep it, so an earlier agreement
        // stays.
        self.0.take_if(|(promised, _)| *promised != fingerprint);
        self.0 = Some((fingerprint, look()?));
        Ok(())
    }

    /// Returns the list to keep.
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
    use plexus_admin::config::NodeConfig;

    fn list(name: &str) -> Nodes {
        [NodeConfig::new(0, name, ([127, 0, 0, 1], 7).into(), Vec::new())].into_iter().collect()
    }

    /// A list, with the steps of its agreement.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Step {
        Look(u64),
        Keep(u64),
    }

    /// Runs these steps on two members and returns what they keep. The bits of `listed` say for
    /// each comparison whether the list agrees.
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
    fn all_members_keep_the_same_of_two_lists_that_are_proposed_at_once() {
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
    fn kept_list_is_the_compared_list_however_often_it_is_requested() {
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
