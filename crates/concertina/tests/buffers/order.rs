//! Streams come to a buffer in the right order, by guards and by plain use at home.
//!
//! Main types: none. Neighbours: `gaps` has the orders that cudarc's own tracking misses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use concertina::cuda::{DeviceBuffer, Stream};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DevicePtrMut, DeviceSlice, PushKernelArg, SyncOnDrop,
};

use crate::{Flag, Gate, Machine, PAGE, SHAPE};
use concertina_libcuda::AccessKind;

/// The frames of a block come from another stream, whose late kernel still writes to them. A use on a third stream, right
/// after the allocation, comes after that kernel.
#[test]
fn a_steal_is_over_before_a_third_stream_uses_the_block() {
    let machine = Machine::of_pages(16);
    let memory = machine.memory();
    let [victim, home, third] = [(); 3].map(|()| machine.stream());
    let [victims, homes, thirds] = [&victim, &home, &third].map(|stream| memory.stream(stream).unwrap());
    let len = (12 * PAGE / 4) as usize;
    let (gate, late_ran) = (Gate::default(), Flag::default());
    let (inside, flag) = (gate.clone(), late_ran.clone());
    let late = machine.kernel_on_x(AccessKind::Write, "late_fill", &[8, 8], move |launch| {
        inside.pass();
        crate::elements(launch).fill(1);
        flag.set();
    });
    let (fill, saw) = machine.fill(7, &late_ran);

    // SAFETY: the kernel writes before anybody reads.
    let mut old = unsafe { DeviceBuffer::<u32>::try_uninit(&victims, len) }.unwrap();
    // SAFETY: these are the parameters that were registered, here and below.
    unsafe { victim.launch_builder(&late).arg(&mut old).arg(&100_usize).launch(SHAPE) }.unwrap();
    drop(old);
    // SAFETY: as above.
    let mut buffer = unsafe { DeviceBuffer::<u32>::try_uninit(&homes, len) }.unwrap();
    assert!(memory.allocator().stats().stolen_frames >= 8, "only 16 pages are there");
    // SAFETY: as above.
    unsafe { third.launch_builder(&fill).arg(&mut buffer.on_mut(&thirds).unwrap()).arg(&len).launch(SHAPE) }
        .unwrap();
    machine.let_others_run();
    assert_eq!(*saw.lock().unwrap(), None, "the third stream didn't wait");
    gate.open();
    assert_eq!(buffer.to_vec().unwrap(), vec![7; len]);
    assert_eq!(*saw.lock().unwrap(), Some(true));
    drop((buffer, victims, homes, thirds, victim, home, third, late, fill));
    machine.ends_empty(memory);
}

/// Zeroes that the home stream has not come to yet are there for a read elsewhere: the first use elsewhere waits for the
/// point that the home stream has reached.
#[test]
fn zeroes_are_there_before_a_read_elsewhere() {
    let machine = Machine::new();
    let memory = machine.memory();
    let [home, other] = [(); 2].map(|()| machine.stream());
    let [homes, others] = [&home, &other].map(|stream| memory.stream(stream).unwrap());
    let (gate, open) = (Gate::default(), Gate::default());
    open.open();
    let inside = gate.clone();
    let wait = machine.kernel("wait", &[], move |_| inside.pass());
    let (sum_up, sum, _) = machine.late_sum(&open);
    drop(DeviceBuffer::try_from_slice(&homes, &[3_u32; 100]).unwrap());
    // SAFETY: the kernel takes nothing.
    unsafe { home.launch_builder(&wait).launch(SHAPE) }.unwrap();
    let buffer = DeviceBuffer::<u32>::try_zeroed(&homes, 100).unwrap();
    // SAFETY: these are the parameters that were registered.
    unsafe { other.launch_builder(&sum_up).arg(&buffer.on(&others).unwrap()).arg(&100_usize).launch(SHAPE) }
        .unwrap();
    machine.let_others_run();
    assert_eq!(*sum.lock().unwrap(), None, "the read didn't wait");
    gate.open();
    other.synchronize().unwrap();
    assert_eq!(*sum.lock().unwrap(), Some(0));
    drop((buffer, homes, others, home, other, wait, sum_up));
    machine.ends_empty(memory);
}

