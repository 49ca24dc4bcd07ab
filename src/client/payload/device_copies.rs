//! One plan between pages and the pool, as copies of the device and of the host.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::ClientError;
use crate::client::device::pages::DevicePages;
use crate::client::device::pinning::PoolPinning;
use crate::client::device::report::{ChecksumsAt, DeviceStats};
use crate::client::device::stage::{STAGE_BYTES, Stage, Way, windows};
use crate::client::link::core::Core;
use crate::client::link::held::{Claim, Mark};
use crate::client::link::session::Session;
use crate::client::link::stats::Stat;
use crate::copy::CopyPlan;
use crate::device::{DeviceError, Event, PlanMemory, SourceOrder};

/// How often a wait looks.
const POLL: Duration = Duration::from_micros(50);

/// Why a plan was not copied.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// Nothing of it runs any more, or nothing was begun.
    Ended,
    /// Some of it may still run until the mark is passed.
    Running(Mark),
    /// A plan that was refused before anything moved.
    Refused(ClientError),
}

impl From<ClientError> for Stopped {
    fn from(error: ClientError) -> Self {
        Self::Refused(error)
    }
}

/// One plan.
struct Run<'a> {
    core: &'a Arc<Core>,
    session: &'a Arc<Session>,
    pages: &'a DevicePages,
    way: Way,
    deadline: Instant,
}

impl Core {
    /// Copies all pieces of a plan between pages and the pool, and waits until that is done.
    pub(crate) fn copy_pages(
        self: &Arc<Self>,
        session: &Arc<Session>,
        pages: &Arc<DevicePages>,
        way: Way,
        plan: &CopyPlan,
    ) -> Result<(), Stopped> {
        self.sweep_copies();
        self.pin_pool(session, pages);
        if self.held.blocks(pages, way) {
            // It would wait behind one that is late, and hold as much again.
            self.count_at(Some(session), Stat::FailedCopies, 1);
            return Err(Stopped::Ended);
        }
        let run = Run {
            core: self,
            session,
            pages,
            way,
            deadline: self.deadline(),
        };
        let copied = run.all(plan);
        match &copied {
            Ok(()) | Err(Stopped::Refused(_)) => {}
            Err(Stopped::Running(Mark::Copy(_))) => self.count_at(Some(session), Stat::LateCopies, 1),
            Err(_) => self.count_at(Some(session), Stat::FailedCopies, 1),
        }
        copied
    }

    /// Keeps what a copy that may still run must not lose.
    pub(crate) fn hold(
        &self,
        mark: Mark,
        way: Way,
        pages: &Arc<DevicePages>,
        session: &Arc<Session>,
        claim: Claim,
    ) {
        self.held.add(mark, way, pages, session, claim);
    }

    /// Gives back what late copies kept that have ended by now.
    pub(crate) fn sweep_copies(self: &Arc<Self>) {
        for (session, claim) in self.held.take_ended() {
            match claim {
                Claim::Extents(extents) => {
                    if let Ok(pool) = session.pool() {
                        pool.granted().add(extents);
                    }
                }
                Claim::Pin(pin) => self.let_go(&session, pin, None),
            }
        }
    }

    /// Begins to register the pool of a session, where that has not begun.
    pub(crate) fn pin_pool(self: &Arc<Self>, session: &Arc<Session>, pages: &DevicePages) {
        let Ok(pool) = session.pool() else { return };
        let Some(memory) = pool.lasting_memory() else {
            return;
        };
        let (of_ready, of_end) = (Arc::downgrade(session), Arc::downgrade(session));
        let core = Arc::downgrade(self);
        // A session that has ended has nothing to wait for: its registration is being given up.
        let ready = move || of_ready.upgrade().is_none_or(|session| session.is_all_present());
        let ended = move |result: Result<(), &DeviceError>| {
            let stat = match result {
                Ok(()) => Stat::PoolPins,
                // Of a session that has ended.
                Err(DeviceError::GivenUp { .. }) => return,
                Err(_) => Stat::PoolPinFailures,
            };
            if let (Some(core), Some(session)) = (core.upgrade(), of_end.upgrade()) {
                core.count_at(Some(&session), stat, 1);
            }
        };
        let piece_bytes = self.config.pin_piece_bytes;
        pool.pinning()
            .begin(pages.context(), memory, piece_bytes, ready, ended);
    }

    /// Begins that for the present session, where the memory is on a device.
    pub(crate) fn use_device(self: &Arc<Self>) {
        if let (Ok(memory), Some(session)) = (self.memory(), self.session())
            && let Some(pages) = memory.device()
        {
            self.pin_pool(&session, pages);
        }
    }

    /// See [`crate::client::Client::device_stats`].
    pub(crate) fn device_stats(self: &Arc<Self>) -> Option<DeviceStats> {
        self.sweep_copies();
        let memory = self.memory().ok()?;
        let pages = memory.device()?;
        let session = self.session();
        let pool = session.as_ref().and_then(|session| session.pool().ok());
        let copies = pages.counts();
        Some(DeviceStats {
            device: pages.context().device().uuid,
            pool: pool.map_or(PoolPinning::None, |pool| pool.pinning().shown()),
            checksums: match self.config.checksums {
                true => ChecksumsAt::Host,
                false => ChecksumsAt::Off,
            },
            copies,
            direct_bytes: self.counters.total(Stat::DirectBytes),
            staged_bytes: self.counters.total(Stat::StagedBytes),
            pageable_bytes: copies.pageable_bytes,
            late_copies: self.counters.total(Stat::LateCopies),
            failed_copies: self.counters.total(Stat::FailedCopies),
            running: self.held.len(),
            last_error: self.held.last_error(),
        })
    }
}

