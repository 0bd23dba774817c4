//! What a program does on the device beside allocating: kernels, its own waits, signals, and what it tells of its blocks.
//!
//! Main types: [`ClockTimes`]; the rest are methods of `Emulator`. Neighbours: `work` has what is queued, `timeline` when
//! it is done, `detector` what is wrong with it. None of this is counted or charged as a driver call.

use std::sync::Arc;

use concertina_vmm::Address;

use crate::address_space::Behind;
use crate::detector::{MappingUse, Spot};
use crate::device::Device;
use crate::emulator::{EmulatedStream, Emulator};
use crate::hang::{Hang, WaitOrigin};
use crate::race::Race;
use crate::slab::Key;
use crate::work::{BlockId, Position, Queued, Signal, Work};

/// The two times of `EventCompletion::ByClock`, in nanoseconds; both 0 by another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockTimes {
    /// The host's clock: its driver calls, and what it waited.
    pub host_ns: u64,
    /// When the device is done with all that is queued.
    pub device_ns: u64,
}

impl Emulator {
    /// Queues a kernel on the stream. It touches memory as it is mapped now.
    ///
    /// # Panics
    /// If the stream or a signal is another emulator's.
    pub fn queue(&self, stream: &EmulatedStream, work: Work) -> Queued {
        let index = self.own(stream);
        for signal in work.awaits.iter().chain(&work.sends) {
            self.check_signal(signal);
        }
        let at = self.shared.lock().queue(index, work);
        Queued { instance: self.shared.instance, at }
    }

    /// The program makes what is queued on `stream` from now on wait, on the device, for all that is queued on `on` so far.
    ///
    /// # Panics
    /// If a stream is another emulator's.
    pub fn queue_wait(&self, stream: &EmulatedStream, on: &EmulatedStream) {
        let (stream, on) = (self.own(stream), self.own(on));
        let mut device = self.shared.lock();
        let last = device.timeline.last(on);
        device.timeline.wait(stream, last, WaitOrigin::Program);
        if let Some(detector) = &mut device.detector {
            detector.wait_for(stream, on);
        }
    }

    /// A signal that is not sent yet.
    pub fn signal(&self) -> Signal {
        let index = self.shared.lock().timeline.add_signal();
        Signal { instance: self.shared.instance, index }
    }

    /// The host sends the signal. Nothing to do if it was sent.
    ///
    /// # Panics
    /// If the signal is another emulator's.
    pub fn send(&self, signal: &Signal) {
        self.check_signal(signal);
        let mut device = self.shared.lock();
        device.timeline.send(signal.index);
        if let Some(detector) = &mut device.detector {
            detector.send(signal.index);
        }
    }

    fn check_signal(&self, signal: &Signal) {
        assert_eq!(self.shared.instance, signal.instance, "a signal of another emulator");
    }

    /// The program makes the host wait for the stream. Not one of the allocator's host waits.
    ///
    /// # Errors
    /// If the wait would have no end; also in [`Emulator::hangs`].
    ///
    /// # Panics
    /// If the stream is another emulator's.
    pub fn synchronize_stream(&self, stream: &EmulatedStream) -> Result<(), Hang> {
        let stream = self.own(stream);
        let mut device = self.shared.lock();
        let last = device.timeline.last(stream);
        device.hold_up(last)?;
        if let Some(detector) = &mut device.detector {
            detector.saw_stream(stream);
        }
        Ok(())
    }

    /// The program makes the host wait for the whole device. Not one of the allocator's host waits.
    ///
    /// # Errors
    /// If the wait would have no end; also in [`Emulator::hangs`].
    pub fn synchronize_device(&self) -> Result<(), Hang> {
        let mut device = self.shared.lock();
        if let Err(hang) = device.timeline.complete_all() {
            device.hangs.push(hang.clone());
            return Err(hang);
        }
        if let Some(detector) = &mut device.detector {
            detector.saw_all();
        }
        Ok(())
    }

    /// Holds the host up until the kernel is done, as a full queue does: it learns nothing by it.
    ///
    /// # Errors
    /// If it would be held up without end; also in [`Emulator::hangs`].
    ///
    /// # Panics
    /// If the kernel was queued on another emulator.
    pub fn catch_up(&self, queued: &Queued) -> Result<(), Hang> {
        assert_eq!(self.shared.instance, queued.instance, "a kernel of another emulator");
        self.shared.lock().hold_up(queued.at)
    }

