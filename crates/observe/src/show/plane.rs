//! The common parts of every hand-drawn picture: a frame with a scale on the left, grid lines, a
//! title, a legend on the right.

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::chart::{DrawError, FAINT, INK, label, text, wrong};

/// The size of a picture in pixels.
pub(super) const SIZE: (u32, u32) = (1240, 520);

/// The drawing area of a picture.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns the SVG text of a white picture with what `draw` adds.
pub(super) fn picture(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
) -> Result<String, DrawError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(wrong)?;
        draw(&area)?;
        area.present().map_err(wrong)?;
    }
    Ok(svg)
}

/// The part of a picture that shows values, in pixels, and the value of its upper end.
pub(super) struct Plane {
    pub(super) left: i32,
    pub(super) right: i32,
    pub(super) top: i32,
    pub(super) bottom: i32,
    pub(super) most: f64,
}

/// A legend entry: its name, its colour, and the text after the name.
pub(super) struct Key {
    pub(super) name: String,
    pub(super) colour: RGBColor,
    pub(super) value: String,
}

impl Plane {
    /// Creates the plane between title and axis, with room for a legend.
    pub(super) fn new(most: f64) -> Self {
        Self { left: 96, right: SIZE.0 as i32 - 260, top: 92, bottom: SIZE.1 as i32 - 72, most }
    }

    /// Returns the vertical position of a value.
    pub(super) fn y(&self, value: f64) -> i32 {
        self.bottom - (value / self.most * f64::from(self.bottom - self.top)).round() as i32
    }

    /// Returns the horizontal position of a fraction of the width, 0 to 1.
    pub(super) fn x(&self, part: f64) -> i32 {
        self.left + (part * f64::from(self.right - self.left)).round() as i32
    }

    /// Draws title, note and scale. Lines are at multiples of `step`; `show` formats their values.
    pub(super) fn scale(
        &self,
        area: &Area<'_>,
        [title, note, vertical]: [&str; 3],
        step: f64,
        show: impl Fn(f64) -> String,
    ) -> Result<(), DrawError> {
        let centre = (self.left + self.right) / 2;
        words(area, title, 22, (HPos::Center, VPos::Top), (centre, 14))?;
        words(area, note, 14, (HPos::Center, VPos::Top), (centre, 46))?;
        words(area, vertical, 14, (HPos::Left, VPos::Bottom), (self.left - 60, self.top - 10))?;
        for tick in 0..=(self.most / step).round() as u32 {
            let value = f64::from(tick) * step;
            let y = self.y(value);
            let colour = if tick == 0 { INK } else { FAINT };
            line(area, (self.left, y), (self.right, y), colour)?;
            words(area, &show(value), 14, (HPos::Right, VPos::Center), (self.left - 8, y))?;
        }
        Ok(())
    }

    /// Draws the legend beside the plane, the first entry on top.
    pub(super) fn legend(&self, area: &Area<'_>, keys: &[Key]) -> Result<(), DrawError> {
        for (row, key) in keys.iter().enumerate() {
            let y = self.top + 6 + row as i32 * 26;
            let x = self.right + 22;
            area.draw(&Rectangle::new([(x, y), (x + 16, y + 14)], key.colour.filled())).map_err(wrong)?;
            words(area, &key.name, 14, (HPos::Left, VPos::Center), (x + 24, y + 7))?;
            words(area, &key.value, 14, (HPos::Right, VPos::Center), (SIZE.0 as i32 - 12, y + 7))?;
        }
        Ok(())
    }
}

/// Writes a text.
pub(super) fn words(
    area: &Area<'_>,
    what: &str,
    size: u32,
    (h, v): (HPos, VPos),
    at: (i32, i32),
) -> Result<(), DrawError> {
    area.draw_text(what, &text(size).pos(Pos::new(h, v)), at).map_err(wrong)
}

/// Draws a thin line.
pub(super) fn line(
    area: &Area<'_>,
    from: (i32, i32),
    to: (i32, i32),
    colour: RGBColor,
) -> Result<(), DrawError> {
    area.draw(&PathElement::new([from, to], colour)).map_err(wrong)
}

/// Returns a formatter for values, as precise as the distance of the lines requires.
pub(super) fn plain(step: f64) -> impl Fn(f64) -> String {
    move |value| label(value, step)
}
