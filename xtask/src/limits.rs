//! The table of limits in docs/node.md against the code: each default is the code's, and each limit
//! has a test that is there.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn text(path: &str) -> String {
        fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// A row: what it is called, where its number stands, the number, and its test.
    struct Row {
        name: String,
        place: String,
        default: u64,
        test: String,
    }

    fn rows() -> Vec<Row> {
        let page = text("docs/node.md");
        let table = page.split("\n## Limits\n").nth(1).expect("a section on limits");
        let table = table.split("\n## ").next().unwrap_or(table);
        let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
        rows.map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [name, place, default, _, _, test] = cells[..] else { panic!("{line}") };
            let bare = |cell: &str| cell.trim_matches('`').to_string();
            let digits = default.replace(',', "");
            let default = digits.parse().unwrap_or_else(|_| panic!("{name}: {default}"));
            Row { name: name.to_string(), place: bare(place), default, test: bare(test) }
        })
        .collect()
    }

    /// The options of the daemon's file.
    fn options() -> BTreeMap<String, u64> {
        let file: toml::Table = text("crates/elver-node/src/config/default.toml").parse().unwrap();
        let mut options = BTreeMap::new();
        for (section, values) in &file {
            for (option, value) in values.as_table().unwrap() {
                if let Some(value) = value.as_integer() {
                    options.insert(format!("{section}.{option}"), value as u64);
                }
            }
        }
        options
    }

    /// Options of these sections are limits, but for those that say how much of something there is, or
    /// for how long something takes.
    const SECTIONS: [&str; 7] =
        ["quota", "pool", "memory", "messages", "transfer", "storm", "meta"];
    const NO_LIMITS: [&str; 12] = [
        "memory.lease_ms",
        "messages.eager_bytes_max",
        "messages.recv_buffer_bytes",
        "meta.ttl_ms",
        "pool.dc_qps",
        "pool.log_dc_streams",
        "pool.retry_cnt",
        "pool.rnr_retry",
        "pool.timeout",
        "transfer.hot_ops",
        "transfer.idle_ms",
        "transfer.window_ms",
    ];

    /// A number as it stands in code, up to the end of its statement.
    fn number(code: &str) -> Option<u64> {
        let end = code.find([';', ','])?;
        let mut product = None;
        for part in code[..end].split('*') {
            let mut shifted =
                part.split("<<").map(|one| one.trim().replace('_', "").parse::<u64>());
            let first = shifted.next()?.ok()?;
            let value = shifted.try_fold(first, |value, by| Some(value << by.ok()?))?;
            product = Some(product.unwrap_or(1) * value);
        }
        product
    }

    /// The value of a constant, or of a field's default, in a file: `path: NAME`.
    fn in_code(place: &str) -> Option<u64> {
        let (path, name) = place.split_once(": ")?;
        let code = text(path);
        if path.ends_with(".service") {
            let mut lines = code.lines();
            return lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
        }
        let values = code.match_indices(name).filter_map(|(at, _)| {
            let rest = &code[at + name.len()..];
            let typed = rest.strip_prefix(": ")?;
            let value = match typed.split_once(" = ") {
                Some((of, value)) if name.chars().all(|c| !c.is_lowercase()) => {
                    of.chars().all(char::is_alphanumeric).then_some(value)?
                }
                _ => typed,
            };
            number(value)
        });
        values.into_iter().next()
    }

    #[test]
    fn the_table_of_limits_says_what_the_code_has() {
        let (options, rows) = (options(), rows());
        assert!(rows.len() >= 25, "{} rows", rows.len());
        for Row { name, place, default, .. } in &rows {
            let held = options.get(place).copied().or_else(|| in_code(place));
            assert_eq!(held, Some(*default), "{name}: {place}");
        }
    }

    #[test]
    fn each_option_that_is_a_limit_has_a_row() {
        let (options, rows) = (options(), rows());
        let has_row = |option: &str| rows.iter().any(|row| row.place == option);
        for option in options.keys() {
            let limits = SECTIONS.iter().any(|section| option.starts_with(&format!("{section}.")));
            let (row, other) = (has_row(option), NO_LIMITS.contains(&option.as_str()));
            assert!(!limits || row != other, "{option} has a row: {row}; is no limit: {other}");
        }
        for option in NO_LIMITS {
            assert!(options.contains_key(option), "there is no {option}");
        }
    }

    /// A meta server has a connection to each node, and a socket of each session.
    #[test]
    fn the_units_descriptors_are_enough() {
        let options = options();
        let held = options["meta.nodes_max"] + options["quota.sessions_total"];
        let unit = in_code("contrib/systemd/elverd.service: LimitNOFILE").unwrap();
        assert!(unit >= held + 1_024, "{unit} for {held}");
    }

    #[test]
    fn each_limit_has_a_test_at_the_limit() {
        for Row { name, test, .. } in rows() {
            let (path, function) =
                test.split_once("::").unwrap_or_else(|| panic!("{name}: {test}"));
            let code = text(&format!("crates/{path}"));
            let there = code.split("fn ").any(|rest| rest.starts_with(&format!("{function}(")));
            assert!(there, "{name}: no test {function} in crates/{path}");
        }
    }
}
