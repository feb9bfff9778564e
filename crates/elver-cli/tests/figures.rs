//! The benchmarks of KRCORE's single figures, end to end: what they print, and no figure of theirs.
//! One test function for all that spins, as in `cli.rs`.

use std::process::Command;

use serde_json::Value;

fn bench(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_elver"));
    let output = command.arg("bench").args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}: {error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let text = bench(&[arguments, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn names(rows: &Value) -> Vec<&str> {
    rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

/// Every one of these is a number, and none is negative.
fn numbers(row: &Value, keys: &[&str]) {
    for key in keys {
        let value = row[*key].as_f64();
        assert!(value.is_some_and(|value| value >= 0.0), "{key} of {row}");
    }
}

const QUICK: [&str; 6] = ["--placement", "loopback", "--rounds", "1", "--duration", "0.01"];

#[test]
fn benchmarks_that_spin() {
    let echoes = json(&[&["zero-copy", "--sizes", "8,65536"][..], &QUICK].concat());
    assert_eq!(echoes["bench"], "zero-copy");
    assert_eq!(echoes["placement"], "loopback");
    assert_eq!(names(&echoes["rows"]), ["copy", "copy", "zero-copy", "zero-copy"]);
    for (row, size) in echoes["rows"].as_array().unwrap().iter().zip([8, 65_536, 8, 65_536]) {
        assert_eq!(row["size"], size);
        numbers(row, &["p50_us", "p99_us"]);
        assert_eq!(row["spread_us"].as_array().unwrap().len(), 2);
    }
    assert!(echoes["crossing_bytes"].is_number() || echoes["crossing_bytes"].is_null());
    numbers(&echoes, &["eager_bytes_max", "rounds"]);

    let factors = json(&[&["factors"][..], &QUICK].concat());
    assert_eq!(factors["bench"], "factors");
    let expected =
        ["raw-rc", "vqp-rc", "vqp-dc", "mr-miss", "embedded-host", "portal-inline", "portal-host"];
    assert_eq!(names(&factors["rows"]), expected);
    for row in factors["rows"].as_array().unwrap() {
        numbers(row, &["p50_us", "p99_us"]);
        assert_eq!(row["adds_us"].is_number(), row["beside"].is_string(), "{row}");
    }

    let echoes = json(&[&["echo"][..], &QUICK].concat());
    assert_eq!(names(&echoes["rows"]), ["raw-rc", "vqp-rc", "vqp-dc"].repeat(2));
    for row in echoes["rows"].as_array().unwrap() {
        numbers(row, &["p50_us", "p99_us", "echoes_per_s", "under_way"]);
        assert!(row["echoes_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }

    // Six threads fit LITE's send queue, and the seventh breaks it; VQPs wait for room.
    let lite = json(&[&["lite", "--threads", "6,7"][..], &QUICK].concat());
    assert_eq!(names(&lite["rows"]), ["lite", "vqp-rc", "vqp-dc"].repeat(4));
    for row in lite["rows"].as_array().unwrap() {
        let breaks = (&row["name"], &row["mode"], &row["threads"])
            == (&"lite".into(), &"async".into(), &7.into());
        assert_eq!(row["failed"].is_string(), breaks, "{row}");
        assert_eq!(row["ops_per_s"].is_null(), breaks, "{row}");
    }

    let fork = json(&["fork", "--objects", "50", "--rounds", "1"]);
    let expected =
        ["take", "read-inherited", "read-new-session", "fork-plain", "fork-with-objects"];
    assert_eq!(names(&fork["rows"]), expected);
    for row in fork["rows"].as_array().unwrap() {
        numbers(row, &["p50_us", "p99_us"]);
    }
    let calls = json(&["calls", "--placement", "loopback", "--rounds", "1"]);
    let expected = ["queue", "qconnect-rc", "qconnect-dccache", "qbind", "qreg-mr-4mb"];
    assert_eq!(names(&calls["rows"]), expected.repeat(2));
    for row in calls["rows"].as_array().unwrap() {
        numbers(row, &["p50_us", "p99_us"]);
        assert!(row["through"] == "node" || row["through"] == "daemon", "{row}");
    }

    let memory =
        ["memory", "--peers", "0,50", "--vqps", "20,40", "--rc-qps", "10", "--rounds", "2"];
    let memory = json(&memory);
    assert_eq!(memory["bench"], "memory");
    assert_eq!(memory["rounds"], 2);
    let peers = memory["peers"].as_array().unwrap();
    assert_eq!(peers.iter().map(|row| &row["peers"]).collect::<Vec<_>>(), [0.0, 50.0]);
    for row in peers {
        numbers(row, &["counted_bytes", "rss_bytes", "lite_bytes"]);
    }
    let vqps = memory["vqps"].as_array().unwrap();
    let used: Vec<bool> = vqps.iter().map(|row| row["used"].as_bool().unwrap()).collect();
    assert_eq!(used, [false, false, true]);
    for row in vqps {
        numbers(row, &["vqps", "counted_bytes_each", "rss_bytes_each", "connection_bytes"]);
    }
    numbers(&memory["rc_qps"], &["count", "rss_bytes_each", "lite_bytes_each"]);
}

#[test]
fn the_pool_in_virtual_time() {
    let pool = ["pool", "--dc-qps", "1,4", "--rounds", "2", "--reads", "20"];
    let result = json(&pool);
    assert_eq!((&result["bench"], &result["time"]), (&"pool".into(), &"virtual".into()));
    for key in ["rows", "tail"] {
        let rows = &result[key];
        assert_eq!(names(rows), ["vqp-rc", "vqp-dc", "vqp-dc", "vqp-dc", "vqp-dc"]);
        let pools: Vec<_> =
            rows.as_array().unwrap().iter().map(|row| (&row["dc_qps"], &row["streams"])).collect();
        assert!(pools[0].0.is_null());
        assert_eq!(pools[1..3], [(&1.into(), &1.into()), (&4.into(), &1.into())]);
    }
    for row in result["rows"].as_array().unwrap() {
        numbers(row, &["batch_us"]);
    }
    for row in result["tail"].as_array().unwrap() {
        numbers(row, &["p50_us", "p90_us", "p99_us", "p999_us"]);
        assert!(row["p50_us"].as_f64() <= row["p999_us"].as_f64(), "{row}");
    }
    // Virtual time knows no noise.
    assert_eq!(json(&pool), result);
}

#[test]
fn help_teaches() {
    for name in ["zero-copy", "factors", "pool", "memory"] {
        let help = bench(&[name, "--help"]);
        assert!(help.contains("Examples:") && help.contains("KRCORE"), "{help}");
    }
}
