//! Plain text tables.

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    Left,
    Right,
}

/// A table of text cells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// Title, shown where there are several tables.
    pub title: String,
    /// Headings and alignments.
    pub columns: Vec<(&'static str, Align)>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: &str, columns: &[(&'static str, Align)]) -> Table {
        Table { title: title.to_owned(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Width of each column in characters.
    pub fn widths(&self) -> Vec<usize> {
        let width = |(column, (heading, _)): (usize, &(&str, Align))| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([heading.len()]).max().unwrap_or(0)
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// The table as lines.
    pub fn text(&self) -> String {
        let widths = self.widths();
        let headings: Vec<String> = self.columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
        let mut text = String::new();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let cells = row.iter().zip(&widths).zip(&self.columns);
            let cells = cells.map(|((cell, &width), (_, align))| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new("", &[("NAME", Align::Left), ("COUNT", Align::Right)]);
        table.rows = vec![vec!["a".to_owned(), "7".to_owned()], vec!["longer".to_owned(), "123456".to_owned()]];
        assert_eq!(table.text(), "NAME     COUNT\na            7\nlonger  123456\n");
    }
}
