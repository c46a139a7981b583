//! Tables in plain text: a head and rows, with columns as wide as they need.

use std::fmt;

/// A table. Its first column is aligned to the left and all others to the right, unless
/// [`Table::left`] sets another number.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    indent: usize,
    left: usize,
}

impl Table {
    /// Creates a table with these heads.
    pub fn new<'a>(heads: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![heads.into_iter().map(str::to_owned).collect()], indent: 0, left: 1 }
    }

    /// Indents the table.
    pub fn indent(mut self, columns: usize) -> Self {
        self.indent = columns;
        self
    }

    /// Aligns that many columns to the left.
    pub fn left(mut self, columns: usize) -> Self {
        self.left = columns;
        self
    }

    /// Adds a row; missing cells at its end are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                let gap = if column == 0 { "" } else { "  " };
                line += &match column < self.left {
                    true => format!("{gap}{cell:<width$}"),
                    false => format!("{gap}{cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["rail", "blocks/s", "p50"]).indent(2);
        table.row(["shm", "1,234,567", "8"].map(str::to_owned));
        table.row(["tcp".to_owned()]);
        assert_eq!(table.to_string(), "  rail   blocks/s  p50\n  shm   1,234,567    8\n  tcp\n");
        let table = table.left(2).to_string();
        assert_eq!(table, "  rail  blocks/s   p50\n  shm   1,234,567    8\n  tcp\n");
    }
}
