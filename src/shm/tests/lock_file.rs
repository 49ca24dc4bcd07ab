use super::*;

fn taken(path: &Path) -> LockFile {
    match LockFile::acquire(path).unwrap() {
        LockAttempt::Taken(lock) => lock,
        held => panic!("{held:?}"),
    }
}

#[test]
fn a_lock_file_has_one_holder_who_says_who_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket.lock");
    let lock = taken(&path);
    assert_eq!(lock.path(), path);
    match LockFile::acquire(&path).unwrap() {
        LockAttempt::Held { holder_pid } => assert_eq!(holder_pid, Some(std::process::id())),
        LockAttempt::Taken(_) => panic!("taken twice"),
    }
    let mode = std::fs::metadata(&path).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);

    drop(lock);
    assert!(path.exists(), "a crash leaves the file");
    let lock = taken(&path);
    lock.remove().unwrap();
    assert!(!path.exists());
    drop(taken(&path));
}

#[test]
fn a_lock_on_a_file_that_was_replaced_meanwhile_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket.lock");
    // Many threads take, remove and take again: a lock on a removed file would let two in at once.
    let inside = std::sync::atomic::AtomicU32::new(0);
    let entered = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let LockAttempt::Taken(lock) = LockFile::acquire(&path).unwrap() else {
                        continue;
                    };
                    let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert_eq!(others, 0, "two holders");
                    entered.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    lock.remove().unwrap();
                }
            });
        }
    });
    assert!(entered.load(std::sync::atomic::Ordering::SeqCst) > 0);
}

#[test]
fn what_no_holder_left_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket.lock");
    for text in [
        "my notes\n",
        "12\n13\n",
        "\n",
        "-1\n",
        "12345678901234567890123456789012345\n",
    ] {
        std::fs::write(&path, text).unwrap();
        match LockFile::acquire(&path) {
            Err(ShmError::NotALockFile { found, .. }) => {
                assert!(found.contains(&format!("{} bytes", text.len())), "{found}");
            }
            other => panic!("{text:?}: {other:?}"),
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    for text in ["", "12", "4194304\n"] {
        std::fs::write(&path, text).unwrap();
        let lock = taken(&path);
        lock.give_up().unwrap();
        assert!(path.exists(), "it was there before");
    }
    std::fs::remove_file(&path).unwrap();
    taken(&path).give_up().unwrap();
    assert!(!path.exists(), "it was made for this attempt");

    let target = dir.path().join("precious");
    std::fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    refused(&path, "symbolic link");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused(&path, "directory");
    std::fs::remove_dir(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused(&path, "not a regular file");
}

fn refused(path: &Path, why: &str) {
    match LockFile::acquire(path) {
        Err(ShmError::NotALockFile { found, .. }) => assert!(found.contains(why), "{found}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_the_own_name_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket.lock");
    let first = taken(&path);
    std::fs::remove_file(&path).unwrap();
    let second = taken(&path);
    first.remove().unwrap();
    assert!(path.exists(), "the name is the second holder's");
    std::fs::remove_file(&path).unwrap();
    second.remove().unwrap();
}
