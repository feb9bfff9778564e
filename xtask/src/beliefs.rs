//! The table of docs/node.md that says what an attacker cannot do against the tests: behind each "no" is
//! one that is there.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::{Path, PathBuf};

    const DIGITS: &str = "⁰¹²³⁴⁵⁶⁷⁸⁹";

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn text(path: &str) -> String {
        fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn section() -> String {
        let page = text("docs/node.md");
        let section = page.split("\n## Who is believed\n").nth(1).expect("a section on beliefs");
        section.split("\n## ").next().unwrap().to_string()
    }

    /// The numbers of footnotes in a text, and where each ends.
    fn notes(text: &str) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut number = None;
        for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
            let digit = DIGITS.chars().position(|digit| digit == c);
            match (digit, number) {
                (Some(digit), before) => number = Some(before.unwrap_or(0) * 10 + digit),
                (None, Some(note)) => {
                    found.push((note, at));
                    number = None;
                }
                (None, None) => {}
            }
        }
        found
    }

    /// The cells of the table, each with the row that it is in.
    fn cells(section: &str) -> Vec<(String, String)> {
        let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
        let mut all = Vec::new();
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            assert_eq!(cells.len(), 4, "{row}");
            all.extend(cells[1..].iter().map(|cell| (cells[0].to_string(), cell.to_string())));
        }
        all
    }

    /// Whether a cell says that something cannot be done.
    fn denies(cell: &str) -> bool {
        let mut words = cell.split(|c: char| !c.is_alphanumeric() || DIGITS.contains(c));
        words.any(|word| matches!(word, "no" | "No" | "not"))
    }

    /// What stands behind each footnote: files, and functions in each.
    fn behind(section: &str) -> BTreeMap<usize, Vec<(String, String)>> {
        let list = section.split("What stands behind each \"no\"").nth(1).expect("the footnotes");
        let list = list.split("\n\n").next().unwrap();
        let starts = notes(list);
        let mut behind = BTreeMap::new();
        for (index, (note, from)) in starts.iter().enumerate() {
            let to = starts.get(index + 1).map_or(list.len(), |(_, next)| *next);
            let mut file = None;
            let tests: &mut Vec<_> = behind.entry(*note).or_default();
            for word in list[*from..to].split('`').skip(1).step_by(2) {
                if word.ends_with(".rs") {
                    let unnamed =
                        file.replace(word).filter(|file| !tests.iter().any(|(of, _)| of == file));
                    assert_eq!(unnamed, None, "footnote {note} names a file without a test");
                } else {
                    let file = file.unwrap_or_else(|| panic!("footnote {note}: {word} of no file"));
                    tests.push((file.to_string(), word.to_string()));
                }
            }
        }
        behind
    }

    #[test]
    fn behind_each_no_is_a_footnote() {
        let section = section();
        let (cells, behind) = (cells(&section), behind(&section));
        assert!(cells.len() >= 36, "{} cells", cells.len());
        let mut used = BTreeSet::new();
        for (row, cell) in &cells {
            let notes: Vec<usize> = notes(cell).into_iter().map(|(note, _)| note).collect();
            assert!(!denies(cell) || !notes.is_empty(), "{row}: {cell}: without a footnote");
            used.extend(notes);
        }
        assert_eq!(used, behind.keys().copied().collect(), "footnotes used, and there");
    }

    #[test]
    fn each_footnote_names_tests_that_are_there() {
        for (note, tests) in behind(&section()) {
            assert!(!tests.is_empty(), "footnote {note} names no test");
            for (file, test) in tests {
                let code = text(&format!("crates/{file}"));
                let there = code.contains(&format!("fn {test}("));
                assert!(there, "footnote {note}: no test {test} in crates/{file}");
            }
        }
    }

    #[test]
    fn a_cell_that_denies_is_known() {
        for cell in ["no", "no: the port", "no, the same", "not unless", "with one, no ⁹", "no⁵"]
        {
            assert!(denies(cell), "{cell}");
        }
        assert!(!denies("yes: that is what members share") && !denies("as itself"));
        assert_eq!(notes("no ¹ ¹²").iter().map(|(note, _)| *note).collect::<Vec<_>>(), [1, 12]);
    }
}
