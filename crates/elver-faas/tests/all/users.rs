//! What users of the host try beside their functions: owners with what is theirs on it, callers with their connections.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use elver_faas::schedule::Start;
use elver_testkit::wait_for;
use serde_json::json;

use crate::platform::{Platform, python};

#[test]
fn a_request_that_waits_goes_with_its_caller() {
    let functions = python("vito", 61_084, &["hangs"]).replace("timeout_s = 20", "timeout_s = 3");
    let functions = functions + &python("walt", 61_085, &["echo"]);
    let mut platform = Platform::start("containers_max = 1", &functions);
    let hangs = platform.invoke_beside("vito-hangs", json!("hang"));
    wait_for("it to be at work", || {
        platform.list().processes.iter().any(|row| row.requests == 1).then_some(())
    });
    let mut gone = UnixStream::connect(platform.socket()).unwrap();
    let head =
        "POST /functions/walt-echo/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n";
    gone.write_all(format!("{head}null").as_bytes()).unwrap();
    drop(gone);
    // It would be the first else, in the one container that there may be.
    let (start, answer) = platform.answer("walt-echo", json!(2));
    assert_eq!((start, &answer["calls"]), (Start::Cold, &json!(1)));
    assert!(hangs.join().unwrap().is_err());
    platform.end();
}

/// He saw whatever directory he liked, behind directories that are closed to him.
#[test]
fn an_owner_puts_no_other_directory_in_place_of_his_code() {
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("home");
    let platform = Platform::start(
        "",
        &python("uma", 61_083, &["look"]).replace("@CODE@", home.join("code").to_str().unwrap()),
    );
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::symlink(platform.code(), home.join("code")).unwrap();
    // The link is root's, in a directory of root's.
    assert_eq!(platform.answer("uma-look", json!(null)).0, Start::Cold);
    let mut platform = platform;
    platform.kill();
    std::os::unix::fs::chown(&home, Some(61_083), Some(61_083)).unwrap();
    platform.configure("timeout_s = 20", "timeout_s = 19");
    platform.start_again();
    let (kind, what) = platform.refusal("uma-look", json!(null));
    assert!(kind == "Container" && what.contains("can be replaced by others than root"), "{what}");
    platform.end();
}

/// Its owner put a link in place of the next socket, and was given what it leads to.
#[test]
fn sockets_are_not_their_owners_to_replace() {
    let platform = Platform::start("", &python("sam", 61_081, &["echo", "limits"]));
    platform.answer("sam-echo", json!(1));
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(platform.directory.path(), open).unwrap();
    const CHANGE: &str = "import os, sys
os.chdir(sys.argv[1])
for change in (lambda: os.chmod('.', 0o700), lambda: os.symlink('/etc', 'evil'),
               lambda: os.rename('control.sock', 'other'), lambda: os.unlink('control.sock')):
    try:
        change()
        print('changed', end=' ')
    except PermissionError:
        print('refused', end=' ')
print(len(os.listdir()), end='')";
    let containers = platform.directory.path().join("state/containers");
    let container = std::fs::read_dir(containers).unwrap().next().unwrap().unwrap().path();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", CHANGE]).arg(container.join("sockets"));
    let output = command.uid(61_081).gid(61_081).current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "refused refused refused refused 2", "{output:?}");
    // What is made there later is given to him as before.
    assert_eq!(platform.answer("sam-limits", json!(null)).0, Start::Warm);
}
