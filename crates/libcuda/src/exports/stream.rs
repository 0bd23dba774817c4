//! Streams.
//!
//! Main types: none. Neighbours: `stream` has the queues, `device` the order with the default stream.

use core::ffi::{c_int, c_uint, c_void};

use concertina_vmm::Driver;

use crate::abi::Handle;
use crate::capture;
use crate::code::{Code, Outcome};
use crate::entry::{Out, entry_points, give};
use crate::machine;
use crate::stream::StreamKind;
use crate::work::{HostFunction, Work};

/// `CU_EVENT_WAIT_EXTERNAL`: a wait that a capture takes as one from outside.
const EXTERNAL: c_uint = 1;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

fn create(stream: Out<'_, Handle>, flags: c_uint, priority: c_int) -> Outcome {
    let machine = machine::get()?;
    let device = machine.current()?;
    let kind = match flags {
        0 => StreamKind::Blocking,
        NON_BLOCKING => StreamKind::NonBlocking,
        _ => return Err(Code::INVALID_VALUE),
    };
    if stream.is_none() {
        return Err(Code::INVALID_VALUE);
    }
    give(stream, device.create_stream(kind, flags, priority))
}

entry_points! {
    fn cuStreamCreate(stream: Out<'_, Handle>, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<'_, Handle>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority.clamp(crate::attribute::GREATEST_PRIORITY, 0))
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        let machine = machine::get()?;
        let (stream, device) = machine.stream(stream)?;
        if let Some(capture) = stream.capture() {
            machine.captures.forget(&capture);
        }
        // The default streams are in no table, and refused there.
        device.destroy_stream(stream.handle)
    }

    fn cuStreamGetFlags(stream: Handle, flags: Out<'_, c_uint>) {
        let machine = machine::get()?;
        give(flags, machine.stream(stream)?.0.flags)
    }

    fn cuStreamGetPriority(stream: Handle, priority: Out<'_, c_int>) {
        let machine = machine::get()?;
        give(priority, machine.stream(stream)?.0.priority)
    }

    fn cuStreamGetCtx(stream: Handle, context: Out<'_, Handle>) {
        let machine = machine::get()?;
        give(context, machine.stream(stream)?.1.context)
    }

    fn cuStreamGetId(stream: Handle, id: Out<'_, u64>) {
        let machine = machine::get()?;
        give(id, machine.stream(stream)?.0.handle as u64)
    }

    fn cuStreamQuery(stream: Handle) {
        let machine = machine::get()?;
        let (stream, device) = machine.stream(stream)?;
        stream.check_not_capturing()?;
        if stream.is_idle() { device.saw(&stream) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamSynchronize(stream: Handle) {
        let machine = machine::get()?;
        let (stream, device) = machine.stream(stream)?;
        stream.check_not_capturing()?;
        device.synchronize_stream(&stream)
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        let machine = machine::get()?;
        if flags > EXTERNAL {
            return Err(Code::INVALID_VALUE);
        }
        let (stream, device) = machine.stream(stream)?;
        let (event, owner) = machine.event(event)?;
        if let Some(place) = event.captured() {
            return capture::join(&stream, &place);
        }
        if flags != EXTERNAL && let Some(capture) = stream.capture() {
            return Err(capture.broken_by(Code::STREAM_CAPTURE_ISOLATION));
        }
        if owner.ordinal == device.ordinal {
            device.memory.emulator.stream_wait(&stream.emulated, &event.emulated)?;
        }
        let Some(record) = event.latest() else { return Ok(()) };
        if record.is_passed() { Ok(()) } else { device.submit(&stream, Work::Wait(record)) }
    }

    fn cuLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: *mut c_void) {
        let machine = machine::get()?;
        let (stream, device) = machine.stream(stream)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        device.submit(&stream, Work::Host { function, data: data as usize })
    }
}
