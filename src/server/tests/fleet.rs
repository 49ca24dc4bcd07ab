use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

const DOMAIN: DomainId = [0xab; 32];

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet");
    (directory, path)
}

fn fleet(path: &Path) -> FleetFile {
    FleetFile::new(path, None).unwrap()
}

fn names(directory: &tempfile::TempDir) -> Vec<String> {
    let entries = fs::read_dir(directory.path()).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_first_decides_and_the_others_agree_or_differ() {
    let (directory, path) = place();
    let one = fleet(&path);
    one.check_place().unwrap();
    assert_eq!(one.read().unwrap(), None);
    one.agree(544).unwrap();
    one.agree(544).unwrap();
    assert_eq!(fleet(&path).read().unwrap(), Some(544));
    let error = fleet(&path).agree(256).unwrap_err();
    assert!(matches!(
        error,
        FleetError::Differs {
            recorded: 544,
            selected: 256,
            ..
        }
    ));
    let text = error.to_string();
    for part in ["544", "256", path.to_str().unwrap()] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(names(&directory), ["fleet"], "and nothing else");
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "kvasir-fleet 1\nchunk-size 544\ndomain -\n"
    );
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn every_domain_has_a_file_of_its_own() {
    let (directory, path) = place();
    let of = |domain| FleetFile::new(&path, Some(domain)).unwrap();
    of(&DOMAIN).agree(544).unwrap();
    of(&[1; 32]).agree(640).unwrap();
    fleet(&path).agree(256).unwrap();
    assert_eq!(of(&DOMAIN).read().unwrap(), Some(544));
    assert_eq!(
        names(&directory),
        [
            "fleet".into(),
            format!("fleet.{}", "01".repeat(16)),
            format!("fleet.{}", "ab".repeat(16))
        ]
    );
    // Another domain with the same first half, and so the same name.
    let mut other = DOMAIN;
    other[31] = 0;
    let error = of(&other).read().unwrap_err().to_string();
    assert!(error.contains("another binding domain"), "{error}");
}

#[test]
fn what_this_user_did_not_make_so_is_not_trusted() {
    let (directory, path) = place();
    let refused = |expected: &str| {
        for error in [
            fleet(&path).read().unwrap_err(),
            fleet(&path).agree(544).unwrap_err(),
        ] {
            assert!(error.to_string().contains(expected), "{expected}: {error}");
        }
    };
    fleet(&path).agree(544).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    refused("0640");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fleet(&path).read().unwrap(), Some(544));
    let second = directory.path().join("second");
    fs::hard_link(&path, &second).unwrap();
    refused("2 names");
    fs::remove_file(&path).unwrap();
    symlink(&second, &path).unwrap();
    refused("symbolic link");
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("not a regular file");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused("not a regular file");
}

#[test]
fn a_record_is_exactly_what_a_server_writes() {
    let (_directory, path) = place();
    let good = "kvasir-fleet 1\nchunk-size 544\ndomain -\n";
    let write = |text: &str| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fleet(&path).read()
    };
    assert_eq!(write(good).unwrap(), Some(544));
    for bad in [
        "",
        "\n\n\n",
        &good[..20],
        &good.replace(" 1\n", " 2\n"),
        &good.replace("544", "0"),
        &good.replace("544", "16777217"),
        &good.replace("544", "-1"),
        &good.replace("544", "99999999999"),
        &good.replace("domain -", "domain ff"),
        &format!("{good}more\n"),
        &good.replace("544", &"4".repeat(400)),
    ] {
        let answer = write(bad);
        assert!(
            matches!(answer, Err(FleetError::Untrusted { .. })),
            "{bad:?}: {answer:?}"
        );
    }
}

#[test]
fn paths_that_cannot_hold_a_record_are_found_at_start() {
    for path in ["", "/", "fleet/.."] {
        let error = FleetFile::new(Path::new(path), None).unwrap_err();
        assert!(matches!(error, FleetError::NotAFile { .. }), "{path:?}");
    }
    let (directory, _) = place();
    let missing = fleet(&directory.path().join("missing/fleet"));
    assert!(matches!(
        missing.check_place(),
        Err(FleetError::Io {
            call: "open its directory",
            ..
        })
    ));
}

/// Threads of one process race as servers do: by the file alone.
#[test]
fn of_many_at_once_one_decides() {
    let (directory, path) = place();
    let sizes: Vec<u32> = (1..=16).map(|n| n * 16).collect();
    let agreed: Vec<u32> = std::thread::scope(|scope| {
        let racers: Vec<_> = sizes
            .iter()
            .map(|&size| {
                let path = &path;
                scope.spawn(move || fleet(path).agree(size).is_ok().then_some(size))
            })
            .collect();
        racers
            .into_iter()
            .filter_map(|racer| racer.join().unwrap())
            .collect()
    });
    assert_eq!(agreed.len(), 1);
    assert_eq!(fleet(&path).read().unwrap(), Some(agreed[0]));
    assert_eq!(names(&directory), ["fleet"]);
}