impl Run<'_> {
    fn all(&self, plan: &CopyPlan) -> Result<(), Stopped> {
        let pool = self.session.pool()?;
        let host = self.core.engine();
        let (device, zeroes) = self.split(plan);
        if !zeroes.is_empty() {
            host.execute(&zeroes, &self.pages.zeroes, pool.memory())
                .map_err(ClientError::from)?;
        }
        if device.is_empty() {
            return Ok(());
        }
        let ready = self
            .pages
            .after_compute(self.way)
            .map_err(|error| self.ended(error))?;
        if let Some(pinned) = pool.pinning().get() {
            self.submit(&device, &pinned)?;
            self.count(Stat::DirectBytes, device.bytes());
            return Ok(());
        }
        let lane = self.pages.lane(self.way);
        let stage = lane.stages.take(self.pages.context());
        // What a copy may still use is not given back: the copy keeps it.
        self.staged(&device, &stage, ready.as_ref())?;
        lane.stages.give_back(stage);
        Ok(())
    }

    /// Splits off what is no copy of the device: null blocks are stored as zeroes.
    fn split(&self, plan: &CopyPlan) -> (CopyPlan, CopyPlan) {
        let (mut device, mut zeroes) = (CopyPlan::new(), CopyPlan::new());
        for piece in plan.pieces() {
            if self.way == Way::Store && piece.src.region == self.pages.zero_region() {
                let from = crate::copy::Span::new(0, piece.src.offset);
                zeroes.push(from, piece.dst, piece.len);
            } else {
                device.push(piece.src, piece.dst, piece.len);
            }
        }
        (device, zeroes)
    }

    /// Copies window by window through a stage.
    fn staged(&self, plan: &CopyPlan, stage: &Stage, ready: Option<&Event>) -> Result<(), Stopped> {
        let pool = self.session.pool()?;
        let host = self.core.engine();
        if !stage.is_pinned() {
            // The call itself will wait for what comes before it in the stream, without an end.
            self.wait_for(ready)?;
        }
        for window in windows(plan.pieces(), self.way, STAGE_BYTES) {
            if self.way == Way::Load {
                host.execute(&window.host, pool.memory(), &stage.host)
                    .map_err(ClientError::from)?;
            }
            self.submit(&window.device, stage.memory())?;
            if self.way == Way::Store {
                host.execute(&window.host, &stage.host, pool.memory())
                    .map_err(ClientError::from)?;
            }
            self.count(Stat::StagedBytes, window.bytes);
        }
        Ok(())
    }

    /// Submits copies between pages and memory of the host, and waits for their end.
    fn submit(&self, plan: &CopyPlan, host: &dyn PlanMemory) -> Result<(), Stopped> {
        let (pages, beside) = (self.pages.regions(), [host]);
        let (src, dst, order): (&[&dyn PlanMemory], &[&dyn PlanMemory], _) = match self.way {
            Way::Store => (&pages, &beside, SourceOrder::Stream),
            // Nobody writes it before the copy has ended: it is pinned, or this call's own.
            Way::Load => (&beside, &pages, SourceOrder::Any),
        };
        let stream = &self.pages.lane(self.way).stream;
        let copying = match self.pages.engine.submit(plan, src, dst, stream, order) {
            Ok(copying) => copying,
            // A mistake in the plan; nothing was submitted.
            Err(DeviceError::Plan(error)) => return Err(Stopped::Refused(error.into())),
            // Some of it may have been: what comes behind it in the stream tells.
            Err(error) => return Err(self.marked(error)),
        };
        if self.way == Way::Load
            && let Err(error) = self.pages.before_compute(&copying)
        {
            return Err(self.marked(error));
        }
        match copying.wait(self.left()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Stopped::Running(Mark::Copy(copying))),
            Err(error) => {
                self.core.held.note(error);
                Err(Stopped::Running(Mark::Never))
            }
        }
    }

    /// Waits for the end of what a call has submitted that failed.
    fn marked(&self, error: DeviceError) -> Stopped {
        self.core.held.note(error);
        let Ok(mark) = self.pages.mark(self.way) else {
            return Stopped::Running(Mark::Never);
        };
        match self.passed(&mark) {
            Ok(true) => Stopped::Ended,
            Ok(false) => Stopped::Running(Mark::Place(mark)),
            Err(_) => Stopped::Running(Mark::Never),
        }
    }

    fn wait_for(&self, ready: Option<&Event>) -> Result<(), Stopped> {
        let Some(ready) = ready else { return Ok(()) };
        match self.passed(ready) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Stopped::Ended),
            Err(error) => Err(self.ended(error)),
        }
    }

    /// Waits for an event, as long as the call may take.
    fn passed(&self, event: &Event) -> Result<bool, DeviceError> {
        loop {
            if event.is_done()? {
                return Ok(true);
            }
            let left = self.left();
            if left.is_zero() {
                return Ok(false);
            }
            thread::sleep(POLL.min(left));
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn ended(&self, error: DeviceError) -> Stopped {
        self.core.held.note(error);
        Stopped::Ended
    }

    fn count(&self, stat: Stat, count: u64) {
        self.core.count_at(Some(self.session), stat, count);
    }
}
