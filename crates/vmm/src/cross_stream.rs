//! Whether streams serve one another.
//!
//! Main type: [`CrossStream`]. Neighbours: every stream is registered with one; the fences answer by it who may take
//! what.

/// Whether a frame that another stream used last may be taken. Each stream has such a rule, and between two of them the
/// stricter one holds: a stream that waits for nobody is not waited for either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CrossStream {
    /// No: frames stay with the stream that they first served, until it is retired and all its work is done.
    Never,
    /// Only once that use is seen done: nothing is ever put into a stream.
    Completed,
    /// Yes: the taking stream waits for that use, on the device. Not for streams whose work may wait for other streams
    /// or for the host: collectives that wait for other ranks, waits on a value in memory (`cuStreamWaitValue`), kernels
    /// that run until they are told to stop. A wait for one of them, behind the program's back, can close a circle.
    #[default]
    DeviceWait,
}
