//! A bar chart over classes with two bars each: how messages and their bytes are spread over sizes.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

use super::{
    chart::{COLOURS, DrawError, scale, wrong},
    plane::{Key, Plane, SIZE, picture, plain, words},
};

/// Two distributions over the same classes.
#[derive(Clone, PartialEq, Debug)]
pub struct Bars {
    /// The title of the picture.
    pub title: String,
    /// The text below the title.
    pub note: String,
    /// The label of the classes.
    pub horizontal: String,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// The name and the percentages of each distribution, one value per class.
    pub series: [(String, Vec<f64>); 2],
}

/// Bars above this many percent are labelled with their value.
const WORTH_WRITING: f64 = 0.5;

impl Bars {
    /// Returns the SVG text.
    ///
    /// # Errors
    /// There are no classes.
    pub fn draw(&self) -> Result<String, DrawError> {
        if self.classes.is_empty() {
            return Err(wrong("no classes"));
        }
        let highest = self.series.iter().flat_map(|(_, values)| values).fold(0.0, |a, b| f64::max(a, *b));
        let (most, step) = scale(highest);
        // A scale beyond 100 percent has no meaning.
        let (most, step) = if most > 100.0 { (100.0, 20.0) } else { (most, step) };
        let plane = Plane::new(most);
        picture(SIZE, |area| {
            plane.scale(area, [&self.title, &self.note, "percent"], step, plain(step))?;
            let width = f64::from(plane.right - plane.left) / self.classes.len() as f64;
            for (class, name) in self.classes.iter().enumerate() {
                let middle = plane.left + ((class as f64 + 0.5) * width).round() as i32;
                words(area, name, 13, (HPos::Center, VPos::Top), (middle, plane.bottom + 8))?;
                for (index, (_, values)) in self.series.iter().enumerate() {
                    let value = values.get(class).copied().unwrap_or(0.0).min(most);
                    if value <= 0.0 {
                        continue;
                    }
                    let bar = (width * 0.4) as i32;
                    let left = if index == 0 { middle - bar } else { middle + 1 };
                    // A value that is not zero is visible, however small.
                    let top = plane.y(value).min(plane.bottom - 1);
                    let corners = [(left, top), (left + bar - 1, plane.bottom)];
                    area.draw(&Rectangle::new(corners, COLOURS[index].filled())).map_err(wrong)?;
                    if value >= WORTH_WRITING {
                        let text = if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
                        words(area, &text, 11, (HPos::Center, VPos::Bottom), (left + bar / 2, top - 3))?;
                    }
                }
            }
            let below = ((plane.left + plane.right) / 2, plane.bottom + 40);
            words(area, &self.horizontal, 15, (HPos::Center, VPos::Top), below)?;
            let keys: Vec<Key> = self
                .series
                .iter()
                .zip(COLOURS)
                .map(|((name, _), colour)| Key { name: name.clone(), colour, value: String::new() })
                .collect();
            plane.legend(area, &keys)?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_and_series_is_in_the_picture() {
        let bars = Bars {
            title: "A & B".into(),
            note: "n".into(),
            horizontal: "bytes".into(),
            classes: vec!["to 8 B".into(), "to 16 B".into()],
            series: [("messages".into(), vec![41.0, 59.0]), ("bytes".into(), vec![0.0, 100.0])],
        };
        let svg = bars.draw().unwrap();
        for words in ["A &amp; B", "to 8 B", "to 16 B", "messages", "bytes", "percent", ">41<", ">100<"] {
            let spread: String = svg.split_whitespace().collect::<Vec<_>>().join("");
            let words: String = words.split_whitespace().collect();
            assert!(spread.contains(&words), "{words} in {svg}");
        }
        assert!(Bars { classes: Vec::new(), ..bars }.draw().is_err());
    }
}
