//! Buffers, views and guards as cudarc takes them: arguments of kernels, and ends of copies.
//!
//! Main types: none. Neighbours: `owner` puts each use in order.
//!
//! cudarc doesn't tell an argument on which stream it will be launched. So a plain buffer or view is put in order on its
//! home stream, and a guard on the stream that it was made for. Copies do tell the stream.

use std::sync::Arc;

use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop, sys,
};

use super::growable::GrowableBuffer;
use super::guard::{On, OnMut};
use super::home::{Home, Registered};
use super::owner::Owner;
use super::typed::Buffer;
use super::uses::{Access, Claim};
use super::view::{View, ViewMut};

/// What a copy or fill gets in place of memory whose use could not be put in order, and a kernel whose launch is
/// refused.
static NULL: u64 = 0;

/// What all of them are: some elements of an owner's block.
trait Window {
    type Home: Home;

    fn owner(&self) -> &Owner<Self::Home>;
    fn pointer(&self) -> &u64;
    fn claim(&self) -> Claim;
    /// Of a guard: the stream on which its use has begun.
    fn begun_on(&self) -> Option<&Registered>;

    fn argument(&self, access: Access) -> &u64 {
        let ready = self.begun_on().is_some() || self.owner().begin_at_home(access, self.claim());
        if ready { self.pointer() } else { &NULL }
    }

    fn end_of_copy<'a>(&self, stream: &'a CudaStream, access: Access) -> (u64, SyncOnDrop<'a>) {
        if self.begun_on().is_some_and(|on| on.stream().is_same(stream)) {
            return (*self.pointer(), SyncOnDrop::Sync(None));
        }
        match self.owner().begin_on(stream, access, self.claim()) {
            Some(behind) => (*self.pointer(), behind),
            None => (NULL, SyncOnDrop::Sync(None)),
        }
    }
}

macro_rules! window {
    ($type:ty, [$($life:lifetime)?], $this:ident => ($owner:expr, $claim:expr, $begun:expr)) => {
        impl<$($life,)? T, H: Home> Window for $type {
            type Home = H;

            fn owner(&self) -> &Owner<H> {
                let $this = self;
                $owner
            }

            fn pointer(&self) -> &u64 {
                &self.pointer
            }

            fn claim(&self) -> Claim {
                #[allow(unused_variables, reason = "not all windows look")]
                let $this = self;
                $claim
            }

            fn begun_on(&self) -> Option<&Registered> {
                #[allow(unused_variables, reason = "not all windows look")]
                let $this = self;
                $begun
            }
        }

        impl<$($life,)? T, H: Home> DeviceSlice<T> for $type {
            fn len(&self) -> usize {
                self.len
            }

            fn stream(&self) -> &Arc<CudaStream> {
                self.owner().home().registered().cuda_stream()
            }
        }

        impl<$($life,)? T, H: Home> DevicePtr<T> for $type {
            fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
                self.end_of_copy(stream, Access::Read)
            }
        }

        // SAFETY: what is pushed is a reference to an address of the device, a `u64`, as every pointer is for a kernel;
        // it lies in the argument or in a static, so that it outlives the builder.
        unsafe impl<'a, 'b: 'a, $($life: 'b,)? T, H: Home> PushKernelArg<&'b $type> for LaunchArgs<'a> {
            #[inline(always)]
            fn arg(&mut self, arg: &'b $type) -> &mut Self {
                self.arg(arg.argument(Access::Read))
            }
        }
    };
}

macro_rules! window_mut {
    ($type:ty, [$($life:lifetime)?]) => {
        impl<$($life,)? T, H: Home> DevicePtrMut<T> for $type {
            fn device_ptr_mut<'a>(
                &'a mut self,
                stream: &'a CudaStream,
            ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
                self.end_of_copy(stream, Access::Write)
            }
        }

        // SAFETY: as of the shared reference above.
        unsafe impl<'a, 'b: 'a, $($life: 'b,)? T, H: Home> PushKernelArg<&'b mut $type> for LaunchArgs<'a> {
            #[inline(always)]
            fn arg(&mut self, arg: &'b mut $type) -> &mut Self {
                self.arg(arg.argument(Access::Write))
            }
        }
    };
}

window!(Buffer<T, H>, [], buffer => (&buffer.owner, Claim::Whole, None));
window!(GrowableBuffer<T, H>, [], buffer => (&buffer.owner, Claim::Whole, None));
window!(View<'w, T, H>, ['w], view => (view.owner, Claim::Whole, None));
window!(ViewMut<'w, T, H>, ['w], view => (view.owner, view.claim, None));
window!(On<'w, T, H>, ['w], guard => (guard.owner, guard.claim, Some(guard.registered())));
window!(OnMut<'w, T, H>, ['w], guard => (guard.owner, guard.claim, Some(guard.registered())));
window_mut!(Buffer<T, H>, []);
window_mut!(GrowableBuffer<T, H>, []);
window_mut!(ViewMut<'w, T, H>, ['w]);
window_mut!(OnMut<'w, T, H>, ['w]);
