//! Charts as SVG: two side by side over the same horizontal axis, a line for each series.
//!
//! These are the two charts of block-transfer tests: transfers per second and response time over
//! the number of clients. Values of the horizontal axis have equal distances, because they are
//! usually doubled from one to the next.

use std::fmt::Display;

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// The size of the picture in pixels.
const SIZE: (u32, u32) = (1240, 520);

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
const FONT: &str = "sans-serif";

/// A line of a chart.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points: position on the horizontal axis, and value.
    pub points: Vec<(u32, f64)>,
}

/// One of the two charts of a picture.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// The title of the chart.
    pub title: String,
    /// The label of the vertical axis, with its unit.
    pub vertical: String,
    /// The lines of the chart.
    pub series: Vec<Series>,
}

/// The reason why there is no picture.
#[derive(Debug, thiserror::Error)]
#[error("the chart cannot be drawn: {0}")]
pub struct DrawError(String);

pub(super) fn wrong(error: impl Display) -> DrawError {
    DrawError(error.to_string())
}

/// Draws two charts side by side under one title and returns the SVG text; `horizontal` names the
/// shared axis.
///
/// # Errors
/// There is no point to show.
pub fn pair(title: &str, note: &str, horizontal: &str, charts: &[Chart; 2]) -> Result<String, DrawError> {
    let mut places: Vec<u32> = charts
        .iter()
        .flat_map(|chart| &chart.series)
        .flat_map(|series| series.points.iter().map(|point| point.0))
        .collect();
    places.sort_unstable();
    places.dedup();
    if places.is_empty() {
        return Err(wrong("no measurement"));
    }
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(wrong)?;
        let middle = (SIZE.0 / 2) as i32;
        let top = text(22, INK).pos(Pos::new(HPos::Center, VPos::Top));
        root.draw_text(title, &top, (middle, 14)).map_err(wrong)?;
        root.draw_text(note, &text(14, INK).pos(Pos::new(HPos::Center, VPos::Top)), (middle, 46))
            .map_err(wrong)?;
        let (_, below) = root.split_vertically(72);
        let (left, right) = below.split_horizontally(SIZE.0 / 2);
        for (area, chart) in [left, right].iter().zip(charts) {
            draw(area, chart, horizontal, &places)?;
        }
        root.present().map_err(wrong)?;
    }
    Ok(svg)
}

pub(super) fn text(size: u32, colour: RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(&colour)
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    chart: &Chart,
    horizontal: &str,
    places: &[u32],
) -> Result<(), DrawError> {
    let values = chart.series.iter().flat_map(|series| &series.points).map(|point| point.1);
    let (top, step) = scale(values.fold(0.0, f64::max));
    let last = places.len().saturating_sub(1) as f64;
    let mut context = ChartBuilder::on(area)
        .caption(&chart.title, text(17, INK))
        .margin(12)
        .margin_right(28)
        .x_label_area_size(54)
        .y_label_area_size(88)
        .build_cartesian_2d(-0.3..last + 0.3, 0.0..top)
        .map_err(wrong)?;
    // This draws only the frame and axis names; ticks are placed at the measured values.
    context
        .configure_mesh()
        .disable_mesh()
        .x_labels(0)
        .y_labels(0)
        .x_desc(horizontal)
        .y_desc(&chart.vertical)
        .axis_desc_style(text(15, INK))
        .axis_style(INK)
        .draw()
        .map_err(wrong)?;
    let plane = context.plotting_area();
    let (across, down) = (plane.get_x_axis_pixel_range(), plane.get_y_axis_pixel_range());
    let ticks = (top / step).round() as u32;
    for tick in 0..=ticks {
        let value = f64::from(tick) * step;
        if tick > 0 {
            plane.draw(&PathElement::new([(-0.3, value), (last + 0.3, value)], FAINT)).map_err(wrong)?;
        }
        let y = down.end
            - 1
            - (f64::from(tick) / f64::from(ticks) * f64::from(down.end - down.start - 1)).round() as i32;
        let style = text(14, INK).pos(Pos::new(HPos::Right, VPos::Center));
        root_text(area, &label(value, step), &style, (across.start - 8, y))?;
    }
    for (index, place) in places.iter().enumerate() {
        let x = across.start
            + ((index as f64 + 0.3) / (last + 0.6) * f64::from(across.end - across.start)).round() as i32;
        let style = text(14, INK).pos(Pos::new(HPos::Center, VPos::Top));
        root_text(area, &place.to_string(), &style, (x, down.end + 8))?;
    }
    for (series, colour) in chart.series.iter().zip(COLOURS.iter().cycle()) {
        let points: Vec<(f64, f64)> = series
            .points
            .iter()
            .filter_map(|(place, value)| Some((places.binary_search(place).ok()? as f64, *value)))
            .collect();
        context
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(3)))
            .map_err(wrong)?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(3)));
        context
            .draw_series(points.iter().map(|point| Circle::new(*point, 5, colour.filled())))
            .map_err(wrong)?;
    }
    context
        .configure_series_labels()
        .position(clearest(chart, top))
        .label_font(text(14, INK))
        .background_style(WHITE.mix(0.9))
        .border_style(FAINT)
        .legend_area_size(32)
        .margin(10)
        .draw()
        .map_err(wrong)
}

