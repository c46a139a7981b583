//! Two pictures side by side over the same horizontal axis, with one legend: the results of a
//! measurement by message size or number of clients, and their cost.
//!
//! The horizontal axis has equal distances for each doubling. Values are on a logarithmic scale, or
//! start at zero.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

use super::{
    chart::{COLOURS, DrawError, FAINT, INK, scale, wrong},
    plane::{Area, line, picture, words},
};

/// The size of the picture in pixels.
const SIZE: (u32, u32) = (1400, 560);

/// The room for a label of the horizontal axis, in pixels.
const LABEL: i32 = 60;

/// One of the two pictures.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// The title of the panel.
    pub title: String,
    /// The label of the values, with their unit.
    pub vertical: String,
    /// True for a logarithmic scale; else the scale starts at 0.
    pub logarithmic: bool,
    /// The points of each series: place on the horizontal axis, and value.
    pub points: Vec<Vec<(u32, f64)>>,
}

/// The whole picture.
#[derive(Clone, Debug)]
pub struct Panels {
    /// The title of the picture.
    pub title: String,
    /// The text below the title.
    pub note: String,
    /// The label of the horizontal axis.
    pub horizontal: String,
    /// The text for a place on the horizontal axis.
    pub place: fn(u64) -> String,
    /// The names of the series.
    pub series: Vec<String>,
    /// The two panels.
    pub panels: [Panel; 2],
}

/// The area of a panel's values in pixels, and the values of its ends.
struct Frame {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    sizes: (f64, f64),
    values: (f64, f64),
    logarithmic: bool,
}

impl Frame {
    fn x(&self, size: f64) -> i32 {
        let (first, last) = (self.sizes.0.log2(), self.sizes.1.log2());
        let part = if last > first { (size.log2() - first) / (last - first) } else { 0.5 };
        self.left + (part * f64::from(self.right - self.left)).round() as i32
    }

    fn y(&self, value: f64) -> i32 {
        let of = |value: f64| if self.logarithmic { value.log10() } else { value };
        let (least, most) = (of(self.values.0), of(self.values.1));
        let part = (of(value) - least) / (most - least);
        self.bottom - (part * f64::from(self.bottom - self.top)).round() as i32
    }
}

impl Panels {
    /// Returns the SVG text.
    ///
    /// # Errors
    /// There is no point to show.
    pub fn draw(&self) -> Result<String, DrawError> {
        picture(SIZE, |area| {
            words(area, &self.title, 22, (HPos::Center, VPos::Top), (SIZE.0 as i32 / 2, 14))?;
            words(area, &self.note, 14, (HPos::Center, VPos::Top), (SIZE.0 as i32 / 2, 46))?;
            for (panel, left) in self.panels.iter().zip([84, 664]) {
                self.panel(area, panel, left)?;
            }
            for (row, name) in self.series.iter().enumerate() {
                let y = 112 + row as i32 * 24;
                let colour = COLOURS[row % COLOURS.len()];
                area.draw(&PathElement::new([(1196, y), (1222, y)], colour.stroke_width(3)))
                    .map_err(wrong)?;
                area.draw(&Circle::new((1209, y), 4, mark(row))).map_err(wrong)?;
                words(area, name, 14, (HPos::Left, VPos::Center), (1230, y))?;
            }
            Ok(())
        })
    }

    fn panel(&self, area: &Area<'_>, panel: &Panel, left: i32) -> Result<(), DrawError> {
        let shown = |point: &&(u32, f64)| point.0 > 0 && (!panel.logarithmic || point.1 > 0.0);
        let points = || panel.points.iter().flatten().filter(shown);
        let ends = |of: fn(&(u32, f64)) -> f64| {
            points().map(of).fold((f64::MAX, 0.0_f64), |ends, value| (ends.0.min(value), ends.1.max(value)))
        };
        let (sizes, values) = (ends(|point| f64::from(point.0)), ends(|point| point.1));
        if sizes.1 == 0.0 {
            return Err(wrong("no measurement"));
        }
        let (ticks, values) = if panel.logarithmic { decades(values) } else { steps(values.1) };
        let frame = Frame {
            left,
            right: left + 500,
            top: 112,
            bottom: SIZE.1 as i32 - 68,
            sizes,
            values,
            logarithmic: panel.logarithmic,
        };
        words(area, &panel.title, 17, (HPos::Center, VPos::Bottom), (left + 250, frame.top - 28))?;
        words(area, &panel.vertical, 13, (HPos::Left, VPos::Bottom), (left - 60, frame.top - 12))?;
        for (value, named) in ticks {
            let y = frame.y(value);
            line(area, (frame.left, y), (frame.right, y), FAINT)?;
            if named {
                words(area, &plain(value), 13, (HPos::Right, VPos::Center), (frame.left - 8, y))?;
            }
        }
        let mut places: Vec<u32> = points().map(|point| point.0).collect();
        places.sort_unstable();
        places.dedup();
        let mut free_from = frame.left;
        for place in places {
            let x = frame.x(f64::from(place));
            if x >= free_from {
                line(area, (x, frame.top), (x, frame.bottom), FAINT)?;
                let text = (self.place)(place.into());
                words(area, &text, 13, (HPos::Center, VPos::Top), (x, frame.bottom + 8))?;
                free_from = x + LABEL;
            }
        }
        let corners = [(frame.left, frame.top), (frame.right, frame.bottom)];
        area.draw(&Rectangle::new(corners, INK)).map_err(wrong)?;
        let below = (left + 250, frame.bottom + 34);
        words(area, &self.horizontal, 14, (HPos::Center, VPos::Top), below)?;
        for (index, series) in panel.points.iter().enumerate() {
            let at: Vec<(i32, i32)> = series
                .iter()
                .filter(shown)
                .map(|(size, value)| (frame.x(f64::from(*size)), frame.y(*value)))
                .collect();
            let colour = COLOURS[index % COLOURS.len()];
            area.draw(&PathElement::new(at.clone(), colour.stroke_width(2))).map_err(wrong)?;
            for point in at {
                area.draw(&Circle::new(point, 4, mark(index))).map_err(wrong)?;
            }
        }
        Ok(())
    }
}

