//! Stacked values over time: the share of each channel in the traffic, and the total.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

use super::{
    chart::{COLOURS, DrawError, FAINT, scale, wrong},
    date,
    plane::{Area, Key, Plane, SIZE, line, picture, plain, words},
    time,
};

/// Layers over the same times.
#[derive(Clone, PartialEq, Debug)]
pub struct Stack {
    /// The title of the picture.
    pub title: String,
    /// The text below the title.
    pub note: String,
    /// The label of the values.
    pub vertical: String,
    /// The start of the first interval, in milliseconds since 1970.
    pub from_ms: u64,
    /// The end of the last interval, in milliseconds since 1970.
    pub to_ms: u64,
    /// The values of each interval, from the lowest layer up; `None` if unknown.
    pub places: Vec<Option<Vec<f64>>>,
    /// The name of each layer from the lowest up, and the legend text after it.
    pub layers: Vec<(String, String)>,
    /// The upper end of the scale; `None` takes it from the values.
    pub most: Option<f64>,
}

/// The possible distances between ticks of the time axis, in seconds.
const STEPS: [u64; 20] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800,
    604_800,
];

/// The maximum number of ticks.
const TICKS: u64 = 9;

impl Stack {
    /// Returns the SVG text.
    ///
    /// # Errors
    /// There is no interval.
    pub fn draw(&self) -> Result<String, DrawError> {
        if self.places.is_empty() || self.to_ms <= self.from_ms {
            return Err(wrong("no time"));
        }
        let highest = self.places.iter().flatten().map(|layers| layers.iter().sum()).fold(0.0, f64::max);
        let (most, step) = match self.most {
            Some(most) => (most, most / 5.0),
            None => scale(highest),
        };
        let plane = Plane::new(most);
        picture(SIZE, |area| {
            plane.scale(area, [&self.title, &self.note, &self.vertical], step, plain(step))?;
            let mut from = 0;
            while from < self.places.len() {
                let run = self.places[from..].iter().take_while(|place| place.is_some()).count();
                self.run(area, &plane, from, run)?;
                from += run.max(1);
            }
            self.ticks(area, &plane)?;
            // The legend has the layers in the order of the picture, the upper first.
            let keys = self.layers.iter().zip(COLOURS).rev();
            let keys =
                keys.map(|((name, value), colour)| Key { name: name.clone(), colour, value: value.clone() });
            plane.legend(area, &keys.collect::<Vec<_>>())?;
            Ok(())
        })
    }

    /// Draws the layers of consecutive intervals.
    fn run(&self, area: &Area<'_>, plane: &Plane, from: usize, count: usize) -> Result<(), DrawError> {
        let x = |place: usize| plane.x(place as f64 / self.places.len() as f64);
        let mut floor = vec![0.0; count];
        for (layer, colour) in (0..self.layers.len()).zip(COLOURS.iter().cycle()) {
            let value = |place: usize| {
                self.places[from + place]
                    .as_ref()
                    .and_then(|values| values.get(layer))
                    .copied()
                    .unwrap_or(0.0)
            };
            let ceiling: Vec<f64> =
                floor.iter().enumerate().map(|(place, floor)| floor + value(place)).collect();
            if ceiling != floor {
                let step = |heights: &[f64]| -> Vec<(i32, i32)> {
                    let ends = heights.iter().enumerate().flat_map(|(place, height)| {
                        let y = plane.y(height.min(plane.most));
                        [(x(from + place), y), (x(from + place + 1), y)]
                    });
                    ends.collect()
                };
                let outline: Vec<_> =
                    step(&ceiling).into_iter().chain(step(&floor).into_iter().rev()).collect();
                area.draw(&Polygon::new(outline, colour.filled())).map_err(wrong)?;
            }
            floor = ceiling;
        }
        Ok(())
    }

    fn ticks(&self, area: &Area<'_>, plane: &Plane) -> Result<(), DrawError> {
        let span = self.to_ms - self.from_ms;
        let step = STEPS.into_iter().find(|step| span / (step * 1000) < TICKS);
        let step = step.unwrap_or(span / 1000 / TICKS + 1) * 1000;
        let mut said = String::new();
        let mut tick = self.from_ms.next_multiple_of(step);
        while tick <= self.to_ms {
            let x = plane.x((tick - self.from_ms) as f64 / span as f64);
            line(area, (x, plane.bottom), (x, plane.bottom + 5), FAINT)?;
            let (date, time) = (date(tick), time(tick));
            let clock = if step < 60_000 { &time } else { &time[..5] };
            words(area, clock, 14, (HPos::Center, VPos::Top), (x, plane.bottom + 8))?;
            if date != said {
                words(area, &date, 13, (HPos::Center, VPos::Top), (x, plane.bottom + 26))?;
                said = date;
            }
            tick += step;
        }
        words(area, "UTC", 14, (HPos::Left, VPos::Top), (plane.right + 22, plane.bottom + 26))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(span_ms: u64, places: Vec<Option<Vec<f64>>>) -> Stack {
        Stack {
            title: "Shares".into(),
            note: "of c1".into(),
            vertical: "percent".into(),
            from_ms: 1_795_266_479_000,
            to_ms: 1_795_266_479_000 + span_ms,
            places,
            layers: vec![("locks".into(), "40 %".into()), ("disks".into(), "60 %".into())],
            most: Some(100.0),
        }
    }

    #[test]
    fn gaps_divide_the_layers_and_the_axis_has_few_ticks_for_any_span() {
        let full = || Some(vec![40.0, 60.0]);
        let svg = stack(60_000, vec![full(), None, full(), full()]).draw().unwrap();
        assert_eq!(svg.matches("<polygon").count(), 4, "two layers before the gap and two behind: {svg}");
        assert!(svg.contains("13:08:00") && svg.contains("2026-11-21") && svg.contains("40 %"), "{svg}");
        for span_ms in [1500, 60_000, 7_200_000, 86_400_000, 172_800_000, 10_000_000_000] {
            let svg = stack(span_ms, vec![full()]).draw().unwrap();
            let ticks = svg.split('\n').filter(|line| line.len() >= 5 && line.as_bytes()[2] == b':').count();
            assert!((1..=10).contains(&ticks), "{span_ms}: {ticks} ticks");
        }
        assert!(stack(0, vec![full()]).draw().is_err());
    }
}
