//! The spread of a measurement that was repeated: median, extremes and number.

/// The median, the extremes and the number of some values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spread {
    /// The middle value, or the mean of the two middle values.
    pub median: f64,
    /// The smallest value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
    /// The number of values.
    pub count: usize,
}

impl Spread {
    /// Computes the spread; returns `None` for no values.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let [least, most] = [*sorted.first()?, *sorted.last()?];
        let half = sorted.len() / 2;
        let median = match sorted.len().is_multiple_of(2) {
            true => f64::midpoint(sorted[half - 1], sorted[half]),
            false => sorted[half],
        };
        Some(Self { median, least, most, count: sorted.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_count_is_the_mean_of_the_middle_values() {
        let spread = |median, least, most, count| Some(Spread { median, least, most, count });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 100.0]), spread(3.0, 1.0, 100.0, 4));
        assert_eq!(Spread::of(&[4.0, 1.0, 100.0]), spread(4.0, 1.0, 100.0, 3));
        assert_eq!(Spread::of(&[4.0]), spread(4.0, 4.0, 4.0, 1));
        assert_eq!(Spread::of(&[]), None);
    }
}
