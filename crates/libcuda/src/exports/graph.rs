//! Captures and graphs.
//!
//! Main types: none. Neighbours: `capture` has the rules; a graph is the work that one has taken.

use core::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

use concertina_vmm::Driver;

use crate::abi::Handle;
use crate::capture::{self, Mode, Status};
use crate::code::{Code, Outcome};
use crate::entry::{Out, entry_points, give};
use crate::machine;
use crate::stream::StreamKind;
use crate::table::new_handle;

/// What `cuStreamIsCapturing` says of a stream that is in no capture.
const NOT_CAPTURING: c_uint = 0;

const fn raw_status(status: Status) -> c_uint {
    match status {
        Status::Active => 1,
        Status::Invalidated => 2,
    }
}

fn instantiate(exec: Out<'_, Handle>, graph: Handle) -> Outcome {
    let machine = machine::get()?;
    let work = machine.graphs.get(graph)?;
    let handle = new_handle();
    give(exec, handle)?;
    machine.executables.insert(handle, work);
    Ok(())
}

entry_points! {
    fn cuThreadExchangeStreamCaptureMode(mode: Option<&mut c_uint>) {
        machine::get()?;
        let mode = mode.ok_or(Code::INVALID_VALUE)?;
        *mode = capture::exchange_mode(Mode::from_raw(*mode)?) as c_uint;
        Ok(())
    }

    fn cuStreamIsCapturing(stream: Handle, status: Out<'_, c_uint>) {
        let machine = machine::get()?;
        let (stream, device) = machine.stream(stream)?;
        // For the counts.
        device.memory.emulator.capture_status(&stream.emulated)?;
        give(status, stream.capture().map_or(NOT_CAPTURING, |capture| raw_status(capture.status())))
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle, status: Out<'_, c_uint>, id: Out<'_, c_ulonglong>, graph: Out<'_, Handle>,
        dependencies: Out<'_, *const Handle>, count: Out<'_, usize>,
    ) {
        // There are no nodes to be told.
        if graph.is_some() || dependencies.is_some() || count.is_some() {
            return Err(Code::NOT_SUPPORTED);
        }
        let machine = machine::get()?;
        let (stream, _) = machine.stream(stream)?;
        let Some(capture) = stream.capture() else { return give(status, NOT_CAPTURING) };
        give(status, raw_status(capture.status()))?;
        // Null: not wanted.
        if id.is_some() { give(id, capture.id) } else { Ok(()) }
    }

    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) {
        let machine = machine::get()?;
        let (stream, _) = machine.stream(stream)?;
        if stream.kind == StreamKind::Legacy {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        machine.captures.begin(&stream, Mode::from_raw(mode)?)
    }

    fn cuStreamEndCapture(stream: Handle, graph: Out<'_, Handle>) {
        let machine = machine::get()?;
        let (stream, _) = machine.stream(stream)?;
        let Some(graph) = graph else { return Err(Code::INVALID_VALUE) };
        // No graph, unless there is one.
        graph.write(0);
        let work = machine.captures.end(&stream)?;
        let handle = new_handle();
        machine.graphs.insert(handle, Arc::from(work));
        graph.write(handle);
        Ok(())
    }

    fn cuGraphDestroy(graph: Handle) {
        machine::get()?.graphs.remove(graph)?;
        Ok(())
    }

    fn cuGraphInstantiateWithFlags(exec: Out<'_, Handle>, graph: Handle, _flags: c_ulonglong) {
        instantiate(exec, graph)
    }

    fn cuGraphExecDestroy(exec: Handle) {
        machine::get()?.executables.remove(exec)?;
        Ok(())
    }

    fn cuGraphUpload(exec: Handle, stream: Handle) {
        let machine = machine::get()?;
        machine.stream(stream)?;
        machine.executables.get(exec)?;
        Ok(())
    }

    fn cuGraphLaunch(exec: Handle, stream: Handle) {
        let machine = machine::get()?;
        let (stream, device) = machine.stream(stream)?;
        let work = machine.executables.get(exec)?;
        work.iter().try_for_each(|work| device.submit(&stream, work.clone()))
    }
}
