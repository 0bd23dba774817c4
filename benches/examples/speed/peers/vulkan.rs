//! Just enough of a Vulkan device for `gpu-allocator`: 256 GiB of device memory, whose allocations are numbers.
//!
//! Neighbours: `peers` makes its allocator on it. The crate has no other door to its sub-allocation than a device of
//! Vulkan, Direct3D or Metal; functions that it does not call here stay unloaded, and end the program if they are.

#![allow(unsafe_code, reason = "functions that Vulkan calls write through pointers")]

use std::ptr::null;

use ash::vk::Handle as _;
use ash::{Device, Instance, vk};
use concertina_bench::contender::Contender;
use gpu_allocator::vulkan::{
    Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc,
};
use gpu_allocator::{AllocationSizes, AllocatorDebugSettings, MemoryLocation};

/// One heap of device memory, and one type in it that the host does not see.
unsafe extern "system" fn memory_properties(
    _device: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceMemoryProperties,
) {
    let mut told = vk::PhysicalDeviceMemoryProperties { memory_heap_count: 1, ..Default::default() };
    told.memory_heaps[0] = vk::MemoryHeap { size: 256 << 30, flags: vk::MemoryHeapFlags::DEVICE_LOCAL };
    told.memory_type_count = 1;
    told.memory_types[0] =
        vk::MemoryType { property_flags: vk::MemoryPropertyFlags::DEVICE_LOCAL, heap_index: 0 };
    // SAFETY: Vulkan's rules for this call: the caller gives a pointer to properties that may be written.
    unsafe { properties.write(told) };
}

/// Blocks of every kind may lie side by side.
unsafe extern "system" fn device_properties(
    _device: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceProperties,
) {
    let mut told = vk::PhysicalDeviceProperties::default();
    told.limits.buffer_image_granularity = 1;
    // SAFETY: Vulkan's rules for this call: the caller gives a pointer to properties that may be written.
    unsafe { properties.write(told) };
}

/// Any number but 0 will do: nobody looks behind it.
unsafe extern "system" fn allocate_memory(
    _device: vk::Device,
    _info: *const vk::MemoryAllocateInfo<'_>,
    _callbacks: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    // SAFETY: Vulkan's rules for this call: the caller gives a pointer to a handle that may be written.
    unsafe { memory.write(vk::DeviceMemory::from_raw(1)) };
    vk::Result::SUCCESS
}

unsafe extern "system" fn free_memory(
    _device: vk::Device,
    _memory: vk::DeviceMemory,
    _callbacks: *const vk::AllocationCallbacks<'_>,
) {
}

fn instance() -> Instance {
    let mut functions = ash::InstanceFnV1_0::load(|_| null());
    functions.get_physical_device_memory_properties = memory_properties;
    functions.get_physical_device_properties = device_properties;
    let (more, most) = (ash::InstanceFnV1_1::load(|_| null()), ash::InstanceFnV1_3::load(|_| null()));
    Instance::from_parts_1_3(vk::Instance::from_raw(1), functions, more, most)
}

fn device() -> Device {
    let mut functions = ash::DeviceFnV1_0::load(|_| null());
    functions.allocate_memory = allocate_memory;
    functions.free_memory = free_memory;
    Device::from_parts_1_3(
        vk::Device::from_raw(1),
        functions,
        ash::DeviceFnV1_1::load(|_| null()),
        ash::DeviceFnV1_2::load(|_| null()),
        ash::DeviceFnV1_3::load(|_| null()),
    )
}

/// The crate `gpu-allocator` with its default block of 256 MiB: free lists in blocks, searched from one end.
#[derive(Debug)]
pub(crate) struct GpuAllocator(Allocator);

impl Default for GpuAllocator {
    fn default() -> Self {
        let mut debug_settings = AllocatorDebugSettings::default();
        debug_settings.log_leaks_on_shutdown = false;
        let description = AllocatorCreateDesc {
            instance: instance(),
            device: device(),
            physical_device: vk::PhysicalDevice::from_raw(1),
            debug_settings,
            buffer_device_address: false,
            allocation_sizes: AllocationSizes::default(),
        };
        Self(Allocator::new(&description).expect("an allocator"))
    }
}

impl Contender for GpuAllocator {
    type Block = Allocation;

    fn name(&self) -> &'static str {
        "gpu-allocator"
    }

    fn allocate(&mut self, bytes: u64) -> Allocation {
        let description = AllocationCreateDesc {
            name: "",
            requirements: vk::MemoryRequirements { size: bytes, alignment: 512, memory_type_bits: 1 },
            location: MemoryLocation::GpuOnly,
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        };
        self.0.allocate(&description).expect("the device is large enough")
    }

    fn free(&mut self, block: Allocation) {
        self.0.free(block).expect("live");
    }
}
