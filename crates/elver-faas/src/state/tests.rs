//! What stands in an orchestrator's directory, and who may work in it.

use super::*;

fn programs(place: &Path) -> Programs<'_> {
    Programs { init: place, module: None }
}

fn locked(path: &Path) -> io::Result<std::fs::File> {
    wait_for_lock(path, LOCK_MAX, LOCK_MAX)
}

/// What a runtime was about had five seconds, and who waited for it was told of another orchestrator.
#[test]
fn commands_of_one_that_has_ended_have_their_time_and_are_told_of() {
    const SHORT: Duration = Duration::from_millis(20);
    let place = tempfile::tempdir().unwrap();
    let (path, init) = (place.path().join("state"), place.path().join("init"));
    std::fs::write(&init, "a program").unwrap();
    let wait = |works, commands| wait_for_lock(&path, works, commands);
    let first = StateDirectory::open(&path, &programs(&init)).unwrap();
    let mut command = std::process::Command::new("cat");
    let mut command = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let refused = wait(SHORT, Duration::MAX).unwrap_err();
    assert!(refused.to_string().contains("another orchestrator works in"), "{refused}");
    drop(first);
    let refused = wait(Duration::MAX, SHORT).unwrap_err();
    assert!(refused.to_string().contains("a command of the runtime"), "{refused}");
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(SHORT, Duration::MAX));
        drop(command.stdin.take());
        waits.join().unwrap()
    });
    waits.unwrap();
    assert!(command.wait().unwrap().success());
}

/// It began anew, and containers that ran old programs were taken for such as run the new ones.
#[test]
fn a_count_that_is_lost_is_no_earlier_one() {
    let place = tempfile::tempdir().unwrap();
    let (state, init) = (place.path().join("state"), place.path().join("init"));
    let replaced = |program: &str| {
        std::fs::write(&init, program).unwrap();
        StateDirectory::open(&state, &programs(&init)).unwrap().replaced()
    };
    let first = replaced("a program");
    assert_eq!((first, replaced("a program")), (1, 1));
    std::fs::write(state.join("replaced"), "").unwrap();
    let second = replaced("another program");
    assert!(second > 2, "{second}");
    assert_eq!(replaced("a third program"), second + 1);
    // One that is none is written anew, also where nothing else is.
    for lost in [&b""[..], b"\xff"] {
        std::fs::write(state.join("replaced"), lost).unwrap();
        let anew = replaced("a third program");
        assert_eq!(std::fs::read_to_string(state.join("replaced")).unwrap(), anew.to_string());
        assert_eq!(replaced("a third program"), anew);
    }
}

/// Whoever had made it ahead could put programs there, which root ran for all owners.
#[test]
fn a_directory_that_others_can_change_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (state, init) = (place.path().join("state"), place.path().join("init"));
    std::fs::write(&init, "a program").unwrap();
    let open = || StateDirectory::open(&state, &programs(&init)).map(drop);
    open().unwrap();
    let set = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&state, permissions).unwrap();
    };
    for mode in [0o777, 0o720, 0o1777] {
        set(mode);
        let refused = open().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
    }
    set(0o755);
    open().unwrap();
    if rustix::process::geteuid().is_root() {
        lchown(&state, Some(61_080), Some(61_080)).unwrap();
        assert_eq!(open().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn nothing_is_left_but_what_a_container_has() {
    let place = tempfile::tempdir().unwrap();
    let (state, init) = (place.path().join("state"), place.path().join("init"));
    std::fs::write(&init, "a program").unwrap();
    let left = || std::fs::read_dir(&state).unwrap().count();
    let directory = StateDirectory::open(&state, &programs(&init)).unwrap();
    directory.make(ContainerId(7), rustix::process::getuid().as_raw(), &Terms::default()).unwrap();
    directory.clear();
    assert!(directory.programs().join("elver-init").exists() && left() > 4);
    directory.remove(ContainerId(7));
    directory.clear();
    assert_eq!(left(), 0);
    drop(directory);
    StateDirectory::open(&state, &programs(&init)).unwrap();
}

/// Its owner could replace a socket by a link just before that was given to him.
#[test]
fn the_directory_of_sockets_is_our_own() {
    let place = tempfile::tempdir().unwrap();
    let (state, init) = (place.path().join("state"), place.path().join("init"));
    std::fs::write(&init, "a program").unwrap();
    let directory = StateDirectory::open(&state, &programs(&init)).unwrap();
    let own = rustix::process::geteuid();
    // Another user's, where we may make such containers.
    let uid = if own.is_root() { 61_080 } else { own.as_raw() };
    let (id, sockets) = (ContainerId(7), directory.sockets(ContainerId(7)));
    directory.make(id, uid, &Terms::default()).unwrap();
    let is_ours = || {
        let made = std::fs::metadata(&sockets).unwrap();
        assert_eq!((made.uid(), made.mode() & 0o7777), (own.as_raw(), 0o750));
    };
    is_ours();
    // As an earlier version left it, and its owner after that.
    lchown(&sockets, Some(uid), Some(uid)).unwrap();
    std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o777)).unwrap();
    directory.show_sockets(id, uid).unwrap();
    is_ours();
    std::os::unix::fs::symlink(&init, sockets.join("api-1.sock")).unwrap();
    directory.give(&sockets.join("api-1.sock"), uid).unwrap();
    assert_eq!(std::fs::metadata(&init).unwrap().uid(), own.as_raw());
}

/// Any user of the host could lock it, and no orchestrator started.
#[test]
fn the_lock_is_nobody_elses_to_open() {
    let place = tempfile::tempdir().unwrap();
    let lock = place.path().join("lock");
    let mode = || std::fs::metadata(&lock).unwrap().mode() & 0o7777;
    drop(locked(place.path()).unwrap());
    assert_eq!(mode(), 0o600);
    // An earlier version's.
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).unwrap();
    drop(locked(place.path()).unwrap());
    assert_eq!(mode(), 0o600);
}

/// Who has opened the file of a lock that goes with its owner has not the lock of the next one.
#[test]
fn a_lock_that_went_is_nobodys() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path();
    let first = locked(path).unwrap();
    let waits = std::thread::scope(|scope| {
        let second = scope.spawn(|| locked(path).unwrap());
        std::fs::remove_file(path.join("lock")).unwrap();
        // The second one makes a file of its own, whether or not it had opened this one.
        second.join().unwrap()
    });
    drop(first);
    let named = std::fs::metadata(path.join("lock")).unwrap();
    assert_eq!(named.ino(), waits.metadata().unwrap().ino());
    let other = std::fs::File::open(path.join("lock")).unwrap();
    assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
}