/// The home stream's plain use comes after a write elsewhere, and a write at home after a read elsewhere.
#[test]
fn home_waits_for_others() {
    let machine = Machine::new();
    let memory = machine.memory();
    let [home, other] = [(); 2].map(|()| machine.stream());
    let [homes, others] = [&home, &other].map(|stream| memory.stream(stream).unwrap());
    let gate = Gate::default();
    let (late_sum, sum, ran) = machine.late_sum(&gate);
    let (fill, saw) = machine.fill(5, &ran);
    let mut buffer = DeviceBuffer::try_from_slice(&homes, &[2_u32; 100]).unwrap();
    // SAFETY: these are the parameters that were registered, here and below.
    unsafe {
        other.launch_builder(&late_sum).arg(&buffer.on(&others).unwrap()).arg(&100_usize).launch(SHAPE)
    }
    .unwrap();
    // A read at home need not wait for a read elsewhere.
    assert_eq!(buffer.to_vec().unwrap(), [2; 100]);
    // SAFETY: as above.
    unsafe { home.launch_builder(&fill).arg(&mut buffer).arg(&100_usize).launch(SHAPE) }.unwrap();
    machine.let_others_run();
    assert_eq!(*saw.lock().unwrap(), None, "the home stream didn't wait");
    gate.open();
    assert_eq!(buffer.to_vec().unwrap(), [5; 100]);
    assert_eq!((*saw.lock().unwrap(), *sum.lock().unwrap()), (Some(true), Some(200)));
    drop((buffer, homes, others, home, other, late_sum, fill));
    machine.ends_empty(memory);
}

/// Reads elsewhere wait for writes only: not for reads, and not for what the home stream does otherwise.
#[test]
fn readers_do_not_wait_for_each_other() {
    let machine = Machine::new();
    let memory = machine.memory();
    let [home, first, second] = [(); 3].map(|()| machine.stream());
    let [homes, firsts, seconds] = [&home, &first, &second].map(|stream| memory.stream(stream).unwrap());
    let gate = Gate::default();
    let (late_sum, sum, ran) = machine.late_sum(&gate);
    let buffer = DeviceBuffer::try_from_slice(&homes, &[2_u32; 100]).unwrap();
    // SAFETY: these are the parameters that were registered, here and below.
    unsafe {
        first.launch_builder(&late_sum).arg(&buffer.on(&firsts).unwrap()).arg(&100_usize).launch(SHAPE)
    }
    .unwrap();
    // SAFETY: as above. The home stream is busy behind the gate, too, with something that reads.
    unsafe { home.launch_builder(&late_sum).arg(&buffer).arg(&100_usize).launch(SHAPE) }.unwrap();
    assert_eq!(second.clone_dtoh(&buffer.on(&seconds).unwrap()).unwrap(), [2; 100]);
    // The same without a guard: the copy tells its stream.
    assert_eq!(second.clone_dtoh(&buffer).unwrap(), [2; 100]);
    assert!(!ran.is_set());
    gate.open();
    first.synchronize().unwrap();
    assert_eq!(*sum.lock().unwrap(), Some(200));
    drop((buffer, homes, firsts, seconds, home, first, second, late_sum));
    machine.ends_empty(memory);
}

/// A copy of cudarc's on a stream that nobody registered is in order, too; the host waits.
#[test]
fn a_copy_on_an_unregistered_stream_is_in_order() {
    let machine = Machine::new();
    let memory = machine.memory();
    let [home, other, stray] = [(); 3].map(|()| machine.stream());
    let [homes, others] = [&home, &other].map(|stream| memory.stream(stream).unwrap());
    let (fill, _) = machine.fill(4, &Flag::default());
    let mut buffer = DeviceBuffer::<u32>::try_zeroed(&homes, 50).unwrap();
    // SAFETY: these are the parameters that were registered.
    unsafe {
        other.launch_builder(&fill).arg(&mut buffer.on_mut(&others).unwrap()).arg(&50_usize).launch(SHAPE)
    }
    .unwrap();
    assert_eq!(stray.clone_dtoh(&buffer).unwrap(), [4; 50]);
    stray.memcpy_htod(&[6; 50], &mut buffer).unwrap();
    assert_eq!(other.clone_dtoh(&buffer.on(&others).unwrap()).unwrap(), [6; 50]);
    drop((buffer, homes, others, home, other, stray, fill));
    machine.ends_empty(memory);
}

/// The end of a copy by which a stream's last handle goes, and the stream gets late, before the copy is queued: as another
/// thread may do it.
struct Retiring {
    to: CudaSlice<u32>,
    last_handle: Option<Stream>,
    late: CudaFunction,
}

impl DeviceSlice<u32> for Retiring {
    fn len(&self) -> usize {
        self.to.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.to.stream()
    }
}

impl DevicePtrMut<u32> for Retiring {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.last_handle = None;
        // SAFETY: it takes no parameters.
        unsafe { self.to.stream().launch_builder(&self.late).launch(SHAPE) }.unwrap();
        self.to.device_ptr_mut(stream)
    }
}