    /// Whether the kernel is done. The host learns nothing by it.
    ///
    /// # Panics
    /// If the kernel was queued on another emulator.
    pub fn is_done(&self, queued: &Queued) -> bool {
        assert_eq!(self.shared.instance, queued.instance, "a kernel of another emulator");
        self.shared.lock().timeline.is_done(queued.at)
    }

    /// The program was given a block in the order of the stream. It counts as a write of the whole block at this point:
    /// work on another stream must come after it, and it must come after all earlier work on the same memory. Nothing is
    /// kept if the race detector is off.
    ///
    /// # Panics
    /// If the stream is another emulator's.
    pub fn block_allocated(
        &self,
        name: impl Into<Arc<str>>,
        address: Address,
        bytes: u64,
        stream: &EmulatedStream,
    ) -> BlockId {
        let stream = self.own(stream);
        let mut device = self.shared.lock();
        let Some(detector) = &mut device.detector else { return BlockId(Key { slot: 0, generation: 0 }) };
        let (block, access) = detector.allocate(name.into(), address, bytes, stream);
        device.touch(access, address, bytes, MappingUse::None);
        block
    }

    /// The program gives the block back in the order of the stream: no work that is queued from now on may use it. To be
    /// told before the allocator is, so that nobody else has it meanwhile.
    ///
    /// # Panics
    /// If the stream is another emulator's.
    pub fn block_freed(&self, block: BlockId, stream: &EmulatedStream) {
        let stream = self.own(stream);
        if let Some(detector) = &mut self.shared.lock().detector {
            detector.free(block, stream);
        }
    }

    /// What the race detector found, in order; at most the first 1,000.
    pub fn races(&self) -> Vec<Race> {
        self.shared.lock().detector.as_ref().map_or_else(Vec::new, |detector| detector.races().to_vec())
    }

    /// Accesses that the race detector remembers, for tests of its memory.
    pub fn remembered_accesses(&self) -> usize {
        self.shared.lock().detector.as_ref().map_or(0, |detector| detector.remembered())
    }

    /// The waits of the host that would have had no end, in order.
    pub fn hangs(&self) -> Vec<Hang> {
        self.shared.lock().hangs.clone()
    }

    /// The virtual clock.
    pub fn clock(&self) -> ClockTimes {
        self.shared.lock().timeline.clock()
    }
}

impl Device {
    fn hold_up(&mut self, at: Position) -> Result<(), Hang> {
        self.timeline.complete(at).inspect_err(|hang| self.hangs.push(hang.clone()))
    }

    fn queue(&mut self, stream: u32, work: Work) -> Position {
        if let Some(detector) = &mut self.detector {
            let stamp = detector.begin(stream, &work);
            for &access in &work.accesses {
                let Some(detector) = &mut self.detector else { break };
                let number = detector.access(&work, stamp, access);
                self.touch(number, access.address, access.bytes, MappingUse::InFlight);
            }
        }
        self.timeline.queue(stream, work)
    }

    /// Tells the detector what is behind the addresses of an access.
    fn touch(&mut self, access: u32, address: Address, bytes: u64, use_: MappingUse) {
        let Self { detector: Some(detector), space, mallocs, memory, .. } = self else { return };
        let end = address.get().saturating_add(bytes);
        let mut at = address.get();
        while at < end {
            let spot = |frame: Key, mapping, accessible, offset| {
                let frame_bytes = memory.frames.at(frame.slot).bytes;
                Spot { frame, frame_bytes, mapping, accessible, offset }
            };
            let (found, holds) = if at < space.base() {
                let (found, holds) = mallocs.behind(at);
                (found.map(|(frame, offset)| spot(frame, None, true, offset)), holds)
            } else {
                match space.behind(at) {
                    (Behind::Nothing, holds) => (None, holds),
                    (Behind::Mapping(mapping, slot, offset), holds) => {
                        let frame = memory.frames.key_of(mapping.frame);
                        (Some(spot(frame, Some(slot), mapping.accessible, offset)), holds)
                    }
                }
            };
            let here = holds.min(end - at);
            match found {
                Some(spot) => detector.touch(access, spot, at, here, use_),
                None => detector.miss(access, at),
            }
            at += here;
        }
        detector.end_access();
    }
}
