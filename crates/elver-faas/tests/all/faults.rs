//! Handlers that crash, hang and fork without end; callers and containers that ask for what is another's.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use elver_faas::schedule::Start;
use elver_testkit::wait_for;
use serde_json::json;

use crate::platform::{Platform, processes_of, python, wait_for_processes};

#[test]
fn a_crash_is_told_and_harms_nobody_else() {
    let mut platform = Platform::start("", &python("alice", 61_011, &["crashes", "echo"]));
    // The first request of an INIT process takes that with it, and no more.
    let (kind, what) = platform.refusal("alice-crashes", json!("crash"));
    assert_eq!(kind, "Ended");
    assert!(what.contains("signal 11"), "{what}");
    assert_eq!(platform.answer("alice-crashes", json!(null)).0, Start::Warm);
    assert_eq!(platform.answer("alice-echo", json!(null)).0, Start::Warm);
    let (kind, what) = platform.refusal("alice-crashes", json!("crash"));
    assert_eq!((kind.as_str(), what.contains("signal 11")), ("Ended", true), "{what}");
    assert_eq!(platform.answer("alice-crashes", json!(null)).0, Start::Fork);
    assert_eq!(platform.answer("alice-echo", json!(null)).0, Start::Fork);
    platform.end();
}

#[test]
fn a_hang_ends_with_its_time() {
    let functions = python("bob", 61_012, &["hangs"]).replace("timeout_s = 20", "timeout_s = 5");
    let mut platform = Platform::start("", &functions);
    // First in the INIT process, which is lost, then in a child, which alone is.
    let (kind, what) = platform.refusal("bob-hangs", json!("hang"));
    assert_eq!((kind.as_str(), what.contains("5000 ms")), ("TimedOut", true), "{what}");
    wait_for_processes(61_012, 1);
    assert_eq!(platform.answer("bob-hangs", json!(null)).0, Start::Warm);
    assert_eq!(platform.refusal("bob-hangs", json!("hang")).0, "TimedOut");
    wait_for_processes(61_012, 2);
    assert_eq!(platform.answer("bob-hangs", json!(null)).0, Start::Fork);
    platform.end();
}

#[test]
fn a_fork_bomb_is_bounded_and_goes_with_its_container() {
    let functions = python("carol", 61_013, &["bomb"]) + "processes_max = 40\n";
    let functions = functions + &python("dave", 61_014, &["echo"]);
    let mut platform = Platform::start("", &functions);
    for expected in [Start::Cold, Start::Fork, Start::Fork] {
        let (start, answer) = platform.answer("carol-bomb", json!(null));
        assert_eq!(start, expected);
        let forked = answer["forked"].as_u64().unwrap();
        assert!((10..40).contains(&forked), "{answer}");
        // They end with their request, whoever ran it: elver-init and the INIT process stay.
        wait_for_processes(61_013, 2);
    }
    let held = platform.invoke_beside("carol-bomb", json!("hold"));
    // His own requests fail once there are as many as may be, and say of what; others see nothing.
    wait_for("a request that cannot be forked for", || {
        let refused = platform.invoke("carol-bomb", json!(null)).err()?.to_string();
        assert!(refused.contains("cannot fork"), "{refused}");
        assert!(processes_of(61_013) <= 40);
        Some(())
    });
    assert_eq!(platform.answer("dave-echo", json!(null)).0, Start::Cold);
    platform.end();
    assert!(held.join().unwrap().is_err());
    wait_for_processes(61_013, 0);
}

#[test]
fn what_leaves_its_group_ends_with_its_child() {
    let mut platform = Platform::start("", &python("leo", 61_019, &["leaves", "echo"]));
    platform.answer("leo-echo", json!(null));
    let (start, _) = platform.answer("leo-leaves", json!(null));
    assert_eq!(start, Start::Warm);
    // What the INIT process's own request left ends with that.
    wait_for_processes(61_019, 3);
    for crash in [false, true, false] {
        if crash {
            assert_eq!(platform.refusal("leo-leaves", json!("crash")).0, "Ended");
        } else {
            // The child and what it has left are there beside those that stay.
            let (start, processes) = platform.answer("leo-leaves", json!(null));
            assert_eq!((start, processes), (Start::Fork, json!(5)));
        }
        wait_for_processes(61_019, 3);
    }
    // An INIT process that ends takes with it what it and its children left.
    let (_, _) = platform.answer("leo-leaves", json!(null));
    platform.end();
    wait_for_processes(61_019, 0);
}

