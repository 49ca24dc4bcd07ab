//! NUMA nodes: which there are, where pages are to come from, and where they lie.
//!
//! Unsafe is opened here for calls that have no safe wrapper. The invariant: each is given integers, an array that lives across the
//! call, or an address inside of a live mapping, and changes nothing of what the mapping holds.

#![allow(unsafe_code)]

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::{Mapping, ReadWrite, ShmError};

/// Nodes that a kernel can have, and so the bits of a set of them.
const MAX_NODES: u32 = 1024;

/// Where the pool's pages are to come from, as somebody asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// From the nodes of the processors that this process may run on.
    #[default]
    Auto,
    /// From wherever the kernel takes them.
    Off,
    /// From these.
    Nodes(Vec<u32>),
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            list => parse_list(list).map(Self::Nodes).ok_or_else(|| {
                format!("{list:?} is neither \"auto\", \"off\" nor a list of nodes such as 0 or 0,1")
            }),
        }
    }
}

impl fmt::Display for Numa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Nodes(nodes) => f.write_str(&list(nodes)),
        }
    }
}

/// Nodes as they are written: `0,1`.
pub fn list(nodes: &[u32]) -> String {
    let texts: Vec<String> = nodes.iter().map(u32::to_string).collect();
    texts.join(",")
}

/// Where pages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The kernel decides, by which processor touches a page first.
    Kernel(Why),
    /// From this node while it has any, then from the others.
    Prefer(u32),
    /// From this node only.
    Bind(u32),
    /// From each of these in turn.
    Interleave(Vec<u32>),
}

/// Why nothing is asked of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The setting says so.
    Off,
    /// There is one node, so all memory is equally near.
    OneNode(u32),
    /// The kernel shows no nodes.
    Unknown,
}

impl Placement {
    /// The only node that pages are taken from first.
    pub fn node(&self) -> Option<u32> {
        match self {
            Self::Prefer(node) | Self::Bind(node) => Some(*node),
            Self::Kernel(Why::OneNode(node)) => Some(*node),
            Self::Kernel(_) | Self::Interleave(_) => None,
        }
    }

    /// One word for status.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kernel(_) => "none",
            Self::Prefer(_) => "prefer",
            Self::Bind(_) => "bind",
            Self::Interleave(_) => "interleave",
        }
    }

    /// The nodes that are asked for.
    pub fn nodes(&self) -> &[u32] {
        match self {
            Self::Kernel(_) => &[],
            Self::Prefer(node) | Self::Bind(node) => std::slice::from_ref(node),
            Self::Interleave(nodes) => nodes,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(Why::Off) => f.write_str("left to the kernel"),
            Self::Kernel(Why::OneNode(node)) => {
                write!(
                    f,
                    "this machine has one node ({node}), so there is nothing to place"
                )
            }
            Self::Kernel(Why::Unknown) => {
                f.write_str("the kernel shows no nodes, so there is nothing to place")
            }
            Self::Prefer(node) => write!(f, "node {node} first, then the others"),
            Self::Bind(node) => write!(f, "node {node} only"),
            Self::Interleave(nodes) => write!(f, "nodes {} in turn", list(nodes)),
        }
    }
}

/// Nodes that are not there.
#[derive(Debug, thiserror::Error)]
#[error(
    "--numa is {asked}, but this machine's nodes with memory are {}; name some of these, or leave it to \"auto\"",
    if .there.is_empty() { "not shown by its kernel".to_owned() } else { list(.there) }
)]
pub struct NoSuchNode {
    /// What was asked for.
    pub asked: Numa,
    /// The nodes that there are.
    pub there: Vec<u32>,
}

/// What a setting means on this machine, whose files are under `root`.
///
/// # Errors
/// [`NoSuchNode`].
pub fn choose(setting: &Numa, root: &Path) -> Result<Placement, NoSuchNode> {
    let there = nodes(root);
    let chosen = match setting {
        Numa::Off => return Ok(Placement::Kernel(Why::Off)),
        Numa::Auto => own_nodes(root, &there),
        Numa::Nodes(asked) => {
            if asked.iter().any(|node| !there.contains(node)) {
                let asked = setting.clone();
                return Err(NoSuchNode { asked, there });
            }
            asked.clone()
        }
    };
    Ok(match (&there[..], &chosen[..]) {
        ([], _) => Placement::Kernel(Why::Unknown),
        ([only], _) => Placement::Kernel(Why::OneNode(*only)),
        (_, []) => Placement::Kernel(Why::Unknown),
        // Who names a node wants that node. Who leaves it open wants the pool to be made, too.
        (_, [node]) if *setting == Numa::Auto => Placement::Prefer(*node),
        (_, [node]) => Placement::Bind(*node),
        (_, several) => Placement::Interleave(several.to_vec()),
    })
}

