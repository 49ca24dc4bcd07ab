//! How much memory this process can have: of the machine and of every control group that it is in.
//!
//! All of it is read from files, under a root that tests replace. What cannot be read bounds nothing.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel shows its files.
pub(crate) const SYSTEM_ROOT: &str = "/";

/// A limit that is as good as none: version 1 of control groups writes the largest number of pages.
const NO_LIMIT: u64 = 1 << 60;

/// One thing that bounds memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBound {
    /// Its name, for people: `the memory limit of control group /a/b (memory.max)`.
    pub what: String,
    /// Bytes that there can be at most.
    pub limit: u64,
    /// Bytes of these that can be had now: what nobody uses, and what the kernel can take back at once.
    pub available: u64,
    /// Whether a process that needs more is killed. (It is slowed down otherwise.)
    pub hard: bool,
}

/// Everything that bounds this process, as it is now; also a NUMA node's memory for what comes from there alone.
pub(crate) fn memory_bounds(root: &Path, node: Option<u32>) -> Vec<MemoryBound> {
    let mut bounds: Vec<MemoryBound> = machine(root).into_iter().collect();
    bounds.extend(node.and_then(|node| node_bound(root, node)));
    for group in control_groups(root) {
        bounds.extend(group.bounds());
    }
    bounds
}

/// The least of what can be had now. `None`: nothing is known.
pub(crate) fn available_memory(root: &Path, node: Option<u32>) -> Option<u64> {
    memory_bounds(root, node)
        .iter()
        .map(|bound| bound.available)
        .min()
}

fn machine(root: &Path) -> Option<MemoryBound> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = |name: &str| -> Option<u64> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let mut bound = MemoryBound {
        what: "the memory of this machine (MemTotal and SwapTotal; MemAvailable)".into(),
        limit: (kib("MemTotal")? + kib("SwapTotal").unwrap_or(0)) << 10,
        available: kib("MemAvailable")? << 10,
        hard: true,
    };
    // A machine that promises no more than it has refuses the page that would be one too many.
    let strict = fs::read_to_string(root.join("proc/sys/vm/overcommit_memory"));
    if strict.is_ok_and(|mode| mode.trim() == "2")
        && let (Some(limit), Some(promised)) = (kib("CommitLimit"), kib("Committed_AS"))
    {
        bound.available = bound.available.min(limit.saturating_sub(promised) << 10);
    }
    Some(bound)
}

/// What a node has, and what of it is free or the kernel's copy of files.
fn node_bound(root: &Path, node: u32) -> Option<MemoryBound> {
    let path = format!("sys/devices/system/node/node{node}/meminfo");
    let text = fs::read_to_string(root.join(path)).ok()?;
    // "Node 0 MemTotal:  1024 kB"
    let kib = |name: &str| -> Option<u64> {
        let find = |line: &str| Some(line.split_once(name)?.1.strip_prefix(':')?.trim().to_owned());
        text.lines()
            .find_map(find)?
            .strip_suffix("kB")?
            .trim()
            .parse()
            .ok()
    };
    let files = kib("Active(file)").unwrap_or(0) + kib("Inactive(file)").unwrap_or(0);
    Some(MemoryBound {
        what: format!("the memory of NUMA node {node} (MemTotal; MemFree and files)"),
        limit: kib("MemTotal")? << 10,
        available: (kib("MemFree")? + files) << 10,
        hard: true,
    })
}

/// A control group that this process is in, or one above it.
struct ControlGroup {
    directory: PathBuf,
    /// Its path for people.
    name: String,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl ControlGroup {
    fn bounds(&self) -> Vec<MemoryBound> {
        let (limits, usage): (&[(&str, bool)], _) = match self.version {
            Version::V1 => (&[("memory.limit_in_bytes", true)], "memory.usage_in_bytes"),
            Version::V2 => (&[("memory.max", true), ("memory.high", false)], "memory.current"),
        };
        let Some(used) = self.number(usage) else {
            return Vec::new();
        };
        let used = used.saturating_sub(self.reclaimable());
        limits
            .iter()
            .filter_map(|(file, hard)| {
                let limit = self.number(file).filter(|limit| *limit < NO_LIMIT)?;
                Some(MemoryBound {
                    what: format!("the memory limit of control group {} ({file})", self.name),
                    limit,
                    available: limit.saturating_sub(used),
                    hard: *hard,
                })
            })
            .collect()
    }

    /// Pages of files, which the kernel drops before it kills anybody. Those of shared memory are not among them.
    fn reclaimable(&self) -> u64 {
        let text = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let of = |name: &str| -> Option<u64> {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?
                .parse()
                .ok()
        };
        let both = |prefix: &str| {
            Some(of(&format!("{prefix}active_file"))? + of(&format!("{prefix}inactive_file"))?)
        };
        match self.version {
            Version::V1 => both("total_").or_else(|| both("")).unwrap_or(0),
            Version::V2 => both("").unwrap_or(0),
        }
    }

    /// "max", which is no number, is no limit.
    fn number(&self, file: &str) -> Option<u64> {
        let text = fs::read_to_string(self.directory.join(file)).ok()?;
        text.trim().parse().ok()
    }
}

/// All groups that can be seen, from the process's own up to the top of what is mounted here.
fn control_groups(root: &Path) -> Vec<ControlGroup> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let memberships = read("proc/self/cgroup");
    let mounts = read("proc/self/mountinfo");
    let mut groups = Vec::new();
    for line in memberships.lines() {
        // hierarchy:controllers:path
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let version = if hierarchy == "0" && controllers.is_empty() {
            Version::V2
        } else if controllers.split(',').any(|name| name == "memory") {
            Version::V1
        } else {
            continue;
        };
        for mount in mounts.lines().filter_map(|line| Mount::parse(line, version)) {
            groups.extend(mount.groups(root, path, version));
        }
    }
    groups
}

/// Where a hierarchy is mounted.
struct Mount {
    /// The group that is at the mount point.
    top: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// `36 35 98:0 /top /point options... - type source superblock-options`, if it is one of this version.
    fn parse(line: &str, version: Version) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (top, point) = (unescape(before.next()?), unescape(before.next()?));
        let mut after = after.split(' ');
        let (kind, _, options) = (after.next()?, after.next()?, after.next()?);
        let wanted = match version {
            Version::V1 => kind == "cgroup" && options.split(',').any(|name| name == "memory"),
            Version::V2 => kind == "cgroup2",
        };
        wanted.then_some(Self { top, point })
    }

    fn groups(&self, root: &Path, path: &str, version: Version) -> Vec<ControlGroup> {
        // In a container the mount shows only the container's own groups. A path outside of it (of another name space)
        // says nothing about them but that the top one is above this process.
        let inside = match Path::new(path).strip_prefix(&self.top) {
            Ok(inside) if !path.contains("/..") => inside,
            _ => Path::new(""),
        };
        let below_root = self.point.strip_prefix("/").unwrap_or(&self.point);
        inside
            .ancestors()
            .map(|inside| ControlGroup {
                directory: root.join(below_root).join(inside),
                // Joined by their parts: an empty path would leave a slash at the end.
                name: self
                    .top
                    .iter()
                    .chain(inside)
                    .collect::<PathBuf>()
                    .display()
                    .to_string(),
                version,
            })
            .collect()
    }
}

/// Blanks and the like are written as three octal digits there.
fn unescape(field: &str) -> PathBuf {
    let mut text = field.to_owned();
    for (code, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(code, character);
    }
    text.into()
}

#[cfg(test)]
#[path = "tests/memory.rs"]
mod tests;
