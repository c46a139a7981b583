//! A directed graph as SVG in columns, or as text for Graphviz.
//!
//! A vertex without outgoing edges is in the right column; each other vertex is left of all its
//! targets. The vertices of a cycle share a column, and their edges are red.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{
    chart::{COLOURS, DrawError, FAINT, INK, text, wrong},
    plane::{Area, picture, words},
};

/// The size of a box in pixels.
const BOX: (i32, i32) = (210, 42);
const COLUMN: i32 = 430;
const ROW: i32 = 62;
const MARGIN: i32 = 40;
const TOP: i32 = 92;

/// The number of points of a curve.
const CURVE: i32 = 24;

/// The maximum of letters in a box, and beside a line.
const LETTERS: (usize, usize) = (30, 34);

/// The text of a box.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vertex {
    /// The upper line.
    pub name: String,
    /// The lower line.
    pub note: String,
}

/// A directed edge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The index of the source vertex.
    pub from: usize,
    /// The index of the target vertex.
    pub to: usize,
    /// The text beside the line.
    pub label: String,
}

/// A directed graph.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Graph {
    /// The vertices, drawn as boxes.
    pub vertices: Vec<Vertex>,
    /// The edges, drawn as lines.
    pub edges: Vec<Edge>,
}

/// The position of a box.
#[derive(Clone, Copy)]
struct Spot {
    x: i32,
    y: i32,
}

impl Graph {
    /// Returns the vertices that can be reached from each vertex.
    fn reached(&self) -> Vec<Vec<bool>> {
        let mut next = vec![Vec::new(); self.vertices.len()];
        for edge in &self.edges {
            next[edge.from].push(edge.to);
        }
        let from = |start: usize| {
            let mut seen = vec![false; self.vertices.len()];
            let mut open = next[start].clone();
            while let Some(vertex) = open.pop() {
                if !std::mem::replace(&mut seen[vertex], true) {
                    open.extend(&next[vertex]);
                }
            }
            seen
        };
        (0..self.vertices.len()).map(from).collect()
    }

    /// Returns for each edge whether it is part of a cycle.
    pub fn circles(&self) -> Vec<bool> {
        let reached = self.reached();
        self.edges.iter().map(|edge| edge.from == edge.to || reached[edge.to][edge.from]).collect()
    }

    /// Returns the column of each vertex, counted from the right.
    fn columns(&self, circles: &[bool]) -> Vec<usize> {
        let reached = self.reached();
        let together = |one: usize, other: usize| one == other || reached[one][other] && reached[other][one];
        let mut columns = vec![0; self.vertices.len()];
        // Each iteration settles at least the next column.
        for _ in 0..self.vertices.len() {
            let mut moved = false;
            for (edge, circle) in self.edges.iter().zip(circles) {
                let least = if *circle { columns[edge.to] } else { columns[edge.to] + 1 };
                if columns[edge.from] < least {
                    moved = true;
                    for vertex in (0..columns.len()).filter(|vertex| together(edge.from, *vertex)) {
                        columns[vertex] = least;
                    }
                }
            }
            if !moved {
                break;
            }
        }
        columns
    }

    /// Returns the positions of the boxes, and the size of the picture.
    fn spots(&self, circles: &[bool]) -> (Vec<Spot>, (u32, u32)) {
        let columns = self.columns(circles);
        let last = columns.iter().copied().max().unwrap_or(0);
        let mut spots = vec![Spot { x: 0, y: 0 }; self.vertices.len()];
        let mut lowest = 0;
        for column in 0..=last {
            let mut own: Vec<usize> =
                (0..columns.len()).filter(|vertex| columns[*vertex] == column).collect();
            // A vertex is placed beside its targets, so that few lines cross.
            own.sort_by_key(|vertex| {
                let beside =
                    self.edges.iter().filter(|edge| edge.from == *vertex && columns[edge.to] < column);
                let heights: Vec<i32> = beside.map(|edge| spots[edge.to].y).collect();
                (heights.iter().sum::<i32>() / heights.len().max(1) as i32, *vertex)
            });
            for (row, vertex) in own.iter().enumerate() {
                let (x, y) = (MARGIN + 60 + (last - column) as i32 * COLUMN, TOP + row as i32 * ROW);
                spots[*vertex] = Spot { x, y };
                lowest = lowest.max(y);
            }
        }
        let wide = MARGIN + 60 + last as i32 * COLUMN + BOX.0 + MARGIN;
        (spots, (wide.max(640) as u32, (lowest + ROW + MARGIN).max(200) as u32))
    }

