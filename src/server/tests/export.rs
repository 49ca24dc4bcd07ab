use super::*;

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_name_has_letters_and_digits() {
    for good in ["a", "node-0_x", &"n".repeat(64)] {
        assert!(is_name(good), "{good}");
    }
    for bad in ["", "a/b", "a.b", "..", "a b", "\u{e4}", &"n".repeat(65)] {
        assert!(!is_name(bad), "{bad}");
    }
}

#[test]
fn files_belong_to_a_name_or_to_nobody() {
    for (file, name) in [
        ("kvasir.a.lock", Some("a")),
        ("kvasir.a.7.ring", Some("a")),
        ("kvasir.a-b_c.12.ring", Some("a-b_c")),
        ("kvasir.ring", None),
        ("kvasir.a.ring.old", None),
        ("kvasir.a.b.7.ring", None),
        ("other.a.lock", None),
        ("kvasir..lock", None),
    ] {
        assert_eq!(exported_name(file), name, "{file}");
    }
}

#[test]
fn files_are_the_owners_and_go_with_their_guards() {
    let directory = tempfile::tempdir().unwrap();
    let export = Export::open_in(directory.path(), "one").unwrap();
    let (file, named) = export.create().unwrap();
    let (_second, _named) = export.create().unwrap();
    assert_eq!(
        names(directory.path()),
        ["kvasir.one.0.ring", "kvasir.one.1.ring", "kvasir.one.lock"]
    );
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o7777), (0, 0o600));
    drop(named);
    assert_eq!(names(directory.path()), ["kvasir.one.1.ring", "kvasir.one.lock"]);
    drop(export);
    assert_eq!(names(directory.path()), Vec::<String>::new());
}

#[test]
fn what_the_dead_left_goes_and_what_the_living_have_stays() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let living = Export::open_in(directory.path(), "living").unwrap();
    let (_file, _named) = living.create().unwrap();
    for left in [
        "kvasir.dead.lock",
        "kvasir.dead.3.ring",
        "kvasir.dead.4.ring",
        "kvasir.gone.0.ring",
    ] {
        fs::write(at(left), "").unwrap();
    }
    // Nobody's: not of this form.
    fs::write(at("kvasir.other"), "").unwrap();
    fs::create_dir(at("kvasir.dir.0.ring")).unwrap();
    std::os::unix::fs::symlink("/nowhere", at("kvasir.dead.5.ring")).unwrap();
    clean_up_in(directory.path());
    assert_eq!(
        names(directory.path()),
        [
            "kvasir.dead.5.ring",
            "kvasir.dir.0.ring",
            "kvasir.living.0.ring",
            "kvasir.living.lock",
            "kvasir.other"
        ]
    );
    assert!(matches!(
        Export::open_in(directory.path(), "living"),
        Err(ExportError::InUse { pid: Some(pid), .. }) if pid == std::process::id()
    ));
}