#[test]
fn what_cannot_start_says_why() {
    let text = python("erin", 61_015, &["echo"]).replace("handlers.echo", "missing.echo");
    let platform = Platform::start("", &text);
    let (kind, what) = platform.refusal("erin-echo", json!(null));
    assert_eq!(kind, "Ended");
    assert!(what.contains("No module named 'missing'"), "{what}");
    let (kind, what) = platform.refusal("nobody", json!(null));
    assert!(kind == "Unknown" && what.contains("nobody"), "{what}");
    let nowhere = Platform::start("runtime = [\"runc\"]\nrootfs = \"/nowhere\"", &text);
    let (kind, what) = nowhere.refusal("erin-echo", json!(null));
    assert!(kind == "Container" && what.contains("nowhere"), "{kind}: {what}");
}

#[test]
fn who_leaves_its_group_has_no_more_time_for_it() {
    let functions = python("petra", 61_040, &["moves"]).replace("timeout_s = 20", "timeout_s = 5");
    let mut platform = Platform::start("", &functions);
    assert_eq!(platform.refusal("petra-moves", json!("hang")).0, "TimedOut");
    // elver-init.
    wait_for_processes(61_040, 1);
    assert_eq!(platform.answer("petra-moves", json!(null)).0, Start::Warm);
    platform.end();
}

#[test]
fn an_init_process_that_takes_no_orders_is_replaced() {
    let mut platform = Platform::start("", &python("yves", 61_051, &["stops"]));
    for expected in [Start::Cold, Start::Fork] {
        assert_eq!(platform.answer("yves-stops", json!(null)).0, expected);
    }
    platform.answer("yves-stops", json!("stop"));
    wait_for("another INIT process", || {
        let answered = platform.invoke("yves-stops", json!(null)).ok()?;
        (answered.start == Start::Warm).then_some(())
    });
    assert_eq!(platform.answer("yves-stops", json!(null)).0, Start::Fork);
    platform.end();
}

#[test]
fn a_child_that_answers_and_goes_on_is_ended() {
    let mut platform = Platform::start("", &python("quinn", 61_041, &["answers"]));
    platform.answer("quinn-answers", json!(null));
    for _ in 0..3 {
        let (start, answer) = platform.answer("quinn-answers", json!(1));
        assert_eq!((start, answer), (Start::Fork, json!("by itself")));
    }
    // elver-init and the INIT process.
    wait_for_processes(61_041, 2);
    assert_eq!(platform.answer("quinn-answers", json!(null)).0, Start::Fork);
    platform.end();
}

#[test]
fn a_crash_is_told_whatever_a_handler_does_with_signals() {
    let mut platform = Platform::start("", &python("yara", 61_065, &["deaf"]));
    assert_eq!(platform.answer("yara-deaf", json!("deafen")).0, Start::Cold);
    for _ in 0..2 {
        let (kind, what) = platform.refusal("yara-deaf", json!("crash"));
        assert_eq!((kind.as_str(), what.contains("signal 9")), ("Ended", true), "{what}");
        assert_eq!(platform.answer("yara-deaf", json!(null)).0, Start::Fork);
    }
    // elver-init and the INIT process.
    wait_for_processes(61_065, 2);
    platform.end();
}

#[test]
fn a_handler_with_threads_has_them_in_each_request() {
    let mut platform = Platform::start("", &python("xaver", 61_062, &["pools"]));
    let (_, first) = platform.answer("xaver-pools", json!(0));
    let again = |event| {
        let (start, answer) = platform.answer("xaver-pools", json!(event));
        assert_eq!(answer, json!([event, first[1]]));
        start
    };
    // It is handed requests until it has told of its threads.
    wait_for("threads to be told of", || (again(1) == Start::Reuse).then_some(()));
    for event in 2..4 {
        assert_eq!(again(event), Start::Reuse);
    }
    // At once, each has a process that is at no other.
    let asked: Vec<_> = (0..4).map(|i| platform.invoke_beside("xaver-pools", json!(i))).collect();
    for (event, asked) in asked.into_iter().enumerate() {
        let answer: serde_json::Value =
            serde_json::from_slice(&asked.join().unwrap().unwrap().body).unwrap();
        assert_eq!(answer[0], json!(event));
    }
    // A successor knows of the threads too. It ends those that had not said yet that they serve.
    platform.kill();
    platform.start_again();
    wait_for("the container to be found", || (!platform.list().processes.is_empty()).then_some(()));
    assert_eq!(platform.answer("xaver-pools", json!(9)).0, Start::Reuse);
    platform.end();
    wait_for_processes(61_062, 0);
}