    /// Returns the picture as SVG.
    ///
    /// # Errors
    /// It cannot be drawn.
    ///
    /// # Panics
    /// An edge has a vertex that does not exist.
    pub fn svg(&self, title: &str, note: &str) -> Result<String, DrawError> {
        let circles = self.circles();
        let (spots, size) = self.spots(&circles);
        picture(size, |area| {
            words(area, title, 22, (HPos::Left, VPos::Top), (MARGIN, 14))?;
            words(area, note, 14, (HPos::Left, VPos::Top), (MARGIN, 46))?;
            for (edge, circle) in self.edges.iter().zip(&circles) {
                arrow(area, spots[edge.from], spots[edge.to], *circle)?;
            }
            for (vertex, spot) in self.vertices.iter().zip(&spots) {
                let corners = [(spot.x, spot.y), (spot.x + BOX.0, spot.y + BOX.1)];
                area.draw(&Rectangle::new(corners, WHITE.filled())).map_err(wrong)?;
                area.draw(&Rectangle::new(corners, INK)).map_err(wrong)?;
                let at = |down| (spot.x + 8, spot.y + down);
                words(area, &short(&vertex.name, LETTERS.0), 14, (HPos::Left, VPos::Center), at(13))?;
                words(area, &short(&vertex.note, LETTERS.0), 12, (HPos::Left, VPos::Center), at(30))?;
            }
            for (number, edge) in self.edges.iter().enumerate() {
                // If several edges end at one box, the labels are at their starts, where the lines
                // are apart.
                let first =
                    self.edges[..number].iter().filter(|other| other.from == edge.from).count() as i32;
                let (from, to) = (spots[edge.from], spots[edge.to]);
                label(area, &edge.label, from, from.x == to.x, first)?;
            }
            Ok(())
        })
    }

    /// Returns the graph as text for Graphviz.
    pub fn dot(&self, title: &str) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let mut dot = format!("digraph {} {{\n  rankdir=LR;\n  node [shape=box];\n", quoted(title));
        for (number, vertex) in self.vertices.iter().enumerate() {
            let lines = quoted(&format!("{}\n{}", vertex.name, vertex.note)).replace('\n', "\\n");
            dot += &format!("  v{number} [label={lines}];\n");
        }
        for (edge, circle) in self.edges.iter().zip(self.circles()) {
            let colour = if circle { ", color=red" } else { "" };
            dot += &format!("  v{} -> v{} [label={}{colour}];\n", edge.from, edge.to, quoted(&edge.label));
        }
        dot + "}\n"
    }
}

/// Shortens a text to the given number of letters.
fn short(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        Some(_) => text.chars().take(letters - 3).chain("...".chars()).collect(),
        None => text.into(),
    }
}

