//! The modes in which a thread waits for the interconnect.

/// The waiting mode of a node, set in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Waiting {
    /// Never sleep: the lowest latency, at the cost of one core for each waiting thread.
    Polling,
    /// Sleep as soon as there is nothing to do: the least CPU, with a wake-up in every response
    /// time.
    Event,
    /// Poll for a short time, yielding the core to other threads, then sleep.
    #[default]
    Adaptive,
}

crate::named! { impl Waiting as "waiting mode" { Polling "polling", Event "event", Adaptive "adaptive" } }
