//! The parameters of the lock workload.

use serde::{Deserialize, Serialize};

use crate::{
    named,
    workload::{check_clients, check_times},
};

named! {
    /// The locks that the clients take.
    #[derive(Default)]
    Names, "names" {
        /// Each client its own, mastered by its node.
        #[default]
        Local "local",
        /// Each client its own, mastered by another node.
        Remote "remote",
        /// All clients of all nodes the same one.
        Shared "shared",
    }
}

/// A workload, the same on every node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Clients on each node that has any.
    pub clients: u32,
    /// The number of nodes, from the first, that have clients; the others only answer.
    pub active: usize,
    /// The locks that the clients take.
    pub names: Names,
    /// Milliseconds before measuring begins.
    pub warm_ms: u64,
    /// Milliseconds that are measured.
    pub measured_ms: u64,
}

impl Default for Workload {
    fn default() -> Self {
        Self { clients: 1, active: 1, names: Names::default(), warm_ms: 300, measured_ms: 3000 }
    }
}

impl Workload {
    /// Checks that `nodes` nodes can run the workload.
    ///
    /// # Errors
    /// One line that names the parameter to change.
    pub fn check(&self, nodes: usize) -> Result<(), String> {
        check_clients(self.clients)?;
        check_times(self.warm_ms, self.measured_ms)?;
        if !(1..=nodes).contains(&self.active) {
            return Err(format!("clients on {} nodes of {nodes}: use 1 to {nodes}", self.active));
        }
        if self.names == Names::Remote && nodes < 2 {
            return Err("names that another node masters take two nodes or more".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_what_to_do() {
        let good = Workload::default();
        assert_eq!(good.check(1), Ok(()));
        for (bad, part) in [
            (Workload { clients: 0, ..good.clone() }, "0 clients"),
            (Workload { active: 2, ..good.clone() }, "use 1 to 1"),
            (Workload { names: Names::Remote, ..good.clone() }, "two nodes"),
            (Workload { measured_ms: 1, ..good.clone() }, "measure for"),
        ] {
            let why = bad.check(1).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
