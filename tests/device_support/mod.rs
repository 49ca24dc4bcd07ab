//! Tests of `kvasir::device` on the software driver, a stand-in for `libcuda.so.1` (`native/softcuda`).
//!
//! Each case is a process of its own that finds the stand-in by the loader's path, as a program finds a real driver. A
//! test runs its own program again for that, and a case of two processes once more.

#![allow(dead_code, unreachable_pub, unsafe_code)]

pub mod messages;

use std::env;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUresult,
};
use kvasir::copy::{CopyPlan, HostMemory, Span};
use kvasir::device::*;

const CASE: &str = "KVASIR_DEVICE_CASE";
const PEER: &str = "KVASIR_DEVICE_PEER";

/// What the stand-in rounds to.
pub const GRANULE: u64 = 2 << 20;

/// Long enough for every copy of a test, also on a busy machine: nothing is measured by it.
pub const LONG: Duration = Duration::from_secs(60);

/// The folder with the stand-in, named as a driver is.
fn stand_in() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let program = env::current_exe().unwrap();
            let profile = program.parent().and_then(|deps| deps.parent()).unwrap();
            let target = profile.parent().unwrap();
            let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            build.current_dir(env!("CARGO_MANIFEST_DIR"));
            build
                .args([
                    "build",
                    "--package",
                    "kvasir-softcuda",
                    "--locked",
                    "--quiet",
                    "--target-dir",
                ])
                .arg(target);
            if profile.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success(), "the stand-in does not build");
            let folder = target.join("softcuda");
            fs::create_dir_all(&folder).unwrap();
            let (name, new) = (
                folder.join("libcuda.so.1"),
                folder.join(format!("new-{}", std::process::id())),
            );
            symlink(profile.join("libsoftcuda.so"), &new).unwrap();
            fs::rename(&new, name).unwrap();
            folder
        })
        .clone()
}

/// This program again, for one test in one role.
fn again(test: &str, role: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
        .env(role, "1")
        .env_remove("SOFTCUDA_FAULTS")
        .envs(environment.iter().copied());
    command
}

fn text(output: &Output) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{}\n{}\n{}",
        output.status,
        part(&output.stdout),
        part(&output.stderr)
    )
}

/// The case passes on the stand-in, in a process of its own.
pub fn passes(test: &str, environment: &[(&str, &str)], case: impl FnOnce()) {
    if env::var_os(CASE).is_some() {
        return case();
    }
    let output = again(test, CASE, environment)
        .env("LD_LIBRARY_PATH", stand_in())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    // A program that runs no test of this name succeeds too.
    assert!(text(&output).contains("1 passed"), "{}", text(&output));
}

