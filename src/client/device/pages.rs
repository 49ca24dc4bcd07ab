//! The engine's pages in device memory, and a stream for each direction.

use super::stage::{Stages, Way};
use crate::copy::HostMemory;
use crate::device::{
    Context, CopyCounts, Copying, DeviceCopyEngine, DeviceError, EngineMemory, Event, PlanMemory, Stream,
};

/// One direction: a stream of its own, so that stores and loads do not wait for each other.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) stream: Stream,
    pub(crate) stages: Stages,
}

impl Lane {
    fn new(context: &Context) -> Result<Self, DeviceError> {
        Ok(Self {
            stream: Stream::new(context)?,
            stages: Stages::default(),
        })
    }
}

/// The segments of an engine, with all that copies of them need.
#[derive(Debug)]
pub(crate) struct DevicePages {
    memory: EngineMemory,
    pub(crate) engine: DeviceCopyEngine,
    store: Lane,
    load: Lane,
    /// What null blocks are stored as.
    pub(crate) zeroes: [HostMemory; 1],
}

impl DevicePages {
    /// `zeroes` has as many as the largest page.
    pub(crate) fn new(memory: EngineMemory, zeroes: HostMemory) -> Result<Self, DeviceError> {
        let context = memory.context();
        Ok(Self {
            engine: DeviceCopyEngine::new(memory.driver(), context),
            store: Lane::new(context)?,
            load: Lane::new(context)?,
            zeroes: [zeroes],
            memory,
        })
    }

    pub(crate) fn context(&self) -> &Context {
        self.memory.context()
    }

    pub(crate) fn lane(&self, way: Way) -> &Lane {
        match way {
            Way::Store => &self.store,
            Way::Load => &self.load,
        }
    }

    /// The region of a plan that stands for null blocks.
    pub(crate) fn zero_region(&self) -> u16 {
        self.memory.segments().len() as u16
    }

    /// The segments, as regions of a plan's side.
    pub(crate) fn regions(&self) -> Vec<&dyn PlanMemory> {
        let segments = self.memory.segments().iter();
        segments.map(|segment| segment as &dyn PlanMemory).collect()
    }

    /// Lets a direction wait for what the engine has submitted by now: what a store reads is there then, and who reads what
    /// a load overwrites has done so. The event says when that is; nothing where no stream was named.
    pub(crate) fn after_compute(&self, way: Way) -> Result<Option<Event>, DeviceError> {
        let Some(compute) = self.memory.stream() else {
            return Ok(None);
        };
        let submitted = Event::new(self.context())?;
        submitted.record(compute)?;
        self.lane(way).stream.wait_for(&submitted)?;
        Ok(Some(submitted))
    }

    /// Lets what the engine submits from now on wait for a load: it reads the loaded bytes, and writes its blocks after it.
    pub(crate) fn before_compute(&self, copying: &Copying) -> Result<(), DeviceError> {
        match self.memory.stream() {
            Some(compute) => copying.before(compute),
            None => Ok(()),
        }
    }

    /// A mark behind all that a direction was given by now, which the engine's later work waits for if it is that of loads.
    pub(crate) fn mark(&self, way: Way) -> Result<Event, DeviceError> {
        let mark = Event::new(self.context())?;
        mark.record(&self.lane(way).stream)?;
        if let (Way::Load, Some(compute)) = (way, self.memory.stream()) {
            compute.wait_for(&mark)?;
        }
        Ok(mark)
    }

    pub(crate) fn counts(&self) -> CopyCounts {
        self.engine.counts()
    }
}
