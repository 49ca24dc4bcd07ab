//! Pages in device memory, as an engine has them: allocations, and one stream for all of its compute. What it writes is
//! only submitted, so that a copy which does not wait for the stream finds other bytes.

use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult, CUstream_flags};
use kvasir::copy::{CopyPlan, HostMemory, Span};
use kvasir::device::*;

/// What all engines of a test's process share.
pub struct Gpu {
    pub driver: &'static Driver,
    pub context: Context,
    pub engine: DeviceCopyEngine,
    /// The stream of compute, as the driver names it.
    pub raw: u64,
    pub compute: Stream,
}

pub fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let driver = Driver::load().unwrap();
        let device = visible(driver).unwrap().remove(0);
        let context = Context::retain(&device).unwrap();
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // The context is made current for the call, as an engine has its own.
        let raw = in_context(&context, || {
            // SAFETY: the pointer is to a live value.
            let made = unsafe { sys::cuStreamCreate(&mut raw, flags) };
            assert_eq!(made, CUresult::CUDA_SUCCESS);
            raw.expose_provenance() as u64
        });
        Gpu {
            driver,
            engine: DeviceCopyEngine::new(driver, &context),
            // SAFETY: the stream was made just now and is never destroyed.
            compute: unsafe { Stream::of_engine(&context, raw) }.unwrap(),
            context,
            raw,
        }
    })
}

/// Calls the driver with a context that is current.
fn in_context<T>(context: &Context, call: impl FnOnce() -> T) -> T {
    let mut current = ptr::null_mut();
    let device = visible(Driver::load().unwrap()).unwrap();
    let ordinal = device
        .iter()
        .position(|device| device.uuid == context.device().uuid)
        .unwrap();
    // SAFETY: the pointers are to live values; the context is given back below.
    unsafe {
        let retained = sys::cuDevicePrimaryCtxRetain(&mut current, ordinal as i32);
        assert_eq!(retained, CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuCtxPushCurrent_v2(current), CUresult::CUDA_SUCCESS);
    }
    let result = call();
    // SAFETY: takes away what was pushed, and gives back what was retained.
    unsafe {
        assert_eq!(sys::cuCtxPopCurrent_v2(&mut current), CUresult::CUDA_SUCCESS);
        let released = sys::cuDevicePrimaryCtxRelease_v2(ordinal as i32);
        assert_eq!(released, CUresult::CUDA_SUCCESS);
    }
    result
}

/// One region.
pub struct Region {
    pub memory: DeviceMemory,
}

pub fn regions(bytes: &[u64]) -> Vec<Region> {
    let allocate = |&bytes: &u64| Region {
        memory: DeviceMemory::allocate(&gpu().context, bytes.max(1)).unwrap(),
    };
    bytes.iter().map(allocate).collect()
}

/// What the client is told.
pub fn engine_memory<'a>(regions: impl Iterator<Item = &'a Region>) -> Result<EngineMemory, DeviceError> {
    let segments: Vec<EngineSegment> = regions
        .enumerate()
        .map(|(index, region)| EngineSegment {
            name: format!("kv.{index}"),
            device: gpu().context.device().uuid,
            address: region.memory.address(),
            bytes: region.memory.bytes(),
        })
        .collect();
    // SAFETY: tests end their client, or have it release the memory, before they free it; no copy runs then.
    unsafe { EngineMemory::open(&segments, Some(gpu().raw)) }
}

fn plan(src: u64, dst: u64, bytes: usize) -> CopyPlan {
    let mut plan = CopyPlan::new();
    plan.push(Span::new(0, src), Span::new(0, dst), bytes as u64);
    plan
}

impl Region {
    pub fn len(&self) -> usize {
        self.memory.bytes() as usize
    }

    /// Submits a write to the stream of compute, and does not wait for it.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let host = HostMemory::zeroed(bytes.len().next_multiple_of(4096));
        host.write(0, bytes).unwrap();
        let host = PinnedMemory::register(&gpu().context, host, PINNED_PIECE_BYTES).unwrap();
        let plan = plan(0, at as u64, bytes.len());
        let submitted = gpu().engine.submit(
            &plan,
            &[&host],
            &[&self.memory],
            &gpu().compute,
            SourceOrder::Stream,
        );
        drop(submitted.unwrap());
    }

    /// Reads on the stream of compute, after all that was submitted to it.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        let host = HostMemory::zeroed(into.len());
        let plan = plan(at as u64, 0, into.len());
        let gpu = gpu();
        let copying = gpu
            .engine
            .submit(
                &plan,
                &[&self.memory],
                &[&host],
                &gpu.compute,
                SourceOrder::Stream,
            )
            .unwrap();
        assert!(copying.wait(super::WATCHDOG).unwrap());
        host.read(0, into).unwrap();
    }
}
