//! Fake roots with the files of several kinds of machines. (Real control groups are in tests/server_memory.rs.)

use super::*;

const MIB: u64 = 1 << 20;

/// A directory in the place of `/`, with what is written there.
struct FakeRoot(tempfile::TempDir);

impl FakeRoot {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        for (path, text) in files {
            root.write(path, text);
        }
        root
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn bounds(&self) -> Vec<(String, u64, u64, bool)> {
        let bounds = memory_bounds(self.0.path(), None).into_iter();
        bounds
            .map(|bound| (bound.what, bound.limit, bound.available, bound.hard))
            .collect()
    }
}

fn group(name: &str, file: &str) -> String {
    format!("the memory limit of control group {name} ({file})")
}

#[test]
fn version_2_with_all_groups_above_and_what_can_be_taken_back() {
    let root = FakeRoot::new(&[
        ("proc/self/cgroup", "0::/pod.slice/engine/kvasir\n"),
        (
            "proc/self/mountinfo",
            "24 1 0:22 / /proc rw - proc proc rw\n30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        ),
        ("sys/fs/cgroup/pod.slice/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/pod.slice/memory.high", "max\n"),
        ("sys/fs/cgroup/pod.slice/memory.current", "943718400\n"),
        (
            "sys/fs/cgroup/pod.slice/memory.stat",
            "anon 838860800\nactive_file 20971520\ninactive_file 83886080\nshmem 1\n",
        ),
        ("sys/fs/cgroup/pod.slice/engine/memory.max", "max\n"),
        ("sys/fs/cgroup/pod.slice/engine/memory.high", "max\n"),
        ("sys/fs/cgroup/pod.slice/engine/memory.current", "4096\n"),
        ("sys/fs/cgroup/pod.slice/engine/kvasir/memory.max", "max\n"),
        ("sys/fs/cgroup/pod.slice/engine/kvasir/memory.high", "536870912\n"),
        (
            "sys/fs/cgroup/pod.slice/engine/kvasir/memory.current",
            "1048576\n",
        ),
    ]);
    assert_eq!(
        root.bounds(),
        [
            (
                group("/pod.slice/engine/kvasir", "memory.high"),
                512 * MIB,
                511 * MIB,
                false
            ),
            // 900 MiB are in use, 100 of them pages of files.
            (group("/pod.slice", "memory.max"), 1024 * MIB, 224 * MIB, true),
        ]
    );
    assert_eq!(available_memory(root.0.path(), None), Some(224 * MIB));
}

#[test]
fn version_1_beside_an_empty_version_2() {
    let root = FakeRoot::new(&[
        ("proc/self/cgroup", "4:cpu:/\n3:memory:/jobs/one\n0::/\n"),
        (
            "proc/self/mountinfo",
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "4096\n"),
        (
            "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
        ("sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "4096\n"),
        (
            "sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes",
            "100663296\n",
        ),
        (
            "sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes",
            "33554432\n",
        ),
        (
            "sys/fs/cgroup/memory/jobs/one/memory.stat",
            "active_file 1\ninactive_file 1\ntotal_active_file 1048576\ntotal_inactive_file 0\n",
        ),
    ]);
    let expected = (
        group("/jobs/one", "memory.limit_in_bytes"),
        96 * MIB,
        65 * MIB,
        true,
    );
    assert_eq!(root.bounds(), [expected]);
}

#[test]
fn in_a_container_the_mount_is_the_containers() {
    // Without a name space of its own: the path is the host's, and so is the top of the mount.
    let host_path = FakeRoot::new(&[
        ("proc/self/cgroup", "0::/docker/abc/inner\n"),
        (
            "proc/self/mountinfo",
            "30 24 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
        ),
        ("sys/fs/cgroup/memory.max", "104857600\n"),
        ("sys/fs/cgroup/memory.current", "1048576\n"),
        ("sys/fs/cgroup/inner/memory.max", "52428800\n"),
        ("sys/fs/cgroup/inner/memory.current", "1048576\n"),
    ]);
    assert_eq!(
        host_path.bounds(),
        [
            (group("/docker/abc/inner", "memory.max"), 50 * MIB, 49 * MIB, true),
            (group("/docker/abc", "memory.max"), 100 * MIB, 99 * MIB, true),
        ]
    );
    // A path that is not below the mount, as after a process was moved: what is mounted counts.
    for path in ["0::/elsewhere\n", "0::/../../sibling\n"] {
        host_path.write("proc/self/cgroup", path);
        let expected = (group("/docker/abc", "memory.max"), 100 * MIB, 99 * MIB, true);
        assert_eq!(host_path.bounds(), [expected], "{path}");
    }
}

#[test]
fn the_machine_bounds_too_and_nothing_is_known_where_nothing_can_be_read() {
    let root = FakeRoot::new(&[(
        "proc/meminfo",
        "MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\nSwapTotal:       1024 kB\nCommitLimit: 700 kB\nCommitted_AS: 400 kB\n",
    )]);
    let bounds = root.bounds();
    assert_eq!(
        (bounds[0].1, bounds[0].2, bounds[0].3),
        (2048 << 10, 512 << 10, true)
    );
    root.write("proc/sys/vm/overcommit_memory", "2\n");
    assert_eq!(root.bounds()[0].2, 300 << 10);
    assert_eq!(FakeRoot::new(&[]).bounds(), []);
    assert_eq!(available_memory(FakeRoot::new(&[]).0.path(), None), None);
}

#[test]
fn this_machine_is_read() {
    let bounds = memory_bounds(Path::new(SYSTEM_ROOT), None);
    assert!(
        bounds.iter().any(|bound| bound.what.contains("this machine")),
        "{bounds:?}"
    );
    assert!(
        bounds.iter().all(|bound| bound.available <= bound.limit),
        "{bounds:?}"
    );
}

#[test]
fn a_node_that_the_pool_is_bound_to_is_one_bound_more() {
    let root = FakeRoot::new(&[
        (
            "proc/meminfo",
            "MemTotal: 8192 kB\nMemAvailable: 6144 kB\nSwapTotal: 0 kB\n",
        ),
        (
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal:        4096 kB\nNode 1 MemFree:         1024 kB\nNode 1 Active(file):     256 kB\n\
             Node 1 Inactive(file):   512 kB\n",
        ),
    ]);
    assert_eq!(available_memory(root.0.path(), None), Some(6 * MIB));
    assert_eq!(available_memory(root.0.path(), Some(1)), Some(1792 << 10));
    let of_node = memory_bounds(root.0.path(), Some(1)).pop().unwrap();
    assert_eq!((of_node.limit, of_node.hard), (4 * MIB, true));
    assert!(of_node.what.contains("NUMA node 1"), "{}", of_node.what);
    assert_eq!(memory_bounds(root.0.path(), Some(2)).len(), 1, "no such node");
}
