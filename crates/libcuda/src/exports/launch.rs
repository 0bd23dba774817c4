//! Modules, functions and launches.
//!
//! Main types: none. Neighbours: `module` finds what `kernel` has registered.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::abi::Handle;
use crate::attribute;
use crate::code::{Code, Outcome};
use crate::entry::{Out, entry_points, give};
use crate::exports::{array, text};
use crate::kernel::{Launch, MAX_THREADS_PER_BLOCK, Shape, parameter_units};
use crate::machine;
use crate::work::Work;

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const MAX_THREADS: c_uint = 0;

fn load(module: Out<'_, Handle>, image: *const c_void) -> Outcome {
    let machine = machine::get()?;
    machine.current()?;
    if image.is_null() || module.is_none() {
        return Err(Code::INVALID_VALUE);
    }
    give(module, machine.modules.load())
}

/// Blocks of a function that a processor has room for, by threads and shared memory alone: registers are not known.
fn occupancy(function: Handle, block_size: c_int, shared_bytes: usize) -> Outcome<c_int> {
    machine::get()?.modules.functions.get(function)?;
    if block_size <= 0 || block_size as u64 > MAX_THREADS_PER_BLOCK {
        return Err(Code::INVALID_VALUE);
    }
    let by_threads = attribute::THREADS_PER_PROCESSOR / block_size;
    let by_memory = (attribute::SHARED_BYTES_PER_PROCESSOR as usize).checked_div(shared_bytes);
    Ok(by_memory.map_or(by_threads, |blocks| by_threads.min(blocks as c_int)))
}

fn launch(function: Handle, shape: Shape, stream: Handle, parameters: *const *const u8) -> Outcome {
    let machine = machine::get()?;
    let (stream, device) = machine.stream(stream)?;
    let kernel = Arc::clone(&machine.modules.functions.get(function)?.kernel);
    shape.check()?;
    // SAFETY: the manual asks for one pointer a parameter.
    let pointers = unsafe { array(parameters, kernel.sizes().len()) }?;
    let units = kernel.sizes().iter().map(|&bytes| parameter_units(bytes)).sum();
    let mut copies = vec![0_u128; units].into_boxed_slice();
    let mut at = 0;
    for (&from, &bytes) in pointers.iter().zip(kernel.sizes()) {
        if from.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let to = copies[at..].as_mut_ptr().cast::<u8>();
        // SAFETY: the manual asks for a pointer to the whole parameter, whose size was told at the registration; the copy
        // has room for it and is ours.
        unsafe { core::ptr::copy_nonoverlapping(from, to, bytes) };
        at += parameter_units(bytes);
    }
    let memory = Arc::clone(&device.memory);
    device.submit(&stream, Work::Launch(Launch { kernel, shape, parameters: copies, memory }))
}

entry_points! {
    fn cuModuleLoadData(module: Out<'_, Handle>, image: *const c_void) {
        load(module, image)
    }

    fn cuModuleLoadDataEx(
        module: Out<'_, Handle>, image: *const c_void, _count: c_uint, _options: *const c_void,
        _values: *const c_void,
    ) {
        load(module, image)
    }

    fn cuModuleLoadFatBinary(module: Out<'_, Handle>, image: *const c_void) {
        load(module, image)
    }

    fn cuModuleLoad(module: Out<'_, Handle>, path: *const c_char) {
        // SAFETY: the manual asks for a text.
        let path = unsafe { text(path) }?;
        if !std::path::Path::new(path).is_file() {
            return Err(Code::FILE_NOT_FOUND);
        }
        load(module, path.as_ptr().cast())
    }

    fn cuModuleUnload(module: Handle) {
        machine::get()?.modules.unload(module)
    }

    fn cuModuleGetFunction(function: Out<'_, Handle>, module: Handle, name: *const c_char) {
        let machine = machine::get()?;
        // SAFETY: the manual asks for a text.
        let name = unsafe { text(name) }?;
        give(function, machine.modules.function(module, name)?)
    }

    fn cuModuleGetGlobal_v2(_address: Out<'_, u64>, _bytes: Out<'_, usize>, module: Handle, _name: *const c_char) {
        machine::get()?.modules.loaded.get(module)?;
        Err(Code::NOT_FOUND)
    }

    fn cuFuncGetAttribute(value: Out<'_, c_int>, attribute: c_uint, function: Handle) {
        machine::get()?.modules.functions.get(function)?;
        let threads = if attribute == MAX_THREADS { MAX_THREADS_PER_BLOCK as c_int } else { 0 };
        give(value, threads)
    }

    fn cuFuncSetAttribute(function: Handle, _attribute: c_uint, _value: c_int) {
        machine::get()?.modules.functions.get(function)?;
        Ok(())
    }

    fn cuFuncSetCacheConfig(function: Handle, _config: c_uint) {
        machine::get()?.modules.functions.get(function)?;
        Ok(())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<'_, c_int>, function: Handle, block_size: c_int, shared_bytes: usize,
    ) {
        give(blocks, occupancy(function, block_size, shared_bytes)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<'_, c_int>, function: Handle, block_size: c_int, shared_bytes: usize, _flags: c_uint,
    ) {
        give(blocks, occupancy(function, block_size, shared_bytes)?)
    }

    fn cuLaunchKernel(
        function: Handle,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: Handle,
        parameters: *const *const u8, extra: *const c_void,
    ) {
        if !extra.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, Shape { grid, block, shared_bytes }, stream, parameters)
    }

    fn cuLaunchCooperativeKernel(
        function: Handle,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: Handle, parameters: *const *const u8,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, Shape { grid, block, shared_bytes }, stream, parameters)
    }
}
