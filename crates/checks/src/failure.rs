//! The report of a run that found a failure.

use std::fmt;

use plexus_base::BlockId;

/// A property that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The file under `properties` that noticed it, or `assertion`.
    pub property: &'static str,
    /// The block concerned.
    pub block: Option<BlockId>,
    /// A description of the observed state.
    pub what: String,
}

impl Broken {
    /// Creates a failure of one block.
    pub fn new(property: &'static str, block: BlockId, what: String) -> Self {
        Self { property, block: Some(block), what }
    }

    /// Creates a failure of the whole run.
    pub fn general(property: &'static str, what: String) -> Self {
        Self { property, block: None, what }
    }
}

/// A failed run, with all that is needed to reproduce it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The scenario.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// The time of the failure in simulated nanoseconds.
    pub at: u64,
    /// The property that does not hold.
    pub broken: Broken,
    /// The last events of the block.
    pub history: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { property, block, what } = &self.broken;
        let about = block.map_or(String::new(), |block| format!("{block}: "));
        writeln!(
            f,
            "scenario {} seed {} at {} ns: property `{property}`: {about}{what}",
            self.scenario, self.seed, self.at
        )?;
        for line in &self.history {
            writeln!(f, "    {line}")?;
        }
        Ok(())
    }
}
