//! What the environment says about the machine that the stand-in plays, and which faults it has.

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unit of virtual memory management, as on the cards.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// The machine.
#[derive(Debug)]
pub(crate) struct Config {
    /// One for each device.
    pub(crate) uuids: Vec<[u8; 16]>,
    /// Bytes of each device.
    pub(crate) memory: u64,
    /// What `cuDriverGetVersion` says.
    pub(crate) version: i32,
    /// Most bytes of host memory that may be registered at a time.
    pub(crate) register_limit: u64,
}

impl Config {
    /// Reads `SOFTCUDA_DEVICES`, `SOFTCUDA_SAME_UUID`, `SOFTCUDA_MEMORY`, `SOFTCUDA_VERSION` and
    /// `SOFTCUDA_REGISTER_LIMIT`.
    pub(crate) fn from_environment() -> Self {
        let devices = number("SOFTCUDA_DEVICES", 1).min(64) as u8;
        let same = number("SOFTCUDA_SAME_UUID", 0) != 0;
        Self {
            uuids: (0..devices)
                .map(|index| uuid(if same { 0 } else { index }))
                .collect(),
            memory: number("SOFTCUDA_MEMORY", 1 << 30),
            version: number("SOFTCUDA_VERSION", 12_080) as i32,
            register_limit: number("SOFTCUDA_REGISTER_LIMIT", u64::MAX),
        }
    }
}

/// The UUID of the device with this ordinal: the same in each process, and no zero in it.
fn uuid(index: u8) -> [u8; 16] {
    let mut uuid = *b"softcuda-device!";
    uuid[15] = 0x40 + index;
    uuid
}

fn number(name: &str, default: u64) -> u64 {
    match env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| fatal!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// A fault that happens at some step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Memory and events of other processes cannot be opened.
    ImportRefused,
    /// No way of export is offered.
    ExportNotOffered,
    /// A copy fails when it runs, and its context with it.
    CopyError,
    /// A copy is refused when it is submitted.
    SubmitError,
    /// A copy never ends, nor anything behind it in its stream.
    Never,
    /// There is no device memory left.
    OutOfMemory,
    /// Host memory cannot be registered.
    RegisterFails,
    /// Allocations say that they lie at a node of host memory, with the number of their device.
    HostPlace,
    /// The device is gone: every call fails.
    Lost,
}

const NAMES: [(&str, Fault); 9] = [
    ("import-refused", Fault::ImportRefused),
    ("export-not-offered", Fault::ExportNotOffered),
    ("copy-error", Fault::CopyError),
    ("submit-error", Fault::SubmitError),
    ("never", Fault::Never),
    ("out-of-memory", Fault::OutOfMemory),
    ("register-fails", Fault::RegisterFails),
    ("host-place", Fault::HostPlace),
    ("lost", Fault::Lost),
];

#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// Steps that still pass before it happens; `None` is every one.
    countdown: Option<u64>,
}

/// The faults that are armed.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Mutex<Vec<Armed>>,
    late_ms: AtomicU64,
}

impl Faults {
    /// Reads `SOFTCUDA_FAULTS`.
    pub(crate) fn from_environment() -> Self {
        let faults = Self::default();
        faults.arm(&env::var("SOFTCUDA_FAULTS").unwrap_or_default());
        faults
    }

    /// Replaces what is armed by a list like `late=20,copy-error@3`: without a number a fault happens at every step,
    /// with `@n` at the n-th from now, counted from 1, and only then.
    pub(crate) fn arm(&self, list: &str) {
        let mut armed = crate::lock(&self.armed);
        armed.clear();
        self.late_ms.store(0, Ordering::Relaxed);
        for item in list.split(',').filter(|item| !item.is_empty()) {
            if let Some(late) = item.strip_prefix("late=").and_then(|ms| ms.parse().ok()) {
                self.late_ms.store(late, Ordering::Relaxed);
                continue;
            }
            let (name, at) = match item.split_once('@') {
                Some((name, at)) => (name, at.parse().ok()),
                None => (item, None),
            };
            match NAMES.iter().find(|(known, _)| *known == name) {
                Some(&(_, fault)) if at.is_some() == item.contains('@') && at != Some(0) => {
                    armed.push(Armed { fault, countdown: at })
                }
                _ => fatal!("`{item}` in the list of faults is none"),
            }
        }
    }

    /// Whether `fault` happens at this step.
    pub(crate) fn strikes(&self, fault: Fault) -> bool {
        let mut strikes = false;
        for armed in crate::lock(&self.armed)
            .iter_mut()
            .filter(|armed| armed.fault == fault)
        {
            match &mut armed.countdown {
                None => strikes = true,
                Some(0) => {}
                Some(left) => {
                    *left -= 1;
                    strikes |= *left == 0;
                }
            }
        }
        strikes
    }

    /// How long each copy waits before it begins.
    pub(crate) fn late_ms(&self) -> u64 {
        self.late_ms.load(Ordering::Relaxed)
    }
}