#[test]
fn a_connection_that_is_lost_while_a_handler_works_is_made_anew() {
    let mut platform = Platform::start("", &python("rosa", 61_042, &["cuts"]));
    platform.answer("rosa-cuts", json!(null));
    let (start, answer) = platform.answer("rosa-cuts", json!("cut"));
    assert_eq!((start, answer), (Start::Fork, json!("here")));
    platform.end();
}

#[test]
fn a_process_that_is_forked_asks_for_its_own_request_alone() {
    let platform = Platform::start("", &python("saul", 61_043, &["takes"]));
    for _ in 0..2 {
        assert_eq!(platform.answer("saul-takes", json!(null)).1, 400);
    }
}

#[test]
fn what_is_no_answer_is_not_read() {
    let platform = Platform::start("", &python("tara", 61_044, &["floods"]));
    let other = "invocation/00000000-0000-4000-8000-00000000ffff/response";
    for (path, status) in [("nothing", 404), (other, 403)] {
        assert_eq!(platform.answer("tara-floods", json!(path)).1, json!([status, "close"]));
    }
}

#[test]
fn a_log_that_is_full_ends_nobody() {
    let mut platform = Platform::start("", &python("ugo", 61_045, &["prints"]));
    for megabytes in [0, 80, 80] {
        assert_eq!(platform.answer("ugo-prints", json!(megabytes)).1, "here");
    }
    wait_for("the end of the log", || platform.logs().ends_with("the last line\n").then_some(()));
    assert!(platform.logs().len() <= 16 << 20);
    assert_eq!(platform.answer("ugo-prints", json!(0)).0, Start::Fork);
    platform.end();
}

#[test]
fn what_is_written_is_written_once() {
    let mut platform = Platform::start("", &python("vera", 61_046, &["buffers"]));
    for event in 0..4 {
        platform.answer("vera-buffers", json!(event));
    }
    for event in 0..4 {
        for word in [format!("<python {event}>"), format!("<c {event}>")] {
            wait_for(&word, || (platform.logs().matches(&word).count() >= 1).then_some(()));
        }
    }
    let logs = platform.logs();
    assert_eq!((logs.matches("<python").count(), logs.matches("<c ").count()), (4, 4), "{logs}");
    platform.end();
}

#[test]
fn memory_is_bounded_from_the_first_instruction() {
    let functions = python("wanda", 61_047, &["limits"]) + "memory_mb = 300\n";
    let platform = Platform::start("", &functions);
    let most = 300_u64 << 20;
    for _ in 0..2 {
        assert_eq!(platform.answer("wanda-limits", json!(null)).1, json!([most, most]));
    }
}

#[test]
fn a_user_has_so_many_connections_and_others_theirs() {
    let platform = Platform::start("", &python("xena", 61_048, &["echo"]));
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(platform.directory.path(), open).unwrap();
    const HOLD: &str = "import socket, sys
held = []
for _ in range(400):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    held.append(s)
refused = held[390]
refused.settimeout(20)
print(refused.recv(4096).split()[1].decode(), flush=True)
sys.stdin.read()";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", HOLD]).arg(platform.socket()).uid(61_048).gid(61_048).current_dir("/");
    let held = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut held = held.unwrap();
    let mut said = String::new();
    BufReader::new(held.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "429\n");
    assert_eq!(platform.answer("xena-echo", json!(1)).0, Start::Cold);
    drop(held.stdin.take());
    assert!(held.wait().unwrap().success());
}