#[test]
fn a_copy_is_waited_for_though_its_stream_retired_meanwhile() {
    const LEN: usize = PAGE as usize / size_of::<u32>();
    let machine = Machine::new();
    let memory = machine.memory();
    let [home, other] = [(); 2].map(|()| machine.stream());
    let [homes, others] = [&home, &other].map(|stream| memory.stream(stream).unwrap());
    let gate = Gate::default();
    let kernels_gate = gate.clone();
    let late = machine.kernel("late", &[], move |_| kernels_gate.pass());
    let buffer = DeviceBuffer::try_from_slice(&homes, &vec![2_u32; LEN]).unwrap();
    let mut copy = Retiring { to: other.alloc_zeros(LEN).unwrap(), last_handle: Some(others), late };
    // So that nothing holds the registration back.
    other.synchronize().unwrap();
    other.memcpy_dtod(&buffer, &mut copy).unwrap();
    drop(buffer);
    // The next owner of the same frame.
    let mut next = DeviceBuffer::<u32>::try_zeroed(&homes, LEN).unwrap();
    next.fill(9).unwrap();
    machine.let_others_run();
    gate.open();
    assert!(other.clone_dtoh(&copy.to).unwrap().iter().all(|&element| element == 2));
    drop((next, copy, homes, home, other));
    machine.ends_empty(memory);
}

/// Events are kept and used again: many uses elsewhere don't make many events.
#[test]
fn events_are_pooled() {
    let machine = Machine::new();
    let memory = machine.memory();
    let [home, other] = [(); 2].map(|()| machine.stream());
    let [homes, others] = [&home, &other].map(|stream| memory.stream(stream).unwrap());
    let (fill, _) = machine.fill(4, &Flag::default());
    let mut buffer = DeviceBuffer::<u32>::try_zeroed(&homes, 50).unwrap();
    for _ in 0..200 {
        // SAFETY: these are the parameters that were registered, here and below.
        unsafe { home.launch_builder(&fill).arg(&mut buffer).arg(&50_usize).launch(SHAPE) }.unwrap();
        let mut guard = buffer.on_mut(&others).unwrap();
        // SAFETY: as above.
        unsafe { other.launch_builder(&fill).arg(&mut guard).arg(&50_usize).launch(SHAPE) }.unwrap();
        drop(guard);
        assert_eq!(buffer.to_vec().unwrap(), [4; 50]);
    }
    let created = machine.libcuda.calls("cuEventCreate").unwrap();
    let recorded = machine.libcuda.calls("cuEventRecord").unwrap();
    assert!(recorded >= 400, "{recorded} events recorded");
    assert!(created <= 8, "{created} events created for {recorded} records");
    drop((buffer, homes, others, home, other, fill));
    machine.ends_empty(memory);
}

/// Threads with a stream each read one buffer through guards at once, and make and drop their own meanwhile; a write comes
/// after all of them.
#[test]
fn threads_share_a_buffer() {
    const THREADS: u64 = 4;
    const READS: u64 = 100;
    let machine = Machine::new();
    let memory = machine.memory();
    let home = machine.stream();
    let homes = memory.stream(&home).unwrap();
    let total = Arc::new(AtomicU64::new(0));
    let inside = Arc::clone(&total);
    let add_up = machine.kernel_on_x(AccessKind::Read, "add_up", &[8, 8], move |launch| {
        let sum: u64 = crate::elements(launch).iter().map(|&element| u64::from(element)).sum();
        inside.fetch_add(sum, Ordering::SeqCst);
    });
    let mut buffer = DeviceBuffer::try_from_slice(&homes, &[2_u32; 100]).unwrap();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (machine, memory, buffer, add_up) = (&machine, &memory, &buffer, &add_up);
            scope.spawn(move || {
                let own = machine.stream();
                let owns = memory.stream(&own).unwrap();
                for _ in 0..READS {
                    // SAFETY: these are the parameters that were registered, here and below.
                    unsafe {
                        own.launch_builder(add_up)
                            .arg(&buffer.on(&owns).unwrap())
                            .arg(&100_usize)
                            .launch(SHAPE)
                    }
                    .unwrap();
                    let mine = DeviceBuffer::try_from_slice(&owns, &vec![number as u8; 300_000]).unwrap();
                    assert!(mine.to_vec().unwrap().iter().all(|&byte| u64::from(byte) == number));
                }
            });
        }
    });
    // SAFETY: as above. A kernel that writes, by its argument: behind all that the threads have queued.
    unsafe { home.launch_builder(&add_up).arg(&mut buffer).arg(&100_usize).launch(SHAPE) }.unwrap();
    home.synchronize().unwrap();
    assert_eq!(total.load(Ordering::SeqCst), (THREADS * READS + 1) * 200);
    drop((buffer, homes, home, add_up));
    machine.ends_empty(memory);
}
