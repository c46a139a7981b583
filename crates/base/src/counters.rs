//! Counters that are always on: one writer each, any number of readers, a few nanoseconds per
//! count.
//!
//! A counter belongs to the thread that drives a worker, one at a time. So adding is a plain load
//! and store instead of a locked instruction, and a reader may see a value that is one addition
//! old.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count with one writer at a time.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the single writer may call this.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Returns the current count.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares a structure of counts. It has the sum of two, and all counts with their names.
///
/// ```
/// plexus_base::counts! {
///     /// The counts of a queue.
///     pub struct QueueCounts {
///         /// The items that were queued.
///         queued,
///         /// The items that were dropped.
///         dropped,
///     }
/// }
/// let mut counts = QueueCounts { queued: 2, dropped: 0 };
/// counts.add(&QueueCounts { queued: 1, dropped: 1 });
/// assert_eq!(counts.named(), [("queued", 3), ("dropped", 1)]);
/// ```
#[macro_export]
macro_rules! counts {
    ($(#[$doc:meta])* $vis:vis struct $counts:ident { $($(#[$about:meta])* $name:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        $vis struct $counts {
            $($(#[$about])* pub $name: u64,)*
        }

        impl $counts {
            /// Adds the counts of another structure.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Returns all counts with their names.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

/// The upper bounds, in bytes, of the size classes; the last class has no bound.
pub const SIZE_BOUNDS: [u64; SIZES - 1] =
    [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536, 262_144, 1_048_576];

/// The number of size classes.
pub const SIZES: usize = 16;

/// Returns the class in [`SIZE_BOUNDS`] of a message of `bytes`.
#[must_use]
pub fn size_class(bytes: u64) -> usize {
    // Powers of two up to 16 KiB, then steps of four: a few instructions, no search.
    match bytes {
        0..=8 => 0,
        9..=16384 => (64 - (bytes - 1).leading_zeros()) as usize - 3,
        16385..=65536 => 12,
        65537..=262_144 => 13,
        262_145..=1_048_576 => 14,
        _ => 15,
    }
}

/// Counts of messages and bytes by size class.
#[derive(Debug, Default)]
pub struct SizeCounters {
    /// Messages and bytes of a class, side by side, so that a count changes one cache line.
    classes: [[Counter; 2]; SIZES],
}

impl SizeCounters {
    /// Counts one message of `bytes`.
    pub fn count(&self, bytes: u64) {
        let [messages, sum] = &self.classes[size_class(bytes)];
        messages.add(1);
        sum.add(bytes);
    }

    /// Returns the current counts.
    #[must_use]
    pub fn snapshot(&self) -> SizeCounts {
        SizeCounts {
            messages: self.classes.each_ref().map(|[messages, _]| messages.value()),
            bytes: self.classes.each_ref().map(|[_, bytes]| bytes.value()),
        }
    }
}

/// The counts of [`SizeCounters`] at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SizeCounts {
    /// The messages by size class.
    pub messages: [u64; SIZES],
    /// The bytes by size class.
    pub bytes: [u64; SIZES],
}

impl SizeCounts {
    /// Returns the number of all messages.
    #[must_use]
    pub fn total_messages(&self) -> u64 {
        self.messages.iter().sum()
    }

    /// Returns the number of all bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Adds other counts, class by class.
    pub fn add(&mut self, other: &Self) {
        for class in 0..SIZES {
            self.messages[class] += other.messages[class];
            self.bytes[class] += other.bytes[class];
        }
    }

    /// Returns the counts since `earlier`, class by class.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            messages: std::array::from_fn(|class| {
                self.messages[class].saturating_sub(earlier.messages[class])
            }),
            bytes: std::array::from_fn(|class| self.bytes[class].saturating_sub(earlier.bytes[class])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_falls_into_the_first_class_that_holds_it() {
        for bytes in (0..70_000).chain([262_143, 262_144, 262_145, 1_048_576, 1_048_577, u64::MAX]) {
            let searched = SIZE_BOUNDS.iter().position(|bound| bytes <= *bound).unwrap_or(SIZES - 1);
            assert_eq!(size_class(bytes), searched, "{bytes} bytes");
        }
    }

    #[test]
    fn counts_add_up() {
        let counters = SizeCounters::default();
        counters.count(8);
        let before = counters.snapshot();
        counters.count(16384);
        let delta = counters.snapshot().since(&before);
        assert_eq!((delta.total_messages(), delta.total_bytes()), (1, 16384));
    }
}
