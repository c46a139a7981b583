//! Colours, texts and scales of all charts.

use std::fmt::Display;

use plotters::prelude::*;

/// Colours that colour-blind readers can tell apart (Okabe and Ito, 2008).
pub(super) const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 80, 66),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(240, 228, 66),
];

pub(super) const INK: RGBColor = RGBColor(40, 40, 40);
pub(super) const FAINT: RGBColor = RGBColor(222, 222, 222);

/// The reason why there is no picture.
#[derive(Debug, thiserror::Error)]
#[error("the chart cannot be drawn: {0}")]
pub struct DrawError(String);

pub(super) fn wrong(error: impl Display) -> DrawError {
    DrawError(error.to_string())
}

pub(super) fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Returns the end of an axis for values up to `most`, and its tick distance: 1, 2 or 5 times a
/// power of ten.
pub(super) fn scale(most: f64) -> (f64, f64) {
    if !most.is_finite() || most <= 0.0 {
        return (1.0, 0.5);
    }
    let rough = most / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    // Leaves space above the highest point.
    let ticks = (most * 1.04 / step).ceil();
    (ticks * step, step)
}

pub(super) fn label(value: f64, step: f64) -> String {
    match step {
        step if step >= 1.0 => super::count(value.round() as u64),
        step if step >= 0.1 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_a_tick_above_the_highest_value() {
        for most in [0.003, 0.7, 1.0, 9.99, 10.0, 123.0, 440_000.0] {
            let (top, step) = scale(most);
            let ticks = top / step;
            assert!(
                top > most && top < most * 1.6 && (ticks - ticks.round()).abs() < 1e-9,
                "{most}: {top} {step}"
            );
            assert!((2.0..=7.0).contains(&ticks), "{most}: {ticks} ticks");
        }
        assert_eq!(scale(0.0), (1.0, 0.5));
        assert_eq!(scale(f64::NAN), (1.0, 0.5));
    }
}