/// The case passes where the loader finds no driver: files that are no library stand in the way of any that is there.
pub fn passes_without(test: &str, case: impl FnOnce()) {
    if env::var_os(CASE).is_some() {
        return case();
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let path = env::join_paths([folder.path(), &stand_in()]).unwrap();
    let output = again(test, CASE, &[])
        .env("LD_LIBRARY_PATH", path)
        .output()
        .unwrap();
    assert!(
        output.status.success() && text(&output).contains("1 passed"),
        "{}",
        text(&output)
    );
}

/// In the second process of a test: the socket to the first one.
pub fn peer() -> Option<UnixStream> {
    env::var_os(PEER)?;
    let socket = nix::unistd::dup(std::io::stdin()).unwrap();
    Some(UnixStream::from(socket))
}

/// A second process of the same test, on the same stand-in, and the socket to it.
pub fn with_peer(test: &str, environment: &[(&str, &str)]) -> (Child, UnixStream) {
    let (own, other) = UnixStream::pair().unwrap();
    let mut command = again(test, PEER, environment);
    // Threads of a test's program do not matter here: the process is a fresh one.
    let child = command
        .env_remove(CASE)
        .stdin(Stdio::from(OwnedFd::from(other)))
        .spawn()
        .unwrap();
    (child, own)
}

/// Ends well, and says so.
pub fn ends_well(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

/// A stream as an engine makes it, of the context on a device of the stand-in. It is never destroyed.
pub fn raw_stream(context: &Context) -> u64 {
    let devices = visible(Driver::load().unwrap()).unwrap();
    let uuid = context.device().uuid;
    let ordinal = devices.iter().position(|device| device.uuid == uuid).unwrap() as i32;
    let (mut current, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: pointers are to live values; what is retained and pushed is taken back.
    unsafe {
        good(sys::cuDevicePrimaryCtxRetain(&mut current, ordinal));
        good(sys::cuCtxPushCurrent_v2(current));
        good(sys::cuStreamCreate(
            &mut stream,
            sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32,
        ));
        good(sys::cuCtxPopCurrent_v2(&mut current));
        good(sys::cuDevicePrimaryCtxRelease_v2(ordinal));
    }
    stream.expose_provenance() as u64
}

/// What the stand-in counts; the numbers are those of `softcuda_count`.
pub fn count(what: u32) -> u64 {
    // SAFETY: the stand-in exports a function of this type under this name.
    unsafe {
        sys::culib()
            .get::<unsafe extern "C" fn(u32) -> u64>(b"softcuda_count")
            .unwrap()(what)
    }
}

/// Contexts that live, ranges of device memory, handles, registered ranges, reservations, streams, events.
pub fn live() -> [u64; 7] {
    [3, 4, 5, 6, 7, 8, 9].map(count)
}

/// Replaces the faults of the stand-in.
pub fn faults(list: &str) {
    // SAFETY: the stand-in exports a function of this type under this name; the text lives across the call.
    unsafe {
        let set = sys::culib()
            .get::<unsafe extern "C" fn(*const u8, usize)>(b"softcuda_faults")
            .unwrap();
        set(list.as_ptr(), list.len());
    }
}

/// The driver and a context on the device of this index.
pub fn context_on(index: usize) -> (&'static Driver, Context) {
    let driver = Driver::load().unwrap();
    let device = visible(driver).unwrap().remove(index);
    (driver, Context::retain(&device).unwrap())
}

/// The driver and a context on the first device.
pub fn context() -> (&'static Driver, Context) {
    context_on(0)
}

/// Bytes that follow from `seed` and their place.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut word = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB)
    };
    let mut found: Vec<u8> = (0..bytes.div_ceil(8))
        .flat_map(|_| word().to_le_bytes())
        .collect();
    found.truncate(bytes);
    found
}

/// Registered host memory in one piece.
pub fn pinned(context: &Context, bytes: usize) -> PinnedMemory {
    PinnedMemory::register(context, HostMemory::zeroed(bytes), PINNED_PIECE_BYTES).unwrap()
}

/// What streams wait at until the test goes on: no test takes a time for long enough.
pub struct Gate(PinnedMemory);

impl Gate {
    pub fn new(context: &Context) -> Self {
        Self(pinned(context, 4096))
    }

    /// Holds what is submitted to `stream` from now on.
    pub fn hold(&self, stream: &Stream) {
        // SAFETY: tests drop the gate after it was opened and the stream has gone on, or end with it.
        unsafe { stream.wait_for_flag(&self.0, 0, 1) }.unwrap();
    }

    pub fn open(&self) {
        self.0.host().write(0, &1u32.to_le_bytes()).unwrap();
    }
}

/// A plan of one piece.
pub fn whole(src: u64, dst: u64, bytes: u64) -> CopyPlan {
    let mut plan = CopyPlan::new();
    plan.push(Span::new(0, src), Span::new(0, dst), bytes);
    plan
}

/// Writes `bytes` to the start of `memory`, and waits.
pub fn write(engine: &DeviceCopyEngine, memory: &dyn PlanMemory, at: u64, bytes: &[u8]) {
    let host = HostMemory::zeroed(bytes.len());
    host.write(0, bytes).unwrap();
    moved(engine, &whole(0, at, bytes.len() as u64), &host, memory);
}

/// Reads bytes of `memory`, and waits.
pub fn read(engine: &DeviceCopyEngine, memory: &dyn PlanMemory, at: u64, bytes: usize) -> Vec<u8> {
    let host = HostMemory::zeroed(bytes);
    moved(engine, &whole(at, 0, bytes as u64), memory, &host);
    contents(&host)
}

/// The bytes of host memory.
pub fn contents(host: &HostMemory) -> Vec<u8> {
    let mut found = vec![0; host.len()];
    host.read(0, &mut found).unwrap();
    found
}

/// Submits a plan to a stream of its own, and waits.
pub fn moved(engine: &DeviceCopyEngine, plan: &CopyPlan, src: &dyn PlanMemory, dst: &dyn PlanMemory) {
    let context = [src, dst].into_iter().find_map(PlanMemory::context).cloned();
    let context = context.unwrap_or_else(|| context_on(0).1);
    let stream = Stream::new(&context).unwrap();
    let copying = engine
        .submit(plan, &[src], &[dst], &stream, SourceOrder::Stream)
        .unwrap();
    assert!(copying.wait(LONG).unwrap());
}

/// What an engine's allocator does with `cuMemCreate`: allocations that follow each other in one range of addresses.
pub struct Virtual {
    pub address: u64,
    chunks: Vec<u64>,
}

impl Virtual {
    /// The calls name their device, so no context has to be current. They fit a test's process on the stand-in.
    pub fn new(chunks: &[u64], exportable: bool) -> Self {
        let location = CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: 0,
        };
        let total: u64 = chunks.iter().sum();
        let (mut address, mut at) = (0, 0);
        // SAFETY: pointers are to live values of the calls' types; all zeroes is valid for the properties.
        unsafe {
            let mut prop: CUmemAllocationProp = std::mem::zeroed();
            prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
            prop.location = location;
            if exportable {
                prop.requestedHandleTypes =
                    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            }
            good(sys::cuMemAddressReserve(&mut address, total as usize, 0, 0, 0));
            for &bytes in chunks {
                let mut handle = 0;
                good(sys::cuMemCreate(&mut handle, bytes as usize, &prop, 0));
                good(sys::cuMemMap(address + at, bytes as usize, 0, handle, 0));
                good(sys::cuMemRelease(handle));
                at += bytes;
            }
            let desc = CUmemAccessDesc {
                location,
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            good(sys::cuMemSetAccess(address, total as usize, &desc, 1));
        }
        Self {
            address,
            chunks: chunks.to_vec(),
        }
    }

    /// A part of it, as an engine's tensor.
    pub fn memory(&self, context: &Context, offset: u64, bytes: u64) -> DeviceMemory {
        // SAFETY: the tests drop the memory before this.
        unsafe { DeviceMemory::of_engine(context, self.address + offset, bytes) }.unwrap()
    }
}

impl Drop for Virtual {
    fn drop(&mut self) {
        let total: u64 = self.chunks.iter().sum();
        // SAFETY: exactly what `new` has mapped and reserved.
        unsafe {
            good(sys::cuMemUnmap(self.address, total as usize));
            good(sys::cuMemAddressFree(self.address, total as usize));
        }
    }
}

/// A call of the driver that has to succeed.
pub fn good(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}