/// Draws a curved arrow from one box to another.
fn arrow(area: &Area<'_>, from: Spot, to: Spot, circle: bool) -> Result<(), DrawError> {
    let colour = if circle { COLOURS[1] } else { COLOURS[0] };
    let middle = |spot: Spot| f64::from(spot.y + BOX.1 / 2);
    let beside = from.x == to.x;
    let start = (
        f64::from(if beside { from.x } else { from.x + BOX.0 }),
        middle(from) + if beside { 8.0 } else { 0.0 },
    );
    let end = (f64::from(to.x - 1), middle(to) - if beside { 8.0 } else { 0.0 });
    let reach = if beside { -70.0 } else { (end.0 - start.0) / 2.0 };
    let (first, second) = ((start.0 + reach, start.1), (end.0 - reach.abs(), end.1));
    let point = |step: i32| {
        let t = f64::from(step) / f64::from(CURVE);
        let mix = |a: f64, b: f64, c: f64, d: f64| {
            let s = 1.0 - t;
            s * s * s * a + 3.0 * s * s * t * b + 3.0 * s * t * t * c + t * t * t * d
        };
        let (x, y) = (mix(start.0, first.0, second.0, end.0), mix(start.1, first.1, second.1, end.1));
        (x.round() as i32, y.round() as i32)
    };
    let curve: Vec<_> = (0..=CURVE).map(point).collect();
    area.draw(&PathElement::new(curve, colour.stroke_width(2))).map_err(wrong)?;
    let (x, y) = point(CURVE);
    let head = vec![(x, y), (x - 10, y - 5), (x - 10, y + 5)];
    area.draw(&Polygon::new(head, colour.filled())).map_err(wrong)
}

/// Writes the label beside the start of a line.
fn label(area: &Area<'_>, words: &str, from: Spot, beside: bool, number: i32) -> Result<(), DrawError> {
    let words = short(words, LETTERS.1);
    if words.is_empty() {
        return Ok(());
    }
    let style = text(12).pos(Pos::new(HPos::Left, VPos::Center));
    let (wide, high) = area.estimate_text_size(&words, &style).map_err(wrong)?;
    let (wide, high) = (wide as i32, high as i32);
    let below = number * (high + 6);
    let (x, y) = if beside {
        (from.x, from.y + BOX.1 + 10 + below)
    } else {
        (from.x + BOX.0 + 10, from.y + BOX.1 / 2 - 10 + below)
    };
    let corners = [(x - 3, y - high / 2 - 2), (x + wide + 3, y + high / 2 + 2)];
    area.draw(&Rectangle::new(corners, WHITE.mix(0.9).filled())).map_err(wrong)?;
    area.draw(&Rectangle::new(corners, FAINT)).map_err(wrong)?;
    area.draw_text(&words, &style, (x, y)).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(vertices: usize, edges: &[(usize, usize)]) -> Graph {
        let vertex = |number| Vertex { name: format!("box {number}"), note: "a \"note\"".into() };
        let edge =
            |(from, to): &(usize, usize)| Edge { from: *from, to: *to, label: format!("{from} to {to}") };
        Graph { vertices: (0..vertices).map(vertex).collect(), edges: edges.iter().map(edge).collect() }
    }

    #[test]
    fn what_is_pointed_to_stands_right_of_who_points() {
        let graph = graph(6, &[(0, 1), (1, 2), (3, 2), (0, 2), (4, 5), (5, 4), (5, 0)]);
        let circles = graph.circles();
        assert_eq!(circles, [false, false, false, false, true, true, false]);
        assert_eq!(graph.columns(&circles), [2, 1, 0, 1, 3, 3]);
    }

    #[test]
    fn every_box_and_line_is_in_the_picture_and_a_circle_in_its_colour() {
        let graph = graph(3, &[(0, 1), (1, 0), (2, 0)]);
        let svg = graph.svg("who waits", "three").unwrap();
        for words in ["who waits", "three", "box 0", "box 1", "box 2", "0 to 1", "2 to 0"] {
            assert!(svg.contains(words), "{words} in {svg}");
        }
        let lines = |colour: RGBColor| {
            let hex = format!("stroke=\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2);
            svg.matches(&hex).count()
        };
        assert_eq!((lines(COLOURS[1]), lines(COLOURS[0])), (2, 1));
        assert!(Graph::default().svg("an empty graph", "").is_ok());
    }

    #[test]
    fn graphviz_reads_what_is_written_for_it() {
        let dot = graph(2, &[(0, 1)]).dot("t");
        assert_eq!(
            dot,
            "digraph \"t\" {\n  rankdir=LR;\n  node [shape=box];\n  v0 [label=\"box 0\\na \\\"note\\\"\"];\n  \
             v1 [label=\"box 1\\na \\\"note\\\"\"];\n  v0 -> v1 [label=\"0 to 1\"];\n}\n"
        );
    }
}
