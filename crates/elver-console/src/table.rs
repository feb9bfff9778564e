//! Tables whose columns are as wide as what stands in them.

use crate::say;

/// Spaces between two columns.
const GAP: &str = "  ";

/// Prints a table below an empty line: the first `left` columns stand at their left, the others,
/// which are numbers, at their right. Nothing if there are no rows.
pub fn print<const N: usize>(heads: [&str; N], rows: &[[String; N]], left: usize) {
    if !rows.is_empty() {
        say!("\n{}", text(heads, rows, left));
    }
}

/// The same as text, its lines without an end.
pub fn text<const N: usize>(heads: [&str; N], rows: &[[String; N]], left: usize) -> String {
    let rows = std::iter::once(heads.map(String::from)).chain(rows.iter().cloned());
    let rows: Vec<[String; N]> = rows.collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or(0);
            if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A number with as many digits as are worth reading: four, and three behind the point at most.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size < 10.0 => 3,
        size if size < 100.0 => 2,
        size if size < 1_000.0 => 1,
        _ => 0,
    };
    if value.is_finite() { format!("{value:.digits$}") } else { "-".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_what_is_in_them() {
        let rows = [["µs".into(), "1".into()], ["a longer name".into(), "23456".into()]];
        let text = text(["", "ops"], &rows, 1);
        assert_eq!(text, "                 ops\nµs                 1\na longer name  23456");
    }

    #[test]
    fn numbers_have_four_digits() {
        let texts = [0.0612, 1.0, 12.345, 123.45, 71_499.8, f64::NAN].map(number);
        assert_eq!(texts, ["0.061", "1.000", "12.35", "123.5", "71500", "-"]);
    }
}