#[test]
fn bodies_have_a_limit() {
    let platform = Platform::start("", &python("frank", 61_016, &["large", "echo"]));
    let most = 6 << 20;
    let (_, answer) = platform.answer("frank-large", json!(most - 2));
    assert_eq!(answer.as_str().unwrap().len(), most - 2);
    for far in [most, 4 * most] {
        let failed = platform.invoke("frank-large", json!(far)).unwrap();
        let said = String::from_utf8_lossy(&failed.body).into_owned();
        assert!(failed.is_error && said.contains("at most 6291456 bytes"), "{said}");
    }
    let (kind, _) = platform.refusal("frank-echo", json!("x".repeat(most)));
    assert_eq!(kind, "RequestEntityTooLarge");
    assert_eq!(platform.answer("frank-echo", json!(1)).0, Start::Warm);
}

#[test]
fn who_is_not_the_owner_is_refused() {
    let functions =
        python("grace", 61_017, &["echo"]) + "[owners.heidi]\nuid = 61018\ncallers = [61079]\n";
    let functions = functions
        + "[functions.heidis]\nowner = \"heidi\"\ncode = \"@CODE@\"\nhandler = \"handlers.echo\"\ntimeout_s = 60\n";
    let platform = Platform::start("", &functions);
    // The sockets' directory is open to all; only the test's own hides it.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(platform.directory.path(), open).unwrap();
    for (uid, function, status) in [
        (61_017, "grace-echo", "200"),
        (61_017, "heidis", "404"),
        (61_018, "heidis", "200"),
        (61_079, "heidis", "200"),
        (61_079, "grace-echo", "404"),
    ] {
        assert_eq!(ask_as(&platform, uid, function), status, "{function} for {uid}");
    }
}

#[test]
fn what_a_function_prints_is_nobody_elses_to_read() {
    let platform = Platform::start("", &python("wilma", 61_060, &["prints"]));
    platform.answer("wilma-prints", json!(null));
    wait_for("the log", || platform.logs().contains("the last line").then_some(()));
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(platform.directory.path(), open).unwrap();
    let containers = platform.directory.path().join("state/containers");
    let container = std::fs::read_dir(containers).unwrap().next().unwrap().unwrap().path();
    // Nor is its owner to cut it, or to have it grow.
    for uid in [61_061, 61_060] {
        for (file, is_anybodys) in [
            ("private/log", false),
            ("terms", false),
            ("config.json", false),
            ("rootfs/etc/passwd", true),
        ] {
            let mut command = Command::new("cat");
            command.arg(container.join(file)).uid(uid).gid(uid).current_dir("/");
            let output = command.output().unwrap();
            assert_eq!(output.status.success(), is_anybodys, "{file} for {uid}: {output:?}");
        }
    }
}

#[test]
fn a_handler_gets_nothing_of_another_owners_container() {
    let functions = python("nina", 61_027, &["pretends"]) + &python("oscar", 61_028, &["hangs"]);
    let mut platform = Platform::start("", &functions);
    platform.answer("oscar-hangs", json!(null));
    // A request of another owner's is at work, whose number is near.
    let hangs = platform.invoke_beside("oscar-hangs", json!("hang"));
    wait_for("it to be at work", || {
        platform.list().processes.iter().any(|row| row.requests == 1).then_some(())
    });
    for before in 1..6 {
        let (_, answer) = platform.answer("nina-pretends", json!(-before));
        assert_eq!(answer["control"], false);
        assert_eq!((&answer["next"], &answer["response"]), (&json!(410), &json!(403)));
        let sockets = answer["sockets"].as_array().unwrap();
        // Of its own container: the first process's, and one for each process.
        assert_eq!(sockets.len(), 2, "{sockets:?}");
    }
    assert!(platform.list().processes.iter().any(|row| row.requests == 1));
    platform.end();
    assert!(hangs.join().unwrap().is_err());
}

/// The status that a user gets for an invocation.
fn ask_as(platform: &Platform, uid: u32, function: &str) -> String {
    const ASK: &str = "import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(f'POST /functions/{sys.argv[2]}/invocations HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 4\\r\\n\\r\\nnull'.encode())
print(s.recv(4096).split()[1].decode(), end='')";
    let mut command = Command::new("/usr/bin/python3");
    command
        .args(["-c", ASK])
        .arg(platform.socket())
        .arg(function)
        .uid(uid)
        .gid(uid)
        .current_dir("/");
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