/// Writes at a pixel of the whole picture, independent of the position of `area`.
fn root_text(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    words: &str,
    style: &TextStyle<'_>,
    at: (i32, i32),
) -> Result<(), DrawError> {
    let (left, top) = area.get_base_pixel();
    area.draw_text(words, style, (at.0 - left, at.1 - top)).map_err(wrong)
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

/// Returns the corner for the legend: the upper one whose lines end lowest, else a lower one.
fn clearest(chart: &Chart, top: f64) -> SeriesLabelPosition {
    let highest = |first: bool| {
        let ends = chart.series.iter().filter_map(|series| {
            let half = series.points.len().div_ceil(2);
            let points =
                if first { &series.points[..half] } else { &series.points[series.points.len() - half..] };
            points.iter().map(|point| point.1).max_by(f64::total_cmp)
        });
        ends.fold(0.0, f64::max)
    };
    let (left, right) = (highest(true), highest(false));
    if left.min(right) < top * 0.72 {
        if left <= right { SeriesLabelPosition::UpperLeft } else { SeriesLabelPosition::UpperRight }
    } else {
        SeriesLabelPosition::MiddleRight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, values: &[f64]) -> Series {
        let points = values.iter().enumerate().map(|(index, value)| (1 << index, *value)).collect();
        Series { name: name.into(), points }
    }

    fn charts() -> [Chart; 2] {
        let chart = |title: &str, vertical: &str, shm: &[f64], tcp: &[f64]| Chart {
            title: title.into(),
            vertical: vertical.into(),
            series: vec![series("shm", shm), series("tcp", tcp)],
        };
        [
            chart("Block transfers", "blocks/s", &[2e5, 4e5, 4.4e5, 4.3e5], &[2e4, 4e4, 7e4, 9e4]),
            chart(
                "Response time, median",
                "microseconds",
                &[5.0, 6.0, 9.0, 17.0],
                &[45.0, 55.0, 80.0, 140.0],
            ),
        ]
    }

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

    #[test]
    fn a_picture_names_everything_in_it() {
        let svg = pair("A & B", "2 nodes", "clients on each node", &charts()).unwrap();
        for words in [
            "shm",
            "tcp",
            "blocks/s",
            "microseconds",
            "clients on each node",
            "400,000",
            "A &amp; B",
            "2 nodes",
        ] {
            assert!(svg.contains(words), "{words} in {svg}");
        }
        if let Ok(file) = std::env::var("PLEXUS_KEEP_CHART") {
            std::fs::write(file, &svg).unwrap();
        }
        assert!(pair("", "", "", &charts().map(|chart| Chart { series: Vec::new(), ..chart })).is_err());
    }
}