/// Returns the mark of a series; it is hollow if its colour is used a second time.
fn mark(index: usize) -> ShapeStyle {
    let colour = COLOURS[index % COLOURS.len()];
    if (index / COLOURS.len()).is_multiple_of(2) { colour.filled() } else { colour.stroke_width(2) }
}

type Ticks = Vec<(f64, bool)>;

/// Returns lines at 1, 2 and 5 times each power of ten that cover the values. Over many powers only
/// the powers are labelled.
fn decades((least, most): (f64, f64)) -> (Ticks, (f64, f64)) {
    let from = least.log10().floor() as i32;
    let to = most.log10().ceil() as i32;
    let all: Vec<f64> =
        (from..=to).flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powi(power))).collect();
    let below = all.iter().rposition(|tick| *tick <= least).unwrap_or(0);
    let above = all.iter().position(|tick| *tick > most).unwrap_or(all.len() - 1);
    let powers = (all[above] / all[below]).log10();
    let named = |tick: f64| powers <= 3.0 || (tick.log10() - tick.log10().round()).abs() < 1e-9;
    let ticks = all[below..=above].iter().map(|tick| (*tick, named(*tick))).collect();
    (ticks, (all[below], all[above]))
}

/// Returns lines at equal distances from 0.
fn steps(most: f64) -> (Ticks, (f64, f64)) {
    let (top, step) = scale(most);
    let ticks = (0..=(top / step).round() as u32).map(|tick| (f64::from(tick) * step, true)).collect();
    (ticks, (0.0, top))
}

fn plain(value: f64) -> String {
    match value {
        value if value >= 1.0 || value == 0.0 => super::count(value.round() as u64),
        value if value >= 0.1 => format!("{value:.1}"),
        value if value >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_scale_holds_all_and_not_much_more() {
        for (least, most) in [(0.17, 2500.0), (1.0, 1.0), (3.0, 4.0), (25.0, 13_251.0), (9.9e-3, 0.5)] {
            let (ticks, ends) = decades((least, most));
            assert!(ends.0 <= least && most < ends.1, "{least} to {most}: {ends:?}");
            assert!(ends.0 * 3.0 > least && ends.1 < most * 3.0, "{least} to {most}: {ends:?}");
            assert!(ticks.iter().filter(|tick| tick.1).count() >= 2, "{ticks:?}");
        }
    }

    #[test]
    fn a_picture_names_everything_in_it() {
        let panel = |title: &str, logarithmic| Panel {
            title: title.into(),
            vertical: "microseconds".into(),
            logarithmic,
            points: vec![vec![(8, 0.2), (64, 0.2), (1 << 20, 90.0)], vec![(8, 4.0), (64, 4.1)]],
        };
        let picture = Panels {
            title: "Latency & cost".into(),
            note: "two processes".into(),
            horizontal: "size of a message".into(),
            place: super::super::bytes,
            series: vec!["shm send".into(), "tcp send".into()],
            panels: [panel("half a round trip", true), panel("CPU", false)],
        };
        let svg = picture.draw().unwrap();
        let titles = ["Latency &amp; cost", "two processes", "half a round trip", "CPU", "size of a message"];
        for part in titles.into_iter().chain(["microseconds", "shm send", "tcp send", "8 B", "1 MiB"]) {
            assert!(svg.contains(part), "{part}");
        }
        let nothing = Panel { points: vec![Vec::new()], ..panel("", true) };
        assert!(Panels { panels: [nothing.clone(), nothing], ..picture }.draw().is_err());
    }
}
