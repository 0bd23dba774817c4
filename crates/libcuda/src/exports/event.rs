//! Events.
//!
//! Main types: none. Neighbours: `record` has what they stand for; the emulator counts the calls, and says when events
//! complete where work is done at the call.

use core::ffi::c_uint;
use std::sync::Arc;

use concertina_vmm::Driver;

use crate::abi::Handle;
use crate::code::{Code, Outcome};
use crate::control::Execution;
use crate::entry::{Out, entry_points, give};
use crate::machine;
use crate::record::Event;
use crate::table::new_handle;

/// `CU_EVENT_DISABLE_TIMING`; the other flags are about how the host waits, and about other processes.
const DISABLE_TIMING: c_uint = 2;
const KNOWN_FLAGS: c_uint = 1 | DISABLE_TIMING;

/// The host can't ask for what a capture has, nor wait for it; that it tries breaks the capture.
fn check_not_captured(event: &Event) -> Outcome {
    match event.captured() {
        Some(place) => Err(place.capture.broken_by(Code::CAPTURED_EVENT)),
        None => Ok(()),
    }
}

fn record(event: Handle, stream: Handle) -> Outcome {
    let machine = machine::get()?;
    let (event, _) = machine.event(event)?;
    let (stream, device) = machine.stream(stream)?;
    if event.device != device.ordinal {
        return Err(Code::INVALID_HANDLE);
    }
    device.memory.emulator.event_record(&event.emulated, &stream.emulated)?;
    match stream.capture() {
        Some(capture) => event.capture(capture.place(&stream)?),
        None => event.set(device.mark(&stream)?),
    }
    Ok(())
}

fn elapsed(milliseconds: Out<'_, f32>, start: Handle, end: Handle) -> Outcome {
    let machine = machine::get()?;
    let ((start, _), (end, _)) = (machine.event(start)?, machine.event(end)?);
    if !start.timed || !end.timed {
        return Err(Code::INVALID_HANDLE);
    }
    let record_of = |event: &Event| event.latest().ok_or(Code::INVALID_HANDLE);
    let passed = (record_of(&start)?.passed_at(), record_of(&end)?.passed_at());
    let (Some(start), Some(end)) = passed else { return Err(Code::NOT_READY) };
    let later = end.saturating_duration_since(start).as_secs_f32();
    let earlier = start.saturating_duration_since(end).as_secs_f32();
    give(milliseconds, (later - earlier) * 1000.0)
}

entry_points! {
    fn cuEventCreate(event: Out<'_, Handle>, flags: c_uint) {
        let machine = machine::get()?;
        let device = machine.current()?;
        if flags & !KNOWN_FLAGS != 0 || event.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        let emulated = device.memory.emulator.event_create()?;
        let handle = new_handle();
        let made = Event::new(device.ordinal, emulated, flags & DISABLE_TIMING == 0);
        device.events.insert(handle, Arc::new(made));
        give(event, handle)
    }

    fn cuEventDestroy_v2(event: Handle) {
        let machine = machine::get()?;
        let (_, device) = machine.event(event)?;
        device.events.remove(event)?;
        Ok(())
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        record(event, stream)
    }

    fn cuEventQuery(event: Handle) {
        let machine = machine::get()?;
        let (event, device) = machine.event(event)?;
        check_not_captured(&event)?;
        let emulator = &device.memory.emulator;
        // The emulator behind workers has everything done at once: only what is true may be seen through it.
        let passed = event.latest().is_none_or(|record| record.is_passed());
        if device.execution == Execution::Workers && !passed {
            emulator.event_query_in_vain(&event.emulated)?;
            return Err(Code::NOT_READY);
        }
        if emulator.event_query(&event.emulated)? { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuEventSynchronize(event: Handle) {
        let machine = machine::get()?;
        let (event, device) = machine.event(event)?;
        check_not_captured(&event)?;
        if let Some(record) = event.latest() {
            record.wait();
        }
        device.memory.emulator.event_synchronize(&event.emulated)?;
        machine::check_alive()?;
        device.pools.trim_to_thresholds()
    }

    fn cuEventElapsedTime(milliseconds: Out<'_, f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<'_, f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }
}
