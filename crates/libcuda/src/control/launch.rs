//! What a registered kernel gets to know about its launch.
//!
//! Main types: [`Launch`], [`Parameter`]. Neighbours: `Library::register_kernel` takes the closures; `kernel` calls them.

use concertina_emulator::Access;
use concertina_vmm::Address;

use crate::abi::RawLaunch;

/// What can be a parameter of a kernel.
///
/// # Safety
/// Any bytes are a value of the type: it has no padding, and no pattern of bits that it can't have.
pub unsafe trait Parameter: Copy {}

macro_rules! parameters {
    ($($number:ty),*) => {$(
        // SAFETY: a number has neither padding nor forbidden bits.
        unsafe impl Parameter for $number {}
    )*};
}

parameters!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize, f32, f64);

// SAFETY: an array has no padding of its own.
unsafe impl<T: Parameter, const COUNT: usize> Parameter for [T; COUNT] {}

/// One launch of a kernel: its shape and its parameters.
#[derive(Debug)]
pub struct Launch<'a> {
    raw: &'a RawLaunch,
}

impl<'a> Launch<'a> {
    pub(super) const fn new(raw: &'a RawLaunch) -> Self {
        Self { raw }
    }

    /// Blocks in each direction.
    pub const fn grid(&self) -> [u32; 3] {
        self.raw.grid
    }

    /// Threads of a block in each direction.
    pub const fn block(&self) -> [u32; 3] {
        self.raw.block
    }

    /// Bytes of dynamic shared memory. There is none here.
    pub const fn shared_bytes(&self) -> u32 {
        self.raw.shared_bytes
    }

    /// The parameter with this index, from 0.
    ///
    /// # Panics
    /// If there is none, or it was registered with another size. (The launch then fails, and the device is lost.)
    pub fn parameter<T: Parameter>(&self, index: usize) -> T {
        let count = self.raw.parameter_count as usize;
        assert!(index < count, "parameter {index} of a kernel with {count}");
        let sizes = self.raw.parameter_sizes.wrapping_add(index);
        // SAFETY: there are `count` sizes.
        let bytes = unsafe { sizes.read() };
        assert_eq!(bytes, size_of::<T>(), "size of parameter {index} as registered, and as asked for");
        let parameters = self.raw.parameters.wrapping_add(index);
        // SAFETY: there are `count` pointers.
        let parameter = unsafe { parameters.read() };
        // SAFETY: the parameter has that many bytes, and any bytes are a `T`.
        unsafe { parameter.cast::<T>().read_unaligned() }
    }

    /// That it reads `bytes` from the address on that is the parameter with this index: for
    /// [`Library::register_kernel_touching`](crate::Library::register_kernel_touching).
    ///
    /// # Panics
    /// As [`Launch::parameter`].
    pub fn reads(&self, index: usize, bytes: u64) -> Access {
        Access::read(Address::new(self.parameter(index)), bytes)
    }

    /// The same for bytes that it writes, and perhaps reads.
    ///
    /// # Panics
    /// As [`Launch::parameter`].
    pub fn writes(&self, index: usize, bytes: u64) -> Access {
        Access::write(Address::new(self.parameter(index)), bytes)
    }

    /// Where the kernel finds `count` elements at a device address: the same address on host pages, and a place of the
    /// software page table's otherwise. Null if the latter knows them not to be accessible, or not in one piece.
    ///
    /// On host pages nothing is checked: following the pointer faults as the device would.
    pub fn pointer<T>(&self, address: u64, count: usize) -> *mut T {
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        (self.raw.locate)(self.raw.memory, address, bytes).cast()
    }
}
