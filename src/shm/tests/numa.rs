use super::*;
use crate::shm::{Memfd, OwnerAccess};

/// Files of a machine with these nodes, each with its processors.
fn machine(nodes: &[(u32, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("sys/devices/system/node");
    std::fs::create_dir_all(&directory).unwrap();
    let numbers: Vec<u32> = nodes.iter().map(|(node, _)| *node).collect();
    std::fs::write(directory.join("has_memory"), format!("{}\n", list(&numbers))).unwrap();
    for (node, cpus) in nodes {
        let own = directory.join(format!("node{node}"));
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("cpulist"), format!("{cpus}\n")).unwrap();
    }
    root
}

#[test]
fn lists_are_read_as_the_kernel_and_people_write_them() {
    assert_eq!(parse_list("0"), Some(vec![0]));
    assert_eq!(parse_list("0-2,5"), Some(vec![0, 1, 2, 5]));
    assert_eq!(parse_list("3,1,1"), Some(vec![1, 3]));
    for bad in ["", "a", "2-1", "0,", "-1", "1024", "0-99999999", "0 1"] {
        assert_eq!(parse_list(bad), None, "{bad}");
        assert!(bad.parse::<Numa>().is_err(), "{bad}");
    }
    for text in ["auto", "off", "0", "0,3"] {
        assert_eq!(text.parse::<Numa>().unwrap().to_string(), text);
    }
}

#[test]
fn a_setting_means_what_the_machine_has() {
    let own = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let first = (0..CpuSet::count())
        .find(|cpu| own.is_set(*cpu).unwrap())
        .unwrap();
    let (here, nowhere) = (first.to_string(), "1000-1003");
    let choose_of = |nodes: &[(u32, &str)], setting: &str| {
        let root = machine(nodes);
        choose(&setting.parse().unwrap(), root.path()).map_err(|error| error.to_string())
    };
    let one = [(0, here.as_str())];
    for setting in ["auto", "0"] {
        assert_eq!(choose_of(&one, setting), Ok(Placement::Kernel(Why::OneNode(0))));
    }
    assert_eq!(choose_of(&one, "off"), Ok(Placement::Kernel(Why::Off)));
    let two = [(0, nowhere), (1, here.as_str())];
    assert_eq!(choose_of(&two, "auto"), Ok(Placement::Prefer(1)));
    assert_eq!(choose_of(&two, "0"), Ok(Placement::Bind(0)));
    assert_eq!(choose_of(&two, "0-1"), Ok(Placement::Interleave(vec![0, 1])));
    let both = [(0, here.as_str()), (1, here.as_str()), (2, nowhere)];
    assert_eq!(choose_of(&both, "auto"), Ok(Placement::Interleave(vec![0, 1])));
    let error = choose_of(&two, "0,7").unwrap_err();
    assert!(error.contains("0,7") && error.contains("are 0,1;"), "{error}");
    // A kernel without nodes.
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(
        choose(&Numa::Auto, empty.path()).unwrap(),
        Placement::Kernel(Why::Unknown)
    );
    assert!(choose(&Numa::Nodes(vec![0]), empty.path()).is_err());
}

#[test]
fn what_was_asked_for_is_what_the_kernel_has_been_told() {
    let Some(node) = nodes(Path::new("/")).first().copied() else {
        eprintln!("SKIPPED: this kernel shows no nodes");
        return;
    };
    let policy_of = |map: &Mapping<ReadWrite>| {
        let text = fs::read_to_string("/proc/self/numa_maps").unwrap();
        let start = format!("{:x} ", map.base() as usize);
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        let line = line.unwrap_or_else(|| panic!("{start} in {text}"));
        line.split(' ').next().unwrap().to_owned()
    };
    for (placement, told) in [
        (Placement::Bind(node), format!("bind:{node}")),
        (Placement::Prefer(node), format!("prefer:{node}")),
        (Placement::Interleave(vec![node]), format!("interleave:{node}")),
        (Placement::Kernel(Why::Off), "default".to_owned()),
    ] {
        let memfd = Memfd::create("test-numa", 1 << 20, OwnerAccess::Read).unwrap();
        let map = memfd.map().unwrap();
        match map.place(&placement) {
            Ok(()) => {}
            Err(ShmError::Os { source, .. }) if source.raw_os_error() == Some(libc::EPERM) => {
                eprintln!("SKIPPED: a sandbox forbids mbind");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(policy_of(&map), told);
        map.prefault(0..1 << 20).unwrap();
        let seen = map.node_at(4096).expect("mbind works, and so does asking");
        assert!(nodes(Path::new("/")).contains(&seen));
        if let Placement::Bind(node) = placement {
            assert_eq!(seen, node);
        }
    }
    // A node that cannot be is the kernel's to refuse.
    let memfd = Memfd::create("test-numa", 4096, OwnerAccess::Read).unwrap();
    let error = memfd
        .map()
        .unwrap()
        .place(&Placement::Bind(MAX_NODES - 1))
        .unwrap_err();
    assert!(error.to_string().contains("mbind failed"), "{error}");
}

#[test]
fn a_thread_runs_where_the_memory_is_if_it_may() {
    let own = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let last = (0..CpuSet::count())
        .rfind(|cpu| own.is_set(*cpu).unwrap())
        .unwrap();
    let root = machine(&[(0, "1000-1003"), (1, &last.to_string())]);
    // The setting is the thread's alone.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(!run_on(root.path(), 0), "no processor of it is ours");
            assert!(run_on(root.path(), 1));
            let now = sched_getaffinity(Pid::from_raw(0)).unwrap();
            let left: Vec<usize> = (0..CpuSet::count())
                .filter(|cpu| now.is_set(*cpu).unwrap())
                .collect();
            assert_eq!(left, [last]);
        });
    });
}
