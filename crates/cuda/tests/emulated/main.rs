//! The driver over the emulated libcuda: every line of the way through C, without a GPU.
//!
//! Main type: [`Machine`]. Neighbours: `concertina-libcuda` is the device; `concertina_vmm::contract` has the cases of
//! `contract`.

#![cfg(target_os = "linux")]
// Copies are made by `sys`: the driver has none.
#![allow(unsafe_code)]

mod answers;
mod calls;
mod captures;
mod contexts;
mod contract;
mod exiting;
mod lacking;
mod memory;
mod opening;
mod raw;

use std::sync::Arc;

use concertina_cuda::{Cuda, Stream};
use concertina_libcuda::{DeviceConfig, FreshDevice, Library, load};
use concertina_vmm::{Address, Driver, FrameProperties};
use cudarc::driver::{CudaContext, sys};

fn library() -> &'static Library {
    load().expect("the emulated libcuda is built beside the tests")
}

/// A small device: 64 pages of 2 MiB.
fn small() -> DeviceConfig {
    DeviceConfig { capacity_bytes: 64 * PAGE, ..DeviceConfig::default() }
}

const PAGE: u64 = 2 << 20;
const FRAME: FrameProperties = FrameProperties { device: 0 };

/// Fresh emulated devices, for this test alone; at the end they must hold nothing.
struct Machine {
    libcuda: FreshDevice,
}

impl Machine {
    fn new(config: &DeviceConfig) -> Self {
        Self { libcuda: library().fresh(config).unwrap() }
    }

    /// What a program has on one of the devices: a context, and our driver in it.
    fn program(&self, ordinal: usize) -> (Arc<CudaContext>, Cuda) {
        let context = CudaContext::new(ordinal).unwrap();
        let cuda = Cuda::new(&context).unwrap();
        (context, cuda)
    }

    fn calls(&self, function: &str) -> u64 {
        self.libcuda.calls(function).unwrap()
    }

    /// Everything the program had is dropped, and nothing is left.
    #[track_caller]
    fn ends_empty(&self) {
        if let Err(held) = self.libcuda.check_nothing_held() {
            panic!("{held}");
        }
        if let Err(raced) = self.libcuda.check_no_races() {
            panic!("{raced}");
        }
    }
}

/// A stream of the program's, as we take it.
fn stream(context: &Arc<CudaContext>) -> Stream {
    Stream::new(context.new_stream().unwrap())
}

/// One page reserved, backed by a frame and accessible.
struct Page {
    address: Address,
    handle: concertina_cuda::Handle,
}

impl Page {
    fn new(cuda: &Cuda) -> Self {
        let address = cuda.reserve(PAGE, 0).unwrap();
        let handle = cuda.create(PAGE, &FRAME).unwrap();
        cuda.map(address, PAGE, &handle).unwrap();
        cuda.set_access(address, PAGE, &[concertina_vmm::Accessor::Device(0)]).unwrap();
        Self { address, handle }
    }

    fn give_back(self, cuda: &Cuda) {
        cuda.unmap(self.address, PAGE).unwrap();
        cuda.release(self.handle).unwrap();
        cuda.unreserve(self.address, PAGE).unwrap();
    }
}

fn write(context: &CudaContext, at: Address, bytes: &[u8]) {
    context.bind_to_thread().unwrap();
    // SAFETY: the source is a slice; where the destination can't be written, the driver refuses.
    let result = unsafe { sys::cuMemcpyHtoD_v2(at.get(), bytes.as_ptr().cast(), bytes.len()) };
    result.result().unwrap();
}

fn read<const N: usize>(context: &CudaContext, at: Address) -> [u8; N] {
    context.bind_to_thread().unwrap();
    let mut bytes = [0; N];
    // SAFETY: the destination is ours; where the source can't be read, the driver refuses.
    let result = unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at.get(), N) };
    result.result().unwrap();
    bytes
}