/// The nodes that have memory.
pub fn nodes(root: &Path) -> Vec<u32> {
    let of = |name: &str| {
        let text = fs::read_to_string(root.join("sys/devices/system/node").join(name)).ok()?;
        parse_list(text.trim())
    };
    of("has_memory").or_else(|| of("online")).unwrap_or_default()
}

/// Of these nodes, those with a processor that this process may run on.
fn own_nodes(root: &Path, there: &[u32]) -> Vec<u32> {
    let Ok(own) = sched_getaffinity(Pid::from_raw(0)) else {
        return Vec::new();
    };
    let runs = |node: &u32| {
        let cpus = cpus(root, *node);
        cpus.iter().any(|cpu| own.is_set(*cpu).unwrap_or(false))
    };
    there.iter().copied().filter(runs).collect()
}

/// The processors of a node.
pub fn cpus(root: &Path, node: u32) -> Vec<usize> {
    let path = format!("sys/devices/system/node/node{node}/cpulist");
    let text = fs::read_to_string(root.join(path)).unwrap_or_default();
    let numbers = parse_list(text.trim()).unwrap_or_default();
    numbers.into_iter().map(|cpu| cpu as usize).collect()
}

/// Has the calling thread run on a node's processors from here on, as far as it may run on any of them. Whether it does.
/// A hint for threads that copy to or from memory of that node.
pub fn run_on(root: &Path, node: u32) -> bool {
    let this = Pid::from_raw(0);
    let Ok(own) = sched_getaffinity(this) else {
        return false;
    };
    let mut set = CpuSet::new();
    let wanted = cpus(root, node);
    let allowed = wanted.iter().filter(|cpu| own.is_set(**cpu).unwrap_or(false));
    let some = allowed.filter(|cpu| set.set(**cpu).is_ok()).count() > 0;
    some && sched_setaffinity(this, &set).is_ok()
}

/// `0-1,3` as numbers; nothing for what is no such list, or an empty one.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let parse = |digits: &str| -> Option<u32> {
            let number = digits.trim().parse().ok()?;
            (number < MAX_NODES).then_some(number)
        };
        let (first, last) = (parse(first)?, parse(last)?);
        if first > last {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

/// Bits of a set of nodes, as the kernel takes them.
fn bits(nodes: &[u32]) -> [libc::c_ulong; MAX_NODES.div_ceil(libc::c_ulong::BITS) as usize] {
    let mut words = [0; MAX_NODES.div_ceil(libc::c_ulong::BITS) as usize];
    for node in nodes {
        if let Some(word) = words.get_mut((node / libc::c_ulong::BITS) as usize) {
            *word |= 1 << (node % libc::c_ulong::BITS);
        }
    }
    words
}

impl Mapping<ReadWrite> {
    /// Says where pages of the file come from that are made from here on, whoever touches them first.
    ///
    /// # Errors
    /// [`ShmError::Os`] when the kernel refuses.
    pub fn place(&self, placement: &Placement) -> Result<(), ShmError> {
        let policy = match placement {
            Placement::Kernel(_) => return Ok(()),
            Placement::Prefer(_) => libc::MPOL_PREFERRED,
            Placement::Bind(_) => libc::MPOL_BIND,
            Placement::Interleave(_) => libc::MPOL_INTERLEAVE,
        };
        let set = bits(placement.nodes());
        // SAFETY: the range is this mapping's, and the array of `MAX_NODES` bits lives across the call, which only reads it. (The
        // kernel takes one bit less than it is told.)
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base(),
                self.len(),
                policy,
                set.as_ptr(),
                u64::from(MAX_NODES) + 1,
                0,
            )
        };
        if rc == 0 {
            return Ok(());
        }
        let what = format!("{} bytes for {placement}", self.len());
        Err(ShmError::os("mbind", what, io::Error::last_os_error()))
    }

    /// The node on which a page lies that is present. (One that is not is made.) `None`: the kernel does not say.
    pub fn node_at(&self, offset: usize) -> Option<u32> {
        let address = self.ptr_at(offset, 1).ok()?;
        let mut node: libc::c_int = -1;
        /// `MPOL_F_NODE` and `MPOL_F_ADDR`: the node of the page at an address.
        const OF_ADDRESS: libc::c_ulong = 1 | 2;
        // SAFETY: the kernel writes one integer, which lives across the call, and looks at an address inside of this mapping.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut node,
                std::ptr::null_mut::<libc::c_ulong>(),
                0,
                address,
                OF_ADDRESS,
            )
        };
        (rc == 0).then(|| u32::try_from(node).ok()).flatten()
    }
}

#[cfg(test)]
#[path = "tests/numa.rs"]
mod tests;
