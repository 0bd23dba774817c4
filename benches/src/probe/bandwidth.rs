//! How fast the device writes, copies and reads memory of many frames, beside memory of one malloc.
//!
//! Main types: none. Neighbours: `concertina_cuda::Area` is the memory; `report` says what is counted.

use concertina_cuda::{Area, Kernels};
use concertina_vmm::{Driver as _, DriverError};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::clock::Times;
use super::report::{Bandwidth, Memory, Pattern};
use super::session::Session;

/// Frames of these sizes in bytes, and of a page.
const FRAMES: [u64; 2] = [64 << 20, 1 << 30];

/// Bytes that one random read is counted with: what memory gives at least. (CUDA Programming Guide, "Device Memory
/// Accesses": transactions of 32, 64 or 128 bytes.)
const SECTOR: u64 = 32;

/// Seed of the order of shuffled frames.
const SEED: u64 = 2;

pub(super) fn measure(session: &mut Session<'_>) -> Result<(), DriverError> {
    let page = session.page()?;
    let free = session.cuda.memory_info()?.free_bytes;
    let largest = FRAMES.into_iter().filter(|bytes| *bytes <= session.plan.area_bytes).max().unwrap_or(page);
    let largest = largest.next_multiple_of(page);
    // Whole frames of each size, and two halves.
    let unit = 2 * largest;
    let bytes = session.plan.area_bytes.min(free / 2) / unit * unit;
    if bytes == 0 {
        let why = format!("{free} bytes are free; four times {largest} are needed");
        session.leave_out("bandwidth", why);
        return Ok(());
    }
    let raw = session.cuda.raw_calls();
    let loaded = raw.kernels();
    let kernels = session.unless_missing("random reads", loaded)?;
    let kinds = [(Memory::Malloc, 0), (Memory::InOrder, page), (Memory::Shuffled, page)]
        .into_iter()
        .chain(FRAMES.into_iter().filter(|frame| *frame <= largest).map(|frame| (Memory::Shuffled, frame)));
    for (memory, frame_bytes) in kinds {
        if session.is_over() {
            break;
        }
        let made = match memory {
            Memory::Malloc => raw.malloc_area(bytes),
            Memory::InOrder | Memory::Shuffled => {
                raw.mapped_area(frame_bytes, &order(memory, bytes, frame_bytes))
            }
        };
        let what = format!("{bytes} bytes, {}, frames of {frame_bytes}", memory.name());
        let Some(area) = session.unless_missing(what, made)? else { continue };
        for pattern in [Pattern::Write, Pattern::Copy, Pattern::RandomReads] {
            time(session, &area, kernels.as_ref(), memory, frame_bytes, pattern)?;
        }
        area.give_back()?;
    }
    Ok(())
}

fn order(memory: Memory, bytes: u64, frame_bytes: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..usize::try_from(bytes / frame_bytes).unwrap_or(0)).collect();
    if memory == Memory::Shuffled {
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(SEED));
    }
    order
}

fn time(
    session: &mut Session<'_>,
    area: &Area,
    kernels: Option<&Kernels>,
    memory: Memory,
    frame_bytes: u64,
    pattern: Pattern,
) -> Result<(), DriverError> {
    let (raw, stream, plan) = (session.cuda.raw_calls(), session.streams[0], session.plan);
    let mut counted_bytes = area.bytes();
    let mut times = Times::default();
    while session.goes_on(times.len()) {
        times.time(|| {
            counted_bytes = match (pattern, kernels) {
                (Pattern::Write, _) => area.fill(1, stream).map(|()| area.bytes())?,
                (Pattern::Copy, _) => area.copy_half(stream)?,
                (Pattern::RandomReads, Some(kernels)) => {
                    SECTOR * kernels.gather(area, plan.gather_blocks, plan.gather_reads, stream)?
                }
                (Pattern::RandomReads, None) => 0,
            };
            raw.synchronize()
        })?;
        if counted_bytes == 0 {
            // There is no kernel.
            return Ok(());
        }
    }
    let Some(spread) = times.without_first().spread() else { return Ok(()) };
    let bytes_per_second = counted_bytes as f64 * 1e9 / spread.median_ns.max(1) as f64;
    let of_malloc = session.report.bandwidth.iter();
    let of_malloc = of_malloc.filter(|other| other.memory == Memory::Malloc && other.pattern == pattern);
    let of_malloc = of_malloc.map(|other| other.bytes_per_second).next().unwrap_or(bytes_per_second);
    session.report.bandwidth.push(Bandwidth {
        memory,
        frame_bytes,
        area_bytes: area.bytes(),
        pattern,
        counted_bytes,
        repeats: spread.calls,
        median_ns: spread.median_ns,
        bytes_per_second,
        times_slower_than_malloc: of_malloc / bytes_per_second,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Memory, order};

    #[test]
    fn shuffled_frames_are_all_there_and_not_in_order() {
        assert_eq!(order(Memory::InOrder, 8, 2), [0, 1, 2, 3]);
        let mut shuffled = order(Memory::Shuffled, 1 << 30, 2 << 20);
        let neighbours = shuffled.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        // Of 511 pairs, one is expected to be left by chance.
        assert!(neighbours < 8, "{neighbours} pairs in order");
        shuffled.sort_unstable();
        assert_eq!(shuffled, (0..512).collect::<Vec<_>>());
    }
}
